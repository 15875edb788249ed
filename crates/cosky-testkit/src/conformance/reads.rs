//! Reads: what is absent, what was just written, and the place that an answer has in the sequence of changes.

use std::{sync::Arc, time::Duration};

use cosky_core::{Index, Namespace, Registry, Scope, StoreState};

use super::{
    view::{Watcher, ids},
    world::{World, instance, permanent, service, shop, together},
};

/// Reading what is not there gives nothing and makes nothing.
pub async fn what_is_absent_reads_as_nothing(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let order = service("order");
    assert_eq!(registry.instances(&shop, &order).await.unwrap().value, []);
    for id in ["order@http#10.0.0.1#80", "garbage", "order@http#h#0", "a@b@c#d"] {
        assert_eq!(registry.instance(&shop, &order, id).await.unwrap().value, None, "{id}");
    }
    assert!(registry.topology(&shop).await.unwrap().is_empty());
    assert_eq!(registry.services(&shop).await.unwrap().value, [], "reading lists nothing");
    assert!(!registry.namespaces().await.unwrap().contains(&shop));
}

/// One service's instance is not found under another's name.
pub async fn instances_belong_to_one_service(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let new = permanent("order", 80);
    registry.register(&shop, &new).await.unwrap();
    registry.register(&shop, &permanent("order2", 80)).await.unwrap();
    assert_eq!(registry.instance(&shop, &service("order2"), new.id().as_str()).await.unwrap().value, None);
    assert_eq!(ids(&registry.instances(&shop, &new.service).await.unwrap().value), [new.id().to_string()]);
}

/// Instances come sorted by id, however many there are.
pub async fn instances_are_sorted(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    for n in 0..200u32 {
        let port = u16::try_from(1 + n * 7919 % 10_007).unwrap();
        registry.register(&shop, &permanent("order", port)).await.unwrap();
    }
    let list = ids(&registry.instances(&shop, &service("order")).await.unwrap().value);
    assert_eq!(list.len(), 200);
    assert!(list.is_sorted());
}

/// Each client that writes finds in its next read what it wrote (P11), however many do so at once.
pub async fn everybody_reads_their_own_writes(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let client = |n: usize| {
        let new = instance(&*world, &format!("order-{}", n % 4), 1000 + u16::try_from(n).unwrap());
        let (registry, shop) = (Arc::clone(&registry), shop.clone());
        async move {
            let (id, name) = (new.id(), new.service.clone());
            for round in 0..8 {
                registry.register(&shop, &new).await.unwrap();
                let list = ids(&registry.instances(&shop, &name).await.unwrap().value);
                assert!(
                    list.contains(&id.to_string()),
                    "{id}, round {round}: registered and not in the list"
                );
                let one = registry.instance(&shop, &name, id.as_str()).await.unwrap().value;
                assert!(one.is_some(), "{id}, round {round}: registered and not found");
                assert!(registry.services(&shop).await.unwrap().value.contains(&name));
                assert!(registry.deregister(&shop, &name, id.as_str(), None).await.unwrap());
                let list = ids(&registry.instances(&shop, &name).await.unwrap().value);
                assert!(!list.contains(&id.to_string()), "{id}, round {round}: deregistered and in the list");
                let one = registry.instance(&shop, &name, id.as_str()).await.unwrap().value;
                assert_eq!(one, None, "{id}, round {round}");
            }
        }
    };
    together(16, client).await;
}

/// All reads of a quiet namespace have one place, live and of age zero; each change moves it on.
pub async fn reads_know_their_place(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let mut last = None::<Index>;
    for port in 80..84 {
        registry.register(&shop, &permanent("order", port)).await.unwrap();
        let place = place(&*registry, &shop).await;
        if let Some(last) = last {
            assert_eq!(place.epoch, last.epoch);
            assert!(place.sequence > last.sequence, "{place} after {last}");
        }
        last = Some(place);
    }
}

/// A watch from the place of a read tells exactly what came after that read.
pub async fn a_watch_goes_on_from_a_read(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let first = permanent("order", 80);
    registry.register(&shop, &first).await.unwrap();
    let place = place(&*registry, &shop).await;
    let mut live = Watcher::from(&*world, &shop, Scope::All, Some(place)).await;
    live.hears_nothing(&*registry, &shop).await;
    registry.deregister(&shop, &first.service, first.id().as_str(), None).await.unwrap();
    let told = ["set fence-1".into(), format!("deregister {}", first.id())];
    live.hears(&told[1..]).await;
    Watcher::from(&*world, &shop, Scope::All, Some(place)).await.hears(&told).await;
}

/// Whoever was told of a change finds it in the next read (never older).
pub async fn a_read_is_not_older_than_an_event(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let mut watcher = Watcher::open(&*world, &shop).await;
    let writer = {
        let (registry, shop) = (Arc::clone(&registry), shop.clone());
        tokio::spawn(async move {
            for port in 1000..1064 {
                registry.register(&shop, &permanent("order", port)).await.unwrap();
            }
        })
    };
    watcher.hears(&["set order"]).await;
    for port in 1000..1064 {
        let id = permanent("order", port).id();
        watcher.hears(&[format!("register {id}")]).await;
        let read = registry.instance(&shop, &service("order"), id.as_str()).await.unwrap();
        assert!(read.value.is_some(), "{id} was announced and is not found");
        assert!(read.index.sequence >= watcher.place().sequence, "{} < {}", read.index, watcher.place());
    }
    writer.await.expect("the writer does not panic");
}

/// A future that is dropped before its answer leaves its work done whole or not at all.
pub async fn an_abandoned_write_is_whole_or_absent(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let mut watcher = Watcher::open(&*world, &shop).await;
    for n in 0..64u16 {
        let new = permanent(&format!("order-{n}"), 80);
        let write = registry.register(&shop, &new);
        let time = Duration::from_micros(u64::from(n) * 40);
        // Whether it was in time is what differs from run to run, and must not matter.
        let _ = tokio::time::timeout(time, write).await;
    }
    registry.set_service(&shop, &service("last")).await.unwrap();
    let mut view = super::view::View::default();
    view.follow(&mut watcher, "set last").await;
    let settled = async {
        // Over a network an abandoned request may still be on its way when a later one has been answered.
        while view != super::view::View::read(&*registry, &shop).await {
            view.apply(&watcher.next().await.event);
        }
    };
    tokio::time::timeout(world.patience(), settled).await.expect("what was announced is what is read");
    for (name, list) in view.0.iter().filter(|(name, _)| name.as_str() != "last") {
        assert_eq!(list.len(), 1, "{name} was set without its instance");
    }
}

/// The place that all reads agree on.
async fn place(registry: &dyn Registry, namespace: &Namespace) -> Index {
    let order = service("order");
    let services = registry.services(namespace).await.unwrap();
    let instances = registry.instances(namespace, &order).await.unwrap();
    let one = registry.instance(namespace, &order, "order@http#10.0.0.1#80").await.unwrap();
    let stats = registry.service_stats(namespace).await.unwrap();
    let stat = registry.stat(namespace).await.unwrap();
    let digest = registry.digest(namespace, &Scope::All).await.unwrap();
    let places = [services.index, instances.index, one.index, stats.index, stat.index, digest.index];
    assert!(places.iter().all(|place| *place == places[0]), "{places:?}");
    let states = [services.state, instances.state, one.state, stats.state, stat.state, digest.state];
    assert_eq!(states, [StoreState::Live; 6]);
    let ages = [services.age, instances.age, one.age, stats.age, stat.age, digest.age];
    assert_eq!(ages, [Duration::ZERO; 6]);
    places[0]
}
