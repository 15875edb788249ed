//! The second net: what is cached against the registry's digest.

use std::{pin::Pin, sync::Arc, time::Duration};

use cosky_core::{Error, Index, Namespace, Read, Registry, Result};

use crate::{
    backoff::Jitter,
    kind::Kind,
    space::{Now, Space},
};

/// Bytes of all names of one question: it travels in a line of a request.
const NAME_BYTES: usize = 4096;
/// When the registry's digest is of a later change than the last one heard, that one may still be under way, or it may be
/// of other names. It is asked once more after this.
const AGAIN: Duration = Duration::from_secs(1);

/// Longer than this is never.
const SELDOM: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Compares from time to time, some names after the others.
pub(crate) struct Comparison<K: Kind> {
    every: Duration,
    jitter: Jitter,
    due: Option<Duration>,
    /// Where the next question begins.
    next: Option<K::Name>,
    question: Option<Question<K>>,
    suspicion: Option<Suspicion<K>>,
}

/// What the registry said of these names.
pub(crate) struct Answer<K: Kind> {
    names: Vec<K::Name>,
    told: Result<Read<u64>>,
    asked: Now,
}

/// What came of it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) compared: bool,
    pub(crate) differed: bool,
}

type Question<K> = Pin<Box<dyn Future<Output = Answer<K>> + Send>>;

/// A digest that differed, though a change may have been under way.
struct Suspicion<K: Kind> {
    names: Vec<K::Name>,
    at: Option<Index>,
}

impl<K: Kind> Comparison<K> {
    /// One that compares everything once in `every`, ± 10 %; never when that is zero.
    pub(crate) fn new(every: Duration, seed: Option<u64>) -> Self {
        let every = every.min(SELDOM);
        Self { every, jitter: Jitter::new(seed), due: None, next: None, question: None, suspicion: None }
    }

    /// Asks when it is time to and nothing is under way.
    pub(crate) fn begin(
        &mut self,
        registry: &Arc<dyn Registry>,
        namespace: &Namespace,
        names: impl FnOnce() -> Vec<K::Name>,
        now: Now,
    ) {
        if self.every.is_zero() || self.question.is_some() {
            return;
        }
        let due = *self.due.get_or_insert_with(|| now.clock + self.jitter.around(self.every));
        if now.clock < due {
            return;
        }
        let names = match &self.suspicion {
            Some(suspicion) => suspicion.names.clone(),
            None => self.some_of(names(), now),
        };
        let (registry, namespace) = (registry.clone(), namespace.clone());
        self.question = Some(Box::pin(async move {
            let told = registry.digest(&namespace, &K::scope(names.iter().cloned().collect())).await;
            Answer { names, told, asked: now }
        }));
    }

    /// When it will ask, as far as it is known.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.due.filter(|_| self.question.is_none())
    }

    /// Waits for the answer; for ever when nothing was asked. May be cancelled at any time.
    pub(crate) async fn answer(&mut self) -> Answer<K> {
        let Some(question) = &mut self.question else { return std::future::pending().await };
        let answer = question.await;
        self.question = None;
        answer
    }

    /// Compares what the registry said with what is known.
    pub(crate) fn judge(&mut self, answer: Answer<K>, space: &Space<K>) -> Outcome {
        let suspicion = self.suspicion.take();
        let told = match answer.told {
            Ok(told) => told,
            Err(Error::NotFound { .. }) => {
                // A server that is too old to tell. Another one may follow it.
                self.due = Some(answer.asked.clock + 10 * self.jitter.around(self.every));
                return Outcome::default();
            }
            Err(_) => return Outcome::default(),
        };
        let at = space.at();
        let (Some(own), Some(here)) = (space.digest(&answer.names), at) else { return Outcome::default() };
        if own == told.value {
            return Outcome { compared: true, differed: false };
        }
        if here.epoch != told.index.epoch || told.index.sequence < here.sequence {
            return Outcome::default();
        }
        if told.index.sequence == here.sequence || suspicion.is_some_and(|before| before.at == at) {
            return Outcome { compared: true, differed: true };
        }
        self.suspicion = Some(Suspicion { names: answer.names, at });
        self.due = Some(answer.asked.clock + AGAIN);
        Outcome::default()
    }

    /// The names whose turn it is, and when the next ones have theirs.
    fn some_of(&mut self, mut names: Vec<K::Name>, now: Now) -> Vec<K::Name> {
        names.sort();
        let start = self.next.take().map_or(0, |next| names.partition_point(|name| *name < next));
        let all: usize = names.iter().map(K::weight).sum();
        let turns = u32::try_from(all.div_ceil(NAME_BYTES)).unwrap_or(u32::MAX).max(1);
        self.due = Some(now.clock + self.jitter.around(self.every / turns));
        let mut bytes = 0;
        let fits = |name: &&K::Name| {
            bytes += K::weight(name);
            bytes <= NAME_BYTES
        };
        let some: Vec<_> = names[start..].iter().take_while(fits).cloned().collect();
        self.next = names.get(start + some.len()).cloned();
        some
    }
}
