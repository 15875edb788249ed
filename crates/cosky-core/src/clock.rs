//! Where time comes from, so that tests can say what time it is.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A source of time.
pub trait Clock: Send + Sync + 'static {
    /// Time since an arbitrary start. Never goes back, and counts the time during which the machine was suspended.
    fn now(&self) -> Duration;

    /// Time since 1970-01-01 UTC, for texts and for CoSky's readers only: nothing is decided by it.
    fn unix(&self) -> Duration;
}

/// The machine's clocks: `CLOCK_BOOTTIME` and `CLOCK_REALTIME`.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        read(ClockId::Boottime)
    }

    fn unix(&self) -> Duration {
        read(ClockId::Realtime)
    }
}

fn read(id: ClockId) -> Duration {
    Duration::try_from(clock_gettime(id)).unwrap_or_default()
}
