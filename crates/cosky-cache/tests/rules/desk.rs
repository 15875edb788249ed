//! A registry that says what a test wants it to say.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use cosky_core::{
    Beat, BeatKey, Change, Clock, ConsumerName, Error, Event, Index, Instance, InstanceOp, Life, Metadata,
    MetadataPatch, Namespace, Owner, Read, Registered, Registration, Registry, Result, Scope, ServiceId,
    ServiceInstance, ServiceStat, Snapshot, Stat, StoreId, StoreState, WatchStream, digest,
};
use tokio::{
    sync::{Notify, mpsc},
    time::Instant,
};

pub(crate) const TTL: Duration = Duration::from_secs(30);

/// One namespace of permanent and ephemeral instances; what a server and the network may do, by the word of a test.
#[derive(Default)]
pub(crate) struct Desk {
    state: Mutex<State>,
    /// Answers to single questions wait while this is set.
    pub(crate) holds_loads: AtomicBool,
    /// And watches while this is.
    pub(crate) holds_watches: AtomicBool,
    released: Notify,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) epoch: u64,
    pub(crate) sequence: u64,
    pub(crate) store: Option<StoreId>,
    pub(crate) says: Option<StoreState>,
    pub(crate) lists: BTreeMap<ServiceId, BTreeMap<u32, ServiceInstance>>,
    log: Vec<Arc<Change>>,
    watchers: Vec<(Scope, mpsc::UnboundedSender<Result<Arc<Change>>>)>,
    /// What watches and questions are answered with instead.
    pub(crate) refuses_watch: Option<Error>,
    pub(crate) refuses_read: Option<Error>,
    /// Questions for these names are not answered.
    pub(crate) unreachable: BTreeSet<ServiceId>,
    pub(crate) refuses_digest: Option<Error>,
    /// The digest of what is there beside, and that nobody is told.
    pub(crate) unreadable: u64,
    /// Changes are not told.
    pub(crate) mute: bool,
    /// Those that were not.
    untold: Vec<Arc<Change>>,
    /// Every question, in words.
    pub(crate) asked: Vec<String>,
}

/// The clock of virtual time, and the time for which the machine was suspended.
#[derive(Clone)]
pub(crate) struct VirtualClock {
    start: Instant,
    suspended: Arc<Mutex<Duration>>,
}

impl Desk {
    pub(crate) fn new() -> Arc<Self> {
        let desk = Self::default();
        desk.state().epoch = 1;
        Arc::new(desk)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Registers an ephemeral instance.
    pub(crate) fn put(&self, service: &str, port: u32) {
        self.put_with(service, port, InstanceOp::Register, &[]);
    }

    pub(crate) fn put_with(&self, service: &str, port: u32, op: InstanceOp, metadata: &[(&str, &str)]) {
        let item = living(service, port, metadata);
        let mut state = self.state();
        state.lists.entry(item.service().clone()).or_default().insert(port, item.clone());
        state.publish(op, &item);
    }

    pub(crate) fn remove(&self, service: &str, port: u32, op: InstanceOp) {
        let name = ServiceId::new(service).unwrap();
        let mut state = self.state();
        let item = state.lists.get_mut(&name).and_then(|list| list.remove(&port)).unwrap();
        state.publish(op, &item);
    }

    /// Ends all streams as a broken connection does.
    pub(crate) fn cut(&self) {
        self.break_off(&Error::unavailable("the connection broke"));
    }

    /// Ends all streams with this error.
    pub(crate) fn break_off(&self, error: &Error) {
        for (_, watcher) in self.state().watchers.drain(..) {
            let _ = watcher.send(Err(error.clone()));
        }
    }

    /// Another epoch; nobody is told.
    pub(crate) fn restart(&self) {
        let mut state = self.state();
        state.epoch += 1;
        state.sequence = 0;
        state.log.clear();
        state.watchers.clear();
    }

    /// Ends all streams cleanly.
    pub(crate) fn end(&self) {
        self.state().watchers.clear();
    }

    pub(crate) fn tell_state(&self, says: StoreState) {
        let mut state = self.state();
        state.says = Some(says);
        state.tell(Event::State(says));
    }

    /// Tells late what was not told.
    pub(crate) fn speak(&self) {
        let mut state = self.state();
        state.mute = false;
        for change in std::mem::take(&mut state.untold) {
            state.spread(&change);
        }
    }

    pub(crate) fn answer(&self) {
        self.holds_loads.store(false, Ordering::SeqCst);
        self.holds_watches.store(false, Ordering::SeqCst);
        self.released.notify_waiters();
    }

    pub(crate) fn watchers(&self) -> usize {
        let mut state = self.state();
        state.watchers.retain(|(_, watcher)| !watcher.is_closed());
        state.watchers.len()
    }

    /// The questions so far that begin with `what`.
    pub(crate) fn asked(&self, what: &str) -> usize {
        self.state().asked.iter().filter(|asked| asked.starts_with(what)).count()
    }

    fn ask(&self, what: String) {
        self.state().asked.push(what);
    }
}

impl State {
    fn index(&self) -> Index {
        Index { epoch: self.epoch, sequence: self.sequence }
    }

    fn says(&self) -> StoreState {
        self.says.unwrap_or(StoreState::Live)
    }

    fn read<T>(&self, value: T) -> Read<T> {
        Read { value, index: self.index(), age: Duration::ZERO, state: self.says() }
    }

    fn items(&self, service: &ServiceId) -> Vec<ServiceInstance> {
        self.lists.get(service).map(|list| list.values().cloned().collect()).unwrap_or_default()
    }

    fn publish(&mut self, op: InstanceOp, item: &ServiceInstance) {
        let gone = matches!(op, InstanceOp::Deregister | InstanceOp::Expired);
        let (service, id) = (item.service().clone(), item.id().clone());
        let instance = (!gone).then(|| item.clone());
        self.tell(Event::Instance { op, service, id, instance });
    }

    fn tell(&mut self, event: Event) {
        self.sequence += 1;
        let change = Arc::new(Change::new(self.index(), event));
        self.log.push(change.clone());
        if self.mute {
            self.untold.push(change);
        } else {
            self.spread(&change);
        }
    }

    fn spread(&mut self, change: &Arc<Change>) {
        let concerns = |scope: &Scope| change.event.service().is_none_or(|service| scope.covers(service));
        self.watchers.retain(|(scope, watcher)| !concerns(scope) || watcher.send(Ok(change.clone())).is_ok());
    }
}

pub(crate) fn living(service: &str, port: u32, metadata: &[(&str, &str)]) -> ServiceInstance {
    let service = ServiceId::new(service).unwrap();
    let mut new = Registration::new(service, "http", "10.0.0.1", i64::from(port)).unwrap();
    new.metadata = Metadata::new(metadata.iter().copied()).unwrap();
    let life = Life::Remaining { remaining: TTL, ttl_at: 0 };
    ServiceInstance::new(Arc::new(Instance::from(new)), life)
}

impl VirtualClock {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), suspended: Arc::default() }
    }

    /// Time passes that no timer counts.
    pub(crate) fn suspend(&self, time: Duration) {
        *self.suspended.lock().unwrap() += time;
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Duration {
        self.start.elapsed() + *self.suspended.lock().unwrap()
    }

    fn unix(&self) -> Duration {
        self.now()
    }
}

/// For what no cache may ask.
fn not_here<T>() -> Result<T> {
    Err(Error::NotFound { what: "this operation".into() })
}

#[async_trait]
impl Registry for Desk {
    async fn watch(&self, _: &Namespace, scope: Scope, from: Option<Index>) -> Result<WatchStream> {
        let names = match &scope {
            Scope::All => "everything".to_owned(),
            Scope::Services(services) => services.iter().map(|s| s.as_str()).collect::<Vec<_>>().join(" "),
        };
        self.ask(format!("watch {names}{}", if from.is_some() { " from" } else { "" }));
        while self.holds_watches.load(Ordering::SeqCst) {
            self.released.notified().await;
        }
        let mut state = self.state();
        if let Some(error) = &state.refuses_watch {
            return Err(error.clone());
        }
        let (sender, mut receiver) = mpsc::unbounded_channel();
        match from.filter(|from| from.epoch == state.epoch) {
            Some(from) => {
                for change in state.log.iter().filter(|change| change.index.sequence > from.sequence) {
                    if change.event.service().is_none_or(|service| scope.covers(service)) {
                        let _ = sender.send(Ok(change.clone()));
                    }
                }
            }
            None => {
                let mut services: BTreeMap<_, _> = match &scope {
                    Scope::All => BTreeMap::new(),
                    Scope::Services(names) => names.iter().map(|name| (name.clone(), vec![])).collect(),
                };
                for name in state.lists.keys().filter(|name| scope.covers(name)) {
                    services.insert(name.clone(), state.items(name));
                }
                let snapshot = Snapshot { services, state: state.says(), store: state.store };
                let _ = sender.send(Ok(Arc::new(Change::new(state.index(), Event::Snapshot(snapshot)))));
            }
        }
        state.watchers.push((scope, sender));
        Ok(Box::pin(futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx))))
    }

    async fn instances(&self, _: &Namespace, service: &ServiceId) -> Result<Read<Vec<ServiceInstance>>> {
        self.ask(format!("instances {service}"));
        // Read before it is held: an answer on its way.
        let answer = {
            let state = self.state();
            match &state.refuses_read {
                Some(error) => Err(error.clone()),
                None if state.unreachable.contains(service) => Err(Error::unavailable("no answer")),
                None => Ok(state.read(state.items(service))),
            }
        };
        while self.holds_loads.load(Ordering::SeqCst) {
            self.released.notified().await;
        }
        answer
    }

    async fn instance(
        &self,
        _: &Namespace,
        service: &ServiceId,
        id: &str,
    ) -> Result<Read<Option<ServiceInstance>>> {
        self.ask(format!("instance {id}"));
        let state = self.state();
        if let Some(error) = &state.refuses_read {
            return Err(error.clone());
        }
        Ok(state.read(state.items(service).into_iter().find(|item| item.id().as_str() == id)))
    }

    async fn digest(&self, _: &Namespace, scope: &Scope) -> Result<Read<u64>> {
        self.ask("digest".into());
        let state = self.state();
        if let Some(error) = &state.refuses_digest {
            return Err(error.clone());
        }
        let covered = state.lists.iter().filter(|(name, _)| scope.covers(name));
        let numbers = covered.flat_map(|(_, list)| list.values()).map(|item| digest::of_instance(item));
        Ok(state.read(numbers.fold(state.unreadable, u64::wrapping_add)))
    }

    async fn namespaces(&self) -> Result<Vec<Namespace>> {
        not_here()
    }

    async fn add_namespace(&self, _: &Namespace) -> Result<bool> {
        not_here()
    }

    async fn remove_namespace(&self, _: &Namespace) -> Result<bool> {
        not_here()
    }

    async fn purge_namespace(&self, _: &Namespace) -> Result<bool> {
        not_here()
    }

    async fn services(&self, _: &Namespace) -> Result<Read<Vec<ServiceId>>> {
        not_here()
    }

    async fn service_stats(&self, _: &Namespace) -> Result<Read<Vec<ServiceStat>>> {
        not_here()
    }

    async fn stat(&self, _: &Namespace) -> Result<Read<Stat>> {
        not_here()
    }

    async fn set_service(&self, _: &Namespace, _: &ServiceId) -> Result<bool> {
        not_here()
    }

    async fn remove_service(&self, _: &Namespace, _: &ServiceId) -> Result<bool> {
        not_here()
    }

    async fn register(&self, _: &Namespace, _: &Registration) -> Result<Registered> {
        not_here()
    }

    async fn beat(&self, _: &Namespace, _: &[BeatKey<'_>]) -> Result<Vec<Beat>> {
        not_here()
    }

    async fn deregister(&self, _: &Namespace, _: &ServiceId, _: &str, _: Option<&Owner>) -> Result<bool> {
        not_here()
    }

    async fn set_metadata(&self, _: &Namespace, _: &ServiceId, _: &str, _: &Metadata) -> Result<bool> {
        not_here()
    }

    async fn patch_metadata(&self, _: &Namespace, _: &ServiceId, _: &str, _: &MetadataPatch) -> Result<bool> {
        not_here()
    }

    async fn add_dependency(&self, _: &Namespace, _: &ConsumerName, _: &str) -> Result<()> {
        not_here()
    }

    async fn topology(&self, _: &Namespace) -> Result<BTreeMap<String, Vec<String>>> {
        not_here()
    }
}
