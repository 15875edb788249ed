//! The cache itself.

use std::{fmt, sync::Arc};

use cosky_core::{Error, Index, Namespace, Read, Registry, Result, ServiceId, ServiceInstance};
use tokio::time::timeout;

use crate::{
    Figures, Incident, Options, Shown, View,
    services::Services,
    shelf::{Life, Shelf},
};

/// Keeps what is looked for, by one subscription per namespace. Cheap to clone; clones are the same cache.
///
/// What it shows is what the registry told last: a lost stream leaves it as it is and says `Stale`, and every
/// stream that begins anew replaces it whole. Errors are never remembered as content, and an empty list is one that the
/// registry said is empty.
#[derive(Clone)]
pub struct Cache {
    life: Arc<Life<Services>>,
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

    /// The instances of a service by its name, for those who cannot hold a view. Waits only for the first answer; later
    /// calls are answered from memory. May be cancelled at any time.
    ///
    /// # Errors
    /// When nothing is known yet: what the registry answered, [`Error::Unavailable`] when it did not answer within
    /// [`Options::wait`]; and [`Error::Exhausted`] at the limit of entries. The next call tries again.
    pub async fn instances(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
    ) -> Result<Read<Arc<[ServiceInstance]>>> {
        let shown = match self.known(namespace, service) {
            Some(shown) => shown,
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

    /// One instance: the cached one, else the registry is asked. Nothing is kept of one that does not exist.
    ///
    /// # Errors
    /// Those of [`Registry::instance`], when the registry had to be asked.
    pub async fn instance(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
        id: &str,
    ) -> Result<Option<ServiceInstance>> {
        let cached = self.read(namespace, service, |shown| {
            let at = shown.instances.binary_search_by(|instance| instance.id().as_str().cmp(id)).ok()?;
            Some(shown.instances[at].clone())
        });
        match cached.flatten() {
            Some(instance) => Ok(Some(instance)),
            None => Ok(self.life.0.registry.instance(namespace, service, id).await?.value),
        }
    }

    /// Begins protection in all namespaces: for engines that notice what happens to their store.
    pub fn incident(&self, incident: Incident) {
        self.life.0.incident(incident);
    }

    /// All that is known at this moment.
    pub fn all(&self) -> Vec<(Namespace, ServiceId, Arc<Shown>)> {
        self.life.0.all()
    }

    /// The cache in numbers.
    pub fn figures(&self) -> Figures {
        self.life.0.counters.figures()
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
            Ok(shown)
        };
        timeout(limit, wait)
            .await
            .unwrap_or_else(|_| Err(Error::unavailable(format!("no answer to the watch within {limit:?}"))))
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("figures", &self.figures()).finish_non_exhaustive()
    }
}
