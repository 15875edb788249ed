//! Until when an instance lives: one atomic number, moved by beats without waiting for each other.
//!
//! Two locks of the engine's memory settle the race between a beat and an expiry. A beat reads and then writes with plain
//! operations, under the read lock; of two beats at once any may win. Whatever else writes holds the write lock, so a decision
//! to remove cannot fall in between a beat's two steps. The tests have loom go through all orders in which that can happen.

use std::sync::atomic::{AtomicU64, Ordering};

/// What stands in the cell of an instance that lives for ever.
const NEVER: u64 = u64::MAX;
/// What stands in the cell of an instance that the writer has decided to remove.
const DYING: u64 = 0;

/// In milliseconds on the engine's clock.
#[derive(Debug)]
pub(crate) struct Deadline<C = AtomicU64>(C);

/// What came of a beat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beaten {
    /// It was moved.
    Renewed,
    /// There is none to move.
    Permanent,
    /// It is over, and the removal has been decided: no beat brings the instance back.
    Dying,
}

/// A number that threads share. No other memory depends on its order.
pub(crate) trait Cell {
    fn new(number: u64) -> Self;
    fn get(&self) -> u64;
    fn set(&self, number: u64);
}

/// The same text for the standard library's atomic and for loom's, so that what loom judges is what runs.
macro_rules! cell {
    ($atomic:ty) => {
        impl Cell for $atomic {
            fn new(number: u64) -> Self {
                Self::new(number)
            }

            fn get(&self) -> u64 {
                self.load(Ordering::Relaxed)
            }

            fn set(&self, number: u64) {
                self.store(number, Ordering::Relaxed);
            }
        }
    };
}

cell!(AtomicU64);

impl<C: Cell> Deadline<C> {
    /// One that never comes.
    pub(crate) fn never() -> Self {
        Self(C::new(NEVER))
    }

    /// When it is; `None` when never. In the past when the removal has been decided.
    pub(crate) fn get(&self) -> Option<u64> {
        Some(self.0.get()).filter(|deadline| *deadline != NEVER)
    }

    /// Sets it, or takes it away, whatever it was. Under the write lock.
    pub(crate) fn set(&self, end: Option<u64>) {
        self.0.set(end.unwrap_or(NEVER));
    }

    /// Moves it on behalf of a beat, unless there is none or it is too late. Under the read lock.
    pub(crate) fn beat(&self, end: u64) -> Beaten {
        match self.0.get() {
            NEVER => Beaten::Permanent,
            DYING => Beaten::Dying,
            _ => {
                self.0.set(end);
                Beaten::Renewed
            }
        }
    }

    /// Decides to remove when it has come, and says so. Under the write lock.
    pub(crate) fn expire(&self, now: u64) -> bool {
        let over = self.0.get() <= now;
        if over {
            self.0.set(DYING);
        }
        over
    }

    /// Moves it on by so many milliseconds, if there is one and it is not too late. Under the write lock.
    pub(crate) fn postpone(&self, by: u64) {
        let deadline = self.0.get();
        if deadline != NEVER && deadline != DYING {
            self.0.set(deadline + by);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use loom::{sync::RwLock, thread};

    use super::*;

    cell!(loom::sync::atomic::AtomicU64);

    /// An instance whose deadline is 10, under the engine's lock.
    struct Shared(RwLock<Deadline<loom::sync::atomic::AtomicU64>>);

    impl Shared {
        fn new() -> Arc<Self> {
            let deadline = Deadline::never();
            deadline.set(Some(10));
            Arc::new(Self(RwLock::new(deadline)))
        }

        fn beat(self: &Arc<Self>, end: u64) -> thread::JoinHandle<Beaten> {
            let shared = Arc::clone(self);
            thread::spawn(move || shared.0.read().unwrap().beat(end))
        }

        fn expire(&self, now: u64) -> bool {
            self.0.write().unwrap().expire(now)
        }

        fn get(&self) -> Option<u64> {
            self.0.read().unwrap().get()
        }
    }

    /// Of beats and an expiry at the same time, the beats are renewed and the instance lives, or the expiry comes first and
    /// no beat is told otherwise, then or later.
    #[test]
    fn a_renewed_beat_is_never_followed_by_an_expiry_decided_before_it() {
        loom::model(|| {
            let shared = Shared::new();
            let beats = [40, 41].map(|end| shared.beat(end));
            let expired = shared.expire(10);
            let beats = beats.map(|beat| beat.join().unwrap());
            if expired {
                // One may have come before the other, but none before the expiry.
                assert_eq!(beats, [Beaten::Dying; 2]);
                assert_eq!(shared.get(), Some(DYING));
                assert_eq!(shared.beat(50).join().unwrap(), Beaten::Dying);
                assert_eq!(shared.get(), Some(DYING));
            } else {
                assert!(beats.contains(&Beaten::Renewed), "{beats:?}");
                assert!(shared.get() >= Some(40), "{:?}", shared.get());
                assert!(!shared.expire(39) && shared.expire(41), "it ends one TTL after the beat");
            }
        });
    }

    /// Time that passes while the process stands still moves a deadline whichever comes first, it or a beat, and does not
    /// bring back what is dying.
    #[test]
    fn a_pause_does_not_undo_a_beat_nor_an_expiry() {
        loom::model(|| {
            let shared = Shared::new();
            let beat = shared.beat(40);
            let paused = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.0.write().unwrap().postpone(5))
            };
            let expired = shared.expire(10);
            let beat = beat.join().unwrap();
            paused.join().unwrap();
            match (expired, beat) {
                (true, Beaten::Dying) => assert_eq!(shared.get(), Some(DYING)),
                (false, Beaten::Renewed) => {
                    assert!(matches!(shared.get(), Some(40 | 45)), "{:?}", shared.get())
                }
                other => panic!("{other:?}"),
            }
        });
    }

    /// The lock is what it rests on: loom finds the order that fails without one.
    #[test]
    #[should_panic(expected = "a beat was renewed and the instance expired")]
    fn without_the_lock_it_would_be_wrong() {
        loom::model(|| {
            let deadline = Arc::new(Deadline::<loom::sync::atomic::AtomicU64>::never());
            deadline.set(Some(10));
            let beat = {
                let deadline = Arc::clone(&deadline);
                thread::spawn(move || deadline.beat(40))
            };
            let expired = deadline.expire(10);
            let renewed = beat.join().unwrap() == Beaten::Renewed;
            assert!(!(renewed && expired), "a beat was renewed and the instance expired");
        });
    }

    #[test]
    fn there_may_be_none() {
        let deadline = Deadline::<AtomicU64>::never();
        deadline.postpone(5);
        assert!(!deadline.expire(u64::MAX - 1));
        assert_eq!((deadline.get(), deadline.beat(7)), (None, Beaten::Permanent));
        assert_eq!(deadline.get(), None);
        deadline.set(Some(7));
        assert_eq!((deadline.get(), deadline.beat(8)), (Some(7), Beaten::Renewed));
        deadline.set(None);
        assert_eq!(deadline.get(), None);
    }
}
