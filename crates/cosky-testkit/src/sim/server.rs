//! One simulated server: what it knows of the store, with a lag, and whom it tells.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use cosky_core::{
    Change, Event, Index, Instance, InstanceId, Namespace, Scope, ServiceId, ServiceInstance, ServiceOp,
    Snapshot, StoreState, digest::Digest,
};

use super::store::{Happened, Store};

/// A server process.
pub(super) struct Server {
    epoch: u64,
    /// The sequence that was given last.
    sequence: u64,
    /// How long it takes until it knows of a change of its store.
    lag: Duration,
    /// How many recent changes a watcher can resume from.
    ring_size: usize,
    /// Until when it does not run.
    pub(super) down_until: Duration,
    /// Since when it cannot reach its store, when it cannot.
    cut_off_since: Option<Duration>,
    /// What happened in the store while it could not be reached.
    missed: VecDeque<Happened>,
    /// What it will know of, by time.
    coming: VecDeque<(Duration, Published)>,
    content: BTreeMap<Namespace, Content>,
    state: StoreState,
    start: u64,
    /// The sequence of the last change that concerned every namespace.
    for_all: u64,
    ring: VecDeque<Published>,
    /// Who watches, by the number of the pipe.
    watchers: BTreeMap<u64, (Namespace, Scope)>,
}

/// A change, and the namespace that it concerns; without one it concerns all.
type Published = (Option<Namespace>, Arc<Change>);

/// What a server knows of a namespace.
#[derive(Default)]
struct Content {
    services: BTreeSet<ServiceId>,
    instances: BTreeMap<InstanceId, Arc<Instance>>,
    /// The sequence of its last change.
    last: u64,
}

/// One change for one watcher.
pub(super) struct Delivery {
    pub(super) pipe: u64,
    pub(super) at: Duration,
    pub(super) change: Arc<Change>,
}

impl Server {
    /// A server that starts now and has read everything.
    pub(super) fn start(store: &Store, (epoch, start): (u64, u64), lag: Duration, ring_size: usize) -> Self {
        let content = store.spaces.iter().map(|(namespace, space)| {
            let held = space.instances.iter();
            let content = Content {
                services: space.services.clone(),
                instances: held.map(|(id, held)| (id.clone(), Arc::clone(&held.instance))).collect(),
                last: start,
            };
            (namespace.clone(), content)
        });
        Self {
            epoch,
            sequence: start,
            lag,
            ring_size,
            down_until: Duration::ZERO,
            cut_off_since: None,
            missed: VecDeque::new(),
            coming: VecDeque::new(),
            content: content.collect(),
            state: store.state(),
            start,
            for_all: start,
            ring: VecDeque::new(),
            watchers: BTreeMap::new(),
        }
    }

    /// Something happened in the store. It is known here after the lag, or when the store can be reached again.
    pub(super) fn hear(&mut self, happened: Happened, now: Duration) -> Vec<Delivery> {
        if self.cut_off_since.is_some() {
            self.missed.push_back(happened);
            return Vec::new();
        }
        self.accept(happened, now + self.lag)
    }

    /// From now on the store cannot be reached.
    pub(super) fn cut_off(&mut self, now: Duration) -> Vec<Delivery> {
        if self.cut_off_since.replace(now).is_some() {
            return Vec::new();
        }
        self.accept((None, Event::State(StoreState::Stale)), now)
    }

    /// The store can be reached again; what was missed is read.
    pub(super) fn rejoin(&mut self, state: StoreState, now: Duration) -> Vec<Delivery> {
        if self.cut_off_since.take().is_none() {
            return Vec::new();
        }
        let missed = std::mem::take(&mut self.missed);
        let mut told: Vec<_> =
            missed.into_iter().flat_map(|happened| self.accept(happened, now + self.lag)).collect();
        told.extend(self.accept((None, Event::State(state)), now + self.lag));
        told
    }

    fn accept(&mut self, (namespace, event): Happened, at: Duration) -> Vec<Delivery> {
        let at = self.coming.back().map_or(at, |(last, _)| at.max(*last));
        self.sequence += 1;
        let index = Index { epoch: self.epoch, sequence: self.sequence };
        let change = Arc::new(Change::new(index, event));
        let watchers = self
            .watchers
            .iter()
            .filter(|(_, (watched, scope))| concerns(namespace.as_ref(), &change, watched, scope));
        let told =
            watchers.map(|(pipe, _)| Delivery { pipe: *pipe, at, change: Arc::clone(&change) }).collect();
        self.coming.push_back((at, (namespace, change)));
        told
    }

    /// Takes in what it knows of by now.
    pub(super) fn catch_up(&mut self, now: Duration) {
        while let Some((_, (namespace, change))) = self.coming.pop_front_if(|(at, _)| *at <= now) {
            if let Event::State(state) = &change.event {
                self.state = *state;
                self.for_all = change.index.sequence;
            }
            if let Some(namespace) = &namespace {
                let content = self.content.entry(namespace.clone()).or_default();
                content.last = change.index.sequence;
                content.apply(&change.event);
            }
            if self.ring.len() == self.ring_size {
                self.ring.pop_front();
            }
            self.ring.push_back((namespace, change));
        }
    }

    /// Adds a watcher, and gives what it is told first, with what is on its way already.
    pub(super) fn subscribe(
        &mut self,
        pipe: u64,
        (namespace, scope, from): (&Namespace, Scope, Option<Index>),
        store: &Store,
        now: Duration,
    ) -> Vec<Delivery> {
        self.catch_up(now);
        let delivery = |at, change: &Arc<Change>| Delivery { pipe, at, change: Arc::clone(change) };
        let known = self.ring.back().map_or(self.start, |(_, change)| change.index.sequence);
        let floor = self.ring.front().map_or(known, |(_, change)| change.index.sequence - 1);
        let resumes = |from: &Index| from.epoch == self.epoch && (floor..=known).contains(&from.sequence);
        let mut first: Vec<_> = match from.filter(resumes) {
            Some(from) => {
                let after = self.ring.iter().filter(|(of, change)| {
                    change.index.sequence > from.sequence && concerns(of.as_ref(), change, namespace, &scope)
                });
                after.map(|(_, change)| delivery(now, change)).collect()
            }
            None => {
                let snapshot = Event::Snapshot(self.snapshot(namespace, &scope, store, now));
                vec![delivery(now, &Arc::new(Change::new(self.index(namespace), snapshot)))]
            }
        };
        let coming = self.coming.iter();
        let coming = coming.filter(|(_, (of, change))| concerns(of.as_ref(), change, namespace, &scope));
        first.extend(coming.map(|(at, (_, change))| delivery(*at, change)));
        self.watchers.insert(pipe, (namespace.clone(), scope));
        first
    }

    pub(super) fn unsubscribe(&mut self, pipe: u64) {
        self.watchers.remove(&pipe);
    }

    /// All watchers, which lose it.
    pub(super) fn watchers(&self) -> impl Iterator<Item = u64> {
        self.watchers.keys().copied()
    }

    fn snapshot(&self, namespace: &Namespace, scope: &Scope, store: &Store, now: Duration) -> Snapshot {
        let names: Vec<ServiceId> = match scope {
            Scope::Services(services) => services.iter().cloned().collect(),
            Scope::All => self.services(namespace),
        };
        let list = |service: ServiceId| {
            let instances = self.instances(namespace, &service, store, now);
            (service, instances)
        };
        Snapshot {
            services: names.into_iter().map(list).collect(),
            state: self.state(),
            store: Some(store.id),
        }
    }

    pub(super) fn services(&self, namespace: &Namespace) -> Vec<ServiceId> {
        self.content
            .get(namespace)
            .map(|content| content.services.iter().cloned().collect())
            .unwrap_or_default()
    }

    pub(super) fn instances(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
        store: &Store,
        now: Duration,
    ) -> Vec<ServiceInstance> {
        let known = self.content.get(namespace).into_iter().flat_map(|content| content.instances.values());
        let of_service = known.filter(|instance| instance.service() == service);
        let read = |instance: &Arc<Instance>| {
            ServiceInstance::new(Arc::clone(instance), store.life(namespace, instance.id(), now))
        };
        of_service.map(read).collect()
    }

    pub(super) fn digest(&self, namespace: &Namespace, scope: &Scope) -> u64 {
        let known = self.content.get(namespace).into_iter().flat_map(|content| content.instances.values());
        Digest::of(known.map(|instance| &**instance).filter(|instance| scope.covers(instance.service())))
            .get()
    }

    pub(super) fn index(&self, namespace: &Namespace) -> Index {
        let last = self.content.get(namespace).map_or(self.start, |content| content.last);
        Index { epoch: self.epoch, sequence: last.max(self.for_all) }
    }

    /// The place of the last change that anybody was told.
    pub(super) fn last_index(&self) -> Index {
        let sequence = self.ring.back().map_or(self.start, |(_, change)| change.index.sequence);
        Index { epoch: self.epoch, sequence }
    }

    pub(super) fn state(&self) -> StoreState {
        if self.cut_off_since.is_some() { StoreState::Stale } else { self.state }
    }

    /// How old its answers are.
    pub(super) fn age(&self, now: Duration) -> Duration {
        self.cut_off_since.map_or(Duration::ZERO, |since| now - since)
    }

    pub(super) fn is_cut_off(&self) -> bool {
        self.cut_off_since.is_some()
    }
}

impl Content {
    fn apply(&mut self, event: &Event) {
        match event {
            Event::Instance { instance: Some(instance), id, .. } => {
                self.instances.insert(id.clone(), Arc::clone(instance.instance()));
            }
            Event::Instance { instance: None, id, .. } => drop(self.instances.remove(id)),
            Event::Service { op: ServiceOp::Set, service } => drop(self.services.insert(service.clone())),
            Event::Service { op: ServiceOp::Remove, service } => drop(self.services.remove(service)),
            _ => {}
        }
    }
}

/// Whether a change concerns a watcher.
fn concerns(of: Option<&Namespace>, change: &Change, watched: &Namespace, scope: &Scope) -> bool {
    of.is_none_or(|of| of == watched) && change.event.service().is_none_or(|service| scope.covers(service))
}
