//! What handlers share.

use std::{sync::Arc, time::Duration};

use cosky_core::{Store, UserName};
use prometheus_client::registry::Registry;
use rand::RngExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::{
    ApiError, Config, Metrics,
    auth::{Auth, Proof},
    config::Limits,
};

/// Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct AppState {
    /// The engine behind the routes.
    pub store: Arc<dyn Store>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// What the server was told.
    pub config: Arc<Config>,
    /// How many streams there may be, how old they get and when they end.
    pub streams: Streams,
    pub(crate) auth: Arc<Auth>,
    pub(crate) registry: Arc<Registry>,
    /// What the registry's routes remember; made by `Arc::default()`.
    pub(crate) shared: Arc<crate::routes::Shared>,
}

/// What concerns watch streams and long polls.
#[derive(Debug, Clone)]
pub struct Streams {
    drain: CancellationToken,
    age: Duration,
    watchers: Arc<Semaphore>,
    long_polls: Arc<Semaphore>,
}

/// Who calls. The auth layer puts it into the request's extensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The user for whom the credential acts.
    pub user: UserName,
    /// The end of the credential in seconds since 1970. A stream ends no later.
    pub expires_at: Option<u64>,
    /// By what a revocation of the credential is known.
    pub(crate) proof: Proof,
}

impl Streams {
    pub(crate) fn new(age: Duration, limits: &Limits) -> Self {
        Self {
            drain: CancellationToken::new(),
            age,
            watchers: Arc::new(Semaphore::new(limits.watchers)),
            long_polls: Arc::new(Semaphore::new(limits.long_polls)),
        }
    }

    /// Cancelled when the server begins to drain: a stream then says `draining` and ends, a long poll answers.
    pub fn draining(&self) -> &CancellationToken {
        &self.drain
    }

    /// How old a new stream may get: the configured age ± 20 %.
    pub fn age(&self) -> Duration {
        self.age.mul_f64(rand::rng().random_range(0.8..=1.2))
    }

    /// A place for one watch stream, until it is dropped.
    ///
    /// # Errors
    /// 503 while draining, 429 when all places are taken.
    pub fn watcher(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        self.place(&self.watchers, "too many watch streams are open on this server; use another address")
    }

    /// A place for one long poll, until it is dropped.
    ///
    /// # Errors
    /// 503 while draining, 429 when all places are taken.
    pub fn long_poll(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        self.place(&self.long_polls, "too many long polls wait on this server; use another address")
    }

    fn place(&self, places: &Arc<Semaphore>, full: &'static str) -> Result<OwnedSemaphorePermit, ApiError> {
        if self.drain.is_cancelled() {
            return Err(ApiError::shutting_down());
        }
        Arc::clone(places).try_acquire_owned().map_err(|_| ApiError::limit_reached(full))
    }
}
