//! The list of services and the numbers that are drawn from it.

use std::{sync::Arc, time::Duration};

use cosky_core::{ServiceStat, Stat};

use super::{
    view::{View, Watcher},
    world::{World, instance, namespace, permanent, service, shop, together},
};

/// The list is sorted, holds services without instances, and takes any text that is a valid id.
pub async fn services_are_listed_in_order(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    assert_eq!(registry.services(&shop).await.unwrap().value, [], "of a namespace that nobody used");
    let names = ["team/app-a", "order", "http://x", "e\u{301}", "\u{e9}", "a%2Fb", "a b", "..a", "+"];
    for name in names {
        assert!(registry.set_service(&shop, &service(name)).await.unwrap(), "{name} is new");
        assert!(!registry.set_service(&shop, &service(name)).await.unwrap(), "{name} was listed");
    }
    let mut expected = names.map(service);
    expected.sort();
    assert_eq!(registry.services(&shop).await.unwrap().value, expected);
}

/// Setting is told once, removing is told once, and both say what they did.
pub async fn setting_and_removing_are_told_once(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let order = service("order");
    let mut watcher = Watcher::open(&*world, &shop).await;
    assert!(registry.remove_service(&shop, &order).await.unwrap(), "nothing stands against it");
    assert!(registry.set_service(&shop, &order).await.unwrap());
    assert!(!registry.set_service(&shop, &order).await.unwrap());
    assert!(registry.remove_service(&shop, &order).await.unwrap());
    assert!(registry.remove_service(&shop, &order).await.unwrap(), "also when it is not there any more");
    assert_eq!(registry.services(&shop).await.unwrap().value, []);
    watcher.hears(&["set order", "remove order"]).await;
    watcher.hears_nothing(&*registry, &shop).await;
}

/// A service with a live instance is not removed.
pub async fn a_live_instance_keeps_its_service(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let order = service("order");
    let new = instance(&*world, "order", 80);
    registry.register(&shop, &new).await.unwrap();
    let mut watcher = Watcher::open(&*world, &shop).await;
    assert!(!registry.remove_service(&shop, &order).await.unwrap());
    assert_eq!(registry.services(&shop).await.unwrap().value, std::slice::from_ref(&order));
    watcher.hears_nothing(&*registry, &shop).await;
    registry.deregister(&shop, &order, new.id().as_str(), None).await.unwrap();
    assert!(registry.services(&shop).await.unwrap().value.contains(&order), "it stays without instances");
    assert!(registry.remove_service(&shop, &order).await.unwrap());
    watcher.hears(&[format!("deregister {}", new.id()), "remove order".into()]).await;
}

/// Removing a service whose members are all dead tells of each of them first.
pub async fn dead_members_go_before_their_service(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let mut watcher = Watcher::open(&*world, &shop).await;
    let new = instance(&*world, "order", 80);
    registry.register(&shop, &new).await.unwrap();
    world.pass(world.ttl().duration() + Duration::from_secs(1) + world.slack()).await;
    assert!(registry.remove_service(&shop, &service("order")).await.unwrap());
    let id = new.id();
    watcher.hears(&["set order", &format!("register {id}"), &format!("expired {id}"), "remove order"]).await;
    watcher.hears_nothing(&*registry, &shop).await;
}

/// Of many that set one service at once, one did it, and watchers hear it once; removing likewise.
pub async fn one_of_many_sets_a_service(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let mut watcher = Watcher::open(&*world, &shop).await;
    for round in 0..4 {
        let set = |_| {
            let (registry, shop) = (Arc::clone(&registry), shop.clone());
            async move { registry.set_service(&shop, &service("order")).await.unwrap() }
        };
        assert_eq!(together(8, set).await.into_iter().filter(|new| *new).count(), 1, "round {round}");
        let remove = |_| {
            let (registry, shop) = (Arc::clone(&registry), shop.clone());
            async move { registry.remove_service(&shop, &service("order")).await.unwrap() }
        };
        assert!(together(8, remove).await.into_iter().all(|free| free), "round {round}");
        watcher.hears(&["set order", "remove order"]).await;
    }
    watcher.hears_nothing(&*registry, &shop).await;
}

/// Removing a service while an instance is registered in it never leaves an instance that nobody can find.
pub async fn registering_wins_over_removing_the_service(world: Arc<dyn World>) {
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
                    registry.remove_service(&shop, &new.service).await.unwrap();
                }
            }
        };
        together(3, race).await;
        assert_eq!(registry.services(&shop).await.unwrap().value, [service("order")], "round {round}");
        assert_eq!(registry.instances(&shop, &new.service).await.unwrap().value.len(), 1, "round {round}");
        assert!(registry.deregister(&shop, &new.service, new.id().as_str(), None).await.unwrap());
        view.follow(&mut watcher, &format!("deregister {}", new.id())).await;
    }
    assert_eq!(view, View::read(&*registry, &shop).await);
}

/// Counts are of live instances, and services without any are counted as such.
pub async fn numbers_count_what_lives(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let namespaces = registry.stat(&shop).await.unwrap().value.namespaces;
    assert_eq!(registry.stat(&shop).await.unwrap().value, Stat { namespaces, ..Stat::default() });
    assert_eq!(registry.service_stats(&shop).await.unwrap().value, []);
    registry.add_namespace(&namespace("another")).await.unwrap();
    registry.set_service(&shop, &service("empty")).await.unwrap();
    let dying = instance(&*world, "order", 80);
    for new in [dying.clone(), permanent("order", 81), instance(&*world, "web", 80)] {
        registry.register(&shop, &new).await.unwrap();
    }
    let stats = |counts: [(&str, u64); 3]| {
        counts.map(|(name, instances)| ServiceStat { service: service(name), instances })
    };
    let (listed, all) =
        (registry.service_stats(&shop).await.unwrap().value, registry.stat(&shop).await.unwrap().value);
    assert_eq!(listed, stats([("empty", 0), ("order", 2), ("web", 1)]));
    let expected =
        Stat { namespaces: namespaces + 1, services: 3, healthy_services: 2, instances: 3, configs: 0 };
    assert_eq!(all, expected);

    world.pass(world.ttl().duration() + Duration::from_secs(1) + world.slack()).await;
    let listed = registry.service_stats(&shop).await.unwrap().value;
    assert_eq!(listed, stats([("empty", 0), ("order", 1), ("web", 0)]));
    let expected = Stat { healthy_services: 1, instances: 1, ..expected };
    assert_eq!(registry.stat(&shop).await.unwrap().value, expected);

    registry.deregister(&shop, &service("order"), permanent("order", 81).id().as_str(), None).await.unwrap();
    let expected = Stat { healthy_services: 0, instances: 0, ..expected };
    assert_eq!(registry.stat(&shop).await.unwrap().value, expected);
}
