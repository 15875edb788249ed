//! How long to wait before the next try.

use std::time::Duration;

const FLOOR: Duration = Duration::from_millis(100);
const CEILING: Duration = Duration::from_secs(2);

/// Delays from 100 ms to 2 s that double, each drawn from the upper half of its step, so that many clients that lost the
/// same server do not come back in the same moment.
#[derive(Debug)]
pub(crate) struct Backoff {
    tries: u32,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { tries: 0 }
    }

    pub(crate) fn delay(&mut self) -> Duration {
        let delay = after(self.tries);
        self.tries = self.tries.saturating_add(1);
        delay
    }

    pub(crate) fn reset(&mut self) {
        self.tries = 0;
    }
}

/// The delay after so many failures in a row, the first one not counted.
pub(crate) fn after(failures: u32) -> Duration {
    let step = FLOOR.saturating_mul(1 << failures.min(8)).min(CEILING);
    step.mul_f64(rand::random_range(0.5..=1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_ceiling_and_start_again_after_a_reset() {
        let mut backoff = Backoff::new();
        for step in [100u64, 200, 400, 800, 1600, 2000, 2000] {
            let delay = backoff.delay().as_millis();
            assert!((u128::from(step) / 2..=u128::from(step)).contains(&delay), "{delay} of {step}");
        }
        backoff.reset();
        assert!(backoff.delay() <= FLOOR);
    }

    #[test]
    fn delays_are_drawn_apart() {
        let drawn: Vec<_> = (0..8).map(|_| after(3)).collect();
        assert!(drawn.iter().any(|one| *one != drawn[0]), "{drawn:?}");
    }
}
