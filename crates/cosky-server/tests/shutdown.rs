//! How connections end: at a shutdown, when a peer is stuck or slow, and at their limits.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{Router, routing::get};
use cosky_core::{Namespace, Registry, Store};
use cosky_embedded::{Embedded, Options};
use cosky_server::{AppState, Config, Limits, ServeError};
use serde_json::json;
use support::{NS, Server, Setup, client::Client};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{Notify, oneshot},
    task::JoinHandle,
};

/// How long anything may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server with a route that answers when it is told to.
struct Slow {
    address: std::net::SocketAddr,
    engine: Arc<Embedded>,
    entered: Arc<Notify>,
    go_on: Arc<Notify>,
    stop: oneshot::Sender<()>,
    served: JoinHandle<Result<(), ServeError>>,
    _dir: tempfile::TempDir,
}

impl Slow {
    async fn start(config: Config) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let engine = Arc::new(Embedded::open(Options::new(dir.path())).await.unwrap());
        let store: Arc<dyn Store> = engine.clone();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (entered, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (begin, end) = (Arc::clone(&entered), Arc::clone(&go_on));
        let handler = move || async move {
            begin.notify_one();
            end.notified().await;
            "done"
        };
        let further = Router::<AppState>::new().route("/slow", get(handler));
        let (stop, stopped) = oneshot::channel();
        let served = tokio::spawn(cosky_server::serve_with(config, store, listener, further, async {
            drop(stopped.await);
        }));
        Self { address, engine, entered, go_on, stop, served, _dir: dir }
    }
}

fn open() -> Config {
    Config { auth: false, ..Config::default() }
}

#[tokio::test]
async fn requests_in_flight_finish_and_then_the_store_is_closed() {
    let server = Slow::start(open()).await;
    let mut idle = Client::connect(server.address).await;
    idle.get("/livez").await.expect(200);
    let mut busy = Client::connect(server.address).await;
    busy.write("GET", "/slow", &[], b"").await;
    server.entered.notified().await;

    server.stop.send(()).unwrap();
    // The listener is gone when an idle connection was closed or refused.
    while TcpStream::connect(server.address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(!server.served.is_finished(), "a request is in flight");
    server.go_on.notify_one();
    let answer = busy.read("GET").await.expect(200);
    assert_eq!(answer.text(), "done");
    assert_eq!(answer.header("connection"), Some("close"));
    server.served.await.unwrap().unwrap();
    let namespace = Namespace::new("{t1}").unwrap();
    server.engine.add_namespace(&namespace).await.expect_err("a closed store refuses");
}

#[tokio::test]
async fn what_does_not_end_is_cut_off_after_the_grace() {
    let grace = Duration::from_millis(300);
    let server = Slow::start(Config { shutdown_grace: grace, ..open() }).await;
    let mut busy = TcpStream::connect(server.address).await.unwrap();
    busy.write_all(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    server.entered.notified().await;
    let begun = Instant::now();
    server.stop.send(()).unwrap();
    server.served.await.unwrap().unwrap();
    let took = begun.elapsed();
    assert!(took >= grace && took < grace + Duration::from_secs(5), "{took:?}");
    assert_eq!(busy.read_to_end(&mut Vec::new()).await.unwrap_or(0), 0, "there was no answer");
}

#[tokio::test]
async fn streams_say_that_the_server_drains() {
    let mut server = Server::start().await;
    let mut events = server.client().await.watch(&format!("{NS}/watch"), &[]).await;
    events.expect("snapshot").await;
    server.drain();
    let state = events.expect("state").await;
    assert_eq!(state.data, json!({"state": "draining"}));
    assert_eq!(events.next().await, None);
    server.ended().await;
}

#[tokio::test]
async fn a_dropped_server_lets_go_of_its_connections() {
    let server = Slow::start(open()).await;
    let mut busy = TcpStream::connect(server.address).await.unwrap();
    busy.write_all(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    server.entered.notified().await;
    server.served.abort();
    assert_eq!(busy.read_to_end(&mut Vec::new()).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn without_authentication_only_loopback_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(Embedded::open(Options::new(dir.path())).await.unwrap());
    let everywhere = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let error = cosky_server::serve(open(), store, everywhere, std::future::ready(())).await.unwrap_err();
    assert!(matches!(error, ServeError::OpenToAll { .. }), "{error}");
}

#[tokio::test]
async fn a_stuck_watcher_is_cut_off_and_counted() {
    let mut setup = Setup::new();
    setup.config.limits.unacknowledged = Duration::from_millis(500);
    let server = setup.start().await;
    let mut stuck = Client::narrow(server.address).await;
    stuck.write("GET", &format!("{NS}/watch"), &[], b"").await;
    let mut client = server.client().await;
    let text = "x".repeat(4_000);
    let metadata: serde_json::Map<_, _> =
        (0..8).map(|key| (format!("k{key}"), text.clone().into())).collect();
    let mut body = support::instance("10.0.0.1", 80);
    body["metadata"] = metadata.into();
    let counted = "cosky_watchers_cut_total{reason=\"stuck\"} 1";
    while !client.get("/metrics").await.expect(200).text().contains(counted) {
        client.register("order", &body).await;
    }
    let text = client.get("/metrics").await.text();
    assert!(text.contains("cosky_watchers 0\n"), "{text}");
    drop(stuck);
}

#[tokio::test]
async fn connections_are_bounded_and_further_ones_wait() {
    let limits = Limits { connections: 2, ..Limits::default() };
    let mut setup = Setup::new();
    setup.config.limits = limits;
    let server = setup.start().await;
    let mut first = server.client().await;
    first.get("/livez").await.expect(200);
    let mut second = server.client().await;
    second.get("/livez").await.expect(200);
    let mut third = server.client().await;
    third.write("GET", "/livez", &[], b"").await;
    let early = tokio::time::timeout(Duration::from_millis(200), third.read("GET")).await;
    assert!(early.is_err(), "two connections are open");
    drop(first);
    third.read("GET").await.expect(200);
}

#[tokio::test]
async fn a_head_that_does_not_come_ends_the_connection() {
    let mut setup = Setup::new();
    setup.config.limits.idle = Duration::from_millis(200);
    let server = setup.start().await;
    for begin in ["", "GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Slow"] {
        let mut connection = TcpStream::connect(server.address).await.unwrap();
        connection.write_all(begin.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(10), connection.read_to_end(&mut rest));
        assert!(ended.await.is_ok(), "{begin:?}");
    }
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_answered_503() {
    let mut config = open();
    config.limits.request = Duration::from_millis(100);
    let server = Slow::start(config).await;
    let mut client = Client::connect(server.address).await;
    let answer = client.get("/slow").await;
    assert!(answer.header("retry-after").is_some());
    answer.refused(503, "outcome_unknown", "longer than 0.1 s");
}

/// Once the rest was awaited for as long as a request may take, and the answer was 503 `outcome_unknown`.
#[tokio::test]
async fn a_body_that_does_not_arrive_is_answered_408_and_nothing_is_written() {
    let mut setup = Setup::new();
    setup.config.limits.body = Duration::from_millis(200);
    let server = setup.start().await;
    let body = support::instance("10.0.0.1", 80).to_string();
    let path = format!("{NS}/services/order/instances");
    let head = format!("PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n");
    for rest in [
        format!("Content-Length: {}\r\n\r\n", body.len()),
        format!("Content-Length: {}\r\n\r\n{body}", body.len() + 1),
        format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n", body.len()),
        format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}", body.len() + 1),
    ] {
        let mut connection = TcpStream::connect(server.address).await.unwrap();
        connection.write_all(format!("{head}{rest}").as_bytes()).await.unwrap();
        let answer = everything(&mut connection).await;
        assert!(answer.starts_with("HTTP/1.1 408 "), "{rest:?}: {answer}");
        let lower = answer.to_ascii_lowercase();
        assert!(lower.contains("\r\nconnection: close\r\n"), "its rest is no next request: {answer}");
        assert!(answer.contains("\"code\":\"request_timeout\"") && answer.contains("0.2 s"), "{answer}");
    }
    // A client that drips is as slow as one that stops.
    let connection = TcpStream::connect(server.address).await.unwrap();
    let (mut reader, mut writer) = connection.into_split();
    let dripping = tokio::spawn(async move {
        let head = format!("{head}Content-Length: 100000\r\n\r\n");
        writer.write_all(head.as_bytes()).await.unwrap();
        while writer.write_all(b" ").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let mut status = [0; 13];
    let read = tokio::time::timeout(PATIENCE, reader.read_exact(&mut status)).await.expect("an answer");
    read.unwrap();
    assert_eq!(&status, b"HTTP/1.1 408 ");
    drop(reader);
    dripping.await.unwrap();
    let list = server.client().await.get(&path).await.expect(200);
    assert_eq!(list.value(), json!([]), "nothing was written");
}

/// As `printf … | nc -N` does. Once it got an end without an answer, though what it asked for was done.
#[tokio::test]
async fn a_client_that_closes_its_side_after_asking_gets_its_answer() {
    let server = Slow::start(open()).await;
    for body in [&support::instance("10.0.0.1", 80).to_string(), "{"] {
        let mut connection = TcpStream::connect(server.address).await.unwrap();
        let length = body.len();
        let request = format!(
            "PUT {NS}/services/order/instances HTTP/1.1\r\nHost: localhost\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        connection.write_all(request.as_bytes()).await.unwrap();
        connection.shutdown().await.unwrap();
        let answer = everything(&mut connection).await;
        let status = if length > 1 { "200" } else { "400" };
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    }
    // Also when the answer takes a while, and the server drains meanwhile; then nothing is left to wait for.
    let mut connection = TcpStream::connect(server.address).await.unwrap();
    connection.write_all(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    connection.shutdown().await.unwrap();
    server.entered.notified().await;
    server.stop.send(()).unwrap();
    while TcpStream::connect(server.address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    server.go_on.notify_one();
    let answer = everything(&mut connection).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("done"), "{answer}");
    let begun = Instant::now();
    server.served.await.unwrap().unwrap();
    assert!(begun.elapsed() < Config::default().shutdown_grace, "no connection is left");
}

#[tokio::test]
async fn half_a_body_and_no_more_is_refused_and_half_a_head_is_not_answered() {
    let server = Server::start().await;
    let head = format!("PUT {NS}/services/order/instances HTTP/1.1\r\nHost: localhost\r\n");
    let body = "Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{\"schema\":";
    for (request, begin) in [(head.clone(), ""), (head + body, "HTTP/1.1 400 ")] {
        let mut connection = TcpStream::connect(server.address).await.unwrap();
        connection.write_all(request.as_bytes()).await.unwrap();
        connection.shutdown().await.unwrap();
        let answer = everything(&mut connection).await;
        assert!(answer.starts_with(begin) && answer.is_empty() == begin.is_empty(), "{answer}");
    }
}

/// The place of a watcher or a long poll is for others as soon as its client has closed its side.
#[tokio::test]
async fn who_leaves_while_waiting_gives_its_place_up() {
    let mut setup = Setup::new();
    (setup.config.limits.watchers, setup.config.limits.long_polls) = (1, 1);
    let server = setup.start().await;
    let mut client = server.client().await;
    let list = format!("{NS}/services/order/instances");
    let index = client.get(&list).await.expect(200).header("x-cosky-index").unwrap().to_owned();
    let poll = format!("{list}?wait=60s&index={index}");
    for (path, gauge) in [(format!("{NS}/watch"), "cosky_watchers"), (poll, "cosky_long_polls")] {
        for only_its_side in [true, false] {
            let mut leaving = TcpStream::connect(server.address).await.unwrap();
            let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
            leaving.write_all(request.as_bytes()).await.unwrap();
            shows(&mut client, &format!("{gauge} 1")).await;
            if only_its_side {
                leaving.shutdown().await.unwrap();
                everything(&mut leaving).await;
            }
            drop(leaving);
            shows(&mut client, &format!("{gauge} 0")).await;
        }
    }
}

/// What comes until the server closes the connection.
async fn everything(connection: &mut TcpStream) -> String {
    let mut all = String::new();
    let read = tokio::time::timeout(PATIENCE, connection.read_to_string(&mut all));
    read.await.expect("the connection ends in time").unwrap();
    all
}

/// Waits until the metrics have this line.
async fn shows(client: &mut Client, line: &str) {
    let shown = async {
        while !client.get("/metrics").await.expect(200).text().lines().any(|shown| shown == line) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, shown).await.unwrap_or_else(|_| panic!("{line}"));
}
