//! What was acknowledged survives a power cut (P6).
//!
//! Writers work while the power is cut again and again: each time the disk keeps what was synced, and any part of what
//! was written since. These tests fail when the engine commits without an fsync, answers before its commit, or lets a
//! part of a commit be seen: with `transaction.set_durability(Durability::None)` in its `disk.rs`, for one.
//! `a_disk_that_does_not_sync_is_caught` proves the same of the disk's side at each run.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use cosky_core::{Error, Metadata, Namespace, Registration, Registry, Result, ServiceId, Store};
use cosky_embedded::Embedded;
use cosky_testkit::{ManualClock, disk::Disk};

use crate::world::open;

const WRITERS: usize = 8;
const CUTS: u64 = 150;

/// One instance whose states are numbered: it is written in each, but absent in every fourth.
struct Writer {
    new: Registration,
    /// The last state that was asked for.
    asked: AtomicU64,
    /// The last state that was acknowledged.
    acknowledged: AtomicU64,
}

impl Writer {
    fn new(n: usize) -> Arc<Self> {
        let service = ServiceId::new(&format!("order-{}", n % 3)).unwrap();
        let new = Registration::new(service, "http", "10.0.0.1", 1000 + i64::try_from(n).unwrap()).unwrap();
        let new = Registration { ephemeral: false, ..new };
        Arc::new(Self { new, asked: AtomicU64::new(0), acknowledged: AtomicU64::new(0) })
    }

    /// Moves on to one state after the other; what is refused is tried again.
    async fn work(&self, engine: &Embedded, stop: &AtomicBool) {
        let (shop, id) = (shop(), self.new.id());
        while !stop.load(Ordering::SeqCst) {
            let state = self.acknowledged.load(Ordering::SeqCst) + 1;
            self.asked.store(state, Ordering::SeqCst);
            let metadata = Metadata::new([("state", state.to_string()), ("pad", "x".repeat(700))]).unwrap();
            let answer = match state % 4 {
                0 => engine.deregister(&shop, &self.new.service, id.as_str(), None).await.map(drop),
                1 => {
                    let new = Registration { metadata, ..self.new.clone() };
                    engine.register(&shop, &new).await.map(drop)
                }
                _ => engine.set_metadata(&shop, &self.new.service, id.as_str(), &metadata).await.map(drop),
            };
            match answer {
                Ok(()) => self.acknowledged.store(state, Ordering::SeqCst),
                Err(Error::Unavailable { .. }) => tokio::task::yield_now().await,
                Err(other) => panic!("{other:?}"),
            }
        }
    }

    /// What is wrong with what a store shows of this instance, when it must be between two states.
    async fn check(&self, engine: &Embedded, from: u64, to: u64) -> std::result::Result<(), String> {
        let id = self.new.id();
        let found = engine.instance(&shop(), &self.new.service, id.as_str()).await.unwrap().value;
        match found {
            Some(found) => {
                let state: u64 = found.metadata().get("state").unwrap().parse().unwrap();
                let fits = (from..=to).contains(&state) && !state.is_multiple_of(4);
                let listed = engine.services(&shop()).await.unwrap().value.contains(&self.new.service);
                if fits && listed {
                    Ok(())
                } else {
                    Err(format!("{id} is in state {state}, not {from} to {to}"))
                }
            }
            None if (from..=to).any(|state| state % 4 == 0) => Ok(()),
            None => Err(format!("{id} is lost, it was in state {from} to {to}")),
        }
    }
}

fn shop() -> Namespace {
    Namespace::new("shop").unwrap()
}

/// Lets writers work on `disk` and cuts the power again and again; gives what was lost. `meanwhile` may disturb the disk
/// before each cut.
async fn lost(disk: &Disk, clock: &ManualClock, mut meanwhile: impl AsyncFnMut(u64)) -> Vec<String> {
    let engine = Arc::new(open(disk, clock).await.unwrap());
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..WRITERS).map(Writer::new).collect();
    let working: Vec<_> = writers
        .iter()
        .map(|writer| {
            let (writer, engine, stop) = (Arc::clone(writer), Arc::clone(&engine), Arc::clone(&stop));
            tokio::spawn(async move { writer.work(&engine, &stop).await })
        })
        .collect();
    let mut lost = Vec::new();
    for seed in 0..CUTS {
        meanwhile(seed).await;
        let from: Vec<_> = writers.iter().map(|writer| writer.acknowledged.load(Ordering::SeqCst)).collect();
        let left = disk.crash(seed);
        let to: Vec<_> = writers.iter().map(|writer| writer.asked.load(Ordering::SeqCst)).collect();
        match open(&left, clock).await {
            Ok(survivor) => {
                for ((writer, from), to) in writers.iter().zip(from).zip(to) {
                    lost.extend(writer.check(&survivor, from, to).await.err());
                }
                survivor.close().await;
            }
            Err(error) => lost.push(format!("cut {seed}: {error}")),
        }
    }
    stop.store(true, Ordering::SeqCst);
    for writer in working {
        writer.await.expect("no writer panics");
    }
    assert!(writers.iter().all(|writer| writer.acknowledged.load(Ordering::SeqCst) > 0), "nobody worked");
    lost
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost() {
    let (disk, clock) = (Disk::new(), ManualClock::new());
    let pause = async |_| tokio::time::sleep(Duration::from_micros(500)).await;
    let lost = lost(&disk, &clock, pause).await;
    assert!(lost.is_empty(), "{lost:#?}");
}

/// Also when syncs and writes fail now and then, and the engine has to open its file again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_on_a_failing_disk() {
    let (disk, clock) = (Disk::new(), ManualClock::new());
    let disturb = async |seed: u64| {
        match seed % 3 {
            0 => disk.fail_syncs_after(seed % 5),
            1 => disk.fail_after(seed % 17),
            _ => disk.heal(),
        }
        // Time for the engine to try again.
        clock.advance(Duration::from_secs(1));
        tokio::time::sleep(Duration::from_micros(500)).await;
    };
    // The copy that a cut leaves is a disk that works.
    let lost = lost(&disk, &clock, disturb).await;
    assert!(lost.is_empty(), "{lost:#?}");
}

/// A disk that reports syncs without doing them looks exactly like an engine that leaves them out; if that went
/// unnoticed, so would the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_does_not_sync_is_caught() {
    let (disk, clock) = (Disk::new(), ManualClock::new());
    disk.lie_about_syncs();
    let pause = async |_| tokio::time::sleep(Duration::from_micros(500)).await;
    let lost = lost(&disk, &clock, pause).await;
    assert!(!lost.is_empty());
}

/// Many writers share an fsync, and none is answered without one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_share_a_sync() {
    let (disk, clock) = (Disk::new(), ManualClock::new());
    let engine = Arc::new(open(&disk, &clock).await.unwrap());
    let before = (disk.syncs(), engine.figures().commits);
    let writes: Vec<_> = (0..256)
        .map(|n| {
            let engine = Arc::clone(&engine);
            let service = ServiceId::new(&format!("service-{n}")).unwrap();
            tokio::spawn(async move { engine.set_service(&shop(), &service).await })
        })
        .collect();
    for write in writes {
        assert!(write.await.unwrap().unwrap());
    }
    let commits = engine.figures().commits - before.1;
    assert!((1..128).contains(&commits), "{commits} commits of 256 writes");
    assert!(disk.syncs() - before.0 >= commits);
}

/// A write that was refused because its sync failed is not there after the next one that succeeds, whether or not the
/// disk kept a part of it.
#[tokio::test]
async fn a_refused_write_does_not_come_back() {
    for seed in 0..50 {
        let (disk, clock) = (Disk::new(), ManualClock::new());
        let engine = open(&disk, &clock).await.unwrap();
        let name = |name: &str| ServiceId::new(name).unwrap();
        engine.set_service(&shop(), &name("before")).await.unwrap();
        disk.fail_syncs_after(seed % 3);
        let answer: Result<bool> = engine.set_service(&shop(), &name("refused")).await;
        disk.heal();
        if answer.is_ok() {
            continue;
        }
        assert_eq!(engine.services(&shop()).await.unwrap().value, [name("before")]);
        clock.advance(Duration::from_secs(1));
        assert!(engine.set_service(&shop(), &name("after")).await.unwrap());
        let survivor = open(&disk.crash(seed), &clock).await.unwrap();
        assert_eq!(survivor.services(&shop()).await.unwrap().value, [name("after"), name("before")]);
    }
}
