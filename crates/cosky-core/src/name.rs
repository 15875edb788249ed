//! Names, checked once. A value of these types is valid, so nothing behind the constructors checks again.

use std::{borrow::Borrow, fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Error, limits::NAME_BYTES};

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $field:literal, $check:path) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks `text` and takes it exactly as given.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] that names the rule which `text` breaks.
            pub fn new(text: &str) -> Result<Self, Error> {
                $check($field, text)?;
                Ok(Self(text.into()))
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                Self::new(text)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                Self::new(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

name! {
    /// A namespace: the first part of every key, so it holds no `:`. On Redis Cluster it needs a hash tag, as in
    /// `shop-{eu}`.
    Namespace, "namespace", check_namespace
}

name! {
    /// A service id. Holds none of `@ # * ? [ ] \`, which instance ids and Redis patterns use.
    ServiceId, "serviceId", check_service
}

name! {
    /// Who asks, for the topology: a service id of the same namespace, or any name that a client gives itself.
    ConsumerName, "consumer", check_text
}

name! {
    /// A user's name, as in the login path.
    UserName, "username", check_text
}

impl Namespace {
    /// Where the server keeps what belongs to itself (compat §1.2).
    pub const SYSTEM: &str = "cosky-{system}";
    /// What clients use when nobody says otherwise.
    pub const DEFAULT: &str = "cosky-{default}";

    /// Whether Redis Cluster keeps all keys of this namespace in one slot: it has a non-empty hash tag.
    pub fn has_hash_tag(&self) -> bool {
        let Some((_, rest)) = self.0.split_once('{') else { return false };
        rest.find('}').is_some_and(|end| end > 0)
    }
}

fn check_namespace(field: &'static str, text: &str) -> Result<(), Error> {
    check_text(field, text)?;
    if text.contains(':') {
        return Err(Error::invalid(field, "must not contain ':'"));
    }
    if text == "current" {
        return Err(Error::invalid(field, "'current' is reserved"));
    }
    Ok(())
}

fn check_service(field: &'static str, text: &str) -> Result<(), Error> {
    check_text(field, text)?;
    if text.contains(['@', '#', '*', '?', '[', ']', '\\']) {
        return Err(Error::invalid(field, "must not contain any of @ # * ? [ ] \\"));
    }
    if text == "stats" {
        return Err(Error::invalid(field, "'stats' is reserved"));
    }
    Ok(())
}

/// The rule of every name: there, bounded, without blanks at the ends, and without characters that cannot be seen.
fn check_text(field: &'static str, text: &str) -> Result<(), Error> {
    if text.trim().is_empty() {
        return Err(Error::invalid(field, "must not be blank"));
    }
    if text.len() > NAME_BYTES {
        return Err(Error::invalid(field, format!("is longer than {NAME_BYTES} bytes")));
    }
    if text.trim() != text {
        return Err(Error::invalid(field, "must not begin or end with a blank"));
    }
    if text.chars().any(is_invisible) {
        return Err(Error::invalid(field, "must not contain control or invisible characters"));
    }
    if matches!(text, "." | "..") {
        return Err(Error::invalid(field, "'.' and '..' are reserved"));
    }
    Ok(())
}

/// Whether `c` is a control character, a line separator, or one of the format characters that make two names look like
/// one. No name has any; who shows other texts to people had better escape them.
pub fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_padded_and_invisible_names_are_refused() {
        for text in [
            "",
            " ",
            "\t",
            "\u{3000}",
            " app-a",
            "app-a ",
            "\u{200b}app-a",
            "a\r\nINFO fake",
            "a\u{2028}b",
            "a\0",
        ] {
            assert!(Namespace::new(text).is_err(), "{text:?}");
            assert!(ServiceId::new(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn names_of_512_bytes_are_the_longest() {
        assert!(ServiceId::new(&"a".repeat(512)).is_ok());
        assert!(ServiceId::new(&"a".repeat(513)).is_err());
    }

    #[test]
    fn slashes_colons_and_both_forms_of_an_accent_are_kept_apart() {
        assert!(ServiceId::new("team/app-a").is_ok());
        assert!(ServiceId::new("http://x").is_ok());
        assert_ne!(ServiceId::new("\u{e9}").unwrap(), ServiceId::new("e\u{301}").unwrap());
    }

    #[test]
    fn separators_and_reserved_names_are_refused() {
        for text in ["a@b", "a#b", "a*", "a?", "[a", "a]", "a\\b", "stats", ".", ".."] {
            assert!(ServiceId::new(text).is_err(), "{text:?}");
        }
        for text in ["a:b", "current", ".", ".."] {
            assert!(Namespace::new(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_hash_tag_is_not_empty() {
        assert!(Namespace::new("shop-{eu}").unwrap().has_hash_tag());
        assert!(!Namespace::new("shop").unwrap().has_hash_tag());
        assert!(!Namespace::new("shop-{}").unwrap().has_hash_tag());
    }
}
