//! Which data a file holds, and how often it was opened, are told truly through restarts, copies and I/O errors.

use std::{path::Path, time::Duration};

use cosky_core::{Event, Namespace, Registration, Registry, Scope, ServiceId, Store, StoreId};
use cosky_embedded::{Embedded, OpenError, Options};
use cosky_testkit::{ManualClock, disk::Disk};
use futures_util::StreamExt;
use redb::{Database, ReadableTable as _, TableDefinition};

use crate::world::open;

fn shop() -> Namespace {
    Namespace::new("shop").unwrap()
}

async fn register(engine: &Embedded) -> cosky_core::Result<()> {
    let new = Registration::new(ServiceId::new("order").unwrap(), "http", "10.0.0.1", 80).unwrap();
    engine.register(&shop(), &new).await.map(drop)
}

async fn store(engine: &Embedded) -> StoreId {
    let first = engine.watch(&shop(), Scope::All, None).await.unwrap().next().await;
    match &first.unwrap().unwrap().event {
        Event::Snapshot(snapshot) => snapshot.store.unwrap(),
        other => panic!("a watch begins with a snapshot, not {other:?}"),
    }
}

/// Opens, closes, and gives what the store said of itself meanwhile.
async fn visit(disk: &Disk, clock: &ManualClock) -> StoreId {
    let engine = open(disk, clock).await.unwrap();
    let store = store(&engine).await;
    engine.close().await;
    store
}

/// A file without an id gets one and keeps it, its data with it; and its format stays, so an older version still reads it.
#[tokio::test]
async fn a_file_of_an_older_version_gets_an_id() {
    const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cosky.redb");
    let enter = async |path: &Path| Embedded::open(Options::new(path)).await.unwrap();
    let engine = enter(dir.path()).await;
    register(&engine).await.unwrap();
    let removed = store(&engine).await;
    engine.close().await;
    {
        let database = Database::open(&file).unwrap();
        let transaction = database.begin_write().unwrap();
        let mut meta = transaction.open_table(META).unwrap();
        assert_eq!(meta.remove("store").unwrap().unwrap().value(), removed.id);
        assert_eq!(meta.remove("opened").unwrap().unwrap().value(), 1);
        assert_eq!(meta.get("format").unwrap().unwrap().value(), 1);
        drop(meta);
        transaction.commit().unwrap();
    }
    let engine = enter(dir.path()).await;
    let given = store(&engine).await;
    assert_eq!(given.opened, 1);
    assert_ne!(given.id, removed.id);
    let list = engine.instances(&shop(), &ServiceId::new("order").unwrap()).await.unwrap().value;
    assert_eq!(list.len(), 1);
    engine.close().await;
    let engine = enter(dir.path()).await;
    let again = store(&engine).await;
    assert_eq!((again.id, again.opened), (given.id, 2));
    engine.close().await;
}

/// A store that lost its process is the same one, opened once more; also when it was just made.
#[tokio::test]
async fn a_crash_is_an_ordinary_restart() {
    let (disk, clock) = (Disk::new(), ManualClock::new());
    let engine = open(&disk, &clock).await.unwrap();
    let first = store(&engine).await;
    for seed in 1..=3 {
        let restarted = visit(&disk.crash(seed), &clock).await;
        assert_eq!((restarted.id, restarted.opened), (first.id, 2));
        assert!(restarted.follows(first));
    }
    engine.close().await;
}

/// A copy that is put back is no ordinary restart, also when it was made and the store opened again just before.
#[tokio::test]
async fn an_older_copy_does_not_follow() {
    let (disk, clock) = (Disk::new(), ManualClock::new());
    let first = visit(&disk, &clock).await;
    let copy = Disk::holding(disk.image());
    for _ in 0..2 {
        let last = visit(&disk, &clock).await;
        let restored = visit(&Disk::holding(copy.image()), &clock).await;
        assert!(last.follows(first) && restored.follows(first));
        assert!(!restored.follows(last), "{restored} after {last}");
    }
}

/// A file that is opened again because the disk failed for a moment was not opened by a new process.
#[tokio::test]
async fn an_io_error_is_no_opening() {
    let (disk, clock) = (Disk::new(), ManualClock::new());
    let engine = open(&disk, &clock).await.unwrap();
    let first = store(&engine).await;
    disk.fail_after(0);
    register(&engine).await.unwrap_err();
    disk.heal();
    clock.advance(Duration::from_secs(2));
    register(&engine).await.unwrap();
    assert_eq!(store(&engine).await, first);
    engine.close().await;
    let last = visit(&disk, &clock).await;
    assert_eq!((last.id, last.opened), (first.id, 2));
}

/// What was refused did not open the store.
#[tokio::test]
async fn a_refused_opening_does_not_count() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Embedded::open(Options::new(dir.path())).await.unwrap();
    let first = store(&engine).await;
    let refused = Embedded::open(Options::new(dir.path())).await.err();
    assert!(matches!(refused, Some(OpenError::Locked { .. })), "{refused:?}");
    engine.close().await;
    let engine = Embedded::open(Options::new(dir.path())).await.unwrap();
    let last = store(&engine).await;
    assert_eq!((last.id, last.opened), (first.id, 2));
    engine.close().await;
}
