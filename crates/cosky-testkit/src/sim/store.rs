//! The store itself, as plain data: what is registered and until when it lives. It knows nothing of servers and links.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use cosky_core::{
    Beat, BeatKey, Error, Event, Instance, InstanceId, InstanceOp, Life, Metadata, Namespace, Owner,
    Registered, Registration, Result, ServiceId, ServiceInstance, ServiceOp, StoreId, StoreState, Ttl,
};

/// What happened, and in which namespace; without one it concerns all.
pub(super) type Happened = (Option<Namespace>, Event);

/// Data that servers serve.
pub(super) struct Store {
    pub(super) id: StoreId,
    pub(super) spaces: BTreeMap<Namespace, Space>,
    default_ttl: Ttl,
    /// Until when what is missing may only be late.
    protected_until: Option<Duration>,
    /// A copy that somebody made once.
    copy: Option<(StoreId, BTreeMap<Namespace, Space>)>,
    /// Counts the openings of any store, for their ids.
    made: u64,
}

/// One namespace.
#[derive(Clone, Default)]
pub(super) struct Space {
    pub(super) listed: bool,
    pub(super) services: BTreeSet<ServiceId>,
    pub(super) instances: BTreeMap<InstanceId, Held>,
    gone: BTreeMap<InstanceId, Gone>,
    pub(super) edges: BTreeMap<String, BTreeSet<String>>,
}

/// One registered instance.
#[derive(Clone)]
pub(super) struct Held {
    pub(super) instance: Arc<Instance>,
    owner: Owner,
    ttl: Ttl,
    /// On the simulation's clock; none for a permanent one.
    pub(super) deadline: Option<Duration>,
}

/// The mark that a deregistration leaves.
#[derive(Clone)]
struct Gone {
    owner: Owner,
    until: Duration,
}

/// What a store has after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Restart {
    /// Everything that it had.
    Kept,
    /// Nothing: another store stands in its place.
    Emptied,
    /// What it had when [`super::Sim::copy_store`] was called, opened as often as then and once more; everything, when
    /// no copy is old enough to be told from it.
    Copy,
}

impl Store {
    pub(super) fn new(id: u64, default_ttl: Ttl) -> Self {
        let id = StoreId { id, opened: 1, opening: 1 };
        Self { id, spaces: BTreeMap::new(), default_ttl, protected_until: None, copy: None, made: 1 }
    }

    pub(super) fn state(&self) -> StoreState {
        if self.protected_until.is_some() { StoreState::Protected } else { StoreState::Live }
    }

    /// Keeps a copy of everything, for a restart from it.
    pub(super) fn copy(&mut self) {
        self.copy = Some((self.id, self.spaces.clone()));
    }

    /// Starts anew. What is ephemeral lives one TTL from now, and the store is protected until the longest of these is over.
    /// Tells what it came to: a copy that is too young to be told from the store is not used.
    pub(super) fn restart(&mut self, wanted: Restart, now: Duration) -> Restart {
        self.made += 1;
        let done = match (wanted, &self.copy) {
            (Restart::Copy, Some((id, spaces))) if id.id == self.id.id && id.opened < self.id.opened => {
                (self.id, self.spaces) = (*id, spaces.clone());
                self.id.opened += 1;
                Restart::Copy
            }
            (Restart::Emptied, _) => {
                self.id = StoreId { id: self.id.id.wrapping_add(self.made), opened: 1, ..self.id };
                self.spaces.clear();
                Restart::Emptied
            }
            _ => {
                self.id.opened += 1;
                Restart::Kept
            }
        };
        self.id.opening = self.made;
        let mut longest = Duration::ZERO;
        for held in self.spaces.values_mut().flat_map(|space| space.instances.values_mut()) {
            if held.deadline.is_some() {
                held.deadline = Some(now + held.ttl.duration());
                longest = longest.max(held.ttl.duration());
            }
        }
        self.protected_until = (longest > Duration::ZERO).then(|| now + longest);
        done
    }

    /// Removes what is dead, and ends the protection when its time has come.
    pub(super) fn reap(&mut self, now: Duration, told: &mut Vec<Happened>) {
        for (namespace, space) in &mut self.spaces {
            let dead = |held: &Held| held.deadline.is_some_and(|deadline| deadline <= now);
            let ids: Vec<_> =
                space.instances.iter().filter(|(_, held)| dead(held)).map(|(id, _)| id.clone()).collect();
            for id in ids {
                remove(namespace, space, &id, InstanceOp::Expired, told);
            }
            space.gone.retain(|_, gone| gone.until > now);
        }
        if self.protected_until.is_some_and(|until| until <= now) {
            self.protected_until = None;
            told.push((None, Event::State(StoreState::Live)));
        }
    }

    pub(super) fn set_service(
        &mut self,
        namespace: &Namespace,
        service: &ServiceId,
        told: &mut Vec<Happened>,
    ) -> bool {
        let new = self.space(namespace).services.insert(service.clone());
        if new {
            let event = Event::Service { op: ServiceOp::Set, service: service.clone() };
            told.push((Some(namespace.clone()), event));
        }
        new
    }

    pub(super) fn remove_service(
        &mut self,
        namespace: &Namespace,
        service: &ServiceId,
        told: &mut Vec<Happened>,
    ) -> bool {
        let space = self.space(namespace);
        if space.instances.values().any(|held| held.instance.service() == service) {
            return false;
        }
        if space.services.remove(service) {
            let event = Event::Service { op: ServiceOp::Remove, service: service.clone() };
            told.push((Some(namespace.clone()), event));
        }
        true
    }

    pub(super) fn register(
        &mut self,
        namespace: &Namespace,
        new: &Registration,
        now: Duration,
        told: &mut Vec<Happened>,
    ) -> Result<Registered> {
        let id = new.id();
        let ttl = new.ttl.unwrap_or(self.default_ttl);
        let space = self.space(namespace);
        if space.gone.get(&id).is_some_and(|gone| gone.until > now && Some(&gone.owner) == new.owner.as_ref())
        {
            return Err(Error::Gone { what: format!("instance {id}") });
        }
        space.gone.remove(&id);
        let present = space.instances.get(&id).map(|held| held.owner.clone());
        let owner = new.owner.clone().or(present).unwrap_or_else(Owner::random);
        self.set_service(namespace, &new.service, told);
        let held = Held {
            instance: Arc::new(Instance::from(new.clone())),
            owner: owner.clone(),
            ttl,
            deadline: new.ephemeral.then(|| now + ttl.duration()),
        };
        told.push((Some(namespace.clone()), changed(InstanceOp::Register, &held, now)));
        let life = held.life(now);
        self.space(namespace).instances.insert(id, held);
        Ok(Registered { life, owner })
    }

    pub(super) fn beat(&mut self, namespace: &Namespace, keys: &[BeatKey<'_>], now: Duration) -> Vec<Beat> {
        let space = self.space(namespace);
        let mut renew = |key: &BeatKey<'_>| match space.instances.get_mut(key.instance) {
            Some(held) if held.instance.service().as_str() == key.service => {
                if held.deadline.is_some() {
                    held.deadline = Some(now + held.ttl.duration());
                }
                Beat::Renewed(Some(held.life(now)))
            }
            _ if space.gone.get(key.instance).is_some_and(|gone| gone.until > now) => Beat::Gone,
            _ => Beat::Unknown,
        };
        keys.iter().map(&mut renew).collect()
    }

    pub(super) fn deregister(
        &mut self,
        namespace: &Namespace,
        service: &ServiceId,
        instance: &str,
        owner: Option<&Owner>,
        (now, told): (Duration, &mut Vec<Happened>),
    ) -> bool {
        let space = self.space(namespace);
        let Some(held) = space.instances.get(instance).filter(|held| held.instance.service() == service)
        else {
            return false;
        };
        if owner.is_some_and(|owner| *owner != held.owner) {
            return false;
        }
        let gone = Gone { owner: held.owner.clone(), until: now + 2 * held.ttl.duration() };
        let id = held.instance.id().clone();
        remove(namespace, space, &id, InstanceOp::Deregister, told);
        space.gone.insert(id, gone);
        true
    }

    /// # Errors
    /// What `edit` refuses; nothing has changed then.
    pub(super) fn edit(
        &mut self,
        namespace: &Namespace,
        service: &ServiceId,
        instance: &str,
        edit: impl FnOnce(&Metadata) -> Result<Metadata>,
        (now, told): (Duration, &mut Vec<Happened>),
    ) -> Result<bool> {
        let space = self.space(namespace);
        let Some(held) = space.instances.get_mut(instance).filter(|held| held.instance.service() == service)
        else {
            return Ok(false);
        };
        held.instance = Arc::new(held.instance.with_metadata(edit(held.instance.metadata())?));
        told.push((Some(namespace.clone()), changed(InstanceOp::SetMetadata, held, now)));
        Ok(true)
    }

    /// The instances of `service`, sorted by id.
    pub(super) fn instances(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
        now: Duration,
    ) -> Vec<ServiceInstance> {
        let held = self.spaces.get(namespace).into_iter().flat_map(|space| space.instances.values());
        held.filter(|held| held.instance.service() == service).map(|held| held.read(now)).collect()
    }

    /// How long an instance still lives, by the store's own word; what it has removed does not.
    pub(super) fn life(&self, namespace: &Namespace, instance: &InstanceId, now: Duration) -> Life {
        let held = self.spaces.get(namespace).and_then(|space| space.instances.get(instance));
        held.map_or_else(|| remaining(Duration::from_millis(1), now), |held| held.life(now))
    }

    pub(super) fn space(&mut self, namespace: &Namespace) -> &mut Space {
        self.spaces.entry(namespace.clone()).or_default()
    }
}

impl Held {
    fn life(&self, now: Duration) -> Life {
        match self.deadline {
            None => Life::Permanent,
            Some(deadline) => remaining(deadline.saturating_sub(now), now),
        }
    }

    fn read(&self, now: Duration) -> ServiceInstance {
        ServiceInstance::new(Arc::clone(&self.instance), self.life(now))
    }
}

fn remaining(remaining: Duration, now: Duration) -> Life {
    let end = super::WALL + now + remaining;
    Life::Remaining { remaining, ttl_at: i64::try_from(end.as_secs()).unwrap_or(i64::MAX) }
}

fn changed(op: InstanceOp, held: &Held, now: Duration) -> Event {
    let (service, id) = (held.instance.service().clone(), held.instance.id().clone());
    Event::Instance { op, service, id, instance: Some(held.read(now)) }
}

fn remove(
    namespace: &Namespace,
    space: &mut Space,
    id: &InstanceId,
    op: InstanceOp,
    told: &mut Vec<Happened>,
) {
    let Some(held) = space.instances.remove(id) else { return };
    let event =
        Event::Instance { op, service: held.instance.service().clone(), id: id.clone(), instance: None };
    told.push((Some(namespace.clone()), event));
}
