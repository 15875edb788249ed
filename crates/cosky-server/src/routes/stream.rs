//! The body of a watch: changes as server-sent events, until the stream's time is over.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use cosky_core::{Change, Error, WatchStream};
use http_body::{Body, Frame};
use pin_project_lite::pin_project;
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, Sleep, sleep_until},
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::{
    Metrics,
    metrics::{Counted, Cut},
};

/// Time between two comment lines, by which clients and proxies see that the stream lives.
const COMMENT_EVERY: Duration = Duration::from_secs(15);
/// How late a poll of the body may be before its connection counts as stuck.
const LATE: Duration = Duration::from_secs(1);
const COMMENT: Bytes = Bytes::from_static(b":\n\n");
/// Without an id, so that the client resumes elsewhere from the last change that it was told.
const DRAINING: Bytes = Bytes::from_static(b"event: state\ndata: {\"state\":\"draining\"}\n\n");

pin_project! {
    /// One watcher's stream. Kept small, since there may be many thousands: no task, no channel, no buffer, one timer.
    /// Ends cleanly at its age or at the end of the credential, after a `state` event when the server drains, and when
    /// the watcher fell behind. Dropping it ends the subscription and gives the watcher's place back.
    pub(super) struct WatchBody {
        changes: Option<WatchStream>,
        #[pin]
        timer: Sleep,
        #[pin]
        draining: WaitForCancellationFutureOwned,
        ends: Instant,
        watcher: Watcher,
    }
}

/// The place of one watcher, and how its stream stands.
pub(super) struct Watcher {
    metrics: Arc<Metrics>,
    /// When the timer is to be polled next.
    due: Instant,
    over: bool,
    _counted: Counted,
    _place: OwnedSemaphorePermit,
}

/// The text of a change, shared by all watchers.
struct Text(Arc<str>);

impl WatchBody {
    /// Streams `changes` for `age` at most.
    pub(super) fn new(
        changes: WatchStream,
        age: Duration,
        draining: CancellationToken,
        metrics: Arc<Metrics>,
        place: OwnedSemaphorePermit,
    ) -> Self {
        let now = Instant::now();
        let ends = now + age;
        let due = ends.min(now + COMMENT_EVERY);
        let counted = metrics.watcher();
        Self {
            changes: Some(changes),
            timer: sleep_until(due),
            draining: draining.cancelled_owned(),
            ends,
            watcher: Watcher { metrics, due, over: false, _counted: counted, _place: place },
        }
    }
}

impl Body for WatchBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let mut this = self.project();
        let Some(changes) = this.changes else { return Poll::Ready(None) };
        // Both before the changes, so that a stream which always has news ends in time as well.
        if this.draining.as_mut().poll(cx).is_ready() {
            *this.changes = None;
            this.watcher.over = true;
            return Poll::Ready(Some(Ok(Frame::data(DRAINING))));
        }
        if this.timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            if now >= *this.ends {
                *this.changes = None;
                this.watcher.over = true;
                return Poll::Ready(None);
            }
            this.watcher.due = (*this.ends).min(now + COMMENT_EVERY);
            this.timer.as_mut().reset(this.watcher.due);
            return Poll::Ready(Some(Ok(Frame::data(COMMENT))));
        }
        match ready!(changes.as_mut().poll_next(cx)) {
            Some(Ok(change)) => return Poll::Ready(Some(Ok(Frame::data(text(&change))))),
            Some(Err(Error::Lagged)) => this.watcher.metrics.watcher_cut(Cut::Lagged),
            Some(Err(error)) => tracing::debug!("a watch ended: {error}"),
            None => {}
        }
        *this.changes = None;
        this.watcher.over = true;
        Poll::Ready(None)
    }
}

fn text(change: &Change) -> Bytes {
    Bytes::from_owner(Text(Arc::clone(change.frame())))
}

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// A connection that takes nothing is not polled, so its body is not even late: it is dropped when the kernel gives
/// the peer up. A timer that is overdue by then tells it from a client that went away.
impl Drop for Watcher {
    fn drop(&mut self) {
        if !self.over && Instant::now() > self.due + LATE {
            self.metrics.watcher_cut(Cut::Stuck);
        }
    }
}
