//! Field cases about names, ids and addresses in paths and bodies. What they say of configs, users and roles waits for
//! those.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::{
    io::Write,
    sync::{Arc, LazyLock, Mutex},
};

use serde_json::{Value, json};
use support::{NS, Server, client::Client, instance};

/// All that the server tells of the namespaces.
async fn everything(client: &mut Client) -> Vec<Value> {
    let mut all = vec![client.get("/v1/namespaces").await.expect(200).value()];
    for path in [format!("{NS}/services"), format!("{NS}/services/stats"), format!("{NS}/stat")] {
        all.push(client.get(&path).await.expect(200).value());
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn c01_a_cut_instance_id_removes_nothing() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let instances = format!("{NS}/services/app-a/instances");
    let whole = format!("{instances}/app-a@http%2310.0.0.1%2380");
    client.register("app-a", &instance("10.0.0.1", 80)).await;
    assert_eq!(client.delete(&whole).await.expect(200).value(), true);
    client.get(&whole).await.empty();
    assert_eq!(client.get(&instances).await.value(), json!([]));
    client.register("app-a", &instance("10.0.0.1", 80)).await;
    assert_eq!(client.delete(&format!("{instances}/app-a@http")).await.expect(200).value(), false);
    assert_eq!(client.get(&whole).await.expect(200).value()["instanceId"], "app-a@http#10.0.0.1#80");
    assert_eq!(client.get(&instances).await.ids(), ["app-a@http#10.0.0.1#80"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn c02_ids_with_a_slash_live_and_end_like_others() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let services = format!("{NS}/services");
    for (sent, decoded) in
        [("team%2Fapp-a", "team/app-a"), ("%2Fapp-a", "/app-a"), ("http%3A%2F%2Fx", "http://x")]
    {
        let service = format!("{services}/{sent}");
        assert_eq!(client.put(&service).await.expect(200).value(), true);
        assert_eq!(client.get(&services).await.value(), json!([decoded]));
        assert_eq!(client.get(&format!("{service}/instances")).await.expect(200).value(), json!([]));
        client.get(&format!("{service}/lb")).await.empty();

        client.register(sent, &instance("10.0.0.1", 80)).await;
        let id = format!("{decoded}@http#10.0.0.1#80");
        let one = format!("{service}/instances/{sent}%40http%2310.0.0.1%2380");
        assert_eq!(client.get(&format!("{service}/instances")).await.ids(), std::slice::from_ref(&id));
        assert_eq!(client.get(&one).await.expect(200).value()["instanceId"], id);
        assert_eq!(client.get(&format!("{service}/lb")).await.expect(200).value()["serviceId"], decoded);
        assert_eq!(client.put(&format!("{one}/beat")).await.expect(200).value()["renewed"], true);
        let beats = json!([{"serviceId": decoded, "instanceId": id}]);
        assert_eq!(
            client.json("POST", &format!("{NS}/beats"), &beats).await.expect(200).value()["renewed"],
            1
        );
        assert_eq!(
            client.text("PUT", &format!("{one}/metadata"), r#"{"a":"1"}"#).await.expect(200).value(),
            true
        );
        assert_eq!(
            client.text("PATCH", &format!("{one}/metadata"), r#"{"b":"2"}"#).await.expect(200).value(),
            true
        );
        assert_eq!(client.get(&one).await.value()["metadata"], json!({"a": "1", "b": "2"}));
        let stats = client.get(&format!("{services}/stats")).await.value();
        assert_eq!(stats, json!([{"serviceId": decoded, "instanceCount": 1}]));
        let mut events = server.client().await.watch(&format!("{NS}/watch?service={sent}"), &[]).await;
        assert_eq!(events.expect("snapshot").await.data["services"][decoded][0]["instanceId"], id);
        assert_eq!(client.delete(&one).await.expect(200).value(), true);
        assert_eq!(events.expect("instance").await.data["op"], "deregister");
        client.get(&one).await.empty();

        assert_eq!(client.delete(&service).await.expect(200).value(), true);
        assert_eq!(client.get(&services).await.value(), json!([]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c04_an_at_sign_in_a_service_id_is_refused_everywhere() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let before = everything(&mut client).await;
    let service = format!("{NS}/services/DEFAULT_GROUP%40%40app-a");
    let instances = format!("{service}/instances");
    let one = format!("{instances}/DEFAULT_GROUP%40%40app-a%40http%2310.0.0.1%2380");
    client.put(&service).await.refused(400, "invalid_argument", "serviceId");
    client.json("PUT", &instances, &instance("10.0.0.1", 80)).await.refused(
        400,
        "invalid_argument",
        "serviceId",
    );
    for path in [&instances, &one, &format!("{service}/lb")] {
        client.get(path).await.refused(400, "invalid_argument", "serviceId");
    }
    client.delete(&one).await.refused(400, "invalid_argument", "serviceId");
    client.delete(&service).await.refused(400, "invalid_argument", "serviceId");
    assert_eq!(everything(&mut client).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn c09_blank_padded_and_invisible_names_are_refused() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let before = everything(&mut client).await;
    for id in ["%20", "%09", "%E3%80%80", "%20app-a", "app-a%20", "%E2%80%8Bapp-a"] {
        for (path, field) in [
            (format!("/v1/namespaces/{id}"), "namespace"),
            (format!("/v1/namespaces/current/{id}"), "namespace"),
            (format!("/v1/namespaces/{id}/services/app-a"), "namespace"),
            (format!("{NS}/services/{id}"), "serviceId"),
        ] {
            client.put(&path).await.refused(400, "invalid_argument", field);
        }
        let instances = format!("{NS}/services/{id}/instances");
        client.json("PUT", &instances, &instance("10.0.0.1", 80)).await.refused(
            400,
            "invalid_argument",
            "serviceId",
        );
    }
    assert_eq!(everything(&mut client).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn c10_long_names_work_up_to_their_limit() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let body = |schema: &str, host: &str, key: &str| json!({"schema": schema, "host": host, "port": 80, "metadata": {key: "v"}});
    let long = "a".repeat(255);
    client.put(&format!("{NS}/services/{long}")).await.expect(200);
    client.put(&format!("/v1/namespaces/{long}")).await.expect(200);
    client.register("app-a", &body(&long, &long, &long)).await;
    let before = everything(&mut client).await;
    let list = format!("{NS}/services/app-a/instances");
    let listed = client.get(&list).await.value();
    for length in [2_049, 9_000, 70_000] {
        let long = "a".repeat(length);
        for (body, field) in [
            (body(&long, "h", "k"), "schema"),
            (body("http", &long, "k"), "host"),
            (body("http", "h", &long), "metadata"),
        ] {
            client.json("PUT", &list, &body).await.refused(400, "invalid_argument", field);
        }
        let metadata = format!("{list}/x/metadata");
        client.json("PUT", &metadata, &json!({long.as_str(): "v"})).await.refused(
            400,
            "invalid_argument",
            "metadata",
        );
        for path in
            [format!("/v1/namespaces/{long}"), format!("{NS}/services/{long}"), format!("{list}/{long}")]
        {
            let method = if path.starts_with(&list) { "GET" } else { "PUT" };
            let mut other = server.client().await;
            let answer = other.send(method, &path, &[], b"").await;
            assert!([400, 414, 431].contains(&answer.status), "{length}: {answer:?}");
            if answer.header("connection") != Some("close") {
                assert_eq!(
                    other.get(&list).await.expect(200).value(),
                    listed,
                    "the connection is still good"
                );
            }
        }
        assert_eq!(everything(&mut client).await, before);
        assert_eq!(client.get(&list).await.expect(200).value(), listed);
    }
}

/// What this process has logged, line by line.
static LOG: LazyLock<Arc<Mutex<Vec<u8>>>> = LazyLock::new(|| {
    let log = Arc::<Mutex<Vec<u8>>>::default();
    let writer = Arc::clone(&log);
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .without_time()
        .with_writer(move || Appended(Arc::clone(&writer)))
        .init();
    log
});

struct Appended(Arc<Mutex<Vec<u8>>>);

impl Write for Appended {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c11_broken_text_is_refused_and_cannot_forge_a_log_line() {
    let log = Arc::clone(&LOG);
    let server = Server::start().await;
    let mut client = server.client().await;
    let before = everything(&mut client).await;
    for id in ["%ff", "%C0%AF", "%00a", "a%0d%0aINFO+fake", "a%E2%80%A8b"] {
        for (path, field) in
            [(format!("/v1/namespaces/{id}"), "namespace"), (format!("{NS}/services/{id}"), "serviceId")]
        {
            let marked = [("CoSec-Request-Id", "c11-marked")];
            client.send("PUT", &path, &marked, b"").await.refused(400, "invalid_argument", field);
        }
        let instance = format!("{NS}/services/app-a/instances/{id}");
        let answer = client.get(&instance).await;
        assert!([200, 400].contains(&answer.status), "{answer:?}");
        assert!(answer.status == 400 || answer.body.is_empty());
    }
    for query in ["watch?service=%ff", "watch?consumer=%C0%AF", "services/app-a/lb?consumer=%ff"] {
        client.get(&format!("{NS}/{query}")).await.refused(400, "invalid_argument", "query");
    }
    client.get(&format!("{NS}/watch?service=%00a")).await.refused(400, "invalid_argument", "serviceId");
    assert_eq!(everything(&mut client).await, before);
    assert_eq!(client.get(&format!("{NS}/stat/topology")).await.value(), json!({}));

    // The two spellings of an accent are two names.
    for (id, decoded) in [("%C3%A9", "\u{e9}"), ("e%CC%81", "e\u{301}")] {
        assert_eq!(client.put(&format!("{NS}/services/{id}")).await.expect(200).value(), true);
        let listed = client.get(&format!("{NS}/services")).await.value();
        assert!(listed.as_array().unwrap().contains(&json!(decoded)), "{listed}");
    }
    assert_eq!(client.get(&format!("{NS}/services")).await.value().as_array().unwrap().len(), 2);

    let log = String::from_utf8(log.lock().unwrap().clone()).unwrap();
    assert!(!log.lines().any(|line| line.trim_start().starts_with("INFO fake")), "{log}");
    let marked = log.lines().filter(|line| line.contains("c11-marked")).count();
    assert_eq!(marked, 10, "one line a request: {log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c99_hosts_that_are_no_hosts_are_refused() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let before = everything(&mut client).await;
    let list = format!("{NS}/services/app-a/instances");
    for host in [
        "127.0.0.1:1@10.0.0.1",
        "x/../../y?",
        "user:secret@10.0.0.1",
        "10.0.0.1/admin",
        "10.0.0.1?x=1",
        "10.0.0.1#80",
        "10.0.0.1\\x",
        "10.0.0.1\r\nX: 1",
        "10.0.0.1 ",
        "%31%30.0.0.1",
        "[127.0.0.1]",
        "[::1]:80",
        "300.0.0.1",
        "10.1",
        "a..b",
        "caf\u{e9}",
        "",
    ] {
        client.json("PUT", &list, &instance(host, 80)).await.refused(400, "invalid_argument", "host");
    }
    assert_eq!(client.get(&list).await.value(), json!([]));
    assert_eq!(everything(&mut client).await, before);
}
