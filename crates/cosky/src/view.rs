//! A live view: the instances of one service, kept by the watch stream, read without asking anybody.

use std::{
    collections::BTreeMap,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use cosky_core::{
    Change, Error as CoreError, Event, InstanceId, InstanceOp, ServiceId, ServiceInstance, StoreState,
    Weighted,
};
use futures_util::FutureExt as _;
use tokio::{sync::watch, time::timeout_at};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    Error, Result,
    beats::Keeper,
    follow::{Watch, Watched},
};

/// Changes that are taken in before a new list is shown.
const TOGETHER: usize = 256;

/// The instances of one service, always at hand.
///
/// Reading is one atomic load: nothing waits and nothing is asked. The list is that of the last known state. While no
/// server can be reached it stays as it is, [`LiveView::state`] says `Stale` and [`LiveView::age`] grows. A view never
/// drops an instance by itself; the server does, within TTL + 1 s of the last beat.
///
/// Clones share one stream. It ends when the last clone is dropped.
#[derive(Clone)]
pub struct LiveView {
    core: Arc<ViewCore>,
    changes: watch::Receiver<u64>,
}

/// A view for one thread's inner loop: an unchanged list costs one atomic load and a comparison.
pub struct ViewReader {
    cache: arc_swap::Cache<Arc<ArcSwap<Shown>>, Arc<Shown>>,
    core: Arc<ViewCore>,
}

/// What the handles of a view share.
pub(crate) struct ViewCore {
    service: ServiceId,
    shown: Arc<ArcSwap<Shown>>,
    changes: watch::Sender<u64>,
    _task: AbortOnDropHandle<()>,
}

/// What readers see.
#[derive(Clone)]
struct Shown {
    instances: Arc<[ServiceInstance]>,
    weighted: Arc<Weighted>,
    state: StoreState,
    /// Since when it is not live.
    since: Option<Instant>,
    /// Whether there was a snapshot yet.
    known: bool,
    /// Why the stream was lost, until there is another one.
    error: Option<CoreError>,
}

/// Keeps a view. Owned by its task.
struct Reader {
    keeper: Arc<Keeper>,
    watch: Watch,
    service: ServiceId,
    shown: Arc<ArcSwap<Shown>>,
    changes: watch::Sender<u64>,
    instances: BTreeMap<InstanceId, ServiceInstance>,
    next: Shown,
    /// What the server last said of itself.
    server: StoreState,
    /// Losses in a row.
    losses: u32,
}

impl LiveView {
    pub(crate) fn new(core: Arc<ViewCore>) -> Self {
        let changes = core.changes.subscribe();
        Self { core, changes }
    }

    /// The service that it shows.
    pub fn service(&self) -> &ServiceId {
        &self.core.service
    }

    /// All instances, sorted by id, those out of service included. The list is immutable; a change makes a new one.
    pub fn snapshot(&self) -> Arc<[ServiceInstance]> {
        self.core.shown.load().instances.clone()
    }

    /// A random instance among those in service, each as likely as its weight.
    ///
    /// # Errors
    /// [`Error::NoInstance`] when there is none.
    pub fn choose(&self) -> Result<ServiceInstance> {
        self.core.shown.load().choose(&self.core.service)
    }

    /// Waits for the next change of the list or of the state after the last call of this (or after the handle was
    /// made), and gives the list. Changes that came together count as one. May be cancelled at any time.
    pub async fn changed(&mut self) -> Arc<[ServiceInstance]> {
        // The sender lives in the core that this handle holds.
        let _ = self.changes.changed().await;
        self.snapshot()
    }

    /// How far the list can be trusted: `Live`, `Stale` or `Protected`.
    pub fn state(&self) -> StoreState {
        self.core.shown.load().state
    }

    /// How old the list may be: zero while it is live.
    pub fn age(&self) -> Duration {
        self.core.shown.load().since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// A reader of the same view for one thread.
    pub fn reader(&self) -> ViewReader {
        ViewReader { cache: arc_swap::Cache::new(self.core.shown.clone()), core: self.core.clone() }
    }

    /// Whether `list` is what [`LiveView::snapshot`] would give.
    pub(crate) fn shows(&self, list: &Arc<[ServiceInstance]>) -> bool {
        Arc::ptr_eq(&self.core.shown.load().instances, list)
    }

    /// Waits for the first snapshot.
    ///
    /// # Errors
    /// What stands against it: at once when waiting cannot help, else after `limit`.
    pub(crate) async fn first(&mut self, limit: Duration) -> Result<()> {
        let end = tokio::time::Instant::now() + limit;
        loop {
            let (known, error) = {
                let shown = self.core.shown.load();
                (shown.known, shown.error.clone())
            };
            if known {
                self.changes.mark_unchanged();
                return Ok(());
            }
            let error = error.map(Error::from);
            if error.as_ref().is_some_and(|error| !error.is_unavailable()) {
                return error.map_or(Ok(()), Err);
            }
            if timeout_at(end, self.changes.changed()).await.is_err() {
                return Err(error.unwrap_or_else(|| {
                    CoreError::unavailable(format!("no answer to the watch within {limit:?}")).into()
                }));
            }
        }
    }
}

impl ViewReader {
    /// As [`LiveView::snapshot`].
    pub fn instances(&mut self) -> &[ServiceInstance] {
        &self.cache.load().instances
    }

    /// As [`LiveView::choose`].
    ///
    /// # Errors
    /// [`Error::NoInstance`] when there is none.
    pub fn choose(&mut self) -> Result<&ServiceInstance> {
        let shown = self.cache.load();
        let chosen = shown.weighted.pick().map(|at| &shown.instances[at]);
        chosen.ok_or_else(|| Error::NoInstance { service: self.core.service.to_string() })
    }
}

impl ViewCore {
    /// Starts to follow `service`.
    pub(crate) fn start(
        keeper: Arc<Keeper>,
        watch: Watch,
        service: ServiceId,
        runtime: &tokio::runtime::Handle,
    ) -> Self {
        let empty = Shown {
            instances: Arc::default(),
            weighted: Arc::default(),
            state: StoreState::Stale,
            since: Some(Instant::now()),
            known: false,
            error: None,
        };
        let shown = Arc::new(ArcSwap::from_pointee(empty.clone()));
        let changes = watch::Sender::new(0);
        let reader = Reader {
            keeper,
            watch,
            service: service.clone(),
            shown: shown.clone(),
            changes: changes.clone(),
            instances: BTreeMap::new(),
            next: empty,
            server: StoreState::Live,
            losses: 0,
        };
        let task = AbortOnDropHandle::new(runtime.spawn(reader.run()));
        Self { service, shown, changes, _task: task }
    }
}

impl Shown {
    fn choose(&self, service: &ServiceId) -> Result<ServiceInstance> {
        let chosen = self.weighted.pick().map(|at| self.instances[at].clone());
        chosen.ok_or_else(|| Error::NoInstance { service: service.to_string() })
    }
}

impl Reader {
    async fn run(mut self) {
        loop {
            let mut watched = Some(self.watch.next().await);
            let (mut listed, mut told) = (false, false);
            for _ in 0..TOGETHER {
                let Some(news) = watched else { break };
                let (list, any) = self.take(news);
                (listed, told) = (listed | list, told | any);
                watched = self.watch.next().now_or_never();
            }
            if let Some(news) = watched {
                let (list, any) = self.take(news);
                (listed, told) = (listed | list, told | any);
            }
            if listed {
                self.next.instances = self.instances.values().cloned().collect();
                self.next.weighted = Arc::new(Weighted::new(&self.next.instances));
            }
            if listed || told {
                self.shown.store(Arc::new(self.next.clone()));
                self.changes.send_modify(|count| *count = count.wrapping_add(1));
            }
        }
    }

    /// Whether the list changed, and whether anything did.
    fn take(&mut self, news: Watched) -> (bool, bool) {
        match news {
            Watched::Change(change) => self.apply(&change),
            Watched::Resumed => (false, self.heard()),
            Watched::Lost(error) => (false, self.lose(error)),
        }
    }

    fn apply(&mut self, change: &Change) -> (bool, bool) {
        match &change.event {
            Event::Snapshot(snapshot) => {
                if snapshot.state == StoreState::Stale && self.next.known {
                    // What a cut-off server remembers may be older than what is shown here.
                    let error = CoreError::unavailable("the server itself is cut off from its store");
                    let _ = self.watch.lost(error.clone());
                    return (false, self.lose(error));
                }
                let list = snapshot.services.get(&self.service).map(Vec::as_slice).unwrap_or_default();
                let new: BTreeMap<_, _> = list.iter().map(|i| (i.id().clone(), i.clone())).collect();
                for instance in new.values() {
                    self.keeper.saw_metadata(instance.id(), instance.metadata());
                }
                self.instances = new;
                self.next.known = true;
                self.enter(snapshot.state);
                (true, true)
            }
            Event::Instance { op, service, id, instance } if *service == self.service => {
                match instance {
                    Some(instance) => {
                        if *op == InstanceOp::SetMetadata {
                            self.keeper.saw_metadata(id, instance.metadata());
                        }
                        self.instances.insert(id.clone(), instance.clone());
                    }
                    None => drop(self.instances.remove(id)),
                }
                let told = self.heard();
                (true, told)
            }
            // Whoever drains says nothing of the list; the watch goes elsewhere by itself.
            Event::State(StoreState::Draining) => (false, false),
            Event::State(state) => (false, self.enter(*state)),
            // A listed or unlisted service has no instances of its own; theirs come as instance events.
            _ => (false, self.heard()),
        }
    }

    /// A stream that was resumed carries on from what is shown, so that is true again.
    fn heard(&mut self) -> bool {
        self.next.error.is_some() && self.enter(self.server)
    }

    fn enter(&mut self, state: StoreState) -> bool {
        let before = (self.next.state, self.next.error.is_some());
        let losses = std::mem::take(&mut self.losses);
        if losses > 0 {
            tracing::info!(service.id = %self.service, losses, "the view is followed again");
        }
        self.server = state;
        self.next.error = None;
        if state == StoreState::Live {
            self.next.since = None;
        } else if self.next.since.is_none() {
            self.next.since = Some(Instant::now());
        }
        self.next.state = state;
        before != (state, false)
    }

    fn lose(&mut self, error: CoreError) -> bool {
        if self.losses == 0 {
            tracing::warn!(service.id = %self.service, %error, "the view is stale; trying on");
        }
        self.losses = self.losses.saturating_add(1);
        self.next.error = Some(error);
        self.next.since.get_or_insert_with(Instant::now);
        let before = std::mem::replace(&mut self.next.state, StoreState::Stale);
        before != StoreState::Stale || !self.next.known
    }
}

impl fmt::Debug for LiveView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveView")
            .field("service", self.service())
            .field("state", &self.state())
            .field("instances", &self.core.shown.load().instances.len())
            .finish()
    }
}

impl fmt::Debug for ViewReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ViewReader").field("service", &self.core.service).finish_non_exhaustive()
    }
}
