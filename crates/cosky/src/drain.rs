//! How a registration ends, step by step.

use std::{sync::Arc, time::Duration};

use cosky_core::{Error as CoreError, MetadataPatch, STATUS};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    OUT_OF_SERVICE, Result,
    beats::Keeper,
    entry::{Entry, Phase},
};

/// How long a drain waits for the new status to be set: it helps, and the deregistration that follows helps more.
const STATUS_LIMIT: Duration = Duration::from_secs(1);

/// What a handle holds.
#[derive(Clone)]
pub(crate) struct Held {
    pub(crate) entry: Arc<Entry>,
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) close_timeout: Duration,
    pub(crate) _beats: Arc<AbortOnDropHandle<()>>,
}

impl Held {
    pub(crate) async fn patch(&self, patch: &MetadataPatch) -> Result<()> {
        let entry = &self.entry;
        let _operation = entry.operation.lock().await;
        if entry.was_told() {
            let (registry, namespace) = (self.keeper.registry(), self.keeper.namespace());
            registry.patch_metadata(namespace, &entry.service, entry.id.as_str(), patch).await?;
            self.keeper.wrote(&entry.service);
        }
        let patched = entry.lock().registration.metadata.patched(patch)?;
        entry.set_metadata(patched);
        Ok(())
    }

    pub(crate) async fn deregister(&self) -> Result<bool> {
        self.keeper.goodbye(&self.entry);
        let limit = self.entry.lock().limits.timeout.unwrap_or(self.close_timeout);
        let mut state = self.entry.state.subscribe();
        if timeout(limit, state.wait_for(|state| state.is_final())).await.is_err() {
            let reason = format!(
                "the deregistration of {} was not answered within {limit:?}; it is tried on, and the instance leaves \
                 when its TTL is over",
                self.entry.id
            );
            return Err(CoreError::Unavailable { reason, maybe_applied: true, source: None }.into());
        }
        self.entry.outcome.get().cloned().unwrap_or(Ok(false))
    }

    pub(crate) async fn drain(&self, wait: Duration) -> Result<bool> {
        self.entry.drained.get_or_init(|| self.drain_now(wait)).await.clone()
    }

    async fn drain_now(&self, wait: Duration) -> Result<bool> {
        let entry = &self.entry;
        entry.begin_to_drain();
        if entry.phase() == Phase::Beating {
            let patch = MetadataPatch::new([(STATUS.to_owned(), Some(OUT_OF_SERVICE.to_owned()))])?;
            match timeout(STATUS_LIMIT, self.patch(&patch)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!(instance.id = %entry.id, %error, "draining without a status")
                }
                Err(_) => {
                    tracing::warn!(instance.id = %entry.id, limit = ?STATUS_LIMIT, "draining without a status");
                }
            }
        }
        let told = entry.was_told();
        let outcome = self.deregister().await;
        if let Err(error) = &outcome {
            tracing::warn!(instance.id = %entry.id, %error, "draining without a goodbye");
        }
        if told {
            tracing::info!(instance.id = %entry.id, ?wait, "drained when those who still know it are done");
            sleep(wait).await;
        }
        outcome
    }
}

/// Done when this process is told to end, by SIGTERM or SIGINT. Both are taken from the moment of the call on.
///
/// # Panics
/// Outside of a tokio runtime with I/O.
#[cfg(unix)]
pub fn terminated() -> impl Future<Output = ()> + Send + 'static {
    use tokio::signal::unix::{SignalKind, signal};

    let terminate = signal(SignalKind::terminate());
    let interrupt = signal(SignalKind::interrupt());
    async move {
        let (Ok(mut terminate), Ok(mut interrupt)) = (terminate, interrupt) else {
            tracing::error!("SIGTERM and SIGINT cannot be taken; they end the process as they always do");
            return std::future::pending().await;
        };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
}

/// Done when this process is told to end, by Ctrl-C.
#[cfg(not(unix))]
pub fn terminated() -> impl Future<Output = ()> + Send + 'static {
    async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
