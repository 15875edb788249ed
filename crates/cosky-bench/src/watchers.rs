//! Many watch streams over one namespace, and when each of them heard of something.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use cosky_core::{Namespace, wire};
use rustix::process::nice;
use tokio::{
    net::TcpStream,
    runtime::{self, Runtime},
    sync::Notify,
    task::JoinSet,
    time::timeout,
};

use crate::client::{Connection, request};

/// Streams that are opened at the same time.
const OPENING: usize = 64;
/// How long streams may take to open and to bring their first event.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the thread that reads the streams adds to its niceness: all that it may.
const YIELDING: i32 = 19;

/// Open watch streams. They are read on a thread that yields to others on its core, so that reading ten thousand streams
/// does not delay who measures something else there. Dropping them closes the connections.
#[derive(Debug)]
pub(crate) struct Watchers {
    tasks: JoinSet<()>,
    reader: Option<Runtime>,
    board: Arc<Board>,
}

/// Where watchers note what they heard.
#[derive(Debug, Default)]
struct Board {
    listening: Mutex<Listening>,
    complete: Notify,
    ended: AtomicUsize,
}

#[derive(Debug, Default)]
struct Listening {
    /// A piece of the text of the event that is listened for.
    text: Vec<u8>,
    /// How many watchers have to hear it.
    wanted: usize,
    /// When each watcher heard it.
    heard: Vec<Instant>,
}

impl Watchers {
    /// Opens `count` streams over all of `namespace`; each has had its snapshot when this returns.
    pub(crate) async fn open(
        address: SocketAddr,
        token: &str,
        namespace: &Namespace,
        count: usize,
    ) -> Result<Self> {
        let ask = Arc::new(request("GET", &wire::namespace_path(namespace, &["watch"]), token, None));
        let board = Arc::new(Board::default());
        board.listen_for("event: snapshot", count);
        let reader = runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_io()
            .on_thread_start(|| {
                let _ = nice(YIELDING);
            })
            .build()?;
        let mut tasks = JoinSet::new();
        while tasks.len() < count {
            let mut opening = JoinSet::new();
            for _ in 0..OPENING.min(count - tasks.len()) {
                let ask = Arc::clone(&ask);
                opening.spawn(async move { Connection::open(address).await?.stream(&ask).await });
            }
            while let Some(opened) = opening.join_next().await {
                let (stream, unread) = opened?.context("opening a watch stream")?;
                let stream = stream.into_std()?;
                tasks.spawn_on(follow(stream, unread, Arc::clone(&board)), reader.handle());
            }
        }
        let watchers = Self { tasks, reader: Some(reader), board };
        watchers.all_heard(PATIENCE).await?;
        Ok(watchers)
    }

    /// From now on, notes when each watcher hears of an event that holds `text`.
    pub(crate) fn listen_for(&self, text: &str) {
        self.board.listen_for(text, self.tasks.len());
    }

    /// Waits until every watcher has heard what is listened for.
    ///
    /// # Errors
    /// After `patience`.
    pub(crate) async fn all_heard(&self, patience: Duration) -> Result<Vec<Instant>> {
        let all = async {
            loop {
                let complete = self.board.complete.notified();
                if self.board.lock().is_complete() {
                    return;
                }
                complete.await;
            }
        };
        let outcome = timeout(patience, all).await;
        let listening = std::mem::take(&mut *self.board.lock());
        if outcome.is_err() {
            let text = String::from_utf8_lossy(&listening.text);
            bail!(
                "{} of {} watchers heard {text} within {patience:?}",
                listening.heard.len(),
                listening.wanted
            );
        }
        Ok(listening.heard)
    }

    /// How many streams have ended.
    pub(crate) fn ended(&self) -> usize {
        self.board.ended.load(Ordering::Relaxed)
    }
}

impl Drop for Watchers {
    fn drop(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.shutdown_background();
        }
    }
}

impl Listening {
    fn is_complete(&self) -> bool {
        self.heard.len() >= self.wanted
    }
}

impl Board {
    fn listen_for(&self, text: &str, wanted: usize) {
        *self.lock() = Listening { text: text.into(), wanted, heard: Vec::with_capacity(wanted) };
    }

    fn lock(&self) -> MutexGuard<'_, Listening> {
        self.listening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a watcher read `frame`.
    fn note(&self, frame: &[u8]) {
        let now = Instant::now();
        let mut listening = self.lock();
        let text = &listening.text;
        if !text.is_empty() && frame.windows(text.len()).any(|piece| piece == text) {
            listening.heard.push(now);
            if listening.is_complete() {
                self.complete.notify_waiters();
            }
        }
    }
}

/// Reads `stream` to its end. Between two events it holds no buffer, so that ten thousand of these cost little.
async fn follow(stream: std::net::TcpStream, mut unread: Vec<u8>, board: Arc<Board>) {
    let stream =
        TcpStream::from_std(stream).expect("it was one of tokio's, and this is a task of another runtime");
    note_frames(&mut unread, &board);
    while stream.readable().await.is_ok() && read_what_is_there(&stream, &mut unread) {
        note_frames(&mut unread, &board);
    }
    board.ended.fetch_add(1, Ordering::Relaxed);
}

fn note_frames(unread: &mut Vec<u8>, board: &Board) {
    while let Some(end) = unread.windows(2).position(|pair| pair == b"\n\n") {
        board.note(&unread[..end]);
        unread.drain(..end + 2);
    }
    if unread.is_empty() {
        *unread = Vec::new();
    }
}

/// False at the end of the stream.
fn read_what_is_there(stream: &TcpStream, unread: &mut Vec<u8>) -> bool {
    let mut piece = [0; 16 << 10];
    match stream.try_read(&mut piece) {
        Ok(0) => false,
        Ok(read) => {
            unread.extend_from_slice(&piece[..read]);
            true
        }
        Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
    }
}
