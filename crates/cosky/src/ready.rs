//! Registering an application when it is ready.

use std::{fmt, panic::AssertUnwindSafe, pin::Pin, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use tokio::time::{sleep, timeout};

use crate::{RegistrationState, entry::Entry};

/// The shortest and the longest pause between two checks.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(60));
/// How long one check may take.
const CHECK: Duration = Duration::from_secs(10);

/// What stands for an error when a check panics.
const PANICKED: &str = "the check panicked";

type Step<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What decides that an application may be found, for [`crate::NamespaceClient::register_when`].
///
/// ```
/// use cosky::Ready;
/// use tokio::net::TcpStream;
///
/// let warm = Ready::when(async { /* fill caches, open pools */ });
/// let open = Ready::check(|| async { TcpStream::connect("127.0.0.1:8080").await });
/// # drop((warm, open));
/// ```
pub struct Ready {
    ask: Ask,
    every: Duration,
}

enum Ask {
    Once(Step<()>),
    Repeatedly(Box<dyn FnMut() -> Step<Result<(), String>> + Send>),
}

impl Ready {
    /// Ready when `future` is done. One that never ends or panics never registers anything;
    /// [`crate::Registration::begin`] still does.
    pub fn when(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { ask: Ask::Once(Box::pin(future)), every: Duration::from_secs(1) }
    }

    /// Ready when `check` succeeds for the first time. It is repeated every second; one that takes 10 s or panics has failed. The
    /// first failure is logged, and the last one stands in [`crate::Vitals::last_error`].
    pub fn check<F, T, E>(mut check: impl FnMut() -> F + Send + 'static) -> Self
    where
        F: Future<Output = Result<T, E>> + Send + 'static,
        E: fmt::Display,
    {
        let step = move || -> Step<Result<(), String>> {
            let checked = check();
            Box::pin(async move { checked.await.map(drop).map_err(|error| error.to_string()) })
        };
        Self { ask: Ask::Repeatedly(Box::new(step)), every: Duration::from_secs(1) }
    }

    /// The pause between two checks: 1 s without this, 10 ms at least and 60 s at most.
    #[must_use]
    pub fn every(mut self, pause: Duration) -> Self {
        self.every = pause.clamp(PAUSES.0, PAUSES.1);
        self
    }

    /// Waits until it is ready; false when the entry stopped waiting before.
    pub(crate) async fn for_entry(self, entry: Arc<Entry>) -> bool {
        let mut state = entry.state.subscribe();
        // Every way out of the wait shows in the state.
        let other = async {
            let _ = state.wait_for(|state| *state != RegistrationState::Waiting).await;
        };
        tokio::select! {
            biased;
            () = other => false,
            () = self.passes(&entry) => true,
        }
    }

    async fn passes(self, entry: &Entry) {
        let mut check = match self.ask {
            Ask::Once(future) => {
                if AssertUnwindSafe(future).catch_unwind().await.is_err() {
                    tracing::error!(instance.id = %entry.id,
                        "what it waits for has panicked; it waits until it is told to begin");
                    entry.met(PANICKED);
                    std::future::pending::<()>().await;
                }
                return;
            }
            Ask::Repeatedly(check) => check,
        };
        let mut failures = 0u64;
        loop {
            let checked = AssertUnwindSafe(async { check().await }).catch_unwind();
            let Err(error) = (match timeout(CHECK, checked).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) => Err(PANICKED.to_owned()),
                Err(_) => Err(format!("no answer within {CHECK:?}")),
            }) else {
                break;
            };
            failures += 1;
            if failures == 1 {
                tracing::warn!(instance.id = %entry.id, error, every = ?self.every,
                    "not ready to be registered; checking on");
            }
            entry.met(&error);
            sleep(self.every).await;
        }
        if failures > 0 {
            tracing::info!(instance.id = %entry.id, failures, "ready to be registered");
        }
    }
}

impl fmt::Debug for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ready").field("every", &self.every).finish_non_exhaustive()
    }
}
