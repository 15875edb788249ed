//! Servers on real sockets, a proxy between them and the client that records and disturbs, and waiting for conditions.
#![expect(dead_code, reason = "each test binary uses a part of it")]

pub(crate) mod desk;
pub(crate) mod part;
pub(crate) mod proxy;
pub(crate) mod real;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use cosky::{Connect, Cosky};
use cosky_core::{Clock, Namespace, Registry as _, ServiceId, Store, SystemClock, Ttl};
use cosky_embedded::{Embedded, Options};
use cosky_server::Config;
use tokio::{
    io::AsyncReadExt as _,
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinHandle,
};

/// The namespace in which the tests play.
pub(crate) const NS: &str = "shop-{eu}";
pub(crate) const PASSWORD: &str = "correct-horse-battery";
/// How long a test waits for what must come on a machine that does other work as well.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// How to start a server.
pub(crate) struct Setup {
    pub(crate) config: Config,
    pub(crate) ttl: Ttl,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) listen: SocketAddr,
    pub(crate) data: Option<PathBuf>,
}

/// A server of a test, in this process.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) engine: Arc<Embedded>,
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<()>,
    dir: Option<tempfile::TempDir>,
}

impl Setup {
    /// No credentials, and instances live for 3 s when they do not say otherwise.
    pub(crate) fn new() -> Self {
        Self {
            config: Config { auth: false, shutdown_grace: Duration::from_secs(2), ..Config::default() },
            ttl: Ttl::from_seconds(3).unwrap(),
            clock: Arc::new(SystemClock),
            listen: "127.0.0.1:0".parse().unwrap(),
            data: None,
        }
    }

    /// Callers need a credential; root's password is [`PASSWORD`].
    pub(crate) fn auth(mut self) -> Self {
        self.config.auth = true;
        self.config.root_password = Some(PASSWORD.to_owned());
        self
    }

    pub(crate) fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// With the address and the data of a server that has ended.
    pub(crate) fn after(mut self, address: SocketAddr, data: &Path) -> Self {
        self.listen = address;
        self.data = Some(data.to_owned());
        self
    }

    pub(crate) async fn start(self) -> Server {
        let dir = self.data.is_none().then(|| tempfile::tempdir().unwrap());
        let path = self.data.as_deref().or(dir.as_ref().map(|dir| dir.path())).unwrap();
        let options = Options {
            default_ttl: self.ttl,
            stall_limit: Duration::MAX,
            clock: self.clock,
            ..Options::new(path)
        };
        let engine = Arc::new(Embedded::open(options).await.unwrap());
        let listener = TcpListener::bind(self.listen).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let store: Arc<dyn Store> = engine.clone();
        let config = Config { instance_ttl: self.ttl, ..self.config };
        let served = tokio::spawn(async move {
            let shutdown = async { drop(stopped.await) };
            cosky_server::serve(config, store, listener, shutdown).await.unwrap();
        });
        Server { address, engine, stop: Some(stop), served, dir }
    }
}

impl Server {
    pub(crate) async fn start() -> Self {
        Setup::new().start().await
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A client without a credential.
    pub(crate) async fn cosky(&self) -> Cosky {
        self.connect().await.unwrap()
    }

    pub(crate) fn connect(&self) -> Connect {
        Cosky::connect(self.url())
    }

    /// Stops it, and gives what its successor needs.
    pub(crate) async fn stop(mut self) -> Stopped {
        self.stop.take().unwrap().send(()).unwrap();
        self.served.await.unwrap();
        self.engine.close().await;
        Stopped { address: self.address, dir: self.dir }
    }

    /// Begins to stop; its streams are told so.
    pub(crate) fn drain(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    /// The ids of a service's live instances, asked of the engine and not over HTTP.
    pub(crate) async fn ids(&self, service: &str) -> Vec<String> {
        let read = self.engine.instances(&namespace(), &ServiceId::new(service).unwrap()).await.unwrap();
        read.value.iter().map(|instance| instance.id().to_string()).collect()
    }

    /// One metadata value of an instance; `None` when either is absent.
    pub(crate) async fn metadata(&self, service: &str, id: &str, key: &str) -> Option<String> {
        let service = ServiceId::new(service).unwrap();
        let read = self.engine.instance(&namespace(), &service, id).await.unwrap();
        read.value.and_then(|instance| instance.metadata().get(key).map(str::to_owned))
    }
}

/// A server that has ended; its data goes with this.
pub(crate) struct Stopped {
    pub(crate) address: SocketAddr,
    dir: Option<tempfile::TempDir>,
}

impl Stopped {
    /// A server at the same address with the same data.
    pub(crate) async fn again(&self, setup: Setup) -> Server {
        setup.after(self.address, self.dir.as_ref().unwrap().path()).start().await
    }
}

pub(crate) fn namespace() -> Namespace {
    Namespace::new(NS).unwrap()
}

/// Waits until `holds` does, and says how long that took.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) -> Duration {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < PATIENCE, "waited for {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    start.elapsed()
}

/// An address at which nobody listens.
pub(crate) async fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

/// Head and body of one request; nothing when the client goes before its end.
pub(crate) async fn read_request(stream: &mut TcpStream) -> Option<(String, String)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).await.ok()?;
    Some((head, String::from_utf8(body).unwrap()))
}
