//! Requests to one of several addresses, with the credential, within a time limit, and never twice when twice matters.

use std::{fmt, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use cosky_cache::Silence;
use cosky_core::{Error, Result, wire};
use reqwest::{
    Method, Response, StatusCode,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue},
};
use tokio::time::{Instant, timeout, timeout_at};

use crate::{
    NotCosky, TooOld,
    address::Addresses,
    connections::{Connections, Pool},
    credentials::{Bearer, Credentials, Source},
    decode,
    version::{self, Version},
};

/// The most bytes of one answer.
const ANSWER_BYTES: usize = 64 * 1024 * 1024;
/// The most bytes that are read of an answer that is not a cosky server's.
const STRANGER_BYTES: usize = 4 * 1024;
/// The header of every answer of the JVM's server (compat §4.1).
const REQUEST_ID: &str = "cosec-request-id";
/// A limit of a request that is no limit.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// An attempt that its caller gave up after this long counts against the address.
const GIVEN_UP: Duration = Duration::from_millis(250);

/// How long things may take. All of them are limits of single steps, none is a sleep.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeouts {
    /// Until a TCP and TLS connection stands.
    pub(crate) connect: Duration,
    /// Until an answer is complete, over all addresses together.
    pub(crate) request: Duration,
    /// Until the next byte of a stream. Servers send a comment every 15 s.
    pub(crate) silence: Duration,
}

/// What carries requests. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Transport {
    inner: Arc<Inner>,
}

struct Inner {
    connections: Connections,
    addresses: Addresses,
    credentials: Credentials,
    timeouts: Timeouts,
}

/// Whether a request whose answer was lost may be sent again (P7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Twice is as good as once.
    Always,
    /// Only when it is certain that no server began to work on it.
    OnlyUnsent,
}

/// A request.
#[derive(Debug)]
pub(crate) struct Call {
    method: Method,
    /// Path and query.
    path: String,
    headers: HeaderMap,
    body: Option<Bytes>,
    repeat: Repeat,
    within: Option<Duration>,
    stream: bool,
    /// The address to ask first.
    first: Option<usize>,
}

/// An answer, whatever its status.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// The rest of an event stream; only for a call that asked for one, and only of status 200.
    pub(crate) stream: Option<Response>,
    /// Who answered.
    pub(crate) address: usize,
}

/// Why an address did not serve, and whether it may have worked on the request all the same.
pub(crate) struct Failure {
    pub(crate) error: Error,
    perhaps_applied: bool,
    /// Whether the address is to be asked last for a while.
    blame: bool,
    /// How long the server asked to stay away.
    pub(crate) retry_after: Option<Duration>,
}

/// What is known of an answer without a version.
struct Greeting {
    status: StatusCode,
    /// Whether it is a CoSky server of the JVM.
    jvm: bool,
}

/// Blames the address and its connections when an attempt is dropped before it ends.
struct Attempt<'a> {
    inner: &'a Inner,
    at: usize,
    pool: Arc<Pool>,
    since: Instant,
    ended: bool,
}

impl Call {
    /// A request without a body. Reads may be repeated, everything else only when [`Call::repeat`] says so.
    pub(crate) fn new(method: Method, path: String) -> Self {
        let repeat = if method == Method::GET { Repeat::Always } else { Repeat::OnlyUnsent };
        let headers = HeaderMap::new();
        Self { method, path, headers, body: None, repeat, within: None, stream: false, first: None }
    }

    pub(crate) fn body<T: serde::Serialize>(mut self, body: &T) -> Self {
        let json =
            serde_json::to_vec(body).expect("texts, numbers and maps of texts always have a JSON form");
        self.body = Some(json.into());
        self.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self
    }

    pub(crate) fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    pub(crate) fn repeat(mut self, repeat: Repeat) -> Self {
        self.repeat = repeat;
        self
    }

    /// Another limit than the client's.
    pub(crate) fn within(mut self, limit: Duration) -> Self {
        self.within = Some(limit);
        self
    }

    /// Asks this address first, if there is one and it did not fail lately.
    pub(crate) fn first(mut self, address: Option<usize>) -> Self {
        self.first = address;
        self
    }

    /// Leaves the body of an answer of status 200 to be read piece by piece.
    pub(crate) fn stream(mut self) -> Self {
        self.stream = true;
        self
    }

    fn is_read(&self) -> bool {
        self.method == Method::GET
    }
}

impl Transport {
    pub(crate) fn new(addresses: Addresses, source: Source, timeouts: Timeouts) -> crate::Result<Self> {
        let connections = Connections::new(timeouts, addresses.all_plain())
            .map_err(|error| crate::Error::config("TLS", format!("cannot be set up: {}", chain(&error))))?;
        let credentials = Credentials::new(source)?;
        Ok(Self { inner: Arc::new(Inner { connections, addresses, credentials, timeouts }) })
    }

    pub(crate) fn credentials(&self) -> &Credentials {
        &self.inner.credentials
    }

    pub(crate) fn timeouts(&self) -> Timeouts {
        self.inner.timeouts
    }

    /// Notes that an address is about to stop.
    pub(crate) fn avoid(&self, address: usize) {
        self.inner.addresses.failed(address);
    }

    /// The next piece of a stream of `address`; `None` at its end.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when it breaks off or was silent for too long; the address is asked last for a while then.
    pub(crate) async fn next_chunk(&self, response: &mut Response, address: usize) -> Result<Option<Bytes>> {
        let silence = self.inner.timeouts.silence;
        let reason = match timeout(silence, response.chunk()).await {
            Ok(Ok(chunk)) => return Ok(chunk),
            Ok(Err(error)) => format!("the stream broke off: {}", chain(&error)),
            Err(_) => {
                self.inner.connections.give_up(&self.inner.connections.pool());
                self.avoid(address);
                return Err(Error::Unavailable {
                    reason: format!("the stream was silent for {silence:?}"),
                    maybe_applied: false,
                    source: Some(Arc::new(Silence(silence))),
                });
            }
        };
        self.avoid(address);
        Err(Error::unavailable(reason))
    }

    /// Sends `call` with the credential, and again after a 401 when the credential could be renewed.
    ///
    /// # Errors
    /// What [`decode::refusal`] makes of any status but 200, and what [`Transport::exchange`] says.
    pub(crate) async fn call(&self, call: &Call) -> Result<Answer> {
        let bearer = self.inner.credentials.bearer(self).await?;
        let mut answer = self.exchange(call, bearer.as_ref()).await?;
        if answer.status == StatusCode::UNAUTHORIZED {
            let Some(bearer) = bearer else { return Err(no_credential(&answer)) };
            // A server that refused a credential has not looked at the request.
            let renewed = self.inner.credentials.after_refusal(self, &bearer).await?;
            answer = self.exchange(call, Some(&renewed)).await?;
        }
        if answer.status == StatusCode::OK { Ok(answer) } else { Err(decode::refusal(&answer)) }
    }

    /// Sends `call` to one address after the other until one answers.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when none did, with `maybe_applied` for a write that a server may have begun.
    pub(crate) async fn exchange(&self, call: &Call, bearer: Option<&Bearer>) -> Result<Answer> {
        self.send(call, bearer).await.map_err(|failure| failure.error)
    }

    /// As [`Transport::exchange`], and tells of the last address when it asked to come again.
    pub(crate) async fn send(&self, call: &Call, bearer: Option<&Bearer>) -> Result<Answer, Failure> {
        let addresses = &self.inner.addresses;
        let order = match call.first {
            _ if call.stream => addresses.random_order(),
            Some(first) => addresses.order_after(first),
            None => addresses.order(),
        };
        let end = Instant::now() + call.within.unwrap_or(self.inner.timeouts.request).min(FOR_EVER);
        let mut last = None;
        for (tried, at) in order.iter().copied().enumerate() {
            let left = end.saturating_duration_since(Instant::now());
            // A server that hangs must leave time for another one, and a stream that does not begin for the next try:
            // views have 5 s to be true again.
            let limit = if tried + 1 < order.len() {
                left / 2
            } else if call.stream {
                left.min(self.inner.timeouts.request / 2)
            } else {
                left
            };
            let pool = self.inner.connections.pool();
            let mut attempt = Attempt { inner: &self.inner, at, pool, since: Instant::now(), ended: false };
            let result = self.attempt(&attempt, call, bearer, limit).await;
            attempt.ended = true;
            match result {
                Ok(answer) => {
                    addresses.served(at);
                    return Ok(answer);
                }
                Err(failure) => {
                    tracing::debug!(address = addresses.base(at), error = %failure.error, "address did not serve");
                    if failure.blame {
                        addresses.failed(at);
                    }
                    if failure.perhaps_applied && call.repeat == Repeat::OnlyUnsent {
                        return Err(failure);
                    }
                    last = Some(failure);
                }
            }
        }
        Err(last.unwrap_or_else(|| Failure {
            error: Error::unavailable("there is no address to ask"),
            perhaps_applied: false,
            blame: false,
            retry_after: None,
        }))
    }

    async fn attempt(
        &self,
        Attempt { at, pool, .. }: &Attempt<'_>,
        call: &Call,
        bearer: Option<&Bearer>,
        limit: Duration,
    ) -> Result<Answer, Failure> {
        let at = *at;
        let address = self.inner.addresses.base(at);
        let end = Instant::now() + limit;
        let mut request = pool.client.request(call.method.clone(), format!("{address}{}", call.path));
        request = request.headers(call.headers.clone());
        if let Some(bearer) = bearer {
            request = request.header(AUTHORIZATION, bearer.value.clone());
        }
        if let Some(body) = &call.body {
            request = request.body(body.clone());
        }
        let late = || {
            self.inner.connections.give_up(pool);
            Failure {
                error: unavailable(call, format!("{address} did not answer within {}", rounded(limit)), None),
                perhaps_applied: true,
                blame: true,
                retry_after: None,
            }
        };
        let mut response = timeout_at(end, request.send()).await.map_err(|_| late())?.map_err(|error| {
            let sent = !error.is_connect() && !error.is_builder();
            // The address is told already, and a query may hold an owner's nonce.
            let error = error.without_url();
            let reason = format!("{address} cannot be reached: {}", chain(&error));
            let error = match unavailable(call, reason, Some(error)) {
                Error::Unavailable { reason, source, maybe_applied } => {
                    Error::Unavailable { reason, source, maybe_applied: maybe_applied && sent }
                }
                other => other,
            };
            Failure { error, perhaps_applied: sent, blame: true, retry_after: None }
        })?;
        let status = response.status();
        if !response.headers().contains_key(wire::VERSION) {
            return Err(stranger(call, address, timeout_at(end, Greeting::of(response)).await.ok()));
        }
        if version_of(response.headers()).is_some_and(|version| version < version::OLDEST) {
            let missing = format!("at least version {} is needed", version::OLDEST);
            let error = done_perhaps(too_old(address, response.headers(), missing), call);
            return Err(Failure { error, perhaps_applied: !call.is_read(), blame: true, retry_after: None });
        }
        let headers = std::mem::take(response.headers_mut());
        if call.stream && status == StatusCode::OK {
            return Ok(Answer { status, headers, body: Bytes::new(), stream: Some(response), address: at });
        }
        let body =
            timeout_at(end, collect(response)).await.map_err(|_| late())?.map_err(|reason| Failure {
                error: unavailable(call, format!("the answer of {address} broke off: {reason}"), None),
                perhaps_applied: true,
                blame: true,
                retry_after: None,
            })?;
        let answer = Answer { status, headers, body, stream: None, address: at };
        if decode::is_unknown_path(&answer) {
            let path = call.path.split('?').next().unwrap_or_default();
            let missing = format!("does not know {} {path}", call.method);
            let error = too_old(address, &answer.headers, missing);
            // It serves everything else, and another one may be newer.
            return Err(Failure { error, perhaps_applied: false, blame: false, retry_after: None });
        }
        if status == StatusCode::SERVICE_UNAVAILABLE {
            let error = decode::refusal(&answer);
            let perhaps_applied = matches!(error, Error::Unavailable { maybe_applied: true, .. });
            return Err(Failure {
                error: if call.is_read() { settled(error) } else { error },
                perhaps_applied,
                blame: true,
                retry_after: decode::retry_after(&answer.headers),
            });
        }
        Ok(answer)
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.ended && self.since.elapsed() >= GIVEN_UP {
            self.inner.addresses.failed(self.at);
            self.inner.connections.give_up(&self.pool);
        }
    }
}

/// An [`Error::Unavailable`]; of a write it is not known whether it was applied.
fn unavailable(call: &Call, reason: String, source: Option<reqwest::Error>) -> Error {
    let source = source.map(|source| Arc::new(source) as Arc<dyn std::error::Error + Send + Sync>);
    Error::Unavailable { reason, maybe_applied: !call.is_read(), source }
}

/// The same error of a write that the server may have done, whatever this client thinks of the server.
fn done_perhaps(error: Error, call: &Call) -> Error {
    match error {
        Error::Unavailable { reason, source, .. } => {
            Error::Unavailable { reason, source, maybe_applied: !call.is_read() }
        }
        other => other,
    }
}

/// The same error of what leaves nothing behind of which one could not know: a read, or a call that was not even sent.
pub(crate) fn settled(error: Error) -> Error {
    match error {
        Error::Unavailable { reason, source, .. } => {
            Error::Unavailable { reason, maybe_applied: false, source }
        }
        other => other,
    }
}

fn no_credential(answer: &Answer) -> Error {
    let advice = "this client has no credential: give it a token, a token file, or user and password";
    match decode::refusal(answer) {
        Error::Unauthorized { reason } => Error::Unauthorized { reason: format!("{reason}; {advice}") },
        other => other,
    }
}

/// The version in an answer; `None` for one that is not told in numbers.
fn version_of(headers: &HeaderMap) -> Option<Version> {
    Version::parse(headers.get(wire::VERSION)?.to_str().ok()?)
}

fn too_old(address: &str, headers: &HeaderMap, missing: String) -> Error {
    let server = headers.get(wire::VERSION).map(|version| String::from_utf8_lossy(version.as_bytes()).into());
    let server = server.unwrap_or_default();
    TooOld { address: address.to_owned(), server, client: version::CLIENT, missing }.into()
}

/// The answer of something that is not a cosky server, or of a gateway that cannot reach one. Without a `greeting` it
/// did not end in time.
fn stranger(call: &Call, address: &str, greeting: Option<Greeting>) -> Failure {
    let Some(Greeting { status, jvm }) = greeting else {
        let error = unavailable(call, format!("something at {address} does not end its answer"), None);
        return Failure { error, perhaps_applied: true, blame: true, retry_after: None };
    };
    match status {
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => Failure {
            error: unavailable(call, format!("a gateway answers {status} at {address}"), None),
            perhaps_applied: true,
            blame: true,
            retry_after: None,
        },
        _ => {
            let error = NotCosky { address: address.to_owned(), status: status.as_u16(), jvm }.into();
            // The JVM's server has the same REST API, and may have done what it was told.
            let error = if jvm { done_perhaps(error, call) } else { error };
            Failure { error, perhaps_applied: jvm && !call.is_read(), blame: true, retry_after: None }
        }
    }
}

impl Greeting {
    async fn of(mut response: Response) -> Self {
        let status = response.status();
        let mut jvm = response.headers().contains_key(REQUEST_ID);
        let mut body = BytesMut::new();
        while !jvm && body.len() < STRANGER_BYTES {
            let Ok(Some(chunk)) = response.chunk().await else { break };
            body.extend_from_slice(&chunk);
        }
        jvm |= decode::is_jvm_refusal(&body);
        Self { status, jvm }
    }
}

async fn collect(mut response: Response) -> Result<Bytes, String> {
    let mut body = BytesMut::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| chain(&error))? {
        if body.len() + chunk.len() > ANSWER_BYTES {
            return Err(format!("it is larger than {ANSWER_BYTES} bytes"));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

/// A duration as people say it: `5 s`, `2.5 s`, `250 ms`. What is left of a limit is never round by itself.
pub(crate) fn rounded(duration: Duration) -> String {
    let tenths = (duration.as_millis() + 50) / 100;
    match (tenths / 10, tenths % 10) {
        (0, _) => format!("{} ms", duration.as_micros().div_ceil(1000)),
        (seconds, 0) => format!("{seconds} s"),
        (seconds, tenths) => format!("{seconds}.{tenths} s"),
    }
}

/// An error with its causes, in one line. reqwest keeps the telling part in the last one.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport").field("addresses", &self.inner.addresses).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_limit_is_told_as_the_limit() {
        for (micros, told) in [
            (4_999_817, "5 s"),
            (5_000_000, "5 s"),
            (2_499_960, "2.5 s"),
            (1_000_001, "1 s"),
            (949_000, "949 ms"),
            (249_991, "250 ms"),
            (0, "0 ms"),
        ] {
            assert_eq!(rounded(Duration::from_micros(micros)), told, "{micros}");
        }
    }
}
