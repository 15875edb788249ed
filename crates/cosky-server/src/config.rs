//! What a server is told. The command line fills it; tests say what they need.

use std::{fmt, net::SocketAddr, time::Duration};

use cosky_core::{Ttl, account::ROOT};

/// The settings of one server.
#[derive(Clone)]
pub struct Config {
    /// Where `/metrics` is served openly. Without it `/metrics` is on the main address and needs a credential.
    pub metrics_listen: Option<SocketAddr>,
    /// Whether callers need a credential. Without it every request acts as root, so the address must be a loopback one,
    /// requests must name it so (`Host`, and `Origin` where there is one), and no API tokens are made, which would be
    /// good after a restart with authentication.
    pub auth: bool,
    /// How long an access token is good: 15 minutes, at least one second.
    pub access_token_ttl: Duration,
    /// How long a refresh token is good: 3 hours, at least one second.
    pub refresh_token_ttl: Duration,
    /// The life of an instance that names none: 30 seconds. The store is opened with the same.
    pub instance_ttl: Ttl,
    /// Root's password at the first start, at least 8 characters; a random one, when absent. Of no effect when there is
    /// a root account already.
    pub root_password: Option<String>,
    /// Is called once with the password that was made for root at the first start, when `root_password` gives none and
    /// [`crate::ensure_root`] was not called before. Prints it to standard error by default.
    pub announce: fn(&str),
    /// The mean age at which a watch stream ends, so that watchers spread over the servers again: 30 minutes. Each
    /// stream's own age lies within 20 % of it.
    pub stream_age: Duration,
    /// How long a shutdown waits for streams and requests: 10 seconds.
    pub shutdown_grace: Duration,
    /// What a client may ask for.
    pub limits: Limits,
}

/// What bounds a client. Every limit has an answer of its own and, where it is reached by many together, a metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a request's body, 1 MiB; above it 413.
    pub body_bytes: usize,
    /// Bytes of a request's line and headers together, 48 KiB, so that a watch can name many services; above it 431. At least 8 KiB.
    pub header_bytes: usize,
    /// Header fields of a request, 64; above it 431. At most 100.
    pub header_fields: usize,
    /// Open connections, 32,768; further ones wait in the kernel's queue.
    pub connections: usize,
    /// Open watch streams, 20,000; above it 429.
    pub watchers: usize,
    /// Waiting long polls, 4,096; above it 429.
    pub long_polls: usize,
    /// How long a client may take to send a request's line and headers, and how long a connection may stay idle between
    /// requests: 75 seconds.
    pub idle: Duration,
    /// How long a request may take, its body included, watches and long polls excepted: 30 seconds; after it 503.
    pub request: Duration,
    /// How long the body of a request may take to arrive: 10 seconds; after it 408, which says that nothing was
    /// written. To be less than `request`, which does not tell.
    pub body: Duration,
    /// How long data that was sent to a client may stay unacknowledged before its connection is cut: 30 seconds.
    pub unacknowledged: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            metrics_listen: None,
            auth: true,
            access_token_ttl: Duration::from_secs(15 * 60),
            refresh_token_ttl: Duration::from_secs(3 * 60 * 60),
            instance_ttl: Ttl::DEFAULT,
            root_password: None,
            announce: |password| eprintln!("the password of the user {ROOT}, not shown again: {password}"),
            stream_age: Duration::from_secs(30 * 60),
            shutdown_grace: Duration::from_secs(10),
            limits: Limits::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 1 << 20,
            header_bytes: 48 << 10,
            header_fields: 64,
            connections: 32_768,
            watchers: 20_000,
            long_polls: 4_096,
            idle: Duration::from_secs(75),
            request: Duration::from_secs(30),
            body: Duration::from_secs(10),
            unacknowledged: Duration::from_secs(30),
        }
    }
}

/// The password is not printed.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("metrics_listen", &self.metrics_listen)
            .field("auth", &self.auth)
            .field("access_token_ttl", &self.access_token_ttl)
            .field("refresh_token_ttl", &self.refresh_token_ttl)
            .field("instance_ttl", &self.instance_ttl)
            .field("root_password", &self.root_password.as_ref().map(|_| "…"))
            .field("stream_age", &self.stream_age)
            .field("shutdown_grace", &self.shutdown_grace)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
