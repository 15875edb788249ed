//! A link as a registry: what is asked of a server, and the watcher's end of a stream.

use std::{
    collections::BTreeMap,
    sync::{Arc, MutexGuard},
};

use async_trait::async_trait;
use cosky_core::{
    Beat, BeatKey, ConsumerName, Error, Index, Metadata, MetadataPatch, Namespace, Owner, Read, Registered,
    Registration, Registry, Result, Scope, ServiceId, ServiceInstance, ServiceStat, Stat, WatchStream,
    engine::check_batch,
};
use futures_util::stream;
use tokio::time::sleep_until;

use super::{Link, Sim, store::Happened, world::World};

#[async_trait]
impl Registry for Link {
    async fn namespaces(&self) -> Result<Vec<Namespace>> {
        let listed = |world: &mut World, _, _| {
            let spaces = world.store.spaces.iter().filter(|(_, space)| space.listed);
            Ok(spaces.map(|(namespace, _)| namespace.clone()).collect())
        };
        self.ask(|| "namespaces".into(), |_| {}, listed).await
    }

    async fn add_namespace(&self, namespace: &Namespace) -> Result<bool> {
        let add = |world: &mut World, _, _: &mut Vec<Happened>| {
            Ok(!std::mem::replace(&mut world.store.space(namespace).listed, true))
        };
        self.write(|| format!("to list {namespace}"), add).await
    }

    async fn remove_namespace(&self, namespace: &Namespace) -> Result<bool> {
        let remove = |world: &mut World, _, _: &mut Vec<Happened>| {
            Ok(std::mem::replace(&mut world.store.space(namespace).listed, false))
        };
        self.write(|| format!("to unlist {namespace}"), remove).await
    }

    async fn purge_namespace(&self, namespace: &Namespace) -> Result<bool> {
        let purge = |world: &mut World, _, told: &mut Vec<Happened>| {
            let space = world.store.space(namespace);
            if !space.instances.is_empty() {
                return Err(Error::Conflict { reason: format!("{namespace} has live instances") });
            }
            let any = space.listed || !space.services.is_empty() || !space.edges.is_empty();
            (space.listed, space.edges) = (false, BTreeMap::new());
            for service in space.services.clone() {
                world.store.remove_service(namespace, &service, told);
            }
            Ok(any)
        };
        self.write(|| format!("to purge {namespace}"), purge).await
    }

    async fn services(&self, namespace: &Namespace) -> Result<Read<Vec<ServiceId>>> {
        let list = |world: &World, server: usize, _| world.servers[server].services(namespace);
        self.read((namespace, || "services".into()), |_| {}, list).await
    }

    async fn service_stats(&self, namespace: &Namespace) -> Result<Read<Vec<ServiceStat>>> {
        let stats = |world: &World, server: usize, now| {
            let services = world.servers[server].services(namespace).into_iter();
            let stat = |service: ServiceId| {
                let instances = world.servers[server].instances(namespace, &service, &world.store, now).len();
                ServiceStat { service, instances: instances as u64 }
            };
            services.map(stat).collect()
        };
        self.read((namespace, || "stats".into()), |_| {}, stats).await
    }

    async fn stat(&self, namespace: &Namespace) -> Result<Read<Stat>> {
        let Read { value: stats, index, age, state } = self.service_stats(namespace).await?;
        let value = Stat {
            namespaces: self.namespaces().await?.len() as u64,
            services: stats.len() as u64,
            healthy_services: stats.iter().filter(|stat| stat.instances > 0).count() as u64,
            instances: stats.iter().map(|stat| stat.instances).sum(),
            configs: 0,
        };
        Ok(Read { value, index, age, state })
    }

    async fn set_service(&self, namespace: &Namespace, service: &ServiceId) -> Result<bool> {
        let set = |world: &mut World, _, told: &mut Vec<Happened>| {
            Ok(world.store.set_service(namespace, service, told))
        };
        self.write(|| format!("to list {service}"), set).await
    }

    async fn remove_service(&self, namespace: &Namespace, service: &ServiceId) -> Result<bool> {
        let remove = |world: &mut World, _, told: &mut Vec<Happened>| {
            Ok(world.store.remove_service(namespace, service, told))
        };
        self.write(|| format!("to remove {service}"), remove).await
    }

    async fn register(&self, namespace: &Namespace, new: &Registration) -> Result<Registered> {
        let register = |world: &mut World, now, told: &mut Vec<Happened>| {
            world.store.register(namespace, new, now, told)
        };
        self.write(|| format!("to register {}", new.id()), register).await
    }

    async fn beat(&self, namespace: &Namespace, keys: &[BeatKey<'_>]) -> Result<Vec<Beat>> {
        check_batch(keys.len())?;
        let beat = |world: &mut World, now, _: &mut Vec<Happened>| Ok(world.store.beat(namespace, keys, now));
        self.write(|| format!("{} beats", keys.len()), beat).await
    }

    async fn deregister(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
        instance: &str,
        owner: Option<&Owner>,
    ) -> Result<bool> {
        let deregister = |world: &mut World, now, told: &mut Vec<Happened>| {
            Ok(world.store.deregister(namespace, service, instance, owner, (now, told)))
        };
        self.write(|| format!("to deregister {instance}"), deregister).await
    }

    async fn set_metadata(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
        instance: &str,
        metadata: &Metadata,
    ) -> Result<bool> {
        let set = |world: &mut World, now, told: &mut Vec<Happened>| {
            world.store.edit(namespace, service, instance, |_| Ok(metadata.clone()), (now, told))
        };
        self.write(|| format!("to set metadata of {instance}"), set).await
    }

    async fn patch_metadata(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
        instance: &str,
        patch: &MetadataPatch,
    ) -> Result<bool> {
        let edit = |world: &mut World, now, told: &mut Vec<Happened>| {
            world.store.edit(namespace, service, instance, |old| old.patched(patch), (now, told))
        };
        self.write(|| format!("to patch metadata of {instance}"), edit).await
    }

    async fn instances(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
    ) -> Result<Read<Vec<ServiceInstance>>> {
        let list = |world: &World, server: usize, now| {
            world.servers[server].instances(namespace, service, &world.store, now)
        };
        let what = || format!("instances of {service}");
        self.read((namespace, what), |counts| counts.loads += 1, list).await
    }

    async fn instance(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
        instance: &str,
    ) -> Result<Read<Option<ServiceInstance>>> {
        let find = |world: &World, server: usize, now| {
            let list = world.servers[server].instances(namespace, service, &world.store, now);
            list.into_iter().find(|found| found.id().as_str() == instance)
        };
        let what = || format!("instance {instance}");
        self.read((namespace, what), |counts| counts.singles += 1, find).await
    }

    async fn digest(&self, namespace: &Namespace, scope: &Scope) -> Result<Read<u64>> {
        let digest = |world: &World, server: usize, _| world.servers[server].digest(namespace, scope);
        self.read((namespace, || "digest".into()), |counts| counts.digests += 1, digest).await
    }

    async fn add_dependency(
        &self,
        namespace: &Namespace,
        consumer: &ConsumerName,
        producer: &str,
    ) -> Result<()> {
        let add = |world: &mut World, _, _: &mut Vec<Happened>| {
            if consumer.as_str() != producer {
                let edges = world.store.space(namespace).edges.entry(consumer.to_string()).or_default();
                edges.insert(producer.to_owned());
            }
            Ok(())
        };
        self.write(|| format!("to note {consumer} -> {producer}"), add).await
    }

    async fn topology(&self, namespace: &Namespace) -> Result<BTreeMap<String, Vec<String>>> {
        let edges = |world: &mut World, _, _| {
            let space = world.store.space(namespace);
            let producers = |set: &std::collections::BTreeSet<String>| set.iter().cloned().collect();
            Ok(space.edges.iter().map(|(consumer, set)| (consumer.clone(), producers(set))).collect())
        };
        self.ask(|| "topology".into(), |_| {}, edges).await
    }

    async fn watch(&self, namespace: &Namespace, scope: Scope, from: Option<Index>) -> Result<WatchStream> {
        let what = || format!("to watch {scope:?} from {from:?}");
        let number = self.number;
        let open = |world: &mut World, server, _| {
            let pipe = world.subscribe(number, server, (namespace, scope.clone(), from));
            Ok(Subscription { sim: self.sim.clone(), pipe })
        };
        let subscription = self.ask(what, |counts| counts.watches += 1, open).await?;
        let next = async |subscription: Subscription| {
            let item = subscription.next().await?;
            Some((item, subscription))
        };
        Ok(Box::pin(stream::unfold(subscription, next)))
    }
}

/// A watcher's end of its pipe. Dropping it ends the subscription.
struct Subscription {
    sim: Sim,
    pipe: u64,
}

impl Subscription {
    async fn next(&self) -> Option<Result<Arc<cosky_core::Change>>> {
        loop {
            let (until, wake) = {
                let mut world: MutexGuard<'_, World> = self.sim.lock();
                match world.take(self.pipe).item() {
                    Ok(item) => return item,
                    Err(until) => (until.map(|until| world.instant(until)), world.wake(self.pipe)?),
                }
            };
            let due = async {
                match until {
                    Some(until) => sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = wake.notified() => {}
                () = due => {}
            }
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.sim.lock().unsubscribe(self.pipe);
    }
}
