//! The addresses of the servers, and which of them is asked first.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use reqwest::Url;

use crate::{Error, Result};

/// The most addresses that one client takes.
const ADDRESSES: usize = 64;
/// How long an address that failed is asked after all others.
const PENALTY: Duration = Duration::from_secs(5);

/// What [`crate::Cosky::connect`] takes: one text with addresses separated by commas, or a list of them.
pub trait IntoAddresses {
    /// The addresses, each as text.
    fn into_addresses(self) -> Vec<String>;
}

/// The servers of one cluster. Requests stay with one address until it fails.
#[derive(Debug)]
pub(crate) struct Addresses {
    list: Box<[Address]>,
    current: AtomicUsize,
    start: Instant,
}

#[derive(Debug)]
struct Address {
    /// Scheme, host, port and path prefix, without a slash at the end.
    base: String,
    /// Milliseconds after `start` until which it is asked last; 0 when it did not fail.
    last_until: AtomicU64,
}

impl Addresses {
    /// Checks every address. Clients start at a random one, so that they spread over the servers.
    pub(crate) fn new(texts: Vec<String>) -> Result<Self> {
        let list: Box<[Address]> = texts.iter().map(|text| parse(text)).collect::<Result<_>>()?;
        if list.is_empty() || list.len() > ADDRESSES {
            return Err(Error::config(
                "COSKY_ADDR",
                "takes from 1 to 64 addresses, such as http://10.0.0.5:8080",
            ));
        }
        let current = rand::random_range(0..list.len());
        Ok(Self { list, current: current.into(), start: Instant::now() })
    }

    pub(crate) fn base(&self, at: usize) -> &str {
        &self.list[at].base
    }

    pub(crate) fn all_plain(&self) -> bool {
        self.list.iter().all(|address| address.base.starts_with("http://"))
    }

    /// Every address once: from the current one on, those that failed lately last.
    pub(crate) fn order(&self) -> Vec<usize> {
        self.order_from(self.current.load(Ordering::Relaxed))
    }

    /// As [`Addresses::order`], from a random one on. For streams, so that load evens out after restarts.
    pub(crate) fn random_order(&self) -> Vec<usize> {
        self.order_from(rand::random_range(0..self.list.len()))
    }

    fn order_from(&self, first: usize) -> Vec<usize> {
        let now = self.millis();
        let mut order: Vec<usize> =
            (0..self.list.len()).map(|step| (first + step) % self.list.len()).collect();
        order.sort_by_key(|at| self.list[*at].last_until.load(Ordering::Relaxed) > now);
        order
    }

    /// Notes that `at` did not serve: the next request asks another one first.
    pub(crate) fn failed(&self, at: usize) {
        let until = self.millis() + PENALTY.as_millis() as u64;
        self.list[at].last_until.store(until, Ordering::Relaxed);
        let next = (at + 1) % self.list.len();
        let _ = self.current.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Notes that `at` served.
    pub(crate) fn served(&self, at: usize) {
        self.list[at].last_until.store(0, Ordering::Relaxed);
    }

    fn millis(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }
}

fn parse(text: &str) -> Result<Address> {
    let text = text.trim();
    let refuse = |reason: String| Error::config("address", format!("{text:?} {reason}"));
    let url = Url::parse(text)
        .map_err(|error| refuse(format!("is not an address such as http://10.0.0.5:8080 ({error})")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(refuse(format!("has the scheme {:?}; use http or https", url.scheme())));
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err(refuse("has no host".into()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        // Repeating the address would print the password.
        return Err(Error::config("address", "must not hold a user or password; use login or COSKY_USER"));
    }
    if url.fragment().is_some() || url.query_pairs().any(|(key, _)| key != "zone") {
        return Err(refuse("may have the query ?zone=NAME and nothing else behind its path".into()));
    }
    let mut base = url;
    base.set_query(None);
    let base = base.as_str().trim_end_matches('/').to_owned();
    Ok(Address { base, last_until: 0.into() })
}

fn split(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

impl IntoAddresses for &str {
    fn into_addresses(self) -> Vec<String> {
        split(self)
    }
}

impl IntoAddresses for String {
    fn into_addresses(self) -> Vec<String> {
        split(&self)
    }
}

impl IntoAddresses for &String {
    fn into_addresses(self) -> Vec<String> {
        split(self)
    }
}

impl<T: AsRef<str>> IntoAddresses for &[T] {
    fn into_addresses(self) -> Vec<String> {
        self.iter().flat_map(|text| split(text.as_ref())).collect()
    }
}

impl<T: AsRef<str>, const N: usize> IntoAddresses for [T; N] {
    fn into_addresses(self) -> Vec<String> {
        self.as_slice().into_addresses()
    }
}

impl<T: AsRef<str>, const N: usize> IntoAddresses for &[T; N] {
    fn into_addresses(self) -> Vec<String> {
        self.as_slice().into_addresses()
    }
}

impl<T: AsRef<str>> IntoAddresses for Vec<T> {
    fn into_addresses(self) -> Vec<String> {
        self.as_slice().into_addresses()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(text: &str) -> Result<Addresses> {
        Addresses::new(text.into_addresses())
    }

    #[test]
    fn addresses_come_in_every_form() {
        let bases = |list: Addresses| list.list.iter().map(|a| a.base.clone()).collect::<Vec<_>>();
        let expected = vec!["http://a:8080".to_owned(), "https://b/cosky".to_owned()];
        assert_eq!(bases(addresses(" http://a:8080/ , https://b/cosky/?zone=z1,").unwrap()), expected);
        assert_eq!(
            bases(Addresses::new(["http://a:8080", "https://b/cosky"].into_addresses()).unwrap()),
            expected
        );
        assert_eq!(
            bases(Addresses::new(vec!["http://[2001:db8::1]:80"].into_addresses()).unwrap())[0],
            "http://[2001:db8::1]"
        );
    }

    #[test]
    fn what_is_no_address_is_refused_and_passwords_are_not_repeated() {
        for bad in ["", "10.0.0.5:8080", "localhost", "redis://a", "http://", "http://a?x=1", "http://a#x"] {
            assert!(addresses(bad).is_err(), "{bad:?}");
        }
        let error = addresses("http://me:hunter2@a").unwrap_err().to_string();
        assert!(!error.contains("hunter2"), "{error}");
        assert!(Addresses::new(vec!["http://a".to_owned(); 65]).is_err());
    }

    #[test]
    fn the_choice_stays_until_it_fails_and_failed_ones_come_last() {
        let list = addresses("http://a,http://b,http://c").unwrap();
        let first = list.order()[0];
        assert_eq!(list.order()[0], first);
        list.failed(first);
        let order = list.order();
        assert_eq!(order[0], (first + 1) % 3);
        assert_eq!(order[2], first);
        for _ in 0..20 {
            assert_eq!(*list.random_order().last().unwrap(), first);
        }
        list.failed(order[0]);
        list.failed(order[1]);
        assert_eq!(list.order().len(), 3, "with all of them failed, all are tried");
        list.served(first);
        assert_eq!(list.order()[0], first);
    }
}
