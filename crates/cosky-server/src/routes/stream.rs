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
use futures_util::future::BoxFuture;
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

/// Time between two comment lines, and at most until the first, by which clients and proxies see that the stream lives.
const COMMENT_EVERY: Duration = Duration::from_secs(15);
const COMMENT: Bytes = Bytes::from_static(b":\n\n");
/// Without an id, so that the client resumes elsewhere from the last change that it was told.
const DRAINING: Bytes = Bytes::from_static(b"event: state\ndata: {\"state\":\"draining\"}\n\n");

pin_project! {
    /// One watcher's stream. Kept small, since there may be many thousands: no task, no channel, no buffer, one timer.
    /// Ends cleanly at its age or at the end of the credential, after a `state` event when the server drains, when
    /// the watcher fell behind, and when it may not watch any more, which is asked at each comment. Dropping it ends the
    /// subscription and gives the watcher's place back.
    pub(super) struct WatchBody {
        // None when it is over.
        changes: Option<WatchStream>,
        // Of the next comment, or of the end.
        #[pin]
        timer: Sleep,
        #[pin]
        draining: WaitForCancellationFutureOwned,
        ends: Instant,
        may_watch: MayWatch,
        // While it is being asked.
        asked: Option<BoxFuture<'static, bool>>,
        metrics: Arc<Metrics>,
        _counted: Counted,
        _place: OwnedSemaphorePermit,
    }
}

/// Asks whether the watcher may still watch.
pub(super) type MayWatch = Box<dyn Fn() -> BoxFuture<'static, bool> + Send>;

/// The text of a change, shared by all watchers.
struct Text(Arc<str>);

impl WatchBody {
    /// Streams `changes` for `age` at most.
    pub(super) fn new(
        changes: WatchStream,
        age: Duration,
        draining: CancellationToken,
        may_watch: MayWatch,
        metrics: Arc<Metrics>,
        place: OwnedSemaphorePermit,
    ) -> Self {
        let now = Instant::now();
        let ends = now + age;
        // The first comes sooner by chance: after a restart all watchers come at once, and their comments would too.
        let first = COMMENT_EVERY.mul_f64(rand::random());
        Self {
            changes: Some(changes),
            timer: sleep_until(ends.min(now + first)),
            draining: draining.cancelled_owned(),
            ends,
            may_watch,
            asked: None,
            _counted: metrics.watcher(),
            metrics,
            _place: place,
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
        // All before the changes, so that a stream which always has news ends in time as well.
        if this.draining.as_mut().poll(cx).is_ready() {
            *this.changes = None;
            return Poll::Ready(Some(Ok(Frame::data(DRAINING))));
        }
        if this.timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            if now >= *this.ends {
                *this.changes = None;
                return Poll::Ready(None);
            }
            this.timer.as_mut().reset((*this.ends).min(now + COMMENT_EVERY));
            this.asked.get_or_insert_with(this.may_watch);
            return Poll::Ready(Some(Ok(Frame::data(COMMENT))));
        }
        if let Some(asked) = this.asked
            && let Poll::Ready(yes) = asked.as_mut().poll(cx)
        {
            *this.asked = None;
            if !yes {
                *this.changes = None;
                return Poll::Ready(None);
            }
        }
        match ready!(changes.as_mut().poll_next(cx)) {
            Some(Ok(change)) => return Poll::Ready(Some(Ok(Frame::data(text(&change))))),
            Some(Err(Error::Lagged)) => this.metrics.watcher_cut(Cut::Lagged),
            Some(Err(error)) => tracing::debug!("a watch ended: {error}"),
            None => {}
        }
        *this.changes = None;
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

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use cosky_core::{Event, Index, ServiceId, ServiceOp, StoreState};
    use futures_util::stream;
    use prometheus_client::{encoding::text, registry::Registry};
    use tokio::{
        sync::Semaphore,
        time::{advance, timeout},
    };

    use super::*;

    const AGE: Duration = Duration::from_secs(100);

    struct Watched {
        body: Pin<Box<WatchBody>>,
        draining: CancellationToken,
        places: Arc<Semaphore>,
        /// What is answered to the question whether it may still watch; nothing yet, when absent.
        may: tokio::sync::watch::Sender<Option<bool>>,
        registry: Registry,
    }

    fn always() -> MayWatch {
        Box::new(|| Box::pin(std::future::ready(true)))
    }

    fn watched(changes: WatchStream) -> Watched {
        let mut registry = Registry::default();
        let metrics = Arc::new(Metrics::register(&mut registry));
        let (draining, places) = (CancellationToken::new(), Arc::new(Semaphore::new(1)));
        let place = Arc::clone(&places).try_acquire_owned().unwrap();
        let (may, told) = tokio::sync::watch::channel(Some(true));
        let may_watch: MayWatch = Box::new(move || {
            let mut told = told.clone();
            Box::pin(async move { told.wait_for(Option::is_some).await.unwrap().unwrap() })
        });
        let body = WatchBody::new(changes, AGE, draining.clone(), may_watch, metrics, place);
        Watched { body: Box::pin(body), draining, places, may, registry }
    }

    fn change(sequence: u64) -> Arc<Change> {
        let event = Event::Service { op: ServiceOp::Set, service: ServiceId::new("order").unwrap() };
        Arc::new(Change::new(Index { epoch: 1, sequence }, event))
    }

    impl Watched {
        async fn next(&mut self) -> Option<Bytes> {
            let frame = poll_fn(|cx| self.body.as_mut().poll_frame(cx)).await?.unwrap();
            Some(frame.into_data().unwrap())
        }

        /// Whether a metric stands so.
        fn shows(&self, line: &str) -> bool {
            let mut metrics = String::new();
            text::encode(&mut metrics, &self.registry).unwrap();
            metrics.lines().any(|l| l == line)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_stream_comments_until_its_age() {
        let mut watched = watched(Box::pin(stream::pending()));
        let (begun, tick) = (Instant::now(), Duration::from_millis(20));
        let mut last = begun;
        while let Some(comment) = watched.next().await {
            assert_eq!(comment, COMMENT);
            let since = last.elapsed();
            assert!(since < COMMENT_EVERY + tick, "{since:?}");
            assert!(last == begun || since >= COMMENT_EVERY, "{since:?}");
            last = Instant::now();
        }
        assert!(last > begun + 5 * COMMENT_EVERY, "{:?}", last - begun);
        assert!((AGE..AGE + tick).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        assert_eq!(watched.next().await, None, "and stays over");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_always_has_news_ends_in_time_as_well() {
        let mut watched = watched(Box::pin(stream::repeat_with(|| Ok(change(1)))));
        assert_eq!(watched.next().await.unwrap(), change(1).frame().as_bytes());
        advance(AGE).await;
        assert_eq!(watched.next().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn frames_are_shared_and_not_copied() {
        let change = change(1);
        let mut watched = watched(Box::pin(stream::iter([Ok(Arc::clone(&change))])));
        let sent = watched.next().await.unwrap();
        assert_eq!(sent.as_ptr(), change.frame().as_ptr());
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_wakes_an_idle_stream_and_ends_it() {
        let mut watched = watched(Box::pin(stream::pending()));
        while timeout(Duration::from_millis(1), watched.next()).await.is_ok() {}
        watched.draining.cancel();
        let state = Change::new(Index { epoch: 1, sequence: 1 }, Event::State(StoreState::Draining));
        let (_id, rest) = state.frame().split_once('\n').unwrap();
        assert_eq!(watched.next().await.unwrap(), rest.as_bytes());
        assert_eq!(watched.next().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn who_may_not_watch_any_more_is_told_nothing_after_the_next_comment() {
        let mut watched = watched(Box::pin(stream::pending()));
        while watched.body.asked.is_none() {
            assert_eq!(watched.next().await.unwrap(), COMMENT, "it may");
        }
        watched.may.send(Some(false)).unwrap();
        let revoked = Instant::now();
        while let Some(comment) = watched.next().await {
            assert_eq!(comment, COMMENT);
        }
        assert!(revoked.elapsed() <= COMMENT_EVERY, "{:?}", revoked.elapsed());
        assert_eq!(watched.next().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn changes_do_not_wait_for_the_answer_whether_it_may_watch() {
        let (changes, told) = tokio::sync::mpsc::channel(1);
        let told = stream::unfold(told, async |mut told| told.recv().await.map(|change| (change, told)));
        let mut watched = watched(Box::pin(told));
        watched.may.send(None).unwrap();
        assert_eq!(watched.next().await.unwrap(), COMMENT);
        changes.send(Ok(change(1))).await.unwrap();
        assert_eq!(watched.next().await.unwrap(), change(1).frame().as_bytes());
        assert_eq!(watched.next().await.unwrap(), COMMENT, "the answer is still not there");
        watched.may.send(Some(false)).unwrap();
        assert_eq!(watched.next().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn who_falls_behind_is_cut_off_and_counted() {
        let mut watched = watched(Box::pin(stream::iter([Ok(change(1)), Err(Error::Lagged), Ok(change(9))])));
        assert!(watched.shows("cosky_watchers 1"));
        assert!(watched.next().await.is_some());
        assert_eq!(watched.next().await, None);
        assert_eq!(watched.next().await, None, "nothing comes after the gap");
        assert!(watched.shows(r#"cosky_watchers_cut_total{reason="lagged"} 1"#));
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_the_view_ends_the_stream_and_is_no_fault_of_the_watcher() {
        for last in [None, Some(Err(Error::unavailable("the store is closed")))] {
            let mut watched = watched(Box::pin(stream::iter(last)));
            assert_eq!(watched.next().await, None);
            assert!(watched.shows(r#"cosky_watchers_cut_total{reason="lagged"} 0"#));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn dropping_it_gives_the_place_back() {
        let mut watched = watched(Box::pin(stream::pending()));
        assert_eq!(watched.places.available_permits(), 0);
        watched.body = Box::pin(WatchBody::new(
            Box::pin(stream::pending()),
            AGE,
            CancellationToken::new(),
            always(),
            Arc::new(Metrics::register(&mut Registry::default())),
            Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap(),
        ));
        assert_eq!(watched.places.available_permits(), 1);
        assert!(watched.shows("cosky_watchers 0"));
    }

    #[test]
    fn a_watcher_is_small() {
        assert!(size_of::<WatchBody>() <= 512, "{}", size_of::<WatchBody>());
    }
}
