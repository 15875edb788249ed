//! Editing what an instance says of itself.

use std::{sync::Arc, time::Duration};

use cosky_core::{Error, Event, Life, Metadata, MetadataPatch};

use super::{
    view::Watcher,
    world::{World, instance, permanent, service, shop, together},
};

/// Setting replaces all of it and is told with the new state; the life stays as it is.
pub async fn setting_replaces_all(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let mut new = instance(&*world, "order", 80);
    new.metadata = Metadata::new([("a", "1"), ("a__b", "2")]).unwrap();
    registry.register(&shop, &new).await.unwrap();
    let mut watcher = Watcher::open(&*world, &shop).await;
    for metadata in [Metadata::new([("c", "ü\n")]).unwrap(), Metadata::default()] {
        assert!(registry.set_metadata(&shop, &new.service, new.id().as_str(), &metadata).await.unwrap());
        let found = registry.instance(&shop, &new.service, new.id().as_str()).await.unwrap().value.unwrap();
        assert_eq!(*found.metadata(), metadata);
        match &watcher.next().await.event {
            Event::Instance { op, id, instance: Some(told), .. } => {
                assert_eq!((op.as_str(), id), ("set_metadata", &new.id()));
                assert_eq!(told.instance(), found.instance());
            }
            other => panic!("expected the new state, not {other:?}"),
        }
    }
    watcher.hears_nothing(&*registry, &shop).await;
}

/// Patching sets and removes single entries and leaves the others.
pub async fn patching_merges(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let mut new = permanent("order", 80);
    new.metadata = Metadata::new([("kept", "1"), ("changed", "1"), ("removed", "1")]).unwrap();
    registry.register(&shop, &new).await.unwrap();
    let mut watcher = Watcher::open(&*world, &shop).await;
    let patch = patch(&[("changed", Some("2")), ("removed", None), ("added", Some("")), ("absent", None)]);
    assert!(registry.patch_metadata(&shop, &new.service, new.id().as_str(), &patch).await.unwrap());
    let expected = Metadata::new([("kept", "1"), ("changed", "2"), ("added", "")]).unwrap();
    let found = registry.instance(&shop, &new.service, new.id().as_str()).await.unwrap().value.unwrap();
    assert_eq!(*found.metadata(), expected);
    assert_eq!(found.life(), Life::Permanent);
    watcher.hears(&[format!("set_metadata {}", new.id())]).await;
    watcher.hears_nothing(&*registry, &shop).await;
}

/// A patch whose outcome would be too large is refused whole.
pub async fn a_patch_that_is_too_large_changes_nothing(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let mut new = permanent("order", 80);
    new.metadata = Metadata::new((0..255).map(|n| (format!("{n:03}"), "v"))).unwrap();
    registry.register(&shop, &new).await.unwrap();
    let mut watcher = Watcher::open(&*world, &shop).await;
    let patch = patch(&[("000", Some("changed")), ("256", Some("v")), ("257", Some("v"))]);
    let refused = registry.patch_metadata(&shop, &new.service, new.id().as_str(), &patch).await;
    assert!(matches!(refused, Err(Error::TooLarge { .. })), "{refused:?}");
    let found = registry.instance(&shop, &new.service, new.id().as_str()).await.unwrap().value.unwrap();
    assert_eq!(*found.metadata(), new.metadata);
    watcher.hears_nothing(&*registry, &shop).await;
}

/// What is not there, or is another service's, cannot be edited, and nobody is told anything.
pub async fn what_is_not_there_cannot_be_edited(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let (new, gone) = (permanent("order", 80), permanent("order", 81));
    for new in [&new, &gone] {
        registry.register(&shop, new).await.unwrap();
    }
    registry.deregister(&shop, &gone.service, gone.id().as_str(), None).await.unwrap();
    let mut watcher = Watcher::open(&*world, &shop).await;
    let (id, gone) = (new.id(), gone.id());
    for (name, id) in [("order", gone.as_str()), ("order", "garbage"), ("web", id.as_str()), ("web", "x")] {
        let (name, metadata) = (service(name), Metadata::new([("a", "1")]).unwrap());
        assert!(!registry.set_metadata(&shop, &name, id, &metadata).await.unwrap(), "{name} {id}");
        let patch = patch(&[("a", Some("1"))]);
        assert!(!registry.patch_metadata(&shop, &name, id, &patch).await.unwrap(), "{name} {id}");
    }
    let found = registry.instance(&shop, &new.service, id.as_str()).await.unwrap().value.unwrap();
    assert!(found.metadata().is_empty());
    assert_eq!(registry.services(&shop).await.unwrap().value, [service("order")]);
    watcher.hears_nothing(&*registry, &shop).await;
}

/// An edit does not prolong a life, and after its end there is nothing to edit.
pub async fn an_edit_does_not_prolong_a_life(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let (new, ttl) = (instance(&*world, "order", 80), world.ttl().duration());
    let born = world.now();
    registry.register(&shop, &new).await.unwrap();
    world.pass(ttl / 2).await;
    let metadata = Metadata::new([("a", "1")]).unwrap();
    let edited = registry.set_metadata(&shop, &new.service, new.id().as_str(), &metadata).await.unwrap();
    let patch = patch(&[("b", Some("2"))]);
    let patched = registry.patch_metadata(&shop, &new.service, new.id().as_str(), &patch).await.unwrap();
    if world.now() < born + ttl {
        assert!(edited && patched);
    }
    let left = registry.instance(&shop, &new.service, new.id().as_str()).await.unwrap().value;
    assert!(left.is_none_or(|found| found.life().remaining().unwrap() <= ttl / 2 + world.slack()));
    world.pass(ttl / 2 + Duration::from_secs(1) + world.slack()).await;
    assert_eq!(registry.instances(&shop, &new.service).await.unwrap().value, []);
    assert!(!registry.set_metadata(&shop, &new.service, new.id().as_str(), &metadata).await.unwrap());
    assert!(!registry.patch_metadata(&shop, &new.service, new.id().as_str(), &patch).await.unwrap());
}

/// Patches of different entries at the same time all have their effect.
pub async fn patches_at_once_all_count(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let new = permanent("order", 80);
    registry.register(&shop, &new).await.unwrap();
    let mut watcher = Watcher::open(&*world, &shop).await;
    let patch_one = |n: usize| {
        let (registry, shop, new) = (Arc::clone(&registry), shop.clone(), new.clone());
        async move {
            let key = n.to_string();
            let patch = patch(&[(&key, Some("x"))]);
            assert!(registry.patch_metadata(&shop, &new.service, new.id().as_str(), &patch).await.unwrap());
        }
    };
    together(32, patch_one).await;
    let found = registry.instance(&shop, &new.service, new.id().as_str()).await.unwrap().value.unwrap();
    assert_eq!(found.metadata().len(), 32);
    let mut entries = 0;
    for _ in 0..32 {
        match &watcher.next().await.event {
            Event::Instance { instance: Some(told), .. } => {
                entries += 1;
                assert_eq!(told.metadata().len(), entries, "each event has the state that its change made");
            }
            other => panic!("expected the new state, not {other:?}"),
        }
    }
    watcher.hears_nothing(&*registry, &shop).await;
}

fn patch(entries: &[(&str, Option<&str>)]) -> MetadataPatch {
    MetadataPatch::new(entries.iter().map(|(key, value)| ((*key).to_owned(), value.map(str::to_owned))))
        .unwrap()
}
