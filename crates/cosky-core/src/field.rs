//! The fields of an instance that have rules of their own, each checked in its constructor.

use std::{
    borrow::Cow,
    fmt,
    net::{Ipv4Addr, Ipv6Addr},
    sync::{Arc, LazyLock},
    time::Duration,
};

use crate::{
    Error,
    limits::{HOST_BYTES, OWNER_BYTES, SCHEMA_BYTES},
};

/// A URI scheme, or `__` for a process that listens to nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Schema(Arc<str>);

/// An IPv4 address, an IPv6 address without brackets in its shortest form, or a host name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Host(Box<str>);

/// A port from 1 to 65535. What JVM writers stored may be larger: for a non-web instance it is a process id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Port(u32);

/// The share of an instance in weighted balancing, 0 to 2³¹−1; 0 is never chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Weight(u32);

/// How long an ephemeral instance lives after a beat, in whole seconds from 1 to 86,400.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ttl(u32);

/// The nonce of the process that registered an instance. A deregistration that names an owner leaves the instance of
/// another owner alone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Owner(Arc<str>);

/// Nearly every instance has one of these, so they share their text.
static COMMON_SCHEMES: LazyLock<[Arc<str>; 6]> =
    LazyLock::new(|| ["http", "https", "grpc", "ws", "wss", Schema::NONE].map(Arc::from));

impl Schema {
    /// The scheme of a non-web process.
    pub const NONE: &str = "__";

    /// Checks `text` against RFC 3986 §3.1, or takes `__`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] of `schema`.
    pub fn new(text: &str) -> Result<Self, Error> {
        let rest_ok = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
        let uri = text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(rest_ok);
        if text.len() > SCHEMA_BYTES {
            return Err(Error::invalid("schema", format!("is longer than {SCHEMA_BYTES} bytes")));
        }
        if !uri && text != Self::NONE {
            return Err(Error::invalid("schema", "must be a URI scheme such as http, or __ for none"));
        }
        let known = COMMON_SCHEMES.iter().find(|common| ***common == *text);
        Ok(Self(known.map_or_else(|| text.into(), Arc::clone)))
    }

    /// The scheme as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is `https` or `wss`.
    pub fn is_secure(&self) -> bool {
        matches!(&*self.0, "https" | "wss")
    }
}

impl Host {
    /// Checks `text`. IPv6 addresses may stand in brackets and come out in their shortest form, so that one address
    /// makes one instance id; zone ids are refused, since they mean something on one machine only.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] of `host`.
    pub fn new(text: &str) -> Result<Self, Error> {
        if text.len() > HOST_BYTES {
            return Err(Error::invalid("host", format!("is longer than {HOST_BYTES} bytes")));
        }
        if text.is_empty() {
            return Err(Error::invalid("host", "must not be empty"));
        }
        let bracketed = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
        if bracketed.is_some() || text.contains(':') {
            let address: Ipv6Addr = bracketed.unwrap_or(text).parse().map_err(|_| {
                Error::invalid("host", "is not an IPv6 address (zone ids and ports do not belong here)")
            })?;
            return Ok(Self(address.to_string().into()));
        }
        if !text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_')) {
            return Err(Error::invalid(
                "host",
                "must be an IP address or a host name of A-Z a-z 0-9 - _ and dots",
            ));
        }
        if text.split('.').any(str::is_empty) {
            return Err(Error::invalid("host", "must not have empty parts between dots"));
        }
        let numeric = text.split('.').all(|part| part.chars().all(|c| c.is_ascii_digit()));
        if numeric && text.parse::<Ipv4Addr>().is_err() {
            return Err(Error::invalid("host", "is not an IPv4 address"));
        }
        Ok(Self(text.into()))
    }

    /// The host as text, IPv6 without brackets.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The host as it stands in a URI: IPv6 in brackets.
    pub fn in_uri(&self) -> Cow<'_, str> {
        if self.0.contains(':') { format!("[{}]", self.0).into() } else { (&*self.0).into() }
    }
}

impl Port {
    /// Checks that `port` is from 1 to 65535. 0 is no port that anybody can connect to.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] of `port`.
    pub fn new(port: i64) -> Result<Self, Error> {
        u16::try_from(port)
            .ok()
            .filter(|port| *port != 0)
            .map(|port| Self(port.into()))
            .ok_or_else(|| Error::invalid("port", "must be from 1 to 65535"))
    }

    /// A port as a store or server reports it.
    pub fn stored(port: u32) -> Self {
        Self(port)
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl Weight {
    /// Checks that `weight` is from 0 to 2³¹−1, the largest that JVM readers take.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] of `weight`.
    pub fn new(weight: i64) -> Result<Self, Error> {
        i32::try_from(weight)
            .ok()
            .and_then(|weight| u32::try_from(weight).ok())
            .map(Self)
            .ok_or_else(|| Error::invalid("weight", "must be a whole number from 0 to 2147483647"))
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl Default for Weight {
    fn default() -> Self {
        Self(1)
    }
}

impl Ttl {
    /// The shortest TTL that the HTTP API and the command line take.
    pub const API_MIN: u32 = 3;
    /// The longest TTL: one day.
    pub const MAX: u32 = 86_400;
    /// What is used when nobody says otherwise.
    pub const DEFAULT: Self = Self(30);

    /// Checks that `seconds` is from 1 to 86,400.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] of `ttlSeconds`.
    pub fn from_seconds(seconds: i64) -> Result<Self, Error> {
        u32::try_from(seconds)
            .ok()
            .filter(|s| (1..=Self::MAX).contains(s))
            .map(Self)
            .ok_or_else(|| Error::invalid("ttlSeconds", "must be from 1 to 86400"))
    }

    /// As [`Ttl::from_seconds`], and not below what the HTTP API takes.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] of `ttlSeconds`.
    pub fn from_api(seconds: i64) -> Result<Self, Error> {
        let ttl = Self::from_seconds(seconds).ok().filter(|ttl| ttl.0 >= Self::API_MIN);
        ttl.ok_or_else(|| Error::invalid("ttlSeconds", "must be from 3 to 86400"))
    }

    /// Whole seconds.
    pub fn seconds(self) -> u32 {
        self.0
    }

    /// As a duration.
    pub fn duration(self) -> Duration {
        Duration::from_secs(self.0.into())
    }
}

impl Owner {
    /// Checks that `text` is 1 to 64 characters of `A-Z a-z 0-9 - _`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] of `owner`.
    pub fn new(text: &str) -> Result<Self, Error> {
        let ok = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if text.is_empty() || text.len() > OWNER_BYTES || !text.bytes().all(ok) {
            return Err(Error::invalid("owner", "must be 1 to 64 characters of A-Z a-z 0-9 - _"));
        }
        Ok(Self(text.into()))
    }

    /// A fresh nonce of 128 random bits.
    pub fn random() -> Self {
        Self(format!("{:032x}", rand::random::<u128>()).into())
    }

    /// The nonce as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// An owner can remove what it owns, so it is not printed.
impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Owner(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> Result<String, Error> {
        Host::new(text).map(|h| h.as_str().to_owned())
    }

    #[test]
    fn one_ipv6_address_has_one_form() {
        for text in ["2001:db8::1", "[2001:db8::1]", "2001:DB8:0::1"] {
            assert_eq!(host(text).unwrap(), "2001:db8::1");
        }
        assert_eq!(host("::ffff:10.0.0.1").unwrap(), "::ffff:10.0.0.1");
        assert!(host("fe80::1%eth0").is_err());
        assert!(host("[127.0.0.1]").is_err());
    }

    #[test]
    fn malformed_hosts_are_refused() {
        for text in [
            "",
            "127.0.0.1:1@10.0.0.1",
            "x/../../y?",
            "a b",
            "a..b",
            ".a",
            "300.1.1.1",
            "1.2.3",
            "h\r\nX: 1",
            "ü",
        ] {
            assert!(host(text).is_err(), "{text:?}");
        }
        for text in ["10.0.0.1", "h", "my_service.default.svc", "x-1"] {
            assert!(host(text).is_ok(), "{text:?}");
        }
        assert!(host(&"a".repeat(255)).is_ok());
        assert!(host(&"a".repeat(256)).is_err());
    }

    #[test]
    fn ports_weights_and_ttls_have_ranges() {
        assert!([-1, 0, 65_536, 2_147_483_648].into_iter().all(|p| Port::new(p).is_err()));
        assert!([1, 65_535].into_iter().all(|p| Port::new(p).is_ok()));
        assert!([-1, 2_147_483_648].into_iter().all(|w| Weight::new(w).is_err()));
        assert!([0, 1, 2_147_483_647].into_iter().all(|w| Weight::new(w).is_ok()));
        assert!(Ttl::from_seconds(1).is_ok() && Ttl::from_api(2).is_err() && Ttl::from_api(86_401).is_err());
    }

    #[test]
    fn schemes_follow_rfc_3986() {
        for text in ["http", "grpc+tls", "__"] {
            assert!(Schema::new(text).is_ok());
        }
        for text in ["", "1a", "a b", "_", "ht#tp", "a/b"] {
            assert!(Schema::new(text).is_err(), "{text:?}");
        }
    }
}
