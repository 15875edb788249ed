//! P1 in virtual time: a thousand instances that beat, over ten of their TTLs, are never absent in any view, whatever the
//! readers' wall clocks show and however often they are set. And when the beats stop, all of them leave.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use cosky_cache::{Cache, Options, View, ViewChange};
use cosky_core::{Beat, BeatKey, Namespace, Registration, Registry as _, ServiceId, StoreState, Ttl};
use cosky_testkit::sim::{Delay, Link, Quality, Shape, Sim, VirtualClock};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::time::{Instant, sleep};

const SERVICES: usize = 10;
/// Instances of each service.
const EACH: usize = 100;
const TTL: Duration = Duration::from_secs(30);
const WINDOWS: u32 = 10;
const SECOND: Duration = Duration::from_secs(1);

/// One reader: a cache of its own on a machine of its own, and what went missing in its views.
struct Reader {
    cache: Cache,
    link: Arc<Link>,
    clock: VirtualClock,
    views: Vec<View>,
    removed: Arc<AtomicUsize>,
}

/// An instance, and when it beats next.
struct Beating {
    registration: Registration,
    id: String,
    due: Duration,
    every: Duration,
}

#[test]
fn nothing_flickers_when_the_registry_tells_what_expires() {
    simulate(false);
}

#[test]
fn nothing_flickers_when_the_end_of_a_life_is_asked_about() {
    simulate(true);
}

fn simulate(ask_at_deadline: bool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(flicker(ask_at_deadline));
}

async fn flicker(ask_at_deadline: bool) {
    let shape =
        Shape { servers: 1, lag: Delay::ms(0, 0), ring: 16_384, default_ttl: Ttl::from_seconds(30).unwrap() };
    let sim = Sim::new(17, shape);
    let mut rng = StdRng::seed_from_u64(17);
    let shop = Namespace::new("shop").unwrap();
    let writer = sim.link(Quality::perfect());
    let mut fleet = Vec::new();
    for (service, host) in (0..SERVICES).flat_map(|service| (0..EACH).map(move |host| (service, host))) {
        let registration = Registration::new(name(service), "http", &format!("10.0.0.{host}"), 8080).unwrap();
        writer.register(&shop, &registration).await.unwrap();
        // Most beat three times in a TTL, as the SDK does; some in the last moment.
        let every = if rng.random_bool(0.1) { TTL - SECOND } else { TTL / 3 };
        let due = sim.now() + every.mul_f64(rng.random_range(0.0..1.0));
        fleet.push(Beating { id: registration.id().to_string(), registration, due, every });
    }
    let readers: Vec<_> = [-600_000, 0, 600_000, 0]
        .into_iter()
        .map(|wrong| reader(&sim, &shop, wrong, ask_at_deadline))
        .collect();
    for view in readers.iter().flat_map(|reader| &reader.views) {
        view.clone().ready(5 * SECOND).await.unwrap();
    }

    let (begin, mut looks) = (Instant::now(), 0);
    let mut next_cut = sim.now() + 37 * SECOND;
    while begin.elapsed() < TTL * WINDOWS {
        beat(&writer, &shop, &mut fleet, sim.now()).await;
        // The last reader's wall clock is set now and then, to anything within ten minutes.
        if rng.random_bool(0.05) {
            readers[3].clock.set_wrong_by(rng.random_range(-600_000..=600_000));
        }
        if sim.now() >= next_cut {
            readers[rng.random_range(0..4)].link.cut(SECOND);
            next_cut += 37 * SECOND;
        }
        for (reader, view) in
            readers.iter().enumerate().flat_map(|(at, r)| r.views.iter().map(move |v| (at, v)))
        {
            let there = view.snapshot().len();
            assert_eq!(there, EACH, "{:?} of {} for reader {reader}", begin.elapsed(), view.service());
            looks += 1;
        }
        sleep(Duration::from_millis(rng.random_range(100..=400))).await;
    }
    assert!(looks > 30_000, "{looks}");
    for (at, reader) in readers.iter().enumerate() {
        assert_eq!(reader.removed.load(Ordering::SeqCst), 0, "absences that reader {at} was told of");
        assert!(reader.views.iter().all(|view| view.state() == StoreState::Live), "reader {at}");
        let loads = reader.cache.figures().loads;
        assert_eq!(loads > 0, ask_at_deadline, "{loads} questions of reader {at}");
        // Ten services, asked again when the earliest of a hundred lives may be over.
        assert!(loads < 2_000, "{loads} questions of reader {at}");
    }

    let begin = Instant::now();
    while readers.iter().flat_map(|reader| &reader.views).any(|view| !view.snapshot().is_empty()) {
        assert!(begin.elapsed() < TTL + 2 * SECOND, "the dead leave, and leaving is noticed");
        sleep(SECOND / 4).await;
    }
    for reader in &readers {
        sleep(SECOND).await;
        assert_eq!(reader.removed.load(Ordering::SeqCst), SERVICES * EACH);
    }
}

/// A reader whose wall clock is wrong by so many milliseconds.
fn reader(sim: &Sim, shop: &Namespace, wrong: i64, ask_at_deadline: bool) -> Reader {
    let clock = VirtualClock::new();
    clock.set_wrong_by(wrong);
    let link = sim.link(Quality { delay: Delay::ms(0, 50), ..Quality::perfect() });
    let options = Options {
        ask_at_deadline,
        clock: Arc::new(clock.clone()),
        seed: Some(wrong.unsigned_abs()),
        ..Options::default()
    };
    let cache = Cache::new(Arc::clone(&link) as _, options);
    let views: Vec<_> = (0..SERVICES).map(|service| cache.view(shop, &name(service)).unwrap()).collect();
    let removed = Arc::new(AtomicUsize::new(0));
    for view in &views {
        let (mut changes, removed) = (view.changes(), Arc::clone(&removed));
        tokio::spawn(async move {
            loop {
                if matches!(changes.next().await, ViewChange::Removed(_)) {
                    removed.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
    }
    Reader { cache, link, clock, views, removed }
}

/// Whoever is due beats.
async fn beat(writer: &Link, shop: &Namespace, fleet: &mut [Beating], now: Duration) {
    let mut due: Vec<_> = fleet.iter_mut().filter(|beating| beating.due <= now).collect();
    let keys: Vec<_> = due
        .iter()
        .map(|beating| BeatKey { service: beating.registration.service.as_str(), instance: &beating.id })
        .collect();
    let answers = writer.beat(shop, &keys).await.unwrap();
    assert!(answers.iter().all(|answer| matches!(answer, Beat::Renewed(_))), "every beat arrives in time");
    for beating in &mut due {
        beating.due = now + beating.every;
    }
}

fn name(service: usize) -> ServiceId {
    ServiceId::new(&format!("s{service}")).unwrap()
}
