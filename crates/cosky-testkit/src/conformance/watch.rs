//! Watching: a snapshot and then every change, once, in order, wherever the watcher begins.

use std::{sync::Arc, time::Duration};

use cosky_core::{Change, Event, Index, Metadata, Namespace, Registration, Registry, Scope};

use super::{
    view::{View, Watcher, ids, words},
    world::{World, instance, namespace, permanent, service, shop},
};

/// The first item is a snapshot: services without instances included, and empty when there is nothing.
pub async fn a_watch_begins_with_a_snapshot(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let empty = Watcher::from(&*world, &shop, Scope::All, None).await.snapshot().await;
    assert!(empty.services.is_empty());
    registry.set_service(&shop, &service("empty")).await.unwrap();
    let (first, second) = (instance(&*world, "order", 80), permanent("order", 81));
    for new in [&second, &first] {
        registry.register(&shop, new).await.unwrap();
    }
    let snapshot = Watcher::from(&*world, &shop, Scope::All, None).await.snapshot().await;
    let names: Vec<_> = snapshot.services.keys().map(|name| name.as_str()).collect();
    assert_eq!(names, ["empty", "order"]);
    let list = &snapshot.services[&first.service];
    assert_eq!(ids(list), [first.id().to_string(), second.id().to_string()]);
    let left = list[0].life().remaining().expect("it is ephemeral");
    assert!(Duration::ZERO < left && left <= world.ttl().duration());
    assert_eq!(list[1].life().remaining(), None);
}

/// Every kind of change is told in the order in which it was made.
pub async fn changes_are_told_in_order(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let mut watcher = Watcher::open(&*world, &shop).await;
    let expected = story(&*registry, &shop).await;
    watcher.hears(&expected).await;
    watcher.hears_nothing(&*registry, &shop).await;
}

/// A watch from any change that was heard tells exactly what came after it, without a snapshot.
pub async fn a_watch_resumes_anywhere(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let mut watcher = Watcher::open(&*world, &shop).await;
    let beginning = watcher.place();
    let expected = story(&*registry, &shop).await;
    let mut heard: Vec<Arc<Change>> = Vec::new();
    for _ in &expected {
        heard.push(watcher.next().await);
    }
    let places = std::iter::once(beginning).chain(heard.iter().map(|change| change.index));
    for (at, place) in places.enumerate() {
        let mut resumed = Watcher::from(&*world, &shop, Scope::All, Some(place)).await;
        resumed.hears(&expected[at..]).await;
    }
}

/// A watcher that was up to date is told nothing until something happens.
pub async fn a_resume_at_the_head_waits(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let mut watcher = Watcher::open(&*world, &shop).await;
    story(&*registry, &shop).await;
    registry.set_service(&shop, &service("last")).await.unwrap();
    while words(&watcher.next().await.event) != "set last" {}
    let place = watcher.place();
    Watcher::from(&*world, &shop, Scope::All, Some(place)).await.hears_nothing(&*registry, &shop).await;
}

/// A place that this store never gave, of another epoch or in its future, gets a new snapshot.
pub async fn a_foreign_place_gets_a_snapshot(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    registry.register(&shop, &permanent("order", 80)).await.unwrap();
    let place = registry.services(&shop).await.unwrap().index;
    let foreign = [
        Index { epoch: place.epoch.wrapping_add(1), ..place },
        Index { epoch: place.epoch.wrapping_add(1), sequence: 0 },
        Index { sequence: place.sequence + 1_000_000, ..place },
        Index { sequence: u64::MAX, ..place },
    ];
    for place in foreign {
        let mut watcher = Watcher::from(&*world, &shop, Scope::All, Some(place)).await;
        let snapshot = watcher.snapshot().await;
        assert_eq!(snapshot.services[&service("order")].len(), 1, "from {place}");
    }
}

/// A watch of some services tells of those only, whether they exist yet or not.
pub async fn a_filter_covers_what_it_names(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let (wanted, other) = (permanent("wanted", 80), permanent("other", 80));
    registry.register(&shop, &wanted).await.unwrap();
    registry.register(&shop, &other).await.unwrap();
    let names = ["wanted", "later", "fence-1"].map(service);
    let scope = Scope::services(names.clone()).unwrap();
    let mut watcher = Watcher::from(&*world, &shop, scope.clone(), None).await;
    let snapshot = watcher.snapshot().await;
    let place = watcher.place();
    let known: Vec<_> = snapshot.services.iter().map(|(name, list)| (name.as_str(), list.len())).collect();
    assert_eq!(known, [("fence-1", 0), ("later", 0), ("wanted", 1)]);

    let metadata = Metadata::new([("a", "1")]).unwrap();
    for new in [&other, &wanted] {
        registry.set_metadata(&shop, &new.service, new.id().as_str(), &metadata).await.unwrap();
    }
    registry.register(&shop, &permanent("wanted2", 80)).await.unwrap();
    registry.register(&shop, &permanent("later", 80)).await.unwrap();
    registry.deregister(&shop, &other.service, other.id().as_str(), None).await.unwrap();
    registry.remove_service(&shop, &other.service).await.unwrap();
    let later = ["set later", "register later@http#10.0.0.1#80"];
    let set = format!("set_metadata {}", wanted.id());
    watcher.hears(&[set.as_str()]).await;
    watcher.hears(&later).await;
    watcher.hears_nothing(&*registry, &shop).await;
    let mut resumed = Watcher::from(&*world, &shop, scope, Some(place)).await;
    resumed.hears(&[set.as_str(), later[0], later[1], "set fence-1"]).await;
}

/// Changes of one namespace are not told in another.
pub async fn other_namespaces_are_silent(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let other = namespace("other");
    registry.set_service(&other, &service("before")).await.unwrap();
    let mut watcher = Watcher::open(&*world, &shop).await;
    story(&*registry, &other).await;
    watcher.hears_nothing(&*registry, &shop).await;
}

/// Watchers that begin in the middle of a stream of changes miss none and hear none twice, each from its snapshot on.
pub async fn nothing_is_missed_or_doubled_at_the_beginning(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let new = counted(0);
    registry.register(&shop, &new).await.unwrap();
    let writer = count(&registry, &shop, 400);
    let mut watchers = Vec::new();
    for _ in 0..16 {
        let world = Arc::clone(&world);
        watchers.push(tokio::spawn(async move {
            let mut watcher = Watcher::from(&*world, &super::world::shop(), Scope::All, None).await;
            let snapshot = watcher.snapshot().await;
            let mut last = counter(&snapshot.services[&service("counter")][0]);
            while last < 400 {
                let next = told(&watcher.next().await.event);
                assert_eq!(next, last + 1, "changes come one after the other");
                last = next;
            }
        }));
        tokio::time::sleep(Duration::from_micros(300)).await;
    }
    for watcher in watchers {
        watcher.await.expect("no watcher misses or doubles a change");
    }
    writer.await.expect("the writer does not panic");
}

/// A watcher that comes and goes, each time from where it was, hears everything once.
pub async fn nothing_is_missed_or_doubled_by_resuming(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    registry.register(&shop, &counted(0)).await.unwrap();
    let mut place = registry.services(&shop).await.unwrap().index;
    let writer = count(&registry, &shop, 300);
    let mut last = 0;
    while last < 300 {
        let mut watcher = Watcher::from(&*world, &shop, Scope::All, Some(place)).await;
        for _ in 0..(1 + last % 7).min(300 - last) {
            let next = told(&watcher.next().await.event);
            assert_eq!(next, last + 1, "changes come one after the other");
            last = next;
        }
        place = watcher.place();
    }
    writer.await.expect("the writer does not panic");
}

/// What many writers do at once adds up, for each watcher, to what is read in the end.
pub async fn what_is_told_adds_up_to_what_is_read(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let mut early = Watcher::open(&*world, &shop).await;
    let client = |n: u16| {
        let (registry, shop) = (Arc::clone(&registry), shop.clone());
        async move {
            let new = permanent(&format!("order-{}", n % 3), 1000 + n);
            let id = new.id();
            for round in 0..10u16 {
                registry.register(&shop, &new).await.unwrap();
                let metadata = Metadata::new([("round", round.to_string())]).unwrap();
                registry.set_metadata(&shop, &new.service, id.as_str(), &metadata).await.unwrap();
                if (n + round).is_multiple_of(2) {
                    registry.deregister(&shop, &new.service, id.as_str(), None).await.unwrap();
                    registry.remove_service(&shop, &new.service).await.unwrap();
                }
            }
        }
    };
    let clients: Vec<_> = (0..8).map(|n| tokio::spawn(client(n))).collect();
    let mut late = Watcher::from(&*world, &shop, Scope::All, None).await;
    for client in clients {
        client.await.expect("no writer panics");
    }
    registry.set_service(&shop, &service("last")).await.unwrap();
    let expected = View::read(&*registry, &shop).await;
    for watcher in [&mut early, &mut late] {
        let mut view = View::default();
        while !view.0.contains_key(&service("last")) {
            view.apply(&watcher.next().await.event);
        }
        assert_eq!(view, expected);
    }
}

/// A reader that does not read delays neither writers nor other watchers.
pub async fn a_slow_reader_delays_nobody(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    registry.register(&shop, &counted(0)).await.unwrap();
    let slow = Watcher::from(&*world, &shop, Scope::All, None).await;
    let mut quick = Watcher::open(&*world, &shop).await;
    let writer = count(&registry, &shop, 500);
    for expected in 1..=500 {
        assert_eq!(told(&quick.next().await.event), expected);
    }
    writer.await.expect("the writer does not panic");
    drop(slow);
}

/// Makes one change of every kind, and gives the words that tell of them.
async fn story(registry: &dyn Registry, namespace: &Namespace) -> Vec<String> {
    let (order, empty) = (service("order"), service("empty"));
    let (first, second) = (permanent("order", 80), permanent("order", 81));
    let (one, two) = (first.id(), second.id());
    let metadata = Metadata::new([("a", "1")]).unwrap();
    registry.set_service(namespace, &empty).await.unwrap();
    registry.register(namespace, &first).await.unwrap();
    registry.register(namespace, &second).await.unwrap();
    registry.set_metadata(namespace, &order, one.as_str(), &metadata).await.unwrap();
    registry.register(namespace, &first).await.unwrap();
    registry.deregister(namespace, &order, two.as_str(), None).await.unwrap();
    registry.remove_service(namespace, &empty).await.unwrap();
    registry.deregister(namespace, &order, one.as_str(), None).await.unwrap();
    registry.remove_service(namespace, &order).await.unwrap();
    vec![
        "set empty".into(),
        "set order".into(),
        format!("register {one}"),
        format!("register {two}"),
        format!("set_metadata {one}"),
        format!("register {one}"),
        format!("deregister {two}"),
        "remove empty".into(),
        format!("deregister {one}"),
        "remove order".into(),
    ]
}

/// An instance that carries a number.
pub(super) fn counted(n: u64) -> Registration {
    let metadata = Metadata::new([("n", n.to_string())]).unwrap();
    Registration { metadata, ..permanent("counter", 80) }
}

/// Counts that instance from 1 up to `end`, one change each.
pub(super) fn count(
    registry: &Arc<dyn Registry>,
    namespace: &Namespace,
    end: u64,
) -> tokio::task::JoinHandle<()> {
    let (registry, namespace) = (Arc::clone(registry), namespace.clone());
    tokio::spawn(async move {
        for n in 1..=end {
            let new = counted(n);
            registry.set_metadata(&namespace, &new.service, new.id().as_str(), &new.metadata).await.unwrap();
        }
    })
}

/// The number that an event tells.
pub(super) fn told(event: &Event) -> u64 {
    match event {
        Event::Instance { instance: Some(told), .. } => counter(told),
        other => panic!("expected a number, not {other:?}"),
    }
}

pub(super) fn counter(instance: &cosky_core::Instance) -> u64 {
    instance.metadata().get("n").expect("it carries a number").parse().expect("it is a number")
}
