//! The task that keeps one namespace: what it hears goes through [`Space`], what that decides is done here.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use cosky_core::{Error, Event, Namespace, Read, Result, Scope, StoreState};
use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    Shown,
    backoff::Jitter,
    compare::{Comparison, Outcome},
    entry::{Entry, Inbox},
    kind::{Kind, Step},
    protection::Protection,
    shelf::{Counters, Shelf},
    space::{Ask, Now, Space, Verdict, earlier},
    watch::{Fed, Feed, Silence, Watched},
};

/// The most services that a subscription names; above, it is of the whole namespace.
const NAMED: usize = 64;
/// Below this a subscription of the whole namespace goes back to names.
const NAMED_AGAIN: usize = 32;
/// Bytes of each of these names, on average, in the question.
const NAME_BYTES: usize = 64;
/// The most names that are asked for at once.
const LOADS: usize = 16;
/// When more names than this are new, everything is asked for in one snapshot.
const MANY: usize = 32;
/// Changes that are taken in before anything is shown.
const TOGETHER: usize = 256;
/// How often it looks for what time alone changes.
const TICK: Duration = Duration::from_secs(1);
/// Time that passes unnoticed for longer than this means that the machine or the process stood still.
const SUSPENDED: Duration = Duration::from_secs(5);

/// How long a name waits for a stream before what was known of it earlier is shown.
const LATE: Duration = Duration::from_secs(1);

/// Keeps one namespace, until nobody wants anything of it.
pub(crate) struct Supervisor<K: Kind> {
    shelf: Arc<Shelf<K>>,
    namespace: Namespace,
    inbox: Arc<Inbox<K>>,
    space: Space<K>,
    entries: BTreeMap<K::Name, Known<K>>,
    feed: Option<Feed>,
    loads: FuturesUnordered<Load<K>>,
    waiting: VecDeque<Ask<K::Name>>,
    /// Names that are asked for again after a while.
    pauses: FuturesUnordered<Pause<K>>,
    comparison: Comparison<K>,
    jitter: Jitter,
    ticked: Now,
    /// Losses in a row.
    losses: u32,
    /// It has begun, and not come to its end.
    runs: bool,
    /// Whether it was told that protection has begun.
    told_protected: bool,
    subscribed: Share<K>,
    protected: Share<K>,
}

/// An entry, and when it was last looked up.
struct Known<K: Kind> {
    entry: Arc<Entry<K>>,
    looked_up: Option<Duration>,
}

type Load<K> = Pin<Box<dyn Future<Output = Answer<K>> + Send>>;
type Pause<K> = Pin<Box<dyn Future<Output = Ask<<K as Kind>::Name>> + Send>>;
type Answer<K> = (Ask<<K as Kind>::Name>, Result<Read<Vec<<K as Kind>::Item>>>);

/// This namespace's part of a figure of the whole cache; taken back at the end.
struct Share<K: Kind> {
    part: u64,
    shelf: Arc<Shelf<K>>,
    figure: fn(&Counters) -> &AtomicU64,
}

impl<K: Kind> Supervisor<K> {
    pub(crate) fn new(shelf: Arc<Shelf<K>>, namespace: Namespace, inbox: Arc<Inbox<K>>) -> Self {
        let options = &shelf.options;
        let protection = Protection::new(options.protect, options.protect_limit);
        let space = Space::new(protection, options.ask_at_deadline);
        let comparison = Comparison::new(options.digest_every, options.seed);
        let ticked = Now { clock: options.clock.now(), instant: Instant::now() };
        let share = |figure: fn(&Counters) -> &AtomicU64| Share { part: 0, shelf: shelf.clone(), figure };
        Self {
            subscribed: share(|counters| &counters.subscriptions),
            protected: share(|counters| &counters.protected),
            namespace,
            inbox,
            space,
            entries: BTreeMap::new(),
            feed: None,
            loads: FuturesUnordered::new(),
            waiting: VecDeque::new(),
            pauses: FuturesUnordered::new(),
            comparison,
            jitter: Jitter::new(shelf.options.seed),
            ticked,
            losses: 0,
            runs: false,
            told_protected: false,
            shelf,
        }
    }

    pub(crate) async fn run(mut self) {
        self.runs = true;
        loop {
            self.take_mail();
            self.make_room();
            if self.entries.is_empty() && self.shelf.forget(&self.namespace, &self.inbox) {
                self.runs = false;
                return;
            }
            self.load();
            self.show();
            let wake = self.wake();
            tokio::select! {
                // In this order, so that a test can be played again, and so that what is rare comes first. Mail is looked for each time.
                biased;
                Some((ask, answer)) = self.loads.next() => self.loaded(&ask, answer),
                answer = self.comparison.answer() => self.compared(answer),
                Some(ask) = self.pauses.next() => self.waiting.push_back(ask),
                fed = next(&mut self.feed) => self.take_all(fed),
                () = self.inbox.woken() => {}
                () = sleep_until(wake) => {}
            }
            self.pass();
        }
    }

    fn now(&self) -> Now {
        Now { clock: self.shelf.options.clock.now(), instant: Instant::now() }
    }

    fn take_mail(&mut self) {
        let mail = self.inbox.take();
        let now = self.now();
        for entry in &mail.wanted {
            self.space.want(entry.name.clone(), now);
        }
        let any = !mail.wanted.is_empty();
        for entry in mail.wanted {
            self.entries.insert(entry.name.clone(), Known { entry, looked_up: None });
        }
        for (name, writes) in mail.wrote.iter().map(|entry| (&entry.name, entry.writes_in_mail())) {
            self.space.wrote(name, writes);
        }
        if any {
            self.widen();
        }
        if let Some(incident) = mail.incident {
            tracing::warn!(namespace = %self.namespace, ?incident, "the store had an incident");
            self.space.incident(now);
        }
    }

    /// Follows everything that is wanted, when something is that is not followed yet.
    fn widen(&mut self) {
        let Some(feed) = &mut self.feed else {
            let scope = scope_of::<K>(self.entries.keys(), NAMED);
            let feed = Feed::new(
                self.shelf.registry.clone(),
                self.namespace.clone(),
                scope,
                self.shelf.options.seed,
            );
            self.feed = Some(feed);
            return;
        };
        if self.entries.keys().all(|name| K::covers(feed.scope(), name)) {
            return;
        }
        feed.follow(scope_of::<K>(self.entries.keys(), NAMED));
        if feed.is_open() && self.space.strangers() > MANY {
            self.begin_anew();
        }
    }

    /// Follows no more than what is wanted.
    fn narrow(&mut self) {
        if self.entries.is_empty() {
            self.feed = None;
            self.space.unfollowed();
            self.subscribed.set(0);
            return;
        }
        let Some(feed) = &mut self.feed else { return };
        let most = if *feed.scope() == Scope::All { NAMED_AGAIN } else { NAMED };
        let scope = scope_of::<K>(self.entries.keys(), most);
        if scope != *feed.scope() {
            feed.follow(scope);
        }
    }

    fn begin_anew(&mut self) {
        if self.feed.as_mut().is_some_and(Feed::begin_anew) {
            self.shelf.counters.resyncs.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes in what is there already, so that a burst is shown once.
    fn take_all(&mut self, first: Fed) {
        let mut fed = Some(first);
        for _ in 0..TOGETHER {
            let Some(item) = fed.take() else { return };
            self.take(item);
            fed = next(&mut self.feed).now_or_never();
        }
        if let Some(item) = fed {
            self.take(item);
        }
    }

    fn take(&mut self, fed: Fed) {
        let now = self.now();
        match fed {
            Fed::Opened { scope, resumes } => {
                self.space.opened(scope, resumes);
                if !resumes {
                    self.waiting.clear();
                    self.pauses.clear();
                }
                self.subscribed.set(1);
            }
            Fed::Told(Watched::Change(change)) => {
                let outcome = self.comparison.before(change.index, &self.space);
                self.note(outcome);
                let verdict = self.space.change(&change, now);
                if matches!(verdict, Verdict::GoOn) {
                    self.saw(&change.event);
                    if !matches!(change.event, Event::State(_)) {
                        self.followed_again();
                    }
                }
                self.judge(verdict, now);
            }
            Fed::Refused(error) => self.space.refused(&error),
            Fed::Told(Watched::Resumed) => {
                self.space.heard(now);
                self.followed_again();
            }
            Fed::Told(Watched::Lost(error)) => self.lost(error, now),
        }
    }

    fn judge(&mut self, verdict: Verdict, now: Now) {
        match verdict {
            Verdict::GoOn => {}
            Verdict::BeginAnew => self.begin_anew(),
            Verdict::Refuse(error) => {
                if let Some(feed) = &mut self.feed {
                    feed.refuse(error.clone());
                }
                self.lost(error, now);
            }
        }
    }

    fn lost(&mut self, error: Error, now: Now) {
        if self.losses == 0 {
            tracing::warn!(namespace = %self.namespace, %error, "what is cached is stale; trying on");
        }
        self.losses = self.losses.saturating_add(1);
        self.subscribed.set(0);
        let heard = match &error {
            Error::Unavailable { source: Some(source), .. } => source.downcast_ref::<Silence>(),
            _ => None,
        };
        let heard = heard.map_or(now.instant, |silence| earlier(now.instant, silence.0));
        self.space.lost(error, Now { instant: heard, ..now });
    }

    fn tell_protection(&mut self) {
        let protected = self.space.is_protected();
        match (std::mem::replace(&mut self.told_protected, protected), protected) {
            (false, true) => {
                tracing::warn!(namespace = %self.namespace, "what the store lacks now is kept until it can be trusted again");
            }
            (true, false) => {
                tracing::info!(namespace = %self.namespace, "what the store lacks is let go again");
            }
            _ => {}
        }
    }

    fn followed_again(&mut self) {
        let losses = std::mem::take(&mut self.losses);
        if losses > 0 {
            tracing::info!(namespace = %self.namespace, losses, "what is cached is followed again");
        }
    }

    /// Asks for what must be asked for, some at a time.
    fn load(&mut self) {
        for ask in self.space.take_loads() {
            let Some(before) = ask.failures.checked_sub(1) else {
                self.waiting.push_back(ask);
                continue;
            };
            let delay = self.jitter.after(before);
            self.pauses.push(Box::pin(async move {
                sleep(delay).await;
                ask
            }));
        }
        // A snapshot would not spare those their question: who knows when it was asked for.
        if self.waiting.iter().filter(|ask| !ask.own).count() > MANY {
            self.begin_anew();
        }
        while self.loads.len() < LOADS
            && let Some(ask) = self.waiting.pop_front()
        {
            self.shelf.counters.loads.fetch_add(1, Ordering::Relaxed);
            let answer = K::load(self.shelf.registry.clone(), self.namespace.clone(), ask.name.clone());
            self.loads.push(Box::pin(async move { (ask, answer.await) }));
        }
    }

    fn loaded(&mut self, ask: &Ask<K::Name>, answer: Result<Read<Vec<K::Item>>>) {
        let now = self.now();
        let told = answer.is_ok();
        let verdict = self.space.loaded(&ask.name, ask.writes, answer, now);
        if told {
            self.saw_all(&ask.name);
        }
        self.judge(verdict, now);
    }

    /// Hands on the metadata of what an event told of.
    fn saw(&self, event: &Event) {
        if matches!(event, Event::Snapshot(_)) {
            self.entries.keys().for_each(|name| self.saw_all(name));
        } else if let Some((name, Step::Put { item, .. })) = K::step(event)
            && let Some(hook) = &self.shelf.options.on_metadata
        {
            // As it is held now: something newer may be.
            let items = self.space.followed(name);
            if let Ok(at) = items.binary_search_by(|held| K::id(held).cmp(K::id(item))) {
                K::saw(hook, &self.namespace, &items[at]);
            }
        }
    }

    /// Hands on the metadata of everything that a name has.
    fn saw_all(&self, name: &K::Name) {
        if let Some(hook) = &self.shelf.options.on_metadata {
            self.space.followed(name).iter().for_each(|item| K::saw(hook, &self.namespace, item));
        }
    }

    fn compared(&mut self, answer: crate::compare::Answer<K>) {
        let outcome = self.comparison.judge(answer, &self.space);
        self.note(outcome);
    }

    /// What a comparison came to.
    fn note(&mut self, outcome: Outcome) {
        let counters = &self.shelf.counters;
        counters.digests.fetch_add(u64::from(outcome.compared), Ordering::Relaxed);
        if outcome.differed {
            counters.digests_differed.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(namespace = %self.namespace, "what is cached differs from the registry; asking for everything anew");
            self.begin_anew();
        }
    }

    /// What time alone changes.
    fn pass(&mut self) {
        let now = self.now();
        let passed = now.clock.saturating_sub(self.ticked.clock);
        let ticks = now.instant >= self.ticked.instant + TICK || passed > SUSPENDED;
        if !ticks && self.soonest().is_none_or(|at| at > now.clock) {
            return;
        }
        if ticks {
            let counted = now.instant.saturating_duration_since(self.ticked.instant);
            if passed > counted + TICK {
                self.slept(passed - counted);
            }
            if passed > SUSPENDED + TICK {
                self.doubt(passed, now);
            }
            self.ticked = now;
            self.recall_what_is_late(now);
            self.release(now);
            self.protected.set(self.space.protected());
        }
        self.space.tick(now);
        let names = || self.entries.keys().cloned().collect();
        self.comparison.begin(&self.shelf.registry, &self.namespace, names, now);
    }

    /// Whatever happened while nothing ran here was not heard, and the stream may have died of it.
    fn doubt(&mut self, passed: Duration, now: Now) {
        let error = Error::unavailable(format!("this process or machine stood still for {passed:?}"));
        if let Some(feed) = &mut self.feed {
            feed.doubt(error.clone());
        }
        self.lost(error, Now { instant: earlier(now.instant, passed), ..now });
    }

    /// Where there is not much room left, those who went make some now and not at the next tick: an eighth of all at once,
    /// since each of them is looked at.
    fn make_room(&mut self) {
        if self.shelf.crowd().0 > 0 && self.inbox.have_gone((self.entries.len() / 8).max(1)) {
            self.release(self.now());
        }
    }

    /// Lets go of what nobody wants any more. Where there is not much room left, also of what was only looked up and is
    /// empty, for anybody can think of names; and where there is hardly any, of what was not looked up for longest.
    fn release(&mut self, now: Now) {
        let idle = self.shelf.options.idle;
        let mut candidates = Vec::new();
        let mut rest = Vec::new();
        for known in self.entries.values_mut() {
            if known.entry.was_used() {
                known.looked_up = Some(now.clock);
            }
            let unused = known.looked_up.is_none_or(|at| now.clock.saturating_sub(at) >= idle);
            if known.entry.is_held() {
                continue;
            }
            if unused {
                candidates.push(known.entry.clone());
            } else {
                rest.push((!K::items(&known.entry.load().content).is_empty(), known.looked_up, &known.entry));
            }
        }
        let (crowd, throng) = self.shelf.crowd();
        if crowd > candidates.len() && !rest.is_empty() {
            rest.sort_by_key(|(filled, looked_up, _)| (*filled, *looked_up));
            let empty = rest.partition_point(|(filled, ..)| !filled).min(crowd - candidates.len());
            let most = empty.max(throng.saturating_sub(candidates.len())).min(rest.len());
            candidates.extend(rest[..most].iter().map(|(.., entry)| (*entry).clone()));
        }
        if candidates.is_empty() {
            return;
        }
        for name in self.shelf.release(&self.namespace, &candidates) {
            self.entries.remove(&name);
            self.space.release(&name);
        }
        self.narrow();
    }

    fn show(&mut self) {
        self.tell_protection();
        let now = self.now();
        for (name, mut shown) in self.space.take_shown(now) {
            let Some(Known { entry, .. }) = self.entries.get(&name) else { continue };
            if !shown.known {
                let before = entry.load_full();
                if before.known {
                    keep_recalled(&before, &mut shown);
                } else {
                    self.recall(&name, &mut shown, now);
                }
            }
            self.shelf.show(&self.namespace, entry, shown);
        }
    }

    /// While the registry cannot be reached, what was known before this process is better than nothing. The space knows
    /// nothing of it, so that whatever the registry tells replaces it.
    fn recall(&self, name: &K::Name, shown: &mut Shown<K::Content>, now: Now) {
        let Some(hook) = &self.shelf.options.recall else { return };
        let late = || shown.since.filter(|since| self.is_late(*since, now)).map(|_| no_answer());
        if let Some(error @ Error::Unavailable { .. }) = shown.error.clone().or_else(late)
            && let Some((content, age)) = K::recall(hook, &self.namespace, name, &error)
        {
            shown.content = content;
            shown.known = true;
            shown.error = Some(error);
            shown.since = now.instant.checked_sub(age).or(shown.since);
            tracing::warn!(namespace = %self.namespace, %name, ?age, "the registry cannot be reached; showing what was last known");
        }
    }

    /// Whether somebody has waited since then for a stream that does not come.
    fn is_late(&self, since: Instant, now: Now) -> bool {
        let open = self.feed.as_ref().is_some_and(Feed::is_open);
        !open && now.instant.saturating_duration_since(since) >= LATE
    }

    /// Has those shown that wait for a stream, while it is not known yet whether one will come.
    fn recall_what_is_late(&mut self, now: Now) {
        let Some(hook) = &self.shelf.options.recall else { return };
        for (name, known) in &self.entries {
            let shown = known.entry.load();
            if !shown.known
                && shown.error.is_none()
                && shown.since.is_some_and(|since| self.is_late(since, now))
                && K::recall(hook, &self.namespace, name, &no_answer()).is_some()
            {
                self.space.show_again(name);
            }
        }
    }

    /// Time passed that the readers' clock does not count.
    fn slept(&mut self, time: Duration) {
        self.space.slept(time);
        for known in self.entries.values() {
            let mut shown = (*known.entry.load_full()).clone();
            if let Some(since) = &mut shown.since {
                *since = earlier(*since, time);
                self.shelf.show(&self.namespace, &known.entry, shown);
            }
        }
    }

    /// When to wake by itself.
    fn wake(&self) -> Instant {
        let now = self.now();
        let tick = self.ticked.instant + TICK;
        let soonest = self.soonest().map(|at| now.instant + at.saturating_sub(now.clock).min(TICK));
        soonest.map_or(tick, |soonest| soonest.min(tick)).max(now.instant)
    }

    /// What must not wait for the next tick.
    fn soonest(&self) -> Option<Duration> {
        self.space.next_ask().into_iter().chain(self.comparison.due()).min()
    }
}

/// These names, or everything when they are more than `most`, or too long for a line of a request.
fn scope_of<'a, K: Kind>(names: impl ExactSizeIterator<Item = &'a K::Name> + Clone, most: usize) -> Scope {
    let bytes: usize = names.clone().map(K::weight).sum();
    if names.len() > most || bytes > most * NAME_BYTES {
        Scope::All
    } else {
        K::scope(names.cloned().collect::<BTreeSet<_>>())
    }
}

/// What was recalled once stays until the registry tells; only why it is not known is new.
fn keep_recalled<C: Clone>(before: &Shown<C>, shown: &mut Shown<C>) {
    if let (Some(old), Some(new)) = (&before.error, &shown.error)
        && std::mem::discriminant(old) != std::mem::discriminant(new)
    {
        tracing::warn!(error = %new, "what was last known is still shown, though the registry answers");
    }
    let error = shown.error.take().or_else(|| before.error.clone());
    *shown = Shown { error, writes: shown.writes, ..before.clone() };
}

fn no_answer() -> Error {
    Error::unavailable(format!("no answer to the watch within {LATE:?}"))
}

async fn next(feed: &mut Option<Feed>) -> Fed {
    match feed {
        Some(feed) => feed.next().await,
        None => std::future::pending().await,
    }
}

/// When a hook panics, or the runtime ends: nothing may look live that nobody follows any more.
impl<K: Kind> Drop for Supervisor<K> {
    fn drop(&mut self) {
        // One that never ran may be dropped by whoever wanted to start it, under the lock.
        if !self.runs {
            return;
        }
        let entries = std::mem::take(&mut self.entries);
        let entries = entries.into_iter().map(|(name, known)| (name, known.entry)).collect();
        for entry in self.shelf.abandon(&self.namespace, &self.inbox, entries).into_values() {
            let mut shown = (*entry.load_full()).clone();
            shown.state = StoreState::Stale;
            shown.since.get_or_insert_with(Instant::now);
            shown.error = Some(Error::unavailable("the task that followed it has ended"));
            shown.version += 1;
            entry.show(Arc::new(shown));
        }
    }
}

impl<K: Kind> Share<K> {
    fn set(&mut self, part: u64) {
        if part != self.part {
            // Modulo 2⁶⁴, so that a smaller part takes something away.
            let difference = part.wrapping_sub(self.part);
            (self.figure)(&self.shelf.counters).fetch_add(difference, Ordering::Relaxed);
            self.part = part;
        }
    }
}

impl<K: Kind> Drop for Share<K> {
    fn drop(&mut self) {
        self.set(0);
    }
}
