//! Which data a store serves, and how often it was opened.

use std::sync::Arc;

use cosky_core::{Scope, StoreId};

use super::{
    view::Watcher,
    world::{World, namespace, permanent, service, shop},
};

/// All snapshots name the same store as long as it is open, whatever their namespace, their scope and what was written.
pub async fn every_snapshot_names_the_store(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let store = named(&*world).await;
    registry.register(&shop, &permanent("order", 80)).await.unwrap();
    for (namespace, scope) in [
        (shop, Scope::All),
        (namespace("absent"), Scope::All),
        (namespace("absent"), Scope::services([service("order")]).unwrap()),
    ] {
        let mut watcher = Watcher::from(&*world, &namespace, scope, None).await;
        assert_eq!(watcher.snapshot().await.store, Some(store), "{namespace}");
    }
}

/// A store that is opened again is the same, opened once more.
pub async fn reopening_is_counted(world: Arc<dyn World>) {
    let mut last = named(&*world).await;
    world.registry().register(&shop(), &permanent("order", 80)).await.unwrap();
    let mut world = world;
    for _ in 0..3 {
        world = world.reopen().await;
        let list = world.registry().instances(&shop(), &service("order")).await.unwrap().value;
        assert_eq!(list.len(), 1, "it is the same data");
        let now = named(&*world).await;
        assert_eq!((now.id, now.opened), (last.id, last.opened + 1));
        assert_ne!(now.opening, last.opening);
        last = now;
    }
}

/// No two stores have one id.
pub async fn another_store_has_another_id(world: Arc<dyn World>) {
    let other = world.another().await;
    assert_ne!(named(&*other).await.id, named(&*world).await.id);
    let (id, reopened) = (named(&*other).await.id, other.reopen().await);
    assert_eq!(named(&*reopened).await.id, id);
}

async fn named(world: &dyn World) -> StoreId {
    let snapshot = Watcher::from(world, &shop(), Scope::All, None).await.snapshot().await;
    snapshot.store.expect("a snapshot names its store")
}
