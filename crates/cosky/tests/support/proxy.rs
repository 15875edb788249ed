//! A TCP proxy that records the requests which pass it, and misbehaves when it is told to.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Instant,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::AbortHandle,
};

/// What the proxy does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Passes everything on.
    Pass,
    /// Takes connections and bytes, and passes nothing on.
    Freeze,
    /// Passes requests on and keeps the answers; each connection breaks when an answer comes.
    LoseAnswers,
    /// Passes no event of a watch on, and everything else.
    HoldStreams,
    /// Breaks every connection.
    Cut,
}

/// A request that passed.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) at: Instant,
    /// Method and path.
    pub(crate) line: String,
}

pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    mode: watch::Sender<Mode>,
    seen: Arc<Mutex<Vec<Seen>>>,
    task: AbortHandle,
}

impl Proxy {
    pub(crate) async fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mode = watch::Sender::new(Mode::Pass);
        let seen = Arc::<Mutex<Vec<Seen>>>::default();
        let (modes, log) = (mode.clone(), seen.clone());
        let accept = async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                tokio::spawn(carry(client, server, modes.subscribe(), log.clone()));
            }
        };
        Self { address, mode, seen, task: tokio::spawn(accept).abort_handle() }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// The requests so far whose line begins with `method` and holds `part`.
    pub(crate) fn seen(&self, method: &str, part: &str) -> Vec<Seen> {
        let seen = self.seen.lock().unwrap();
        seen.iter()
            .filter(|seen| seen.line.starts_with(method) && seen.line.contains(part))
            .cloned()
            .collect()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(
    mut client: TcpStream,
    server: SocketAddr,
    mut mode: watch::Receiver<Mode>,
    seen: Arc<Mutex<Vec<Seen>>>,
) {
    let Ok(mut server) = TcpStream::connect(server).await else { return };
    let (mut up, mut down) = ([0; 16 * 1024], [0; 16 * 1024]);
    let mut streams = false;
    loop {
        let now = *mode.borrow_and_update();
        if now == Mode::Cut {
            return;
        }
        tokio::select! {
            changed = mode.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            read = client.read(&mut up), if now != Mode::Freeze => {
                let Ok(count @ 1..) = read else { return };
                streams = record(&up[..count], &seen).unwrap_or(streams);
                if server.write_all(&up[..count]).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut down), if now != Mode::Freeze && !(streams && now == Mode::HoldStreams) => {
                let Ok(count @ 1..) = read else { return };
                if now == Mode::LoseAnswers || client.write_all(&down[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Request lines stand at the beginning of what a client writes, or behind a body that it wrote together with them. Says
/// whether the last of them asks for a watch.
fn record(bytes: &[u8], seen: &Mutex<Vec<Seen>>) -> Option<bool> {
    let text = String::from_utf8_lossy(bytes);
    let mut streams = None;
    for line in text.lines().filter_map(|line| line.strip_suffix(" HTTP/1.1")) {
        let line = line.rfind('}').map_or(line, |end| &line[end + 1..]);
        streams = Some(line.contains("/watch"));
        seen.lock().unwrap().push(Seen { at: Instant::now(), line: line.to_owned() });
    }
    streams
}
