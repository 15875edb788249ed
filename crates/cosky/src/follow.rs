//! A watch that goes on for ever.

use std::{fmt, sync::Arc, time::Duration};

use cosky_core::{Change, Error, Event, Index, Namespace, Registry, Scope, StoreState, WatchStream};
use futures_util::StreamExt as _;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::backoff::Backoff;

/// A stream that lived shorter than this is followed by the next one after a delay.
const SHORT: Duration = Duration::from_secs(2);
/// A server that does not remember the last change begins with a snapshot within this.
const SETTLE: Duration = Duration::from_secs(1);

/// Follows a namespace over every loss: resumes after the last change on any address, or starts again with a snapshot
/// when no server remembers it. Made by [`crate::NamespaceClient::watch`]; dropping it ends the subscription.
pub struct Watch {
    registry: Arc<dyn Registry>,
    namespace: Namespace,
    scope: Scope,
    last: Option<Index>,
    stream: Option<WatchStream>,
    /// When the last stream was asked for.
    asked: Instant,
    opened: Instant,
    /// Until when a stream that was opened after a loss may still begin with a snapshot.
    settles_at: Option<Instant>,
    retry_at: Option<Instant>,
    backoff: Backoff,
}

/// What a [`Watch`] tells.
#[derive(Debug, Clone)]
pub enum Watched {
    /// Something changed. A snapshot replaces all that was told before.
    Change(Arc<Change>),
    /// The stream goes on after the last change, and nothing happened since: what was told before is true again.
    Resumed,
    /// The stream was lost, or could not be opened again. What was told before is stale from now on until another
    /// item comes; the watch tries on by itself, every 100 ms to 2 s.
    Lost(Error),
}

impl Watch {
    pub(crate) fn new(registry: Arc<dyn Registry>, namespace: Namespace, scope: Scope) -> Self {
        let (asked, opened, backoff) = (Instant::now(), Instant::now(), Backoff::reconnect());
        let (last, stream, settles_at, retry_at) = (None, None, None, None);
        Self { registry, namespace, scope, last, stream, asked, opened, settles_at, retry_at, backoff }
    }

    /// The next thing to know. Never ends. May be cancelled at any time without losing a change.
    pub async fn next(&mut self) -> Watched {
        loop {
            if let Some(at) = self.retry_at {
                sleep_until(at).await;
                self.retry_at = None;
            }
            if self.stream.is_none() {
                self.asked = Instant::now();
            }
            let stream = match &mut self.stream {
                Some(stream) => stream,
                None => match self.registry.watch(&self.namespace, self.scope.clone(), self.last).await {
                    Ok(stream) => {
                        self.opened = Instant::now();
                        self.settles_at = self.last.map(|_| self.opened + SETTLE);
                        self.stream.insert(stream)
                    }
                    Err(error) => return self.lost(error),
                },
            };
            let item = match self.settles_at {
                None => stream.next().await,
                Some(end) => match timeout_at(end, stream.next()).await {
                    Ok(item) => item,
                    Err(_) => {
                        self.settles_at = None;
                        return Watched::Resumed;
                    }
                },
            };
            self.settles_at = None;
            match item {
                Some(Ok(change)) => {
                    self.last = Some(change.index);
                    if matches!(change.event, Event::State(StoreState::Draining)) {
                        self.end();
                    }
                    return Watched::Change(change);
                }
                // Its answer to a watcher that fell behind is a new snapshot, and its clean end asks to come again.
                Some(Err(Error::Lagged)) | None => self.end(),
                Some(Err(error)) => return self.lost(error),
            }
        }
    }

    /// Gives this stream up, as if it had been lost.
    pub(crate) fn lost(&mut self, error: Error) -> Watched {
        if matches!(error, Error::Corrupt { .. }) {
            // Resuming would meet the same event again.
            self.last = None;
        }
        if self.stream.take().is_some() && self.opened.elapsed() >= SHORT {
            self.backoff.reset();
        }
        // One that was waited for in vain has kept its distance from the next one already.
        let soonest = Instant::now() + Backoff::reconnect().delay();
        self.retry_at = Some(soonest.max(self.asked + self.backoff.delay()));
        Watched::Lost(error)
    }

    /// The stream ended well: the next one follows at once, unless streams end again and again.
    fn end(&mut self) {
        self.stream = None;
        if self.opened.elapsed() >= SHORT {
            self.backoff.reset();
        } else {
            self.retry_at = Some(Instant::now() + self.backoff.delay());
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("namespace", &self.namespace)
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}
