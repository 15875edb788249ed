//! Beats: what they renew, what they do not touch, and what they are told.

use std::{sync::Arc, time::Duration};

use cosky_core::{Beat, BeatKey, Error, Life, Metadata, Owner, Registration, Registry, Ttl, limits::BEATS};

use super::{
    view::{Watcher, ids},
    world::{World, instance, namespace, permanent, service, shop, together},
};

/// Beats that come in time keep an instance there for every reader, and nobody is told of them.
pub async fn beats_keep_an_instance_alive(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let (new, ttl) = (instance(&*world, "order", 80), world.ttl().duration());
    let mut until = world.now() + ttl;
    registry.register(&shop, &new).await.unwrap();
    let mut watcher = Watcher::open(&*world, &shop).await;
    for step in 0..7 {
        world.pass(ttl / 3).await;
        let list = registry.instances(&shop, &new.service).await.unwrap().value;
        let one = registry.instance(&shop, &new.service, new.id().as_str()).await.unwrap().value;
        let sent = world.now();
        let answer = beat(&*registry, &new).await;
        // On a machine that stands still for two thirds of a TTL the beat is late, and then nothing is promised.
        if world.now() >= until {
            return;
        }
        assert_eq!(ids(&list), [new.id().to_string()], "step {step}");
        assert!(one.is_some(), "step {step}");
        let Beat::Renewed(life) = answer else { panic!("step {step}: {answer:?}") };
        if let Some(life) = life {
            let remaining = life.remaining().expect("it is ephemeral");
            assert!(ttl - ttl / 6 - world.slack() <= remaining && remaining <= ttl, "{remaining:?}");
        }
        until = sent + ttl;
    }
    watcher.hears_nothing(&*registry, &shop).await;
}

/// Each is answered in the order in which it was asked, and nobody's answer depends on another's.
pub async fn each_is_answered_in_order(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let (alive, gone) = (instance(&*world, "order", 80), instance(&*world, "order", 81));
    let (lasting, other) = (permanent("order", 82), instance(&*world, "web", 80));
    for new in [&alive, &gone, &lasting, &other] {
        registry.register(&shop, new).await.unwrap();
    }
    registry.deregister(&shop, &gone.service, gone.id().as_str(), None).await.unwrap();
    let (alive, gone, lasting, other) = (alive.id(), gone.id(), lasting.id(), other.id());
    let order = |instance| BeatKey { service: "order", instance };
    let keys = [
        order(alive.as_str()),
        order("order@http#10.0.0.1#1"),
        order(gone.as_str()),
        BeatKey { service: "nobody", instance: alive.as_str() },
        BeatKey { service: "web", instance: other.as_str() },
        order(other.as_str()),
        order(lasting.as_str()),
        order("garbage"),
        BeatKey { service: "a@b", instance: "a@b@c#" },
        order(alive.as_str()),
    ];
    let kinds: Vec<_> = registry.beat(&shop, &keys).await.unwrap().into_iter().map(kind).collect();
    let expected = [
        "renewed", "unknown", "gone", "unknown", "renewed", "unknown", "renewed", "unknown", "unknown",
        "renewed",
    ];
    assert_eq!(kinds, expected);
    let elsewhere = registry.beat(&namespace("other"), &keys[..1]).await.unwrap();
    assert_eq!(elsewhere, [Beat::Unknown], "another namespace");
    assert_eq!(registry.beat(&shop, &[]).await.unwrap(), []);
}

/// A batch may be as large as the limit and not larger; then nothing is renewed.
pub async fn batches_are_bounded(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let new = instance(&*world, "order", 80);
    registry.register(&shop, &new).await.unwrap();
    let id = new.id();
    let keys = vec![BeatKey { service: "order", instance: id.as_str() }; BEATS + 1];
    let answers = registry.beat(&shop, &keys[..BEATS]).await.unwrap();
    assert_eq!(answers.len(), BEATS);
    assert!(answers.into_iter().all(|answer| kind(answer) == "renewed"));
    let refused = registry.beat(&shop, &keys).await;
    assert!(matches!(refused, Err(Error::TooLarge { .. })), "{refused:?}");
}

/// A beat of a permanent instance succeeds and leaves it permanent.
pub async fn a_beat_leaves_a_permanent_instance_permanent(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let new = Registration { ttl: Some(world.ttl()), ..permanent("order", 80) };
    registry.register(&shop, &new).await.unwrap();
    let Beat::Renewed(life) = beat(&*registry, &new).await else { panic!("it is there") };
    assert!(life.is_none_or(|life| life == Life::Permanent), "{life:?}");
    world.pass(world.ttl().duration() + Duration::from_secs(1) + world.slack()).await;
    let found = registry.instance(&shop, &new.service, new.id().as_str()).await.unwrap().value.unwrap();
    assert_eq!(found.life(), Life::Permanent);
}

/// A beat renews by the instance's own TTL, whatever the store's default and the other instances' are.
pub async fn each_is_renewed_by_its_own_ttl(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let short = instance(&*world, "order", 80);
    let long = Ttl::from_seconds(i64::from(world.ttl().seconds()) * 100).unwrap();
    let long = Registration { ttl: Some(long), ..instance(&*world, "order", 81) };
    for new in [&short, &long] {
        registry.register(&shop, new).await.unwrap();
        assert_eq!(kind(beat(&*registry, new).await), "renewed");
    }
    for (found, new) in
        registry.instances(&shop, &short.service).await.unwrap().value.iter().zip([&short, &long])
    {
        let (left, ttl) = (found.life().remaining().unwrap(), new.ttl.unwrap().duration());
        assert!(ttl / 2 < left && left <= ttl, "{}: {left:?} of {ttl:?}", found.id());
    }
    world.pass(world.ttl().duration() + Duration::from_secs(1) + world.slack()).await;
    assert_eq!(beat(&*registry, &short).await, Beat::Unknown);
    assert_eq!(kind(beat(&*registry, &long).await), "renewed");
    let list = registry.instances(&shop, &short.service).await.unwrap().value;
    assert_eq!(ids(&list), [long.id().to_string()]);
}

/// A beat after the end brings nothing back: the instance is unknown and stays away.
pub async fn a_late_beat_brings_nothing_back(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let new = instance(&*world, "order", 80);
    registry.register(&shop, &new).await.unwrap();
    world.pass(world.ttl().duration() + Duration::from_secs(1) + world.slack()).await;
    assert_eq!(beat(&*registry, &new).await, Beat::Unknown);
    assert_eq!(registry.instances(&shop, &new.service).await.unwrap().value, []);
    assert_eq!(beat(&*registry, &new).await, Beat::Unknown);
}

/// What was deregistered is gone and not unknown, and its beats bring nothing back.
pub async fn a_beat_of_the_deregistered_is_told_so(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    for new in [instance(&*world, "order", 80), permanent("order", 81)] {
        let new = Registration { owner: Some(Owner::random()), ..new };
        registry.register(&shop, &new).await.unwrap();
        assert!(
            registry.deregister(&shop, &new.service, new.id().as_str(), new.owner.as_ref()).await.unwrap()
        );
        for _ in 0..3 {
            assert_eq!(beat(&*registry, &new).await, Beat::Gone);
        }
        assert_eq!(registry.instances(&shop, &new.service).await.unwrap().value, []);
    }
}

/// A successful beat means that the instance can be found (P3), whoever changes it meanwhile; and once a deregistration
/// is answered, no beat succeeds.
pub async fn a_successful_beat_means_found(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    for round in 0..8u16 {
        let new = instance(&*world, "order", 1000 + round);
        registry.register(&shop, &new).await.unwrap();
        let task = |n| {
            let (registry, shop, new) = (Arc::clone(&registry), shop.clone(), new.clone());
            async move {
                let id = new.id();
                match n {
                    0 => assert!(registry.deregister(&shop, &new.service, id.as_str(), None).await.unwrap()),
                    1 => {
                        let metadata = Metadata::new([("a", "1")]).unwrap();
                        registry.set_metadata(&shop, &new.service, id.as_str(), &metadata).await.unwrap();
                    }
                    _ => {
                        let answer = beat(&*registry, &new).await;
                        assert!(matches!(answer, Beat::Renewed(_) | Beat::Gone), "{answer:?}");
                    }
                }
            }
        };
        together(4, task).await;
        assert_eq!(beat(&*registry, &new).await, Beat::Gone, "round {round}");
        assert_eq!(registry.instances(&shop, &service("order")).await.unwrap().value, [], "round {round}");
    }
}

/// A beat never changes what an instance says of itself: an operator's edit stays.
pub async fn a_beat_keeps_an_edit(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let mut new = instance(&*world, "order", 80);
    new.metadata = Metadata::new([("a", "1")]).unwrap();
    registry.register(&shop, &new).await.unwrap();
    let edit = Metadata::new([("instance_status", "OUT_OF_SERVICE")]).unwrap();
    registry.set_metadata(&shop, &new.service, new.id().as_str(), &edit).await.unwrap();
    assert_eq!(kind(beat(&*registry, &new).await), "renewed");
    let found = registry.instance(&shop, &new.service, new.id().as_str()).await.unwrap().value.unwrap();
    assert_eq!(*found.metadata(), edit);
}

pub(super) async fn beat(registry: &dyn Registry, new: &Registration) -> Beat {
    let id = new.id();
    let key = BeatKey { service: new.service.as_str(), instance: id.as_str() };
    let answers = registry.beat(&shop(), &[key]).await.unwrap();
    assert_eq!(answers.len(), 1);
    answers[0]
}

fn kind(beat: Beat) -> &'static str {
    match beat {
        Beat::Renewed(_) => "renewed",
        Beat::Unknown => "unknown",
        Beat::Gone => "gone",
    }
}
