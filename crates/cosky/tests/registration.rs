//! What a registration promises, in front of a real server.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use cosky::{Error, Instance, RegistrationState, Watched, core};
use cosky_core::{BeatKey, Event, InstanceOp, Metadata, Registry as _, Scope, ServiceId};
use cosky_testkit::ManualClock;
use support::{
    NS, Server, Setup, namespace, nobody,
    proxy::{Mode, Proxy},
    until,
};
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(3);
const RENEW: Duration = Duration::from_secs(1);

fn order() -> Instance {
    Instance::http("order", "10.0.0.5", 8080).ttl(TTL)
}

fn id() -> String {
    order().id().unwrap().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn c22_registered_twenty_times_and_deregistered_once() {
    let server = Server::start().await;
    let proxy = Proxy::before(server.address).await;
    let cosky = cosky::Cosky::connect(proxy.url()).await.unwrap();
    let mut tasks = Vec::new();
    for _ in 0..8 {
        // Each opens the namespace by itself, as threads that know nothing of each other do.
        let cosky = cosky.clone();
        tasks.push(tokio::spawn(async move {
            let shop = cosky.namespace(NS).unwrap();
            let mut handles = Vec::new();
            for _ in 0..3 {
                handles.push(shop.register(order()).await.unwrap());
            }
            handles
        }));
    }
    let mut handles = Vec::new();
    for task in tasks {
        handles.extend(task.await.unwrap());
    }
    handles.truncate(20);
    assert_eq!(server.ids("order").await, [id()]);

    let before = proxy.seen("POST", "/beats").len();
    sleep(5 * RENEW).await;
    let beats = proxy.seen("POST", "/beats").len() - before;
    assert!((4..=6).contains(&beats), "one beat per period, in 5 periods: {beats}");

    assert!(handles.pop().unwrap().close().await.unwrap());
    let closed = Instant::now();
    while closed.elapsed() < 3 * TTL {
        assert!(server.ids("order").await.is_empty(), "came back after {:?}", closed.elapsed());
        sleep(Duration::from_millis(200)).await;
    }
    for handle in &handles {
        assert_eq!(handle.state(), RegistrationState::Deregistered);
    }
    let deregistered = proxy.seen("DELETE", "").last().unwrap().at;
    assert!(
        proxy.seen("POST", "/beats").iter().all(|beat| beat.at < deregistered),
        "beats after the goodbye"
    );
}

/// The operator edits 20 instances; beats keep the edits, also of what had less than a second left. After an expiry the
/// rule is: the newest metadata that the client has seen. Without a view it has not seen the edits.
#[tokio::test(flavor = "multi_thread")]
async fn c25_an_edit_that_no_view_saw_is_kept_by_beats_and_lost_by_an_expiry() {
    let (after_beats, after_expiry) = edit_beat_and_expire(false).await;
    assert_eq!(after_beats, vec!["b"; 20]);
    assert_eq!(after_expiry, vec!["a"; 20]);
}

#[tokio::test(flavor = "multi_thread")]
async fn c25_an_edit_that_a_view_saw_survives_an_expiry() {
    let (after_beats, after_expiry) = edit_beat_and_expire(true).await;
    assert_eq!(after_beats, vec!["b"; 20]);
    assert_eq!(after_expiry, vec!["b"; 20]);
}

async fn edit_beat_and_expire(with_view: bool) -> (Vec<String>, Vec<String>) {
    let clock = ManualClock::new();
    let server = Setup::new().clock(clock.clone()).start().await;
    let proxy = Proxy::before(server.address).await;
    let cosky = cosky::Cosky::connect(proxy.url()).await.unwrap();
    let shop = cosky.namespace(NS).unwrap();
    let mut handles = Vec::new();
    for port in 8001..=8020 {
        let instance = Instance::http("order", "10.0.0.5", port).ttl(TTL).metadata("zone", "a");
        handles.push(shop.register(instance.beat_every(Duration::from_millis(300))).await.unwrap());
    }
    let view = if with_view { Some(shop.discover("order").await.unwrap()) } else { None };
    // The operator works through another client.
    let operator = server.cosky().await.registry();
    let service = ServiceId::new("order").unwrap();
    let zone_b = Metadata::new([("zone", "b")]).unwrap();
    for handle in &handles {
        assert!(operator.set_metadata(&namespace(), &service, handle.id().as_str(), &zone_b).await.unwrap());
    }
    if let Some(view) = &view {
        until("the view shows the edits", async || {
            view.snapshot().iter().all(|instance| instance.metadata().get("zone") == Some("b"))
        })
        .await;
    }
    // All but half a second of the life goes by, and ten beats follow.
    clock.advance(Duration::from_millis(2500));
    server.engine.run_due().await;
    let before = proxy.seen("POST", "/beats").len();
    until("ten beats", async || proxy.seen("POST", "/beats").len() >= before + 10).await;
    let after_beats = zones(&server, &handles).await;

    clock.advance(Duration::from_secs(4));
    server.engine.run_due().await;
    until("all are registered again", async || server.ids("order").await.len() == 20).await;
    // The view must not bring anything else in afterwards.
    let settled = proxy.seen("POST", "/beats").len();
    until("more beats", async || proxy.seen("POST", "/beats").len() >= settled + 3).await;
    (after_beats, zones(&server, &handles).await)
}

async fn zones(server: &Server, handles: &[cosky::Registration]) -> Vec<String> {
    let mut zones = Vec::new();
    for handle in handles {
        zones.push(server.metadata("order", handle.id().as_str(), "zone").await.unwrap_or_default());
    }
    zones
}

/// The next version of a service starts where the one before still stands, and looks at its own service.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_version_on_the_place_of_the_old_one_registers_its_own_metadata() {
    let server = Setup::new().start().await;
    let old = server.cosky().await.namespace(NS).unwrap();
    let _old = old.register(order().metadata("version", "1")).await.unwrap();
    let shop = server.cosky().await.namespace(NS).unwrap();
    let (ready, wait) = tokio::sync::oneshot::channel::<()>();
    let when = cosky::Ready::when(async { drop(wait.await) });
    let handle = shop.register_when(order().metadata("version", "2"), when).unwrap();
    let view = shop.discover("order").await.unwrap();
    assert_eq!(view.snapshot()[0].metadata().get("version"), Some("1"));
    ready.send(()).unwrap();
    let mut states = handle.state_changes();
    states.wait_for(|state| *state == RegistrationState::Registered).await.unwrap();
    assert_eq!(server.metadata("order", &id(), "version").await.as_deref(), Some("2"));
    until("the view shows it", async || view.snapshot()[0].metadata().get("version") == Some("2")).await;
    assert_eq!(handle.metadata().get("version"), Some("2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_that_the_handle_set_survives_an_expiry() {
    let clock = ManualClock::new();
    let server = Setup::new().clock(clock.clone()).start().await;
    let shop = server.cosky().await.namespace(NS).unwrap();
    let instance =
        order().metadata("zone", "a").metadata("version", "1").beat_every(Duration::from_millis(300));
    let handle = shop.register(instance).await.unwrap();
    handle.patch_metadata([("zone", Some("b")), ("version", None), ("x", Some("y"))]).await.unwrap();
    assert_eq!(server.metadata("order", &id(), "zone").await.as_deref(), Some("b"));
    clock.advance(Duration::from_secs(4));
    server.engine.run_due().await;
    until("it is registered again", async || !server.ids("order").await.is_empty()).await;
    assert_eq!(server.metadata("order", &id(), "zone").await.as_deref(), Some("b"));
    assert_eq!(server.metadata("order", &id(), "version").await, None);
    assert_eq!(server.metadata("order", &id(), "x").await.as_deref(), Some("y"));
    handle.set_metadata(Metadata::default()).await.unwrap();
    assert_eq!(server.metadata("order", &id(), "zone").await, None);
    assert!(handle.metadata().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn c27_a_period_not_below_the_ttl_is_refused() {
    let server = Server::start().await;
    let shop = server.cosky().await.namespace(NS).unwrap();
    for seconds in [3, 5] {
        let period = Duration::from_secs(seconds);
        let error = shop.register(order().beat_every(period)).await.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Period { .. }), "{text}");
        assert!(text.contains(&format!("{period:?}")) && text.contains("3s"), "names both: {text}");
        // Without a TTL of its own the server's counts, which the client learns by registering.
        let no_ttl = Instance::http("order", "10.0.0.5", 8080).beat_every(period);
        let error = shop.register(no_ttl).await.unwrap_err();
        assert!(matches!(error, Error::Period { .. }), "{error}");
    }
    let error = shop.register(order().beat_every(Duration::ZERO)).await.unwrap_err();
    assert!(error.to_string().starts_with("beat_every"), "{error}");
    assert!(server.ids("order").await.is_empty(), "what is refused leaves nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn c27_every_other_period_never_flickers_and_is_kept() {
    let server = Server::start().await;
    let periods = [(1500, 1500), (2900, 1500), (1000, 1000)];
    let mut kept = Vec::new();
    for (at, (wanted, _)) in periods.iter().enumerate() {
        let proxy = Proxy::before(server.address).await;
        let shop = cosky::Cosky::connect(proxy.url()).await.unwrap().namespace(NS).unwrap();
        let instance = Instance::http("order", "10.0.0.5", 8000 + at as u16).ttl(TTL);
        let handle = shop.register(instance.beat_every(Duration::from_millis(*wanted))).await.unwrap();
        kept.push((proxy, handle));
    }
    let start = Instant::now();
    while start.elapsed() < 5 * TTL {
        assert_eq!(server.ids("order").await.len(), periods.len(), "a gap after {:?}", start.elapsed());
        sleep(Duration::from_millis(100)).await;
    }
    for ((proxy, _), (wanted, effective)) in kept.iter().zip(periods) {
        let beats = proxy.seen("POST", "/beats");
        let span = beats.last().unwrap().at - beats[0].at;
        let mean = span.as_millis() as f64 / (beats.len() - 1) as f64;
        let deviation = mean / f64::from(effective);
        assert!((0.85..1.15).contains(&deviation), "{wanted} ms was asked for, {mean} ms is kept");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c29_what_is_registered_is_read_and_beats_at_once() {
    let server = Server::start().await;
    let registry = server.cosky().await.registry();
    let (ns, service) = (namespace(), ServiceId::new("order").unwrap());
    let mut watch = server.cosky().await.namespace(NS).unwrap().watch(Scope::All);
    let Watched::Change(first) = watch.next().await else { panic!("a snapshot comes first") };
    assert!(matches!(first.event, Event::Snapshot(_)));
    let rounds = 500;
    for round in 0..rounds {
        let new = core::Registration::new(service.clone(), "http", "10.0.0.5", 1000 + round).unwrap();
        registry.register(&ns, &new).await.unwrap();
        let id = new.id();
        let listed = registry.instances(&ns, &service).await.unwrap().value;
        assert!(listed.iter().any(|instance| *instance.id() == id), "missed in round {round}");
        let key = BeatKey { service: service.as_str(), instance: id.as_str() };
        let beats = registry.beat(&ns, &[key]).await.unwrap();
        assert!(matches!(beats[..], [core::Beat::Renewed(_)]), "{beats:?} in round {round}");
        assert!(registry.deregister(&ns, &service, id.as_str(), None).await.unwrap());
    }
    // Nothing was registered a second time on the way.
    let (mut registered, mut deregistered) = (0, 0);
    while deregistered < rounds {
        let Watched::Change(change) = watch.next().await else { panic!("the watch was lost") };
        if let Event::Instance { op, .. } = &change.event {
            registered += i64::from(*op == InstanceOp::Register);
            deregistered += i64::from(*op == InstanceOp::Deregister);
        }
    }
    assert_eq!(registered, rounds);
}

/// With the server gone a provider still ends within its limit, and the beats have stopped.
#[tokio::test(flavor = "multi_thread")]
async fn c33_beats_stop_before_the_goodbye_and_it_ends_in_time_without_a_server() {
    let server = Server::start().await;
    let proxy = Proxy::before(server.address).await;
    let shop = cosky::Cosky::connect(proxy.url()).await.unwrap().namespace(NS).unwrap();
    for _ in 0..20 {
        // Beats come so often that one is under way at almost every goodbye.
        let handle = shop.register(order().beat_every(Duration::from_millis(5))).await.unwrap();
        until("beats", async || proxy.seen("POST", "/beats").len() > 5).await;
        assert!(handle.close().await.unwrap());
        assert!(server.ids("order").await.is_empty());
        let goodbye = proxy.seen("DELETE", "").last().unwrap().at;
        sleep(Duration::from_millis(50)).await;
        assert!(
            proxy.seen("POST", "/beats").iter().all(|beat| beat.at <= goodbye),
            "a beat after the goodbye"
        );
        assert!(server.ids("order").await.is_empty());
    }
    for mode in [Mode::Freeze, Mode::Cut] {
        proxy.set(Mode::Pass);
        let handle = shop.register(order()).await.unwrap();
        proxy.set(mode);
        let start = Instant::now();
        let error = handle.close().await.unwrap_err();
        assert!(error.is_unavailable(), "{error}");
        assert!(start.elapsed() < Duration::from_secs(10), "{mode:?}: {:?}", start.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_goodbye_that_failed_is_tried_on_in_the_background() {
    let server = Server::start().await;
    let proxy = Proxy::before(server.address).await;
    let connect = cosky::Cosky::connect(proxy.url()).close_timeout(Duration::from_millis(100));
    let shop = connect.await.unwrap().namespace(NS).unwrap();
    let handle = shop.register(order().ttl(Duration::from_secs(60))).await.unwrap();
    proxy.set(Mode::Cut);
    assert!(handle.close().await.is_err());
    assert_eq!(server.ids("order").await.len(), 1);
    proxy.set(Mode::Pass);
    until("it is gone long before its TTL", async || server.ids("order").await.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_the_last_handle_deregisters() {
    let server = Server::start().await;
    let shop = server.cosky().await.namespace(NS).unwrap();
    let first = shop.register(order().ttl(Duration::from_secs(60))).await.unwrap();
    let second = shop.register(order().ttl(Duration::from_secs(60))).await.unwrap();
    drop(first);
    sleep(Duration::from_millis(200)).await;
    assert_eq!(server.ids("order").await.len(), 1, "another handle is there");
    drop(second);
    shop.close().await.unwrap();
    assert!(server.ids("order").await.is_empty(), "closing the namespace waits for dropped handles");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registration_that_is_cancelled_leaves_nothing() {
    let server = Server::start().await;
    let proxy = Proxy::before(server.address).await;
    let shop = cosky::Cosky::connect(proxy.url()).await.unwrap().namespace(NS).unwrap();
    proxy.set(Mode::LoseAnswers);
    let registering = shop.register(order().ttl(Duration::from_secs(60)));
    let _ = tokio::time::timeout(Duration::from_millis(300), registering).await;
    assert_eq!(server.ids("order").await.len(), 1, "the request went through, only its answer did not");
    proxy.set(Mode::Pass);
    until("it is gone", async || server.ids("order").await.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_deregisters_stays_away_until_it_is_registered_anew() {
    let server = Server::start().await;
    let shop = server.cosky().await.namespace(NS).unwrap();
    let handle = shop.register(order()).await.unwrap();
    let mut states = handle.state_changes();
    assert_eq!(*states.borrow_and_update(), RegistrationState::Registered);
    let service = ServiceId::new("order").unwrap();
    assert!(server.engine.deregister(&namespace(), &service, &id(), None).await.unwrap());
    let told = states.wait_for(|state| *state == RegistrationState::Deregistered);
    tokio::time::timeout(TTL, told).await.expect("the next beat tells it").unwrap();
    sleep(2 * RENEW).await;
    assert!(server.ids("order").await.is_empty());
    assert!(!handle.close().await.unwrap(), "it had gone before");
    // Whoever asks again wants it again, at once.
    let again = shop.register(order()).await.unwrap();
    assert_eq!(server.ids("order").await.len(), 1);
    // Also when the client has not noticed yet that it is gone.
    assert!(server.engine.deregister(&namespace(), &service, &id(), None).await.unwrap());
    let third = shop.register(order()).await.unwrap();
    assert_eq!(server.ids("order").await.len(), 1);
    drop(again);
    sleep(2 * RENEW).await;
    assert_eq!(server.ids("order").await.len(), 1, "a handle of the old one does not remove the new one");
    assert!(third.close().await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_goodbye_spares_the_successor() {
    let server = Server::start().await;
    let old = server.cosky().await.namespace(NS).unwrap().register(order()).await.unwrap();
    let new = server.cosky().await.namespace(NS).unwrap().register(order()).await.unwrap();
    assert!(!old.close().await.unwrap(), "it belongs to another owner");
    assert_eq!(server.ids("order").await.len(), 1);
    assert!(new.close().await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_state_tells_of_an_outage_and_of_its_end() {
    let server = Server::start().await;
    let proxy = Proxy::before(server.address).await;
    let shop = cosky::Cosky::connect(proxy.url()).await.unwrap().namespace(NS).unwrap();
    let handle = shop.register(order()).await.unwrap();
    let mut states = handle.state_changes();
    let before = handle.last_beat().unwrap();
    proxy.set(Mode::Cut);
    let state = states
        .wait_for(|state| matches!(state, RegistrationState::Unreachable { .. }))
        .await
        .unwrap()
        .clone();
    let RegistrationState::Unreachable { since, last_error } = state else { unreachable!() };
    assert!(since.elapsed() < TTL && !last_error.is_empty());
    // Longer than the life: the server forgets it, and it comes back with the server.
    until("it has expired", async || server.ids("order").await.is_empty()).await;
    proxy.set(Mode::Pass);
    let back = until("it is back", async || !server.ids("order").await.is_empty()).await;
    assert!(back < RENEW + Duration::from_secs(1), "{back:?}");
    states.wait_for(|state| *state == RegistrationState::Registered).await.unwrap();
    assert!(handle.last_beat().unwrap() > before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_may_start_before_its_registry() {
    let stopped = Server::start().await.stop().await;
    let address = format!("http://{}", stopped.address);
    assert!(cosky::Cosky::connect(address.as_str()).await.is_err());
    let shop = cosky::Cosky::connect(address.as_str()).lazy().await.unwrap().namespace(NS).unwrap();
    let error = shop.register(order()).await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    let handle = shop.keep_registered(order()).unwrap();
    let mut view = shop.discover("order").start_empty().await.unwrap();
    assert!(view.snapshot().is_empty() && matches!(view.choose(), Err(Error::NoInstance { .. })));
    let server = stopped.again(Setup::new()).await;
    until("it is registered", async || !server.ids("order").await.is_empty()).await;
    let mut states = handle.state_changes();
    states.wait_for(|state| *state == RegistrationState::Registered).await.unwrap();
    while view.snapshot().is_empty() {
        view.changed().await;
    }
    assert!(shop.keep_registered(order().weight(u32::MAX)).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permanent_instance_stays_without_beats_until_it_is_closed() {
    let clock = ManualClock::new();
    let server = Setup::new().clock(clock.clone()).start().await;
    let proxy = Proxy::before(server.address).await;
    let shop = cosky::Cosky::connect(proxy.url()).await.unwrap().namespace(NS).unwrap();
    let handle = shop.register(Instance::http("order", "10.0.0.5", 8080).permanent()).await.unwrap();
    clock.advance(Duration::from_secs(100_000));
    server.engine.run_due().await;
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(server.ids("order").await.len(), 1);
    assert!(proxy.seen("POST", "/beats").is_empty());
    assert!(handle.close().await.unwrap());
    assert!(server.ids("order").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn many_instances_beat_in_few_batches() {
    let server = Server::start().await;
    let proxy = Proxy::before(server.address).await;
    let shop = cosky::Cosky::connect(proxy.url()).await.unwrap().namespace(NS).unwrap();
    let mut handles = Vec::new();
    for port in 1..=1200 {
        handles.push(
            shop.keep_registered(Instance::http("order", "10.0.0.5", port).ttl(Duration::from_secs(10)))
                .unwrap(),
        );
    }
    let handles = Arc::new(handles);
    until("all are registered", async || {
        handles.iter().all(|handle| handle.state() == RegistrationState::Registered)
    })
    .await;
    let before = proxy.seen("POST", "/beats").len();
    sleep(Duration::from_secs(12)).await;
    let batches = proxy.seen("POST", "/beats").len() - before;
    assert_eq!(server.ids("order").await.len(), 1200);
    assert!(handles.iter().all(|handle| handle.state() == RegistrationState::Registered));
    // 12 s are about 3.6 periods of 1,200 beats.
    assert!(batches < 120, "{batches}");
    shop.close().await.unwrap();
    assert!(server.ids("order").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_listens_there() {
    let error = cosky::Cosky::connect(nobody().await).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("cannot be reached"), "{error}");
}
