//! What becomes of a reader that falls behind.

use std::sync::Arc;

use cosky_core::{Error, Scope};

use super::{
    view::Watcher,
    watch::{count, counted, counter, told},
    world::{World, service, shop},
};

/// A reader that falls too far behind hears what it can in order, then [`Error::Lagged`], then the end; another one
/// that keeps up is not cut off.
pub async fn a_reader_too_slow_is_cut_off(world: Arc<dyn World>) {
    let (registry, shop) = (world.registry(), shop());
    registry.register(&shop, &counted(0)).await.unwrap();
    let mut slow = Watcher::open(&*world, &shop).await;
    let start = slow.place();
    let mut quick = Watcher::open(&*world, &shop).await;
    let total = u64::try_from(world.ring()).unwrap() * 2 + 64;
    let writer = count(&registry, &shop, total);
    for expected in 1..=total {
        assert_eq!(told(&quick.next().await.event), expected);
    }
    writer.await.expect("the writer does not panic");

    let mut heard = 0;
    loop {
        match slow.item().await.expect("the last item is an error") {
            Ok(change) => {
                heard += 1;
                assert_eq!(told(&change.event), heard, "what is told before the end has no gap");
            }
            Err(error) => {
                assert!(matches!(error, Error::Lagged), "{error:?}");
                break;
            }
        }
    }
    assert!(heard < total);
    assert!(slow.item().await.is_none(), "nothing follows the error");
    let snapshot = Watcher::from(&*world, &shop, Scope::All, Some(start)).await.snapshot().await;
    assert_eq!(
        counter(&snapshot.services[&service("counter")][0]),
        total,
        "so far back there is only a snapshot"
    );
}
