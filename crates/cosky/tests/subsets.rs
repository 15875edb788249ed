//! Parts of a live view by metadata, with what they fall back to, on a view of a real server.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use cosky::{
    Error, LiveView, ServiceInstance, Subset, SubsetView,
    balance::{Balancer, ConsistentHash, RoundRobin, TwoChoices, WeightedRandom, ZoneFirst},
    core,
};
use cosky_core::{Metadata, Registration, Registry as _, ServiceId};
use support::{NS, Server, namespace, until};

fn service() -> ServiceId {
    ServiceId::new("stock").unwrap()
}

/// Registers an instance, or registers it again, and waits until the view shows it so.
async fn put(server: &Server, view: &LiveView, port: u16, weight: u32, metadata: &[(&str, &str)]) {
    let mut new = Registration::new(service(), "http", "10.0.0.5", port.into()).unwrap();
    new.ephemeral = false;
    new.weight = core::Weight::new(weight.into()).unwrap();
    new.metadata = Metadata::new(metadata.iter().copied()).unwrap();
    server.engine.register(&namespace(), &new).await.unwrap();
    let there = |instance: &ServiceInstance| {
        instance.id() == &new.id() && instance.weight() == new.weight && *instance.metadata() == new.metadata
    };
    until("the view shows it", async || view.snapshot().iter().any(there)).await;
}

async fn remove(server: &Server, view: &LiveView, port: u16) {
    let id = format!("stock@http#10.0.0.5#{port}");
    server.engine.deregister(&namespace(), &service(), &id, None).await.unwrap();
    until("the view has lost it", async || view.snapshot().iter().all(|i| i.id().as_str() != id)).await;
}

async fn view(server: &Server) -> LiveView {
    server.cosky().await.namespace(NS).unwrap().discover("stock").await.unwrap()
}

fn ports(part: &SubsetView) -> Vec<u32> {
    part.snapshot().iter().map(|instance| instance.port().get()).collect()
}

/// The ports that 200 choices name, those of the part itself and of every balancer on it.
fn chosen(part: &SubsetView) -> Vec<u32> {
    let (round, two) = (part.balanced_by(RoundRobin::default()), part.balanced_by(TwoChoices::default()));
    let zone = part.balanced_by(ZoneFirst::new("a", WeightedRandom::default()));
    let hash = part.balanced_by(ConsistentHash::default());
    let mut ports = std::collections::BTreeSet::new();
    for key in 0..200_u64 {
        let picks = [
            part.choose().ok(),
            round.pick().map(|picked| picked.clone()),
            two.pick().map(|picked| picked.clone()),
            zone.pick().map(|picked| picked.clone()),
            hash.pick_for(&key.to_le_bytes()).map(|picked| picked.clone()),
        ];
        let none = picks.iter().filter(|pick| pick.is_none()).count();
        assert!(none == 0 || none == picks.len(), "all of them choose from the same: {picks:?}");
        ports.extend(picks.into_iter().flatten().map(|instance| instance.port().get()));
    }
    ports.into_iter().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_falls_back_to_what_is_stated_and_comes_home() {
    let server = Server::start().await;
    let view = view(&server).await;
    put(&server, &view, 1, 1, &[("lane", "blue")]).await;
    put(&server, &view, 2, 1, &[("lane", "blue")]).await;
    put(&server, &view, 3, 1, &[("lane", "green")]).await;
    put(&server, &view, 4, 1, &[]).await;
    let blue = || Subset::of("lane", "blue");
    let only = view.subset(blue());
    let green = view.subset(blue().or("lane", "green"));
    let all = view.subset(blue().or_all());
    for part in [&only, &green, &all] {
        assert_eq!((ports(part), chosen(part), part.alternative()), (vec![1, 2], vec![1, 2], Some(0)));
    }

    remove(&server, &view, 1).await;
    remove(&server, &view, 2).await;
    assert_eq!((ports(&only), chosen(&only), only.alternative()), (vec![], vec![], None));
    assert!(matches!(only.choose(), Err(Error::NoInstance { service }) if service == "stock"));
    assert_eq!((ports(&green), chosen(&green), green.alternative()), (vec![3], vec![3], Some(1)));
    assert_eq!((ports(&all), chosen(&all), all.alternative()), (vec![3, 4], vec![3, 4], Some(1)));

    put(&server, &view, 5, 1, &[("lane", "blue")]).await;
    for part in [&only, &green, &all] {
        assert_eq!((ports(part), chosen(part), part.alternative()), (vec![5], vec![5], Some(0)));
    }
}

/// A lane whose last instance is taken out of service is one that has nobody.
#[tokio::test(flavor = "multi_thread")]
async fn status_and_weight_decide_whether_a_part_has_anybody() {
    let server = Server::start().await;
    let view = view(&server).await;
    put(&server, &view, 1, 1, &[("lane", "blue")]).await;
    put(&server, &view, 2, 0, &[("lane", "blue")]).await;
    put(&server, &view, 3, 3, &[("lane", "green")]).await;
    let part = view.subset(Subset::of("lane", "blue").or("lane", "green"));
    assert_eq!((ports(&part), chosen(&part)), (vec![1, 2], vec![1]));
    put(&server, &view, 1, 1, &[("lane", "blue"), ("instance_status", "OUT_OF_SERVICE")]).await;
    assert_eq!((ports(&part), chosen(&part), part.alternative()), (vec![3], vec![3], Some(1)));
    put(&server, &view, 3, 0, &[("lane", "green")]).await;
    assert_eq!((ports(&part), chosen(&part), part.alternative()), (vec![1, 2], vec![], None));
    put(&server, &view, 2, 1, &[("lane", "blue")]).await;
    assert_eq!((ports(&part), chosen(&part), part.alternative()), (vec![1, 2], vec![2], Some(0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alternative_may_ask_for_several_things() {
    let server = Server::start().await;
    let view = view(&server).await;
    put(&server, &view, 1, 1, &[("version", "2"), ("region", "us")]).await;
    put(&server, &view, 2, 1, &[("version", "1"), ("region", "eu")]).await;
    let part = view.subset(Subset::of("version", "2").and("region", "eu").or("version", "2").or_all());
    assert_eq!((ports(&part), part.alternative()), (vec![1], Some(1)));
    put(&server, &view, 3, 1, &[("version", "2"), ("region", "eu"), ("more", "x")]).await;
    assert_eq!((ports(&part), part.alternative()), (vec![3], Some(0)));
    remove(&server, &view, 1).await;
    remove(&server, &view, 3).await;
    assert_eq!((ports(&part), part.alternative()), (vec![2], Some(2)));
}

/// Weights hold within a part.
#[tokio::test(flavor = "multi_thread")]
async fn shares_of_a_part_follow_its_weights() {
    let server = Server::start().await;
    let view = view(&server).await;
    put(&server, &view, 1, 1, &[("lane", "blue")]).await;
    put(&server, &view, 2, 100, &[]).await;
    put(&server, &view, 3, 3, &[("lane", "blue")]).await;
    let part = view.subset(Subset::of("lane", "blue").or_all());
    let first = (0..30_000).filter(|_| part.choose().unwrap().port().get() == 1).count();
    assert!(first.abs_diff(7_500) < 600, "{first} of 30,000");
    let round = part.balanced_by(RoundRobin::default());
    let turns: Vec<_> = (0..8).map(|_| round.pick().unwrap().port().get()).collect();
    assert_eq!(turns.iter().filter(|port| **port == 1).count(), 2, "{turns:?}");
}

/// Counts the lists that it was built from.
#[derive(Default)]
struct Told(Arc<AtomicUsize>);

impl Balancer for Told {
    type Key = ();
    type Held = ();

    fn rebuild(&self, eligible: &[&ServiceInstance]) -> Self {
        assert!(eligible.iter().all(|instance| instance.metadata().get("lane") == Some("blue")));
        self.0.fetch_add(1, Ordering::SeqCst);
        Self(self.0.clone())
    }

    fn pick(&self, (): &()) -> Option<(usize, ())> {
        Some((0, ()))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changes_elsewhere_rebuilds_nothing_and_what_changes_here_does() {
    let server = Server::start().await;
    let view = view(&server).await;
    put(&server, &view, 1, 1, &[("lane", "blue")]).await;
    let told = Told::default();
    let lists = told.0.clone();
    let part = view.subset(Subset::of("lane", "blue"));
    let balanced = part.balanced_by(told);
    let before = part.snapshot();
    put(&server, &view, 2, 1, &[("lane", "green")]).await;
    assert_eq!(balanced.pick().unwrap().port().get(), 1);
    assert!(Arc::ptr_eq(&before, &part.snapshot()));
    assert_eq!(lists.load(Ordering::SeqCst), 1);
    put(&server, &view, 1, 1, &[("lane", "green")]).await;
    assert!(balanced.pick().is_none());
    put(&server, &view, 3, 1, &[("lane", "blue")]).await;
    assert_eq!(balanced.pick().unwrap().port().get(), 3);
    assert_eq!(lists.load(Ordering::SeqCst), 3);
    assert_eq!(balanced.view().service(), view.service());
}
