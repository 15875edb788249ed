//! The simulation is itself held to the conformance suite, and each fault to what it says.

use std::panic::AssertUnwindSafe;

use async_trait::async_trait;
use cosky_core::{Error, Event, Registration, Registry, Scope, StoreState, WatchStream};
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::conformance::{self, REGISTRY};

const SECOND: Duration = Duration::from_secs(1);

struct Perfect {
    sim: Sim,
    link: Arc<Link>,
}

#[async_trait]
impl conformance::World for Perfect {
    fn registry(&self) -> Arc<dyn Registry> {
        Arc::clone(&self.link) as _
    }

    async fn reopen(&self) -> Arc<dyn conformance::World> {
        self.sim.restart_store(Restart::Kept, Duration::ZERO);
        Arc::new(Self { sim: self.sim.clone(), link: Arc::clone(&self.link) })
    }

    async fn another(&self) -> Arc<dyn conformance::World> {
        let sim = Sim::new(2, shape(1, 0));
        let link = sim.link(Quality::perfect());
        Arc::new(Self { sim, link })
    }

    fn ttl(&self) -> Ttl {
        Ttl::from_seconds(5).unwrap()
    }

    fn now(&self) -> Duration {
        self.sim.now()
    }

    async fn pass(&self, time: Duration) {
        sleep(time).await;
    }
}

fn simulate<T>(run: impl AsyncFnOnce() -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(run())
}

fn shape(servers: usize, lag: u64) -> Shape {
    Shape { servers, lag: Delay::ms(lag, lag), ring: 512, default_ttl: Ttl::from_seconds(5).unwrap() }
}

fn namespace() -> Namespace {
    Namespace::new("shop").unwrap()
}

fn service() -> ServiceId {
    ServiceId::new("order").unwrap()
}

fn permanent(port: i64) -> Registration {
    let new = Registration::new(service(), "http", "10.0.0.1", port).unwrap();
    Registration { ephemeral: false, ..new }
}

async fn register(link: &Link, ports: std::ops::Range<i64>) {
    for port in ports {
        link.register(&namespace(), &permanent(port)).await.unwrap();
    }
}

/// A stream that has brought its snapshot.
async fn watch(link: &Link) -> WatchStream {
    let mut stream = link.watch(&namespace(), Scope::All, None).await.unwrap();
    let first = stream.next().await.unwrap().unwrap();
    assert!(matches!(first.event, Event::Snapshot(_)), "{first:?}");
    stream
}

/// The ports of the next registrations that a stream brings, until nothing comes for `quiet`.
async fn ports(stream: &mut WatchStream, quiet: Duration) -> Vec<u32> {
    let mut ports = Vec::new();
    while let Ok(Some(item)) = timeout(quiet, stream.next()).await {
        if let Event::Instance { instance: Some(instance), .. } = &item.unwrap().event {
            ports.push(instance.port().get());
        }
    }
    ports
}

#[test]
fn through_a_perfect_link_it_is_an_engine_like_any_other() {
    let mut failed = Vec::new();
    for case in REGISTRY {
        simulate(async || {
            let sim = Sim::new(1, shape(1, 0));
            let link = sim.link(Quality::perfect());
            let judged = AssertUnwindSafe((case.run)(Arc::new(Perfect { sim, link }))).catch_unwind().await;
            if judged.is_err() {
                failed.push(case.name);
            }
        });
    }
    assert!(failed.is_empty(), "the simulation fails {failed:?}");
}

#[test]
fn a_seed_always_plays_the_same() {
    let play = |seed| {
        simulate(async || {
            let sim = Sim::new(seed, shape(2, 30));
            sim.record();
            let (writer, reader) = (sim.link(Quality::perfect()), sim.link(poor()));
            let mut stream = watch(&reader).await;
            register(&writer, 1..40).await;
            sim.restart_server(1, SECOND);
            while let Ok(Some(Ok(_))) = timeout(10 * SECOND, stream.next()).await {}
            sim.trace()
        })
    };
    assert_eq!(play(7), play(7));
    assert_ne!(play(7), play(8));
}

fn poor() -> Quality {
    Quality { delay: Delay::ms(1, 50), dropped: 0.1, doubled: 0.1, overtaken: 0.1, ..Quality::perfect() }
}

#[test]
fn a_slow_link_keeps_the_order() {
    simulate(async || {
        let sim = Sim::new(3, shape(1, 0));
        let writer = sim.link(Quality::perfect());
        let reader = sim.link(Quality { delay: Delay::ms(1, 500), ..Quality::perfect() });
        let mut stream = watch(&reader).await;
        let begin = Instant::now();
        register(&writer, 1..50).await;
        assert_eq!(ports(&mut stream, SECOND).await, (1..50).collect::<Vec<_>>());
        assert!(begin.elapsed() > SECOND + Duration::from_millis(300), "{:?}", begin.elapsed());
    });
}

#[test]
fn a_poor_link_drops_doubles_and_reorders_in_silence() {
    simulate(async || {
        let sim = Sim::new(4, shape(1, 0));
        let (writer, reader) = (sim.link(Quality::perfect()), sim.link(poor()));
        let mut stream = watch(&reader).await;
        register(&writer, 1..200).await;
        let came = ports(&mut stream, 3 * SECOND).await;
        assert!(!came.is_sorted(), "some are overtaken");
        let distinct: std::collections::BTreeSet<_> = came.iter().collect();
        assert!(distinct.len() < 199 && distinct.len() > 150, "{} of 199 come", distinct.len());
        assert!(came.len() > distinct.len(), "some come twice");
        assert!(reader.counts().mishaps > 30);
    });
}

#[test]
fn a_cut_loses_what_was_under_way() {
    simulate(async || {
        let sim = Sim::new(5, shape(1, 0));
        let writer = sim.link(Quality::perfect());
        let reader = sim.link(Quality { delay: Delay::ms(100, 100), ..Quality::perfect() });
        let mut stream = watch(&reader).await;
        register(&writer, 1..2).await;
        sleep(SECOND / 20).await;
        reader.cut(SECOND);
        assert!(matches!(stream.next().await, Some(Err(Error::Unavailable { .. }))));
        assert!(stream.next().await.is_none());
        assert!(reader.instances(&namespace(), &service()).await.is_err(), "it stays cut for a second");
        sleep(SECOND).await;
        assert_eq!(reader.instances(&namespace(), &service()).await.unwrap().value.len(), 1);
    });
}

#[test]
fn an_answer_that_is_cut_off_says_that_the_write_may_be_there() {
    simulate(async || {
        let sim = Sim::new(5, shape(1, 0));
        let link = sim.link(Quality { delay: Delay::ms(100, 100), ..Quality::perfect() });
        let (asked, new) = (Arc::clone(&link), permanent(1));
        let write = tokio::spawn(async move { asked.register(&namespace(), &new).await });
        sleep(Duration::from_millis(150)).await;
        link.cut(SECOND);
        assert!(matches!(write.await.unwrap(), Err(Error::Unavailable { maybe_applied: true, .. })));
        assert_eq!(sim.truth(&namespace(), &service()).len(), 1);
    });
}

#[test]
fn a_frozen_link_holds_everything_until_it_thaws_or_somebody_gives_up() {
    simulate(async || {
        let sim = Sim::new(6, shape(1, 0));
        let (writer, reader) = (sim.link(Quality::perfect()), sim.link(Quality::perfect()));
        let mut stream = watch(&reader).await;
        let begin = Instant::now();
        reader.freeze(10 * SECOND, false, false);
        register(&writer, 1..2).await;
        assert!(reader.instances(&namespace(), &service()).await.is_err());
        assert_eq!(begin.elapsed(), 5 * SECOND, "a request gives up");
        while !matches!(stream.next().await.unwrap().unwrap().event, Event::Instance { .. }) {}
        assert_eq!(begin.elapsed(), 10 * SECOND, "a stream waits for longer");
        reader.freeze(60 * SECOND, true, false);
        assert_eq!(reader.instances(&namespace(), &service()).await.unwrap().value.len(), 1);
        assert!(stream.next().await.unwrap().is_err());
        assert_eq!(begin.elapsed(), 35 * SECOND, "but not for ever");
    });
}

#[test]
fn a_server_that_is_cut_off_says_so_and_catches_up() {
    simulate(async || {
        let sim = Sim::new(7, shape(2, 100));
        let (writer, reader) = (sim.link(Quality::perfect()), sim.link(Quality::perfect()));
        writer.pin(0);
        reader.pin(1);
        let mut stream = watch(&reader).await;
        sim.cut_off_server(1, 10 * SECOND);
        assert!(matches!(stream.next().await.unwrap().unwrap().event, Event::State(StoreState::Stale)));
        register(&writer, 1..2).await;
        sleep(SECOND).await;
        let read = reader.instances(&namespace(), &service()).await.unwrap();
        assert_eq!((read.value.len(), read.state, read.age), (0, StoreState::Stale, SECOND));
        assert!(reader.register(&namespace(), &permanent(2)).await.is_err());
        assert_eq!(ports(&mut stream, 20 * SECOND).await, [1]);
        assert_eq!(reader.instances(&namespace(), &service()).await.unwrap().state, StoreState::Live);
    });
}

#[test]
fn a_store_comes_back_with_what_the_restart_says() {
    simulate(async || {
        let sim = Sim::new(8, shape(1, 0));
        let link = sim.link(Quality::perfect());
        register(&link, 1..2).await;
        let (first, held) = (sim.store_id(), || sim.truth(&namespace(), &service()).len());
        sim.copy_store();
        register(&link, 2..3).await;
        assert_eq!(sim.restart_store(Restart::Copy, SECOND), Restart::Kept, "this could not be told apart");
        assert_eq!((held(), sim.store_id().opened), (2, 2));
        assert_eq!(sim.restart_store(Restart::Kept, SECOND), Restart::Kept);
        assert_eq!(sim.restart_store(Restart::Copy, SECOND), Restart::Copy);
        assert_eq!((held(), sim.store_id().opened, sim.store_id().id), (1, 2, first.id));
        assert_eq!(sim.restart_store(Restart::Emptied, SECOND), Restart::Emptied);
        assert_eq!((held(), sim.store_id().opened), (0, 1));
        assert_ne!(sim.store_id().id, first.id);
    });
}

#[test]
fn a_machine_may_be_wrong_about_the_date_and_may_sleep() {
    use cosky_core::Clock as _;
    simulate(async || {
        let clock = VirtualClock::new();
        let (now, unix) = (clock.now(), clock.unix());
        sleep(SECOND).await;
        assert_eq!((clock.now() - now, clock.unix() - unix), (SECOND, SECOND));
        clock.set_wrong_by(-600_000);
        assert_eq!((clock.now() - now, unix - clock.unix()), (SECOND, 599 * SECOND));
        clock.suspend(60 * SECOND);
        assert_eq!((clock.now() - now, unix - clock.unix()), (61 * SECOND, 539 * SECOND));
    });
}
