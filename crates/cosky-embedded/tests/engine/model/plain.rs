//! The registry as plain maps: what the engine must do, without a disk, threads or queues.

use std::{collections::BTreeMap, time::Duration};

use cosky_core::{Beat, InstanceId, Metadata, Namespace, Owner, Registration, ServiceId};

/// The whole store. Times are those of the engine's clock.
#[derive(Debug, Default)]
pub(super) struct Plain {
    pub(super) listed: BTreeMap<Namespace, ()>,
    pub(super) spaces: BTreeMap<Namespace, Space>,
    pub(super) now: Duration,
    /// Until when reads are marked as protected.
    pub(super) protected_until: Duration,
}

#[derive(Debug, Default)]
pub(super) struct Space {
    pub(super) services: BTreeMap<ServiceId, BTreeMap<InstanceId, Entry>>,
    pub(super) gone: BTreeMap<InstanceId, Mark>,
    pub(super) topology: BTreeMap<String, Vec<String>>,
}

#[derive(Debug, Clone)]
pub(super) struct Entry {
    /// As registered last, with the metadata as edited since.
    pub(super) registered: Registration,
    pub(super) owner: Owner,
    pub(super) ttl: Duration,
    /// `None` for ever.
    pub(super) deadline: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct Mark {
    service: ServiceId,
    owner: Owner,
    ttl: Duration,
    until: Duration,
}

/// What a change does: an answer, and what watchers of the namespace are told.
pub(super) type Told = Vec<String>;

impl Plain {
    pub(super) fn space(&mut self, namespace: &Namespace) -> &mut Space {
        self.spaces.entry(namespace.clone()).or_default()
    }

    /// Lets time pass. Gives what watchers are told, by namespace, in no order within one.
    pub(super) fn advance(&mut self, time: Duration) -> BTreeMap<Namespace, Told> {
        self.now += time;
        let now = self.now;
        let mut told = BTreeMap::<_, Told>::new();
        for (namespace, space) in &mut self.spaces {
            space.gone.retain(|_, mark| mark.until > now);
            for list in space.services.values_mut() {
                list.retain(|id, entry| {
                    let lives = entry.deadline.is_none_or(|deadline| deadline > now);
                    if !lives {
                        told.entry(namespace.clone()).or_default().push(format!("expired {id}"));
                    }
                    lives
                });
            }
        }
        told
    }

    /// Stops and starts: what lives gets one TTL of grace, what is marked another two.
    pub(super) fn restart(&mut self) {
        self.protected_until = Duration::ZERO;
        for space in self.spaces.values_mut() {
            for mark in space.gone.values_mut() {
                mark.until = self.now + 2 * mark.ttl;
            }
            for entry in space.services.values_mut().flat_map(BTreeMap::values_mut) {
                if let Some(deadline) = &mut entry.deadline {
                    *deadline = self.now + entry.ttl;
                    self.protected_until = self.protected_until.max(*deadline);
                }
            }
        }
    }

    /// `None` when there is a live instance.
    pub(super) fn purge(&mut self, namespace: &Namespace) -> Option<(bool, Told)> {
        let space = self.space(namespace);
        if space.services.values().any(|list| !list.is_empty()) {
            return None;
        }
        let told: Told = space.services.keys().map(|service| format!("remove {service}")).collect();
        let any = !told.is_empty() || !space.topology.is_empty();
        space.services.clear();
        space.topology.clear();
        Some((self.listed.remove(namespace).is_some() || any, told))
    }

    pub(super) fn set_service(&mut self, namespace: &Namespace, service: &ServiceId) -> (bool, Told) {
        let services = &mut self.space(namespace).services;
        if services.contains_key(service) {
            return (false, vec![]);
        }
        services.insert(service.clone(), BTreeMap::new());
        (true, vec![format!("set {service}")])
    }

    pub(super) fn remove_service(&mut self, namespace: &Namespace, service: &ServiceId) -> (bool, Told) {
        let services = &mut self.space(namespace).services;
        match services.get(service) {
            Some(list) if !list.is_empty() => (false, vec![]),
            Some(_) => {
                services.remove(service);
                (true, vec![format!("remove {service}")])
            }
            None => (true, vec![]),
        }
    }

    /// Who will own the instance when `new` is registered: a fresh owner when `Ok(None)`, nobody when it is refused.
    pub(super) fn owner(&self, namespace: &Namespace, new: &Registration) -> Result<Option<Owner>, ()> {
        let id = new.id();
        let Some(space) = self.spaces.get(namespace) else { return Ok(new.owner.clone()) };
        let marked = space.gone.get(&id).map(|mark| &mark.owner);
        if marked.is_some() && marked == new.owner.as_ref() {
            return Err(());
        }
        let present = space.services.get(&new.service).and_then(|list| list.get(&id));
        Ok(new.owner.clone().or(present.map(|entry| entry.owner.clone())))
    }

    pub(super) fn register(
        &mut self,
        namespace: &Namespace,
        new: &Registration,
        owner: Owner,
        ttl: Duration,
    ) -> Told {
        let (_, mut told) = self.set_service(namespace, &new.service);
        let deadline = new.ephemeral.then_some(self.now + ttl);
        let id = new.id();
        let space = self.space(namespace);
        space.gone.remove(&id);
        told.push(format!("register {id}"));
        let entry = Entry { registered: new.clone(), owner, ttl, deadline };
        space.services.entry(new.service.clone()).or_default().insert(id, entry);
        told
    }

    /// What a beat is answered, and does.
    pub(super) fn beat(&mut self, namespace: &Namespace, service: &ServiceId, id: &InstanceId) -> Beat {
        let now = self.now;
        let space = self.space(namespace);
        match space.services.get_mut(service).and_then(|list| list.get_mut(id)) {
            Some(entry) => {
                if entry.deadline.is_some() {
                    entry.deadline = Some(now + entry.ttl);
                }
                Beat::Renewed(None)
            }
            // Under another service's name it was never there.
            None if space.gone.get(id).is_some_and(|mark| mark.service == *service) => Beat::Gone,
            None => Beat::Unknown,
        }
    }

    pub(super) fn deregister(
        &mut self,
        namespace: &Namespace,
        service: &ServiceId,
        id: &InstanceId,
        owner: Option<&Owner>,
    ) -> (bool, Told) {
        let now = self.now;
        let space = self.space(namespace);
        let Some(list) = space.services.get_mut(service) else { return (false, vec![]) };
        match list.get(id) {
            Some(entry) if owner.is_none_or(|owner| *owner == entry.owner) => {
                let service = service.clone();
                let mark =
                    Mark { service, owner: entry.owner.clone(), ttl: entry.ttl, until: now + 2 * entry.ttl };
                list.remove(id);
                space.gone.insert(id.clone(), mark);
                (true, vec![format!("deregister {id}")])
            }
            _ => (false, vec![]),
        }
    }

    pub(super) fn edit(
        &mut self,
        namespace: &Namespace,
        service: &ServiceId,
        id: &InstanceId,
        edit: impl FnOnce(&Metadata) -> Metadata,
    ) -> (bool, Told) {
        let list = self.space(namespace).services.get_mut(service);
        let Some(entry) = list.and_then(|list| list.get_mut(id)) else { return (false, vec![]) };
        entry.registered.metadata = edit(&entry.registered.metadata);
        (true, vec![format!("set_metadata {id}")])
    }
}
