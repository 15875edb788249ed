//! A process that was stopped, a disk that hangs, and crowds of watchers.

use std::{sync::Arc, time::Duration};

use cosky_core::{
    Accounts as _, Beat, BeatKey, Event, Namespace, Registration, Registry as _, Scope, ServiceId,
    Store as _, StoreState, Ttl,
};
use cosky_embedded::{Embedded, Limits, Options};
use cosky_testkit::{ManualClock, disk::Disk};
use futures_util::StreamExt as _;

const TTL: Duration = Duration::from_secs(3);

fn shop() -> Namespace {
    Namespace::new("shop").unwrap()
}

fn order() -> ServiceId {
    ServiceId::new("order").unwrap()
}

fn instance(port: i64) -> Registration {
    let ttl = Some(Ttl::from_seconds(TTL.as_secs().try_into().unwrap()).unwrap());
    Registration { ttl, ..Registration::new(order(), "http", "10.0.0.1", port).unwrap() }
}

async fn open(disk: &Disk, clock: &ManualClock, stall_limit: Duration) -> Arc<Embedded> {
    let options = Options { stall_limit, clock: Arc::new(clock.clone()), ..Options::new("unused") };
    Arc::new(Embedded::open_backend(disk.file(), options).await.unwrap())
}

async fn beat(engine: &Embedded, new: &Registration) -> Beat {
    let id = new.id();
    engine.beat(&shop(), &[BeatKey { service: "order", instance: id.as_str() }]).await.unwrap()[0]
}

async fn count(engine: &Embedded) -> usize {
    engine.instances(&shop(), &order()).await.unwrap().value.len()
}

/// Waits for what a thread of the engine does by itself, for a bounded time.
async fn eventually(mut reached: impl FnMut() -> bool) {
    let patience = tokio::time::Instant::now() + Duration::from_secs(20);
    while !reached() {
        assert!(tokio::time::Instant::now() < patience, "it does not come");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// P1: while the process is stopped or the machine suspended no beat can arrive, so nobody expires for it. Watchers are
/// told that what is missing may only be late, and that this is over.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_expires_because_the_process_was_stopped() {
    let clock = ManualClock::new();
    let engine = open(&Disk::new(), &clock, Duration::from_secs(2)).await;
    engine.register(&shop(), &instance(1)).await.unwrap();
    let mut watch = engine.watch(&shop(), Scope::All, None).await.unwrap();
    watch.next().await.unwrap().unwrap();

    clock.advance(20 * TTL);
    let told = watch.next().await.unwrap().unwrap();
    assert_eq!(told.event, Event::State(StoreState::Protected));
    assert_eq!(count(&engine).await, 1);
    assert!(matches!(beat(&engine, &instance(1)).await, Beat::Renewed(_)));

    // Within what is no stop, time passes as ever.
    clock.advance(TTL / 2);
    engine.run_due().await;
    clock.advance(TTL / 2);
    engine.run_due().await;
    let told: Vec<_> = watch.by_ref().take(2).map(|change| change.unwrap().event.clone()).collect().await;
    assert_eq!(told[0], Event::State(StoreState::Live));
    assert!(matches!(told[1], Event::Instance { .. }), "it expires one TTL after its last beat: {told:?}");
    assert_eq!(count(&engine).await, 0);
}

/// P2: a slow commit is not a stop: beats arrive meanwhile, so who has none goes.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_commit_keeps_nobody_alive() {
    let (disk, clock) = (Disk::new(), ManualClock::new());
    let engine = open(&disk, &clock, Duration::from_secs(2)).await;
    engine.register(&shop(), &instance(1)).await.unwrap();
    engine.register(&shop(), &instance(2)).await.unwrap();
    disk.hang();
    let writing = tokio::spawn({
        let engine = Arc::clone(&engine);
        async move { engine.add_namespace(&Namespace::new("other").unwrap()).await }
    });
    // The clock goes on in steps that the pulse can follow, and one of the two beats.
    for _ in 0..4 {
        clock.advance(Duration::from_secs(1));
        assert!(matches!(beat(&engine, &instance(1)).await, Beat::Renewed(_)));
        tokio::time::sleep(Duration::from_millis(600)).await;
    }
    assert_eq!(engine.health().state, StoreState::Live);
    disk.heal();
    assert!(writing.await.unwrap().unwrap());
    eventually(|| engine.figures().expirations == 1).await;
    assert_eq!(count(&engine).await, 1, "the one that beat stays");
}

/// A commit that does not come back shows in the health within 3.5 s; reads and beats go on; it ends by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_disk_is_told_of() {
    let (disk, clock) = (Disk::new(), ManualClock::new());
    let engine = open(&disk, &clock, Duration::MAX).await;
    engine.register(&shop(), &instance(1)).await.unwrap();
    disk.hang();
    let writing = tokio::spawn({
        let engine = Arc::clone(&engine);
        async move { engine.register(&shop(), &instance(2)).await }
    });
    eventually(|| engine.figures().write_queue == 0).await;
    assert_eq!(engine.health().refuses_writes, None);
    eventually(|| {
        clock.advance(Duration::from_millis(100));
        engine.health().refuses_writes.is_some()
    })
    .await;
    let reason = engine.health().refuses_writes.unwrap();
    assert!(reason.contains("the disk has not answered for 3 s"), "{reason}");
    assert!(matches!(beat(&engine, &instance(1)).await, Beat::Renewed(_)));
    assert_eq!(count(&engine).await, 1);
    disk.heal();
    writing.await.unwrap().unwrap();
    eventually(|| engine.health().refuses_writes.is_none()).await;
    assert_eq!(count(&engine).await, 2);
}

/// P4: a namespace that was emptied and came back does not pass for one in which nothing has changed.
#[tokio::test]
async fn an_index_from_before_a_namespace_was_emptied_gets_a_snapshot() {
    let clock = ManualClock::new();
    let limits = Limits { ring: 8, ..Limits::default() };
    let stall_limit = Duration::MAX;
    let options = Options { limits, stall_limit, clock: Arc::new(clock.clone()), ..Options::new("unused") };
    let engine = Embedded::open_backend(Disk::new().file(), options).await.unwrap();
    engine.register(&shop(), &instance(1)).await.unwrap();
    let index = engine.services(&shop()).await.unwrap().index;
    let id = instance(1).id();
    engine.deregister(&shop(), &order(), id.as_str(), None).await.unwrap();
    engine.remove_service(&shop(), &order()).await.unwrap();
    clock.advance(3 * TTL);
    engine.run_due().await;
    let other = Namespace::new("other").unwrap();
    for port in 1..20 {
        engine.register(&other, &instance(port)).await.unwrap();
    }
    engine.add_dependency(&shop(), &"web".parse().unwrap(), "order").await.unwrap();
    assert!(engine.services(&shop()).await.unwrap().index.sequence > index.sequence);
    let first = engine.watch(&shop(), Scope::All, Some(index)).await.unwrap().next().await.unwrap().unwrap();
    assert!(matches!(first.event, Event::Snapshot(_)), "{first:?}");
}

/// A burst larger than what is handed to a watcher ahead, with nobody reading meanwhile, is told whole and in order.
#[tokio::test]
async fn a_burst_cuts_nobody_off() {
    let clock = ManualClock::new();
    let engine = open(&Disk::new(), &clock, Duration::MAX).await;
    let mut watch = engine.watch(&shop(), Scope::All, None).await.unwrap();
    for port in 1..=2000 {
        engine.register(&shop(), &instance(port)).await.unwrap();
    }
    clock.advance(2 * TTL);
    engine.run_due().await;
    let (mut last, mut gone) = (0, 0);
    while gone < 2000 {
        let change = watch.next().await.unwrap().unwrap();
        assert!(change.index.sequence > last || matches!(change.event, Event::Snapshot(_)));
        last = change.index.sequence;
        gone += usize::from(matches!(change.event, Event::Instance { instance: None, .. }));
    }
    assert_eq!(engine.figures().lagged_watchers, 0);
}

/// Watchers of a namespace that come together share one snapshot, and what changed since follows it.
#[tokio::test]
async fn a_crowd_shares_its_snapshot() {
    let clock = ManualClock::new();
    let engine = open(&Disk::new(), &clock, Duration::MAX).await;
    engine.register(&shop(), &instance(1)).await.unwrap();
    let mut early = engine.watch(&shop(), Scope::All, None).await.unwrap();
    let snapshot = early.next().await.unwrap().unwrap();
    engine.register(&shop(), &instance(2)).await.unwrap();
    let mut late = engine.watch(&shop(), Scope::All, None).await.unwrap();
    engine.register(&shop(), &instance(3)).await.unwrap();
    assert!(Arc::ptr_eq(&late.next().await.unwrap().unwrap(), &snapshot));
    for port in [2, 3] {
        let change = late.next().await.unwrap().unwrap();
        let Event::Instance { id, .. } = &change.event else { panic!("{change:?}") };
        assert_eq!(*id, instance(port).id());
    }
    drop((snapshot, early, late));
    let first = engine.watch(&shop(), Scope::All, None).await.unwrap().next().await.unwrap().unwrap();
    let Event::Snapshot(snapshot) = &first.event else { panic!("{first:?}") };
    assert_eq!(snapshot.services[&order()].len(), 3, "nobody holds the old one any more");
}

/// P10: invented names do not push a real account's counter out.
#[tokio::test]
async fn guessing_for_invented_names_buys_no_guesses() {
    let clock = ManualClock::new();
    let limits = Limits { login_counters: 50, ..Limits::default() };
    let options = Options {
        limits,
        stall_limit: Duration::MAX,
        clock: Arc::new(clock.clone()),
        ..Options::new("unused")
    };
    let engine = Embedded::open_backend(Disk::new().file(), options).await.unwrap();
    let user = "cosky".parse().unwrap();
    engine.add_account(&user, "$argon2id$").await.unwrap();
    for tried in 1..=10 {
        assert_eq!(
            engine.login_attempt(&user).await.unwrap(),
            cosky_core::account::LoginAttempt::Allowed(tried)
        );
    }
    for name in 0..200 {
        engine.login_attempt(&format!("nobody-{name}").parse().unwrap()).await.unwrap();
    }
    let tried = engine.login_attempt(&user).await.unwrap();
    assert_eq!(tried, cosky_core::account::LoginAttempt::Frozen { seconds: 900 });
}
