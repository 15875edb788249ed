//! What a restart keeps, and what it must not bring back.

use std::{sync::Arc, time::Duration};

use cosky_core::{
    Accounts, Beat, BeatKey, Error, Namespace, Owner, Registration, Registry, ServiceId, Store, StoreState,
    Ttl, account::ApiToken,
};
use cosky_embedded::{Embedded, Limits, Options};
use cosky_testkit::{ManualClock, disk::Disk};

use crate::world::open;

fn shop() -> Namespace {
    Namespace::new("shop").unwrap()
}

fn instance(port: i64, ttl: i64) -> Registration {
    let new = Registration::new(ServiceId::new("order").unwrap(), "http", "10.0.0.1", port).unwrap();
    Registration { ttl: Some(Ttl::from_seconds(ttl).unwrap()), owner: Some(Owner::random()), ..new }
}

async fn beat(engine: &Embedded, new: &Registration) -> Beat {
    let id = new.id();
    engine.beat(&shop(), &[BeatKey { service: "order", instance: id.as_str() }]).await.unwrap()[0]
}

/// Accounts, the signing key, API tokens and used refresh tokens are there again.
#[tokio::test]
async fn credentials_survive() {
    let (disk, clock) = (Disk::new(), ManualClock::new());
    let user = "cosky".parse().unwrap();
    let token = ApiToken {
        id: "a".into(),
        name: "for tests".into(),
        user: "cosky".parse().unwrap(),
        digest: [7; 32],
        created_at: 1,
        expires_at: Some(2),
    };
    let engine = open(&disk, &clock).await.unwrap();
    engine.add_account(&user, "$argon2id$one").await.unwrap();
    engine.set_password(&user, "$argon2id$two").await.unwrap();
    let account = engine.account(&user).await.unwrap();
    let key = engine.signing_key(&[1; 32]).await.unwrap();
    engine.add_api_token(&token).await.unwrap();
    assert!(engine.use_refresh_token("used", 4_000_000_000).await.unwrap());
    engine.close().await;

    let engine = open(&disk, &clock).await.unwrap();
    assert_eq!(engine.account(&user).await.unwrap(), account);
    assert_eq!(engine.signing_key(&[2; 32]).await.unwrap(), key);
    assert_eq!(engine.api_tokens().await.unwrap(), [token]);
    assert!(!engine.use_refresh_token("used", 4_000_000_000).await.unwrap());
    assert!(!engine.add_account(&user, "$argon2id$three").await.unwrap());
}

/// What has no beats while the store is closed gets one TTL of grace, for which reads are marked as protected, and then
/// goes.
#[tokio::test]
async fn the_living_get_one_ttl_of_grace() {
    let (disk, clock) = (Disk::new(), ManualClock::new());
    let engine = open(&disk, &clock).await.unwrap();
    let (short, long) = (instance(1, 5), instance(2, 20));
    for new in [&short, &long] {
        engine.register(&shop(), new).await.unwrap();
    }
    clock.advance(Duration::from_secs(4));
    engine.close().await;
    clock.advance(Duration::from_secs(3600));

    let engine = open(&disk, &clock).await.unwrap();
    let ids = async || {
        let read = engine.instances(&shop(), &short.service).await.unwrap();
        (read.state, read.value.iter().map(|found| found.port().get()).collect::<Vec<_>>())
    };
    assert_eq!(ids().await, (StoreState::Protected, vec![1, 2]));
    clock.advance(Duration::from_secs(5));
    engine.run_due().await;
    assert_eq!(ids().await, (StoreState::Protected, vec![2]));
    clock.advance(Duration::from_secs(15));
    engine.run_due().await;
    assert_eq!(ids().await, (StoreState::Live, vec![]));
}

/// Deregistered stays deregistered for two more TTLs.
#[tokio::test]
async fn marks_survive() {
    let (disk, clock) = (Disk::new(), ManualClock::new());
    let engine = open(&disk, &clock).await.unwrap();
    let new = instance(1, 5);
    engine.register(&shop(), &new).await.unwrap();
    engine.deregister(&shop(), &new.service, new.id().as_str(), new.owner.as_ref()).await.unwrap();
    engine.close().await;

    let engine = open(&disk, &clock).await.unwrap();
    assert_eq!(beat(&engine, &new).await, Beat::Gone);
    assert!(matches!(engine.register(&shop(), &new).await, Err(Error::Gone { .. })));
    clock.advance(Duration::from_secs(10));
    engine.run_due().await;
    assert_eq!(beat(&engine, &new).await, Beat::Unknown);
    engine.register(&shop(), &new).await.unwrap();
}

/// A mark that was over before the restart does not come back. (Marks used to be dropped in the order in which they were
/// made, so a long one kept the shorter ones behind it in the file.)
#[tokio::test]
async fn marks_that_are_over_do_not_come_back() {
    let (disk, clock) = (Disk::new(), ManualClock::new());
    let engine = open(&disk, &clock).await.unwrap();
    let (long, short) = (instance(1, 100), instance(2, 1));
    for new in [&long, &short] {
        engine.register(&shop(), new).await.unwrap();
        engine.deregister(&shop(), &new.service, new.id().as_str(), None).await.unwrap();
    }
    clock.advance(Duration::from_secs(2));
    engine.run_due().await;
    engine.close().await;
    let engine = open(&disk, &clock).await.unwrap();
    assert_eq!((beat(&engine, &long).await, beat(&engine, &short).await), (Beat::Gone, Beat::Unknown));
}

/// What was loaded counts towards the limits as what was written. (Services of loaded instances used to be left out, and
/// removing them made the count run below zero.)
#[tokio::test]
async fn what_was_loaded_counts() {
    let (disk, clock) = (Disk::new(), ManualClock::new());
    let limited = || {
        let limits = Limits { services: 1, instances: 1, ..Limits::default() };
        let options = Options { limits, clock: Arc::new(clock.clone()), ..Options::new("unused") };
        Embedded::open_backend(disk.file(), options)
    };
    let engine = limited().await.unwrap();
    let new = instance(1, 30);
    engine.register(&shop(), &new).await.unwrap();
    engine.close().await;

    let engine = limited().await.unwrap();
    let (web, order) = (ServiceId::new("web").unwrap(), &new.service);
    let full = |answer: cosky_core::Result<bool>| matches!(answer, Err(Error::Exhausted { limit: 1, .. }));
    assert!(full(engine.set_service(&shop(), &web).await));
    assert!(full(engine.register(&shop(), &instance(2, 30)).await.map(|_| true)));
    assert!(engine.deregister(&shop(), order, new.id().as_str(), None).await.unwrap());
    assert!(engine.remove_service(&shop(), order).await.unwrap());
    assert!(engine.set_service(&shop(), &web).await.unwrap(), "there is room again");
    assert!(full(engine.set_service(&shop(), order).await));
}
