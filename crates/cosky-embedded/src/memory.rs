//! What readers see: every namespace in memory, changed by the writer thread alone, after the commit.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use cosky_core::{
    Beat, BeatKey, Clock, ConsumerName, Index, Instance, InstanceId, Life, Namespace, Owner, Scope,
    ServiceId, ServiceInstance, ServiceStat, Snapshot, Stat, StoreId, StoreState, Ttl, UserName,
    account::{Account, ApiToken},
    digest::Digest,
};

use crate::{
    deadline::{Beaten, Deadline},
    members::Members,
    row::{self, GoneRow, InstanceRow, Key},
};

type Map<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// An instance with what the engine knows of it.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) namespace: Namespace,
    pub(crate) instance: Arc<Instance>,
    pub(crate) ttl: Ttl,
    pub(crate) owner: Owner,
    deadline: Deadline,
}

/// That an instance was deregistered, and until when that is remembered (milliseconds on the engine's clock).
#[derive(Debug, Clone)]
pub(crate) struct Gone {
    pub(crate) owner: Owner,
    pub(crate) ttl: Ttl,
    pub(crate) until: u64,
}

/// One namespace's data.
#[derive(Default)]
struct Space {
    /// Listed services with their instances.
    services: BTreeMap<ServiceId, Members>,
    by_id: Map<InstanceId, Arc<Slot>>,
    gone: Map<InstanceId, Gone>,
    dependencies: BTreeMap<ConsumerName, BTreeMap<ConsumerName, u64>>,
    /// The sequence of the last change here.
    last: u64,
}

/// Everything.
pub(crate) struct Memory {
    epoch: u64,
    /// Which data this is.
    pub(crate) store: StoreId,
    /// The sequence of the last change anywhere.
    pub(crate) sequence: u64,
    listed: BTreeSet<Namespace>,
    spaces: Map<Namespace, Space>,
    /// The highest last sequence of a namespace whose data is all gone.
    emptied: u64,
    /// The sequence of the last change that concerns all namespaces.
    for_all: u64,
    /// All marks in the order in which they end, to drop them then, or the first ones earlier when there are too many.
    marks: BTreeSet<(u64, Namespace, InstanceId)>,
    /// Until when what is missing may only be late; milliseconds on the engine's clock.
    protected_until: u64,
    pub(crate) accounts: BTreeMap<UserName, Account>,
    pub(crate) api_tokens: BTreeMap<String, ApiToken>,
    pub(crate) used_refresh: BTreeMap<String, u64>,
    pub(crate) signing_key: Option<Vec<u8>>,
    /// How many instances, services and dependencies there are in all namespaces.
    pub(crate) instances: usize,
    pub(crate) services: usize,
    pub(crate) dependencies: usize,
}

/// Milliseconds on the engine's clock.
pub(crate) fn millis(now: Duration) -> u64 {
    cosky_core::wire::millis(now)
}

impl Slot {
    pub(crate) fn new(namespace: Namespace, instance: Instance, ttl: Ttl, owner: Owner) -> Self {
        Self { namespace, instance: Arc::new(instance), ttl, owner, deadline: Deadline::never() }
    }

    /// When it expires without a beat; `None` when never.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.deadline.get()
    }

    /// Lets it live one TTL from now, unless it lives for ever.
    pub(crate) fn renew(&self, now: u64) {
        self.deadline.set(self.instance.is_ephemeral().then(|| now + millis(self.ttl.duration())));
    }

    /// Renews on behalf of a beat, under the read lock. A permanent instance is left as it is; one that is about to be
    /// removed is unknown already. `now_ms` is `now` in whole milliseconds.
    fn beat(&self, now_ms: u64, now: Duration, unix: Duration) -> Beat {
        match self.deadline.beat(now_ms + u64::from(self.ttl.seconds()) * 1000) {
            Beaten::Renewed => Beat::Renewed(Some(self.life(now, unix))),
            Beaten::Permanent => Beat::Renewed(Some(Life::Permanent)),
            Beaten::Dying => Beat::Unknown,
        }
    }

    /// Decides that it has expired, if it has, under the write lock; from then on beats are answered as unknown.
    pub(crate) fn expire(&self, now: u64) -> bool {
        self.deadline.expire(now)
    }

    /// Takes over the life of the slot that this one replaces.
    pub(crate) fn inherit(&self, old: &Self) {
        self.deadline.set(old.deadline.get());
    }

    fn life(&self, now: Duration, unix: Duration) -> Life {
        match self.deadline() {
            None => Life::Permanent,
            Some(deadline) => {
                let remaining = Duration::from_millis(deadline).saturating_sub(now);
                let end = unix + remaining + Duration::from_millis(500);
                Life::Remaining { remaining, ttl_at: i64::try_from(end.as_secs()).unwrap_or(i64::MAX) }
            }
        }
    }
}

impl Memory {
    /// Nothing, in a new epoch of a new store.
    pub(crate) fn new() -> Self {
        Self {
            epoch: rand::random(),
            store: StoreId::random(),
            sequence: 0,
            listed: BTreeSet::new(),
            spaces: Map::default(),
            emptied: 0,
            for_all: 0,
            marks: BTreeSet::new(),
            protected_until: 0,
            accounts: BTreeMap::new(),
            api_tokens: BTreeMap::new(),
            used_refresh: BTreeMap::new(),
            signing_key: None,
            instances: 0,
            services: 0,
            dependencies: 0,
        }
    }

    /// The index of the last change in `namespace`.
    pub(crate) fn index(&self, namespace: &Namespace) -> Index {
        let last = self.spaces.get(namespace).map_or(self.emptied, |space| space.last);
        Index { epoch: self.epoch, sequence: last.max(self.for_all) }
    }

    /// How far reads can be trusted.
    pub(crate) fn state(&self, now: Duration) -> StoreState {
        if millis(now) < self.protected_until { StoreState::Protected } else { StoreState::Live }
    }

    /// Marks reads as protected until `until`, unless they are for longer.
    pub(crate) fn protect(&mut self, until: u64) {
        self.protected_until = self.protected_until.max(until);
    }

    pub(crate) fn namespaces(&self) -> &BTreeSet<Namespace> {
        &self.listed
    }

    pub(crate) fn list_namespace(&mut self, namespace: Namespace) {
        self.listed.insert(namespace);
    }

    pub(crate) fn unlist_namespace(&mut self, namespace: &Namespace) {
        self.listed.remove(namespace);
    }

    /// Listed services, sorted.
    pub(crate) fn service_ids(&self, namespace: &Namespace) -> Vec<ServiceId> {
        self.spaces.get(namespace).map_or_else(Vec::new, |space| space.services.keys().cloned().collect())
    }

    /// The names as memory has them already, so that instances share their text.
    pub(crate) fn shared_names(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
    ) -> Option<(Namespace, ServiceId)> {
        let (namespace, space) = self.spaces.get_key_value(namespace)?;
        Some((namespace.clone(), space.services.get_key_value(service)?.0.clone()))
    }

    pub(crate) fn has_service(&self, namespace: &Namespace, service: &ServiceId) -> bool {
        self.spaces.get(namespace).is_some_and(|space| space.services.contains_key(service))
    }

    pub(crate) fn service_stats(&self, namespace: &Namespace) -> Vec<ServiceStat> {
        let count = |(service, members): (&ServiceId, &Members)| ServiceStat {
            service: service.clone(),
            instances: members.slots().len() as u64,
        };
        self.spaces.get(namespace).map_or_else(Vec::new, |space| space.services.iter().map(count).collect())
    }

    pub(crate) fn stat(&self, namespace: &Namespace) -> Stat {
        let Some(space) = self.spaces.get(namespace) else {
            return Stat { namespaces: self.listed.len() as u64, ..Stat::default() };
        };
        Stat {
            namespaces: self.listed.len() as u64,
            services: space.services.len() as u64,
            healthy_services: space.services.values().filter(|members| !members.slots().is_empty()).count()
                as u64,
            instances: space.by_id.len() as u64,
            configs: 0,
        }
    }

    pub(crate) fn instance_counts(&self) -> BTreeMap<String, u64> {
        let count =
            |(namespace, space): (&Namespace, &Space)| (namespace.to_string(), space.by_id.len() as u64);
        self.spaces.iter().map(count).collect()
    }

    pub(crate) fn slot(&self, namespace: &Namespace, instance: &str) -> Option<&Arc<Slot>> {
        self.spaces.get(namespace)?.by_id.get(instance)
    }

    pub(crate) fn gone(&self, namespace: &Namespace, instance: &str) -> Option<&Gone> {
        self.spaces.get(namespace)?.gone.get(instance)
    }

    /// A service's instances, sorted by id.
    pub(crate) fn instances(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
        clock: &dyn Clock,
    ) -> Vec<ServiceInstance> {
        let members = self.spaces.get(namespace).and_then(|space| space.services.get(service));
        members.map_or_else(Vec::new, |members| read(members.slots(), clock.now(), clock.unix()))
    }

    pub(crate) fn instance(&self, slot: &Slot, clock: &dyn Clock) -> ServiceInstance {
        ServiceInstance::new(Arc::clone(&slot.instance), slot.life(clock.now(), clock.unix()))
    }

    pub(crate) fn topology(&self, namespace: &Namespace) -> BTreeMap<String, Vec<String>> {
        let edges = self.spaces.get(namespace).map(|space| space.dependencies.iter()).into_iter().flatten();
        edges
            .map(|(c, producers)| (c.to_string(), producers.keys().map(ToString::to_string).collect()))
            .collect()
    }

    pub(crate) fn snapshot(&self, namespace: &Namespace, scope: &Scope, clock: &dyn Clock) -> Snapshot {
        let (now, unix) = (clock.now(), clock.unix());
        let space = self.spaces.get(namespace);
        let services = match scope {
            Scope::All => {
                let all = space.map(|space| space.services.iter()).into_iter().flatten();
                all.map(|(service, members)| (service.clone(), read(members.slots(), now, unix))).collect()
            }
            Scope::Services(services) => {
                let one = |service: &ServiceId| {
                    let members = space.and_then(|space| space.services.get(service));
                    (service.clone(), read(members.map_or(&[], Members::slots), now, unix))
                };
                services.iter().map(one).collect()
            }
        };
        Snapshot { services, state: self.state(now), store: Some(self.store) }
    }

    /// The digest of the instances that `scope` covers.
    pub(crate) fn digest(&self, namespace: &Namespace, scope: &Scope) -> u64 {
        let Some(space) = self.spaces.get(namespace) else { return Digest::default().get() };
        let mut digest = Digest::default();
        match scope {
            Scope::All => space.services.values().for_each(|members| digest.add(members.digest())),
            Scope::Services(services) => {
                let known = services.iter().filter_map(|service| space.services.get(service));
                known.for_each(|members| digest.add(members.digest()));
            }
        }
        digest.get()
    }

    /// Renews each of `keys`. First all are looked up, then all are renewed: with a hundred thousand instances nearly
    /// every step misses the processor's caches, and it waits for many misses at once only in a short loop.
    pub(crate) fn beat(
        &self,
        namespace: &Namespace,
        keys: &[BeatKey<'_>],
        now: Duration,
        unix: Duration,
    ) -> Vec<Beat> {
        let Some(space) = self.spaces.get(namespace) else { return vec![Beat::Unknown; keys.len()] };
        let now_ms = millis(now);
        let found: Vec<Option<&Arc<Slot>>> = keys.iter().map(|key| space.by_id.get(key.instance)).collect();
        let one = |(key, slot): (&BeatKey<'_>, Option<&Arc<Slot>>)| {
            // An id begins with its service, so the instance itself need not be touched.
            if !key.instance.strip_prefix(key.service).is_some_and(|address| address.starts_with('@')) {
                return Beat::Unknown;
            }
            match slot {
                Some(slot) => slot.beat(now_ms, now, unix),
                None if space.gone.get(key.instance).is_some_and(|gone| gone.until > now_ms) => Beat::Gone,
                None => Beat::Unknown,
            }
        };
        keys.iter().zip(found).map(one).collect()
    }

    /// Gives every ephemeral instance at least one TTL from `now`, and protects reads for as long as the longest.
    pub(crate) fn grace(&mut self, now: u64) {
        let slots = self.spaces.values().flat_map(|space| space.by_id.values());
        let longest = slots.filter(|slot| slot.instance.is_ephemeral()).map(|slot| {
            slot.renew(now);
            slot.deadline().unwrap_or(now)
        });
        if let Some(longest) = longest.max() {
            self.protect(longest);
        }
    }

    /// Moves every deadline on by so many milliseconds.
    pub(crate) fn postpone(&mut self, by: u64) {
        for slot in self.spaces.values().flat_map(|space| space.by_id.values()) {
            slot.deadline.postpone(by);
        }
    }

    /// All ephemeral slots with their deadlines.
    pub(crate) fn deadlines(&self) -> impl Iterator<Item = (u64, Arc<Slot>)> {
        let slots = self.spaces.values().flat_map(|space| space.by_id.values());
        slots.filter_map(|slot| Some((slot.deadline()?, Arc::clone(slot))))
    }

    /// Takes the next sequence number, for a change in `namespace` or, without one, in all.
    pub(crate) fn advance(&mut self, namespace: Option<&Namespace>) -> Index {
        self.sequence += 1;
        match namespace.map(|namespace| self.spaces.get_mut(namespace)) {
            None => self.for_all = self.sequence,
            Some(Some(space)) => space.last = self.sequence,
            Some(None) => self.emptied = self.sequence,
        }
        Index { epoch: self.epoch, sequence: self.sequence }
    }

    pub(crate) fn list_service(&mut self, namespace: &Namespace, service: &ServiceId) {
        let space = space(&mut self.spaces, namespace, self.emptied);
        if let std::collections::btree_map::Entry::Vacant(vacant) = space.services.entry(service.clone()) {
            vacant.insert(Members::default());
            self.services += 1;
        }
    }

    pub(crate) fn unlist_service(&mut self, namespace: &Namespace, service: &ServiceId) {
        if self.spaces.get_mut(namespace).is_some_and(|space| space.services.remove(service).is_some()) {
            self.services -= 1;
        }
        self.forget_when_empty(namespace);
    }

    /// Puts `slot` in the place of the instance of the same id, if there is one.
    pub(crate) fn put(&mut self, slot: Arc<Slot>) {
        let space = space(&mut self.spaces, &slot.namespace, self.emptied);
        // When the file is loaded, instances come before their services.
        let members = space.services.entry(slot.instance.service().clone()).or_insert_with(|| {
            self.services += 1;
            Members::default()
        });
        members.put(Arc::clone(&slot));
        if space.by_id.insert(slot.instance.id().clone(), slot).is_none() {
            self.instances += 1;
        }
    }

    pub(crate) fn remove(&mut self, namespace: &Namespace, service: &ServiceId, instance: &InstanceId) {
        let Some(space) = self.spaces.get_mut(namespace) else { return };
        if space.by_id.remove(instance).is_some() {
            self.instances -= 1;
        }
        if let Some(members) = space.services.get_mut(service) {
            members.remove(instance);
        }
        self.forget_when_empty(namespace);
    }

    pub(crate) fn mark(&mut self, namespace: &Namespace, instance: &InstanceId, gone: Gone) {
        let until = gone.until;
        let space = space(&mut self.spaces, namespace, self.emptied);
        if let Some(old) = space.gone.insert(instance.clone(), gone) {
            self.marks.remove(&(old.until, namespace.clone(), instance.clone()));
        }
        self.marks.insert((until, namespace.clone(), instance.clone()));
    }

    pub(crate) fn unmark(&mut self, namespace: &Namespace, instance: &InstanceId) {
        if let Some(space) = self.spaces.get_mut(namespace)
            && let Some(old) = space.gone.remove(instance)
        {
            self.marks.remove(&(old.until, namespace.clone(), instance.clone()));
        }
        self.forget_when_empty(namespace);
    }

    /// Marks to drop now, at most `most`: those that are over, and those that end first beyond `limit`.
    pub(crate) fn stale_marks(&self, now: u64, limit: usize, most: usize) -> Vec<(Namespace, InstanceId)> {
        let surplus = self.marks.len().saturating_sub(limit);
        let stale =
            self.marks.iter().enumerate().take_while(|(at, (until, ..))| *at < surplus || *until <= now);
        stale.take(most).map(|(_, (_, namespace, instance))| (namespace.clone(), instance.clone())).collect()
    }

    pub(crate) fn add_dependency(
        &mut self,
        namespace: &Namespace,
        consumer: ConsumerName,
        producer: ConsumerName,
        at: u64,
    ) {
        let space = space(&mut self.spaces, namespace, self.emptied);
        if space.dependencies.entry(consumer).or_default().insert(producer, at).is_none() {
            self.dependencies += 1;
        }
    }

    pub(crate) fn dependency(&self, namespace: &Namespace, consumer: &str, producer: &str) -> Option<u64> {
        self.spaces.get(namespace)?.dependencies.get(consumer)?.get(producer).copied()
    }

    pub(crate) fn clear_dependencies(&mut self, namespace: &Namespace) {
        if let Some(space) = self.spaces.get_mut(namespace) {
            self.dependencies -= space.dependencies.values().map(BTreeMap::len).sum::<usize>();
            space.dependencies.clear();
        }
        self.forget_when_empty(namespace);
    }

    /// The value that a row must have in the file; `None` when it must not be there.
    pub(crate) fn row(&self, key: &Key) -> Option<Vec<u8>> {
        match key {
            Key::Namespace(namespace) => self.listed.contains(namespace).then(Vec::new),
            Key::Service(namespace, service) => self.has_service(namespace, service).then(Vec::new),
            Key::Instance(namespace, service, id) => {
                let slot =
                    self.slot(namespace, id.as_str()).filter(|slot| slot.instance.service() == service)?;
                Some(row::encode(&InstanceRow::new(&slot.instance, slot.ttl, &slot.owner)))
            }
            Key::Gone(namespace, id) => {
                let gone = self.gone(namespace, id.as_str())?;
                Some(row::encode(&GoneRow::new(&gone.owner, gone.ttl)))
            }
            Key::Dependency(namespace, consumer, producer) => {
                self.dependency(namespace, consumer.as_str(), producer.as_str()).map(|at| row::encode(&at))
            }
            Key::Account(user) => self.accounts.get(user).map(row::account),
            Key::ApiToken(id) => self.api_tokens.get(id).map(row::api_token),
            Key::UsedRefresh(id) => self.used_refresh.get(id).map(row::encode),
            Key::Signing => self.signing_key.as_ref().map(row::encode),
        }
    }

    /// A namespace without data costs nothing; its last sequence lives on in `emptied`.
    fn forget_when_empty(&mut self, namespace: &Namespace) {
        let empty = |space: &Space| {
            space.services.is_empty()
                && space.by_id.is_empty()
                && space.gone.is_empty()
                && space.dependencies.is_empty()
        };
        if self.spaces.get(namespace).is_some_and(empty)
            && let Some(space) = self.spaces.remove(namespace)
        {
            self.emptied = self.emptied.max(space.last);
        }
    }
}

/// The namespace's data. When there was none, its last change is the last that any emptied namespace had.
fn space<'a>(spaces: &'a mut Map<Namespace, Space>, namespace: &Namespace, last: u64) -> &'a mut Space {
    spaces.entry(namespace.clone()).or_insert_with(|| Space { last, ..Space::default() })
}

fn read(list: &[Arc<Slot>], now: Duration, unix: Duration) -> Vec<ServiceInstance> {
    list.iter().map(|slot| ServiceInstance::new(Arc::clone(&slot.instance), slot.life(now, unix))).collect()
}
