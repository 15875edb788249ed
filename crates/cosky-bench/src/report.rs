//! The table: one line a row, measured against its goal.

use std::fmt;

/// A measured row.
#[derive(Debug)]
pub(crate) struct Row {
    what: String,
    product: f64,
    baseline: Option<f64>,
    unit: Unit,
    goal: Goal,
}

/// How a quantity is printed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Unit {
    /// Operations per second.
    PerSecond,
    /// Seconds.
    Seconds,
    /// Bytes.
    Bytes,
    /// A number of things.
    Count,
    /// A number of things for each of others.
    Rate,
}

/// What has to be reached.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Goal {
    /// The product, in its unit.
    AtLeast(f64),
    /// The product, in its unit.
    AtMost(f64),
    /// The product divided by the baseline.
    RatioAtLeast(f64),
    /// The product divided by the baseline.
    RatioAtMost(f64),
}

impl Row {
    /// A quantity with a goal of its own.
    pub(crate) fn alone(what: impl Into<String>, product: f64, unit: Unit, goal: Goal) -> Self {
        Self { what: what.into(), product, baseline: None, unit, goal }
    }

    /// A quantity beside a baseline of the same run.
    pub(crate) fn beside(
        what: impl Into<String>,
        product: f64,
        baseline: f64,
        unit: Unit,
        goal: Goal,
    ) -> Self {
        Self { what: what.into(), product, baseline: Some(baseline), unit, goal }
    }

    /// Whether the goal is reached.
    pub(crate) fn is_reached(&self) -> bool {
        match self.goal {
            Goal::AtLeast(goal) => self.product >= goal,
            Goal::AtMost(goal) => self.product <= goal,
            Goal::RatioAtLeast(goal) => self.ratio().is_some_and(|ratio| ratio >= goal),
            Goal::RatioAtMost(goal) => self.ratio().is_some_and(|ratio| ratio <= goal),
        }
    }

    fn ratio(&self) -> Option<f64> {
        self.baseline.map(|baseline| self.product / baseline)
    }

    /// The line above the rows.
    pub(crate) fn head() -> String {
        format!("{:<58} {:>10} {:>10} {:>6} {:>10}", "what", "product", "baseline", "ratio", "goal")
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let baseline = self.baseline.map_or_else(|| "-".into(), |baseline| self.unit.show(baseline));
        let ratio = self.ratio().map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"));
        let goal = match self.goal {
            Goal::AtLeast(goal) => format!(">= {}", self.unit.show(goal)),
            Goal::AtMost(goal) => format!("<= {}", self.unit.show(goal)),
            Goal::RatioAtLeast(goal) => format!(">= {goal}"),
            Goal::RatioAtMost(goal) => format!("<= {goal}"),
        };
        let missed = if self.is_reached() { "" } else { "  MISSED" };
        let product = self.unit.show(self.product);
        write!(f, "{:<58} {product:>10} {baseline:>10} {ratio:>6} {goal:>10}{missed}", self.what)
    }
}

impl Unit {
    fn show(self, value: f64) -> String {
        match self {
            Self::PerSecond if value >= 1e6 => format!("{:.2} M/s", value / 1e6),
            Self::PerSecond => format!("{:.1} k/s", value / 1e3),
            Self::Seconds if value >= 1.0 => format!("{value:.2} s"),
            Self::Seconds if value >= 1e-3 => format!("{:.1} ms", value * 1e3),
            Self::Seconds => format!("{:.0} us", value * 1e6),
            Self::Bytes if value >= 1e6 => format!("{:.1} MB", value / 1e6),
            Self::Bytes => format!("{:.1} KiB", value / 1024.0),
            Self::Count => format!("{value:.0}"),
            Self::Rate => format!("{value:.3}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_that_is_not_reached_is_told() {
        let row = |product, goal| Row::beside("x", product, 10.0, Unit::PerSecond, goal);
        assert!(row(7.0, Goal::RatioAtLeast(0.7)).is_reached());
        assert!(!row(6.9, Goal::RatioAtLeast(0.7)).is_reached());
        assert!(!row(20.1, Goal::RatioAtMost(2.0)).is_reached());
        assert!(row(6.9, Goal::RatioAtLeast(0.7)).to_string().ends_with("MISSED"));
        assert!(!Row::alone("x", f64::NAN, Unit::Seconds, Goal::AtMost(1.0)).is_reached());
        assert!(!Row::alone("x", 1.0, Unit::Seconds, Goal::RatioAtMost(1.0)).is_reached());
    }
}
