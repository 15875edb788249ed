//! Event streams leave hyper. For as long as a connection lives, hyper holds two buffers of 8 KiB for it besides its own
//! state, which a stream that is idle most of its life has no use for. So when a request is answered by a stream, the
//! socket is taken back before a byte of that answer is written, and the answer is sent from here: its head, then each
//! frame as one chunk, until the body ends or the client goes.

use std::{
    future::{pending, poll_fn},
    io::{self, IoSlice, Write as _},
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::SystemTime,
};

use axum::{body::Body, response::Response};
use bytes::Buf as _;
use http::{HeaderMap, HeaderName, Method, StatusCode, Version, header};
use http_body::Body as _;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncWriteExt as _, ReadBuf},
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
};

/// An event stream that waits to be sent, and how its request was versioned.
pub(crate) struct Stream {
    version: Version,
    response: Response,
}

/// What the two ends of a connection under hyper tell each other.
#[derive(Default)]
pub(crate) struct Handover {
    offered: Mutex<Option<Stream>>,
    /// Whether hyper holds bytes of earlier answers that are not in the socket yet.
    unwritten: AtomicBool,
    /// Whether the request that is being answered is a long poll.
    waiting: AtomicBool,
}

/// A socket that notes whether hyper has written all that it holds, and whether the client goes during a long poll.
pub(crate) struct Watched {
    io: TokioIo<TcpStream>,
    handover: Arc<Handover>,
}

impl Handover {
    /// Lets an ordinary answer pass. A stream is kept instead, for [`take`](Self::take): then this never returns, and
    /// is dropped with hyper's part of the connection.
    pub(crate) async fn pass(&self, method: &Method, version: Version, response: Response) -> Response {
        let kind = response.headers().get(header::CONTENT_TYPE);
        let streams = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        if !streams || method == Method::HEAD {
            return response;
        }
        *self.offered() = Some(Stream { version, response });
        pending().await
    }

    /// A stream, once all earlier answers of the connection are in the socket. To be asked after hyper was polled.
    pub(crate) fn take(&self) -> Option<Stream> {
        if self.unwritten.load(Ordering::Relaxed) { None } else { self.offered().take() }
    }

    /// Says whether a long poll is being answered. Of a client that closes its side during one it is taken that it has
    /// gone, as with a stream: most that go do just that, and their place is for others. The connection ends then.
    pub(crate) fn wait_for_change(&self, waits: bool) {
        self.waiting.store(waits, Ordering::Relaxed);
    }

    fn offered(&self) -> std::sync::MutexGuard<'_, Option<Stream>> {
        self.offered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watched {
    pub(crate) fn new(stream: TcpStream, handover: Arc<Handover>) -> Self {
        Self { io: TokioIo::new(stream), handover }
    }

    pub(crate) fn into_inner(self) -> TcpStream {
        self.io.into_inner()
    }

    /// Fails once the client has closed its side; until then it wakes the connection when that happens. Where a further
    /// request stands in the way, it is not noticed.
    fn check_there(&self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.io.inner().poll_peek(cx, &mut ReadBuf::new(&mut [0])) {
            Poll::Ready(Ok(0)) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Ready(Err(error)) => Err(error),
            Poll::Ready(Ok(_)) | Poll::Pending => Ok(()),
        }
    }
}

impl Read for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

/// hyper flushes when it has written everything, and not before: each time that it is polled, also while it waits for an
/// answer.
impl Write for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.handover.unwritten.store(true, Ordering::Relaxed);
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.handover.unwritten.store(true, Ordering::Relaxed);
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.handover.unwritten.store(false, Ordering::Relaxed);
        if self.handover.waiting.load(Ordering::Relaxed) {
            self.check_there(cx)?;
        }
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

impl Stream {
    /// Sends the stream to its end and closes the connection, or stops when the client has gone. What the client sends
    /// meanwhile is read and thrown away. Dropping the future cuts the client off.
    ///
    /// # Errors
    /// Of the socket; `TimedOut` when the client took nothing for too long.
    pub(crate) async fn send(self, mut socket: TcpStream) -> io::Result<()> {
        let chunked = self.version > Version::HTTP_10;
        let (parts, body) = self.response.into_parts();
        let head = head(self.version, parts.status, &parts.headers, chunked);
        drop(parts);
        let (mut reader, mut writer) = socket.split();
        tokio::select! {
            sent = write(&mut writer, head, body, chunked) => sent,
            gone = until_gone(&mut reader) => gone,
        }
    }
}

fn head(version: Version, status: StatusCode, headers: &HeaderMap, chunked: bool) -> Vec<u8> {
    let mut head = format!("{version:?} {status}\r\n").into_bytes();
    let mut line = |name: &HeaderName, value: &[u8]| {
        for part in [name.as_str().as_bytes(), b": ", value, b"\r\n"] {
            head.extend_from_slice(part);
        }
    };
    for (name, value) in headers {
        line(name, value.as_bytes());
    }
    if chunked {
        line(&header::TRANSFER_ENCODING, b"chunked");
    }
    line(&header::CONNECTION, b"close");
    line(&header::DATE, httpdate::fmt_http_date(SystemTime::now()).as_bytes());
    head.extend_from_slice(b"\r\n");
    head
}

async fn write(writer: &mut WriteHalf<'_>, head: Vec<u8>, mut body: Body, chunked: bool) -> io::Result<()> {
    writer.write_all(&head).await?;
    drop(head);
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let Ok(data) = frame.map_err(io::Error::other)?.into_data() else { continue };
        if !chunked {
            writer.write_all(&data).await?;
        } else if !data.is_empty() {
            let mut size = [0; 18];
            let mut rest = &mut size[..];
            write!(rest, "{:x}\r\n", data.len())?;
            let length = 18 - rest.len();
            let mut chunk = size[..length].chain(data).chain(&b"\r\n"[..]);
            writer.write_all_buf(&mut chunk).await?;
        }
    }
    if chunked {
        writer.write_all(b"0\r\n\r\n").await?;
    }
    writer.shutdown().await
}

/// Reads until the client closes its side or the connection fails. Takes the one place for a waker that polls have,
/// because what hyper left there would keep its finished task in memory.
async fn until_gone(reader: &mut ReadHalf<'_>) -> io::Result<()> {
    loop {
        poll_fn(|cx| reader.as_ref().poll_read_ready(cx)).await?;
        match reader.try_read(&mut [0; 512]) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}
