//! A server that answers by a script: another version of ours, or something else altogether.

use std::sync::{Arc, Mutex};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::AbortHandle,
};

use crate::support::read_request;

/// What the script says to a request.
pub(crate) struct Reply {
    bytes: String,
    /// Whether more could come: the connection stays open.
    open: bool,
}

pub(crate) struct Script {
    pub(crate) url: String,
    seen: Arc<Mutex<Vec<String>>>,
    task: AbortHandle,
}

impl Script {
    /// Answers each request by its method and path.
    pub(crate) async fn play(answer: impl Fn(&str) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (answer, seen) = (Arc::new(answer), Arc::<Mutex<Vec<String>>>::default());
        let log = seen.clone();
        let accept = async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (answer, log) = (answer.clone(), log.clone());
                tokio::spawn(async move { serve(stream, &*answer, &log).await });
            }
        };
        Self { url, seen, task: tokio::spawn(accept).abort_handle() }
    }

    /// The requests that hold `part`, each as method and path.
    pub(crate) fn seen(&self, part: &str) -> Vec<String> {
        self.seen.lock().unwrap().iter().filter(|line| line.contains(part)).cloned().collect()
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Reply {
    /// An answer as it is, `headers` being lines that each end with `\r\n`.
    pub(crate) fn new(status: u16, headers: &str, body: &str) -> Self {
        let length = body.len();
        let bytes = format!(
            "HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
        );
        Self { bytes, open: false }
    }

    /// The answer of a cosky server of this version, with what every read says.
    pub(crate) fn cosky(version: &str, status: u16, body: &str) -> Self {
        let headers = format!(
            "x-cosky-version: {version}\r\nx-cosky-index: 1:1\r\nx-cosky-state: live\r\nx-cosky-age: 0\r\n"
        );
        Self::new(status, &headers, body)
    }

    /// A stream of a cosky server that stays open behind these events.
    pub(crate) fn stream(version: &str, events: &str) -> Self {
        let bytes = format!(
            "HTTP/1.1 200 OK\r\nx-cosky-version: {version}\r\ncontent-type: text/event-stream\r\n\
             connection: close\r\n\r\n{events}"
        );
        Self { bytes, open: true }
    }
}

/// One request, then the connection ends, with a stream when the client ends it.
async fn serve(mut stream: TcpStream, answer: &(impl Fn(&str) -> Reply + Sync), seen: &Mutex<Vec<String>>) {
    let Some((head, _)) = read_request(&mut stream).await else { return };
    let line = head.lines().next().unwrap_or_default();
    let line = line.strip_suffix(" HTTP/1.1").unwrap_or(line).to_owned();
    let reply = answer(&line);
    seen.lock().unwrap().push(line);
    if stream.write_all(reply.bytes.as_bytes()).await.is_ok() && reply.open {
        let _ = stream.read_u8().await;
    }
}
