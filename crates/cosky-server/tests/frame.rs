//! What every request passes, whatever its route: headers, limits, CORS, panics, metrics, docs.

mod support;

use axum::{Router, body::Body, routing::get};
use cosky_server::{AppState, Config};
use http::Request;
use http_body_util::BodyExt as _;
use serde_json::json;
use std::{io::Read as _, sync::Arc};
use support::{PASSWORD, Server, Setup};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tower::ServiceExt as _;

#[tokio::test]
async fn every_answer_carries_its_id_the_version_and_nosniff() {
    let server = Setup::new().auth().start().await;
    let mut root = server.root().await;
    for path in ["/livez", "/v1/namespaces", "/v1/nothing", "/", "/swagger-ui/", "/v3/api-docs"] {
        for token in [root.token.clone(), None] {
            root.token = token;
            let answer = root.get(path).await;
            assert_eq!(answer.header("x-cosky-version"), Some(env!("CARGO_PKG_VERSION")), "{path}");
            assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
            assert_eq!(answer.header("cache-control"), Some("no-store"), "{path}");
            assert_eq!(answer.header("cosec-request-id").unwrap().len(), 36, "{path}");
        }
        root = server.root().await;
    }
    let own = root.send("GET", "/livez", &[("CoSec-Request-Id", "a-1")], b"").await;
    assert_eq!(own.header("cosec-request-id"), Some("a-1"));
    let long = "x".repeat(129);
    for odd in ["", "a b", "é", long.as_str()] {
        let answer = root.send("GET", "/livez", &[("CoSec-Request-Id", odd)], b"").await;
        assert_eq!(answer.header("cosec-request-id").unwrap().len(), 36, "{odd:?} is replaced");
    }
}

#[tokio::test]
async fn heads_and_bodies_have_limits() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let answer = client.get(&format!("/livez?{}", "x".repeat(32 << 10))).await;
    answer.refused(414, "too_large", "32768");
    let big = "x".repeat(48 << 10);
    client.send("GET", "/livez", &[("X-Big", &big)], b"").await.refused(431, "too_large", "49152");
    let many = vec![("X-Many", "1"); 70];
    client.send("GET", "/livez", &many, b"").await.refused(431, "too_large", "64");
    client.get("/livez").await.expect(200);

    // What is beyond all measure is not even read.
    for headers in [vec![("X-Many", "1"); 200], vec![("X-Big", "x".repeat(100 << 10).leak() as &str)]] {
        let mut client = server.client().await;
        assert_eq!(client.send("GET", "/livez", &headers, b"").await.status, 431);
    }

    let body = json!({"name": "x".repeat(1 << 20)});
    server.client().await.json("POST", "/v1/tokens", &body).await.refused(413, "too_large", "body");
    let chunked = [("Content-Type", "text/plain")];
    client.send("POST", "/v1/tokens", &chunked, b"{}").await.refused(
        415,
        "unsupported_media_type",
        "application/json",
    );
    client.text("POST", "/v1/tokens", "{\"name\":").await.refused(400, "invalid_body", "EOF");
    client.text("POST", "/v1/tokens", "{\"name\":7}").await.refused(400, "invalid_body", "name");
    client.get("/v1/namespaces/%ff/services").await.refused(400, "invalid_argument", "path");
}

/// RFC 9112, section 3.2.
#[tokio::test]
async fn http_1_1_names_its_host_once() {
    let server = Setup::new().auth().start().await;
    for (head, status) in [
        ("GET /livez HTTP/1.1\r\n", 400),
        ("GET http://localhost/livez HTTP/1.1\r\n", 400),
        ("GET /livez HTTP/1.1\r\nHost: a\r\nHost: a\r\n", 400),
        ("GET /livez HTTP/1.1\r\nHost:\r\n", 200),
        ("GET /livez HTTP/1.0\r\n", 200),
    ] {
        let mut connection = tokio::net::TcpStream::connect(server.address).await.unwrap();
        connection.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer.split(' ').nth(1), Some(&*status.to_string()), "{head:?}: {answer}");
        assert_eq!(
            answer.contains("\"code\":\"invalid_argument\",\"msg\":\"Host: "),
            status == 400,
            "{answer}"
        );
    }
}

#[tokio::test]
async fn other_origins_may_ask_but_bring_no_cookies() {
    let server = Setup::new().auth().start().await;
    let mut client = server.client().await;
    let preflight = [
        ("Origin", "http://127.0.0.9"),
        ("Access-Control-Request-Method", "PATCH"),
        ("Access-Control-Request-Headers", "authorization,x-any"),
    ];
    let answer = client.send("OPTIONS", "/v1/namespaces", &preflight, b"").await.expect(200);
    assert_eq!(answer.header("access-control-allow-origin"), Some("*"));
    assert_eq!(answer.header("access-control-allow-methods"), Some("*"));
    assert_eq!(answer.header("access-control-allow-headers"), Some("authorization,x-any"));
    assert_eq!(answer.header("access-control-max-age"), Some("1800"));
    assert_eq!(answer.header("access-control-allow-credentials"), None);
    assert!(answer.header("cosec-request-id").is_some());
    for origin in ["http://127.0.0.9", "null"] {
        let answer = client.send("GET", "/v1/namespaces", &[("Origin", origin)], b"").await.expect(401);
        assert_eq!(answer.header("access-control-allow-origin"), Some("*"), "a page may read the refusal");
        assert_eq!(answer.header("access-control-allow-credentials"), None);
    }
}

/// Where no credential is needed, a stranger's page in the operator's browser must not be able to act.
#[tokio::test]
async fn without_authentication_there_is_no_cors() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let preflight = [("Origin", "http://127.0.0.9"), ("Access-Control-Request-Method", "PUT")];
    let answer = client.send("OPTIONS", "/v1/namespaces/a", &preflight, b"").await.expect(405);
    assert_eq!(answer.header("access-control-allow-origin"), None);
    let answer = client.send("GET", "/v1/namespaces", &preflight[..1], b"").await.expect(200);
    assert_eq!(answer.header("access-control-allow-origin"), None);
    let form = [("Origin", "http://127.0.0.9"), ("Content-Type", "text/plain")];
    client.send("POST", "/v1/tokens", &form, b"{\"name\":\"a\"}").await.expect(415);
}

/// A page whose name resolves to 127.0.0.1 is of one origin with the server, and CORS does not stand against it.
#[tokio::test]
async fn without_authentication_a_rebound_name_opens_nothing() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let paths = ["/v1/namespaces", "/v1/tokens", "/metrics", "/livez", "/v3/api-docs", "/nothing"];
    for host in ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "10.0.0.1", ""] {
        client.host = host.to_owned();
        for path in paths {
            client.get(path).await.refused(403, "forbidden", "Host");
        }
        client.put("/v1/namespaces/evil").await.refused(403, "forbidden", "Host");
    }
    for host in ["localhost", "127.0.0.1", "127.3.4.5:1", "[::1]:8080"] {
        client.host = host.to_owned();
        client.get("/livez").await.expect(200);
        client.send("GET", "/livez", &[("Host", "evil.example")], b"").await.refused(
            400,
            "invalid_argument",
            "Host",
        );
        for origin in ["http://evil.example", "https://localhost.evil.example", "null", ""] {
            let headers = [("Origin", origin)];
            client.send("PUT", "/v1/namespaces/evil", &headers, b"").await.refused(
                403,
                "forbidden",
                "Origin",
            );
        }
        for origin in ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:1"] {
            client.send("GET", "/v1/namespaces", &[("Origin", origin)], b"").await.expect(200);
        }
    }
    let names = client.get("/v1/namespaces").await.expect(200).text();
    assert!(!names.contains("evil"), "{names}");

    // With authentication a page has no credential, and the server may have any name.
    let server = Setup::new().auth().start().await;
    let mut root = server.root().await;
    root.host = "cosky.example".to_owned();
    root.send("GET", "/v1/namespaces", &[("Origin", "https://example.com")], b"").await.expect(200);
}

#[tokio::test]
async fn a_panic_is_a_500_and_the_connection_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let store = cosky_embedded::Embedded::open(cosky_embedded::Options::new(dir.path())).await.unwrap();
    let further = Router::<AppState>::new().route("/panics", get(|| async { panic_now() }));
    let config = Config { auth: false, ..Config::default() };
    let (router, _) = cosky_server::app_with(config, Arc::new(store), further).await.unwrap();
    let request = |path: &str| Request::get(path).header("Host", "localhost").body(Body::empty()).unwrap();
    let answer = router.clone().oneshot(request("/panics")).await.unwrap();
    assert_eq!(answer.status(), 500);
    assert!(answer.headers().contains_key("cosec-request-id"));
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["code"], "internal");
    assert!(!body.to_string().contains("secret"), "{body}");
    assert_eq!(router.oneshot(request("/livez")).await.unwrap().status(), 200);
}

/// CoSky compresses its answers (compat §4): lists of instances are long and alike.
#[tokio::test]
async fn long_answers_are_compressed_for_those_who_ask() {
    let server = Server::start().await;
    let mut client = server.client().await;
    for port in 1..=20 {
        client.register("order", &support::instance("10.0.0.1", port)).await;
    }
    let long = "/v1/namespaces/%7Bt1%7D/services/order/instances";
    let plain = client.get(long).await.expect(200);
    assert_eq!(plain.header("content-encoding"), None);
    assert_eq!(plain.header("content-length"), Some(plain.body.len().to_string().as_str()));
    for asked in ["gzip", "deflate, GZIP;q=0.5, br", "identity;q=0, gzip;q=1.0"] {
        let answer = client.send("GET", long, &[("Accept-Encoding", asked)], b"").await.expect(200);
        assert_eq!(answer.header("content-encoding"), Some("gzip"), "{asked}");
        assert_eq!(answer.header("vary"), Some("accept-encoding"));
        for kept in ["content-type", "x-cosky-index", "cosec-request-id"] {
            assert!(answer.header(kept).is_some(), "{kept}");
        }
        assert!(answer.body.len() < plain.body.len() / 2, "{} of {}", answer.body.len(), plain.body.len());
        let mut text = String::new();
        flate2::read::GzDecoder::new(answer.body.as_slice()).read_to_string(&mut text).unwrap();
        let unpacked: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(unpacked.as_array().unwrap().len(), 20);
    }
    for unasked in ["", "br", "identity", "gzip;q=0", "gzip; Q=0.000, identity;q=0", "*;q=0"] {
        let answer = client.send("GET", long, &[("Accept-Encoding", unasked)], b"").await.expect(200);
        assert_eq!(answer.header("content-encoding"), None, "{unasked}");
        assert!(answer.header("content-length").is_some());
    }
    let gzip = [("Accept-Encoding", "gzip")];
    let short = client.send("GET", "/v1/namespaces", &gzip, b"").await.expect(200);
    assert_eq!(short.header("content-encoding"), None, "below 1 KiB it is not worth it");
    let head = client.send("HEAD", long, &gzip, b"").await.expect(200);
    assert_eq!(head.header("content-encoding"), Some("gzip"), "as a GET would be answered");

    let mut events = server.client().await.watch("/v1/namespaces/%7Bt1%7D/watch", &gzip).await;
    assert!(!events.headers.contains_key("content-encoding"), "{:?}", events.headers);
    events.expect("snapshot").await;
    client.register("order", &support::instance("10.0.0.1", 80)).await;
    events.expect("instance").await;
}

fn panic_now() -> &'static str {
    panic!("a secret of the process")
}

#[tokio::test]
async fn metrics_tell_what_happened() {
    let server = Setup::new().auth().start().await;
    let mut client = server.client().await;
    client.get("/metrics").await.refused(401, "unauthorized", "credential");
    let wrong = json!({"password": "wrong"});
    client.json("POST", "/v1/authenticate/cosky/login", &wrong).await.expect(400);
    let mut root = server.root().await;
    root.register("order", &support::instance("10.0.0.1", 80)).await;
    root.get("/v1/namespaces/%7Bt1%7D/services/order/instances").await.expect(200);
    root.get("/v1/any/thing/not/known").await.expect(404);
    let answer = root.get("/metrics").await.expect(200);
    let kind = answer.header("content-type").unwrap();
    assert!(kind.starts_with("application/openmetrics-text"), "{kind}");
    let text = answer.text();
    for line in [
        "cosky_operations_total{operation=\"register\",result=\"ok\"} 1",
        "cosky_operations_total{operation=\"deregister\",result=\"ok\"} 0",
        "cosky_operations_total{operation=\"read_instances\",result=\"ok\"} 1",
        "cosky_logins_total{result=\"ok\"} 1",
        "cosky_logins_total{result=\"refused\"} 1",
        "cosky_logins_total{result=\"frozen\"} 0",
        "cosky_watchers_cut_total{reason=\"lagged\"} 0",
        "cosky_watchers_cut_total{reason=\"stuck\"} 0",
        "cosky_instances{namespace=\"{t1}\"} 1",
        "cosky_watchers 0",
        "cosky_long_polls 0",
        "cosky_connections 2",
        "cosky_requests_in_flight 1",
        "cosky_expirations_total 0",
        "cosky_write_queue 0",
        "cosky_failed_commits_total 0",
        "cosky_request_duration_seconds_count{method=\"GET\",\
         route=\"/v1/namespaces/{namespace}/services/{serviceId}/instances\"} 1",
    ] {
        assert!(text.lines().any(|got| got == line), "{line}\n{text}");
    }
    assert!(text.contains("cosky_commits_total "), "{text}");
    assert!(!text.contains("/v1/any/thing"), "labels are routes, not paths");
    assert!(text.ends_with("# EOF\n"));
}

#[tokio::test]
async fn docs_are_open_and_link_to_each_other() {
    let server = Setup::new().auth().start().await;
    let mut client = server.client().await;
    let landing = client.get("/").await.expect(200);
    assert!(landing.header("content-type").unwrap().starts_with("text/html"));
    let text = landing.text();
    let links: Vec<_> = text.split("href=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    assert!(links.contains(&"/swagger-ui/") && links.contains(&"/v3/api-docs"), "{links:?}");
    for link in links {
        client.get(link).await.expect(200);
    }
    for path in ["/swagger-ui", "/swagger-ui.html"] {
        assert_eq!(client.get(path).await.expect(308).header("location"), Some("/swagger-ui/"));
    }
    let start = client.get("/swagger-ui/swagger-initializer.js").await.expect(200);
    assert!(start.text().contains("/v3/api-docs"), "{}", start.text());
    client.get("/swagger-ui/nothing.js").await.refused(404, "not_found", "no such file");
    let body = json!({"password": PASSWORD});
    client.json("POST", "/v1/authenticate/%63osky/login", &body).await.expect(200);
}
