//! The watch stream: what comes, in which order, and how it ends.

mod support;

use std::time::{Duration, Instant};

use serde_json::json;
use support::{NS, Server, Setup, client::Client, instance};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const ORDER: &str = "/v1/namespaces/%7Bt1%7D/services/order/instances/order%40http%2310.0.0.1%238080";

/// Waits until a metric has a value.
async fn metric(client: &mut Client, line: &str) {
    let shown = async {
        while !client.get("/metrics").await.expect(200).text().lines().any(|l| l == line) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), shown).await.unwrap_or_else(|_| panic!("{line} in time"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_and_then_every_change_in_order() {
    let server = Setup::new().ttl(30).start().await;
    let mut client = server.client().await;
    client.register("order", &instance("10.0.0.1", 8080)).await;
    client.put(&format!("{NS}/services/empty")).await.expect(200);
    let mut events = server.client().await.watch(&format!("{NS}/watch"), &[]).await;
    let header = |name: &str| events.headers.get(name).map(String::as_str);
    assert_eq!(header("content-type"), Some("text/event-stream"));
    assert_eq!(header("cache-control"), Some("no-cache"));
    assert_eq!(header("x-accel-buffering"), Some("no"));
    assert_eq!(header("content-length"), None);

    let list = client.get(&format!("{NS}/services/order/instances")).await;
    let snapshot = events.expect("snapshot").await;
    assert_eq!(snapshot.data["services"], json!({"empty": [], "order": list.value()}));
    assert_eq!((&snapshot.data["configs"], &snapshot.data["state"]), (&json!({}), &json!("live")));
    let store = snapshot.data["store"].as_str().unwrap();
    let store: cosky_core::StoreId = store.parse().unwrap();
    assert_eq!(store.opened, 1, "the first time that this store is opened");
    assert_eq!(snapshot.id.as_deref(), list.header("x-cosky-index"));

    client.register("order", &instance("10.0.0.1", 8080)).await;
    client.json("PUT", &format!("{ORDER}/metadata"), &json!({"k": "v"})).await.expect(200);
    client.put(&format!("{ORDER}/beat")).await.expect(200);
    client.delete(ORDER).await.expect(200);
    client.delete(&format!("{NS}/services/empty")).await.expect(200);
    client.register("stock", &instance("10.0.0.2", 80)).await;
    server.pass(Duration::from_secs(31)).await;

    let mut ids = vec![snapshot.id.unwrap()];
    for (name, op, service, present) in [
        ("instance", "register", "order", true),
        ("instance", "set_metadata", "order", true),
        ("instance", "deregister", "order", false),
        ("service", "remove", "empty", false),
        ("service", "set", "stock", false),
        ("instance", "register", "stock", true),
        ("instance", "expired", "stock", false),
    ] {
        let event = events.expect(name).await;
        assert_eq!(
            (&event.data["op"], &event.data["serviceId"]),
            (&json!(op), &json!(service)),
            "never renew"
        );
        assert_eq!(event.data["instance"].is_object(), present, "{event:?}");
        ids.push(event.id.unwrap());
        if op == "set_metadata" {
            assert_eq!(event.data["instance"]["metadata"], json!({"k": "v"}));
            assert_eq!(event.data["instanceId"], "order@http#10.0.0.1#8080");
        }
    }
    let (epochs, sequences): (Vec<_>, Vec<u64>) =
        ids.iter().map(|id| id.split_once(':').unwrap()).map(|(e, s)| (e, s.parse::<u64>().unwrap())).unzip();
    assert!(epochs.iter().all(|epoch| *epoch == epochs[0]), "{ids:?}");
    assert!(sequences.is_sorted_by(|a, b| a < b), "{ids:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_covers_services_that_do_not_exist_yet() {
    let server = Server::start().await;
    let mut client = server.client().await;
    client.register("order", &instance("10.0.0.1", 8080)).await;
    let path = format!("{NS}/watch?service=stock&service=team%2Fapp-a");
    let mut events = server.client().await.watch(&path, &[]).await;
    assert_eq!(events.expect("snapshot").await.data["services"], json!({"stock": [], "team/app-a": []}));
    client.register("order", &instance("10.0.0.2", 8080)).await;
    client.register("team%2Fapp-a", &instance("10.0.0.3", 80)).await;
    client.register("stock", &instance("10.0.0.4", 80)).await;
    for service in ["team/app-a", "stock"] {
        assert_eq!(events.expect("service").await.data, json!({"op": "set", "serviceId": service}));
        assert_eq!(events.expect("instance").await.data["serviceId"], service);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resume_continues_and_anything_else_gets_a_snapshot() {
    let mut setup = Setup::new();
    setup.options.limits.ring = 4;
    let server = setup.start().await;
    let mut client = server.client().await;
    client.register("order", &instance("10.0.0.1", 8080)).await;
    let watch = format!("{NS}/watch");
    let seen = server.client().await.watch(&watch, &[]).await.expect("snapshot").await.id.unwrap();
    client.delete(ORDER).await.expect(200);
    client.register("order", &instance("10.0.0.1", 8080)).await;
    for (path, headers) in [
        (watch.clone(), vec![("Last-Event-ID", seen.as_str())]),
        (format!("{watch}?index={seen}"), vec![]),
        (format!("{watch}?index=0:0"), vec![("Last-Event-ID", seen.as_str())]),
    ] {
        let mut events = server.client().await.watch(&path, &headers).await;
        assert_eq!(events.headers["x-cosky-resumed"], "true");
        assert_eq!(events.expect("instance").await.data["op"], "deregister");
        assert_eq!(events.expect("instance").await.data["op"], "register");
    }
    let now = client.get(&format!("{NS}/services/order/instances")).await;
    let quiet = [("Last-Event-ID", now.header("x-cosky-index").unwrap())];
    let events = server.client().await.watch(&watch, &quiet).await;
    assert_eq!(events.headers["x-cosky-resumed"], "true", "nothing happened since");
    for (path, headers) in [
        (format!("{watch}?index=0:7"), vec![]),
        (watch.clone(), vec![("Last-Event-ID", "0000000000000000:7")]),
        (watch.clone(), vec![("Last-Event-ID", "17")]),
        (watch.clone(), vec![("Last-Event-ID", "")]),
    ] {
        let mut events = server.client().await.watch(&path, &headers).await;
        assert_eq!(events.headers["x-cosky-resumed"], "false");
        events.expect("snapshot").await;
    }
    for port in 1..=5 {
        client.register("order", &instance("10.0.0.2", port)).await;
    }
    let headers = [("Last-Event-ID", seen.as_str())];
    let mut events = server.client().await.watch(&watch, &headers).await;
    let snapshot = events.expect("snapshot").await;
    assert_eq!(snapshot.data["services"]["order"].as_array().unwrap().len(), 6, "too old for the ring");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_may_follow_other_requests_on_a_connection() {
    let server = Server::start().await;
    let watch = format!("{NS}/watch");
    let mut used = server.client().await;
    used.register("order", &instance("10.0.0.1", 8080)).await;
    used.get(&format!("{NS}/services")).await.expect(200);
    let mut events = used.watch(&watch, &[]).await;
    assert_eq!(events.headers.get("connection").map(String::as_str), Some("close"));
    assert!(events.headers.contains_key("date") && events.headers.contains_key("x-cosky-version"));
    events.expect("snapshot").await;

    // Sent in one go, and what follows the stream's request is nobody's.
    let mut piped = server.client().await;
    piped.write("GET", &format!("{NS}/services"), &[], b"").await;
    piped.write("GET", &format!("{NS}/services/stats"), &[], b"").await;
    piped.write("GET", &watch, &[], b"").await;
    piped.write("GET", &format!("{NS}/services"), &[], b"").await;
    assert_eq!(piped.read("GET").await.expect(200).value(), json!(["order"]));
    assert_eq!(
        piped.read("GET").await.expect(200).value(),
        json!([{"serviceId": "order", "instanceCount": 1}])
    );
    let mut events = piped.events().await;
    events.expect("snapshot").await;
    server.client().await.delete(ORDER).await.expect(200);
    assert_eq!(events.expect("instance").await.data["op"], "deregister");

    let head = server.client().await.send("HEAD", &watch, &[], b"").await.expect(200);
    assert_eq!(head.header("content-type"), Some("text/event-stream"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_for_http_1_0_ends_with_its_connection() {
    let mut server = Server::start().await;
    let mut socket = tokio::net::TcpStream::connect(server.address).await.unwrap();
    socket.write_all(format!("GET {NS}/watch HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes()).await.unwrap();
    let mut text = Vec::new();
    while !text.ends_with(b"}\n\n") {
        assert_ne!(socket.read_buf(&mut text).await.unwrap(), 0, "the stream goes on");
    }
    server.drain();
    socket.read_to_end(&mut text).await.unwrap();
    let text = String::from_utf8(text).unwrap();
    let (head, events) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.0 200 OK\r\n") && !head.contains("chunked"), "{head}");
    assert!(events.starts_with("id: ") && events.ends_with("{\"state\":\"draining\"}\n\n"), "{events}");
    server.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_is_announced_and_ends_the_stream() {
    let mut server = Server::start().await;
    let mut events = server.client().await.watch(&format!("{NS}/watch"), &[]).await;
    events.expect("snapshot").await;
    server.drain();
    let state = events.expect("state").await;
    assert_eq!((state.data, state.id), (json!({"state": "draining"}), None));
    assert_eq!(events.next().await, None);
    server.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_at_its_age() {
    let mut setup = Setup::new();
    setup.config.stream_age = Duration::from_secs(1);
    let server = setup.start().await;
    let begun = Instant::now();
    let mut events = server.client().await.watch(&format!("{NS}/watch"), &[]).await;
    let id = events.expect("snapshot").await.id.unwrap();
    assert_eq!(events.next().await, None, "cleanly, without a word");
    assert!(begun.elapsed() >= Duration::from_millis(800), "{:?}", begun.elapsed());
    let mut client = server.client().await;
    client.register("order", &instance("10.0.0.1", 8080)).await;
    let headers = [("Last-Event-ID", id.as_str())];
    let mut events = server.client().await.watch(&format!("{NS}/watch"), &headers).await;
    assert_eq!(events.expect("service").await.data["op"], "set", "nothing is missed in between");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_with_its_credential() {
    let mut setup = Setup::new().auth();
    setup.config.access_token_ttl = Duration::from_secs(2);
    let server = setup.start().await;
    let root = server.root().await;
    let token = root.token.clone().unwrap();
    let begun = Instant::now();
    let mut events = root.watch(&format!("{NS}/watch"), &[]).await;
    events.expect("snapshot").await;
    assert_eq!(events.next().await, None);
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    let mut late = server.client().await;
    late.token = Some(token);
    late.get(&format!("{NS}/watch")).await.refused(401, "unauthorized", "");
}

#[tokio::test(flavor = "multi_thread")]
async fn places_are_limited_and_given_back() {
    let mut setup = Setup::new();
    setup.config.limits.watchers = 2;
    let server = setup.start().await;
    let mut client = server.client().await;
    let watch = format!("{NS}/watch");
    let mut first = server.client().await.watch(&watch, &[]).await;
    let mut second = server.client().await.watch(&watch, &[]).await;
    first.expect("snapshot").await;
    second.expect("snapshot").await;
    metric(&mut client, "cosky_watchers 2").await;
    let refused = client.get(&watch).await;
    assert!(refused.header("retry-after").is_some());
    refused.refused(429, "limit_reached", "");
    drop(first);
    metric(&mut client, "cosky_watchers 1").await;
    metric(&mut client, "cosky_store_watchers 1").await;
    server.client().await.watch(&watch, &[]).await.expect("snapshot").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_that_reads_nothing_is_cut_off_and_delays_nobody() {
    let mut setup = Setup::new().ttl(30);
    (setup.options.limits.watcher_queue, setup.options.limits.ring) = (4, 4);
    let server = setup.start().await;
    let mut client = server.client().await;
    let mut slow = Client::narrow(server.address).await.watch(&format!("{NS}/watch"), &[]).await;
    slow.expect("snapshot").await;
    let mut quick = server.client().await.watch(&format!("{NS}/watch"), &[]).await;
    quick.expect("snapshot").await;
    let mut big = instance("10.0.0.1", 8080);
    big["metadata"] =
        (0..7).map(|i| (i.to_string(), "x".repeat(4096).into())).collect::<serde_json::Map<_, _>>().into();
    client.register("order", &big).await;
    quick.expect("service").await;
    quick.expect("instance").await;
    let mut slowest = Duration::ZERO;
    // More than the sockets between the two hold, which the system lets grow to some MiB.
    let rounds = 500;
    for _ in 0..rounds {
        client.register("order", &big).await;
        quick.expect("instance").await;
        let begun = Instant::now();
        client.put(&format!("{ORDER}/beat")).await.expect(200);
        slowest = slowest.max(begun.elapsed());
    }
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    // What was on its way still comes, whole, and then the stream ends.
    let mut received = 0;
    while slow.next().await.is_some() {
        received += 1;
    }
    let sent = 2 + rounds;
    assert!(received < sent, "{received} of {sent}");
    metric(&mut client, r#"cosky_watchers_cut_total{reason="lagged"} 1"#).await;
    metric(&mut client, r#"cosky_watchers_cut_total{reason="stuck"} 0"#).await;
    client.register("order", &instance("10.0.0.1", 8080)).await;
    quick.expect("instance").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_that_never_reads_again_is_given_up_and_counted() {
    let mut setup = Setup::new().ttl(30);
    setup.config.limits.unacknowledged = Duration::from_secs(1);
    let server = setup.start().await;
    let mut client = server.client().await;
    let mut stuck = Client::narrow(server.address).await.watch(&format!("{NS}/watch"), &[]).await;
    stuck.expect("snapshot").await;
    let mut big = instance("10.0.0.1", 8080);
    big["metadata"] =
        (0..7).map(|i| (i.to_string(), "x".repeat(4096).into())).collect::<serde_json::Map<_, _>>().into();
    for _ in 0..300 {
        client.register("order", &big).await;
    }
    metric(&mut client, r#"cosky_watchers_cut_total{reason="stuck"} 1"#).await;
    metric(&mut client, r#"cosky_watchers_cut_total{reason="lagged"} 0"#).await;
    metric(&mut client, "cosky_watchers 0").await;
    metric(&mut client, "cosky_store_watchers 0").await;
}
