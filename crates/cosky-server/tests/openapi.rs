//! The description of the API, as a change of it shows in a review. `INSTA_UPDATE=always` takes a wanted change over.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;

use axum::body::Body;
use cosky_embedded::{Embedded, Options};
use cosky_server::Config;
use http::Request;
use http_body_util::BodyExt as _;
use serde_json::Value;
use tower::ServiceExt as _;

async fn document() -> Value {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(Options::new(dir.path())).await.unwrap();
    let config = Config { auth: false, ..Config::default() };
    let (router, _) = cosky_server::app(config, Arc::new(store)).await.unwrap();
    let request = Request::get("/v3/api-docs").header("Host", "localhost").body(Body::empty()).unwrap();
    let answer = router.oneshot(request).await.unwrap();
    assert_eq!(answer.headers()["content-type"], "application/json");
    serde_json::from_slice(&answer.into_body().collect().await.unwrap().to_bytes()).unwrap()
}

fn operations(document: &Value) -> impl Iterator<Item = (String, &Value)> {
    document["paths"].as_object().unwrap().iter().flat_map(|(path, item)| {
        item.as_object()
            .unwrap()
            .iter()
            .map(move |(method, operation)| (format!("{method} {path}"), operation))
    })
}

#[tokio::test]
async fn the_document_is_as_it_was_reviewed() {
    let mut document = document().await;
    document["info"]["version"] = "[version]".into();
    insta::assert_json_snapshot!(document);
}

#[tokio::test]
async fn every_route_is_described_with_its_refusals() {
    let document = document().await;
    assert_eq!(document["openapi"], "3.1.0");
    let tags: Vec<_> = document["tags"].as_array().unwrap().iter().map(|tag| &tag["name"]).collect();
    let mut ids = std::collections::BTreeSet::new();
    for (name, operation) in operations(&document) {
        let text = |field: &str| operation[field].as_str().is_some_and(|text| !text.is_empty());
        assert!(text("summary") && text("operationId"), "{name}: {operation}");
        assert!(ids.insert(operation["operationId"].as_str().unwrap()), "{name}: the operationId is taken");
        assert!(tags.contains(&&operation["tags"][0]), "{name}: {}", operation["tags"]);
        let answers = operation["responses"].as_object().unwrap();
        assert!(answers.contains_key("200") && answers.contains_key("503"), "{name}");
        let closed = operation.get("security").is_none();
        assert_eq!(closed, answers.contains_key("401"), "{name}");
        assert_eq!(closed, answers.contains_key("403"), "{name}");
        for parameter in operation.get("parameters").and_then(Value::as_array).into_iter().flatten() {
            assert!(parameter["description"].is_string(), "{name}: {parameter}");
        }
    }
}

/// A reference to what is not there breaks every generator.
#[tokio::test]
async fn every_reference_leads_somewhere() {
    fn walk(node: &Value, document: &Value) {
        match node {
            Value::Object(map) => {
                if let Some(Value::String(reference)) = map.get("$ref") {
                    let pointer = reference.strip_prefix('#').expect("within the document");
                    assert!(document.pointer(pointer).is_some(), "{reference}");
                }
                map.values().for_each(|value| walk(value, document));
            }
            Value::Array(list) => list.iter().for_each(|value| walk(value, document)),
            _ => {}
        }
    }
    let document = document().await;
    walk(&document, &document);
}
