//! Signs of life: whether the whole process was stopped, what keeps the writer busy, and how the disk is.
//!
//! All of it can be read without waiting: a disk that hangs must not hang those who ask how the store is.

use std::{
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use crate::{Shared, memory::millis};

/// How often the pulse beats.
const PULSE: Duration = Duration::from_millis(250);
/// A commit that takes longer than this is told of: something is wrong with the disk.
const SLOW: Duration = Duration::from_secs(3);
/// What stands for a time or a size that there is none of.
const NONE: u64 = u64::MAX;

/// What is known of the engine's health. Times are milliseconds on its clock.
pub(crate) struct Vitals {
    /// When the pulse beat last. It depends on nothing but being scheduled.
    pulse: AtomicU64,
    /// For how long the process did not run, since that was last asked.
    missed: AtomicU64,
    /// Of how long a stop it is no longer enough to add the time that was missed.
    stall_limit: u64,
    /// Since when the writer waits for the disk.
    busy_since: AtomicU64,
    disk_free: AtomicU64,
    /// Why writes are refused, when they are.
    refusal: Mutex<Option<String>>,
}

/// The process did not run for a while, so that beats could not be taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// For so many milliseconds. What was sent meanwhile waits in the sockets.
    Short(u64),
    /// So long that clients may have given up and come again later.
    Long,
}

impl Vitals {
    pub(crate) fn new(now: Duration, stall_limit: Duration) -> Self {
        Self {
            pulse: AtomicU64::new(millis(now)),
            missed: AtomicU64::new(0),
            stall_limit: millis(stall_limit),
            busy_since: AtomicU64::new(NONE),
            disk_free: AtomicU64::new(NONE),
            refusal: Mutex::new(None),
        }
    }

    /// Notes that the process runs, or that it did not for a while.
    fn beat(&self, now: u64) {
        let gap = now.saturating_sub(self.pulse.swap(now, Ordering::AcqRel));
        if gap > 2 * millis(PULSE) && self.stall_limit != NONE {
            self.missed.fetch_add(gap, Ordering::AcqRel);
        }
    }

    /// What was missed since this was last asked. A pulse that has not come back yet tells it as well as one that has, so
    /// whoever wakes first after a stop knows of it.
    pub(crate) fn take_stop(&self, now: u64) -> Option<Stop> {
        self.beat(now);
        match self.missed.swap(0, Ordering::AcqRel) {
            0 => None,
            missed if missed > self.stall_limit => Some(Stop::Long),
            missed => Some(Stop::Short(missed)),
        }
    }

    /// The writer begins to wait for the disk.
    pub(crate) fn begin(&self, now: Duration) {
        self.busy_since.store(millis(now), Ordering::Release);
    }

    /// The disk has answered.
    pub(crate) fn end(&self) {
        self.busy_since.store(NONE, Ordering::Release);
    }

    pub(crate) fn set_disk_free(&self, bytes: u64) {
        self.disk_free.store(bytes, Ordering::Relaxed);
    }

    /// Bytes free on the disk, as measured last.
    pub(crate) fn disk_free(&self) -> Option<u64> {
        Some(self.disk_free.load(Ordering::Relaxed)).filter(|bytes| *bytes != NONE)
    }

    /// Keeps why writes are refused, or that they are not; returns what was known before.
    pub(crate) fn set_refusal(&self, refusal: Option<String>) -> Option<String> {
        std::mem::replace(&mut self.refusal.lock().unwrap_or_else(PoisonError::into_inner), refusal)
    }

    /// Why writes are refused now, when they are.
    pub(crate) fn refusal(&self, now: Duration) -> Option<String> {
        let known = self.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let busy = millis(now).saturating_sub(self.busy_since.load(Ordering::Acquire));
        let slow = || format!("the disk has not answered for {} s; reads and beats go on", busy / 1000);
        known.or_else(|| (busy > millis(SLOW)).then(slow))
    }
}

/// Lets the pulse beat until the engine is gone.
pub(crate) fn spawn(shared: &Arc<Shared>) -> std::io::Result<()> {
    let shared: Weak<Shared> = Arc::downgrade(shared);
    thread::Builder::new().name("cosky-pulse".into()).spawn(move || {
        while let Some(shared) = shared.upgrade() {
            shared.vitals.beat(millis(shared.clock.now()));
            drop(shared);
            thread::sleep(PULSE);
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_stop_is_told_once_by_whoever_wakes_first() {
        let vitals = Vitals::new(SECOND, 2 * SECOND);
        assert_eq!(vitals.take_stop(1_500), None, "a pulse may be late");
        assert_eq!(vitals.take_stop(3_500), Some(Stop::Short(2_000)));
        assert_eq!(vitals.take_stop(40_000), Some(Stop::Long), "the writer woke first");
        vitals.beat(40_001);
        assert_eq!(vitals.take_stop(40_002), None, "told once");
        vitals.beat(80_000);
        assert_eq!(vitals.take_stop(80_001), Some(Stop::Long), "the pulse woke first");
        let unlimited = Vitals::new(SECOND, Duration::MAX);
        assert_eq!(unlimited.take_stop(80_000), None);
    }

    #[test]
    fn a_disk_that_does_not_answer_is_told_of() {
        let vitals = Vitals::new(SECOND, SECOND);
        vitals.begin(10 * SECOND);
        assert_eq!(vitals.refusal(13 * SECOND), None);
        assert!(vitals.refusal(14 * SECOND).unwrap().contains("4 s"));
        vitals.end();
        assert_eq!(vitals.refusal(99 * SECOND), None);
    }
}
