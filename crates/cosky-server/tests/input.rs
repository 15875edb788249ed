//! What is refused, how, and that nothing was written then.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use serde_json::{Value, json};
use support::{
    NS, Server, Setup,
    client::{Answer, Client},
    instance,
};

const ORDER: &str = "/v1/namespaces/%7Bt1%7D/services/order/instances/order%40http%2310.0.0.1%238080";

/// All that the server tells of the namespace.
async fn everything(client: &mut Client) -> Vec<Value> {
    let mut all = Vec::new();
    for path in
        ["/v1/namespaces", &format!("{NS}/services"), &format!("{NS}/stat"), &format!("{NS}/stat/topology")]
    {
        all.push(client.get(path).await.expect(200).value());
    }
    let services: Vec<String> = serde_json::from_value(all[1].clone()).unwrap();
    for service in services {
        all.push(client.get(&format!("{NS}/services/{service}/instances")).await.expect(200).value());
    }
    all
}

async fn register(client: &mut Client, body: &str) -> Answer {
    client.text("PUT", &format!("{NS}/services/order/instances"), body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_registration_names_its_field_and_writes_nothing() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let before = everything(&mut client).await;
    for (body, code, field) in [
        (r#"{"host":"10.0.0.1","port":80}"#, "invalid_body", "schema"),
        (r#"{"schema":"http","port":80}"#, "invalid_body", "host"),
        (r#"{"schema":"http","host":"10.0.0.1"}"#, "invalid_body", "port"),
        (r#"{"schema":"http","host":"10.0.0.1","port":"http"}"#, "invalid_body", "port"),
        (r#"{"schema":"http","host":"10.0.0.1","port":70000}"#, "invalid_argument", "port"),
        (r#"{"schema":"http","host":"10.0.0.1","port":80,"weight":-1}"#, "invalid_argument", "weight"),
        (r#"{"schema":"http","host":"10.0.0.1","port":80,"weight":1.5}"#, "invalid_body", "weight"),
        (r#"{"schema":"http","host":"","port":80}"#, "invalid_argument", "host"),
        (r#"{"schema":"http","host":"a b","port":80}"#, "invalid_argument", "host"),
        (r#"{"schema":"","host":"10.0.0.1","port":80}"#, "invalid_argument", "schema"),
        (r#"{"schema":"ht tp","host":"10.0.0.1","port":80}"#, "invalid_argument", "schema"),
        (
            r#"{"schema":"http","host":"10.0.0.1","port":80,"isEphemeral":"yes"}"#,
            "invalid_body",
            "isEphemeral",
        ),
        (r#"{"schema":"http","host":"10.0.0.1","port":80,"metadata":null}"#, "invalid_body", "metadata"),
        (
            r#"{"schema":"http","host":"10.0.0.1","port":80,"metadata":{"_x":"1"}}"#,
            "invalid_argument",
            "metadata._x",
        ),
        (
            r#"{"schema":"http","host":"10.0.0.1","port":80,"metadata":{"a":null}}"#,
            "invalid_body",
            "metadata.a",
        ),
        (r#"{"schema":"http","host":"10.0.0.1","port":80,"ttlSeconds":2}"#, "invalid_argument", "ttlSeconds"),
        (
            r#"{"schema":"http","host":"10.0.0.1","port":80,"ttlSeconds":86401}"#,
            "invalid_argument",
            "ttlSeconds",
        ),
        (r#"{"schema":"http","host":"10.0.0.1","port":80,"ttlSeconds":"x"}"#, "invalid_body", "ttlSeconds"),
        (r#"{"schema":"http","host":"10.0.0.1","port":80,"owner":"a b"}"#, "invalid_argument", "owner"),
        (r#"{"schema":"http","host":"10.0.0.1","port":80,"owner":7}"#, "invalid_body", "owner"),
        ("{", "invalid_body", ""),
        ("", "invalid_body", ""),
        ("[]", "invalid_body", ""),
        ("\"x\"", "invalid_body", ""),
        ("{\"schema\":\"\u{0}\"}", "invalid_body", ""),
    ] {
        register(&mut client, body).await.refused(400, code, field);
    }
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    register(&mut client, &deep).await.refused(400, "invalid_body", "");
    let body = instance("10.0.0.1", 80).to_string();
    let path = format!("{NS}/services/order/instances");
    let plain = client.send("PUT", &path, &[("Content-Type", "text/plain")], body.as_bytes()).await;
    plain.refused(415, "unsupported_media_type", "application/json");
    client.send("PUT", &path, &[], body.as_bytes()).await.refused(415, "unsupported_media_type", "");
    assert_eq!(everything(&mut client).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn values_above_their_limit_are_too_large() {
    let server = Server::start().await;
    let mut client = server.client().await;
    client.register("order", &instance("10.0.0.1", 8080)).await;
    let before = everything(&mut client).await;
    let body = |metadata: Value| {
        json!({"schema": "http", "host": "h", "port": 80, "metadata": metadata}).to_string()
    };
    let long = json!({"k": "x".repeat(4097)});
    let many: Value = (0..257).map(|i| (i.to_string(), json!(""))).collect::<serde_json::Map<_, _>>().into();
    register(&mut client, &body(long.clone())).await.refused(413, "too_large", "metadata.k");
    register(&mut client, &body(many.clone())).await.refused(413, "too_large", "metadata");
    for method in ["PUT", "PATCH"] {
        let path = format!("{ORDER}/metadata");
        client.json(method, &path, &long).await.refused(413, "too_large", "metadata.k");
        client.json(method, &path, &many).await.refused(413, "too_large", "metadata");
    }
    let beat = json!({"serviceId": "order", "instanceId": "order@http#10.0.0.1#8080"});
    let batch = |beats: usize| Value::from(vec![beat.clone(); beats]);
    let path = format!("{NS}/beats");
    assert_eq!(client.json("POST", &path, &batch(1000)).await.expect(200).value()["renewed"], 1000);
    client.json("POST", &path, &batch(1001)).await.refused(413, "too_large", "beats");
    assert_eq!(everything(&mut client).await, before);
    let mut client = server.client().await;
    let huge = body(json!({"k": "x".repeat(1 << 20)}));
    register(&mut client, &huge).await.refused(413, "too_large", "");
    let mut client = server.client().await;
    client.text("POST", &path, &format!("[{}]", " ".repeat(1 << 20))).await.refused(413, "too_large", "");
    assert_eq!(everything(&mut server.client().await).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_batches_renew_nothing() {
    let server = Setup::new().ttl(30).start().await;
    let mut client = server.client().await;
    client.register("order", &instance("10.0.0.1", 8080)).await;
    server.pass(std::time::Duration::from_secs(20)).await;
    let path = format!("{NS}/beats");
    for body in [
        "",
        "{}",
        "[1]",
        r#"[{"serviceId":"order"}]"#,
        r#"[{"serviceId":"order","instanceId":7}]"#,
        r#"[{"serviceId":"order","instanceId":"order@http#10.0.0.1#8080"}"#,
        r#"[{"serviceId":"order","instanceId":"order@http#10.0.0.1#8080"},null]"#,
    ] {
        client.text("POST", &path, body).await.refused(400, "invalid_body", "");
    }
    let good = r#"[{"serviceId":"order","instanceId":"order@http#10.0.0.1#8080"}]"#;
    client.send("POST", &path, &[], good.as_bytes()).await.refused(415, "unsupported_media_type", "");
    client.text("POST", "/v1/namespaces/a:b/beats", good).await.refused(400, "invalid_argument", "namespace");
    assert_eq!(client.get(ORDER).await.header("x-cosky-ttl-ms"), Some("10000"));
    let charset = [("Content-Type", "Application/JSON; charset=utf-8")];
    client.send("POST", &path, &charset, good.as_bytes()).await.expect(200);
    assert_eq!(client.get(ORDER).await.header("x-cosky-ttl-ms"), Some("30000"));
}

#[tokio::test(flavor = "multi_thread")]
async fn parameters_that_make_no_sense_are_refused() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let list = format!("{NS}/services/order/instances");
    let index = client.get(&list).await.header("x-cosky-index").unwrap().to_owned();
    for wait in ["soon", "-1s", "1m", "1.5s", ""] {
        client.get(&format!("{list}?wait={wait}&index={index}")).await.refused(
            400,
            "invalid_argument",
            "wait",
        );
    }
    for index in ["7", "x:1", ""] {
        client.get(&format!("{list}?wait=1s&index={index}")).await.refused(400, "invalid_argument", "index");
        client.get(&format!("{NS}/watch?index={index}")).await.refused(400, "invalid_argument", "index");
    }
    client.get(&format!("{list}?wait=1s&wait=2s")).await.refused(400, "invalid_argument", "wait");
    client.get(&format!("{NS}/watch?service=a%40b")).await.refused(400, "invalid_argument", "serviceId");
    client.get(&format!("{NS}/watch?service=")).await.refused(400, "invalid_argument", "serviceId");
    client.get(&format!("{NS}/watch?config=app.yaml")).await.refused(400, "invalid_argument", "config");
    client.get("/v1/namespaces/a:b/watch").await.refused(400, "invalid_argument", "namespace");
}
