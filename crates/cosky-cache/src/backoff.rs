//! How long to wait before the next try.

use std::time::Duration;

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

/// From where to where the delays before a stream is asked for again are drawn, in milliseconds; the last of them for all
/// that follow. The first is short, for a stream that was lost while its server lives. The second and third are as wide
/// as can be, since all clients of a server count from the same loss. The later ones are far from zero: of many clients
/// that wait for 2.55 s on average, and a second at least, 1 / 2.55 come within the same second.
const STREAM: [(u64, u64); 4] = [(50, 100), (100, 2000), (100, 3000), (2100, 3000)];
/// The delays of everything else that is tried again: from here, doubled,
const FLOOR: Duration = Duration::from_millis(100);
/// up to here.
const CEILING: Duration = Duration::from_secs(2);

/// Where delays are drawn from.
#[derive(Debug)]
pub(crate) struct Jitter(Option<Box<StdRng>>);

/// The delays before one try after another, drawn apart, so that many clients that lost the same server do not come back
/// in the same moment.
#[derive(Debug)]
pub struct Backoff {
    steps: Steps,
    failures: u32,
    jitter: Jitter,
}

#[derive(Debug, Clone, Copy)]
enum Steps {
    /// Each twice the one before, drawn from its upper half.
    Doubled { floor: Duration, ceiling: Duration },
    /// [`STREAM`].
    Stream,
}

impl Jitter {
    /// By chance, or the same each time when there is a seed.
    pub(crate) fn new(seed: Option<u64>) -> Self {
        Self(seed.map(|seed| Box::new(StdRng::seed_from_u64(seed))))
    }

    /// The delay after so many failures in a row, the first one not counted.
    pub(crate) fn after(&mut self, failures: u32) -> Duration {
        self.delay(Steps::Doubled { floor: FLOOR, ceiling: CEILING }, failures)
    }

    /// `every`, ± 10 %.
    pub(crate) fn around(&mut self, every: Duration) -> Duration {
        every.mul_f64(self.between(0.9, 1.1))
    }

    fn delay(&mut self, steps: Steps, failures: u32) -> Duration {
        match steps {
            Steps::Doubled { floor, ceiling } => {
                let step = floor.saturating_mul(1 << failures.min(30)).min(ceiling);
                step.mul_f64(self.between(0.5, 1.0))
            }
            Steps::Stream => {
                let (from, to) = STREAM[STREAM.len().min(failures as usize + 1) - 1];
                Duration::from_millis(to).mul_f64(self.between(from as f64 / to as f64, 1.0))
            }
        }
    }

    fn between(&mut self, from: f64, to: f64) -> f64 {
        match &mut self.0 {
            Some(seeded) => seeded.random_range(from..=to),
            None => rand::random_range(from..=to),
        }
    }
}

impl Backoff {
    /// Delays that double from `floor` to `ceiling`, each drawn from the upper half of its step.
    pub fn new(floor: Duration, ceiling: Duration) -> Self {
        Self { steps: Steps::Doubled { floor, ceiling }, failures: 0, jitter: Jitter::new(None) }
    }

    /// From 100 ms to 2 s.
    pub fn short() -> Self {
        Self::new(FLOOR, CEILING)
    }

    /// Those before a stream is asked for again.
    pub(crate) fn of_stream(seed: Option<u64>) -> Self {
        Self { steps: Steps::Stream, failures: 0, jitter: Jitter::new(seed) }
    }

    /// The next delay; each is from a longer step than the last one.
    pub fn delay(&mut self) -> Duration {
        let failures = self.failures;
        self.failures = failures.saturating_add(1);
        self.jitter.delay(self.steps, failures)
    }

    /// The shortest delay.
    pub(crate) fn shortest(&mut self) -> Duration {
        self.jitter.delay(self.steps, 0)
    }

    /// The next delay is the shortest.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_ceiling_and_start_again_after_a_reset() {
        let mut backoff = Backoff::short();
        for step in [100u64, 200, 400, 800, 1600, 2000, 2000] {
            let delay = backoff.delay().as_millis();
            assert!((u128::from(step) / 2..=u128::from(step)).contains(&delay), "{delay} of {step}");
        }
        backoff.reset();
        assert!(backoff.delay() <= FLOOR);
        backoff.failures = u32::MAX;
        assert!(backoff.delay() <= CEILING);
    }

    #[test]
    fn delays_are_drawn_apart_unless_a_seed_says_otherwise() {
        let drawn = |seed| (0..8).map(|_| Jitter::new(seed).after(3)).collect::<Vec<_>>();
        let (random, seeded) = (drawn(None), drawn(Some(7)));
        assert!(random.iter().any(|one| *one != random[0]), "{random:?}");
        assert!(seeded.iter().all(|one| *one == seeded[0]), "{seeded:?}");
    }

    /// 4,000 clients lose the same server in the same moment. When it returns after 2 s or more, no second has many more
    /// than 40 % of them (the bound leaves room for chance), and the last of them comes within 3 s.
    #[test]
    fn clients_of_a_server_that_returns_come_back_apart() {
        const CLIENTS: usize = 4000;
        for outage in [2.0, 2.2, 2.5, 3.0, 4.0, 5.0, 10.0, 30.0, 120.0] {
            let mut come: Vec<f64> = (0..CLIENTS as u64)
                .map(|seed| {
                    let mut backoff = Backoff::of_stream(Some(seed));
                    let mut at = 0.0;
                    while at < outage {
                        at += backoff.delay().as_secs_f64();
                    }
                    at - outage
                })
                .collect();
            come.sort_by(f64::total_cmp);
            let within = |from: &f64| come.iter().filter(|at| (*from..from + 1.0).contains(at)).count();
            let most = come.iter().step_by(40).map(within).max().unwrap();
            assert!(most * 100 <= CLIENTS * 43, "{most} of {CLIENTS} after {outage} s");
            assert!(come[CLIENTS - 1] <= 3.0, "{come:?}");
        }
    }
}
