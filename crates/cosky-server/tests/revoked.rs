//! What was let in is not let in for ever: streams and long polls whose credential was revoked meanwhile. Without sockets,
//! so that time can be made to pass.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{sync::Arc, time::Duration};

use axum::{Router, body::Body};
use cosky_core::{Accounts, Store};
use cosky_embedded::{Embedded, Options};
use cosky_server::Config;
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};
use tower::ServiceExt as _;

const PASSWORD: &str = "eight888";
const NS: &str = "/v1/namespaces/%7Bt1%7D";
/// Between two comments of a stream.
const COMMENT_EVERY: Duration = Duration::from_secs(15);

struct Server {
    router: Router,
    engine: Arc<Embedded>,
    _dir: tempfile::TempDir,
}

/// An open stream.
struct Stream(Body);

impl Server {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let engine = Arc::new(Embedded::open(Options::new(dir.path())).await.unwrap());
        let config = Config { root_password: Some(PASSWORD.into()), ..Config::default() };
        let (router, _) = cosky_server::app(config, engine.clone() as Arc<dyn Store>).await.unwrap();
        Self { router, engine, _dir: dir }
    }

    async fn ask(&self, method: &str, path: &str, token: &str, body: &Value) -> (StatusCode, Body) {
        let request = Request::builder().method(method).uri(path).header("Host", "a");
        let request = request.header("Content-Type", "application/json");
        let request = request.header("Authorization", token).body(Body::from(body.to_string())).unwrap();
        let answer = self.router.clone().oneshot(request).await.unwrap();
        (answer.status(), answer.into_body())
    }

    async fn json(&self, method: &str, path: &str, token: &str, body: &Value) -> Value {
        let (status, body) = self.ask(method, path, token, body).await;
        assert_eq!(status, 200);
        serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap()
    }

    /// An access token of root's.
    async fn login(&self) -> String {
        let path = "/v1/authenticate/cosky/login";
        let pair = self.json("POST", path, "", &json!({ "password": PASSWORD })).await;
        pair["accessToken"].as_str().unwrap().to_owned()
    }

    /// A new API token's id and secret.
    async fn api_token(&self, root: &str) -> [String; 2] {
        let made = self.json("POST", "/v1/tokens", root, &json!({"name": "ci"})).await;
        ["id", "token"].map(|field| made[field].as_str().unwrap().to_owned())
    }

    async fn watch(&self, token: &str) -> Stream {
        let (status, body) = self.ask("GET", &format!("{NS}/watch"), token, &Value::Null).await;
        assert_eq!(status, 200);
        let mut stream = Stream(body);
        assert!(stream.next().await.unwrap().contains("event: snapshot"));
        stream
    }
}

impl Stream {
    async fn next(&mut self) -> Option<String> {
        let data = self.0.frame().await?.unwrap().into_data().unwrap();
        Some(String::from_utf8(data.to_vec()).unwrap())
    }

    /// Waits for the end, and says how long it took.
    async fn ended(mut self) -> Duration {
        let begun = Instant::now();
        while let Some(comment) = self.next().await {
            assert_eq!(comment, ":\n\n");
            assert!(begun.elapsed() < 4 * COMMENT_EVERY, "the stream goes on");
        }
        begun.elapsed()
    }

    /// Whether it goes on for a minute.
    async fn goes_on(&mut self) -> bool {
        let comments = async { while self.next().await.is_some() {} };
        timeout(4 * COMMENT_EVERY, comments).await.is_err()
    }
}

#[tokio::test]
async fn a_revoked_api_token_ends_its_streams_and_no_others() {
    let server = Server::start().await;
    let root = server.login().await;
    let [[id, secret], [_, other]] = [server.api_token(&root).await, server.api_token(&root).await];
    let revoked = server.watch(&secret).await;
    let mut others = [server.watch(&other).await, server.watch(&root).await];
    assert_eq!(server.json("DELETE", &format!("/v1/tokens/{id}"), &root, &Value::Null).await, true);
    tokio::time::pause();
    let took = revoked.ended().await;
    assert!(took <= COMMENT_EVERY, "{took:?}");
    for other in &mut others {
        assert!(other.goes_on().await);
    }
}

#[tokio::test]
async fn an_api_token_that_another_server_revoked_ends_its_streams() {
    let server = Server::start().await;
    let root = server.login().await;
    let [id, secret] = server.api_token(&root).await;
    let revoked = server.watch(&secret).await;
    assert!(server.engine.remove_api_token(&id).await.unwrap());
    tokio::time::pause();
    let took = revoked.ended().await;
    assert!(took <= COMMENT_EVERY + Duration::from_secs(5), "{took:?}");
}

#[tokio::test]
async fn a_new_password_ends_the_streams_of_earlier_logins_and_of_no_api_token() {
    let server = Server::start().await;
    let root = server.login().await;
    let [_, secret] = server.api_token(&root).await;
    let (earlier, mut machine) = (server.watch(&root).await, server.watch(&secret).await);
    cosky_server::reset_root(&(server.engine.clone() as Arc<dyn Store>)).await.unwrap();
    tokio::time::pause();
    let took = earlier.ended().await;
    assert!(took <= COMMENT_EVERY, "{took:?}");
    assert!(machine.goes_on().await);
}

#[tokio::test]
async fn a_long_poll_is_not_answered_to_a_revoked_api_token() {
    let server = Server::start().await;
    let root = server.login().await;
    let [id, secret] = server.api_token(&root).await;
    let path = format!("{NS}/services/order/instances");
    let request = Request::get(&path).header("Host", "a");
    let request = request.header("Authorization", &secret).body(Body::empty()).unwrap();
    let answer = server.router.clone().oneshot(request).await.unwrap();
    let index = answer.headers()["x-cosky-index"].to_str().unwrap();
    let path = format!("{path}?wait=60s&index={index}");
    let mut poll = std::pin::pin!(server.ask("GET", &path, &secret, &Value::Null));
    assert!(timeout(Duration::from_millis(50), &mut poll).await.is_err(), "it waits for news");
    server.json("DELETE", &format!("/v1/tokens/{id}"), &root, &Value::Null).await;
    let instance = json!({"schema": "http", "host": "10.0.0.1", "port": 80});
    server.json("PUT", &format!("{NS}/services/order/instances"), &root, &instance).await;
    assert_eq!(poll.await.0, 401, "the news is not for it");
}
