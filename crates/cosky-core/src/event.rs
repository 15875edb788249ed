//! What watchers are told, and where in the sequence of changes they stand.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
    sync::{Arc, OnceLock},
};

use crate::{Error, InstanceId, ServiceId, ServiceInstance, StoreId, wire};

/// A place in a server's sequence of changes. The epoch is random per start of a store view and is compared for
/// equality only; sequence numbers order the changes of one namespace in one epoch. Opaque to clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Index {
    /// Random, new at each start.
    pub epoch: u64,
    /// Counts the changes of one namespace from 0.
    pub sequence: u64,
}

/// What a watcher wants to hear of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// Everything in the namespace.
    All,
    /// These services only, whether they exist yet or not. Never empty.
    Services(BTreeSet<ServiceId>),
}

/// How far an answer can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreState {
    /// It is the store's present state.
    Live,
    /// The store cannot be reached; this is the last state that was known.
    Stale,
    /// The store had an incident (a restart, for one) and what is there or missing may only be late: absence alone says
    /// nothing yet.
    Protected,
    /// The server is about to stop; go to another address.
    Draining,
}

/// What happened to an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InstanceOp {
    /// It was registered, again or for the first time.
    Register,
    /// Somebody deregistered it.
    Deregister,
    /// Its beats stopped.
    Expired,
    /// Its metadata was changed.
    SetMetadata,
}

/// What happened to a service id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ServiceOp {
    /// It came into the list.
    Set,
    /// It was taken out of the list.
    Remove,
}

/// The whole of what a watcher watches, at one index.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// The instances of each service in scope; a named service that does not exist has an empty list.
    pub services: BTreeMap<ServiceId, Vec<ServiceInstance>>,
    /// How far it can be trusted.
    pub state: StoreState,
    /// Which data it was taken of; absent from servers that do not tell.
    pub store: Option<StoreId>,
}

/// One thing that a watcher is told.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// Replaces all that the watcher knew.
    Snapshot(Snapshot),
    /// An instance changed. `instance` is its new state, absent when it is gone.
    Instance {
        /// What happened.
        op: InstanceOp,
        /// Its service.
        service: ServiceId,
        /// Its id.
        id: InstanceId,
        /// Its new state.
        instance: Option<ServiceInstance>,
    },
    /// The list of services changed.
    Service {
        /// What happened.
        op: ServiceOp,
        /// Which service.
        service: ServiceId,
    },
    /// How far what is known can be trusted from now on.
    State(StoreState),
}

/// An event at its place. Shared by all watchers; its wire form is made at most once.
#[derive(Debug)]
pub struct Change {
    /// Its place. A watcher that resumes from here hears what comes after it.
    pub index: Index,
    /// What it says.
    pub event: Event,
    frame: OnceLock<Arc<str>>,
}

impl Index {
    /// The first place of `epoch`.
    pub fn start(epoch: u64) -> Self {
        Self { epoch, sequence: 0 }
    }
}

impl fmt::Display for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}:{}", self.epoch, self.sequence)
    }
}

impl FromStr for Index {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parse = || {
            let (epoch, sequence) = text.split_once(':')?;
            Some(Self { epoch: u64::from_str_radix(epoch, 16).ok()?, sequence: sequence.parse().ok()? })
        };
        parse().ok_or_else(|| Error::invalid("index", "is not an index that a server gave"))
    }
}

impl Scope {
    /// These services; at least one and at most [`crate::limits::WATCHED_SERVICES`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] of `service`.
    pub fn services(services: impl IntoIterator<Item = ServiceId>) -> Result<Self, Error> {
        let services: BTreeSet<_> = services.into_iter().collect();
        if services.is_empty() || services.len() > crate::limits::WATCHED_SERVICES {
            return Err(Error::invalid("service", "name from 1 to 1000 services, or none for all"));
        }
        Ok(Self::Services(services))
    }

    /// Whether it covers `service`.
    pub fn covers(&self, service: &ServiceId) -> bool {
        match self {
            Self::All => true,
            Self::Services(services) => services.contains(service),
        }
    }
}

impl StoreState {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Stale => "stale",
            Self::Protected => "protected",
            Self::Draining => "draining",
        }
    }
}

impl FromStr for StoreState {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        [Self::Live, Self::Stale, Self::Protected, Self::Draining]
            .into_iter()
            .find(|state| state.as_str() == text)
            .ok_or_else(|| Error::invalid("state", "is not a known state"))
    }
}

impl InstanceOp {
    /// The word on the wire, as in CoSky's messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Register => "register",
            Self::Deregister => "deregister",
            Self::Expired => "expired",
            Self::SetMetadata => "set_metadata",
        }
    }
}

impl FromStr for InstanceOp {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        [Self::Register, Self::Deregister, Self::Expired, Self::SetMetadata]
            .into_iter()
            .find(|op| op.as_str() == text)
            .ok_or_else(|| Error::invalid("op", "is not a known operation"))
    }
}

impl ServiceOp {
    /// The word on the wire, as in CoSky's messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Set => "set",
            Self::Remove => "remove",
        }
    }
}

impl FromStr for ServiceOp {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        [Self::Set, Self::Remove]
            .into_iter()
            .find(|op| op.as_str() == text)
            .ok_or_else(|| Error::invalid("op", "is not a known operation"))
    }
}

impl Event {
    /// The service that it is about, when it is about one.
    pub fn service(&self) -> Option<&ServiceId> {
        match self {
            Self::Instance { service, .. } | Self::Service { service, .. } => Some(service),
            Self::Snapshot(_) | Self::State(_) => None,
        }
    }
}

impl Change {
    /// Puts an event at its place.
    pub fn new(index: Index, event: Event) -> Self {
        Self { index, event, frame: OnceLock::new() }
    }

    /// The server-sent event: `id`, `event` and `data` lines and the empty line that ends it.
    pub fn frame(&self) -> &Arc<str> {
        self.frame.get_or_init(|| wire::frame(self).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_survives_its_text() {
        let index = Index { epoch: 0xfeed, sequence: 7 };
        assert_eq!(index.to_string().parse::<Index>().unwrap(), index);
        for bad in ["", "1", "x:1", "1:x", "1:2:3"] {
            assert!(bad.parse::<Index>().is_err(), "{bad:?}");
        }
    }
}
