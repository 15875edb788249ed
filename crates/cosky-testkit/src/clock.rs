//! Time that moves when a test says so.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use cosky_core::Clock;

/// A clock that stands still until [`advance`](Self::advance). Clones share the time. The wall clock runs along with
/// it, and can be set without moving it, as an operator or NTP sets the time of a machine.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<Time>);

#[derive(Debug)]
struct Time {
    /// Nanoseconds since the clock's start.
    elapsed: AtomicU64,
    /// What the wall clock shows beyond that, in nanoseconds since 1970.
    offset: AtomicI64,
}

impl ManualClock {
    /// A clock at some time after its start; its wall clock shows 2026-09-21.
    pub fn new() -> Self {
        let start = Duration::from_secs(1_000);
        let wall = Duration::from_secs(1_790_000_000);
        let time = Time { elapsed: AtomicU64::new(nanos(start)), offset: AtomicI64::new(0) };
        let clock = Self(Arc::new(time));
        clock.set_unix(wall);
        clock
    }

    /// Lets `time` pass, on both clocks.
    pub fn advance(&self, time: Duration) {
        self.0.elapsed.fetch_add(nanos(time), Ordering::SeqCst);
    }

    /// Sets the wall clock, forward or back, to this time since 1970. Nothing else moves.
    pub fn set_unix(&self, wall: Duration) {
        let elapsed = self.0.elapsed.load(Ordering::SeqCst);
        let offset = signed(nanos(wall)) - signed(elapsed);
        self.0.offset.store(offset, Ordering::SeqCst);
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.elapsed.load(Ordering::SeqCst))
    }

    fn unix(&self) -> Duration {
        let elapsed = self.0.elapsed.load(Ordering::SeqCst);
        let wall = signed(elapsed) + self.0.offset.load(Ordering::SeqCst);
        Duration::from_nanos(u64::try_from(wall).unwrap_or_default())
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("a test lasts less than five centuries")
}

fn signed(nanos: u64) -> i64 {
    i64::try_from(nanos).expect("a test plays before the year 2262")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wall_clock_is_set_alone() {
        let clock = ManualClock::new();
        let (now, unix) = (clock.now(), clock.unix());
        clock.clone().advance(Duration::from_millis(1500));
        assert_eq!(clock.now() - now, Duration::from_millis(1500));
        assert_eq!(clock.unix() - unix, Duration::from_millis(1500));
        clock.set_unix(Duration::from_secs(5));
        assert_eq!(clock.unix(), Duration::from_secs(5));
        assert_eq!(clock.now() - now, Duration::from_millis(1500));
        clock.advance(Duration::from_secs(2));
        assert_eq!(clock.unix(), Duration::from_secs(7));
    }
}
