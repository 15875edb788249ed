//! HTTP/1.1 by hand: paths and headers go out exactly as a test writes them, and one connection serves many requests,
//! so that a test sees whether it is still good.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpSocket, TcpStream},
    time::timeout,
};

/// No answer takes longer, unless something is broken.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Client {
    connection: BufReader<TcpStream>,
    /// Sent as a bearer token.
    pub(crate) token: Option<String>,
    /// Sent as `Host`.
    pub(crate) host: String,
}

#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

/// A watch stream.
pub(crate) struct Events {
    connection: BufReader<TcpStream>,
    pub(crate) headers: BTreeMap<String, String>,
    text: Vec<u8>,
}

/// One server-sent event.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Received {
    pub(crate) id: Option<String>,
    pub(crate) name: String,
    pub(crate) data: Value,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let connection = TcpStream::connect(address).await.unwrap();
        connection.set_nodelay(true).unwrap();
        Self { connection: BufReader::new(connection), token: None, host: address.to_string() }
    }

    /// A connection that takes little before somebody reads from it.
    pub(crate) async fn narrow(address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let connection = socket.connect(address).await.unwrap();
        Self { connection: BufReader::new(connection), token: None, host: address.to_string() }
    }

    pub(crate) async fn get(&mut self, path: &str) -> Answer {
        self.send("GET", path, &[], b"").await
    }

    pub(crate) async fn put(&mut self, path: &str) -> Answer {
        self.send("PUT", path, &[], b"").await
    }

    pub(crate) async fn delete(&mut self, path: &str) -> Answer {
        self.send("DELETE", path, &[], b"").await
    }

    pub(crate) async fn json(&mut self, method: &str, path: &str, body: &Value) -> Answer {
        self.text(method, path, &body.to_string()).await
    }

    /// Sends `body` as JSON, whether it is or not.
    pub(crate) async fn text(&mut self, method: &str, path: &str, body: &str) -> Answer {
        self.send(method, path, &[("Content-Type", "application/json")], body.as_bytes()).await
    }

    /// Registers an instance, which must succeed.
    pub(crate) async fn register(&mut self, service: &str, body: &Value) -> Answer {
        let path = format!("{}/services/{service}/instances", super::NS);
        let answer = self.json("PUT", &path, body).await.expect(200);
        assert_eq!(answer.value(), true);
        answer
    }

    pub(crate) async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        self.write(method, path, headers, body).await;
        timeout(PATIENCE, self.read(method)).await.expect("an answer in time")
    }

    /// Sends a request and does not wait for its answer.
    pub(crate) async fn write(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let mut head =
            format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n", self.host, body.len());
        if let Some(token) = &self.token {
            head += &format!("Authorization: Bearer {token}\r\n");
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        let request = [head.as_bytes(), b"\r\n", body].concat();
        // A server may answer and close before it has read all: what counts is the answer.
        let _ = self.connection.write_all(&request).await;
    }

    /// The answer to what was sent.
    pub(crate) async fn read(&mut self, method: &str) -> Answer {
        let (status, headers) = head(&mut self.connection).await;
        let mut body = Vec::new();
        if method != "HEAD" {
            match headers.get("content-length") {
                Some(length) => {
                    body.resize(length.parse().unwrap(), 0);
                    self.connection.read_exact(&mut body).await.unwrap();
                }
                None => while chunk(&mut self.connection, &mut body).await {},
            }
        }
        Answer { status, headers, body }
    }

    /// Opens a watch, which must succeed.
    pub(crate) async fn watch(mut self, path: &str, headers: &[(&str, &str)]) -> Events {
        self.write("GET", path, headers, b"").await;
        self.events().await
    }

    /// The stream by which a request was answered.
    pub(crate) async fn events(mut self) -> Events {
        let (status, headers) =
            timeout(PATIENCE, head(&mut self.connection)).await.expect("an answer in time");
        assert_eq!(status, 200);
        Events { connection: self.connection, headers, text: Vec::new() }
    }
}

impl Answer {
    /// Asserts the status.
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text());
        self
    }

    /// Asserts a refusal in the one form of errors, whose text names `field`.
    #[track_caller]
    pub(crate) fn refused(self, status: u16, code: &str, field: &str) {
        let value = self.clone().expect(status).value();
        assert_eq!(value["code"], code, "{value}");
        let msg = value["msg"].as_str().expect("msg is a text");
        assert!(msg.contains(field), "{msg:?} names {field:?}");
        assert_eq!(self.header("content-type"), Some("application/json"));
    }

    /// Asserts a 200 without a body.
    #[track_caller]
    pub(crate) fn empty(self) -> Self {
        assert_eq!((self.status, self.text().as_str()), (200, ""));
        assert_eq!(self.header("content-type"), None);
        self
    }

    pub(crate) fn value(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// The `instanceId`s of a list.
    pub(crate) fn ids(&self) -> Vec<String> {
        let value = self.value();
        let list = value.as_array().expect("a list").iter();
        list.map(|one| one["instanceId"].as_str().unwrap().to_owned()).collect()
    }
}

impl Events {
    /// The next event; comments are passed over. `None` when the stream has ended cleanly.
    pub(crate) async fn next(&mut self) -> Option<Received> {
        timeout(PATIENCE, self.event()).await.expect("an event in time")
    }

    /// The next event, which must be a `name`.
    pub(crate) async fn expect(&mut self, name: &str) -> Received {
        let event = self.next().await.expect("the stream goes on");
        assert_eq!(event.name, name, "{event:?}");
        event
    }

    async fn event(&mut self) -> Option<Received> {
        loop {
            while let Some(end) = self.text.windows(2).position(|two| two == b"\n\n") {
                let block: Vec<u8> = self.text.drain(..end + 2).collect();
                if let Some(event) = parse(std::str::from_utf8(&block).unwrap()) {
                    return Some(event);
                }
            }
            if !chunk(&mut self.connection, &mut self.text).await {
                assert_eq!(self.text, b"", "the stream ends after a whole event");
                return None;
            }
        }
    }
}

fn parse(block: &str) -> Option<Received> {
    let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let data = serde_json::from_str(field("data")?).unwrap();
    Some(Received { id: field("id").map(Into::into), name: field("event").unwrap().into(), data })
}

async fn head(connection: &mut BufReader<TcpStream>) -> (u16, BTreeMap<String, String>) {
    let status = line(connection).await;
    let status =
        status.split(' ').nth(1).unwrap_or_else(|| panic!("a status line: {status:?}")).parse().unwrap();
    let mut headers = BTreeMap::new();
    loop {
        let line = line(connection).await;
        let Some((name, value)) = line.split_once(':') else { break (status, headers) };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
}

async fn line(connection: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    connection.read_line(&mut line).await.unwrap();
    line.trim_end().to_owned()
}

/// Appends one chunk of a chunked body; false at its end.
async fn chunk(connection: &mut BufReader<TcpStream>, body: &mut Vec<u8>) -> bool {
    let size = usize::from_str_radix(&line(connection).await, 16).expect("the size of a chunk");
    let start = body.len();
    body.resize(start + size, 0);
    connection.read_exact(&mut body[start..]).await.unwrap();
    line(connection).await;
    size > 0
}
