//! A watch that goes on for ever.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use cosky_core::{Change, Error, Event, Index, Namespace, Registry, Result, Scope, StoreState, WatchStream};
use futures_util::StreamExt as _;
use tokio::time::{Instant, sleep_until};

use crate::backoff::Backoff;

/// A stream that lived shorter than this is followed by the next one after a delay.
const SHORT: Duration = Duration::from_secs(2);
/// A server that does not remember the last change begins with a snapshot within this.
const SETTLE: Duration = Duration::from_secs(1);
/// A stream that ended well is followed by the next one within this, or what it told is stale.
const GAP: Duration = Duration::from_secs(1);
/// So many refusals of a stream of another scope in a row are told.
const TOLD: u32 = 2;
/// So many in a row for want of a place for watchers: then the one that stands takes the last place.
const FULL: u32 = 3;
/// Other scopes are not asked for more often than this: names come and go together.
const PAUSE: Duration = Duration::from_millis(5);

/// Follows a namespace over every loss: resumes after the last change on any address, or starts again with a snapshot
/// when no server remembers it. Dropping it ends the subscription.
pub struct Watch {
    feed: Feed,
}

/// What a [`Watch`] tells.
#[derive(Debug, Clone)]
pub enum Watched {
    /// Something changed. A snapshot replaces all that was told before.
    Change(Arc<Change>),
    /// The stream goes on after the last change, and nothing happened since: what was told before is true again.
    Resumed,
    /// The stream was lost, or could not be opened again. What was told before is stale from now on until another
    /// item comes; the watch tries on by itself, after 50 ms at first and at most 3 s later.
    Lost(Error),
}

/// A watch whose scope can be changed: the old stream goes on until the new one stands.
pub(crate) struct Feed {
    registry: Arc<dyn Registry>,
    namespace: Namespace,
    /// What is wanted.
    scope: Scope,
    /// Whether the stream is of another scope, or must begin with a snapshot.
    renew: Option<Renew>,
    last: Option<Index>,
    stream: Option<WatchStream>,
    opening: Option<Opening>,
    /// When the last stream was asked for.
    asked: Instant,
    opened: Instant,
    /// Until when a stream that was opened after the last change may still begin with a snapshot.
    settles_at: Option<Instant>,
    /// Until when the next stream must stand after one that ended well.
    gap_until: Option<Instant>,
    /// Refusals in a row while a stream stands.
    refusals: u32,
    retry_at: Option<Instant>,
    backoff: Backoff,
}

/// What a [`Feed`] tells.
pub(crate) enum Fed {
    /// A stream stands. Unless it resumes, its first item is a snapshot.
    Opened { scope: Scope, resumes: bool },
    /// The stream stands, but another one that is wanted in its place is refused again and again.
    Refused(Error),
    /// What the watch tells.
    Told(Watched),
}

/// How the next stream differs from the one that stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Renew {
    /// Another scope, after the last change.
    Scope,
    /// It begins with a snapshot.
    Afresh,
}

/// A stream that was asked for.
struct Opening {
    scope: Scope,
    resumes: bool,
    afresh: bool,
    answer: Pin<Box<dyn Future<Output = Result<WatchStream>> + Send>>,
}

/// The source of an [`Error::Unavailable`] by which a stream says for how long it had been silent: what it told before is
/// as old as that.
#[derive(Debug, Clone, Copy)]
pub struct Silence(pub Duration);

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nothing was heard for {:?}", self.0)
    }
}

impl std::error::Error for Silence {}

impl Watch {
    /// A watch of what `scope` covers. Nothing is asked before the first [`Watch::next`].
    pub fn new(registry: Arc<dyn Registry>, namespace: Namespace, scope: Scope) -> Self {
        Self { feed: Feed::new(registry, namespace, scope, None) }
    }

    /// The next thing to know. Never ends. May be cancelled at any time without losing a change.
    pub async fn next(&mut self) -> Watched {
        loop {
            if let Fed::Told(watched) = self.feed.next().await {
                return watched;
            }
        }
    }
}

impl Feed {
    pub(crate) fn new(
        registry: Arc<dyn Registry>,
        namespace: Namespace,
        scope: Scope,
        seed: Option<u64>,
    ) -> Self {
        let now = Instant::now();
        Self {
            registry,
            namespace,
            scope,
            renew: None,
            last: None,
            stream: None,
            opening: None,
            asked: now,
            opened: now,
            settles_at: None,
            gap_until: None,
            refusals: 0,
            retry_at: None,
            backoff: Backoff::of_stream(seed),
        }
    }

    /// What is followed, or will be as soon as a stream stands.
    pub(crate) fn scope(&self) -> &Scope {
        &self.scope
    }

    pub(crate) fn is_open(&self) -> bool {
        self.stream.is_some()
    }

    /// Follows `scope` from now on.
    pub(crate) fn follow(&mut self, scope: Scope) {
        self.scope = scope;
        self.renew = self.renew.or(Some(Renew::Scope));
    }

    /// Begins anew with a snapshot, as soon as a new stream stands. False when it is about to anyway.
    pub(crate) fn begin_anew(&mut self) -> bool {
        if self.renew == Some(Renew::Afresh) {
            return false;
        }
        self.renew = Some(Renew::Afresh);
        if self.opened.elapsed() < SHORT {
            self.retry_at = Some(Instant::now() + self.backoff.delay());
        }
        true
    }

    /// The next thing to know. Never ends. May be cancelled at any time without losing a change.
    pub(crate) async fn next(&mut self) -> Fed {
        loop {
            let wanted = self.stream.is_none() || self.renew.is_some();
            if wanted && self.opening.is_none() && self.retry_at.is_none() {
                let soonest = self.asked + PAUSE;
                if self.stream.is_some() && Instant::now() < soonest {
                    self.retry_at = Some(soonest);
                } else {
                    self.ask();
                }
            }
            tokio::select! {
                biased;
                opened = answered(&mut self.opening) => {
                    if let Some(fed) = self.stands(opened) {
                        return fed;
                    }
                }
                item = told(&mut self.stream) => {
                    if let Some(watched) = self.take(item) {
                        return Fed::Told(watched);
                    }
                }
                () = reached(self.settles_at) => {
                    self.settles_at = None;
                    return Fed::Told(Watched::Resumed);
                }
                () = reached(self.gap_until) => {
                    self.gap_until = None;
                    let reason = format!("the stream ended, and no other stood within {GAP:?}");
                    return Fed::Told(Watched::Lost(Error::unavailable(reason)));
                }
                () = reached(self.retry_at) => self.retry_at = None,
            }
        }
    }

    fn ask(&mut self) {
        self.asked = Instant::now();
        let afresh = self.renew == Some(Renew::Afresh);
        let from = self.last.filter(|_| !afresh);
        let (registry, namespace, scope) =
            (self.registry.clone(), self.namespace.clone(), self.scope.clone());
        let answer = Box::pin(async move { registry.watch(&namespace, scope, from).await });
        self.opening = Some(Opening { scope: self.scope.clone(), resumes: from.is_some(), afresh, answer });
    }

    /// What to tell of the answer to the question for a stream.
    fn stands(&mut self, (opening, answer): (Opening, Result<WatchStream>)) -> Option<Fed> {
        match answer {
            Ok(stream) => {
                self.stream = Some(stream);
                self.opened = Instant::now();
                self.gap_until = None;
                self.refusals = 0;
                if opening.afresh {
                    self.last = None;
                }
                // Something else may have been wished for since it was asked.
                self.renew = match self.renew {
                    Some(Renew::Afresh) if !opening.afresh => Some(Renew::Afresh),
                    _ if opening.scope != self.scope => Some(Renew::Scope),
                    _ => None,
                };
                self.settles_at = opening.resumes.then(|| self.opened + SETTLE);
                Some(Fed::Opened { scope: opening.scope, resumes: opening.resumes })
            }
            Err(error) if self.stream.is_some() => {
                self.refusals = self.refusals.saturating_add(1);
                let full = matches!(error, Error::Exhausted { what: "watchers", .. });
                if full && self.refusals >= FULL {
                    // The one that stands may take the last place.
                    self.stream = None;
                    self.refusals = 0;
                    self.gap_until = Some(Instant::now() + GAP);
                    self.retry_at = Some(Instant::now() + self.backoff.shortest());
                } else {
                    self.retry_at = Some(self.asked + self.backoff.delay());
                }
                (self.refusals >= TOLD && !full).then_some(Fed::Refused(error))
            }
            Err(error) => Some(Fed::Told(self.lost(error))),
        }
    }

    fn take(&mut self, item: Option<Result<Arc<Change>>>) -> Option<Watched> {
        self.settles_at = None;
        match item {
            Some(Ok(change)) => {
                if matches!(change.event, Event::State(StoreState::Draining)) {
                    self.end();
                } else {
                    self.last = Some(change.index);
                }
                Some(Watched::Change(change))
            }
            // Its answer to a watcher that fell behind is a new snapshot, and its clean end asks to come again.
            Some(Err(Error::Lagged)) | None => {
                self.end();
                None
            }
            Some(Err(error)) => Some(self.lost(error)),
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
        self.settles_at = None;
        self.gap_until = None;
        self.refusals = 0;
        self.opening = None;
        // One that was waited for in vain has kept its distance from the next one already.
        let soonest = Instant::now() + self.backoff.shortest();
        self.retry_at = Some(soonest.max(self.asked + self.backoff.delay()));
        Watched::Lost(error)
    }

    /// Gives this stream up because it cannot be gone on from: the next one begins with a snapshot.
    pub(crate) fn refuse(&mut self, error: Error) -> Watched {
        self.last = None;
        self.lost(error)
    }

    /// Looks for another stream at once, since the one that stands may have died unnoticed.
    pub(crate) fn doubt(&mut self, error: Error) -> Watched {
        let watched = self.lost(error);
        self.retry_at = None;
        watched
    }

    /// The stream ended well: the next one follows at once, unless streams end again and again.
    fn end(&mut self) {
        self.stream = None;
        self.gap_until = Some(Instant::now() + GAP);
        if self.opened.elapsed() >= SHORT {
            self.backoff.reset();
        } else {
            // In time to leave no gap: a server that ends streams well is there.
            self.retry_at = Some(Instant::now() + self.backoff.delay().min(GAP / 2));
        }
    }
}

async fn answered(opening: &mut Option<Opening>) -> (Opening, Result<WatchStream>) {
    let Some(waiting) = opening else { return std::future::pending().await };
    let answer = waiting.answer.as_mut().await;
    let opening = opening.take().expect("it was there and nobody else has it");
    (opening, answer)
}

async fn told(stream: &mut Option<WatchStream>) -> Option<Result<Arc<Change>>> {
    match stream {
        Some(stream) => stream.next().await,
        None => std::future::pending().await,
    }
}

async fn reached(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("namespace", &self.feed.namespace)
            .field("scope", &self.feed.scope)
            .finish_non_exhaustive()
    }
}
