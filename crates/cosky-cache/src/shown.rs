//! What readers see.

use std::{ops::Deref, sync::Arc, time::Duration};

use cosky_core::{Error, Index, ServiceInstance, StoreState, Weighted};
use tokio::time::Instant;

/// What is known of one name at one moment. Immutable; a change makes a new one. The content is reached by `Deref`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Shown<C = Instances> {
    /// The content, the last one that was known.
    pub content: C,
    /// How far it can be trusted: `Live`, `Stale` or `Protected`.
    pub state: StoreState,
    /// Since when it is not live.
    pub since: Option<Instant>,
    /// Whether the registry has told it yet, or it was [recalled](crate::Options::recall). Until then the content is
    /// empty and says nothing.
    pub known: bool,
    /// Why it cannot be followed at the moment, when it cannot.
    pub error: Option<Error>,
    /// The last change that is in it; a watch from here misses nothing. None until the registry has told it.
    pub index: Option<Index>,
    /// Counts what was shown of this name.
    pub(crate) version: u64,
    /// Writes of this process that are in it.
    pub(crate) writes: u64,
}

/// The instances of a service.
#[derive(Debug, Clone, Default)]
pub struct Instances {
    /// All of them, sorted by id, those out of service included.
    pub instances: Arc<[ServiceInstance]>,
    /// The ways to choose one of them at random.
    pub weighted: Arc<Weighted>,
}

impl<C: Default> Shown<C> {
    /// Before anything is known.
    pub(crate) fn nothing(now: Instant) -> Self {
        Self {
            content: C::default(),
            state: StoreState::Stale,
            since: Some(now),
            known: false,
            error: None,
            index: None,
            version: 0,
            writes: 0,
        }
    }
}

impl<C> Shown<C> {
    /// How old the content may be: zero while it is live.
    pub fn age(&self) -> Duration {
        self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

impl Shown<Instances> {
    /// A random instance among those in service, each as likely as its weight; `None` when none may be chosen.
    pub fn choose(&self) -> Option<&ServiceInstance> {
        self.content.weighted.pick().map(|at| &self.content.instances[at])
    }
}

impl<C> Deref for Shown<C> {
    type Target = C;

    #[inline]
    fn deref(&self) -> &C {
        &self.content
    }
}
