//! Deregistering: who may, what it leaves, and that it happens once.

use std::{sync::Arc, time::Duration};

use cosky_core::{Owner, Registration};

use super::{
    view::Watcher,
    world::{World, instance, permanent, service, shop, together},
};

/// Deregistering answers true once, is told once, and takes the instance from every reader.
pub async fn deregistering_is_final_and_told_once(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let mut watcher = Watcher::open(&*world, &shop).await;
    for new in [instance(&*world, "order", 80), permanent("order", 81)] {
        let id = new.id();
        assert!(!registry.deregister(&shop, &new.service, id.as_str(), None).await.unwrap(), "not there yet");
        registry.register(&shop, &new).await.unwrap();
        assert!(registry.deregister(&shop, &new.service, id.as_str(), None).await.unwrap());
        assert!(
            !registry.deregister(&shop, &new.service, id.as_str(), None).await.unwrap(),
            "not there any more"
        );
        assert_eq!(registry.instances(&shop, &new.service).await.unwrap().value, []);
        assert_eq!(registry.instance(&shop, &new.service, id.as_str()).await.unwrap().value, None);
    }
    let id = |port| format!("order@http#10.0.0.1#{port}");
    watcher
        .hears(&["set order".into(), format!("register {}", id(80)), format!("deregister {}", id(80))])
        .await;
    watcher.hears(&[format!("register {}", id(81)), format!("deregister {}", id(81))]).await;
    watcher.hears_nothing(&*registry, &shop).await;
}

/// What is no id, and what belongs to another service, is simply not there.
pub async fn a_wrong_name_removes_nothing(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let new = permanent("order", 80);
    registry.register(&shop, &new).await.unwrap();
    registry.set_service(&shop, &service("web")).await.unwrap();
    let mut watcher = Watcher::open(&*world, &shop).await;
    let id = new.id();
    let wrong = [
        ("web", id.as_str()),
        ("nobody", id.as_str()),
        ("order", "garbage"),
        ("order", "order@http#10.0.0.1#80#"),
        ("order", "order@http#10.0.0.1"),
        ("order", "ORDER@http#10.0.0.1#80"),
    ];
    for (name, id) in wrong {
        assert!(!registry.deregister(&shop, &service(name), id, None).await.unwrap(), "{name} {id}");
    }
    assert_eq!(registry.instances(&shop, &new.service).await.unwrap().value.len(), 1);
    watcher.hears_nothing(&*registry, &shop).await;
}

/// A goodbye that names an owner removes that owner's instance only: the late one of a process whose successor has
/// the same address removes nothing.
pub async fn a_late_goodbye_spares_the_successor(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let (old, successor) = (Owner::random(), Owner::random());
    let plain = instance(&*world, "order", 80);
    let id = plain.id();
    for owner in [&old, &successor] {
        let new = Registration { owner: Some(owner.clone()), ..plain.clone() };
        registry.register(&shop, &new).await.unwrap();
    }
    let mut watcher = Watcher::open(&*world, &shop).await;
    assert!(!registry.deregister(&shop, &plain.service, id.as_str(), Some(&old)).await.unwrap());
    assert_eq!(registry.instances(&shop, &plain.service).await.unwrap().value.len(), 1);
    watcher.hears_nothing(&*registry, &shop).await;
    assert!(registry.deregister(&shop, &plain.service, id.as_str(), Some(&successor)).await.unwrap());
    watcher.hears(&[format!("deregister {id}")]).await;
}

/// A registration that named no owner is not removed by somebody who names one.
pub async fn a_stranger_removes_nothing(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let new = permanent("order", 80);
    registry.register(&shop, &new).await.unwrap();
    let stranger = Owner::random();
    let id = new.id();
    assert!(!registry.deregister(&shop, &new.service, id.as_str(), Some(&stranger)).await.unwrap());
    assert!(registry.instance(&shop, &new.service, id.as_str()).await.unwrap().value.is_some());
    assert!(
        registry.deregister(&shop, &new.service, id.as_str(), None).await.unwrap(),
        "nobody in particular may"
    );
}

/// An instance that has expired is not there to be deregistered, and its removal is told once, as expiry.
pub async fn what_has_expired_cannot_be_deregistered(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let mut watcher = Watcher::open(&*world, &shop).await;
    let new = instance(&*world, "order", 80);
    registry.register(&shop, &new).await.unwrap();
    world.pass(world.ttl().duration() + Duration::from_secs(1) + world.slack()).await;
    let id = new.id();
    assert!(!registry.deregister(&shop, &new.service, id.as_str(), None).await.unwrap());
    watcher.hears(&["set order", &format!("register {id}"), &format!("expired {id}")]).await;
    watcher.hears_nothing(&*registry, &shop).await;
}

/// Of many that deregister one instance at once, one did it, and watchers hear it once.
pub async fn one_of_many_deregisters(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let mut watcher = Watcher::open(&*world, &shop).await;
    registry.set_service(&shop, &service("order")).await.unwrap();
    watcher.hears(&["set order"]).await;
    for port in 1000..1008 {
        let new = permanent("order", port);
        registry.register(&shop, &new).await.unwrap();
        let deregister = |_| {
            let (registry, shop, new) = (Arc::clone(&registry), shop.clone(), new.clone());
            async move { registry.deregister(&shop, &new.service, new.id().as_str(), None).await.unwrap() }
        };
        assert_eq!(together(8, deregister).await.into_iter().filter(|done| *done).count(), 1);
        watcher.hears(&[format!("register {}", new.id()), format!("deregister {}", new.id())]).await;
    }
    watcher.hears_nothing(&*registry, &shop).await;
}
