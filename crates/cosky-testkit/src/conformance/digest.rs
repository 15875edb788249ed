//! Digests: equal for equal content, different after any change, and of the index that is told with them.

use std::{collections::HashSet, sync::Arc};

use cosky_core::{
    Host, Metadata, MetadataPatch, Namespace, Owner, Port, Registration, Registry, Schema, Scope, Ttl,
    Weight, digest::Digest,
};

use super::{
    view::{View, Watcher},
    world::{World, instance, namespace, permanent, service, shop},
};

/// Two namespaces that hold the same have one digest, however they came to it, and it is that of what is read and watched.
pub async fn equal_content_has_one_digest(world: Arc<dyn World>) {
    let (registry, shop, other) = (world.registry(), shop(), namespace("other"));
    let new: Vec<_> = (80..90).map(|port| permanent(["order", "stock"][port as usize % 2], port)).collect();
    for new in &new {
        registry.register(&shop, new).await.unwrap();
    }
    let passing = permanent("order", 79);
    registry.register(&other, &passing).await.unwrap();
    for new in new.iter().rev() {
        registry.register(&other, new).await.unwrap();
    }
    assert_ne!(of(&*registry, &other, Scope::All).await, of(&*registry, &shop, Scope::All).await);
    registry.deregister(&other, &passing.service, passing.id().as_str(), None).await.unwrap();
    let digest = of(&*registry, &shop, Scope::All).await;
    assert_eq!(of(&*registry, &other, Scope::All).await, digest);
    assert_eq!(View::read(&*registry, &shop).await.digest(), digest, "what is read");
    let mut view = View::default();
    view.apply(&Watcher::from(&*world, &other, Scope::All, None).await.next().await.event);
    assert_eq!(view.digest(), digest, "what is watched");
}

/// Whatever of a registration changes, the digest changes with it, and comes back when it is changed back.
pub async fn every_change_is_in_the_digest(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let metadata = |entries: &[(&str, &str)]| Metadata::new(entries.iter().copied()).unwrap();
    let first = Registration { metadata: metadata(&[("zone", "z1"), ("v", "2")]), ..permanent("order", 80) };
    registry.register(&shop, &permanent("order", 79)).await.unwrap();
    registry.register(&shop, &first).await.unwrap();
    let begin = of(&*registry, &shop, Scope::All).await;
    let mut seen = HashSet::from([begin]);
    let changed = [
        Registration { weight: Weight::new(7).unwrap(), ..first.clone() },
        Registration { ephemeral: true, ..first.clone() },
        Registration { metadata: metadata(&[]), ..first.clone() },
        Registration { metadata: metadata(&[("zone", "z2"), ("v", "2")]), ..first.clone() },
        Registration { metadata: metadata(&[("zone", "z1"), ("w", "2")]), ..first.clone() },
        Registration { metadata: metadata(&[("v", "2zonez1")]), ..first.clone() },
    ];
    for new in changed {
        registry.register(&shop, &new).await.unwrap();
        assert!(seen.insert(agreed(&*registry, &shop).await), "{new:?}");
    }
    registry.register(&shop, &first).await.unwrap();
    assert_eq!(agreed(&*registry, &shop).await, begin, "registered again as at first");
    let elsewhere = [
        Registration { service: service("orders"), ..first.clone() },
        Registration { schema: Schema::new("https").unwrap(), ..first.clone() },
        Registration { host: Host::new("10.0.0.2").unwrap(), ..first.clone() },
        Registration { port: Port::new(8080).unwrap(), ..first.clone() },
    ];
    registry.deregister(&shop, &first.service, first.id().as_str(), None).await.unwrap();
    assert!(seen.insert(agreed(&*registry, &shop).await), "a deregistration");
    for new in elsewhere {
        registry.register(&shop, &new).await.unwrap();
        assert!(seen.insert(agreed(&*registry, &shop).await), "{new:?}");
        registry.deregister(&shop, &new.service, new.id().as_str(), None).await.unwrap();
    }
    registry.register(&shop, &first).await.unwrap();
    assert_eq!(agreed(&*registry, &shop).await, begin);
    let id = first.id();
    let patch = MetadataPatch::new([("v".to_owned(), None)]).unwrap();
    registry.patch_metadata(&shop, &first.service, id.as_str(), &patch).await.unwrap();
    assert!(seen.insert(agreed(&*registry, &shop).await), "a patch");
    registry.set_metadata(&shop, &first.service, id.as_str(), &first.metadata).await.unwrap();
    assert_eq!(agreed(&*registry, &shop).await, begin, "edited back");
}

/// Life is not in a digest: it does not change by beats, by time, nor by a registration with another owner and TTL.
pub async fn life_is_not_in_the_digest(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let new = instance(&*world, "order", 80);
    registry.register(&shop, &new).await.unwrap();
    let digest = of(&*registry, &shop, Scope::All).await;
    world.pass(world.ttl().duration() / 3).await;
    super::beats::beat(&*registry, &new).await;
    assert_eq!(of(&*registry, &shop, Scope::All).await, digest);
    let ttl = Ttl::from_seconds(i64::from(world.ttl().seconds()) * 2).unwrap();
    let again = Registration { ttl: Some(ttl), owner: Some(Owner::random()), ..new };
    registry.register(&shop, &again).await.unwrap();
    assert_eq!(of(&*registry, &shop, Scope::All).await, digest);
}

/// What expires leaves the digest too.
pub async fn the_dead_leave_the_digest(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    registry.register(&shop, &permanent("order", 80)).await.unwrap();
    let digest = of(&*registry, &shop, Scope::All).await;
    let new = instance(&*world, "order", 81);
    registry.register(&shop, &new).await.unwrap();
    let mut watcher = Watcher::open(&*world, &shop).await;
    assert_ne!(of(&*registry, &shop, Scope::All).await, digest);
    world.pass(world.ttl().duration() + std::time::Duration::from_secs(1)).await;
    watcher.hears(&[format!("expired {}", new.id())]).await;
    assert_eq!(of(&*registry, &shop, Scope::All).await, digest);
}

/// A digest covers what its scope names, and what is absent or empty has digest 0.
pub async fn a_digest_covers_its_scope(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let named = |names: &[&str]| Scope::services(names.iter().map(|name| service(name))).unwrap();
    for scope in [Scope::All, named(&["order"])] {
        assert_eq!(of(&*registry, &namespace("absent"), scope.clone()).await, 0);
        assert_eq!(of(&*registry, &shop, scope).await, 0);
    }
    for new in [permanent("order", 80), permanent("order", 81), permanent("stock", 80)] {
        registry.register(&shop, &new).await.unwrap();
    }
    registry.set_service(&shop, &service("empty")).await.unwrap();
    let one = async |names: &[&str]| of(&*registry, &shop, named(names)).await;
    let (order, stock) = (one(&["order"]).await, one(&["stock"]).await);
    assert_eq!((one(&["absent"]).await, one(&["empty"]).await), (0, 0));
    assert_eq!(order, of_service(&*registry, &shop, "order").await);
    assert_eq!(stock, of_service(&*registry, &shop, "stock").await);
    assert_eq!(one(&["absent", "order", "empty"]).await, order);
    let both = order.wrapping_add(stock);
    assert_eq!(one(&["order", "stock"]).await, both);
    assert_eq!(of(&*registry, &shop, Scope::All).await, both);
}

/// A digest is that of the changes up to its index, also while others write.
pub async fn a_digest_is_of_its_index(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let mut watcher = Watcher::open(&*world, &shop).await;
    let writer = {
        let (registry, shop) = (Arc::clone(&registry), shop.clone());
        tokio::spawn(async move {
            for port in 1000..1100 {
                let new = permanent("order", port);
                registry.register(&shop, &new).await.unwrap();
                if port % 3 == 0 {
                    registry.deregister(&shop, &new.service, new.id().as_str(), None).await.unwrap();
                }
            }
            registry.set_service(&shop, &service("last")).await.unwrap();
        })
    };
    let mut taken = Vec::new();
    while !writer.is_finished() {
        taken.push(registry.digest(&shop, &Scope::All).await.unwrap());
        tokio::task::yield_now().await;
    }
    writer.await.expect("the writer does not panic");
    taken.push(registry.digest(&shop, &Scope::All).await.unwrap());
    let (mut view, mut place, mut digest) = (View::default(), watcher.place(), 0);
    for read in taken {
        assert_eq!(read.index.epoch, place.epoch);
        while place.sequence < read.index.sequence {
            let change = watcher.next().await;
            view.apply(&change.event);
            (place, digest) = (change.index, view.digest());
        }
        assert_eq!(place, read.index, "each index is that of a change");
        assert_eq!(read.value, digest, "at {place}");
    }
}

async fn of(registry: &dyn Registry, namespace: &Namespace, scope: Scope) -> u64 {
    registry.digest(namespace, &scope).await.expect("a digest can be asked for").value
}

async fn of_service(registry: &dyn Registry, namespace: &Namespace, name: &str) -> u64 {
    let list = registry.instances(namespace, &service(name)).await.unwrap().value;
    Digest::of(list.iter().map(|found| &**found.instance())).get()
}

/// The digest of a quiet namespace, which is that of what is read from it.
async fn agreed(registry: &dyn Registry, namespace: &Namespace) -> u64 {
    let digest = of(registry, namespace, Scope::All).await;
    assert_eq!(digest, View::read(registry, namespace).await.digest());
    digest
}
