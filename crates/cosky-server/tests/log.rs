//! What is logged. Alone in its process, since a log has no part per test.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::sync::Arc;

use serde_json::json;
use support::{PASSWORD, Setup};

/// What was logged.
#[derive(Clone, Default)]
struct Log(Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn each_request_is_one_line_without_secrets() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();

    let server = Setup::new().auth().start().await;
    let mut root = server.root().await;
    let secret = root.json("POST", "/v1/tokens", &json!({"name": "ci"})).await.expect(200).value();
    let mut body = support::instance("10.0.0.1", 80);
    body["metadata"] = json!({"password": "metadata-value"});
    root.register("order", &body).await;
    root.put(&format!("{}/services/order/instances/order%40http%2310.0.0.1%2380/beat", support::NS))
        .await
        .expect(200);
    root.get("/v1/namespaces?token=query-value").await.expect(200);

    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    for hidden in [
        PASSWORD,
        root.token.as_deref().unwrap(),
        secret["token"].as_str().unwrap(),
        "metadata-value",
        "query-value",
    ] {
        assert!(!text.contains(hidden), "{hidden} in\n{text}");
    }
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |message: &str| {
        let found: Vec<_> = lines.iter().filter(|line| line["fields"]["message"] == message).collect();
        assert_eq!(found.len(), 1, "{message} in\n{text}");
        found[0]
    };
    let register = of("PUT /v1/namespaces/{namespace}/services/{serviceId}/instances");
    assert_eq!(register["level"], "DEBUG");
    let fields = &register["fields"];
    assert_eq!((&fields["namespace"], &fields["service.id"]), (&json!("{t1}"), &json!("order")));
    assert_eq!(fields["status"], 200);
    assert!(fields["duration_ms"].as_f64().unwrap() > 0.0);
    assert_eq!(fields["request_id"].as_str().unwrap().len(), 36);
    let beat = of("PUT /v1/namespaces/{namespace}/services/{serviceId}/instances/{instanceId}/beat");
    assert_eq!(beat["level"], "TRACE");
}
