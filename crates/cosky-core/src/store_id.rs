//! Which data a server serves.

use std::{fmt, str::FromStr};

use crate::Error;

/// Names a store's data, counts how often it was opened, and tells one opening from another: a copy that was put back may
/// have been opened as often as what it replaced. As text `id:opened:opening`, the first and the last in 16 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StoreId {
    /// Random, made with the store and kept in it.
    pub id: u64,
    /// How often it was opened, this time included.
    pub opened: u64,
    /// Random, new at each opening.
    pub opening: u64,
}

impl StoreId {
    /// A store that was just made.
    pub fn random() -> Self {
        Self::opening(rand::random(), 1)
    }

    /// The store `id`, just opened for the time that `opened` tells.
    pub fn opening(id: u64, opened: u64) -> Self {
        Self { id, opened, opening: rand::random() }
    }

    /// Whether this is what `before` was, or has become of it by ordinary restarts. Otherwise the data was lost or replaced,
    /// by an older copy for one.
    pub fn follows(self, before: Self) -> bool {
        self == before || (self.id == before.id && self.opened > before.opened)
    }
}

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}:{}:{:016x}", self.id, self.opened, self.opening)
    }
}

impl FromStr for StoreId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parse = || {
            let mut parts = text.split(':');
            let (Some(id), Some(opened), Some(opening), None) =
                (parts.next(), parts.next(), parts.next(), parts.next())
            else {
                return None;
            };
            Some(Self {
                id: u64::from_str_radix(id, 16).ok()?,
                opened: opened.parse().ok()?,
                opening: u64::from_str_radix(opening, 16).ok()?,
            })
        };
        parse().ok_or_else(|| Error::invalid("store", "is not the id of a store"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_its_text() {
        let store = StoreId { id: 0xfeed, opened: 7, opening: 0xbeef };
        assert_eq!(store.to_string(), "000000000000feed:7:000000000000beef");
        assert_eq!(store.to_string().parse::<StoreId>().unwrap(), store);
        for bad in ["", "1", "1:2", "x:1:1", "1:x:1", "1:1:x", "1:2:3:4"] {
            assert!(bad.parse::<StoreId>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn only_restarts_follow() {
        let (first, other) = (StoreId::random(), StoreId::random());
        let [second, third] = [2, 3].map(|opened| StoreId::opening(first.id, opened));
        assert!(first.follows(first) && second.follows(first) && third.follows(first));
        assert!(!first.follows(second), "an older copy");
        assert!(!StoreId::opening(first.id, 2).follows(second), "a copy that was opened as often");
        assert!(!other.follows(first) && !StoreId::opening(other.id, 2).follows(first), "another store");
    }
}
