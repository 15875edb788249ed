//! P1 in real time: a thousand instances that live for 3 s beat through ten of their lives, and nobody who reads ever
//! misses one of them, whatever his wall clock says.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use cosky::{
    Cosky, Instance, NamespaceClient, Registration, RegistrationState, Registry as _, Scope, ServiceId,
    StoreState, Watched,
};
use cosky_core::{Event, InstanceOp};
use support::{
    NS, PATIENCE, namespace,
    part::Play,
    real::{open, sound},
    until,
};
use tokio::time::{sleep, sleep_until};
use tokio_util::task::AbortOnDropHandle;

const TTL: Duration = Duration::from_secs(3);
const WINDOWS: u32 = 10;
const INSTANCES: usize = 1000;
/// The fewest looks of one reader that make it a witness.
const LOOKS: u64 = 100;

/// Who looks until the end, and gives how often it looked and what was wrong.
type Reader = tokio::task::JoinHandle<(u64, Vec<String>)>;

#[tokio::test(flavor = "multi_thread")]
async fn who_beats_is_never_absent() {
    let server = open().start().await;
    let provider = Cosky::connect(server.url()).await.unwrap().namespace(NS).unwrap();
    let instance = |port: usize| Instance::http("stock", "10.0.0.1", port.try_into().unwrap()).ttl(TTL);
    let kept: Vec<_> =
        (1..=INSTANCES).map(|port| provider.keep_registered(instance(port)).unwrap()).collect();
    let kept: Arc<[Registration]> = kept.into();
    let all = |kept: &[Registration]| kept.iter().all(|one| one.state() == RegistrationState::Registered);
    until("all are registered", async || all(&kept)).await;

    let consumer = |clock| Play::new(server.url(), &["consumer", "fast", "stock"]).clock(clock).start();
    let consumers = ["-600", "0", "600", "step"].map(consumer);
    for consumer in &consumers {
        consumer.tells("list", PATIENCE, full).await;
    }
    let begin = Instant::now();
    let end = begin + WINDOWS * TTL;
    let readers: [(&str, Reader); 4] = [
        ("a view", tokio::spawn(view(server.url().to_owned(), end))),
        ("a reader of a view", tokio::spawn(reader(server.url().to_owned(), end))),
        ("REST", tokio::spawn(rest(server.url().to_owned(), end))),
        ("a watch", tokio::spawn(watch(provider.clone(), end))),
    ];
    // How late the latest beat of all was: when this is more than a life, the machine was too slow to judge anybody.
    let slow = AbortOnDropHandle::new(tokio::spawn({
        let kept = kept.clone();
        async move {
            let mut worst = Duration::ZERO;
            while Instant::now() < end {
                let late = kept.iter().filter_map(|one| one.last_beat()).map(|at| at.elapsed());
                worst = worst.max(late.max().unwrap_or_default());
                sleep(Duration::from_millis(20)).await;
            }
            worst
        }
    }));
    sleep_until(end.into()).await;
    let latest = slow.await.unwrap();
    for (who, reader) in readers {
        let (looks, wrong) = reader.await.unwrap();
        let (times, first) = (wrong.len(), wrong.first());
        assert_eq!(times, 0, "{who}, with beats at most {latest:?} apart, first {first:?}");
        assert!(looks >= LOOKS, "{who} looked only {looks} times");
    }
    for (at, consumer) in consumers.iter().enumerate() {
        let lists = consumer.told("list");
        let wrong: Vec<_> =
            lists.iter().filter(|(_, list)| !full(list)).map(|(at, list)| (at, list.len())).collect();
        assert!(wrong.is_empty(), "consumer {at}, with beats at most {latest:?} apart: {wrong:?}");
        assert!(consumer.told("clock").len() >= 10, "it looks all the time");
    }
    assert!(all(&kept));
    sound(&server);
    provider.close().await.unwrap();
}

/// Whether a consumer told of every instance.
fn full(list: &str) -> bool {
    list.starts_with("Live ") && list.split(' ').count() == INSTANCES + 1
}

async fn view(url: String, end: Instant) -> (u64, Vec<String>) {
    let shop = Cosky::connect(url).await.unwrap().namespace(NS).unwrap();
    let view = shop.discover("stock").await.unwrap();
    let (mut looks, mut wrong) = (0, Vec::new());
    while Instant::now() < end {
        looks += 1;
        let list = view.snapshot();
        if list.len() != INSTANCES || view.state() != StoreState::Live {
            wrong.push(format!("{} and {:?}", list.len(), view.state()));
        }
        sleep(Duration::from_millis(1)).await;
    }
    (looks, wrong)
}

async fn reader(url: String, end: Instant) -> (u64, Vec<String>) {
    let shop = Cosky::connect(url).await.unwrap().namespace(NS).unwrap();
    let mut reader = shop.discover("stock").await.unwrap().reader();
    let (mut looks, mut wrong) = (0, Vec::new());
    while Instant::now() < end {
        looks += 1;
        let seen = reader.instances().len();
        if seen != INSTANCES || reader.choose().is_err() {
            wrong.push(format!("{seen}"));
        }
        sleep(Duration::from_millis(1)).await;
    }
    (looks, wrong)
}

async fn rest(url: String, end: Instant) -> (u64, Vec<String>) {
    let registry = Cosky::connect(url).await.unwrap().registry();
    let stock = ServiceId::new("stock").unwrap();
    let (mut looks, mut wrong) = (0, Vec::new());
    while Instant::now() < end {
        looks += 1;
        let list = registry.instances(&namespace(), &stock).await.unwrap().value;
        let id = format!("stock@http#10.0.0.1#{}", 1 + looks as usize % INSTANCES);
        let one = registry.instance(&namespace(), &stock, &id).await.unwrap().value;
        if list.len() != INSTANCES || one.is_none() {
            wrong.push(format!("{} and {}", list.len(), one.is_some()));
        }
        sleep(Duration::from_millis(50)).await;
    }
    (looks, wrong)
}

/// Nobody is told that an instance has gone. An event is a look, and so is a stream that stays silent.
async fn watch(shop: NamespaceClient, end: Instant) -> (u64, Vec<String>) {
    let mut watch = shop.watch(Scope::All);
    let (mut looks, mut wrong) = (0, Vec::new());
    while Instant::now() < end {
        looks += 1;
        let Ok(told) = tokio::time::timeout(Duration::from_millis(100), watch.next()).await else { continue };
        match told {
            Watched::Change(change) => match &change.event {
                Event::Snapshot(snapshot)
                    if snapshot.services.values().map(Vec::len).sum::<usize>() == INSTANCES => {}
                Event::Instance { op: InstanceOp::Register, .. } | Event::Service { .. } => {}
                event => wrong.push(format!("{event:?}").chars().take(200).collect()),
            },
            Watched::Resumed => {}
            Watched::Lost(error) => wrong.push(error.to_string()),
        }
    }
    (looks, wrong)
}
