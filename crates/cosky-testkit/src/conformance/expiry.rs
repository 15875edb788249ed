//! That the dead leave, all of them, once, and nobody else.

use std::{sync::Arc, time::Duration};

use cosky_core::{Event, Registration, Ttl};

use super::{
    view::{View, Watcher, words},
    world::{World, instance, namespace, permanent, service, shop},
};

/// An instance whose beats stop leaves readers and watchers within its TTL and one second, with nobody asking, and is
/// told once.
pub async fn the_dead_leave_in_time(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let (new, ttl) = (instance(&*world, "order", 80), world.ttl().duration());
    let id = new.id();
    let before = world.now();
    registry.register(&shop, &new).await.unwrap();
    let after = world.now();
    let mut watcher = Watcher::open(&*world, &shop).await;
    world.pass(ttl - ttl / 4).await;
    let found = registry.instance(&shop, &new.service, id.as_str()).await.unwrap().value;
    if world.now() < before + ttl {
        assert!(found.is_some(), "it has a quarter of its life left");
    }
    world.pass(ttl / 4 + Duration::from_secs(1)).await;
    let change = watcher.next().await;
    let heard = world.now();
    assert_eq!(words(&change.event), format!("expired {id}"));
    assert!(matches!(change.event, Event::Instance { instance: None, .. }));
    assert!(heard >= before + ttl, "it was told {:?} after the registration", heard - before);
    let late = after + ttl + Duration::from_secs(1) + world.slack();
    assert!(heard <= late, "it was told {:?} too late", heard - late);
    assert_eq!(registry.instances(&shop, &new.service).await.unwrap().value, []);
    assert_eq!(registry.instance(&shop, &new.service, id.as_str()).await.unwrap().value, None);
    assert_eq!(registry.services(&shop).await.unwrap().value, [service("order")], "the service stays");
    watcher.hears_nothing(&*registry, &shop).await;
}

/// Many that die at once are told of once each, and those beside them live on.
pub async fn each_death_is_told_once(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let mut watcher = Watcher::open(&*world, &shop).await;
    let long = Ttl::from_seconds(i64::from(world.ttl().seconds()) * 100).unwrap();
    for n in 0..50u16 {
        let name = if n % 2 == 0 { "order" } else { "web" };
        registry.register(&shop, &instance(&*world, name, 1000 + n)).await.unwrap();
    }
    registry.register(&shop, &permanent("order", 80)).await.unwrap();
    let lasting = Registration { ttl: Some(long), ..instance(&*world, "order", 81) };
    registry.register(&shop, &lasting).await.unwrap();
    let other = namespace("other");
    let elsewhere = Registration { ttl: Some(long), ..instance(&*world, "order", 1000) };
    registry.register(&other, &elsewhere).await.unwrap();
    let mut view = View::default();
    view.follow(&mut watcher, &format!("register {}", lasting.id())).await;

    world.pass(world.ttl().duration() + Duration::from_secs(1)).await;
    let mut expired = Vec::new();
    for _ in 0..50 {
        let change = watcher.next().await;
        view.apply(&change.event);
        expired.push(words(&change.event));
    }
    expired.sort();
    let mut expected: Vec<_> = (0..50u16)
        .map(|n| (if n % 2 == 0 { "order" } else { "web" }, 1000 + n))
        .map(|(name, port)| format!("expired {}", permanent(name, port).id()))
        .collect();
    expected.sort();
    assert_eq!(expired, expected);
    assert_eq!(view, View::read(&*registry, &shop).await);
    assert_eq!(view.0[&service("order")].len(), 2);
    assert_eq!(registry.instances(&other, &service("order")).await.unwrap().value.len(), 1);
    watcher.hears_nothing(&*registry, &shop).await;
}

/// Who expired may register again, with the same owner too, and is told as any registration.
pub async fn the_dead_may_come_back(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let owner = Some(cosky_core::Owner::random());
    let new = Registration { owner, ..instance(&*world, "order", 80) };
    let mut watcher = Watcher::open(&*world, &shop).await;
    registry.register(&shop, &new).await.unwrap();
    world.pass(world.ttl().duration() + Duration::from_secs(1) + world.slack()).await;
    assert_eq!(registry.register(&shop, &new).await.unwrap().owner, new.owner.clone().unwrap());
    assert_eq!(registry.instances(&shop, &new.service).await.unwrap().value.len(), 1);
    let id = new.id();
    let again = format!("register {id}");
    watcher.hears(&["set order", &again, &format!("expired {id}"), &again]).await;
    watcher.hears_nothing(&*registry, &shop).await;
}

/// The TTL of the last registration counts, shorter or longer, and a permanent one counts as for ever.
pub async fn the_last_registration_decides(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let long = Some(Ttl::from_seconds(i64::from(world.ttl().seconds()) * 100).unwrap());
    let short = Some(world.ttl());
    let changes = [(short, long, true), (long, short, false), (short, short, false)];
    for (port, (first, second, _)) in (80..).zip(changes) {
        for ttl in [first, second] {
            let new = Registration { ttl, ..instance(&*world, "order", port) };
            registry.register(&shop, &new).await.unwrap();
        }
    }
    registry.register(&shop, &instance(&*world, "order", 90)).await.unwrap();
    registry.register(&shop, &permanent("order", 90)).await.unwrap();
    registry.register(&shop, &permanent("order", 91)).await.unwrap();
    registry.register(&shop, &instance(&*world, "order", 91)).await.unwrap();

    world.pass(world.ttl().duration() + Duration::from_secs(1) + world.slack()).await;
    let list = registry.instances(&shop, &service("order")).await.unwrap().value;
    let ports: Vec<_> = list.iter().map(|found| found.port().get()).collect();
    let mut expected: Vec<u32> =
        (80..).zip(changes).filter(|(_, (.., stays))| *stays).map(|(port, _)| port).collect();
    expected.push(90);
    assert_eq!(ports, expected);
}
