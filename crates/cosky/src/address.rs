//! The addresses of the servers, and which of them is asked first.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use rand::seq::SliceRandom as _;
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

/// The servers of one cluster. Those of the own zone are asked before the others, and those that failed lately last.
/// Among equals, requests stay with one address until it fails, and each stream begins at a random one: a stream lives
/// for half an hour, so whatever had to move because a server restarted is spread evenly again an hour later.
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
    /// Where the server is, from `?zone=` behind the address.
    zone: Option<String>,
    /// Whether that is another zone than the client's; false while one of them is not known.
    elsewhere: bool,
    /// Milliseconds after `start` until which it is asked last; 0 when it did not fail.
    last_until: AtomicU64,
}

impl Addresses {
    /// Checks every address. Clients start at a random one, so that they spread over the servers.
    pub(crate) fn new(texts: Vec<String>, own_zone: Option<&str>) -> Result<Self> {
        let mut list: Box<[Address]> = texts.iter().map(|text| parse(text)).collect::<Result<_>>()?;
        if list.is_empty() || list.len() > ADDRESSES {
            return Err(Error::config(
                "COSKY_ADDR",
                "takes from 1 to 64 addresses, such as http://10.0.0.5:8080",
            ));
        }
        if let Some(own) = own_zone {
            for address in &mut list {
                address.elsewhere = address.zone.as_deref().is_some_and(|zone| zone != own);
            }
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

    /// Every address once, for a request: from the current one on.
    pub(crate) fn order(&self) -> Vec<usize> {
        self.order_from(self.current.load(Ordering::Relaxed))
    }

    /// Every address once, for a request about what a stream of `first` tells: that one first, unless it failed lately.
    pub(crate) fn order_after(&self, first: usize) -> Vec<usize> {
        let mut order = self.order();
        if self.list[first].last_until.load(Ordering::Relaxed) <= self.millis() {
            order.retain(|at| *at != first);
            order.insert(0, first);
        }
        order
    }

    /// Every address once, for a stream: at random.
    pub(crate) fn random_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.list.len()).collect();
        order.shuffle(&mut rand::rng());
        self.ranked(order)
    }

    fn order_from(&self, first: usize) -> Vec<usize> {
        self.ranked((0..self.list.len()).map(|step| (first + step) % self.list.len()).collect())
    }

    /// Keeps the order among equals.
    fn ranked(&self, mut order: Vec<usize>) -> Vec<usize> {
        let now = self.millis();
        order.sort_by_cached_key(|at| {
            let address = &self.list[*at];
            (address.last_until.load(Ordering::Relaxed) > now, address.elsewhere)
        });
        order
    }

    /// Notes that `at` did not serve: the next request asks another one first.
    pub(crate) fn failed(&self, at: usize) {
        let until = self.millis() + PENALTY.as_millis() as u64;
        self.list[at].last_until.store(until, Ordering::Relaxed);
        let next = self.order_from((at + 1) % self.list.len())[0];
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
    let zone = url.query_pairs().map(|(_, zone)| zone.trim().to_owned()).find(|zone| !zone.is_empty());
    let mut base = url;
    base.set_query(None);
    let base = base.as_str().trim_end_matches('/').to_owned();
    Ok(Address { base, zone, elsewhere: false, last_until: 0.into() })
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
        Addresses::new(text.into_addresses(), None)
    }

    #[test]
    fn addresses_come_in_every_form() {
        let bases = |list: Addresses| list.list.iter().map(|a| a.base.clone()).collect::<Vec<_>>();
        let expected = vec!["http://a:8080".to_owned(), "https://b/cosky".to_owned()];
        assert_eq!(bases(addresses(" http://a:8080/ , https://b/cosky/?zone=z1,").unwrap()), expected);
        assert_eq!(
            bases(Addresses::new(["http://a:8080", "https://b/cosky"].into_addresses(), None).unwrap()),
            expected
        );
        assert_eq!(
            bases(Addresses::new(vec!["http://[2001:db8::1]:80"].into_addresses(), None).unwrap())[0],
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
        assert!(Addresses::new(vec!["http://a".to_owned(); 65], None).is_err());
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

    #[test]
    fn streams_spread_evenly_over_those_that_did_not_fail() {
        let list = addresses("http://a,http://b,http://c").unwrap();
        list.failed(1);
        let mut first = [0u32; 3];
        for _ in 0..3000 {
            first[list.random_order()[0]] += 1;
        }
        assert_eq!(first[1], 0);
        assert!(first[0].abs_diff(1500) < 250, "the neighbour of one that failed takes no more: {first:?}");
    }

    #[test]
    fn the_own_zone_comes_first_and_a_failed_one_of_it_last() {
        let texts = "http://a?zone=z1,http://b?zone=z2,http://c?zone=z2,http://d".into_addresses();
        let list = Addresses::new(texts, Some("z2")).unwrap();
        let sorted = |mut part: Vec<usize>| {
            part.sort_unstable();
            part
        };
        for order in [list.order(), list.random_order()] {
            assert_eq!(
                (sorted(order[..3].to_vec()), order[3]),
                (vec![1, 2, 3], 0),
                "no zone counts as the own"
            );
        }
        for at in [1, 2, 3] {
            list.failed(at);
        }
        assert_eq!((list.order()[0], list.random_order()[0]), (0, 0), "better another zone than nobody");
        list.served(2);
        assert_eq!((list.order()[0], list.random_order()[0]), (2, 2), "and home again");
    }
}
