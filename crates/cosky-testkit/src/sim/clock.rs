//! Clocks that follow tokio's time, which a test pauses and moves.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use cosky_core::Clock;
use tokio::time::Instant;

/// What a wall clock that is right shows at the start of a simulation: 2026-09-21.
pub(super) const WALL: Duration = Duration::from_secs(1_790_000_000);

/// The clock of one simulated machine. Its time is tokio's, so it moves with a paused runtime; its wall clock may be wrong
/// and may be set. Clones are the same clock.
#[derive(Debug, Clone)]
pub struct VirtualClock {
    start: Instant,
    /// How wrong the wall clock is, in milliseconds.
    wrong: Arc<AtomicI64>,
    /// For how long the machine was suspended, in milliseconds.
    suspended: Arc<AtomicU64>,
}

impl VirtualClock {
    /// A clock that starts now. To be called, like every method, inside a tokio runtime.
    pub fn new() -> Self {
        Self { start: Instant::now(), wrong: Arc::default(), suspended: Arc::default() }
    }

    /// Makes the wall clock wrong by this many milliseconds, ahead or behind. Nothing else moves.
    pub fn set_wrong_by(&self, millis: i64) {
        self.wrong.store(millis, Ordering::SeqCst);
    }

    /// The machine was suspended for `time`: the clock counts it, timers do not.
    pub fn suspend(&self, time: Duration) {
        let millis = u64::try_from(time.as_millis()).expect("a test lasts less than five centuries");
        self.suspended.fetch_add(millis, Ordering::SeqCst);
    }
}

impl Default for VirtualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Duration {
        // A clock may begin anywhere; one that begins at 0 would hide a subtraction that goes below.
        Duration::from_secs(1_000)
            + self.start.elapsed()
            + Duration::from_millis(self.suspended.load(Ordering::SeqCst))
    }

    fn unix(&self) -> Duration {
        let wall = WALL + self.now();
        let wrong = self.wrong.load(Ordering::SeqCst);
        let by = Duration::from_millis(wrong.unsigned_abs());
        if wrong < 0 { wall.saturating_sub(by) } else { wall + by }
    }
}
