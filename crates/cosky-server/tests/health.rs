//! Health, as clients, Kubernetes and CoSky's own tools ask for it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::sync::Arc;

use axum::{Router, body::Body, response::Response};
use cosky_core::{Registry, Store};
use cosky_embedded::{Embedded, Options};
use cosky_server::{AppState, Config};
use cosky_testkit::disk::Disk;
use futures_util::FutureExt as _;
use http::Request;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;

/// "Is everything well?"
const FULL: [&str; 4] =
    ["/health", "/v4/default/registry/health/readiness", "/v1/health", "/actuator/health"];
/// "Should traffic be sent here?"
const READY: [&str; 2] = ["/readyz", "/actuator/health/readiness"];
/// "Is the process alive?"
const LIVE: [&str; 2] = ["/livez", "/actuator/health/liveness"];

/// A server without sockets on a simulated disk.
struct Fixture {
    disk: Disk,
    engine: Arc<Embedded>,
    router: Router,
    state: AppState,
}

impl Fixture {
    async fn new() -> Self {
        let disk = Disk::new();
        let options = Options::new("unused");
        let engine = Arc::new(Embedded::open_backend(disk.file(), options).await.unwrap());
        let store: Arc<dyn Store> = engine.clone();
        let config = Config { root_password: Some("eight888".into()), ..Config::default() };
        let (router, state) = cosky_server::app(config, store).await.unwrap();
        Self { disk, engine, router, state }
    }

    /// Answers of health routes come from memory: the first poll has them.
    fn get(&self, path: &str) -> (u16, Value, Response<()>) {
        let request = Request::get(path).header("Host", "a").body(Body::empty()).unwrap();
        let answer = async {
            let (parts, body) = self.router.clone().oneshot(request).await.unwrap().into_parts();
            (parts, body.collect().await.unwrap().to_bytes())
        };
        let (parts, body) = answer.now_or_never().expect("health never waits");
        let body = serde_json::from_slice(&body).unwrap();
        (parts.status.as_u16(), body, Response::from_parts(parts, ()))
    }

    #[track_caller]
    fn expect(&self, paths: &[&str], status: u16, word: &str, failed: &[&str]) {
        for path in paths {
            let (got, body, _) = self.get(path);
            assert_eq!((got, &body["status"]), (status, &json!(word)), "{path}: {body}");
            let names = body.get("failed").cloned().unwrap_or(json!([]));
            assert_eq!(names, json!(failed), "{path}");
        }
    }
}

#[tokio::test]
async fn a_healthy_server_is_up_in_coskys_words() {
    let server = Fixture::new().await;
    server.expect(&FULL, 200, "UP", &[]);
    server.expect(&READY, 200, "UP", &[]);
    server.expect(&LIVE, 200, "UP", &[]);
    // The bodies and the type that the real CoSky server was recorded with.
    for (path, body) in [
        ("/actuator/health", json!({"groups": ["liveness", "readiness"], "status": "UP"})),
        ("/actuator/health/liveness", json!({"status": "UP"})),
        ("/actuator/health/readiness", json!({"status": "UP"})),
    ] {
        let (_, got, response) = server.get(path);
        assert_eq!(got, body, "{path}");
        assert_eq!(response.headers()["content-type"], "application/vnd.spring-boot.actuator.v3+json");
    }
}

#[tokio::test]
async fn a_full_disk_is_named_and_reads_go_on() {
    let server = Fixture::new().await;
    let namespace = cosky_core::Namespace::new("{t1}").unwrap();
    let before = server.engine.namespaces().await.unwrap();
    server.disk.set_full(true);
    server.engine.add_namespace(&namespace).await.unwrap_err();
    server.expect(&FULL, 503, "DOWN", &["store"]);
    server.expect(&READY, 200, "DEGRADED", &["store"]);
    server.expect(&LIVE, 200, "UP", &[]);
    assert_eq!(server.engine.namespaces().await.unwrap(), before);

    server.disk.set_full(false);
    while server.get("/health").0 != 200 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    server.expect(&READY, 200, "UP", &[]);
    assert!(server.engine.add_namespace(&namespace).await.unwrap());
}

#[tokio::test]
async fn a_draining_server_wants_no_traffic_and_is_alive() {
    let server = Fixture::new().await;
    server.state.streams.draining().cancel();
    server.expect(&FULL, 503, "DOWN", &["draining"]);
    server.expect(&READY, 503, "DOWN", &["draining"]);
    server.expect(&LIVE, 200, "UP", &[]);
}
