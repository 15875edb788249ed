//! What stands in the way of opening a data directory is said clearly, changes no byte of it, and when it is out of the
//! way everything is there. And a disk that fills up later stops writes only.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use cosky_core::{
    Beat, BeatKey, Error, Metadata, Namespace, Registration, Registry, Scope, ServiceId, Store, Ttl,
};
use cosky_embedded::{Embedded, OpenError, Options};
use cosky_testkit::{ManualClock, disk::Disk};
use futures_util::StreamExt;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use redb::{Database, TableDefinition};
use tempfile::TempDir;

const FILE: &str = "cosky.redb";

fn shop() -> Namespace {
    Namespace::new("shop").unwrap()
}

fn service(name: &str) -> ServiceId {
    ServiceId::new(name).unwrap()
}

fn instance(port: i64) -> Registration {
    let new = Registration::new(service("order"), "http", "10.0.0.1", port).unwrap();
    let metadata = Metadata::new([("text", "x".repeat(1000)), ("port", port.to_string())]).unwrap();
    Registration { ephemeral: false, metadata, ..new }
}

async fn open(path: &Path) -> Result<Embedded, OpenError> {
    Embedded::open(Options::new(path)).await
}

/// Fills a data directory and closes it.
async fn fill(path: &Path) {
    let engine = open(path).await.unwrap();
    for port in 1..=100 {
        engine.register(&shop(), &instance(port)).await.unwrap();
    }
    engine.close().await;
}

/// Whether a store holds exactly what [`fill`] wrote.
async fn is_whole(engine: &Embedded) -> bool {
    let found = engine.instances(&shop(), &service("order")).await.unwrap().value;
    let mut expected: Vec<_> = (1..=100).map(|port| cosky_core::Instance::from(instance(port))).collect();
    expected.sort_by(|a, b| a.id().cmp(b.id()));
    found.len() == 100 && found.iter().zip(&expected).all(|(found, expected)| **found.instance() == *expected)
}

/// Every file of a directory with its content.
fn content(path: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    files.map(|file| (file.clone(), fs::read(&file).unwrap())).collect()
}

/// A file system of its own, for tests that run as root. Unmounted on drop.
struct Mount(TempDir);

impl Mount {
    /// `None` for users who cannot mount.
    fn new(bytes: u64) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let size = format!("size={bytes},mode=0700");
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(dir.path()).output();
        let mounted = mount.is_ok_and(|output| output.status.success());
        mounted.then_some(Self(dir))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn remount(&self, how: &str) {
        let how = format!("remount,{how}");
        let done = Command::new("mount").args(["-o", &how]).arg(self.path()).status().unwrap();
        assert!(done.success());
    }

    /// Takes all the space that is left.
    fn fill_up(&self) -> PathBuf {
        let path = self.path().join("filler");
        let mut file = fs::File::create(&path).unwrap();
        for block in [65_536, 4096, 1] {
            let block = vec![0; block];
            while std::io::Write::write_all(&mut file, &block).is_ok() {}
        }
        path
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let done = Command::new("umount").arg("-l").arg(self.path()).status();
        assert!(done.is_ok_and(|status| status.success()) || std::thread::panicking(), "cannot unmount");
    }
}

/// Of two processes with one directory the second is told so, and the first goes on.
#[tokio::test]
async fn a_directory_in_use_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path()).await.unwrap();
    first.register(&shop(), &instance(1)).await.unwrap();
    let before = content(dir.path());
    let refused = open(dir.path()).await.err();
    assert!(matches!(refused, Some(OpenError::Locked { .. })), "{refused:?}");
    assert!(refused.unwrap().to_string().contains("in use by another"));
    assert_eq!(content(dir.path()), before);
    first.register(&shop(), &instance(2)).await.unwrap();
    first.close().await;
    let second = open(dir.path()).await.unwrap();
    assert_eq!(second.instances(&shop(), &service("order")).await.unwrap().value.len(), 2);
}

/// A directory that does not exist is made, also several levels deep; where a file stands in its place, that is said.
#[tokio::test]
async fn a_directory_is_made() {
    let dir = tempfile::tempdir().unwrap();
    open(&dir.path().join("a/b")).await.unwrap().close().await;
    let file = dir.path().join("file");
    fs::write(&file, "mine").unwrap();
    let refused = open(&file).await.err();
    assert!(matches!(refused, Some(OpenError::Io { .. })), "{refused:?}");
    assert_eq!(fs::read(&file).unwrap(), b"mine");
}

/// A file that a newer version wrote is left to it.
#[tokio::test]
async fn a_newer_format_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path()).await;
    let set_format = |format: u64| {
        let database = Database::open(dir.path().join(FILE)).unwrap();
        let transaction = database.begin_write().unwrap();
        let meta: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
        let old =
            transaction.open_table(meta).unwrap().insert("format", format).unwrap().map(|old| old.value());
        transaction.commit().unwrap();
        old.expect("the file says which format it has")
    };
    let known = set_format(99);
    let before = content(dir.path());
    let refused = open(dir.path()).await.err();
    assert!(
        matches!(refused, Some(OpenError::NewerFormat { found: 99, known: told }) if told == known),
        "{refused:?}"
    );
    assert_eq!(content(dir.path()), before);
    set_format(known);
    assert!(is_whole(&open(dir.path()).await.unwrap()).await);
}

/// Whatever a damaged file looks like, it is refused as damaged and left as it is, or all data is there: the damage hit
/// no data. Nothing panics and nothing is made up.
#[tokio::test]
async fn a_damaged_file_is_refused_or_whole() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path()).await;
    let file = dir.path().join(FILE);
    let good = fs::read(&file).unwrap();
    let mut random = StdRng::seed_from_u64(1);
    let mut damages: Vec<(String, Vec<u8>)> = vec![
        ("empty".into(), vec![]),
        ("zeroed".into(), vec![0; good.len()]),
        ("another file".into(), b"#!/bin/sh\n".repeat(1000)),
    ];
    for len in [1, 320, 511, 4096, good.len() / 2, good.len() - 4096, good.len() - 1] {
        damages.push((format!("cut to {len}"), good[..len].to_vec()));
    }
    for zeroes in [9, 64, 320, 512, 4096, 65_536] {
        let mut bad = good.clone();
        bad[..zeroes].fill(0);
        damages.push((format!("{zeroes} bytes of the header zeroed"), bad));
    }
    for n in 0..60 {
        let mut bad = good.clone();
        let used = bad.iter().rposition(|byte| *byte != 0).unwrap();
        let (at, len) = (random.random_range(0..used), random.random_range(1..4096));
        let end = (at + len).min(bad.len());
        random.fill(&mut bad[at..end]);
        damages.push((format!("damage {n} at {at} of {len} bytes"), bad));
    }
    let mut refused = 0;
    for (what, bad) in damages {
        fs::write(&file, &bad).unwrap();
        match open(dir.path()).await {
            Ok(engine) => {
                assert!(is_whole(&engine).await, "{what}: opened with other data");
                engine.close().await;
            }
            Err(OpenError::Corrupt { reason }) => {
                assert!(!reason.is_empty());
                assert!(fs::read(&file).unwrap() == bad, "{what}: the damaged file was changed");
                refused += 1;
            }
            Err(other) => panic!("{what}: {other:?}"),
        }
    }
    assert!(refused > 10, "only {refused} of the damages were noticed");
    fs::write(&file, &good).unwrap();
    assert!(is_whole(&open(dir.path()).await.unwrap()).await, "the copy is good");
}

/// On a read-only mount, which root cannot write either, that is said.
#[tokio::test]
async fn a_read_only_mount_is_refused() {
    let Some(mount) = Mount::new(64 << 20) else { return read_only_mode().await };
    let data = mount.path().join("data");
    fill(&data).await;
    mount.remount("ro");
    let before = content(&data);
    for path in [&data, &mount.path().join("new")] {
        let refused = open(path).await.err();
        assert!(matches!(refused, Some(OpenError::ReadOnly { .. })), "{refused:?}");
        assert!(refused.unwrap().to_string().contains("cannot be written"));
    }
    assert_eq!(content(&data), before);
    mount.remount("rw");
    let engine = open(&data).await.unwrap();
    assert!(is_whole(&engine).await);
    engine.close().await;
}

/// The same for users who cannot mount: mode bits hold them back.
async fn read_only_mode() {
    use std::os::unix::fs::PermissionsExt;

    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    fill(&data).await;
    let before = content(&data);
    let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let names: Vec<_> = before.keys().cloned().collect();
    names.iter().for_each(|name| set(name, 0o400));
    set(&data, 0o500);
    let refused = open(&data).await.err();
    assert!(matches!(refused, Some(OpenError::ReadOnly { .. })), "{refused:?}");
    assert_eq!(content(&data), before);
    set(&data, 0o700);
    names.iter().for_each(|name| set(name, 0o600));
    assert!(is_whole(&open(&data).await.unwrap()).await);
}

/// A full disk is told from a damaged one, at the first start and later.
#[tokio::test]
async fn a_full_disk_is_refused() {
    let (disk, clock) = (Disk::new(), ManualClock::new());
    let engine = crate::world::open(&disk, &clock).await.unwrap();
    engine.register(&shop(), &instance(1)).await.unwrap();
    engine.close().await;
    for disk in [disk, Disk::new()] {
        disk.set_full(true);
        let before = disk.image();
        let refused = crate::world::open(&disk, &clock).await.err();
        assert!(matches!(refused, Some(OpenError::Full { .. })), "{refused:?}");
        assert!(disk.image() == before);
        disk.heal();
        let engine = crate::world::open(&disk, &clock).await.unwrap();
        let known = engine.instances(&shop(), &service("order")).await.unwrap().value.len();
        assert_eq!(known, usize::from(!before.is_empty()));
        engine.close().await;
    }
}

/// The same on a file system that is really full, for users who can mount one: no half-made file is left behind.
#[tokio::test]
async fn a_full_file_system_is_refused() {
    let Some(mount) = Mount::new(16 << 20) else { return };
    let data = mount.path().join("data");
    fill(&data).await;
    let filler = mount.fill_up();
    let new = mount.path().join("new");
    for path in [&data, &new] {
        match open(path).await {
            // An existing file may have the room that opening needs within itself.
            Ok(engine) if path == &data => engine.close().await,
            Err(OpenError::Full { .. }) => {}
            other => panic!("{}: {:?}", path.display(), other.err()),
        }
    }
    let left: Vec<_> = fs::read_dir(&new).into_iter().flatten().map(|entry| entry.unwrap()).collect();
    assert!(left.iter().all(|entry| entry.metadata().unwrap().len() == 0), "{left:?}");
    fs::remove_file(filler).unwrap();
    assert!(is_whole(&open(&data).await.unwrap()).await);
    fill(&new).await;
}

/// While the disk is full, writes are refused and leave nothing; reads, beats, watches and expiry go on. When there is
/// room again writes are taken, without a restart, and nothing that was acknowledged is missing.
#[tokio::test]
async fn a_disk_that_fills_up_stops_writes_only() {
    let (disk, clock) = (Disk::new(), ManualClock::new());
    let engine = crate::world::open(&disk, &clock).await.unwrap();
    let ttl = Some(Ttl::from_seconds(10).unwrap());
    let (beating, dying) = (
        Registration { ephemeral: true, ttl, ..instance(1) },
        Registration { ephemeral: true, ttl, ..instance(2) },
    );
    for new in [&beating, &dying] {
        engine.register(&shop(), new).await.unwrap();
    }
    let mut watch = engine.watch(&shop(), Scope::All, None).await.unwrap();
    watch.next().await.unwrap().unwrap();
    let id = beating.id();
    let beat = async || {
        let key = BeatKey { service: "order", instance: id.as_str() };
        engine.beat(&shop(), &[key]).await.unwrap()[0]
    };
    assert_eq!(engine.health().refuses_writes, None);
    disk.set_full(true);

    for _ in 0..3 {
        let refused = engine.register(&shop(), &instance(3)).await;
        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
        let refused = engine.deregister(&shop(), &service("order"), id.as_str(), None).await;
        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
        assert!(engine.health().refuses_writes.is_some_and(|reason| reason.contains("full")));
        assert_eq!(engine.instances(&shop(), &service("order")).await.unwrap().value.len(), 2);
        assert!(matches!(beat().await, Beat::Renewed(_)));
        clock.advance(Duration::from_secs(2));
    }
    assert!(matches!(beat().await, Beat::Renewed(_)));
    clock.advance(Duration::from_secs(4));
    engine.run_due().await;
    let told = watch.next().await.unwrap().unwrap();
    let expired = matches!(&told.event, cosky_core::Event::Instance { id, .. } if *id == dying.id());
    assert!(expired, "{told:?}");
    let left = engine.instances(&shop(), &service("order")).await.unwrap().value;
    assert_eq!(left.len(), 1);

    disk.set_full(false);
    clock.advance(Duration::from_secs(1));
    engine.register(&shop(), &instance(3)).await.unwrap();
    assert_eq!(engine.health().refuses_writes, None);
    engine.close().await;
    let engine = crate::world::open(&disk.crash(0), &clock).await.unwrap();
    let ids: Vec<_> = engine.instances(&shop(), &service("order")).await.unwrap().value;
    let ids: Vec<_> = ids.iter().map(|found| found.id().clone()).collect();
    assert_eq!(ids, [id.clone(), instance(3).id()], "the dead one is not back");
}

/// The same on a real file system and the machine's clock.
#[tokio::test]
async fn a_file_system_that_fills_up_stops_writes_only() {
    let Some(mount) = Mount::new(24 << 20) else { return };
    let data = mount.path().join("data");
    let engine = Arc::new(open(&data).await.unwrap());
    engine.register(&shop(), &instance(1)).await.unwrap();
    let filler = mount.fill_up();
    let mut acknowledged = vec![1];
    let refused = loop {
        let port = i64::try_from(acknowledged.len()).unwrap() + 1;
        match engine.register(&shop(), &instance(port)).await {
            Ok(_) => acknowledged.push(port),
            Err(error) => break error,
        }
        assert!(port < 60_000, "a full disk takes no end of writes");
    };
    assert!(matches!(refused, Error::Unavailable { .. }), "{refused:?}");
    assert!(engine.health().refuses_writes.is_some());
    let found = engine.instances(&shop(), &service("order")).await.unwrap().value.len();
    assert_eq!(found, acknowledged.len());
    fs::remove_file(filler).unwrap();
    let again = async {
        while engine.register(&shop(), &instance(60_001)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), again).await.expect("writes are taken again");
    engine.close().await;
    let engine = open(&data).await.unwrap();
    let found = engine.instances(&shop(), &service("order")).await.unwrap().value.len();
    assert_eq!(found, acknowledged.len() + 1);
    engine.close().await;
}
