//! A small HTTP/1.1 client: one connection, one request at a time, nothing between it and the socket.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Heads above this are not cosky's.
const HEAD_BYTES: usize = 16 << 10;

/// One kept-alive connection.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// Where an answer stands in the buffer.
struct Parts {
    status: u16,
    body_start: usize,
    end: usize,
}

/// The bytes of a request.
pub(crate) fn request(method: &str, path: &str, token: &str, body: Option<&[u8]>) -> Vec<u8> {
    let mut out = format!("{method} {path} HTTP/1.1\r\nhost: bench\r\n");
    if !token.is_empty() {
        out.push_str(&format!("authorization: Bearer {token}\r\n"));
    }
    if let Some(body) = body {
        out.push_str(&format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len()));
    } else if method != "GET" {
        out.push_str("content-length: 0\r\n");
    }
    out.push_str("\r\n");
    let mut out = out.into_bytes();
    out.extend_from_slice(body.unwrap_or_default());
    out
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await.context("connecting")?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::with_capacity(4096) })
    }

    /// Sends `request` and waits for the whole answer.
    pub(crate) async fn call(&mut self, request: &[u8]) -> Result<Reply> {
        let parts = self.exchange(request).await?;
        Ok(Reply { status: parts.status, body: self.buffer[parts.body_start..parts.end].to_vec() })
    }

    /// As [`call`](Self::call), for the status alone: no copy of the body is made.
    pub(crate) async fn status_of(&mut self, request: &[u8]) -> Result<u16> {
        Ok(self.exchange(request).await?.status)
    }

    /// As [`call`](Self::call); an answer other than 200 is an error.
    pub(crate) async fn ok(&mut self, request: &[u8]) -> Result<Vec<u8>> {
        let reply = self.call(request).await?;
        let head = String::from_utf8_lossy(request.split(|byte| *byte == b'\r').next().unwrap_or_default());
        let body = || String::from_utf8_lossy(&reply.body).into_owned();
        ensure!(reply.status == 200, "{head} is answered {}: {}", reply.status, body());
        Ok(reply.body)
    }

    /// Sends `request`, reads the head of the answer, and hands over the stream and what came after the head.
    pub(crate) async fn stream(mut self, request: &[u8]) -> Result<(TcpStream, Vec<u8>)> {
        self.stream.write_all(request).await?;
        loop {
            if let Some(head) = head_end(&self.buffer) {
                let status = status(&self.buffer)?;
                ensure!(
                    status == 200,
                    "the stream is answered {status}: {}",
                    String::from_utf8_lossy(&self.buffer)
                );
                let rest = self.buffer.split_off(head);
                return Ok((self.stream, rest));
            }
            self.fill().await?;
        }
    }

    async fn exchange(&mut self, request: &[u8]) -> Result<Parts> {
        self.buffer.clear();
        self.stream.write_all(request).await?;
        loop {
            if let Some(parts) = parts(&self.buffer)? {
                return Ok(parts);
            }
            self.fill().await?;
        }
    }

    async fn fill(&mut self) -> Result<()> {
        let read = self.stream.read_buf(&mut self.buffer).await?;
        ensure!(read > 0, "the server closed the connection");
        Ok(())
    }
}

/// The parts of the answer, once it is whole.
fn parts(buffer: &[u8]) -> Result<Option<Parts>> {
    let Some(body_start) = head_end(buffer) else {
        ensure!(buffer.len() < HEAD_BYTES, "the head of the answer does not end");
        return Ok(None);
    };
    let end = body_start + content_length(&buffer[..body_start])?;
    Ok((buffer.len() >= end).then_some(Parts { status: status(buffer)?, body_start, end }))
}

fn head_end(buffer: &[u8]) -> Option<usize> {
    buffer.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4)
}

fn status(buffer: &[u8]) -> Result<u16> {
    let digits = buffer.get(9..12).context("short answer")?;
    Ok(std::str::from_utf8(digits)?.parse()?)
}

fn content_length(head: &[u8]) -> Result<usize> {
    const NAME: &[u8] = b"content-length:";
    for line in head.split(|byte| *byte == b'\n') {
        if line.len() > NAME.len() && line[..NAME.len()].eq_ignore_ascii_case(NAME) {
            return Ok(std::str::from_utf8(&line[NAME.len()..])?.trim().parse()?);
        }
    }
    bail!("the answer has no content-length: {}", String::from_utf8_lossy(head))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_taken_apart_once_it_is_whole() {
        let answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nabc";
        for end in 0..answer.len() {
            assert!(parts(&answer[..end]).unwrap().is_none(), "{end}");
        }
        let whole = parts(answer).unwrap().unwrap();
        assert_eq!((whole.status, &answer[whole.body_start..whole.end]), (404, &b"abc"[..]));
        assert!(parts(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").is_err());
    }

    #[test]
    fn a_request_says_how_long_its_body_is() {
        let with_body = request("PUT", "/a", "t", Some(b"{}"));
        let expected = "PUT /a HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer t\r\n\
                        content-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
        assert_eq!(String::from_utf8(with_body).unwrap(), expected);
        assert!(request("PUT", "/a", "", None).ends_with(b"content-length: 0\r\n\r\n"));
    }
}
