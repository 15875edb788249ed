//! The cache itself.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use cosky_core::{Error, Index, Namespace, Read, Registry, Result, ServiceId, ServiceInstance, StoreState};
use tokio::time::{timeout, timeout_at};

use crate::{
    Figures, Incident, Options, Shown, View,
    entry::Entry,
    services::Services,
    shelf::{Life, Shelf},
};

/// How long after a write of this process look-ups wait for it.
const OWN_WRITES: Duration = Duration::from_secs(2);

/// Keeps what is looked for, by one subscription per namespace. Cheap to clone; clones are the same cache.
///
/// What it shows is what the registry told last: a lost stream leaves it as it is and says `Stale`, and every
/// stream that begins anew replaces it whole. Errors are never remembered as content, and an empty list is one that the
/// registry said is empty.
#[derive(Clone)]
pub struct Cache {
    life: Arc<Life<Services>>,
}

/// A cache for those who only accompany it: it ends without regard to them.
#[derive(Clone)]
pub struct WeakCache {
    life: Weak<Life<Services>>,
}

impl WeakCache {
    /// The cache, while a clone or a view of it is left.
    pub fn upgrade(&self) -> Option<Cache> {
        self.life.upgrade().map(|life| Cache { life })
    }
}

impl Cache {
    /// A cache over `registry`. Its tasks run on the current runtime and end with the last clone and view.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn new(registry: Arc<dyn Registry>, options: Options) -> Self {
        Self { life: Arc::new(Life(Arc::new(Shelf::new(registry, options)))) }
    }

    /// A live view of a service, whether it exists yet or not. It starts empty and `Stale` unless the service is cached
    /// already, and holds the entry and its subscription until the last clone is dropped.
    ///
    /// # Errors
    /// [`Error::Exhausted`] at the limit of entries.
    pub fn view(&self, namespace: &Namespace, service: &ServiceId) -> Result<View> {
        let entry = self.life.0.hold(namespace, service)?;
        Ok(View::new(entry, self.life.clone()))
    }

    /// The instances of a service by its name, for those who cannot hold a view. Waits only for the first answer, and for
    /// what this process [wrote](Cache::wrote); other calls are answered from memory. May be cancelled at any time.
    ///
    /// # Errors
    /// When nothing is known yet: what the registry answered, [`Error::Unavailable`] when it did not answer within
    /// [`Options::wait`]. When what this process wrote is not there within 2 s though the list is not stale:
    /// [`Error::Unavailable`]. And [`Error::Exhausted`] at the limit of entries. The next call tries again.
    pub async fn instances(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
    ) -> Result<Read<Arc<[ServiceInstance]>>> {
        let shown = match self.with_own_writes(namespace, service).await {
            Some(shown) => shown?,
            None => self.first(namespace, service).await?,
        };
        // What was recalled is of no change that any registry would remember.
        let index = shown.index.unwrap_or(Index { epoch: 0, sequence: 0 });
        Ok(Read { value: shown.instances.clone(), index, age: shown.age(), state: shown.state })
    }

    /// What is cached of a service, without waiting; `None` when nothing is. Nearly as quick as a look into a map.
    pub fn known(&self, namespace: &Namespace, service: &ServiceId) -> Option<Arc<Shown>> {
        self.read(namespace, service, Arc::clone)
    }

    /// What `read` makes of what is cached of a service, without waiting or copying; `None` when nothing is. As quick as a
    /// look into a map. `read` must return quickly: what is shown meanwhile is kept in memory for it.
    pub fn read<T>(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
        read: impl FnOnce(&Arc<Shown>) -> T,
    ) -> Option<T> {
        self.life.0.read(namespace, service, read)
    }

    /// One instance: the cached one while the list is live, with what this process [wrote](Cache::wrote); else the registry
    /// is asked, and when it does not answer the cached one counts. Nothing is kept of one that does not exist.
    ///
    /// # Errors
    /// Those of [`Registry::instance`], when the registry had to be asked and nothing is cached.
    pub async fn instance(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
        id: &str,
    ) -> Result<Option<ServiceInstance>> {
        let shown = self.with_own_writes(namespace, service).await.and_then(Result::ok);
        let cached = shown.as_ref().and_then(|shown| {
            let at = shown.instances.binary_search_by(|instance| instance.id().as_str().cmp(id)).ok()?;
            Some(&shown.instances[at])
        });
        if let (Some(instance), Some(StoreState::Live)) = (cached, shown.as_ref().map(|shown| shown.state)) {
            return Ok(Some(instance.clone()));
        }
        match (self.life.0.registry.instance(namespace, service, id).await, cached) {
            (Ok(read), _) => Ok(read.value),
            (Err(Error::Unavailable { .. }), Some(instance)) => Ok(Some(instance.clone())),
            (Err(error), _) => Err(error),
        }
    }

    /// This process has changed something of a service (registered, deregistered, edited an instance), and the registry
    /// has acknowledged it. Views and look-ups by name are given a list that has it, though the change itself may be told
    /// later: the service is asked for anew, and look-ups wait for that, 2 s at most. Nothing happens when it is not cached.
    pub fn wrote(&self, namespace: &Namespace, service: &ServiceId) {
        self.life.0.wrote(namespace, service);
    }

    /// Begins protection in all namespaces: for engines that notice what happens to their store.
    pub fn incident(&self, incident: Incident) {
        self.life.0.incident(incident);
    }

    /// The same cache, without keeping it.
    pub fn downgrade(&self) -> WeakCache {
        WeakCache { life: Arc::downgrade(&self.life) }
    }

    /// All that is known at this moment.
    pub fn all(&self) -> Vec<(Namespace, ServiceId, Arc<Shown>)> {
        self.life.0.all()
    }

    /// The cache in numbers.
    pub fn figures(&self) -> Figures {
        self.life.0.counters.figures()
    }

    /// What is known of a name, with everything that this process wrote.
    async fn with_own_writes(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
    ) -> Option<Result<Arc<Shown>>> {
        let (shown, behind) = self.life.0.look(namespace, service, |entry, shown| {
            (shown.clone(), (shown.writes < entry.writes()).then(|| entry.clone()))
        })?;
        let Some(entry) = behind else { return Some(Ok(shown)) };
        Some(has_own_writes(&entry).await)
    }

    /// Waits until a name is known, or until it turns out that it cannot be: not by what was so before the call.
    async fn first(&self, namespace: &Namespace, service: &ServiceId) -> Result<Arc<Shown>> {
        let view = self.view(namespace, service)?;
        view.entry().touch();
        let limit = self.life.0.options.wait;
        let wait = async {
            let mut shown = view.shown();
            while !shown.known {
                shown = view.entry().changed(shown.version).await;
                if let (false, Some(error)) = (shown.known, &shown.error) {
                    return Err(error.clone());
                }
            }
            if shown.writes < view.entry().writes() { has_own_writes(view.entry()).await } else { Ok(shown) }
        };
        timeout(limit, wait)
            .await
            .unwrap_or_else(|_| Err(Error::unavailable(format!("no answer to the watch within {limit:?}"))))
    }
}

impl fmt::Debug for WeakCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakCache").finish_non_exhaustive()
    }
}

/// Waits until what is shown has everything that this process wrote before the call. What is stale by then says so, and
/// does without.
async fn has_own_writes(entry: &Entry<Services>) -> Result<Arc<Shown>> {
    let (writes, end) = (entry.writes(), entry.wrote_at() + OWN_WRITES);
    if let Ok(shown) = timeout_at(end, entry.shows(|shown| shown.writes >= writes)).await {
        return Ok(shown);
    }
    let shown = entry.load_full();
    if shown.writes >= writes || shown.state == StoreState::Stale {
        return Ok(shown);
    }
    Err(Error::unavailable(format!("what was written is not known here after {OWN_WRITES:?}")))
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("figures", &self.figures()).finish_non_exhaustive()
    }
}
