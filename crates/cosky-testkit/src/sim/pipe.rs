//! What is on its way from a server to one watcher.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use cosky_core::{Change, Error, Event, Result};
use rand::{RngExt as _, rngs::StdRng};
use tokio::sync::Notify;

use super::link::{Freeze, Quality};

/// The stream of one watch, as it travels.
pub(super) struct Pipe {
    pub(super) link: usize,
    /// What arrives, and when, by time.
    queue: VecDeque<(Duration, Arc<Change>)>,
    /// When the last that kept its place arrives.
    last: Duration,
    end: Option<End>,
    pub(super) wake: Arc<Notify>,
}

/// How a stream ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The connection broke; what was on its way is lost.
    Cut,
    /// The server ended it, after everything that it had sent.
    Clean,
    /// The server cut off a watcher that fell behind.
    Lagged,
}

/// What a watcher gets when it looks.
pub(super) enum Taken {
    Item(Arc<Change>),
    /// The last item, or nothing more.
    Ended(Option<Error>),
    /// Nothing before this time.
    Wait(Option<Duration>),
}

/// What a link did to an event without anybody noticing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mishap {
    Dropped,
    Doubled,
    Overtaken,
}

impl Pipe {
    pub(super) fn new(link: usize) -> Self {
        Self { link, queue: VecDeque::new(), last: Duration::ZERO, end: None, wake: Arc::default() }
    }

    /// Sends a change that the server has at `at`.
    pub(super) fn send(
        &mut self,
        change: &Arc<Change>,
        at: Duration,
        quality: &Quality,
        rng: &mut StdRng,
    ) -> Option<Mishap> {
        if self.end.is_some() {
            return None;
        }
        let arrival = self.last.max(at + quality.delay.draw(rng));
        let may_fail = matches!(change.event, Event::Instance { .. } | Event::Service { .. });
        let mishap = if may_fail { quality.mishap(rng) } else { None };
        if mishap == Some(Mishap::Dropped) {
            return mishap;
        }
        let late = arrival + Duration::from_millis(rng.random_range(20..1_500));
        match mishap {
            Some(Mishap::Overtaken) => self.put(late, change),
            Some(_) => {
                self.put(arrival, change);
                self.put(late, change);
            }
            None => self.put(arrival, change),
        }
        if mishap != Some(Mishap::Overtaken) {
            self.last = arrival;
        }
        self.wake.notify_one();
        mishap
    }

    fn put(&mut self, at: Duration, change: &Arc<Change>) {
        let place = self.queue.partition_point(|(other, _)| *other <= at);
        self.queue.insert(place, (at, Arc::clone(change)));
    }

    /// Ends it. What has ended once does not end again in another way.
    pub(super) fn end(&mut self, end: End) {
        if end == End::Cut {
            self.queue.clear();
        }
        if self.end.is_none() || end == End::Cut {
            self.end = Some(end);
        }
        self.wake.notify_one();
    }

    /// What there is at `now`, through a link that may be frozen.
    pub(super) fn take(&mut self, now: Duration, freeze: Option<&Freeze>, silence: Duration) -> Taken {
        if self.end == Some(End::Cut) {
            return Taken::Ended(Some(Error::unavailable("the connection was cut")));
        }
        if let Some(freeze) = freeze.filter(|freeze| freeze.until > now) {
            let noticed = freeze.since + silence;
            if noticed <= now {
                return Taken::Ended(Some(Error::unavailable("nothing was heard for too long")));
            }
            return Taken::Wait(Some(freeze.until.min(noticed)));
        }
        if let Some((_, change)) = self.queue.pop_front_if(|(at, _)| *at <= now) {
            return Taken::Item(change);
        }
        match (self.queue.front(), self.end) {
            (Some((at, _)), _) => Taken::Wait(Some(*at)),
            (None, None) => Taken::Wait(None),
            (None, Some(End::Lagged)) => Taken::Ended(Some(Error::Lagged)),
            (None, Some(_)) => Taken::Ended(None),
        }
    }
}

impl Taken {
    /// As an item of a stream; `Err` with the time until which there is nothing.
    pub(super) fn item(self) -> Result<Option<Result<Arc<Change>>>, Option<Duration>> {
        match self {
            Self::Item(change) => Ok(Some(Ok(change))),
            Self::Ended(error) => Ok(error.map(Err)),
            Self::Wait(until) => Err(until),
        }
    }
}
