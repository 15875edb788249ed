//! From the start to the end of a registered application, in front of a real server.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use cosky::{Error, HealthStatus, Instance, OUT_OF_SERVICE, Ready, RegistrationState, UP};
use cosky_core::{Metadata, Registry as _, ServiceId};
use cosky_testkit::ManualClock;
use rustix::process::Signal;
use support::{
    NS, Server, Setup, namespace,
    part::{Part, Play},
    proxy::{Mode, Proxy},
    until,
};
use tokio::{net::TcpListener, time::sleep};

const TTL: Duration = Duration::from_secs(3);

fn order() -> Instance {
    Instance::http("order", "10.0.0.5", 8080).ttl(TTL)
}

/// The part `service`, registered.
async fn service(registry: &str, drain_wait: &str) -> (Part, String) {
    let play =
        Play::new(registry, &["service"]).env("COSKY_INSTANCE_TTL", "3s").env("COSKY_DRAIN_WAIT", drain_wait);
    let part = play.env("COSKY_ZONE", "z1").start();
    part.tells("port", support::PATIENCE, |_| true).await;
    let port = part.last("port").unwrap().1;
    (part, format!("http://127.0.0.1:{port}"))
}

/// A web service with traffic is told to end: its status goes first, then it leaves, without another beat; who still
/// comes in the wait is served, its health says that it is ending, and not one request is broken.
#[tokio::test(flavor = "multi_thread")]
async fn c33_a_web_service_with_traffic_drains_and_breaks_no_request() {
    let server = Server::start().await;
    let proxy = Proxy::before(server.address).await;
    let (mut part, url) = service(&proxy.url(), "1s").await;
    // Found under the address of its listener, with what the environment says.
    let id = format!("order@http#127.0.0.1#{}", url.rsplit(':').next().unwrap());
    assert_eq!(server.ids("order").await, [id.as_str()]);
    assert_eq!(server.metadata("order", &id, "zone").await.as_deref(), Some("z1"));
    let health = reqwest::get(format!("{url}/health")).await.unwrap();
    assert_eq!(health.status(), 200);
    let health: serde_json::Value = health.json().await.unwrap();
    assert_eq!((&health["status"], &health["instanceId"]), (&"UP".into(), &id.clone().into()));
    assert!(health["lastBeatMs"].is_u64() && health.get("reason").is_none(), "{health}");

    let gone = Arc::<AtomicBool>::default();
    let mut clients = Vec::new();
    for _ in 0..20 {
        let (url, gone) = (url.clone(), gone.clone());
        clients.push(tokio::spawn(async move {
            let mut served = 0;
            // Readers stop choosing it some time after it has left.
            while !gone.load(Ordering::Relaxed) {
                let answer = reqwest::get(format!("{url}/orders")).await.unwrap();
                assert_eq!(answer.text().await.unwrap(), "none yet\n");
                served += 1;
            }
            served
        }));
    }
    sleep(Duration::from_millis(500)).await;
    let told = Instant::now();
    part.signal(Signal::TERM);
    until("it has left", async || server.ids("order").await.is_empty()).await;
    assert!(told.elapsed() < Duration::from_secs(1), "{:?}", told.elapsed());
    let health = reqwest::get(format!("{url}/health")).await.unwrap();
    assert_eq!(health.status(), 503);
    let health: serde_json::Value = health.json().await.unwrap();
    assert_eq!(health["status"], "DOWN");
    sleep(Duration::from_millis(300)).await;
    gone.store(true, Ordering::Relaxed);
    for client in clients {
        assert!(client.await.unwrap() >= 2, "served before and after the signal");
    }
    assert_eq!(part.ended().await.code(), Some(0), "{}", part.log());
    assert!(told.elapsed() >= Duration::from_secs(1), "it goes on serving for a while");
    let status = proxy.seen("PATCH", "/metadata").last().unwrap().at;
    let goodbye = proxy.seen("DELETE", "").last().unwrap().at;
    assert!(status < goodbye);
    assert!(proxy.seen("POST", "/beats").iter().all(|beat| beat.at < goodbye));

    // With a registry that does not answer any more it ends in time, and says that nobody heard it.
    for (mode, signal) in [(Mode::Freeze, Signal::TERM), (Mode::Cut, Signal::INT)] {
        proxy.set(Mode::Pass);
        let (mut part, _) = service(&proxy.url(), "1s").await;
        proxy.set(mode);
        let told = Instant::now();
        part.signal(signal);
        assert_eq!(part.ended().await.code(), Some(3), "{}", part.log());
        assert!(told.elapsed() <= Duration::from_secs(10), "{mode:?}: {:?}", told.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_application_is_found_only_when_it_is_ready() {
    let server = Server::start().await;
    let shop = server.cosky().await.namespace(NS).unwrap();
    // Bound first, so that the port is known and nobody else gets it; served later.
    let open = Arc::<AtomicBool>::default();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let check = {
        let open = open.clone();
        move || {
            let open = open.load(Ordering::Relaxed);
            async move { if open { Ok(()) } else { Err("still warming up") } }
        }
    };
    let ready = Ready::check(check).every(Duration::from_millis(20));
    let handle = shop.register_when(Instance::named("order").listening(address).ttl(TTL), ready).unwrap();
    let failed = async || handle.vitals().last_error.is_some_and(|(_, error)| &*error == "still warming up");
    until("the check was asked", failed).await;
    sleep(Duration::from_millis(500)).await;
    assert!(server.ids("order").await.is_empty());
    open.store(true, Ordering::Relaxed);
    until("it is found", async || !server.ids("order").await.is_empty()).await;
    assert_eq!(server.ids("order").await, [format!("order@http#127.0.0.1#{}", address.port())]);
    assert!(handle.close().await.unwrap());
}

/// An operator changed other metadata, which this client has not seen: the status goes beside it.
#[tokio::test(flavor = "multi_thread")]
async fn a_status_leaves_other_metadata_alone_and_outlives_an_expiry() {
    let clock = ManualClock::new();
    let server = Setup::new().clock(clock.clone()).start().await;
    let shop = server.cosky().await.namespace(NS).unwrap();
    let instance = order().metadata("zone", "a").beat_every(Duration::from_millis(300));
    let handle = shop.register(instance).await.unwrap();
    let (service, id) = (ServiceId::new("order").unwrap(), handle.id().to_string());
    let edit = Metadata::new([("zone", "b"), ("note", "watch this one")]).unwrap();
    assert!(server.engine.set_metadata(&namespace(), &service, &id, &edit).await.unwrap());

    handle.set_status(OUT_OF_SERVICE).await.unwrap();
    let value = async |key| server.metadata("order", &id, key).await;
    assert_eq!(value("instance_status").await.as_deref(), Some(OUT_OF_SERVICE));
    assert_eq!(value("zone").await.as_deref(), Some("b"));
    assert_eq!(value("note").await.as_deref(), Some("watch this one"));
    let view = shop.discover("order").await.unwrap();
    assert!(matches!(view.choose(), Err(Error::NoInstance { .. })), "nobody is sent there");
    // The view has shown this client the edit, so that it comes back with it.
    clock.advance(Duration::from_secs(4));
    server.engine.run_due().await;
    until("it is registered again", async || !server.ids("order").await.is_empty()).await;
    assert_eq!(value("instance_status").await.as_deref(), Some(OUT_OF_SERVICE));
    assert_eq!(value("note").await.as_deref(), Some("watch this one"));
    handle.set_status(UP).await.unwrap();
    assert_eq!(value("note").await.as_deref(), Some("watch this one"));
    assert_eq!((handle.status(), handle.health().status), (UP.to_owned(), HealthStatus::Up));
}

/// The registry goes away and comes back: the application's health is never such that it is restarted for that.
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_the_registry_degrades_health_and_no_more() {
    let server = Server::start().await;
    let proxy = Proxy::before(server.address).await;
    let shop = cosky::Cosky::connect(proxy.url()).await.unwrap().namespace(NS).unwrap();
    let handle = shop.register(order()).await.unwrap();
    assert_eq!(handle.health().status, HealthStatus::Up);
    proxy.set(Mode::Cut);
    until("beats fail", async || matches!(handle.state(), RegistrationState::Unreachable { .. })).await;
    let start = Instant::now();
    while start.elapsed() < 2 * TTL {
        let health = handle.health();
        assert_eq!((health.status, health.http_status()), (HealthStatus::Degraded, 200));
        assert!(health.reason.is_some() && health.failures > 0);
        sleep(Duration::from_millis(100)).await;
    }
    proxy.set(Mode::Pass);
    until("all is well again", async || handle.health().status == HealthStatus::Up).await;
    assert!(handle.vitals().failures > 0 && handle.vitals().registrations == 2);
}
