//! One namespace: what a process registers in it and looks for in it.

use std::{fmt, future::IntoFuture, pin::Pin, sync::Arc, time::Duration};

use cosky_cache::{Cache, Watch};
use cosky_core::{Error as CoreError, Namespace, Read, Registry, Scope, ServiceId, ServiceInstance};
use tokio::{runtime::Handle, time::timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::{LiveView, Result, beats::Keeper, detect::Home};

/// How long [`NamespaceClient::discover`] waits for the first snapshot.
const DISCOVER: Duration = Duration::from_secs(5);

/// A namespace of the registry. Clones, and what [`crate::Cosky::namespace`] gives for the same name, share one task of
/// beats and one stream for everything that is looked for.
#[derive(Clone)]
pub struct NamespaceClient {
    pub(crate) core: Arc<NamespaceCore>,
}

pub(crate) struct NamespaceCore {
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) beats: Arc<AbortOnDropHandle<()>>,
    cache: Cache,
    pub(crate) close_timeout: Duration,
    pub(crate) home: Arc<Home>,
}

/// A look for a service: await it for a [`LiveView`].
#[must_use = "await it"]
#[derive(Debug)]
pub struct Discover {
    namespace: NamespaceClient,
    service: String,
    limit: Duration,
    wait: bool,
}

impl NamespaceCore {
    pub(crate) fn new(
        registry: Arc<dyn Registry>,
        namespace: Namespace,
        cache: Cache,
        runtime: Handle,
        request_timeout: Duration,
        close_timeout: Duration,
        home: Arc<Home>,
    ) -> Self {
        let keeper = Keeper::new(registry, namespace, runtime.clone(), request_timeout);
        let keeper = Arc::new(keeper.shown_by(cache.clone()));
        let beats = Arc::new(AbortOnDropHandle::new(runtime.spawn(keeper.clone().run())));
        Self { keeper, beats, cache, close_timeout, home }
    }
}

impl NamespaceClient {
    pub(crate) fn new(core: Arc<NamespaceCore>) -> Self {
        Self { core }
    }

    /// Its name.
    pub fn name(&self) -> &Namespace {
        self.core.keeper.namespace()
    }

    /// A live view of a service, whether it exists yet or not. Awaiting gives it as soon as it shows the first snapshot.
    ///
    /// # Errors
    /// Of the awaited value: [`crate::Error::Registry`] when the name breaks a rule, when the server refuses, or when
    /// no server answers within 5 s (or [`Discover::timeout`]).
    pub fn discover(&self, service: impl Into<String>) -> Discover {
        Discover { namespace: self.clone(), service: service.into(), limit: DISCOVER, wait: true }
    }

    /// The instances of a service by its name, for those who cannot hold a view. The first call waits for the registry, at
    /// most 5 s; later ones are answered from memory, which follows the registry as a view does until nobody has asked for
    /// a minute. A view is quicker.
    ///
    /// What this client registered, deregistered or edited by a [`crate::Registration`], and the server acknowledged, is in
    /// the list: a call right after it waits for that, 2 s at most. A list that says that it is stale may lack it.
    ///
    /// # Errors
    /// [`crate::Error::Registry`] when the name breaks a rule, when the registry refuses or does not answer and nothing is
    /// known yet, when what this client wrote is not known after 2 s though the list is not stale, and above 10,000 services
    /// of one client. An error is not remembered.
    pub async fn instances(&self, service: impl AsRef<str>) -> Result<Read<Arc<[ServiceInstance]>>> {
        let service = ServiceId::new(service.as_ref())?;
        Ok(self.core.cache.instances(self.name(), &service).await?)
    }

    /// One instance by its id: from memory where the service is followed and its list is live, else from the registry, which
    /// is also asked for what memory lacks. When it does not answer, what memory has counts. `None` when it does not exist.
    ///
    /// # Errors
    /// [`crate::Error::Registry`] when the name breaks a rule, or the registry had to be asked and refused, or did not answer
    /// and nothing is known.
    pub async fn instance(
        &self,
        service: impl AsRef<str>,
        id: impl AsRef<str>,
    ) -> Result<Option<ServiceInstance>> {
        let service = ServiceId::new(service.as_ref())?;
        Ok(self.core.cache.instance(self.name(), &service, id.as_ref()).await?)
    }

    /// Follows everything that `scope` covers, change by change.
    pub fn watch(&self, scope: Scope) -> Watch {
        Watch::new(self.core.keeper.registry().clone(), self.name().clone(), scope)
    }

    /// Deregisters every instance that this process registered in this namespace, and waits also for those whose
    /// handles were dropped. For the end of a program.
    ///
    /// # Errors
    /// [`crate::Error::Registry`] when not all were answered in time; see [`crate::Registration::close`].
    pub async fn close(&self) -> Result<()> {
        let limit = self.core.close_timeout;
        timeout(limit, self.core.keeper.leave_all()).await.map_err(|_| {
            let reason =
                format!("not every deregistration was answered within {limit:?}; the rest leaves by its TTL");
            CoreError::Unavailable { reason, maybe_applied: true, source: None }.into()
        })
    }
}

impl Discover {
    /// How long to wait for the first snapshot, 5 s without this.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Does not wait: the view starts empty and `Stale`, and fills as soon as a server answers. For a process that
    /// starts without its registry.
    pub fn start_empty(mut self) -> Self {
        self.wait = false;
        self
    }

    async fn view(self) -> Result<LiveView> {
        let service = ServiceId::new(&self.service)?;
        let mut view = LiveView::new(self.namespace.core.cache.view(self.namespace.name(), &service)?);
        if self.wait {
            view.ready(self.limit).await?;
        }
        Ok(view)
    }
}

impl IntoFuture for Discover {
    type Output = Result<LiveView>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.view())
    }
}

impl fmt::Debug for NamespaceClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NamespaceClient").field(self.name()).finish()
    }
}
