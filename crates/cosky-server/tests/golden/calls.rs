//! Makes the recorded calls. Method, path and caller stand in the recording; the bodies stand here.

use std::sync::Arc;

use cosky_embedded::{Embedded, Options};
use cosky_server::Config;
use reqwest::{Client, Method};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};

use super::answer::{Answer, Recorded};

const PASSWORD: &str = "golden-password-1";

/// A server on an empty store, and what a client of it remembers.
pub(crate) struct Session {
    base: String,
    client: Client,
    /// The newest pair of tokens, `null` before the login.
    pair: Value,
    stop: oneshot::Sender<()>,
    server: JoinHandle<()>,
    _data: TempDir,
}

/// What a call sends.
enum Body {
    Nothing,
    Json(Value),
    /// Media type and text, sent as they are.
    Raw(&'static str, &'static str),
}

impl Session {
    pub(crate) async fn start() -> Self {
        let data = tempfile::tempdir().unwrap();
        let store = Arc::new(Embedded::open(Options::new(data.path())).await.unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let config = Config { root_password: Some(PASSWORD.into()), ..Config::default() };
        let (stop, stopped) = oneshot::channel();
        let server = tokio::spawn(async move {
            let shutdown = async move { drop(stopped.await) };
            cosky_server::serve(config, store, listener, shutdown).await.unwrap();
        });
        Self { base, client: Client::new(), pair: Value::Null, stop, server, _data: data }
    }

    pub(crate) async fn stop(self) {
        self.stop.send(()).unwrap();
        self.server.await.unwrap();
    }

    /// Makes the recorded call here.
    pub(crate) async fn make(&mut self, line: &Recorded) -> Answer {
        let method: Method = line.method.parse().unwrap();
        let mut request = self.client.request(method, format!("{}{}", self.base, line.path));
        request = match self.body(line) {
            Body::Nothing => request,
            Body::Json(body) => request.json(&body),
            Body::Raw(media_type, text) => request.header("content-type", media_type).body(text),
        };
        request = match (line.name().as_str(), line.who.as_deref()) {
            ("access/namespaces, garbage token", _) => request.bearer_auth("x.y.z"),
            ("access/namespaces, Basic", _) => request.header("authorization", "Basic YTpi"),
            (_, Some("root")) => request.bearer_auth(self.pair["accessToken"].as_str().unwrap()),
            (_, None) => request,
            (name, who) => panic!("{name} is called by {who:?}"),
        };
        let response = request.send().await.unwrap();
        if matches!(line.name().as_str(), "login/root" | "login/refresh") && response.status() == 200 {
            return self.keep_pair(response).await;
        }
        Answer::read(response).await
    }

    /// Reads an answer that holds a pair of tokens.
    async fn keep_pair(&mut self, response: reqwest::Response) -> Answer {
        let (head, bytes) = {
            let head = http::Response::builder()
                .status(response.status())
                .header("content-type", response.headers()["content-type"].clone());
            (head, response.bytes().await.unwrap())
        };
        self.pair = serde_json::from_slice(&bytes).unwrap();
        Answer::read(head.body(bytes).unwrap().into()).await
    }

    fn body(&self, line: &Recorded) -> Body {
        match line.part.as_str() {
            "login" => self.login_body(&line.call),
            "services" => service_body(&line.call),
            "services-input" => input_body(&line.call),
            _ => Body::Nothing,
        }
    }

    fn login_body(&self, call: &str) -> Body {
        match call {
            "root, wrong password" => Body::Json(json!({"password": "not-it"})),
            "unknown user" => Body::Json(json!({"password": "x"})),
            "no body" => Body::Raw("application/json", ""),
            "no password field" => Body::Json(json!({})),
            "broken JSON" => Body::Raw("application/json", "{"),
            "root" => Body::Json(json!({"password": PASSWORD})),
            "refresh" | "refresh with a foreign path user" => Body::Json(self.pair.clone()),
            "refresh with garbage" => Body::Json(json!({"accessToken": "a", "refreshToken": "b"})),
            other => panic!("no body is known for login/{other}"),
        }
    }
}

fn service_body(call: &str) -> Body {
    match call {
        "register" => Body::Json(json!({
            "schema": "http", "host": "10.0.0.1", "port": 8080, "weight": 2, "metadata": {"zone": "a"}
        })),
        "register permanent" => Body::Json(json!({
            "schema": "https", "host": "10.0.0.2", "port": 8443, "isEphemeral": false
        })),
        "set metadata" | "metadata of unknown" => Body::Json(json!({"k": "v"})),
        "metadata _x" => Body::Json(json!({"_x": "v"})),
        "metadata null value" => Body::Json(json!({"x": null})),
        "metadata list" => Body::Json(json!(["x"])),
        "metadata empty" => Body::Json(json!({})),
        _ => Body::Nothing,
    }
}

fn input_body(call: &str) -> Body {
    Body::Json(match call {
        "no host" => json!({"schema": "http", "port": 80}),
        "no port" => json!({"schema": "http", "host": "h"}),
        "no schema" => json!({"host": "h", "port": 80}),
        "text port" => json!({"schema": "http", "host": "h", "port": "x"}),
        "numeric text port" => json!({"schema": "http", "host": "10.0.0.9", "port": "81"}),
        "port 70000" => json!({"schema": "http", "host": "h", "port": 70000}),
        "negative weight" => json!({"schema": "http", "host": "h", "port": 82, "weight": -1}),
        "metadata key _x" => json!({"schema": "http", "host": "h", "port": 83, "metadata": {"_x": "1"}}),
        "metadata number" => json!({"schema": "http", "host": "h", "port": 84, "metadata": {"n": 1}}),
        "unknown field" => json!({"schema": "http", "host": "10.0.0.8", "port": 85, "foo": 1}),
        "ephemeral under its other name" => {
            json!({"schema": "http", "host": "10.0.0.7", "port": 86, "ephemeral": false})
        }
        "null metadata" => json!({"schema": "http", "host": "10.0.0.6", "port": 87, "metadata": null}),
        "empty host" => json!({"schema": "http", "host": "", "port": 88}),
        "broken JSON" => return Body::Raw("application/json", "{"),
        "no content type" => {
            return Body::Raw("text/plain", r#"{"schema":"http","host":"10.0.0.5","port":89}"#);
        }
        "what came of it" => return Body::Nothing,
        other => panic!("no body is known for services-input/{other}"),
    })
}
