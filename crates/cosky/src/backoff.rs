//! How long to wait before the next try.

use std::time::Duration;

/// Delays that double from a floor to a ceiling, each drawn from the upper half of its step, so that many clients
/// that lost the same server do not come back in the same moment.
#[derive(Debug)]
pub(crate) struct Backoff {
    floor: Duration,
    ceiling: Duration,
    step: Duration,
}

impl Backoff {
    pub(crate) fn new(floor: Duration, ceiling: Duration) -> Self {
        Self { floor, ceiling, step: floor }
    }

    /// The delays of everything that reconnects: 100 ms to 2 s.
    pub(crate) fn reconnect() -> Self {
        Self::new(Duration::from_millis(100), Duration::from_secs(2))
    }

    pub(crate) fn delay(&mut self) -> Duration {
        let delay = self.step.mul_f64(rand::random_range(0.5..=1.0));
        self.step = (self.step * 2).min(self.ceiling);
        delay
    }

    pub(crate) fn reset(&mut self) {
        self.step = self.floor;
    }
}

/// `wait` and up to half of it more, at random: never sooner than was asked for, and not in step with others.
pub(crate) fn at_least(wait: Duration) -> Duration {
    wait.mul_f64(rand::random_range(1.0..=1.5))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_drawn_apart_and_never_shorter() {
        let wait = Duration::from_secs(10);
        let drawn: Vec<_> = (0..8).map(|_| at_least(wait)).collect();
        assert!(drawn.iter().all(|drawn| (wait..=wait.mul_f64(1.5)).contains(drawn)), "{drawn:?}");
        assert!(drawn.iter().any(|one| *one != drawn[0]), "{drawn:?}");
    }

    #[test]
    fn delays_double_up_to_the_ceiling_and_start_again_after_a_reset() {
        let mut backoff = Backoff::reconnect();
        for step in [100u64, 200, 400, 800, 1600, 2000, 2000] {
            let delay = backoff.delay().as_millis();
            assert!((u128::from(step) / 2..=u128::from(step)).contains(&delay), "{delay} of {step}");
        }
        backoff.reset();
        assert!(backoff.delay() <= Duration::from_millis(100));
    }
}
