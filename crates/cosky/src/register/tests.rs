//! From the wait to the goodbye, in front of an engine that does as it is told, in time that passes at command.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::Duration,
};

use cosky_core::{Beat, Namespace};
use tokio::{
    runtime::Handle,
    sync::oneshot,
    time::{Instant, sleep, timeout},
};

use super::*;
use crate::{
    HealthStatus, OUT_OF_SERVICE, RegistrationState, UP,
    beats::scripted::{Call, Engine, Mode, PERIOD, Script, TTL},
    detect::Home,
    namespace::NamespaceCore,
};

/// The longest that a call and a goodbye may take.
const LIMIT: Duration = Duration::from_secs(5);
const SECOND: Duration = Duration::from_secs(1);

fn shop(engine: &Arc<Engine>) -> NamespaceClient {
    let home = Arc::new(Home::towards(["http://127.0.0.1:8080"]));
    let namespace = Namespace::new("shop").unwrap();
    let cache = cosky_cache::Cache::new(engine.clone(), cosky_cache::Options::default());
    let core = NamespaceCore::new(engine.clone(), namespace, cache, Handle::current(), LIMIT, LIMIT, home);
    NamespaceClient::new(Arc::new(core))
}

fn order() -> Instance {
    Instance::http("order", "10.0.0.5", 8080).ttl(TTL)
}

async fn reaches(handle: &Registration, wanted: RegistrationState) {
    let mut states = handle.state_changes();
    let reached = timeout(2 * TTL, states.wait_for(|state| *state == wanted)).await;
    reached.unwrap_or_else(|_| panic!("{wanted:?} is not reached")).unwrap();
}

#[tokio::test(start_paused = true)]
async fn nobody_hears_of_it_before_the_check_passes() {
    let engine = Arc::<Engine>::default();
    let shop = shop(&engine);
    let (checks, open) = (Arc::<AtomicU32>::default(), Arc::<AtomicBool>::default());
    let check = {
        let (checks, open) = (checks.clone(), open.clone());
        move || {
            let nth = checks.fetch_add(1, Ordering::Relaxed);
            let open = open.load(Ordering::Relaxed);
            async move {
                match (open, nth) {
                    (true, _) => Ok(()),
                    (false, 1) => std::future::pending().await,
                    (false, _) => Err("the cache is cold"),
                }
            }
        }
    };
    let handle = shop.register_when(order(), Ready::check(check).every(2 * SECOND)).unwrap();
    sleep(SECOND).await;
    assert_eq!(checks.load(Ordering::Relaxed), 1);
    assert_eq!(handle.state(), RegistrationState::Waiting);
    let health = handle.health();
    assert_eq!((health.status, health.http_status()), (HealthStatus::Degraded, 200));
    assert!(health.reason.unwrap().ends_with("the cache is cold"));
    // The second one hangs for 10 s, which counts as a failure; then one every 2 s.
    sleep(10 * SECOND).await;
    assert_eq!(checks.load(Ordering::Relaxed), 2);
    sleep(20 * SECOND).await;
    assert!((9..=11).contains(&checks.load(Ordering::Relaxed)), "{checks:?}");
    assert!(engine.words().is_empty(), "nobody was asked anything");
    // What is set meanwhile is told by the registration.
    handle.set_status(OUT_OF_SERVICE).await.unwrap();
    assert!(engine.words().is_empty());
    open.store(true, Ordering::Relaxed);
    sleep(2 * SECOND).await;
    assert_eq!(handle.state(), RegistrationState::Registered);
    assert_eq!(engine.registrations(), 1);
    assert_eq!(
        engine.state().registered.clone().unwrap().metadata.get("instance_status"),
        Some(OUT_OF_SERVICE)
    );
    let asked = checks.load(Ordering::Relaxed);
    sleep(10 * PERIOD).await;
    assert_eq!(checks.load(Ordering::Relaxed), asked, "a check that passed is not asked again");
    assert!(engine.beats().len() > 5);
}

#[tokio::test(start_paused = true)]
async fn what_ends_before_it_is_ready_never_was_registered() {
    let engine = Arc::<Engine>::default();
    let shop = shop(&engine);
    for close in [false, true] {
        let (ready, wait) = oneshot::channel::<()>();
        let waiting = Ready::when(async { drop(wait.await) });
        let handle = shop.register_when(order(), waiting).unwrap();
        sleep(SECOND).await;
        let mut states = handle.state_changes();
        if close {
            assert!(!handle.close().await.unwrap(), "it never was there");
        } else {
            drop(handle);
        }
        assert_eq!(*states.borrow_and_update(), RegistrationState::Deregistered);
        // Its future has been dropped, or this would start it all the same.
        sleep(SECOND).await;
        assert!(ready.send(()).is_err(), "nobody waits for it any more");
        sleep(TTL).await;
        assert!(engine.words().is_empty(), "{:?}", engine.words());
    }
    // The same id may come again.
    let handle = shop.register_when(order(), Ready::when(async {})).unwrap();
    reaches(&handle, RegistrationState::Registered).await;
}

#[tokio::test(start_paused = true)]
async fn a_handle_that_does_not_register_by_itself_waits_to_be_told() {
    let engine = Arc::<Engine>::default();
    let shop = shop(&engine);
    let by_hand = order().auto_register(false);
    let first = shop.register(by_hand.clone()).await.unwrap();
    let second = shop.keep_registered(by_hand.clone()).unwrap();
    let third = shop.register_when(by_hand, Ready::when(async {})).unwrap();
    sleep(TTL).await;
    assert_eq!(first.state(), RegistrationState::Waiting);
    assert!(engine.words().is_empty());
    assert!(second.begin() && !third.begin());
    reaches(&first, RegistrationState::Registered).await;
    assert_eq!(engine.registrations(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_switched_off_does_nothing_and_is_well() {
    let engine = Arc::<Engine>::default();
    let shop = shop(&engine);
    let off = Instance::named("order").enabled(false);
    let handle = shop.register(off.clone()).await.unwrap();
    let _kept = shop.keep_registered(off.clone()).unwrap();
    let _when = shop.register_when(off, Ready::when(async {})).unwrap();
    handle.set_status(OUT_OF_SERVICE).await.unwrap();
    assert!(!handle.begin());
    sleep(TTL).await;
    assert_eq!(handle.state(), RegistrationState::Disabled);
    assert_eq!((handle.health().status, handle.health().http_status()), (HealthStatus::Up, 200));
    assert!(!handle.drain(TTL).await.unwrap());
    assert!(!handle.close().await.unwrap());
    assert!(engine.words().is_empty(), "{:?}", engine.words());
}

#[tokio::test(start_paused = true)]
async fn the_first_beat_and_the_timeout_are_as_they_are_set() {
    let engine = Arc::<Engine>::default();
    let shop = shop(&engine);
    let start = Instant::now();
    let handle = shop.register(order().first_beat(3 * SECOND)).await.unwrap();
    sleep(5 * SECOND).await;
    assert_eq!((engine.beats()[0] - start).as_secs(), 3);
    assert!(handle.close().await.unwrap());
    engine.state().register = Mode::Hang;
    let start = Instant::now();
    let error = shop.register(order().timeout(2 * SECOND)).await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    assert_eq!(start.elapsed().as_secs(), 2);
    // Its answer was lost, so that it may be there.
    sleep(SECOND).await;
    assert_eq!(engine.words().last(), Some(&Call::Deregister));
}

#[tokio::test(start_paused = true)]
async fn vitals_count_beats_failures_and_returns() {
    let engine = Arc::<Engine>::default();
    let handle = shop(&engine).register(order()).await.unwrap();
    let mut changes = handle.vitals_changes();
    let (state, first) = changes.next().await.unwrap();
    assert_eq!(state, RegistrationState::Registered);
    assert_eq!((first.beats, first.registrations, first.failures), (0, 1, 0));
    assert!(first.last_beat.is_some() && first.last_error.is_none());
    assert_eq!((first.ttl, first.period), (TTL, PERIOD));

    let (_, second) = changes.next().await.unwrap();
    assert_eq!(second.beats, 1);
    assert_eq!(second.last_beat.unwrap() - first.last_beat.unwrap(), SECOND);

    engine.script([Script::Fail, Script::Fail, Script::Answer(Beat::Renewed(None))]);
    let (state, failed) = changes.next().await.unwrap();
    assert!(matches!(state, RegistrationState::Unreachable { .. }), "{state:?}");
    assert_eq!((failed.failures, failed.failures_in_a_row), (1, 1));
    assert_eq!(failed.last_beat, second.last_beat);
    let health = handle.health();
    assert_eq!((health.status, health.http_status()), (HealthStatus::Degraded, 200), "the registry is away");
    assert!(health.last_beat_ms.unwrap() >= 9_000 && health.failures == 1);
    changes.next().await.unwrap();
    let (state, well) = changes.next().await.unwrap();
    assert_eq!(state, RegistrationState::Registered);
    assert_eq!((well.beats, well.failures, well.failures_in_a_row), (2, 2, 0));
    assert!(well.last_error.is_some(), "it stays");
    assert_eq!(handle.health().status, HealthStatus::Up);

    engine.script([Script::Answer(Beat::Unknown)]);
    let returned = async { while changes.next().await.unwrap().1.registrations < 2 {} };
    timeout(2 * PERIOD, returned).await.expect("it is registered again");
    assert_eq!(handle.state(), RegistrationState::Registered);
    assert_eq!(handle.vitals().failures, 2, "being forgotten is no failure");

    engine.script([Script::Answer(Beat::Gone)]);
    reaches(&handle, RegistrationState::Deregistered).await;
    let health = handle.health();
    assert_eq!((health.status, health.http_status()), (HealthStatus::Degraded, 200), "an operator did it");
    let last = async { while changes.next().await.is_some() {} };
    timeout(SECOND, last).await.expect("the changes end");
}

#[tokio::test(start_paused = true)]
async fn a_status_is_patched_and_comes_back_with_a_new_registration() {
    let engine = Arc::<Engine>::default();
    let handle = shop(&engine).register(order().metadata("version", "4")).await.unwrap();
    assert_eq!(handle.status(), UP);
    handle.set_status(OUT_OF_SERVICE).await.unwrap();
    assert_eq!(engine.words().last(), Some(&Call::Patch("instance_status=OUT_OF_SERVICE".to_owned())));
    let health = handle.health();
    assert_eq!((health.status, health.http_status()), (HealthStatus::Degraded, 200));
    engine.script([Script::Answer(Beat::Unknown)]);
    sleep(2 * PERIOD).await;
    assert_eq!(engine.registrations(), 2);
    let registered = engine.state().registered.clone().unwrap().metadata;
    assert_eq!(registered.get("instance_status"), Some(OUT_OF_SERVICE));
    assert_eq!(registered.get("version"), Some("4"));
    // What the server refused or did not answer is not remembered as set.
    engine.state().patch = Mode::Fail;
    assert!(handle.set_status(UP).await.is_err());
    assert_eq!(handle.status(), OUT_OF_SERVICE);
}

#[tokio::test(start_paused = true)]
async fn a_drain_says_so_leaves_waits_and_is_the_same_for_everybody() {
    let engine = Arc::<Engine>::default();
    let shop = shop(&engine);
    let handle = Arc::new(shop.register(order()).await.unwrap());
    let other = handle.clone();
    let start = Instant::now();
    let drain = tokio::spawn(async move { other.drain(7 * SECOND).await });
    sleep(SECOND).await;
    let health = handle.health();
    assert_eq!((health.status, health.http_status()), (HealthStatus::Down, 503));
    let status = Call::Patch("instance_status=OUT_OF_SERVICE".to_owned());
    assert_eq!(engine.words(), [Call::Register, status, Call::Deregister]);
    assert!(engine.times(|call| *call == Call::Deregister)[0] - start < SECOND);
    assert!(handle.drain(100 * SECOND).await.unwrap(), "it joins the first");
    assert!(drain.await.unwrap().unwrap());
    assert_eq!(start.elapsed().as_secs(), 7);
    sleep(10 * PERIOD).await;
    assert_eq!(engine.words().len(), 3, "nothing follows");
    assert_eq!(handle.health().http_status(), 503);
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_in_time_whatever_fails() {
    for (patch, deregister, seconds) in [
        (Mode::Fail, Mode::Answer, 2),
        (Mode::Hang, Mode::Answer, 3),
        (Mode::Answer, Mode::Hang, 7),
        (Mode::Fail, Mode::Fail, 7),
        (Mode::Hang, Mode::Hang, 8),
    ] {
        let engine = Arc::<Engine>::default();
        let handle = shop(&engine).register(order()).await.unwrap();
        engine.state().patch = patch;
        engine.state().deregister = deregister;
        let start = Instant::now();
        let mut drain = std::pin::pin!(handle.drain(2 * SECOND));
        assert!(timeout(SECOND / 2, &mut drain).await.is_err());
        assert_eq!(handle.health().http_status(), 503, "from the beginning");
        let outcome = drain.await;
        assert_eq!(outcome.is_ok(), deregister == Mode::Answer, "{outcome:?}");
        assert_eq!(start.elapsed().as_secs(), seconds, "{patch:?} {deregister:?}");
        assert!(engine.words().contains(&Call::Deregister), "a failed status does not hold it up");
    }
}

#[tokio::test(start_paused = true)]
async fn what_nobody_was_told_of_drains_at_once() {
    let engine = Arc::<Engine>::default();
    let handle = shop(&engine).register_when(order(), Ready::when(std::future::pending())).unwrap();
    let start = Instant::now();
    assert!(!handle.drain(2 * SECOND).await.unwrap());
    assert!(start.elapsed() < SECOND && engine.words().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_signal_drains_with_the_wait_of_the_instance() {
    let engine = Arc::<Engine>::default();
    let handle = shop(&engine).register(order().drain_wait(4 * SECOND)).await.unwrap();
    let (signal, told) = oneshot::channel::<()>();
    let drained = tokio::spawn(handle.drained_on(async { drop(told.await) }));
    sleep(10 * SECOND).await;
    assert_eq!(handle.state(), RegistrationState::Registered);
    let start = Instant::now();
    signal.send(()).unwrap();
    drained.await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 4);
    assert_eq!(handle.state(), RegistrationState::Deregistered);
}

/// A goodbye is tried until the life is over that the last beat may have begun, answered or not, and no longer.
#[tokio::test(start_paused = true)]
async fn a_goodbye_is_tried_until_the_life_is_over_and_the_caller_does_not_wait_for_that() {
    let engine = Arc::<Engine>::default();
    let shop = shop(&engine);
    let handle = shop.register(order()).await.unwrap();
    let start = Instant::now();
    // The first beat is answered; the one after it reaches the server, and its answer is lost.
    engine.script([Script::Answer(Beat::Renewed(None)), Script::Hang]);
    sleep(14 * SECOND).await;
    let asked = engine.beats();
    assert_eq!(asked.len(), 2);
    engine.state().deregister = Mode::Fail;
    let closing = Instant::now();
    let mut states = handle.state_changes();
    assert!(handle.close().await.unwrap_err().is_unavailable());
    assert!(closing.elapsed() <= LIMIT + SECOND + PERIOD, "{:?}", closing.elapsed());
    states.wait_for(RegistrationState::is_final).await.unwrap();
    let tries = engine.times(|call| *call == Call::Deregister);
    let end = asked[1] + TTL;
    assert!(*tries.last().unwrap() > end - 3 * SECOND, "tried for {:?}", *tries.last().unwrap() - start);
    assert!(*tries.last().unwrap() <= end && Instant::now() <= end + SECOND);
    let gaps: Vec<_> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps[0] < SECOND && gaps.iter().all(|gap| *gap <= 2 * SECOND), "{gaps:?}");
    assert!(gaps.last().unwrap() >= &SECOND, "ever later: {gaps:?}");
}

/// Nothing else ends a permanent instance, however long ago it was registered.
#[tokio::test(start_paused = true)]
async fn the_goodbye_of_a_permanent_instance_is_tried_long_after_its_registration() {
    let engine = Arc::<Engine>::default();
    let handle = shop(&engine).register(order().permanent()).await.unwrap();
    sleep(100 * TTL).await;
    engine.state().deregister = Mode::Fail;
    let mut states = handle.state_changes();
    assert!(handle.close().await.is_err());
    sleep(2 * TTL).await;
    assert!(!states.borrow_and_update().is_final(), "it is not given up");
    engine.state().deregister = Mode::Answer;
    timeout(3 * SECOND, states.wait_for(RegistrationState::is_final)).await.expect("it is tried on").unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_host_is_found_and_a_port_must_be_known() {
    let engine = Arc::<Engine>::default();
    let shop = shop(&engine);
    let error = shop.register(Instance::named("order")).await.unwrap_err().to_string();
    assert!(error.starts_with("port: is not known"), "{error}");
    assert!(shop.keep_registered(Instance::named("order")).is_err());
    let found = shop.register(Instance::named("order").port(80)).await.unwrap();
    assert_eq!(found.id().as_str(), "order@http#127.0.0.1#80");
    let listening = Instance::named("order").listening("0.0.0.0:9000".parse().unwrap());
    let kept = shop.keep_registered(listening).unwrap();
    assert_eq!(kept.id().as_str(), "order@http#127.0.0.1#9000");
    let batch = shop.register(Instance::process("batch")).await.unwrap();
    let place = (std::process::id() - 1) % 65_535 + 1;
    assert_eq!(batch.id().as_str(), format!("batch@__#127.0.0.1#{place}"));
}

/// Whoever looks at the state may ask the handle something meanwhile, in the middle of a beat. In threads of its own, so
/// that two that wait for each other fail the test and do not hold it up.
#[test]
fn who_looks_at_the_state_may_ask_for_more() {
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let engine = Arc::<Engine>::default();
        let handle = runtime.block_on(async {
            let often = order().beat_every(Duration::from_millis(1)).first_beat(Duration::ZERO);
            shop(&engine).register(often).await.unwrap()
        });
        let states = handle.state_changes();
        let start = std::time::Instant::now();
        while start.elapsed() < SECOND {
            let state = states.borrow();
            for _ in 0..100 {
                std::hint::black_box((handle.vitals(), handle.health()));
            }
            drop(state);
        }
        done.send(engine.beats().len()).unwrap();
    });
    let beats = ended.recv_timeout(30 * SECOND).expect("nobody waits for each other");
    assert!(beats > 100, "{beats}");
}

/// What the engine was asked for last, and how often.
fn last(engine: &Engine) -> (usize, String) {
    let version =
        engine.state().registered.as_ref().and_then(|new| new.metadata.get("version").map(str::to_owned));
    (engine.registrations(), version.unwrap_or_default())
}

fn version(version: &str) -> Instance {
    order().metadata("version", version)
}

#[tokio::test(start_paused = true)]
async fn data_that_is_wanted_during_a_registration_follows_it() {
    let engine = Arc::new(Engine { slow: SECOND, ..Engine::default() });
    let first = shop(&engine);
    let old = first.keep_registered(version("1")).unwrap();
    sleep(SECOND / 2).await;
    let new = first.keep_registered(version("2")).unwrap();
    sleep(4 * SECOND).await;
    assert_eq!(last(&engine), (2, "2".to_owned()));
    assert_eq!(old.metadata().get("version"), Some("2"));
    assert_eq!(new.state(), RegistrationState::Registered);

    // The same beside a caller who waits.
    let engine = Arc::new(Engine { slow: SECOND, ..Engine::default() });
    let second = shop(&engine);
    let registering = second.register(version("1"));
    let wanting = async {
        sleep(SECOND / 2).await;
        second.keep_registered(version("2")).unwrap()
    };
    let (joined, kept) = tokio::join!(registering, wanting);
    let _joined = joined.unwrap();
    sleep(4 * SECOND).await;
    assert_eq!(last(&engine), (2, "2".to_owned()));
    assert_eq!(kept.metadata().get("version"), Some("2"));
    assert_eq!(kept.state(), RegistrationState::Registered);
}

#[tokio::test(start_paused = true)]
async fn a_caller_whose_registration_fails_does_not_keep_others_from_it() {
    for mode in [Mode::Fail, Mode::Hang] {
        let engine = Arc::new(Engine { slow: SECOND, ..Engine::default() });
        let shop = shop(&engine);
        engine.state().register = mode;
        let registering = shop.register(version("1"));
        let wanting = async {
            sleep(SECOND / 2).await;
            shop.keep_registered(version("2")).unwrap()
        };
        let (failed, kept) = tokio::join!(registering, wanting);
        assert!(failed.is_err());
        engine.state().register = Mode::Answer;
        reaches(&kept, RegistrationState::Registered).await;
        assert_eq!(last(&engine).1, "2", "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_registry_told_before_is_not_registered() {
    let engine = Arc::<Engine>::default();
    let shop = shop(&engine);
    let keeper = &shop.core.keeper;
    let predecessor = version("1").check().unwrap().registration.metadata;
    let handle = shop.register_when(version("2"), Ready::when(std::future::pending())).unwrap();
    keeper.saw_metadata(handle.id(), &predecessor);
    assert!(handle.begin());
    reaches(&handle, RegistrationState::Registered).await;
    assert_eq!(last(&engine), (1, "2".to_owned()));
    // Other data is wanted, and the stream still tells of the one before.
    let newer = shop.keep_registered(version("3")).unwrap();
    keeper.saw_metadata(handle.id(), &predecessor);
    sleep(SECOND).await;
    assert_eq!(last(&engine), (2, "3".to_owned()));
    // What is told of what this process registered is an operator's wish.
    keeper.saw_metadata(handle.id(), &version("4").check().unwrap().registration.metadata);
    engine.script([Script::Answer(Beat::Unknown)]);
    sleep(2 * PERIOD).await;
    assert_eq!(last(&engine), (3, "4".to_owned()));
    assert_eq!(newer.metadata().get("version"), Some("4"));
}

#[tokio::test(start_paused = true)]
async fn a_check_that_panics_has_failed_and_is_asked_again() {
    let engine = Arc::<Engine>::default();
    let shop = shop(&engine);
    let checks = Arc::<AtomicU32>::default();
    let asked = checks.clone();
    let check = move || {
        let nth = asked.fetch_add(1, Ordering::Relaxed);
        assert!(nth != 0, "at the call");
        async move {
            assert!(nth != 1, "in the future");
            if nth == 2 { Err("not yet") } else { Ok(()) }
        }
    };
    let handle = shop.register_when(order(), Ready::check(check)).unwrap();
    sleep(SECOND / 2).await;
    assert!(handle.health().reason.unwrap().ends_with("the check panicked"));
    reaches(&handle, RegistrationState::Registered).await;
    assert_eq!(checks.load(Ordering::Relaxed), 4);
    assert!(handle.close().await.unwrap());

    let warm = Ready::when(async { panic!("no memory") });
    let handle = shop.register_when(order(), warm).unwrap();
    sleep(SECOND).await;
    assert_eq!(handle.state(), RegistrationState::Waiting);
    assert!(handle.vitals().last_error.unwrap().1.contains("panicked"));
    assert!(handle.begin());
    reaches(&handle, RegistrationState::Registered).await;
}
