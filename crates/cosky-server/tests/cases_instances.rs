//! Field cases about instances: their addresses, weights, metadata, life, and how they are counted. What they say of a
//! second server waits for Redis.

mod support;

use std::{
    net::{SocketAddr, TcpListener},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use support::{
    NS, Server, Setup,
    client::{Answer, Client},
    instance,
};

const A: &str = "/v1/namespaces/%7Bt1%7D/services/app-a/instances";
const A1: &str = "/v1/namespaces/%7Bt1%7D/services/app-a/instances/app-a%40http%2310.0.0.1%2380";
const TTL: Duration = Duration::from_secs(3);

/// What the header of remaining life says.
fn remaining(answer: &Answer) -> Option<Duration> {
    answer.header("x-cosky-ttl-ms").map(|ms| Duration::from_millis(ms.parse().expect("milliseconds")))
}

async fn put(client: &mut Client, body: &str) -> Answer {
    client.text("PUT", A, body).await
}

/// All that the server tells of the namespace.
async fn everything(client: &mut Client) -> Vec<Value> {
    let mut all = Vec::new();
    for path in [format!("{NS}/services"), format!("{NS}/services/stats"), format!("{NS}/stat"), A.to_owned()]
    {
        all.push(client.get(&path).await.expect(200).value());
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn c13_ipv6_hosts_have_one_id_and_a_uri_that_parses() {
    let server = Server::start().await;
    let mut client = server.client().await;
    for host in ["2001:db8::1", "[2001:db8::1]", "2001:DB8:0::1"] {
        client.register("app-a", &instance(host, 8080)).await;
    }
    client.register("app-a", &instance("::ffff:10.0.0.1", 8080)).await;
    let list = client.get(A).await;
    assert_eq!(list.ids(), ["app-a@http#2001:db8::1#8080", "app-a@http#::ffff:10.0.0.1#8080"]);
    let uris: Vec<_> = list.value().as_array().unwrap().iter().map(|one| one["uri"].clone()).collect();
    assert_eq!(uris, ["http://[2001:db8::1]:8080", "http://[::ffff:10.0.0.1]:8080"]);
    for uri in uris {
        let uri: reqwest::Url = uri.as_str().unwrap().parse().unwrap();
        assert!(
            uri.host_str().is_some_and(|host| host.starts_with('[')) && uri.port() == Some(8080),
            "{uri}"
        );
    }
    for host in ["fe80::1%eth0", "[127.0.0.1]", "[2001:db8::1", "2001:db8::1]", "[::1]:80", "1::2::3"] {
        client.json("PUT", A, &instance(host, 80)).await.refused(400, "invalid_argument", "host");
    }
    for id in ["2001:db8::1", "[2001:db8::1]", "2001:DB8:0::1", "%5B2001%3Adb8%3A%3A1%5D"] {
        let path = format!("{A}/app-a%40http%23{id}%238080");
        assert_eq!(client.get(&path).await.expect(200).value()["host"], "2001:db8::1", "{id}");
        assert_eq!(client.put(&format!("{path}/beat")).await.expect(200).value()["renewed"], true);
        assert_eq!(client.text("PUT", &format!("{path}/metadata"), "{}").await.expect(200).value(), true);
    }
    let bracketed = format!("{A}/app-a%40http%23%5B2001%3Adb8%3A%3A1%5D%238080");
    assert_eq!(client.delete(&bracketed).await.expect(200).value(), true);

    let live = TcpListener::bind("[::1]:0").unwrap();
    client.register("live", &instance("::1", live.local_addr().unwrap().port())).await;
    let chosen = client.get(&format!("{NS}/services/live/lb")).await.expect(200).value();
    let uri: reqwest::Url = chosen["uri"].as_str().unwrap().parse().unwrap();
    let addresses: Vec<SocketAddr> = uri.socket_addrs(|| None).unwrap();
    std::net::TcpStream::connect(&*addresses).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn c14_ports_out_of_range_are_refused() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let before = everything(&mut client).await;
    let body = |port: &str| format!(r#"{{"schema":"http","host":"10.0.0.1","port":{port}}}"#);
    for port in [
        "-1",
        "0",
        "65536",
        "2147483648",
        "18446744073709551616",
        "80.5",
        "null",
        "\"\"",
        "\"8x\"",
        "[80]",
        "true",
    ] {
        let answer = put(&mut client, &body(port)).await.expect(400).value();
        assert!(answer["msg"].as_str().unwrap().contains("port"), "{port}: {answer}");
    }
    put(&mut client, r#"{"schema":"http","host":"10.0.0.1"}"#).await.refused(400, "invalid_body", "port");
    assert_eq!(everything(&mut client).await, before);
    for port in ["1", "65535", "\"80\""] {
        put(&mut client, &body(port)).await.expect(200);
    }
    let ports: Vec<_> =
        client.get(A).await.value().as_array().unwrap().iter().map(|one| one["port"].clone()).collect();
    assert_eq!(ports, [json!(1), json!(65535), json!(80)], "a text is stored as a number");
}

#[tokio::test(flavor = "multi_thread")]
async fn c15_weights_are_whole_and_zero_is_never_chosen() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let before = everything(&mut client).await;
    let body = |port: u16, weight: &str| {
        format!(r#"{{"schema":"http","host":"10.0.0.1","port":{port},"weight":{weight}}}"#)
    };
    for weight in ["-1", "1.5", "NaN", "1e308", "2147483648", "null", "\"many\""] {
        let answer = put(&mut client, &body(80, weight)).await.expect(400).value();
        // What is no JSON has no field to name.
        assert!(weight == "NaN" || answer["msg"].as_str().unwrap().contains("weight"), "{weight}: {answer}");
    }
    assert_eq!(everything(&mut client).await, before);

    put(&mut client, &body(80, "\"8\"")).await.expect(200);
    assert_eq!(client.get(A1).await.value()["weight"], 8);
    put(&mut client, &body(81, "0")).await.expect(200);
    let lb = format!("{NS}/services/app-a/lb");
    for _ in 0..10_000 {
        assert_eq!(client.get(&lb).await.expect(200).value()["port"], 80);
    }
    put(&mut client, &body(80, "0")).await.expect(200);
    let mut times = Vec::new();
    for _ in 0..101 {
        let begun = Instant::now();
        client.get(&lb).await.empty();
        times.push(begun.elapsed());
    }
    times.sort();
    assert!(times[50] < Duration::from_millis(10), "{:?}", times[50]);
    assert_eq!(client.get(A).await.ids().len(), 2, "what is not chosen is still listed");
}

#[tokio::test(flavor = "multi_thread")]
async fn c17_bad_metadata_leaves_the_old() {
    let server = Server::start().await;
    let mut client = server.client().await;
    client.register("app-a", &instance("10.0.0.1", 80)).await;
    let path = format!("{A1}/metadata");
    let old = json!({"zone": "z1"});
    for method in ["PUT", "PATCH"] {
        assert_eq!(client.json("PUT", &path, &old).await.expect(200).value(), true);
        for (body, code, field) in [
            (r#"{"":"x"}"#, "invalid_argument", "metadata"),
            (r#"{"_a":"x"}"#, "invalid_argument", "metadata._a"),
            (r#"{"__last_renew_pub_ttl_at":"0"}"#, "invalid_argument", "metadata.__last_renew_pub_ttl_at"),
            (r#"{"a":1}"#, "invalid_argument", "metadata.a"),
            (r#"{"a":true}"#, "invalid_argument", "metadata.a"),
            (r#"{"a":["x"]}"#, "invalid_argument", "metadata.a"),
            (r#"{"a":{"b":"x"}}"#, "invalid_argument", "metadata.a"),
            (r#"{"good":"x","a":1}"#, "invalid_argument", "metadata.a"),
            ("[]", "invalid_body", ""),
            ("null", "invalid_body", ""),
            ("7", "invalid_body", ""),
            ("", "invalid_body", ""),
            ("{", "invalid_body", ""),
        ] {
            client.text(method, &path, body).await.refused(400, code, field);
            assert_eq!(client.get(A1).await.value()["metadata"], old, "{method} {body}");
        }
    }
    client.text("PUT", &path, r#"{"a":null}"#).await.refused(400, "invalid_argument", "metadata.a");
    client.text("PATCH", &path, r#"{"_a":null}"#).await.refused(400, "invalid_argument", "metadata._a");
    assert_eq!(client.get(A1).await.value()["metadata"], old);
    assert_eq!(client.text("PUT", &path, "{}").await.expect(200).value(), true);
    assert_eq!(client.get(A1).await.value()["metadata"], json!({}));
}

#[tokio::test(flavor = "multi_thread")]
async fn c20_ephemeral_and_fixed_and_back() {
    let server = Setup::new().ttl(3).start().await;
    let mut client = server.client().await;
    let fixed = json!({"schema": "http", "host": "10.0.0.1", "port": 80, "isEphemeral": false});
    client.register("app-a", &instance("10.0.0.1", 80)).await;
    assert_eq!(remaining(&client.get(A1).await), Some(TTL));
    client.register("app-a", &fixed).await;
    assert_eq!(
        client.put(&format!("{A1}/beat")).await.expect(200).value(),
        json!({"renewed": true, "ttlAt": -1})
    );
    server.pass(3 * TTL).await;
    let found = client.get(A1).await.expect(200);
    assert_eq!((remaining(&found), &found.value()["ttlAt"]), (None, &json!(-1)));
    assert_eq!(found.value()["isEphemeral"], false);
    assert_eq!(client.get(A).await.ids().len(), 1);
    client.register("app-a", &instance("10.0.0.1", 80)).await;
    assert_eq!(remaining(&client.get(A1).await), Some(TTL));
    server.pass(TTL + Duration::from_millis(1)).await;
    client.get(A1).await.empty();
    assert_eq!(client.get(A).await.value(), json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn c21_through_the_wrong_service_nothing_is_reached() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let mut body = instance("10.0.0.1", 80);
    body["metadata"] = json!({"zone": "z1"});
    client.register("app-a", &body).await;
    let before = everything(&mut client).await;
    let wrong = A1.replace("services/app-a/", "services/app-b/");
    assert_eq!(client.delete(&wrong).await.expect(200).value(), false);
    for method in ["PUT", "PATCH"] {
        let answer = client.text(method, &format!("{wrong}/metadata"), r#"{"zone":"z2"}"#).await;
        assert_eq!(answer.expect(200).value(), false);
    }
    client.put(&format!("{wrong}/beat")).await.refused(404, "not_found", "app-a@http#10.0.0.1#80");
    let batch = json!([{"serviceId": "app-b", "instanceId": "app-a@http#10.0.0.1#80"}]);
    let answer = client.json("POST", &format!("{NS}/beats"), &batch).await.expect(200).value();
    assert_eq!(answer["unknown"], json!(["app-a@http#10.0.0.1#80"]));
    client.get(&wrong).await.empty();
    assert_eq!(everything(&mut client).await, before);
    assert_eq!(
        client.get(&format!("{NS}/services")).await.value(),
        json!(["app-a"]),
        "app-b did not come to be"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn c29_a_registration_is_read_and_renewed_at_once() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let mut reader = server.client().await;
    for port in 1..=500 {
        client.register("app-a", &instance("10.0.0.1", port)).await;
        let id = format!("app-a@http#10.0.0.1#{port}");
        assert!(reader.get(A).await.ids().contains(&id), "{port}");
        let path = format!("{A}/app-a%40http%2310.0.0.1%23{port}/beat");
        assert_eq!(reader.put(&path).await.expect(200).value()["renewed"], true);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c30_the_latest_ttl_counts_at_once() {
    let server = Server::start().await;
    let mut client = server.client().await;
    for seconds in [3_u64, 20, 3] {
        let ttl = Duration::from_secs(seconds);
        let mut body = instance("10.0.0.1", 80);
        body["ttlSeconds"] = seconds.into();
        assert_eq!(remaining(&client.register("app-a", &body).await), Some(ttl));
        assert_eq!(remaining(&client.get(A1).await), Some(ttl));
        for _ in 0..3 {
            server.pass(ttl / 2).await;
            assert_eq!(remaining(&client.get(A1).await), Some(ttl / 2));
            let beat = client.put(&format!("{A1}/beat")).await.expect(200).value();
            assert_eq!(beat["remainingMs"], json!(seconds * 1000));
            assert_eq!(remaining(&client.get(A1).await), Some(ttl));
        }
        if seconds == 3 {
            // A process that stops deregisters; the next one on its address is another registration.
            assert_eq!(client.delete(A1).await.expect(200).value(), true);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c34_the_living_hold_a_service_and_the_dead_do_not() {
    let server = Setup::new().ttl(3).start().await;
    let mut client = server.client().await;
    let service = format!("{NS}/services/app-a");
    client.register("app-a", &instance("10.0.0.1", 80)).await;
    let before = everything(&mut client).await;
    assert_eq!(client.delete(&service).await.expect(200).value(), false);
    assert_eq!(everything(&mut client).await, before);

    // Dead, and nobody has looked since.
    server.clock.advance(TTL + Duration::from_millis(1));
    assert_eq!(client.delete(&service).await.expect(200).value(), true);
    let empty = json!({"namespaces": 1, "services": {"total": 0, "health": 0}, "instances": 0, "configs": 0});
    assert_eq!(everything(&mut client).await, [json!([]), json!([]), empty, json!([])]);

    for _ in 0..3 {
        assert_eq!(client.delete(&format!("{NS}/services/unknown")).await.expect(200).value(), true);
    }
    assert_eq!(client.get(&format!("{NS}/services")).await.value(), json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn c110_the_dead_are_not_counted() {
    let server = Server::start().await;
    let mut client = server.client().await;
    client.put(&format!("{NS}/services/empty")).await.expect(200);
    for round in 0..20 {
        for (service, port, ttl) in
            [("app-a", 1, 60), ("app-a", 2, 60), ("app-a", 3, 3), ("app-b", 4, 60), ("app-b", 5, 3)]
        {
            let mut body = instance("10.0.0.1", port);
            body["ttlSeconds"] = ttl.into();
            client.register(service, &body).await;
        }
        server.pass(TTL + Duration::from_millis(1)).await;
        let stat = client.get(&format!("{NS}/stat")).await.expect(200).value();
        assert_eq!(
            (&stat["instances"], &stat["services"]),
            (&json!(3), &json!({"total": 3, "health": 2})),
            "{round}"
        );
        let stats = client.get(&format!("{NS}/services/stats")).await.expect(200).value();
        let counts = [("app-a", 2), ("app-b", 1), ("empty", 0)];
        assert_eq!(
            stats,
            Value::from(counts.map(|(id, count)| json!({"serviceId": id, "instanceCount": count})).to_vec())
        );
        for (service, count) in counts {
            let list = client.get(&format!("{NS}/services/{service}/instances")).await.expect(200);
            assert_eq!(list.ids().len(), count, "{service} in round {round}");
        }
        let metrics = client.get("/metrics").await.expect(200).text();
        assert!(metrics.lines().any(|line| line == r#"cosky_instances{namespace="{t1}"} 3"#), "{metrics}");
    }
}
