//! The own zone first.

use cosky_core::ServiceInstance;

use super::Balancer;

/// The metadata key of an instance's zone.
const ZONE: &str = "zone";

/// Chooses with another balancer among the instances of the own zone (metadata `zone`), and among all when that has
/// none that may be chosen, or when no own zone is known.
///
/// The own zone takes all that it can be given, however few instances it has: give them the weight or the number
/// that this needs.
///
/// ```no_run
/// # fn example(stock: cosky::LiveView) {
/// use cosky::balance::{TwoChoices, ZoneFirst};
///
/// let balanced = stock.balanced_by(ZoneFirst::new("eu-1a", TwoChoices::default()));
/// let target = balanced.pick();
/// # }
/// ```
#[derive(Debug)]
pub struct ZoneFirst<B> {
    zone: Option<Box<str>>,
    /// Built from the own zone's instances, or from all.
    inner: B,
    /// Where the own zone's instances stand among all; `None` when `inner` was built from all.
    own: Option<Box<[usize]>>,
}

impl<B: Balancer> ZoneFirst<B> {
    /// This process is in `zone`. A blank name counts as none.
    pub fn new(zone: impl AsRef<str>, inner: B) -> Self {
        let zone = zone.as_ref().trim();
        Self { zone: (!zone.is_empty()).then(|| zone.into()), inner, own: None }
    }

    /// This process is in the zone that the environment variable `COSKY_ZONE` names.
    pub fn from_env(inner: B) -> Self {
        Self::from_lookup(|name| std::env::var(name).ok(), inner)
    }

    /// As [`ZoneFirst::from_env`], with the variable from anywhere.
    pub fn from_lookup(lookup: impl FnOnce(&str) -> Option<String>, inner: B) -> Self {
        Self::new(lookup("COSKY_ZONE").unwrap_or_default(), inner)
    }

    /// The own zone, if one is known.
    pub fn zone(&self) -> Option<&str> {
        self.zone.as_deref()
    }
}

impl<B: Balancer> Balancer for ZoneFirst<B> {
    type Key = B::Key;
    type Held = B::Held;

    fn rebuild(&self, eligible: &[&ServiceInstance]) -> Self {
        let own = self.zone.as_deref().map(|zone| {
            let is_own = |(at, instance): (usize, &&ServiceInstance)| {
                (instance.metadata().get(ZONE) == Some(zone)).then_some(at)
            };
            eligible.iter().enumerate().filter_map(is_own).collect::<Box<[usize]>>()
        });
        let own = own.filter(|own| !own.is_empty());
        let inner = match &own {
            Some(own) => self.inner.rebuild(&own.iter().map(|&at| eligible[at]).collect::<Vec<_>>()),
            None => self.inner.rebuild(eligible),
        };
        Self { zone: self.zone.clone(), inner, own }
    }

    fn pick(&self, key: &Self::Key) -> Option<(usize, Self::Held)> {
        let (at, held) = self.inner.pick(key)?;
        match &self.own {
            Some(own) => own.get(at).map(|&at| (at, held)),
            None => Some((at, held)),
        }
    }
}
