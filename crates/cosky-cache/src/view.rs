//! Views: one name, always at hand.

use std::{fmt, ops::Deref, sync::Arc, time::Duration};

use arc_swap::{ArcSwap, Guard};
use cosky_core::{Error, Result, ServiceId, ServiceInstance, StoreState};
use tokio::time::timeout;

use crate::{Changes, Shown, entry::Entry, services::Services, shelf::Life};

/// The instances of one service. Reading is one atomic load: nothing waits and nothing is asked.
///
/// Clones share everything but what [`View::changed`] has seen.
pub struct View {
    held: Held,
    seen: u64,
}

/// A view for one thread's inner loop: something unchanged costs one atomic load and a comparison.
pub struct ViewReader {
    cache: arc_swap::Cache<Held, Arc<Shown>>,
    service: ServiceId,
}

/// Keeps an entry and its subscription.
struct Held {
    entry: Arc<Entry<Services>>,
    life: Arc<Life<Services>>,
}

impl View {
    /// Of an entry that was held for it.
    pub(crate) fn new(entry: Arc<Entry<Services>>, life: Arc<Life<Services>>) -> Self {
        let seen = entry.load().version;
        Self { held: Held { entry, life }, seen }
    }

    pub(crate) fn entry(&self) -> &Entry<Services> {
        &self.held.entry
    }

    /// The service that it shows.
    pub fn service(&self) -> &ServiceId {
        &self.held.entry.name
    }

    /// All instances, sorted by id, those out of service included. The list is immutable; a change makes a new one.
    pub fn snapshot(&self) -> Arc<[ServiceInstance]> {
        self.held.load().instances.clone()
    }

    /// Everything that is known.
    pub fn shown(&self) -> Arc<Shown> {
        self.held.load_full()
    }

    /// As [`View::shown`], for a moment: quicker, but to be dropped soon.
    pub fn peek(&self) -> Guard<Arc<Shown>> {
        self.held.load()
    }

    /// How far the list can be trusted: `Live`, `Stale` or `Protected`.
    pub fn state(&self) -> StoreState {
        self.held.load().state
    }

    /// How old the list may be: zero while it is live.
    pub fn age(&self) -> Duration {
        self.held.load().age()
    }

    /// Waits for the next change of the list or of the state after the last call of this or of [`View::ready`], or after
    /// the handle was made. Changes that came together count as one. May be cancelled at any time.
    pub async fn changed(&mut self) {
        self.seen = self.held.entry.changed(self.seen).await.version;
    }

    /// Waits until something is known, and counts it as seen.
    ///
    /// # Errors
    /// What stands against it: at once when waiting cannot help, else [`Error::Unavailable`] after `limit`.
    pub async fn ready(&mut self, limit: Duration) -> Result<()> {
        self.ready_unless(limit, |error| !matches!(error, Error::Unavailable { .. })).await
    }

    /// As [`View::ready`], for those who know better which errors are `hopeless`.
    ///
    /// # Errors
    /// The first hopeless error at once, else [`Error::Unavailable`] after `limit`.
    pub async fn ready_unless(&mut self, limit: Duration, hopeless: impl Fn(&Error) -> bool) -> Result<()> {
        let wait = async {
            let mut shown = self.shown();
            while !shown.known {
                if let Some(error) = shown.error.as_ref().filter(|error| hopeless(error)) {
                    return Err(error.clone());
                }
                shown = self.held.entry.changed(shown.version).await;
            }
            Ok(shown.version)
        };
        match timeout(limit, wait).await {
            Ok(known) => self.seen = known?,
            Err(_) => {
                let error = self.held.load().error.clone();
                return Err(error.unwrap_or_else(|| {
                    Error::unavailable(format!("no answer to the watch within {limit:?}"))
                }));
            }
        }
        Ok(())
    }

    /// What changes from now on, change by change, beginning with all that is there.
    pub fn changes(&self) -> Changes {
        Changes::new(self.clone())
    }

    /// A reader of the same view for one thread.
    pub fn reader(&self) -> ViewReader {
        ViewReader { cache: arc_swap::Cache::new(self.held.clone()), service: self.service().clone() }
    }
}

impl ViewReader {
    /// As [`View::shown`].
    #[inline]
    pub fn shown(&mut self) -> &Shown {
        self.cache.load()
    }

    /// As [`View::snapshot`].
    #[inline]
    pub fn instances(&mut self) -> &[ServiceInstance] {
        &self.cache.load().instances
    }

    /// A random instance among those in service, each as likely as its weight.
    ///
    /// # Errors
    /// The service, when none may be chosen.
    #[inline]
    pub fn choose(&mut self) -> std::result::Result<&ServiceInstance, &ServiceId> {
        // One load: a position in one list says nothing of the next one.
        let Self { cache, service } = self;
        cache.load().choose().ok_or(service)
    }

    /// The service that it shows.
    pub fn service(&self) -> &ServiceId {
        &self.service
    }
}

impl Clone for View {
    fn clone(&self) -> Self {
        Self { held: self.held.clone(), seen: self.seen }
    }
}

impl Clone for Held {
    fn clone(&self) -> Self {
        self.entry.hold();
        Self { entry: self.entry.clone(), life: self.life.clone() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.entry.let_go();
    }
}

impl Deref for Held {
    type Target = ArcSwap<Shown>;

    #[inline]
    fn deref(&self) -> &ArcSwap<Shown> {
        &self.entry
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.peek();
        f.debug_struct("View")
            .field("service", self.service())
            .field("state", &shown.state)
            .field("instances", &shown.instances.len())
            .finish()
    }
}

impl fmt::Debug for ViewReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ViewReader").field("service", self.service()).finish_non_exhaustive()
    }
}
