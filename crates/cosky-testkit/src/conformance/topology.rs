//! Who looks for whom.

use std::{collections::BTreeMap, sync::Arc};

use cosky_core::ConsumerName;

use super::{
    view::Watcher,
    world::{World, namespace, shop, together},
};

/// Dependencies are listed sorted, once each, in the consumer's namespace, and are no events.
pub async fn dependencies_are_noted_once(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let mut watcher = Watcher::open(&*world, &shop).await;
    let noted = [
        ("web", "stock"),
        ("web", "order"),
        ("web", "stock"),
        ("order", "bank-{eu}.pay"),
        ("job 7/x", "order"),
    ];
    for (consumer, producer) in noted {
        registry.add_dependency(&shop, &name(consumer), producer).await.unwrap();
    }
    let expected = BTreeMap::from([
        ("job 7/x".to_owned(), vec!["order".to_owned()]),
        ("order".to_owned(), vec!["bank-{eu}.pay".to_owned()]),
        ("web".to_owned(), vec!["order".to_owned(), "stock".to_owned()]),
    ]);
    assert_eq!(registry.topology(&shop).await.unwrap(), expected);
    assert!(registry.topology(&namespace("bank-{eu}")).await.unwrap().is_empty());
    watcher.hears_nothing(&*registry, &shop).await;
}

/// Nothing is noted of a consumer that looks for itself, unless its namesake is elsewhere.
pub async fn nobody_depends_on_themselves(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    registry.add_dependency(&shop, &name("web"), "web").await.unwrap();
    assert!(registry.topology(&shop).await.unwrap().get("web").is_none_or(Vec::is_empty));
    registry.add_dependency(&shop, &name("web"), "other.web").await.unwrap();
    assert_eq!(registry.topology(&shop).await.unwrap()["web"], ["other.web"]);
}

/// Of what many note at once nothing is lost.
pub async fn what_many_note_at_once_is_kept(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    let note = |n: usize| {
        let (registry, shop) = (Arc::clone(&registry), shop.clone());
        async move { registry.add_dependency(&shop, &name("web"), &format!("service-{n:02}")).await.unwrap() }
    };
    together(32, note).await;
    let producers: Vec<_> = (0..32).map(|n| format!("service-{n:02}")).collect();
    assert_eq!(registry.topology(&shop).await.unwrap()["web"], producers);
}

fn name(name: &str) -> ConsumerName {
    ConsumerName::new(name).unwrap()
}
