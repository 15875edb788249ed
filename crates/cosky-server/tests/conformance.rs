//! The SDK's HTTP client in front of a server passes the cases that every engine must pass. This judges the client, the
//! wire and the routes at once.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use cosky::Cosky;
use cosky_core::{Clock, Registry, Store, SystemClock, Ttl};
use cosky_embedded::{Embedded, Options};
use cosky_server::Config;
use cosky_testkit::{ManualClock, conformance::World};
use tokio::{net::TcpListener, task::AbortHandle};

const PASSWORD: &str = "a-password-for-tests";

/// A server with the embedded engine whose clock moves at command, and a client of it.
struct Remote {
    registry: Arc<dyn Registry>,
    engine: Arc<Embedded>,
    clock: ManualClock,
    served: AbortHandle,
    dir: Arc<tempfile::TempDir>,
}

impl Remote {
    async fn new() -> Self {
        Self::on(Arc::new(tempfile::tempdir().unwrap())).await
    }

    async fn on(dir: Arc<tempfile::TempDir>) -> Self {
        let clock = ManualClock::new();
        // Beside the `Date` of the server's answers, which is the machine's.
        clock.set_unix(SystemClock.unix());
        // A clock that a test moves on jumps, but the process was not stopped.
        let stall_limit = Duration::MAX;
        let options = Options { stall_limit, clock: Arc::new(clock.clone()), ..Options::new(dir.path()) };
        let engine = Arc::new(Embedded::open(options).await.unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let config = Config { root_password: Some(PASSWORD.to_owned()), ..Config::default() };
        let store: Arc<dyn Store> = engine.clone();
        let serve =
            async { cosky_server::serve(config, store, listener, std::future::pending()).await.unwrap() };
        let served = tokio::spawn(serve).abort_handle();
        // A case may load the machine for longer than a service would let its registry take.
        let patient = Duration::from_secs(30);
        let cosky = Cosky::connect(address).login("cosky", PASSWORD).request_timeout(patient).await.unwrap();
        Self { registry: cosky.registry(), engine, clock, served, dir }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.served.abort();
    }
}

#[async_trait]
impl World for Remote {
    fn registry(&self) -> Arc<dyn Registry> {
        self.registry.clone()
    }

    async fn reopen(&self) -> Arc<dyn World> {
        self.served.abort();
        self.engine.close().await;
        Arc::new(Self::on(self.dir.clone()).await)
    }

    async fn another(&self) -> Arc<dyn World> {
        Arc::new(Self::new().await)
    }

    fn ttl(&self) -> Ttl {
        Ttl::DEFAULT
    }

    fn now(&self) -> Duration {
        self.clock.now()
    }

    async fn pass(&self, time: Duration) {
        self.clock.advance(time);
        self.engine.run_due().await;
    }
}

cosky_testkit::registry_tests!(Remote::new().await);
