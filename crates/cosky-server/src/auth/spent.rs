//! Refresh tokens whose use the store could not be told of. Access tokens end after a quarter of an hour, so a store that
//! refuses writes for longer (a full disk, say) would cost every session, and with it every registration, if a refresh
//! had to wait for it. So the use is remembered here until the token expires; a restart forgets it.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Tokens that are remembered, about 8 MiB.
const PLACES: usize = 65_536;

/// Their ids, and when they expire in seconds since 1970.
#[derive(Debug, Default)]
pub(crate) struct Spent(Mutex<HashMap<Box<str>, u64>>);

/// What became of an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It was not there, and is now.
    Now,
    /// It was there.
    Before,
    /// It is not there, and there is no room.
    Full,
}

impl Spent {
    /// Remembers `id` until `expires_at`. Of two at once one gets [`Taken::Now`].
    pub(crate) fn take(&self, id: &str, expires_at: u64, now: u64) -> Taken {
        let mut spent = self.lock();
        if spent.contains_key(id) {
            return Taken::Before;
        }
        if spent.len() >= PLACES {
            spent.retain(|_, end| *end > now);
        }
        if spent.len() >= PLACES {
            return Taken::Full;
        }
        spent.insert(id.into(), expires_at);
        Taken::Now
    }

    /// Forgets `id`: the store knows of it, or it was not used.
    pub(crate) fn give_back(&self, id: &str) {
        self.lock().remove(id);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_taken_once_until_it_is_given_back() {
        let spent = Spent::default();
        assert_eq!(spent.take("a", 9, 0), Taken::Now);
        assert_eq!(spent.take("a", 9, 0), Taken::Before);
        spent.give_back("a");
        assert_eq!(spent.take("a", 9, 0), Taken::Now);
    }

    #[test]
    fn what_is_remembered_is_bounded_and_ends() {
        let spent = Spent::default();
        for id in 0..PLACES {
            assert_eq!(spent.take(&id.to_string(), 9, 8), Taken::Now);
        }
        assert_eq!(spent.take("one more", 9, 8), Taken::Full);
        assert_eq!(spent.take("0", 9, 8), Taken::Before, "what is known stays known");
        assert_eq!(spent.take("one more", 19, 9), Taken::Now, "the others have expired");
        assert_eq!(spent.lock().len(), 1);
    }
}
