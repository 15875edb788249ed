//! The engine does what plain maps do, whatever happens in whatever order: writes, beats, edits, time, restarts, power
//! cuts, and disks that fail or fill up. After each step the answer, all reads and all that watchers are told are
//! compared. A run that failed once is in `model.proptest-regressions`, and is run first from then on.

mod plain;
mod steps;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use cosky_core::{
    Beat, BeatKey, Change, Error, Event, Index, Instance, Life, Namespace, Registered, Registration,
    Registry, Result, Scope, ServiceId, Store, StoreState, Ttl, WatchStream,
};
use cosky_embedded::Embedded;
use cosky_testkit::{ManualClock, disk::Disk};
use futures_util::{FutureExt, StreamExt};
use plain::{Plain, Told};
use proptest::{
    prelude::*,
    test_runner::{FileFailurePersistence, TestError, TestRunner},
};
use steps::{NAMESPACES, SERVICES, Step, Target, step};

/// Runs in each of the tests below, which share the machine's cores.
const RUNS: u32 = 64;
const STEPS: usize = 200;
/// The engine's pause between two attempts to open its file again.
const REOPEN: Duration = Duration::from_secs(1);

#[test]
fn the_engine_does_what_plain_maps_do_1() {
    check();
}

#[test]
fn the_engine_does_what_plain_maps_do_2() {
    check();
}

#[test]
fn the_engine_does_what_plain_maps_do_3() {
    check();
}

#[test]
fn the_engine_does_what_plain_maps_do_4() {
    check();
}

fn check() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let file = FileFailurePersistence::Direct("tests/engine/model/model.proptest-regressions");
    let config = ProptestConfig {
        cases: RUNS,
        source_file: Some(file!()),
        failure_persistence: Some(Box::new(file)),
        ..ProptestConfig::default()
    };
    let run = |steps: Vec<Step>| {
        runtime.block_on(async {
            let mut run = Run::start().await;
            for step in steps {
                run.take(step).await;
            }
        });
        Ok(())
    };
    let steps = prop::collection::vec(step(), STEPS);
    match TestRunner::new(config).run(&steps, run) {
        Ok(()) => {}
        Err(TestError::Abort(reason)) => panic!("{reason}"),
        Err(TestError::Fail(reason, mut steps)) => {
            steps.retain(|step| !matches!(step, Step::Nothing));
            panic!("{reason}; the shortest way there: {steps:?}");
        }
    }
}

/// The engine and the maps side by side.
struct Run {
    disk: Disk,
    clock: ManualClock,
    engine: Embedded,
    plain: Plain,
    watchers: BTreeMap<Namespace, Watcher>,
    /// Whether the disk may refuse.
    broken: bool,
    /// Whether a write was refused since the disk was well, so that the file may hold what memory does not.
    dirty: bool,
}

/// A watch, and all that it was told in this epoch.
struct Watcher {
    stream: WatchStream,
    start: Index,
    heard: Vec<(Index, String)>,
}

impl Run {
    async fn start() -> Self {
        let (disk, clock) = (Disk::new(), ManualClock::new());
        let engine = crate::world::open(&disk, &clock).await.unwrap();
        let plain = Plain { now: cosky_core::Clock::now(&clock), ..Plain::default() };
        let mut run =
            Self { disk, clock, engine, plain, watchers: BTreeMap::new(), broken: false, dirty: false };
        run.watch_all().await;
        run
    }

    /// Takes one step on both sides and compares everything.
    async fn take(&mut self, step: Step) {
        let told = self.step(&step).await;
        for namespace in NAMESPACES.map(|name| Namespace::new(name).unwrap()) {
            self.compare_told(&namespace, told.get(&namespace).cloned().unwrap_or_default(), &step);
            self.compare_reads(&namespace, &step).await;
        }
    }

    /// Gives what watchers must be told of, by namespace.
    async fn step(&mut self, step: &Step) -> BTreeMap<Namespace, Told> {
        let engine = &self.engine;
        let (namespace, told) = match step {
            Step::Nothing => return BTreeMap::new(),
            Step::Advance(time) => return self.advance(*time).await,
            Step::Break { syncs_only: true, after } => {
                self.disk.fail_syncs_after(*after);
                self.broken = true;
                return BTreeMap::new();
            }
            Step::Break { syncs_only: false, after } => {
                self.disk.fail_after(*after);
                self.broken = true;
                return BTreeMap::new();
            }
            Step::Fill => {
                self.disk.set_full(true);
                self.broken = true;
                return BTreeMap::new();
            }
            Step::Heal => return self.heal().await,
            Step::Restart => return self.restart(None).await,
            Step::Crash(seed) => return self.restart(Some(*seed)).await,
            Step::Resume(back) => {
                self.resume(*back).await;
                return BTreeMap::new();
            }
            Step::Register(namespace, new) => {
                let answer = engine.register(namespace, new).await;
                (namespace, self.registered(namespace, new, answer))
            }
            Step::Beat(namespace, targets) => {
                let keys: Vec<_> = targets
                    .iter()
                    .map(|target| BeatKey { service: target.service.as_str(), instance: target.id.as_str() })
                    .collect();
                let answers = engine.beat(namespace, &keys).await.expect("beats need no disk");
                assert_eq!(answers.len(), keys.len());
                for (target, answer) in targets.iter().zip(answers) {
                    self.beaten(namespace, target, answer);
                }
                (namespace, Vec::new())
            }
            Step::Deregister(namespace, Target { service, id }, owner) => {
                let answer = engine.deregister(namespace, service, id.as_str(), owner.as_ref()).await;
                let told = self
                    .decided(step, answer, |plain| plain.deregister(namespace, service, id, owner.as_ref()));
                (namespace, told)
            }
            Step::SetMetadata(namespace, Target { service, id }, metadata) => {
                let answer = engine.set_metadata(namespace, service, id.as_str(), metadata).await;
                let edit = |_: &_| metadata.clone();
                (namespace, self.decided(step, answer, |plain| plain.edit(namespace, service, id, edit)))
            }
            Step::PatchMetadata(namespace, Target { service, id }, patch) => {
                let answer = engine.patch_metadata(namespace, service, id.as_str(), patch).await;
                let edit = |old: &cosky_core::Metadata| old.patched(patch).unwrap();
                (namespace, self.decided(step, answer, |plain| plain.edit(namespace, service, id, edit)))
            }
            Step::SetService(namespace, service) => {
                let answer = engine.set_service(namespace, service).await;
                (namespace, self.decided(step, answer, |plain| plain.set_service(namespace, service)))
            }
            Step::RemoveService(namespace, service) => {
                let answer = engine.remove_service(namespace, service).await;
                (namespace, self.decided(step, answer, |plain| plain.remove_service(namespace, service)))
            }
            Step::AddNamespace(namespace) => {
                let answer = engine.add_namespace(namespace).await;
                let add = |plain: &mut Plain| (plain.listed.insert(namespace.clone(), ()).is_none(), vec![]);
                (namespace, self.decided(step, answer, add))
            }
            Step::RemoveNamespace(namespace) => {
                let answer = engine.remove_namespace(namespace).await;
                let remove = |plain: &mut Plain| (plain.listed.remove(namespace).is_some(), vec![]);
                (namespace, self.decided(step, answer, remove))
            }
            Step::Purge(namespace) => {
                let answer = match engine.purge_namespace(namespace).await {
                    Err(Error::Conflict { .. }) => Ok(None),
                    other => other.map(Some),
                };
                let told = self.decided(step, answer, |plain| match plain.purge(namespace) {
                    Some((any, told)) => (Some(any), told),
                    None => (None, vec![]),
                });
                (namespace, told)
            }
            Step::AddDependency(namespace, consumer, producer) => {
                let (consumer, producer) = (consumer.as_str(), producer.as_str());
                let answer = engine.add_dependency(namespace, &consumer.parse().unwrap(), producer).await;
                let told = self.decided(step, answer, |plain| {
                    let producers = plain.space(namespace).topology.entry(consumer.to_owned()).or_default();
                    if consumer != producer && !producers.iter().any(|known| known == producer) {
                        producers.push(producer.to_owned());
                        producers.sort();
                    }
                    plain.space(namespace).topology.retain(|_, producers| !producers.is_empty());
                    ((), vec![])
                });
                (namespace, told)
            }
        };
        BTreeMap::from([(namespace.clone(), told)])
    }

    /// Makes a change in the maps when the engine says that it made it, and compares what both answer.
    fn decided<T: PartialEq + std::fmt::Debug>(
        &mut self,
        step: &Step,
        answer: Result<T>,
        change: impl FnOnce(&mut Plain) -> (T, Told),
    ) -> Told {
        match answer {
            Ok(answer) => {
                let (expected, told) = change(&mut self.plain);
                assert_eq!(answer, expected, "{step:?}");
                told
            }
            Err(error) => self.refused(&error),
        }
    }

    /// A refusal is the disk's, and nothing has happened.
    fn refused(&mut self, error: &Error) -> Told {
        assert!(matches!(error, Error::Unavailable { .. }) && self.broken, "{error:?}");
        self.dirty = true;
        Vec::new()
    }

    fn registered(&mut self, namespace: &Namespace, new: &Registration, answer: Result<Registered>) -> Told {
        let ttl = new.ttl.unwrap_or(Ttl::DEFAULT).duration();
        match (answer, self.plain.owner(namespace, new)) {
            (Ok(Registered { life, owner }), Ok(expected)) => {
                assert!(expected.is_none_or(|expected| expected == owner), "the wrong owner");
                assert_eq!(life.remaining(), new.ephemeral.then_some(ttl));
                self.plain.register(namespace, new, owner, ttl)
            }
            (Err(Error::Gone { .. }), Err(())) => Vec::new(),
            (Err(error), _) => self.refused(&error),
            (Ok(_), Err(())) => panic!("{}: a late repeat was taken", new.id()),
        }
    }

    fn beaten(&mut self, namespace: &Namespace, Target { service, id }: &Target, answer: Beat) {
        let expected = self.plain.beat(namespace, service, id);
        match (answer, expected) {
            (Beat::Renewed(Some(life)), Beat::Renewed(_)) => {
                let entry = &self.plain.space(namespace).services[service][id];
                let left = entry.deadline.map(|deadline| deadline - self.plain.now);
                assert_eq!(life.remaining(), left, "{id}");
            }
            _ => assert_eq!(answer, expected, "{id} of {service}"),
        }
    }

    async fn advance(&mut self, time: Duration) -> BTreeMap<Namespace, Told> {
        self.clock.advance(time);
        self.engine.run_due().await;
        // Whether the file could be changed too is not known here.
        self.dirty |= self.broken;
        self.plain.advance(time)
    }

    /// The disk is well again, and so is the file after the engine's next attempt.
    async fn heal(&mut self) -> BTreeMap<Namespace, Told> {
        self.disk.heal();
        self.broken = false;
        let told = if self.dirty { self.advance(REOPEN).await } else { BTreeMap::new() };
        self.dirty = false;
        let health = self.engine.health();
        assert_eq!(health.refuses_writes, None, "the disk is well");
        told
    }

    /// Starts again on what is on the disk, after an orderly end or after a power cut.
    async fn restart(&mut self, cut: Option<u64>) -> BTreeMap<Namespace, Told> {
        let told = self.heal().await;
        for (namespace, told) in told {
            self.compare_told(&namespace, told, &Step::Heal);
        }
        if let Some(seed) = cut {
            self.disk = self.disk.crash(seed);
        } else {
            self.engine.close().await;
            let refused = self.engine.add_namespace(&"late".parse().unwrap()).await;
            assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
            for watcher in self.watchers.values_mut() {
                let rest: Vec<_> = std::iter::from_fn(|| watcher.stream.next().now_or_never()?).collect();
                let told = |change: &Result<Arc<Change>>| words(change.as_ref().expect("nothing was lost"));
                assert!(rest.iter().all(|change| told(change).is_none()), "{rest:?}");
                assert!(watcher.stream.next().now_or_never().is_some(), "a closed store ends its streams");
            }
        }
        self.engine = crate::world::open(&self.disk, &self.clock).await.unwrap();
        self.plain.restart();
        self.watch_all().await;
        BTreeMap::new()
    }

    async fn watch_all(&mut self) {
        self.watchers.clear();
        for namespace in NAMESPACES.map(|name| Namespace::new(name).unwrap()) {
            let mut stream = self.engine.watch(&namespace, Scope::All, None).await.unwrap();
            let first = stream.next().await.unwrap().unwrap();
            let Event::Snapshot(snapshot) = &first.event else { panic!("{first:?}") };
            let now = self.plain.now;
            let space = self.plain.space(&namespace);
            assert!(snapshot.services.keys().eq(space.services.keys()), "{snapshot:?}");
            for (service, list) in &snapshot.services {
                compare_list(list, &space.services[service], now);
            }
            self.watchers.insert(namespace, Watcher { stream, start: first.index, heard: Vec::new() });
        }
    }

    /// A watch from so many changes ago is told these again.
    async fn resume(&mut self, back: usize) {
        for (namespace, watcher) in &self.watchers {
            let at = watcher.heard.len().saturating_sub(back);
            let from = at.checked_sub(1).map_or(watcher.start, |last| watcher.heard[last].0);
            let mut stream = self.engine.watch(namespace, Scope::All, Some(from)).await.unwrap();
            let again: Vec<_> = std::iter::from_fn(|| stream.next().now_or_never())
                .map(|item| item.expect("a live stream goes on").expect("nothing was lost"))
                .filter_map(|change| Some((change.index, words(&change)?)))
                .collect();
            assert_eq!(again, watcher.heard[at..], "from {from}");
        }
    }

    /// Watchers were told exactly what happened, in order; what expires together may come in any order.
    fn compare_told(&mut self, namespace: &Namespace, mut expected: Told, step: &Step) {
        let watcher = self.watchers.get_mut(namespace).unwrap();
        let mut heard = Vec::new();
        while let Some(item) = watcher.stream.next().now_or_never() {
            let change = item.expect("a live stream goes on").expect("the watcher is quick");
            let Some(words) = words(&change) else { continue };
            let last = watcher.heard.last().map_or(watcher.start, |(index, _)| *index);
            assert!(change.index.epoch == last.epoch && change.index.sequence > last.sequence);
            if let Event::Instance { id, service, instance: Some(told), .. } = &change.event {
                let entry = &self.plain.spaces[namespace].services[service][id];
                assert_eq!(**told.instance(), Instance::from(entry.registered.clone()));
            }
            watcher.heard.push((change.index, words.clone()));
            heard.push(words);
        }
        if matches!(step, Step::Advance(_) | Step::Heal) {
            heard.sort();
            expected.sort();
        }
        assert_eq!(heard, expected, "what watchers of {namespace} were told of {step:?}");
    }

    async fn compare_reads(&mut self, namespace: &Namespace, step: &Step) {
        let listed: Vec<_> = self.plain.listed.keys().cloned().collect();
        assert_eq!(self.engine.namespaces().await.unwrap(), listed, "{step:?}");
        let now = self.plain.now;
        let state = if now < self.plain.protected_until { StoreState::Protected } else { StoreState::Live };
        let space = self.plain.space(namespace);
        let services = self.engine.services(namespace).await.unwrap();
        assert!(services.value.iter().eq(space.services.keys()), "{step:?}: {:?}", services.value);
        assert_eq!(services.state, state, "{step:?}");
        for service in SERVICES.map(|name| ServiceId::new(name).unwrap()) {
            let read = self.engine.instances(namespace, &service).await.unwrap();
            assert_eq!(read.index, services.index);
            let none = BTreeMap::new();
            compare_list(&read.value, space.services.get(&service).unwrap_or(&none), now);
        }
        let stat = self.engine.stat(namespace).await.unwrap().value;
        let counts: Vec<_> = space.services.values().map(|list| list.len() as u64).collect();
        assert_eq!(stat.instances, counts.iter().sum::<u64>());
        assert_eq!(stat.healthy_services, counts.iter().filter(|count| **count > 0).count() as u64);
        assert_eq!(self.engine.topology(namespace).await.unwrap(), space.topology, "{step:?}");
    }
}

fn compare_list(
    found: &[cosky_core::ServiceInstance],
    expected: &BTreeMap<cosky_core::InstanceId, plain::Entry>,
    now: Duration,
) {
    assert!(found.iter().map(|found| found.id()).eq(expected.keys()), "{found:?} instead of {expected:?}");
    for (found, entry) in found.iter().zip(expected.values()) {
        assert_eq!(**found.instance(), Instance::from(entry.registered.clone()));
        match (found.life(), entry.deadline) {
            (Life::Permanent, None) => {}
            (Life::Remaining { remaining, .. }, Some(deadline)) => assert_eq!(remaining, deadline - now),
            other => panic!("{}: {other:?}", found.id()),
        }
    }
}

/// A change in words; `None` for one of the store's state.
fn words(change: &Arc<Change>) -> Option<String> {
    match &change.event {
        Event::Instance { op, id, .. } => Some(format!("{} {id}", op.as_str())),
        Event::Service { op, service } => Some(format!("{} {service}", op.as_str())),
        Event::State(_) => None,
        other => panic!("unexpected: {other:?}"),
    }
}
