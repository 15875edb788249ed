//! Which data a server serves.

use std::{fmt, str::FromStr};

use crate::Error;

/// Names a store's data and counts how often it was opened. Another `id` than before, or a lower `opened`, means that the
/// data was lost or replaced, by an older copy for one. A higher `opened` is an ordinary restart. As text `id:opened`, the
/// id in 16 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StoreId {
    /// Random, made with the store and kept in it.
    pub id: u64,
    /// How often it was opened, this time included.
    pub opened: u64,
}

impl StoreId {
    /// A store that was just made.
    pub fn random() -> Self {
        Self { id: rand::random(), opened: 1 }
    }

    /// The same store, opened once more.
    pub fn reopened(self) -> Self {
        Self { opened: self.opened.saturating_add(1), ..self }
    }
}

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}:{}", self.id, self.opened)
    }
}

impl FromStr for StoreId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parse = || {
            let (id, opened) = text.split_once(':')?;
            Some(Self { id: u64::from_str_radix(id, 16).ok()?, opened: opened.parse().ok()? })
        };
        parse().ok_or_else(|| Error::invalid("store", "is not the id of a store"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_its_text() {
        let store = StoreId { id: 0xfeed, opened: 7 };
        assert_eq!(store.to_string(), "000000000000feed:7");
        assert_eq!(store.to_string().parse::<StoreId>().unwrap(), store);
        for bad in ["", "1", "x:1", "1:x", "1:2:3"] {
            assert!(bad.parse::<StoreId>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn reopening_is_counted() {
        let store = StoreId::random();
        assert_eq!(store.reopened(), StoreId { id: store.id, opened: 2 });
    }
}
