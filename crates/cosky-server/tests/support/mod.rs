//! A server with the embedded engine on a real socket, and a client that sends exactly the bytes it is told.
#![expect(dead_code, reason = "each test binary uses a part of it")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

pub(crate) mod client;
pub(crate) mod session;

use std::{sync::Arc, time::Duration};

use cosky_core::{Store, Ttl};
use cosky_embedded::{Embedded, Options};
use cosky_server::Config;
use cosky_testkit::ManualClock;
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};

use client::Client;

/// A namespace with a hash tag, in its URL form.
pub(crate) const NS: &str = "/v1/namespaces/%7Bt1%7D";
/// Root's password where a server asks for one.
pub(crate) const PASSWORD: &str = "correct-horse-battery";

/// How to start a server.
pub(crate) struct Setup {
    pub(crate) config: Config,
    pub(crate) options: Options,
    pub(crate) clock: ManualClock,
    dir: tempfile::TempDir,
}

/// A server of a test. It ends with the test, or drains when it is told to.
pub(crate) struct Server {
    pub(crate) address: std::net::SocketAddr,
    pub(crate) engine: Arc<Embedded>,
    pub(crate) clock: ManualClock,
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<()>,
    _dir: tempfile::TempDir,
}

impl Setup {
    /// No credentials, and a clock that stands still.
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let clock = ManualClock::new();
        let mut options = Options::new(dir.path());
        options.clock = Arc::new(clock.clone());
        // A clock that jumps is not a process that was stopped.
        options.stall_limit = Duration::MAX;
        let config = Config { auth: false, ..Config::default() };
        Self { config, options, clock, dir }
    }

    /// Instances without a TTL of their own live so long.
    pub(crate) fn ttl(mut self, seconds: i64) -> Self {
        self.options.default_ttl = Ttl::from_seconds(seconds).unwrap();
        self.config.instance_ttl = self.options.default_ttl;
        self
    }

    /// Callers need a credential; root's password is [`PASSWORD`].
    pub(crate) fn auth(mut self) -> Self {
        self.config.auth = true;
        self.config.root_password = Some(PASSWORD.to_owned());
        self
    }

    /// A further server of a store that is open already, as replicas share one.
    pub(crate) async fn on(engine: Arc<Embedded>, config: Config) -> Server {
        let setup = Self { config, ..Self::new() };
        setup.serve(engine).await
    }

    pub(crate) async fn start(mut self) -> Server {
        let options = std::mem::replace(&mut self.options, Options::new(self.dir.path()));
        let engine = Arc::new(Embedded::open(options).await.unwrap());
        self.serve(engine).await
    }

    async fn serve(self, engine: Arc<Embedded>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let store: Arc<dyn Store> = engine.clone();
        let served = tokio::spawn(async move {
            let shutdown = async { drop(stopped.await) };
            cosky_server::serve(self.config, store, listener, shutdown).await.unwrap();
        });
        let server = Server { address, engine, clock: self.clock, stop: Some(stop), served, _dir: self.dir };
        server.client().await.get("/livez").await.expect(200);
        server
    }
}

impl Server {
    /// One with the defaults of [`Setup::new`].
    pub(crate) async fn start() -> Self {
        Setup::new().start().await
    }

    /// A connection.
    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.address).await
    }

    /// A connection with a fresh access token of root.
    pub(crate) async fn root(&self) -> Client {
        let mut client = self.client().await;
        let body = serde_json::json!({ "password": PASSWORD });
        let login = client.json("POST", "/v1/authenticate/cosky/login", &body).await.expect(200);
        client.token = Some(login.value()["accessToken"].as_str().unwrap().to_owned());
        client
    }

    /// Lets time pass for instances, and removes those whose time is over.
    pub(crate) async fn pass(&self, time: Duration) {
        self.clock.advance(time);
        self.engine.run_due().await;
    }

    /// Begins to drain.
    pub(crate) fn drain(&mut self) {
        self.stop.take().expect("drains once").send(()).unwrap();
    }

    /// Waits until the server has returned.
    pub(crate) async fn ended(self) {
        self.served.await.unwrap();
    }
}

/// The body of a registration.
pub(crate) fn instance(host: &str, port: u16) -> serde_json::Value {
    serde_json::json!({ "schema": "http", "host": host, "port": port })
}
