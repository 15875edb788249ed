//! How long to wait before the next try.

use std::time::Duration;

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

const FLOOR: Duration = Duration::from_millis(100);
const CEILING: Duration = Duration::from_secs(2);

/// Where delays are drawn from.
#[derive(Debug)]
pub(crate) struct Jitter(StdRng);

/// Delays from 100 ms to 2 s that double, each drawn from the upper half of its step, so that many clients that lost the
/// same server do not come back in the same moment.
#[derive(Debug)]
pub(crate) struct Backoff {
    failures: u32,
    jitter: Jitter,
}

impl Jitter {
    /// By chance, or the same each time when there is a seed.
    pub(crate) fn new(seed: Option<u64>) -> Self {
        Self(StdRng::seed_from_u64(seed.unwrap_or_else(rand::random)))
    }

    /// The delay after so many failures in a row, the first one not counted.
    pub(crate) fn after(&mut self, failures: u32) -> Duration {
        let step = FLOOR.saturating_mul(1 << failures.min(8)).min(CEILING);
        step.mul_f64(self.0.random_range(0.5..=1.0))
    }

    /// `every`, ± 10 %.
    pub(crate) fn around(&mut self, every: Duration) -> Duration {
        every.mul_f64(self.0.random_range(0.9..=1.1))
    }
}

impl Backoff {
    pub(crate) fn new(seed: Option<u64>) -> Self {
        Self { failures: 0, jitter: Jitter::new(seed) }
    }

    /// The next delay; each is longer than the last one.
    pub(crate) fn delay(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.jitter.after(self.failures - 1)
    }

    /// The shortest delay.
    pub(crate) fn shortest(&mut self) -> Duration {
        self.jitter.after(0)
    }

    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_ceiling_and_start_again_after_a_reset() {
        let mut backoff = Backoff::new(None);
        for step in [100u64, 200, 400, 800, 1600, 2000, 2000] {
            let delay = backoff.delay().as_millis();
            assert!((u128::from(step) / 2..=u128::from(step)).contains(&delay), "{delay} of {step}");
        }
        backoff.reset();
        assert!(backoff.delay() <= FLOOR);
    }

    #[test]
    fn delays_are_drawn_apart_unless_a_seed_says_otherwise() {
        let drawn = |seed| (0..8).map(|_| Jitter::new(seed).after(3)).collect::<Vec<_>>();
        let (random, seeded) = (drawn(None), drawn(Some(7)));
        assert!(random.iter().any(|one| *one != random[0]), "{random:?}");
        assert!(seeded.iter().all(|one| *one == seeded[0]), "{seeded:?}");
    }
}
