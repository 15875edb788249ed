//! A server that knows nothing but logins, and says of them what a good one cannot be made to say.

use std::{
    sync::{Arc, Mutex},
    time::Instant,
};

use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
    task::AbortHandle,
};

use super::read_request;

/// What becomes of a login or refresh.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Say {
    /// A new pair; the one before buys nothing any more.
    Pair,
    /// This status and code, and how many seconds to stay away.
    No(u16, &'static str, Option<u64>),
    /// The connection breaks instead.
    Nothing,
}

/// Grants `GET /v1/namespaces` to the last access token, `a` and the number of the pair.
pub(crate) struct Desk {
    pub(crate) url: String,
    state: Arc<Mutex<State>>,
    task: AbortHandle,
}

struct State {
    login: Say,
    refresh: Say,
    pairs: u32,
    expired: bool,
    seen: Vec<Seen>,
}

/// A login or refresh that arrived.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) at: Instant,
    pub(crate) refresh: bool,
    pub(crate) body: String,
}

impl Desk {
    pub(crate) async fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state =
            State { login: Say::Pair, refresh: Say::Pair, pairs: 0, expired: false, seen: Vec::new() };
        let state = Arc::new(Mutex::new(state));
        let shared = state.clone();
        let accept = async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream, shared.clone()));
            }
        };
        Self { url, state, task: tokio::spawn(accept).abort_handle() }
    }

    /// From now on.
    pub(crate) fn say(&self, login: Say, refresh: Say) {
        let mut state = self.state.lock().unwrap();
        (state.login, state.refresh) = (login, refresh);
    }

    /// The last access token is not taken any more.
    pub(crate) fn expire(&self) {
        self.state.lock().unwrap().expired = true;
    }

    pub(crate) fn logins(&self) -> Vec<Seen> {
        self.seen(false)
    }

    pub(crate) fn refreshs(&self) -> Vec<Seen> {
        self.seen(true)
    }

    fn seen(&self, refresh: bool) -> Vec<Seen> {
        self.state.lock().unwrap().seen.iter().filter(|seen| seen.refresh == refresh).cloned().collect()
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One request, then the connection ends.
async fn serve(mut stream: TcpStream, state: Arc<Mutex<State>>) {
    let Some((head, body)) = read_request(&mut stream).await else { return };
    let answer = state.lock().unwrap().answer(&head, body);
    if let Some(answer) = answer {
        let _ = stream.write_all(answer.as_bytes()).await;
    }
}

impl State {
    fn answer(&mut self, head: &str, body: String) -> Option<String> {
        let refresh = head.contains("/refresh HTTP");
        if !refresh && !head.contains("/login HTTP") {
            let token = format!("authorization: Bearer a{}\r\n", self.pairs);
            return Some(if head.contains(&token) && !self.expired {
                http(200, "", "[]")
            } else {
                http(401, "", r#"{"code":"unauthorized","msg":"Token Expired","authorized":false}"#)
            });
        }
        self.seen.push(Seen { at: Instant::now(), refresh, body });
        match if refresh { self.refresh } else { self.login } {
            Say::Pair => {
                self.pairs += 1;
                self.expired = false;
                let pair = format!(r#"{{"accessToken":"a{0}","refreshToken":"r{0}"}}"#, self.pairs);
                Some(http(200, "", &pair))
            }
            Say::No(status, code, after) => {
                let after = after.map_or(String::new(), |after| format!("retry-after: {after}\r\n"));
                Some(http(status, &after, &format!(r#"{{"code":"{code}","msg":"no: {code}"}}"#)))
            }
            Say::Nothing => None,
        }
    }
}

fn http(status: u16, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status} x\r\nx-cosky-version: test\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    )
}
