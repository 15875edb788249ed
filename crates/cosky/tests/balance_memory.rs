//! Picks allocate nothing. By itself, because the counting allocator takes over the whole program.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use cosky::balance::{Balancer, ConsistentHash, RoundRobin, TwoChoices, WeightedRandom, ZoneFirst};
use cosky_core::{Registration, Registry as _, ServiceId, Weight};
use support::{NS, Server, namespace};

async fn put(server: &Server, port: i64, weight: i64) {
    let mut new = Registration::new(ServiceId::new("stock").unwrap(), "http", "10.0.0.5", port).unwrap();
    new.ephemeral = false;
    new.weight = Weight::new(weight).unwrap();
    server.engine.register(&namespace(), &new).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pick_allocates_nothing() {
    fn check<B: Balancer>(view: &cosky::LiveView, balancer: B, key: &B::Key, finds: bool) {
        let balanced = view.balanced_by(balancer);
        // The first use in a thread sets up its random numbers and its way to read the list.
        assert_eq!(balanced.pick_for(key).is_some(), finds);
        let made = allocation_counter::measure(|| {
            for _ in 0..1000 {
                assert_eq!(balanced.pick_for(key).is_some(), finds);
            }
        });
        assert_eq!(made.count_total, 0, "{balanced:?}");
    }
    let server = Server::start().await;
    let shop = server.cosky().await.namespace(NS).unwrap();
    for (weight, finds) in [(0, false), (3, true)] {
        for port in 1..=20 {
            put(&server, port, weight).await;
        }
        let mut view = shop.discover("stock").await.unwrap();
        while !view.snapshot().iter().all(|instance| i64::from(instance.weight().get()) == weight) {
            view.changed().await;
        }
        assert_eq!(view.snapshot().len(), 20);
        check(&view, WeightedRandom::default(), &(), finds);
        check(&view, RoundRobin::default(), &(), finds);
        check(&view, TwoChoices::default(), &(), finds);
        check(&view, ConsistentHash::default(), b"user-1", finds);
        check(&view, ZoneFirst::new("a", RoundRobin::default()), &(), finds);
    }
    assert!(allocation_counter::measure(|| drop(shop.discover("stock"))).count_total > 0, "it counts");
}
