//! The index of namespaces, and what purging removes.

use std::sync::Arc;

use cosky_core::{Error, Metadata};

use super::{
    view::{View, Watcher},
    world::{World, instance, namespace, permanent, service, shop, together},
};

/// The index is sorted, and holds what was added.
pub async fn added_namespaces_are_listed_in_order(world: Arc<dyn World>) {
    let registry = world.registry();
    for name in ["shop-{us}", "shop-{eu}", "büro", "a/b c"] {
        assert!(registry.add_namespace(&namespace(name)).await.unwrap(), "{name} is new");
    }
    assert!(!registry.add_namespace(&namespace("büro")).await.unwrap(), "it was listed");
    let listed = registry.namespaces().await.unwrap();
    assert!(listed.is_sorted());
    for name in ["shop-{us}", "shop-{eu}", "büro", "a/b c"] {
        assert_eq!(listed.iter().filter(|listed| listed.as_str() == name).count(), 1, "{name} in {listed:?}");
    }
}

/// Taking a namespace out of the index leaves its data, and using one does not list it.
pub async fn the_index_and_the_data_are_independent(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    registry.register(&shop, &permanent("order", 80)).await.unwrap();
    assert!(!registry.namespaces().await.unwrap().contains(&shop), "registering does not list");
    assert!(!registry.remove_namespace(&shop).await.unwrap(), "it was not listed");
    assert!(registry.add_namespace(&shop).await.unwrap());
    assert!(registry.remove_namespace(&shop).await.unwrap());
    assert!(!registry.namespaces().await.unwrap().contains(&shop));
    assert_eq!(registry.instances(&shop, &service("order")).await.unwrap().value.len(), 1, "its data stays");
}

/// Changes of the index are no events.
pub async fn watchers_do_not_hear_of_the_index(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let mut watcher = Watcher::open(&*world, &shop).await;
    registry.add_namespace(&shop).await.unwrap();
    registry.remove_namespace(&shop).await.unwrap();
    watcher.hears_nothing(&*registry, &shop).await;
}

/// Of many that add or remove one namespace at once, one did it.
pub async fn one_of_many_adds_and_one_removes(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    for round in 0..4 {
        let add = |_| {
            let (registry, shop) = (Arc::clone(&registry), shop.clone());
            async move { registry.add_namespace(&shop).await.unwrap() }
        };
        assert_eq!(together(8, add).await.into_iter().filter(|new| *new).count(), 1, "round {round}");
        let remove = |_| {
            let (registry, shop) = (Arc::clone(&registry), shop.clone());
            async move { registry.remove_namespace(&shop).await.unwrap() }
        };
        assert_eq!(together(8, remove).await.into_iter().filter(|was| *was).count(), 1, "round {round}");
    }
}

/// Two namespaces with the same names in them have nothing to do with each other.
pub async fn namespaces_do_not_share_data(world: Arc<dyn World>) {
    let registry = world.registry();
    let (eu, us) = (namespace("shop-{eu}"), namespace("shop-{us}"));
    let id = permanent("order", 80).id();
    registry.register(&eu, &permanent("order", 80)).await.unwrap();
    assert_eq!(registry.services(&us).await.unwrap().value, []);
    assert_eq!(registry.instance(&us, &service("order"), id.as_str()).await.unwrap().value, None);
    assert!(!registry.deregister(&us, &service("order"), id.as_str(), None).await.unwrap());
    let metadata = Metadata::new([("a", "1")]).unwrap();
    assert!(!registry.set_metadata(&us, &service("order"), id.as_str(), &metadata).await.unwrap());
    assert!(registry.remove_service(&us, &service("order")).await.unwrap());
    assert_eq!(registry.instances(&eu, &service("order")).await.unwrap().value.len(), 1);
}

/// Purging says whether there was anything: data, a place in the index, or neither.
pub async fn purging_tells_whether_anything_was_there(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    assert!(!registry.purge_namespace(&shop).await.unwrap(), "neither");
    registry.add_namespace(&shop).await.unwrap();
    assert!(registry.purge_namespace(&shop).await.unwrap(), "it was listed");
    assert!(!registry.namespaces().await.unwrap().contains(&shop));
    registry.set_service(&shop, &service("order")).await.unwrap();
    assert!(registry.purge_namespace(&shop).await.unwrap(), "it had a service");
    assert!(!registry.purge_namespace(&shop).await.unwrap(), "nothing is left");
}

/// Purging removes services and topology, tells watchers of each service, and leaves other namespaces alone.
pub async fn purging_removes_everything_and_tells(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let other = namespace("other");
    registry.set_service(&other, &service("a")).await.unwrap();
    registry.add_namespace(&shop).await.unwrap();
    for name in ["a", "b", "c"] {
        registry.set_service(&shop, &service(name)).await.unwrap();
    }
    let gone = permanent("b", 80);
    registry.register(&shop, &gone).await.unwrap();
    registry.deregister(&shop, &gone.service, gone.id().as_str(), None).await.unwrap();
    registry.add_dependency(&shop, &"a".parse().unwrap(), "b").await.unwrap();

    let mut watcher = Watcher::open(&*world, &shop).await;
    assert!(registry.purge_namespace(&shop).await.unwrap());
    assert!(!registry.namespaces().await.unwrap().contains(&shop));
    assert_eq!(registry.services(&shop).await.unwrap().value, []);
    assert!(registry.topology(&shop).await.unwrap().is_empty());
    let mut removed = Vec::new();
    for _ in 0..3 {
        removed.push(super::view::words(&watcher.next().await.event));
    }
    removed.sort();
    assert_eq!(removed, ["remove a", "remove b", "remove c"]);
    watcher.hears_nothing(&*registry, &shop).await;
    assert_eq!(registry.services(&other).await.unwrap().value, [service("a")]);
}

/// A live instance, permanent or not, stands against a purge, and then nothing is removed.
pub async fn a_live_instance_forbids_purging(world: Arc<dyn World>) {
    let registry = world.registry();
    for (name, new) in [("a", permanent("order", 80)), ("b", instance(&*world, "order", 80))] {
        let namespace = namespace(name);
        registry.add_namespace(&namespace).await.unwrap();
        registry.set_service(&namespace, &service("empty")).await.unwrap();
        registry.register(&namespace, &new).await.unwrap();
        let mut watcher = Watcher::open(&*world, &namespace).await;
        let before = View::read(&*registry, &namespace).await;
        let refused = registry.purge_namespace(&namespace).await;
        assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
        assert!(registry.namespaces().await.unwrap().contains(&namespace));
        assert_eq!(View::read(&*registry, &namespace).await, before);
        watcher.hears_nothing(&*registry, &namespace).await;
    }
}

/// Also the last of very many services may have the instance that forbids it; then none of the others is removed.
pub async fn a_live_instance_forbids_purging_of_many(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let set = |n: usize| {
        let (registry, shop) = (Arc::clone(&registry), shop.clone());
        async move {
            for n in n * 40..(n + 1) * 40 {
                registry.set_service(&shop, &service(&format!("service-{n:03}"))).await.unwrap();
            }
        }
    };
    together(16, set).await;
    let last = permanent("z", 80);
    registry.register(&shop, &last).await.unwrap();
    let mut watcher = Watcher::open(&*world, &shop).await;
    let refused = registry.purge_namespace(&shop).await;
    assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
    assert_eq!(registry.services(&shop).await.unwrap().value.len(), 641);
    watcher.hears_nothing(&*registry, &shop).await;
    registry.deregister(&shop, &last.service, last.id().as_str(), None).await.unwrap();
    assert!(registry.purge_namespace(&shop).await.unwrap());
    assert_eq!(registry.services(&shop).await.unwrap().value, []);
}

/// Once the last instance has expired, a purge removes its service like any other.
pub async fn dead_instances_do_not_forbid_purging(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let mut watcher = Watcher::open(&*world, &shop).await;
    let new = instance(&*world, "order", 80);
    registry.register(&shop, &new).await.unwrap();
    world.pass(world.ttl().duration() + std::time::Duration::from_secs(1) + world.slack()).await;
    assert!(registry.purge_namespace(&shop).await.unwrap());
    let id = new.id();
    watcher.hears(&["set order", &format!("register {id}"), &format!("expired {id}"), "remove order"]).await;
    watcher.hears_nothing(&*registry, &shop).await;
}

/// Whoever registers while a namespace is purged is either refused nothing and found afterwards, or was there first
/// and kept the purge from happening to it.
pub async fn purging_never_takes_an_acknowledged_instance(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let mut watcher = Watcher::open(&*world, &shop).await;
    let mut view = View::default();
    for round in 0..16u16 {
        let new = permanent("order", 1000 + round);
        let race = |n| {
            let (registry, shop, new) = (Arc::clone(&registry), shop.clone(), new.clone());
            async move {
                if n == 0 {
                    registry.register(&shop, &new).await.unwrap();
                } else {
                    let purged = registry.purge_namespace(&shop).await;
                    assert!(matches!(purged, Ok(_) | Err(Error::Conflict { .. })), "{purged:?}");
                }
            }
        };
        together(3, race).await;
        let found = registry.instance(&shop, &new.service, new.id().as_str()).await.unwrap().value;
        assert!(found.is_some(), "round {round}: an acknowledged instance is found");
        assert_eq!(registry.services(&shop).await.unwrap().value, [service("order")]);
        assert!(registry.deregister(&shop, &new.service, new.id().as_str(), None).await.unwrap());
        view.follow(&mut watcher, &format!("deregister {}", new.id())).await;
    }
    assert_eq!(view, View::read(&*registry, &shop).await);
}
