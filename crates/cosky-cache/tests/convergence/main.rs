//! P4, P1 and P3 for caches, in a simulation: whatever happens to the store, its servers and the links, what is shown is
//! or was true, never goes back in time, and is true again in time.
//!
//! `COSKY_TEST_SEED=n cargo test -p cosky-cache --test convergence one_seed -- --nocapture` plays one seed and prints what
//! happened.

mod faults;
mod fleet;
mod history;
mod judge;
mod play;

use play::play;

/// Plays every seed and fails with the first that goes wrong.
fn all(seeds: impl IntoIterator<Item = u64>) {
    let (mut exact, mut faults) = (0, 0);
    for seed in seeds {
        let outcome = play(seed, false);
        assert!(
            outcome.violations.is_empty(),
            "seed {seed}: {:#?}; COSKY_TEST_SEED={seed} plays it again",
            outcome.violations
        );
        (exact, faults) = (exact + outcome.exact, faults + outcome.faults);
    }
    assert!(exact > 0 && faults > 0, "nothing happened, or nothing was looked at");
}

#[test]
fn views_converge_1() {
    all(0..500);
}

#[test]
fn views_converge_2() {
    all(500..1_000);
}

#[test]
fn views_converge_3() {
    all(1_000..1_500);
}

#[test]
fn views_converge_4() {
    all(1_500..2_000);
}

/// In these, a cache that asks at the end of each life asked for one service eighty times in a quarter of a second, as long
/// as the store had not got round to what was over.
#[test]
fn seeds_that_once_failed() {
    all([61, 256, 367]);
}

#[test]
fn a_seed_always_plays_the_same() {
    for seed in 0..20 {
        let (once, again) = (play(seed, true).trace, play(seed, true).trace);
        let differs = once.iter().zip(&again).find(|(one, other)| one != other);
        assert!(once == again, "seed {seed} differs: {differs:#?}");
    }
}

/// Plays the seed of `COSKY_TEST_SEED`, or seed 0, and prints what happened.
#[test]
fn one_seed() {
    let seed = std::env::var("COSKY_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let outcome = play(seed, true);
    outcome.trace.iter().for_each(|line| println!("{line}"));
    println!("{:#?}", outcome.asked);
    assert!(outcome.violations.is_empty(), "seed {seed}: {:#?}", outcome.violations);
}
