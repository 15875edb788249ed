//! Registering, again and for the first time, and who owns an instance.

use std::{sync::Arc, time::Duration};

use cosky_core::{
    Beat, BeatKey, Error, Event, Host, Instance, Life, Metadata, Owner, Port, Registration, Registry, Schema,
    Ttl, Weight,
};

use super::{
    view::{View, Watcher, ids},
    world::{World, instance, permanent, service, shop, together},
};

/// What is registered is read back field by field, with a life that is no longer than the TTL.
pub async fn what_is_registered_is_read_back(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let metadata =
        [("zone", "a\"\n\\"), ("leer", ""), ("日本", "ü\u{1f980}"), ("a__b", " x "), ("a.b/c", "=&%?")];
    let new = Registration {
        service: service("team/order é"),
        schema: Schema::new("grpc+tls").unwrap(),
        host: Host::new("2001:db8::1").unwrap(),
        port: Port::new(65_535).unwrap(),
        weight: Weight::new(2_147_483_647).unwrap(),
        ephemeral: true,
        metadata: Metadata::new(metadata).unwrap(),
        ttl: Some(world.ttl()),
        owner: Some(Owner::new("nonce-1_A").unwrap()),
    };
    let registered = registry.register(&shop, &new).await.unwrap();
    assert_eq!(registered.owner.as_str(), "nonce-1_A");
    let id = new.id();
    assert_eq!(id.as_str(), "team/order é@grpc+tls#2001:db8::1#65535");
    let one = registry.instance(&shop, &new.service, id.as_str()).await.unwrap().value.unwrap();
    let list = registry.instances(&shop, &new.service).await.unwrap().value;
    assert_eq!(list.len(), 1);
    for found in [&one, &list[0]] {
        assert_eq!(**found.instance(), Instance::from(new.clone()));
        assert_eq!((found.host(), found.port(), found.schema()), (&new.host, new.port, &new.schema));
    }
    for life in [registered.life, one.life(), list[0].life()] {
        let remaining = life.remaining().expect("it is ephemeral");
        assert!(Duration::ZERO < remaining && remaining <= world.ttl().duration(), "{remaining:?}");
        assert!(life.ttl_at() > 0);
    }
}

/// A permanent instance has no end, and weight 0 and a non-web scheme are kept.
pub async fn a_permanent_instance_has_no_end(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let mut new = permanent("batch", 4242);
    new.schema = Schema::new("__").unwrap();
    new.weight = Weight::new(0).unwrap();
    assert_eq!(registry.register(&shop, &new).await.unwrap().life, Life::Permanent);
    let found = registry.instance(&shop, &new.service, new.id().as_str()).await.unwrap().value.unwrap();
    assert_eq!(found.life(), Life::Permanent);
    assert_eq!(found.life().ttl_at(), -1);
    assert_eq!(**found.instance(), Instance::from(new));
}

/// Without a TTL of its own an instance gets the store's default one.
pub async fn a_default_ttl_is_given(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let new = Registration { ttl: None, ..instance(&*world, "order", 80) };
    let life = registry.register(&shop, &new).await.unwrap().life;
    let remaining = life.remaining().expect("it is ephemeral");
    assert!(Duration::from_secs(1) <= remaining && remaining <= Duration::from_secs(Ttl::MAX.into()));
}

/// The largest metadata that is allowed goes in and comes out.
pub async fn the_largest_metadata_is_kept(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let mut new = permanent("order", 80);
    new.metadata = Metadata::new((0..256).map(|n| (format!("{n:03}"), "v".repeat(125)))).unwrap();
    registry.register(&shop, &new).await.unwrap();
    let mut wide = permanent("order", 81);
    wide.metadata =
        Metadata::new((0..7).map(|n| (format!("{n}{}", "k".repeat(254)), "\n".repeat(4096)))).unwrap();
    registry.register(&shop, &wide).await.unwrap();
    let list = registry.instances(&shop, &service("order")).await.unwrap().value;
    assert_eq!((list[0].metadata(), list[1].metadata()), (&new.metadata, &wide.metadata));
}

/// The service's `set` comes before the first `register`, and only then.
pub async fn a_new_service_is_told_before_its_instance(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let mut watcher = Watcher::open(&*world, &shop).await;
    let (first, second) = (instance(&*world, "order", 80), permanent("order", 81));
    for new in [&first, &second, &first] {
        registry.register(&shop, new).await.unwrap();
    }
    let registered = |new: &Registration| format!("register {}", new.id());
    watcher.hears(&["set order".into(), registered(&first), registered(&second), registered(&first)]).await;
    assert_eq!(registry.services(&shop).await.unwrap().value, [service("order")]);
    registry.set_service(&shop, &service("empty")).await.unwrap();
    registry.register(&shop, &permanent("empty", 80)).await.unwrap();
    watcher.hears(&["set empty", "register empty@http#10.0.0.1#80"]).await;
    watcher.hears_nothing(&*registry, &shop).await;
}

/// Registering again replaces weight, metadata, TTL and kind, and watchers are told the new state.
pub async fn registering_again_replaces_everything(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let mut new = instance(&*world, "order", 80);
    new.metadata = Metadata::new([("a", "1"), ("a__b", "2")]).unwrap();
    registry.register(&shop, &new).await.unwrap();
    let mut watcher = Watcher::open(&*world, &shop).await;
    let replacements = [
        Registration { weight: Weight::new(7).unwrap(), metadata: Metadata::default(), ..new.clone() },
        Registration { ephemeral: false, metadata: Metadata::new([("c", "3")]).unwrap(), ..new.clone() },
        Registration { ttl: Some(Ttl::from_seconds(600).unwrap()), ..new.clone() },
    ];
    for next in replacements {
        let registered = registry.register(&shop, &next).await.unwrap();
        let found = registry.instance(&shop, &next.service, next.id().as_str()).await.unwrap().value.unwrap();
        assert_eq!(**found.instance(), Instance::from(next.clone()));
        for life in [registered.life, found.life()] {
            assert_eq!(life == Life::Permanent, !next.ephemeral);
            let longer = life.remaining().is_some_and(|left| left > world.ttl().duration());
            assert_eq!(longer, next.ephemeral && next.ttl != new.ttl, "{life:?}");
        }
        match &watcher.next().await.event {
            Event::Instance { op, id, instance: Some(told), .. } => {
                assert_eq!((op.as_str(), id), ("register", &next.id()));
                assert_eq!(told.instance(), found.instance());
                assert_eq!(told.life() == Life::Permanent, !next.ephemeral);
            }
            other => panic!("expected the new state, not {other:?}"),
        }
    }
    watcher.hears_nothing(&*registry, &shop).await;
}

/// An instance always has an owner: the one that registered it last with a name, or a fresh one.
pub async fn owners_are_kept_replaced_and_made(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let (named, other) = (Owner::new("one").unwrap(), Owner::new("two").unwrap());
    let plain = permanent("order", 80);
    let fresh = registry.register(&shop, &plain).await.unwrap().owner;
    assert_eq!(registry.register(&shop, &plain).await.unwrap().owner, fresh, "the present owner stays");
    let elsewhere = registry.register(&shop, &permanent("order", 81)).await.unwrap().owner;
    assert_ne!(fresh, elsewhere, "a new instance gets a fresh owner");
    for owner in [&named, &other] {
        let owned = Registration { owner: Some(owner.clone()), ..plain.clone() };
        assert_eq!(registry.register(&shop, &owned).await.unwrap().owner, *owner);
        assert_eq!(registry.register(&shop, &plain).await.unwrap().owner, *owner, "it stays");
    }
}

/// A late repeat of a registration that was deregistered is refused and leaves no trace, whoever deregistered it.
pub async fn a_late_repeat_is_refused(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    for by_owner in [true, false] {
        let name = if by_owner { "own" } else { "operator" };
        let owner = Owner::random();
        let new = Registration { owner: Some(owner.clone()), ..instance(&*world, name, 80) };
        registry.register(&shop, &new).await.unwrap();
        let by = by_owner.then_some(&owner);
        assert!(registry.deregister(&shop, &new.service, new.id().as_str(), by).await.unwrap());
        assert!(registry.remove_service(&shop, &new.service).await.unwrap());
        let mut watcher = Watcher::open(&*world, &shop).await;
        let refused = registry.register(&shop, &new).await;
        assert!(matches!(refused, Err(Error::Gone { .. })), "{refused:?}");
        assert_eq!(registry.instances(&shop, &new.service).await.unwrap().value, []);
        assert!(!registry.services(&shop).await.unwrap().value.contains(&new.service));
        assert_eq!(beat(&*registry, &new).await, Beat::Gone, "the refusal did not clear the mark");
        let fence = service(&format!("after-{name}"));
        registry.set_service(&shop, &fence).await.unwrap();
        watcher.hears(&[format!("set {fence}")]).await;
    }
}

/// A registration by a new owner, or by nobody in particular, clears the mark that a deregistration left.
pub async fn a_new_owner_clears_the_mark(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    for successor in [Some(Owner::random()), None] {
        let new = Registration { owner: Some(Owner::random()), ..instance(&*world, "order", 80) };
        registry.register(&shop, &new).await.unwrap();
        assert!(registry.deregister(&shop, &new.service, new.id().as_str(), None).await.unwrap());
        let next = Registration { owner: successor.clone(), ..new.clone() };
        let registered = registry.register(&shop, &next).await.unwrap();
        assert_ne!(Some(&registered.owner), new.owner.as_ref(), "the old owner has nothing left here");
        assert!(matches!(beat(&*registry, &new).await, Beat::Renewed(_)));
        assert!(registry.deregister(&shop, &new.service, new.id().as_str(), None).await.unwrap());
        assert_eq!(beat(&*registry, &new).await, Beat::Gone, "the successor's own end is marked again");
        let mut cleared = new.clone();
        cleared.owner = Some(Owner::random());
        registry.register(&shop, &cleared).await.unwrap();
        assert!(
            registry
                .deregister(&shop, &new.service, new.id().as_str(), cleared.owner.as_ref())
                .await
                .unwrap()
        );
    }
}

/// The mark lasts for two TTLs; after them the same owner may come back.
pub async fn the_mark_lasts_two_ttls(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let new = Registration { owner: Some(Owner::random()), ..instance(&*world, "order", 80) };
    let ttl = world.ttl().duration();
    registry.register(&shop, &new).await.unwrap();
    let before = world.now();
    registry.deregister(&shop, &new.service, new.id().as_str(), new.owner.as_ref()).await.unwrap();
    world.pass(ttl + ttl / 2).await;
    let (refused, beat_answer) = (registry.register(&shop, &new).await, beat(&*registry, &new).await);
    if world.now() < before + 2 * ttl {
        assert!(matches!(refused, Err(Error::Gone { .. })), "{refused:?} after one and a half TTLs");
        assert_eq!(beat_answer, Beat::Gone);
    }
    world.pass(ttl / 2 + Duration::from_secs(1) + world.slack()).await;
    assert_eq!(beat(&*registry, &new).await, Beat::Unknown, "now it may register");
    registry.register(&shop, &new).await.unwrap();
    assert!(matches!(beat(&*registry, &new).await, Beat::Renewed(_)));
}

/// Many that register at once are all there, sorted, and the service is set once.
pub async fn many_register_at_once(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let mut watcher = Watcher::open(&*world, &shop).await;
    let register = |n: usize| {
        let new = instance(&*world, "order", 1000 + u16::try_from(n).unwrap());
        let (registry, shop) = (Arc::clone(&registry), shop.clone());
        async move { registry.register(&shop, &new).await.unwrap().owner }
    };
    let owners = together(64, register).await;
    assert!((1..64).all(|n| owners[n] != owners[0]));
    let list = registry.instances(&shop, &service("order")).await.unwrap().value;
    assert!(ids(&list).is_sorted() && list.len() == 64, "{:?}", ids(&list));
    let mut view = View::default();
    view.follow(&mut watcher, "set order").await;
    for _ in 0..64 {
        view.apply(&watcher.next().await.event);
    }
    assert_eq!(view, View::read(&*registry, &shop).await);
    watcher.hears_nothing(&*registry, &shop).await;
}

/// Many that register one instance at once without an owner are all told the same owner.
pub async fn one_instance_has_one_owner(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let register = |_| {
        let (registry, shop, new) = (Arc::clone(&registry), shop.clone(), permanent("order", 80));
        async move { registry.register(&shop, &new).await.unwrap().owner }
    };
    let owners = together(16, register).await;
    assert!(owners.iter().all(|owner| *owner == owners[0]));
    let id = permanent("order", 80).id();
    assert!(registry.deregister(&shop, &service("order"), id.as_str(), Some(&owners[0])).await.unwrap());
}

async fn beat(registry: &dyn Registry, new: &Registration) -> Beat {
    let id = new.id();
    let key = BeatKey { service: new.service.as_str(), instance: id.as_str() };
    registry.beat(&shop(), &[key]).await.unwrap()[0]
}
