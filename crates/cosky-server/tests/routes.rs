//! Each route: done, absent, invalid. Over a real socket, with the embedded engine behind it.

mod support;

use std::{collections::HashMap, sync::Arc, time::Duration};

use cosky_embedded::{Embedded, Options};
use cosky_server::Config;
use serde_json::{Value, json};
use support::{NS, Server, Setup, client::Client, instance};

const ORDER: &str = "/v1/namespaces/%7Bt1%7D/services/order/instances/order%40http%2310.0.0.1%238080";

#[tokio::test(flavor = "multi_thread")]
async fn namespaces_are_listed_and_unlisted() {
    let server = Server::start().await;
    let mut client = server.client().await;
    assert_eq!(client.get("/v1/namespaces").await.expect(200).value(), json!(["cosky-{system}"]));
    assert_eq!(client.put(NS).await.expect(200).value(), true);
    assert_eq!(client.put(NS).await.expect(200).value(), false);
    assert_eq!(client.get("/v1/namespaces").await.value(), json!(["cosky-{system}", "{t1}"]));
    assert_eq!(client.delete(NS).await.expect(200).value(), true);
    assert_eq!(client.delete(NS).await.expect(200).value(), false);
    client.put("/v1/namespaces/%20").await.refused(400, "invalid_argument", "namespace");
    client.put("/v1/namespaces/a:b").await.refused(400, "invalid_argument", "namespace");
    client.put("/v1/namespaces/%63urrent").await.refused(400, "invalid_argument", "reserved");
    client.delete("/v1/namespaces/%20").await.refused(400, "invalid_argument", "namespace");
    assert_eq!(client.get("/v1/namespaces").await.value(), json!(["cosky-{system}"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_current_namespace_is_the_process_s() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let current = client.get("/v1/namespaces/current").await.expect(200);
    assert_eq!(current.text(), "cosky-{system}");
    assert!(current.header("content-type").unwrap().starts_with("text/plain"));
    client.put("/v1/namespaces/current/%7Bt1%7D").await.empty();
    assert_eq!(client.get("/v1/namespaces/current").await.text(), "{t1}");
    assert_eq!(client.get("/v1/namespaces").await.value(), json!(["cosky-{system}", "{t1}"]));
    client.put("/v1/namespaces/current/%20").await.refused(400, "invalid_argument", "namespace");
    assert_eq!(client.get("/v1/namespaces/current").await.text(), "{t1}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_system_and_the_current_namespace_are_protected() {
    let server = Server::start().await;
    let mut client = server.client().await;
    client.put("/v1/namespaces/current/%7Bt1%7D").await.empty();
    for path in ["/v1/namespaces/cosky-%7Bsystem%7D", NS] {
        client.delete(path).await.refused(409, "conflict", "namespace");
        client.delete(&format!("{path}?purge=true")).await.refused(409, "conflict", "namespace");
    }
    assert_eq!(client.get("/v1/namespaces").await.value(), json!(["cosky-{system}", "{t1}"]));
    client.put("/v1/namespaces/current/other").await.empty();
    assert_eq!(client.delete(NS).await.expect(200).value(), true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_removes_the_data_and_is_refused_while_something_lives() {
    let server = Server::start().await;
    let mut client = server.client().await;
    client.put(NS).await.expect(200);
    client.put(&format!("{NS}/services/empty")).await.expect(200);
    client.register("order", &instance("10.0.0.1", 8080)).await;
    let purge = format!("{NS}?purge=true");
    client.delete(&purge).await.refused(409, "conflict", "");
    assert_eq!(client.get(&format!("{NS}/services")).await.value(), json!(["empty", "order"]));
    assert_eq!(client.delete(NS).await.value(), true, "unlisting keeps the data");
    assert_eq!(client.get(&format!("{NS}/services")).await.value(), json!(["empty", "order"]));
    assert_eq!(client.delete(ORDER).await.value(), true);
    assert_eq!(client.delete(&purge).await.expect(200).value(), true);
    assert_eq!(client.get(&format!("{NS}/services")).await.value(), json!([]));
    assert_eq!(client.delete(&purge).await.expect(200).value(), false);
    client.delete(&format!("{NS}?purge=perhaps")).await.refused(400, "invalid_argument", "purge");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_of_many_services_is_noted_whole() {
    let server = Server::start().await;
    let services: Vec<_> = (0..300).map(|i| format!("svc-{i:03}")).collect();
    let path = format!("{NS}/watch?consumer=desk&service={}", services.join("&service="));
    let mut events = server.client().await.watch(&path, &[]).await;
    events.expect("snapshot").await;
    noted(&mut server.client().await, "desk", json!(services)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_still_asks_after_a_purge_is_noted_again() {
    let server = Server::start().await;
    let mut client = server.client().await;
    for _ in 0..2 {
        client.get(&format!("{NS}/services/order/instances?consumer=desk")).await.expect(200);
        noted(&mut client, "desk", json!(["order"])).await;
        assert_eq!(client.delete(&format!("{NS}?purge=true")).await.expect(200).value(), true);
        assert_eq!(client.get(&format!("{NS}/stat/topology")).await.value(), json!({}));
    }
}

/// Waits until the topology says that `consumer` looks for `producers`.
async fn noted(client: &mut Client, consumer: &str, producers: Value) {
    let noted = async {
        while client.get(&format!("{NS}/stat/topology")).await.expect(200).value()[consumer] != producers {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), noted).await.expect("all of them, in time");
}

/// After a restart missing beats may only be late, which every read says.
#[tokio::test(flavor = "multi_thread")]
async fn every_read_says_how_far_it_can_be_trusted() {
    let dir = tempfile::tempdir().unwrap();
    for state in ["live", "protected"] {
        let engine = Arc::new(Embedded::open(Options::new(dir.path())).await.unwrap());
        let mut server = Setup::on(engine, Config { auth: false, ..Config::default() }).await;
        let mut client = server.client().await;
        let known = client.get(ORDER).await.expect(200);
        assert_eq!(known.body.is_empty(), state == "live", "it was registered before the restart");
        let of_one_namespace = [
            "/services",
            "/services/stats",
            "/services/order/instances",
            "/services/order/lb",
            "/services/order/instances/order%40http%2310.0.0.1%238080",
            "/stat",
            "/digest",
        ];
        let with_index = of_one_namespace.map(|path| (format!("{NS}{path}"), true));
        let without = ["/v1/namespaces".to_owned(), format!("{NS}/stat/topology")].map(|path| (path, false));
        for (path, indexed) in with_index.into_iter().chain(without) {
            let answer = client.get(&path).await.expect(200);
            assert_eq!(answer.header("x-cosky-state"), Some(state), "{path}");
            assert_eq!(answer.header("x-cosky-age"), Some("0"), "{path}");
            assert_eq!(answer.header("x-cosky-index").is_some(), indexed, "{path}");
        }
        client.register("order", &instance("10.0.0.1", 8080)).await;
        drop(client);
        server.drain();
        server.ended().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn services_are_listed_and_unlisted() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let services = format!("{NS}/services");
    let none = client.get(&services).await.expect(200);
    assert_eq!(none.value(), json!([]));
    for header in ["x-cosky-index", "x-cosky-age", "x-cosky-state"] {
        assert!(none.header(header).is_some(), "{header}");
    }
    let empty = format!("{services}/empty");
    assert_eq!(client.put(&empty).await.expect(200).value(), true);
    assert_eq!(client.put(&empty).await.expect(200).value(), false);
    client.register("order", &instance("10.0.0.1", 8080)).await;
    assert_eq!(client.get(&services).await.value(), json!(["empty", "order"]));
    let stats = json!([
        {"serviceId": "empty", "instanceCount": 0},
        {"serviceId": "order", "instanceCount": 1}
    ]);
    let answer = client.get(&format!("{services}/stats")).await.expect(200);
    assert_eq!(answer.value(), stats);
    assert!(answer.header("x-cosky-index").is_some());
    assert_eq!(client.delete(&empty).await.expect(200).value(), true);
    assert_eq!(
        client.delete(&empty).await.expect(200).value(),
        true,
        "as CoSky answers for what is not there"
    );
    assert_eq!(client.delete(&format!("{services}/order")).await.expect(200).value(), false);
    assert_eq!(client.get(&services).await.value(), json!(["order"]));
    client.put(&format!("{services}/a%40b")).await.refused(400, "invalid_argument", "serviceId");
    client.delete(&format!("{services}/%20")).await.refused(400, "invalid_argument", "serviceId");
    client.get("/v1/namespaces/a:b/services").await.refused(400, "invalid_argument", "namespace");
    client.get("/v1/namespaces/a:b/services/stats").await.refused(400, "invalid_argument", "namespace");
    client.send("PATCH", &empty, &[], b"").await.refused(405, "method_not_allowed", "");
    assert_eq!(client.get(&services).await.value(), json!(["order"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn stat_counts_and_topology_tells_who_asked() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let (stat, topology) = (format!("{NS}/stat"), format!("{NS}/stat/topology"));
    let empty = json!({"namespaces": 1, "services": {"total": 0, "health": 0}, "instances": 0, "configs": 0});
    let answer = client.get(&stat).await.expect(200);
    assert_eq!(answer.value(), empty);
    assert!(answer.header("x-cosky-index").is_some());
    assert_eq!(client.get(&topology).await.expect(200).value(), json!({}));
    client.put(&format!("{NS}/services/empty")).await.expect(200);
    client.register("order", &instance("10.0.0.1", 8080)).await;
    let counts =
        json!({"namespaces": 1, "services": {"total": 2, "health": 1}, "instances": 1, "configs": 0});
    assert_eq!(client.get(&stat).await.value(), counts);

    let order = format!("{NS}/services/order");
    client.get(&format!("{order}/instances?consumer=web")).await.expect(200);
    client.get(&format!("{ORDER}?consumer=mobile")).await.expect(200);
    client.get(&format!("{order}/lb?consumer=batch")).await.expect(200);
    client.get(&format!("{order}/instances?consumer=order")).await.expect(200);
    let watch = format!("{NS}/watch?service=order&service=stock&consumer=desk");
    server.client().await.watch(&watch, &[]).await.expect("snapshot").await;
    let expected =
        json!({"batch": ["order"], "desk": ["order", "stock"], "mobile": ["order"], "web": ["order"]});
    let noted = async {
        while client.get(&topology).await.value() != expected {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), noted).await.expect("what was asked is noted");

    for path in ["/instances", "/lb", "/instances/x"] {
        let path = format!("{order}{path}?consumer=%20");
        client.get(&path).await.refused(400, "invalid_argument", "consumer");
    }
    client.get(&format!("{NS}/watch?consumer=%20")).await.refused(400, "invalid_argument", "consumer");
    client.get("/v1/namespaces/a:b/stat").await.refused(400, "invalid_argument", "namespace");
    client.get("/v1/namespaces/a:b/stat/topology").await.refused(400, "invalid_argument", "namespace");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registration_is_answered_listed_and_found() {
    let server = Setup::new().ttl(30).start().await;
    let mut client = server.client().await;
    let body =
        json!({"schema": "https", "host": "10.0.0.1", "port": 8443, "weight": 2, "metadata": {"zone": "a"}});
    let registered = client.register("order", &body).await;
    assert_eq!(registered.header("x-cosky-ttl-ms"), Some("30000"));
    assert!(registered.header("x-cosky-owner").is_some_and(|owner| !owner.is_empty()));
    let expected = json!({
        "instanceId": "order@https#10.0.0.1#8443", "serviceId": "order", "schema": "https", "host": "10.0.0.1",
        "port": 8443, "uri": "https://10.0.0.1:8443", "isSecure": true, "weight": 2, "isEphemeral": true,
        "ttlAt": 1_790_000_030, "isExpired": false, "metadata": {"zone": "a"}
    });
    let list = client.get(&format!("{NS}/services/order/instances")).await.expect(200);
    assert_eq!(list.value(), json!([expected]));
    assert_eq!(list.header("content-type"), Some("application/json"));
    assert_eq!(list.header("x-cosky-age"), Some("0"));
    assert_eq!(list.header("x-cosky-state"), Some("live"));
    assert!(list.header("x-cosky-index").is_some());
    let one = format!("{NS}/services/order/instances/order%40https%2310.0.0.1%238443");
    server.pass(Duration::from_secs(10)).await;
    let found = client.get(&one).await.expect(200);
    assert_eq!(found.value(), expected);
    assert_eq!(found.header("x-cosky-ttl-ms"), Some("20000"));
    assert_eq!(found.header("x-cosky-owner"), None, "who may remove it is nobody else's business");
    assert!(found.header("x-cosky-index").is_some());

    let permanent = json!({"schema": "http", "host": "10.0.0.2", "port": 80, "isEphemeral": false});
    let registered = client.register("order", &permanent).await;
    assert_eq!(registered.header("x-cosky-ttl-ms"), None);
    let found = client.get(&format!("{NS}/services/order/instances/order%40http%2310.0.0.2%2380")).await;
    assert_eq!((found.value()["ttlAt"].clone(), found.header("x-cosky-ttl-ms")), (json!(-1), None));

    let owned = json!({"schema": "http", "host": "10.0.0.3", "port": 80, "owner": "me-1", "ttlSeconds": 7});
    let registered = client.register("order", &owned).await;
    assert_eq!(registered.header("x-cosky-owner"), Some("me-1"));
    assert_eq!(registered.header("x-cosky-ttl-ms"), Some("7000"));
    let again = client.register("order", &instance("10.0.0.3", 80)).await;
    assert_eq!(again.header("x-cosky-owner"), Some("me-1"), "without an owner the present one stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_answered_as_cosky_does() {
    let server = Server::start().await;
    let mut client = server.client().await;
    client.register("order", &instance("10.0.0.1", 8080)).await;
    assert_eq!(client.get(&format!("{NS}/services/none/instances")).await.expect(200).value(), json!([]));
    client.get(&format!("{NS}/services/none/lb")).await.empty();
    for id in ["order%40http%231.1.1.1%231", "garbage", "a%2Fb", "order%40http%2310.0.0.1%2399999"] {
        let path = format!("{NS}/services/order/instances/{id}");
        let absent = client.get(&path).await;
        assert!(absent.header("x-cosky-index").is_some());
        absent.empty();
        assert_eq!(client.delete(&path).await.expect(200).value(), false);
        let metadata = format!("{path}/metadata");
        assert_eq!(client.text("PUT", &metadata, "{}").await.expect(200).value(), false);
        assert_eq!(client.text("PATCH", &metadata, "{}").await.expect(200).value(), false);
        client.put(&format!("{path}/beat")).await.refused(404, "not_found", "instance");
    }
    assert_eq!(client.get(&format!("{NS}/services/order/instances")).await.ids().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deregistration_with_an_owner_spares_the_successor() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let owned = |owner| json!({"schema": "http", "host": "10.0.0.1", "port": 8080, "owner": owner});
    client.register("order", &owned("old")).await;
    client.register("order", &owned("new")).await;
    assert_eq!(client.delete(&format!("{ORDER}?owner=old")).await.expect(200).value(), false);
    client.delete(&format!("{ORDER}?owner=")).await.refused(400, "invalid_argument", "owner");
    client.delete(&format!("{ORDER}?owner=a%20b")).await.refused(400, "invalid_argument", "owner");
    assert_eq!(client.get(&format!("{NS}/services/order/instances")).await.ids().len(), 1);
    assert_eq!(client.delete(&format!("{ORDER}?owner=new")).await.expect(200).value(), true);
    assert_eq!(client.delete(ORDER).await.expect(200).value(), false);
    let late = client.json("PUT", &format!("{NS}/services/order/instances"), &owned("new")).await;
    late.refused(410, "gone", "order@http#10.0.0.1#8080");
    client.register("order", &owned("newest")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_beat_renews_or_says_what_to_do() {
    let server = Setup::new().ttl(30).start().await;
    let mut client = server.client().await;
    client.register("order", &instance("10.0.0.1", 8080)).await;
    server.pass(Duration::from_secs(20)).await;
    let beat = format!("{ORDER}/beat");
    let renewed = json!({"renewed": true, "remainingMs": 30_000, "ttlAt": 1_790_000_050});
    assert_eq!(client.put(&beat).await.expect(200).value(), renewed);
    server.pass(Duration::from_secs(20)).await;
    assert_eq!(client.get(ORDER).await.expect(200).header("x-cosky-ttl-ms"), Some("10000"));
    server.pass(Duration::from_secs(11)).await;
    client.put(&beat).await.refused(404, "not_found", "order@http#10.0.0.1#8080");
    client.register("order", &instance("10.0.0.1", 8080)).await;
    assert_eq!(client.delete(ORDER).await.value(), true);
    client.put(&beat).await.refused(410, "gone", "order@http#10.0.0.1#8080");
    let wrong = format!("{NS}/services/%20/instances/x/beat");
    client.put(&wrong).await.refused(400, "invalid_argument", "serviceId");
    client.get(&beat).await.refused(405, "method_not_allowed", "");

    let permanent = json!({"schema": "http", "host": "10.0.0.2", "port": 80, "isEphemeral": false});
    client.register("order", &permanent).await;
    let beat = format!("{NS}/services/order/instances/order%40http%2310.0.0.2%2380/beat");
    assert_eq!(client.put(&beat).await.expect(200).value(), json!({"renewed": true, "ttlAt": -1}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_beats_is_sorted_by_answer() {
    let server = Setup::new().ttl(30).start().await;
    let mut client = server.client().await;
    for port in 1..=3 {
        client.register("order", &instance("10.0.0.1", port)).await;
    }
    client.register("v6", &instance("2001:db8::1", 80)).await;
    client.delete(&format!("{NS}/services/order/instances/order%40http%2310.0.0.1%233")).await.expect(200);
    server.pass(Duration::from_secs(20)).await;
    let key = |service: &str, id: &str| json!({"serviceId": service, "instanceId": id});
    let batch = json!([
        key("order", "order@http#10.0.0.1#1"),
        key("order", "order@http#10.0.0.1#2"),
        key("order", "order@http#10.0.0.1#3"),
        key("order", "order@http#10.0.0.1#4"),
        key("stock", "order@http#10.0.0.1#1"),
        key("v6", "v6@http#[2001:DB8:0::1]#80"),
        key("no \"service\" \n", "garbage"),
    ]);
    let answer = client.json("POST", &format!("{NS}/beats"), &batch).await.expect(200).value();
    let unknown = json!(["order@http#10.0.0.1#4", "order@http#10.0.0.1#1", "garbage"]);
    assert_eq!(answer, json!({"renewed": 3, "unknown": unknown, "gone": ["order@http#10.0.0.1#3"]}));
    server.pass(Duration::from_secs(20)).await;
    assert_eq!(client.get(&format!("{NS}/services/order/instances")).await.ids().len(), 2);
    assert_eq!(client.get(&format!("{NS}/services/v6/instances")).await.ids().len(), 1);
    let none = client.text("POST", &format!("{NS}/beats"), "[]").await.expect(200).value();
    assert_eq!(none, json!({"renewed": 0, "unknown": [], "gone": []}));

    let metrics = client.get("/metrics").await.expect(200).text();
    for line in [
        r#"cosky_operations_total{operation="beat",result="ok"} 3"#,
        r#"cosky_operations_total{operation="beat",result="unknown"} 3"#,
        r#"cosky_operations_total{operation="beat",result="gone"} 1"#,
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line} in {metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_is_replaced_and_merged() {
    let server = Server::start().await;
    let mut client = server.client().await;
    client.register("order", &instance("10.0.0.1", 8080)).await;
    let path = format!("{ORDER}/metadata");
    let mut metadata = async |method: &str, body: Value| {
        assert_eq!(client.json(method, &path, &body).await.expect(200).value(), true);
        client.get(ORDER).await.value()["metadata"].clone()
    };
    assert_eq!(metadata("PUT", json!({"a": "1", "b": "2"})).await, json!({"a": "1", "b": "2"}));
    assert_eq!(metadata("PATCH", json!({"b": "3", "a": null, "c": ""})).await, json!({"b": "3", "c": ""}));
    assert_eq!(metadata("PATCH", json!({})).await, json!({"b": "3", "c": ""}));
    assert_eq!(metadata("PUT", json!({"k": "v"})).await, json!({"k": "v"}));
    assert_eq!(metadata("PUT", json!({})).await, json!({}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_choice_is_weighted_and_in_service() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let weighted = |port: u16, weight: u32, status: &str| {
        json!({"schema": "http", "host": "10.0.0.1", "port": port, "weight": weight,
               "metadata": {"instance_status": status}})
    };
    for (port, weight, status) in [(1, 1, "UP"), (2, 3, "UP"), (3, 0, "UP"), (4, 9, "OUT_OF_SERVICE")] {
        client.register("order", &weighted(port, weight, status)).await;
    }
    let mut chosen = HashMap::new();
    for _ in 0..2_000 {
        let answer = client.get(&format!("{NS}/services/order/lb")).await.expect(200);
        *chosen.entry(answer.value()["port"].as_u64().unwrap()).or_insert(0_u32) += 1;
    }
    // A quarter of 2,000 with a standard deviation of 19.
    assert!((400..600).contains(&chosen[&1]) && chosen.len() == 2, "{chosen:?}");
    let answer = client.get(&format!("{NS}/services/order/lb")).await;
    for header in ["x-cosky-ttl-ms", "x-cosky-index", "x-cosky-age", "x-cosky-state"] {
        assert!(answer.header(header).is_some(), "{header}");
    }
    client.get(&format!("{NS}/services/a%40b/lb")).await.refused(400, "invalid_argument", "serviceId");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_digest_covers_what_is_named() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let path = format!("{NS}/digest");
    let nothing = json!({"digest": "0000000000000000"});
    assert_eq!(client.get(&path).await.expect(200).value(), nothing);
    client.register("order", &instance("10.0.0.1", 8080)).await;
    let one = client.get(&path).await.expect(200);
    let list = client.get(&format!("{NS}/services/order/instances")).await;
    assert_eq!(one.header("x-cosky-index"), list.header("x-cosky-index"));
    assert_ne!(one.value(), nothing);
    assert_eq!(one.value()["digest"].as_str().unwrap().len(), 16);
    client.register("a%2Fb", &instance("10.0.0.2", 8080)).await;
    let named = [
        ("?service=order", one.value()),
        ("?service=absent&service=order&service=order", one.value()),
        ("?service=absent", nothing),
        ("?service=a%2Fb&service=order", client.get(&path).await.expect(200).value()),
    ];
    for (query, digest) in named {
        assert_eq!(client.get(&format!("{path}{query}")).await.expect(200).value(), digest, "{query}");
    }
    let many = (0..1001).map(|n| format!("service={n}")).collect::<Vec<_>>();
    client.get(&format!("{path}?{}", many[..1000].join("&"))).await.expect(200);
    client.get(&format!("{path}?{}", many.join("&"))).await.refused(400, "invalid_argument", "service");
    client.get(&format!("{path}?service=a%40b")).await.refused(400, "invalid_argument", "serviceId");
    client.get("/v1/namespaces/a:b/digest").await.refused(400, "invalid_argument", "namespace");
    client.delete(&path).await.refused(405, "method_not_allowed", "");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_needs_a_credential() {
    let server = Setup::new().auth().start().await;
    let mut client = server.client().await;
    let routes = [
        ("GET", "/v1/namespaces".to_owned()),
        ("GET", "/v1/namespaces/current".into()),
        ("PUT", "/v1/namespaces/current/%7Bt1%7D".into()),
        ("PUT", NS.into()),
        ("DELETE", NS.into()),
        ("GET", format!("{NS}/stat")),
        ("GET", format!("{NS}/stat/topology")),
        ("GET", format!("{NS}/services")),
        ("GET", format!("{NS}/services/stats")),
        ("PUT", format!("{NS}/services/order")),
        ("DELETE", format!("{NS}/services/order")),
        ("GET", format!("{NS}/services/order/instances")),
        ("PUT", format!("{NS}/services/order/instances")),
        ("GET", ORDER.into()),
        ("DELETE", ORDER.into()),
        ("PUT", format!("{ORDER}/metadata")),
        ("PATCH", format!("{ORDER}/metadata")),
        ("PUT", format!("{ORDER}/beat")),
        ("GET", format!("{NS}/services/order/lb")),
        ("POST", format!("{NS}/beats")),
        ("GET", format!("{NS}/digest")),
        ("GET", format!("{NS}/watch")),
    ];
    for (method, path) in &routes {
        let answer = client.send(method, path, &[], b"").await.expect(401);
        assert_eq!(answer.value()["authorized"], false, "{method} {path}");
    }
    let mut root = server.root().await;
    assert_eq!(root.get("/v1/namespaces").await.expect(200).value(), json!(["cosky-{system}"]));
    assert_eq!(root.put(NS).await.expect(200).value(), true);
}
