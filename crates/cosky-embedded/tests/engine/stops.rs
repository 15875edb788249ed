//! A process that was stopped, a disk that hangs, and crowds of watchers.

use std::{sync::Arc, time::Duration};

use cosky_core::{
    Accounts as _, Beat, BeatKey, Error, Event, Namespace, Registration, Registry as _, Scope, ServiceId,
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

/// Lets time pass as it does for a process that runs: in steps that are no stop.
async fn pass(engine: &Embedded, clock: &ManualClock, time: Duration) {
    const STEP: Duration = Duration::from_millis(250);
    for _ in 0..time.as_millis() / STEP.as_millis() {
        clock.advance(STEP);
        engine.run_due().await;
    }
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

    pass(&engine, &clock, TTL).await;
    let told: Vec<_> = watch.by_ref().take(2).map(|change| change.unwrap().event.clone()).collect().await;
    assert_eq!(told[0], Event::State(StoreState::Live));
    assert!(matches!(told[1], Event::Instance { .. }), "it expires one TTL after its last beat: {told:?}");
    assert_eq!(count(&engine).await, 0);
}

/// P1: a stop shorter than that costs nobody his life either: what was sent meanwhile waits to be read, so every deadline
/// moves on by as much as was missed, and no further.
#[tokio::test(flavor = "multi_thread")]
async fn a_short_stop_takes_nothing_from_anybody() {
    let clock = ManualClock::new();
    let engine = open(&Disk::new(), &clock, Duration::from_secs(2)).await;
    engine.register(&shop(), &instance(1)).await.unwrap();
    pass(&engine, &clock, Duration::from_millis(1_250)).await;
    clock.advance(Duration::from_millis(1_900));
    engine.run_due().await;
    assert_eq!(engine.health().state, StoreState::Live);
    assert!(matches!(beat(&engine, &instance(1)).await, Beat::Renewed(_)), "its beat waited in the socket");

    clock.advance(Duration::from_millis(1_500));
    engine.run_due().await;
    pass(&engine, &clock, TTL - Duration::from_millis(250)).await;
    assert_eq!(count(&engine).await, 1);
    pass(&engine, &clock, Duration::from_millis(500)).await;
    assert_eq!(count(&engine).await, 0, "a TTL of running time after its last beat");
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
    // The clock runs no faster than the pulse can follow, and one of the two beats.
    for _ in 0..20 {
        clock.advance(Duration::from_millis(200));
        assert!(matches!(beat(&engine, &instance(1)).await, Beat::Renewed(_)));
        tokio::time::sleep(Duration::from_millis(260)).await;
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

/// P6: a data directory that is taken away is noticed: what would be written to it would be lost, and another process
/// could have the same place. Put back, it is used again.
#[tokio::test(flavor = "multi_thread")]
async fn a_data_directory_taken_away_takes_no_writes() {
    let root = tempfile::tempdir().unwrap();
    let (here, away) = (root.path().join("data"), root.path().join("away"));
    let engine = Embedded::open(Options::new(&here)).await.unwrap();
    engine.register(&shop(), &instance(1)).await.unwrap();
    std::fs::rename(&here, &away).unwrap();
    let refused = engine.register(&shop(), &instance(2)).await;
    assert!(matches!(&refused, Err(Error::Unavailable { maybe_applied: false, .. })), "{refused:?}");
    assert!(refused.unwrap_err().to_string().contains("removed or replaced"));
    assert!(matches!(beat(&engine, &instance(1)).await, Beat::Renewed(_)));
    let other = Embedded::open(Options::new(&here)).await.unwrap();
    assert!(matches!(engine.register(&shop(), &instance(2)).await, Err(Error::Unavailable { .. })));
    other.close().await;
    std::fs::remove_dir_all(&here).unwrap();
    std::fs::rename(&away, &here).unwrap();
    eventually(|| engine.health().refuses_writes.is_none()).await;
    engine.register(&shop(), &instance(2)).await.unwrap();
    std::fs::remove_dir_all(&here).unwrap();
    eventually(|| engine.health().refuses_writes.is_some()).await;
}

/// P9: the ring is bounded by what its changes weigh, too.
#[tokio::test]
async fn large_changes_are_kept_for_a_shorter_while() {
    let clock = ManualClock::new();
    let limits = Limits { ring_bytes: 1 << 20, ..Limits::default() };
    let options = Options {
        limits,
        stall_limit: Duration::MAX,
        clock: Arc::new(clock.clone()),
        ..Options::new("unused")
    };
    let engine = Embedded::open_backend(Disk::new().file(), options).await.unwrap();
    engine.register(&shop(), &instance(1)).await.unwrap();
    let index = engine.services(&shop()).await.unwrap().index;
    let large = cosky_core::Metadata::new((0..7).map(|key| (key.to_string(), "x".repeat(4096)))).unwrap();
    for _ in 0..20 {
        engine.set_metadata(&shop(), &order(), instance(1).id().as_str(), &large).await.unwrap();
    }
    let first = engine.watch(&shop(), Scope::All, Some(index)).await.unwrap().next().await.unwrap().unwrap();
    assert!(matches!(first.event, Event::Snapshot(_)), "{first:?}");
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
