//! The second net: what is cached against the registry's digest.

use std::{collections::BTreeMap, pin::Pin, sync::Arc, time::Duration};

use cosky_core::{Error, Index, Namespace, Read, Registry, Result};

use crate::{
    backoff::Jitter,
    kind::Kind,
    space::{Now, Space},
};

/// Bytes of all names of one question: it travels in a line of a request.
const NAME_BYTES: usize = 4096;
/// A digest that differs while changes are under way decides nothing. It is asked once more after this.
const AGAIN: Duration = Duration::from_secs(1);
/// Where changes never end, so many answers in a row that differ decide.
const ROUNDS: u32 = 5;
/// The most differences that are remembered as such that no snapshot mends.
const REMEMBERED: usize = 64;
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
    /// What differed before the last snapshot, by the first name of the question. Content that this client cannot read
    /// differs for ever, and by the same number each time, for digests are sums.
    differences: BTreeMap<K::Name, u64>,
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
    /// Where the stream stood.
    at: Index,
    told: Read<u64>,
    /// Answers in a row that differed.
    rounds: u32,
}

impl<K: Kind> Comparison<K> {
    /// One that compares everything once in `every`, ± 10 %; never when that is zero.
    pub(crate) fn new(every: Duration, seed: Option<u64>) -> Self {
        let every = every.min(SELDOM);
        Self {
            every,
            jitter: Jitter::new(seed),
            due: None,
            next: None,
            question: None,
            suspicion: None,
            differences: BTreeMap::new(),
        }
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
        if names.is_empty() {
            return;
        }
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
        let (Some(own), Some(at)) = (space.digest(&answer.names), space.at()) else {
            return Outcome::default();
        };
        if at.epoch != told.index.epoch {
            return Outcome::default();
        }
        let rounds = suspicion.as_ref().map_or(1, |before| before.rounds + 1);
        let silent = suspicion.is_some_and(|before| before.at == at && at.sequence < told.index.sequence);
        if own == told.value || is_of(&told, at, &answer.names, space) || silent || rounds >= ROUNDS {
            return self.decide(&answer.names, own, told.value);
        }
        self.suspicion = Some(Suspicion { names: answer.names, at, told, rounds });
        self.due = Some(answer.asked.clock + AGAIN);
        Outcome::default()
    }

    /// Before the stream goes on to `next`: whether it has just told all that is in the digest that differed.
    pub(crate) fn before(&mut self, next: Index, space: &Space<K>) -> Outcome {
        let ripe = |before: &mut Suspicion<K>| {
            next.epoch == before.told.index.epoch
                && next.sequence > before.told.index.sequence
                && space.at().is_some_and(|at| at.sequence <= before.told.index.sequence)
        };
        let Some(before) = self.suspicion.take_if(ripe) else { return Outcome::default() };
        let Some(own) = space.digest(&before.names).filter(|_| is_newest(&before.told, &before.names, space))
        else {
            self.suspicion = Some(before);
            return Outcome::default();
        };
        self.decide(&before.names, own, before.told.value)
    }

    /// Both are of the same moment, as far as that can be known.
    fn decide(&mut self, names: &[K::Name], own: u64, told: u64) -> Outcome {
        let Some(first) = names.first() else { return Outcome::default() };
        let difference = told.wrapping_sub(own);
        if difference == 0 {
            self.differences.remove(first);
            return Outcome { compared: true, differed: false };
        }
        if self.differences.len() >= REMEMBERED {
            self.differences.clear();
        }
        let before = self.differences.insert(first.clone(), difference);
        Outcome { compared: true, differed: before != Some(difference) }
    }

    /// The names whose turn it is, and when the next ones have theirs.
    fn some_of(&mut self, mut names: Vec<K::Name>, now: Now) -> Vec<K::Name> {
        names.sort();
        let start = self.next.take().map_or(0, |next| names.partition_point(|name| *name < next));
        // Those that were left may have been let go.
        let start = if start < names.len() { start } else { 0 };
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

/// Whether a digest that the registry told is of what is known now: the stream has told all that is in it, and nothing
/// of these names since.
fn is_of<K: Kind>(told: &Read<u64>, at: Index, names: &[K::Name], space: &Space<K>) -> bool {
    told.index.sequence <= at.sequence && is_newest(told, names, space)
}

/// Whether nothing newer is known of these names.
fn is_newest<K: Kind>(told: &Read<u64>, names: &[K::Name], space: &Space<K>) -> bool {
    space.newest(names).is_some_and(|newest| newest <= told.index.sequence)
}

#[cfg(test)]
mod tests {
    use cosky_core::{Change, Event, Scope, ServiceId, Snapshot, StoreState};
    use tokio::time::Instant;

    use super::*;
    use crate::{protection::Protection, services::Services};

    const EVERY: Duration = Duration::from_secs(25);
    const DIFFERED: Outcome = Outcome { compared: true, differed: true };
    const AGREED: Outcome = Outcome { compared: true, differed: false };

    fn service(name: &str) -> ServiceId {
        ServiceId::new(name).unwrap()
    }

    fn at(sequence: u64) -> Index {
        Index { epoch: 1, sequence }
    }

    fn now() -> Now {
        Now { clock: Duration::ZERO, instant: Instant::now() }
    }

    /// The service "a" without instances, followed since 1:10.
    fn space() -> Space<Services> {
        let mut space = Space::new(Protection::new(true, EVERY), false);
        space.want(service("a"), now());
        space.opened(Scope::services([service("a")]).unwrap(), false);
        let nothing = Snapshot { services: BTreeMap::new(), state: StoreState::Live, store: None };
        let verdict = space.change(&Arc::new(Change::new(at(10), Event::Snapshot(nothing))), now());
        assert!(matches!(verdict, crate::space::Verdict::GoOn), "{verdict:?}");
        space
    }

    /// The stream tells something that is of no instance.
    fn hear(space: &mut Space<Services>, sequence: u64) {
        let change = Change::new(at(sequence), Event::State(StoreState::Live));
        let verdict = space.change(&Arc::new(change), now());
        assert!(matches!(verdict, crate::space::Verdict::GoOn), "{verdict:?}");
    }

    fn told(sequence: u64, value: u64) -> Answer<Services> {
        let read = Read { value, index: at(sequence), age: Duration::ZERO, state: StoreState::Live };
        Answer { names: vec![service("a")], told: Ok(read), asked: now() }
    }

    #[test]
    fn where_changes_never_end_a_few_answers_in_a_row_decide() {
        let (mut space, mut comparison) = (space(), Comparison::new(EVERY, None));
        for round in 1..u64::from(ROUNDS) {
            hear(&mut space, 10 + round);
            let outcome = comparison.judge(told(1000 + round, 5 + round), &space);
            assert_eq!(outcome, Outcome::default(), "round {round}");
        }
        hear(&mut space, 100);
        assert_eq!(comparison.judge(told(2000, 77), &space), DIFFERED);
    }

    #[test]
    fn a_digest_is_compared_when_the_stream_has_told_what_is_in_it() {
        let (mut space, mut comparison) = (space(), Comparison::new(EVERY, None));
        assert_eq!(comparison.judge(told(12, 5), &space), Outcome::default());
        assert_eq!(comparison.before(at(11), &space), Outcome::default());
        hear(&mut space, 11);
        assert_eq!(comparison.before(at(13), &space), DIFFERED, "nothing can bring what it lacks any more");
        hear(&mut space, 13);
        // An answer that the stream overtook, but not with anything of these names.
        assert_eq!(comparison.judge(told(12, 6), &space), DIFFERED);
        assert_eq!(comparison.judge(told(12, 0), &space), AGREED);
    }

    #[test]
    fn what_no_snapshot_mends_counts_once_until_it_is_mended() {
        let (space, mut comparison) = (space(), Comparison::new(EVERY, None));
        assert_eq!(comparison.judge(told(10, 5), &space), DIFFERED);
        assert_eq!(comparison.judge(told(10, 5), &space), AGREED);
        assert_eq!(comparison.judge(told(10, 6), &space), DIFFERED, "and something else is lost");
        assert_eq!(comparison.judge(told(10, 0), &space), AGREED);
        assert_eq!(comparison.judge(told(10, 6), &space), DIFFERED, "lost again");
    }

    #[test]
    fn a_question_is_never_of_no_names() {
        let mut comparison = Comparison::<Services>::new(EVERY, None);
        let name = |at: u32| service(&format!("{at:0>500}"));
        let all: Vec<_> = (0..20).map(name).collect();
        let first = comparison.some_of(all.clone(), now());
        assert!((1..20).contains(&first.len()) && comparison.next == Some(name(first.len() as u32)));
        // Everything behind them was let go.
        assert_eq!(comparison.some_of(all[..2].to_vec(), now()), all[..2]);
    }
}
