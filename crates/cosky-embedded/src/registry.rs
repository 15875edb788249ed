//! The registry: reads from memory, writes through the writer thread.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use cosky_core::{
    Beat, BeatKey, ConsumerName, Error, Index, Instance, InstanceId, InstanceOp, Life, Metadata,
    MetadataPatch, Namespace, Owner, Read, Registered, Registration, Registry, Result, Scope, ServiceId,
    ServiceInstance, ServiceStat, Stat, WatchStream, engine::check_batch,
};

use crate::{
    Embedded,
    batch::{Batch, Effect, PRESENT, time},
    memory::{Gone, Memory, Slot, millis},
    row::{self, GoneRow, InstanceRow, Key, Row},
};

/// Services that one step of a purge removes.
const PURGE_STEP: usize = 500;

#[async_trait]
impl Registry for Embedded {
    async fn namespaces(&self) -> Result<Vec<Namespace>> {
        Ok(self.shared.read().namespaces().iter().cloned().collect())
    }

    async fn add_namespace(&self, namespace: &Namespace) -> Result<bool> {
        let namespace = namespace.clone();
        self.write(move |batch| {
            let key = Key::Namespace(namespace.clone());
            if batch.has(&key)? {
                return Ok(false);
            }
            let count = batch.memory.namespaces().len() + batch.growth.namespaces;
            batch.check_limit("namespaces", count, batch.limits.namespaces)?;
            batch.growth.namespaces += 1;
            batch.put(key, PRESENT)?;
            batch.effect(Effect::ListNamespace(namespace));
            Ok(true)
        })
        .await
    }

    async fn remove_namespace(&self, namespace: &Namespace) -> Result<bool> {
        let namespace = namespace.clone();
        self.write(move |batch| unlist_namespace(batch, namespace)).await
    }

    async fn purge_namespace(&self, namespace: &Namespace) -> Result<bool> {
        let mut any = false;
        loop {
            let namespace = namespace.clone();
            let step = self.write(move |batch| purge(batch, namespace)).await?;
            any |= step.removed;
            if step.done {
                return Ok(any);
            }
        }
    }

    async fn services(&self, namespace: &Namespace) -> Result<Read<Vec<ServiceId>>> {
        Ok(self.read(namespace, |memory| memory.service_ids(namespace)))
    }

    async fn service_stats(&self, namespace: &Namespace) -> Result<Read<Vec<ServiceStat>>> {
        Ok(self.read(namespace, |memory| memory.service_stats(namespace)))
    }

    async fn stat(&self, namespace: &Namespace) -> Result<Read<Stat>> {
        Ok(self.read(namespace, |memory| memory.stat(namespace)))
    }

    async fn set_service(&self, namespace: &Namespace, service: &ServiceId) -> Result<bool> {
        let (namespace, service) = (namespace.clone(), service.clone());
        self.write(move |batch| {
            let new = check_service(batch, &namespace, &service)?;
            if new {
                list_service(batch, namespace, service)?;
            }
            Ok(new)
        })
        .await
    }

    async fn remove_service(&self, namespace: &Namespace, service: &ServiceId) -> Result<bool> {
        let (namespace, service) = (namespace.clone(), service.clone());
        self.write(move |batch| remove_service(batch, namespace, service)).await
    }

    async fn register(&self, namespace: &Namespace, new: &Registration) -> Result<Registered> {
        let (namespace, new) = (namespace.clone(), new.clone());
        let ttl = new.ttl.unwrap_or(self.shared.default_ttl);
        let ephemeral = new.ephemeral;
        let owner = self.write(move |batch| register(batch, namespace, new, ttl)).await?;
        let end = self.shared.clock.unix() + ttl.duration();
        let life = if ephemeral {
            Life::Remaining {
                remaining: ttl.duration(),
                ttl_at: i64::try_from(end.as_secs()).unwrap_or(i64::MAX),
            }
        } else {
            Life::Permanent
        };
        Ok(Registered { life, owner })
    }

    async fn beat(&self, namespace: &Namespace, keys: &[BeatKey<'_>]) -> Result<Vec<Beat>> {
        check_batch(keys.len())?;
        let (now, unix) = (self.shared.clock.now(), self.shared.clock.unix());
        Ok(self.shared.read().beat(namespace, keys, now, unix))
    }

    async fn deregister(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
        instance: &str,
        owner: Option<&Owner>,
    ) -> Result<bool> {
        let (namespace, service, owner) = (namespace.clone(), service.clone(), owner.cloned());
        let instance = InstanceId::stored(instance);
        self.write(move |batch| deregister(batch, namespace, service, instance, owner)).await
    }

    async fn set_metadata(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
        instance: &str,
        metadata: &Metadata,
    ) -> Result<bool> {
        let metadata = metadata.clone();
        self.edit(namespace, service, instance, move |_| Ok(metadata)).await
    }

    async fn patch_metadata(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
        instance: &str,
        patch: &MetadataPatch,
    ) -> Result<bool> {
        let patch = patch.clone();
        self.edit(namespace, service, instance, move |old| old.patched(&patch)).await
    }

    async fn instances(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
    ) -> Result<Read<Vec<ServiceInstance>>> {
        Ok(self.read(namespace, |memory| memory.instances(namespace, service, &*self.shared.clock)))
    }

    async fn instance(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
        instance: &str,
    ) -> Result<Read<Option<ServiceInstance>>> {
        Ok(self.read(namespace, |memory| {
            let slot = memory.slot(namespace, instance).filter(|slot| slot.instance.service() == service)?;
            Some(memory.instance(slot, &*self.shared.clock))
        }))
    }

    async fn digest(&self, namespace: &Namespace, scope: &Scope) -> Result<Read<u64>> {
        Ok(self.read(namespace, |memory| memory.digest(namespace, scope)))
    }

    async fn add_dependency(
        &self,
        namespace: &Namespace,
        consumer: &ConsumerName,
        producer: &str,
    ) -> Result<()> {
        let producer = ConsumerName::new(producer)?;
        if *consumer == producer
            || self.shared.read().dependency(namespace, consumer.as_str(), producer.as_str()).is_some()
        {
            return Ok(());
        }
        let (namespace, consumer) = (namespace.clone(), consumer.clone());
        self.write(move |batch| {
            let key = Key::Dependency(namespace.clone(), consumer.clone(), producer.clone());
            if batch.has(&key)? {
                return Ok(());
            }
            let count = batch.memory.dependencies + batch.growth.dependencies;
            batch.check_limit("dependencies", count, batch.limits.dependencies)?;
            batch.growth.dependencies += 1;
            let now = batch.unix;
            batch.put(key, &time(now))?;
            batch.effect(Effect::AddDependency(namespace, consumer, producer, now));
            Ok(())
        })
        .await
    }

    async fn topology(&self, namespace: &Namespace) -> Result<BTreeMap<String, Vec<String>>> {
        Ok(self.shared.read().topology(namespace))
    }

    async fn watch(&self, namespace: &Namespace, scope: Scope, from: Option<Index>) -> Result<WatchStream> {
        // The hub is locked first: what is applied to memory meanwhile cannot be published before the watcher is in.
        let mut hub = self.shared.hub();
        let memory = self.shared.read();
        let watch = hub.subscribe(&self.shared, &memory, namespace, scope, from)?;
        Ok(Box::pin(watch))
    }
}

impl Embedded {
    fn read<T>(&self, namespace: &Namespace, read: impl FnOnce(&Memory) -> T) -> Read<T> {
        let memory = self.shared.read();
        Read {
            value: read(&memory),
            index: memory.index(namespace),
            age: Duration::ZERO,
            state: memory.state(self.shared.clock.now()),
        }
    }

    async fn edit(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
        instance: &str,
        edit: impl FnOnce(&Metadata) -> Result<Metadata> + Send + 'static,
    ) -> Result<bool> {
        let (namespace, service, id) = (namespace.clone(), service.clone(), InstanceId::stored(instance));
        self.write(move |batch| {
            let key = Key::Instance(namespace.clone(), service, id);
            let Some(Row::Instance(_, instance, ttl, owner)) = batch.row(&key)? else { return Ok(false) };
            let instance = instance.with_metadata(edit(instance.metadata())?);
            batch.put(key, &row::encode(&InstanceRow::new(&instance, ttl, &owner)))?;
            batch.effect(Effect::SetMetadata(Arc::new(Slot::new(namespace, instance, ttl, owner))));
            Ok(true)
        })
        .await
    }
}

fn unlist_namespace(batch: &mut Batch<'_>, namespace: Namespace) -> Result<bool> {
    let listed = batch.delete(Key::Namespace(namespace.clone()))?;
    if listed {
        batch.effect(Effect::UnlistNamespace(namespace));
    }
    Ok(listed)
}

/// Whether `service` would be new in the list, and may be added.
fn check_service(batch: &mut Batch<'_>, namespace: &Namespace, service: &ServiceId) -> Result<bool> {
    if batch.has(&Key::Service(namespace.clone(), service.clone()))? {
        return Ok(false);
    }
    batch.check_limit("services", batch.memory.services + batch.growth.services, batch.limits.services)?;
    Ok(true)
}

fn list_service(batch: &mut Batch<'_>, namespace: Namespace, service: ServiceId) -> Result<()> {
    batch.growth.services += 1;
    batch.put(Key::Service(namespace.clone(), service.clone()), PRESENT)?;
    batch.effect(Effect::SetService(namespace, service));
    Ok(())
}

/// Whether a service has a member. Whatever was dead was removed before this batch's requests.
fn has_instances(batch: &mut Batch<'_>, namespace: &Namespace, service: &ServiceId) -> Result<bool> {
    Ok(!batch.keys(&Key::instances_of(namespace, service), 1)?.is_empty())
}

fn remove_service(batch: &mut Batch<'_>, namespace: Namespace, service: ServiceId) -> Result<bool> {
    if has_instances(batch, &namespace, &service)? {
        return Ok(false);
    }
    if batch.delete(Key::Service(namespace.clone(), service.clone()))? {
        batch.effect(Effect::RemoveService(namespace, service));
    }
    Ok(true)
}

/// What one step of a purge did.
struct PurgeStep {
    removed: bool,
    done: bool,
}

fn purge(batch: &mut Batch<'_>, namespace: Namespace) -> Result<PurgeStep> {
    // Whatever was dead was removed before this batch's requests. All services are looked at before the first goes.
    let alive = Key::instances_in(&namespace);
    if let Some(key) = batch.keys(&alive, 1)?.first() {
        let service = key[alive.len()..].split('\0').next().unwrap_or_default();
        let reason = format!("namespace {namespace} has live instances of {service}; deregister them first");
        return Err(Error::Conflict { reason });
    }
    let prefix = Key::services_of(&namespace);
    let services = batch.keys(&prefix, PURGE_STEP)?;
    let mut left = Vec::new();
    for key in &services {
        left.push(ServiceId::new(&key[prefix.len()..])?);
    }
    for service in left {
        remove_service(batch, namespace.clone(), service)?;
    }
    if services.len() == PURGE_STEP {
        return Ok(PurgeStep { removed: true, done: false });
    }
    let mut removed = !services.is_empty();
    let edges = batch.keys(&Key::dependencies_of(&namespace), usize::MAX)?;
    for edge in edges {
        let mut names = edge.split('\0').skip(2);
        let (Some(consumer), Some(producer)) = (names.next(), names.next()) else { continue };
        let key =
            Key::Dependency(namespace.clone(), ConsumerName::new(consumer)?, ConsumerName::new(producer)?);
        removed |= batch.delete(key)?;
    }
    batch.effect(Effect::ClearDependencies(namespace.clone()));
    removed |= unlist_namespace(batch, namespace)?;
    Ok(PurgeStep { removed, done: true })
}

fn register(
    batch: &mut Batch<'_>,
    mut namespace: Namespace,
    mut new: Registration,
    ttl: cosky_core::Ttl,
) -> Result<Owner> {
    if let Some(shared) = batch.memory.shared_names(&namespace, &new.service) {
        (namespace, new.service) = shared;
    }
    let id = new.id();
    let key = Key::Instance(namespace.clone(), new.service.clone(), id.clone());
    let gone_key = Key::Gone(namespace.clone(), id.clone());
    let gone = batch.row(&gone_key)?;
    if let (Some(Row::Gone(_, _, by, _)), Some(owner)) = (&gone, &new.owner)
        && by == owner
        && !is_over(batch, &namespace, &id)
    {
        return Err(Error::Gone { what: format!("instance {id}") });
    }
    let present = match batch.row(&key)? {
        Some(Row::Instance(_, _, _, owner)) => Some(owner),
        _ => None,
    };
    if present.is_none() {
        let count = batch.memory.instances + batch.growth.instances;
        batch.check_limit("instances", count, batch.limits.instances)?;
    }
    if check_service(batch, &namespace, &new.service)? {
        list_service(batch, namespace.clone(), new.service.clone())?;
    }
    if gone.is_some() {
        batch.unmark(namespace.clone(), id)?;
    }
    if present.is_none() {
        batch.growth.instances += 1;
    }
    let owner = new.owner.clone().or(present).unwrap_or_else(Owner::random);
    let instance = Instance::from(new);
    batch.put(key, &row::encode(&InstanceRow::new(&instance, ttl, &owner)))?;
    batch.effect(Effect::Register(Arc::new(Slot::new(namespace, instance, ttl, owner.clone()))));
    Ok(owner)
}

/// Whether a mark is over although its row is still there.
fn is_over(batch: &Batch<'_>, namespace: &Namespace, id: &InstanceId) -> bool {
    batch.memory.gone(namespace, id.as_str()).is_some_and(|gone| gone.until <= batch.now)
}

fn deregister(
    batch: &mut Batch<'_>,
    namespace: Namespace,
    service: ServiceId,
    id: InstanceId,
    owner: Option<Owner>,
) -> Result<bool> {
    let key = Key::Instance(namespace.clone(), service.clone(), id.clone());
    let Some(Row::Instance(_, _, ttl, present)) = batch.row(&key)? else { return Ok(false) };
    if owner.is_some_and(|owner| owner != present) {
        return Ok(false);
    }
    batch.delete(key)?;
    batch.put(Key::Gone(namespace.clone(), id.clone()), &row::encode(&GoneRow::new(&present, ttl)))?;
    let until = batch.now + 2 * millis(ttl.duration());
    batch.effect(Effect::Remove(namespace.clone(), service, id.clone(), InstanceOp::Deregister));
    batch.effect(Effect::Mark(namespace, id, Gone { owner: present, ttl, until }));
    Ok(true)
}
