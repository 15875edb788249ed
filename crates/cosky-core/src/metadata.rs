//! What a service says of itself: text by key, kept sorted and packed, since there is one of these per instance.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer, de::MapAccess, de::Visitor, ser::SerializeMap,
};

use crate::{
    Error,
    limits::{METADATA_BYTES, METADATA_ENTRIES, METADATA_KEY_BYTES, METADATA_VALUE_BYTES},
};

/// An instance's metadata. Keys are not empty and do not begin with `_`, which the stored record uses for itself.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Metadata {
    /// Keys and values in turn, without anything between them.
    text: Box<str>,
    /// Where each of them ends in `text`.
    ends: Box<[u32]>,
}

/// A change of single entries: a value to set, or `None` to remove the key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MetadataPatch(BTreeMap<String, Option<String>>);

impl Metadata {
    /// Checks and sorts `entries`; of two entries with one key the last wins.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] or [`Error::TooLarge`] that names the key.
    pub fn new<K: AsRef<str>, V: AsRef<str>>(
        entries: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, Error> {
        let mut entries: Vec<(K, V)> = entries.into_iter().collect();
        // Stable, so of equal keys the last one given is the last one here too.
        entries.sort_by(|(a, _), (b, _)| a.as_ref().cmp(b.as_ref()));
        entries.reverse();
        entries.dedup_by(|(a, _), (b, _)| a.as_ref() == b.as_ref());
        entries.reverse();
        let mut bytes = 0;
        for (key, value) in &entries {
            check_key(key.as_ref())?;
            if value.as_ref().len() > METADATA_VALUE_BYTES {
                return Err(Error::TooLarge { field: field(key.as_ref()), limit: METADATA_VALUE_BYTES });
            }
            bytes += key.as_ref().len() + value.as_ref().len();
        }
        if entries.len() > METADATA_ENTRIES {
            return Err(Error::TooLarge { field: "metadata".into(), limit: METADATA_ENTRIES });
        }
        if bytes > METADATA_BYTES {
            return Err(Error::TooLarge { field: "metadata".into(), limit: METADATA_BYTES });
        }
        let (mut text, mut ends) = (String::with_capacity(bytes), Vec::with_capacity(2 * entries.len()));
        for part in entries.iter().flat_map(|(key, value)| [key.as_ref(), value.as_ref()]) {
            text.push_str(part);
            ends.push(u32::try_from(text.len()).expect("all texts together are bounded by METADATA_BYTES"));
        }
        Ok(Self { text: text.into(), ends: ends.into() })
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            match self.part(2 * middle).cmp(key) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return Some(self.part(2 * middle + 1)),
            }
        }
        None
    }

    /// All entries, sorted by key.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        (0..self.len()).map(|at| (self.part(2 * at), self.part(2 * at + 1)))
    }

    fn part(&self, at: usize) -> &str {
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.text[start as usize..self.ends[at] as usize]
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.ends.len() / 2
    }

    /// Bytes of all keys and values.
    pub fn bytes(&self) -> usize {
        self.text.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// This metadata with `patch` applied.
    ///
    /// # Errors
    /// As [`Metadata::new`], when the result is too large.
    pub fn patched(&self, patch: &MetadataPatch) -> Result<Self, Error> {
        let mut entries: BTreeMap<String, String> =
            self.iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        for (key, value) in &patch.0 {
            match value {
                Some(value) => entries.insert(key.clone(), value.clone()),
                None => entries.remove(key),
            };
        }
        Self::new(entries)
    }
}

impl MetadataPatch {
    /// Checks the keys of `entries`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] or [`Error::TooLarge`] that names the key.
    pub fn new(entries: impl IntoIterator<Item = (String, Option<String>)>) -> Result<Self, Error> {
        let entries: BTreeMap<_, _> = entries.into_iter().collect();
        Metadata::new(entries.iter().filter_map(|(k, v)| Some((k.clone(), v.clone()?))))?;
        entries.keys().try_for_each(|key| check_key(key))?;
        if entries.len() > METADATA_ENTRIES {
            return Err(Error::TooLarge { field: "metadata".into(), limit: METADATA_ENTRIES });
        }
        Ok(Self(entries))
    }

    /// The entries, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.0.iter().map(|(k, v)| (k.as_str(), v.as_deref()))
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

fn field(key: &str) -> Cow<'static, str> {
    format!("metadata.{}", key.chars().take(64).collect::<String>()).into()
}

fn check_key(key: &str) -> Result<(), Error> {
    if key.is_empty() {
        return Err(Error::invalid("metadata", "a key must not be empty"));
    }
    if key.len() > METADATA_KEY_BYTES {
        return Err(Error::invalid(field(key), format!("the key is longer than {METADATA_KEY_BYTES} bytes")));
    }
    if key.starts_with('_') {
        return Err(Error::invalid(field(key), "a key must not begin with '_'"));
    }
    Ok(())
}

impl Serialize for Metadata {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.len()))?;
        for (key, value) in self.iter() {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer
            .deserialize_map(Texts)
            .and_then(|texts| Metadata::new(texts).map_err(serde::de::Error::custom))
    }
}

impl Serialize for MetadataPatch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// Reads an object whose values are texts, and says so when one is not.
struct Texts;

impl<'de> Visitor<'de> for Texts {
    type Value = Vec<(String, String)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut texts = Vec::new();
        while let Some(entry) = map.next_entry()? {
            texts.push(entry);
        }
        Ok(texts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_the_record_itself_are_refused() {
        for key in ["", "_a", "__last_renew_pub_ttl_at"] {
            assert!(Metadata::new([(key, "x")]).is_err(), "{key:?}");
        }
        assert!(Metadata::new([("a__b", "x")]).is_ok());
    }

    #[test]
    fn a_patch_merges_and_removes() {
        let old = Metadata::new([("a", "1"), ("b", "2")]).unwrap();
        let patch = MetadataPatch::new([("a".into(), None), ("c".into(), Some("3".into()))]).unwrap();
        assert_eq!(old.patched(&patch).unwrap(), Metadata::new([("b", "2"), ("c", "3")]).unwrap());
        assert!(MetadataPatch::new([("_a".into(), None)]).is_err());
    }

    #[test]
    fn of_equal_keys_the_last_wins() {
        let metadata = Metadata::new([("b", "1"), ("a", "2"), ("b", "3"), ("b", "4")]).unwrap();
        assert_eq!(metadata.iter().collect::<Vec<_>>(), [("a", "2"), ("b", "4")]);
    }

    #[test]
    fn sizes_are_bounded() {
        assert!(Metadata::new([("k".repeat(255), "x")]).is_ok());
        assert!(Metadata::new([("k".repeat(256), "x")]).is_err());
        assert!(Metadata::new((0..257).map(|i| (i.to_string(), ""))).is_err());
        assert!(Metadata::new((0..9).map(|i| (i.to_string(), "x".repeat(4096)))).is_err());
    }

    #[test]
    fn json_is_an_object_of_strings() {
        let metadata: Metadata = serde_json::from_str(r#"{"zone":"a","app":"x"}"#).unwrap();
        assert_eq!(
            (metadata.get("app"), metadata.get("zone"), metadata.get("none")),
            (Some("x"), Some("a"), None)
        );
        assert_eq!(serde_json::to_string(&metadata).unwrap(), r#"{"app":"x","zone":"a"}"#);
        for bad in [r#"{"a":null}"#, r#"{"a":1}"#, "[]", r#"{"_a":"x"}"#] {
            assert!(serde_json::from_str::<Metadata>(bad).is_err(), "{bad}");
        }
    }
}
