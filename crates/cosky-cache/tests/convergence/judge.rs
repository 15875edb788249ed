//! What a cache may show, and when it must show the truth.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use cosky_cache::Shown;
use cosky_core::{
    Error, InstanceId, Namespace, ServiceId, StoreState,
    digest::{Digest, of_instance},
};
use cosky_testkit::sim::{Link, Sim};

use crate::{
    fleet::LONGEST_TTL,
    history::{History, version},
};

/// After a disturbance that could be noticed, everything is right again within this (P4).
const NOTICED: Duration = Duration::from_secs(5);
/// And after one that could not.
const UNNOTICED: Duration = Duration::from_secs(30);
/// The shortest protection: five thirds of the shortest TTL.
const SHORTEST_WINDOW: Duration = Duration::from_secs(5);
/// The longest that anything is under way: what came from another server may be as old.
const UNDER_WAY: Duration = Duration::from_secs(45);

/// Where a cache is looked at: a view, or a name that is looked up.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Eye {
    pub(crate) cache: usize,
    pub(crate) service: ServiceId,
    pub(crate) number: usize,
}

/// Judges what is shown. Clones are the same judge.
#[derive(Clone)]
pub(crate) struct Judge(Arc<Mutex<Case>>);

struct Case {
    sim: Sim,
    namespace: Namespace,
    history: History,
    /// Whether views come from several servers, which need not know the same.
    several: bool,
    /// How long a change may be under way when nothing is wrong.
    latency: Duration,
    links: Vec<Arc<Link>>,
    /// By cache: how many mishaps there were.
    mishaps: Vec<usize>,
    seen: BTreeMap<Eye, Seen>,
    /// By cache: when the last disturbance ended that could be noticed, and when the last mishap came that could not.
    disturbed: Vec<Duration>,
    mishap: Vec<Option<Duration>>,
    gone: BTreeMap<InstanceId, (u64, Duration)>,
    violations: Vec<String>,
    /// How often a view was found to be right, exactly.
    exact: usize,
}

/// What was seen of a view.
#[derive(Default)]
struct Seen {
    since: Duration,
    looked: Duration,
    /// The state of the store that was shown last, by its number.
    last: usize,
    epoch: Option<u64>,
    /// The data losses that had been when it was looked at.
    losses: usize,
    /// It shows what protection keeps.
    mixed: bool,
    shown: BTreeMap<InstanceId, u64>,
    /// What it has let go, up to which version.
    let_go: BTreeMap<InstanceId, u64>,
}

impl Judge {
    pub(crate) fn new(
        sim: &Sim,
        namespace: Namespace,
        links: Vec<Arc<Link>>,
        several: bool,
        latency: Duration,
    ) -> Self {
        let caches = links.len();
        Self(Arc::new(Mutex::new(Case {
            sim: sim.clone(),
            namespace,
            history: History::default(),
            several,
            latency,
            links,
            mishaps: vec![0; caches],
            seen: BTreeMap::new(),
            disturbed: vec![Duration::ZERO; caches],
            mishap: vec![None; caches],
            gone: BTreeMap::new(),
            violations: Vec::new(),
            exact: 0,
        })))
    }

    /// A cache is disturbed until `end`, in a way that it can notice.
    pub(crate) fn disturbed(&self, cache: usize, end: Duration) {
        let mut case = self.lock();
        case.follow();
        let now = case.sim.now();
        if case.misled(cache, now) {
            // Nothing can be compared meanwhile.
            case.mishap[cache] = case.mishap[cache].max(Some(end));
        }
        case.disturbed[cache] = case.disturbed[cache].max(end);
    }

    /// Takes note of what happened in the store, and of what was deregistered.
    pub(crate) fn follow(&self, gone: &BTreeMap<InstanceId, (u64, Duration)>) {
        let mut case = self.lock();
        case.follow();
        if case.gone != *gone {
            case.gone.clone_from(gone);
        }
    }

    /// A view shows something, perhaps something new.
    pub(crate) fn look(&self, eye: &Eye, shown: &Shown) {
        self.lock().look(eye, shown);
    }

    /// As [`Judge::look`]; and if nothing is wrong for long enough, it must be the truth.
    pub(crate) fn settled(&self, eye: &Eye, shown: &Shown) {
        let mut case = self.lock();
        case.look(eye, shown);
        case.settled(eye, shown);
    }

    /// Whether nothing has been wrong at a cache for long enough.
    pub(crate) fn is_calm(&self, cache: usize) -> bool {
        let case = self.lock();
        case.sim.now() >= case.disturbed[cache] + NOTICED
    }

    /// A look-up failed though nothing was wrong.
    pub(crate) fn failed(&self, cache: usize, error: &Error) {
        let mut case = self.lock();
        let now = case.sim.now().as_secs_f64();
        case.violations.push(format!("at {now:.3} cache {cache} does not answer: {error}"));
    }

    /// A view is not looked at any more.
    pub(crate) fn forget(&self, eye: &Eye) {
        self.lock().seen.remove(eye);
    }

    /// What was wrong so far.
    pub(crate) fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    /// How often a view was found to be right.
    pub(crate) fn exact(&self) -> usize {
        self.lock().exact
    }

    fn lock(&self) -> MutexGuard<'_, Case> {
        self.0.lock().expect("the judge does not panic")
    }
}

impl Case {
    fn follow(&mut self) {
        self.history.follow(&self.sim, &self.namespace);
        for (at, link) in self.links.iter().enumerate() {
            let mishaps = link.counts().mishaps;
            if std::mem::replace(&mut self.mishaps[at], mishaps) != mishaps {
                self.mishap[at] = Some(self.sim.now());
            }
        }
    }

    /// Whether something unnoticed may still be wrong at a cache.
    fn misled(&self, cache: usize, now: Duration) -> bool {
        self.mishap[cache].is_some_and(|at| now < at + UNNOTICED)
    }

    fn look(&mut self, eye: &Eye, shown: &Shown) {
        self.follow();
        let now = self.sim.now();
        let mut seen = self.seen.remove(eye).unwrap_or_else(|| {
            // What was there before may be what protection kept.
            let mixed = self.history.restarted_at.is_some();
            Seen { since: now, mixed, ..Seen::default() }
        });
        if shown.known {
            self.judge(eye, &mut seen, shown, now);
        }
        self.seen.insert(eye.clone(), seen);
    }

    fn judge(&mut self, eye: &Eye, seen: &mut Seen, shown: &Shown, now: Duration) {
        let epoch = shown.index.map(|index| index.epoch);
        let moved = seen.epoch != epoch;
        // Another server may not know yet what the last one told. But one that says so itself is not to be followed.
        let elsewhere = self.several && moved && shown.state != StoreState::Stale;
        let misled = self.misled(eye.cache, now);
        if seen.losses != self.history.losses {
            (seen.losses, seen.let_go) = (self.history.losses, BTreeMap::new());
        }
        let content: BTreeMap<_, _> =
            shown.instances.iter().map(|instance| (instance.id().clone(), version(instance))).collect();
        seen.mixed = match shown.state {
            StoreState::Live => false,
            StoreState::Protected if self.history.restarted_at.is_some() => true,
            _ => seen.mixed || self.history.restarted_at.is_some_and(|at| at >= seen.looked),
        };
        seen.looked = now;
        self.stays_in_history(eye, seen, shown, (elsewhere, misled, now));
        // P1: what is in the store, and was shown, is shown.
        for (id, before) in seen.shown.iter().filter(|(id, _)| !content.contains_key(*id)) {
            let here = self.history.steady.get(id).is_some_and(|(first, _)| first <= before);
            if here && !elsewhere && !misled {
                self.wrong(eye, shown, &format!("{id}/{before} is in the store and has left the view"));
            }
        }
        // P5: a loss of data takes nothing out of a view until those who beat had the time to come back.
        for (id, before) in seen.shown.iter().filter(|(id, _)| !content.contains_key(*id)) {
            let lost = self.history.lost.get(id);
            let early = lost.is_some_and(|(version, at)| before <= version && now < *at + SHORTEST_WINDOW);
            // A name that is only looked up may be forgotten in between.
            if early && eye.number > 0 && !misled {
                self.wrong(eye, shown, &format!("{id}/{before} was lost by the store and has left the view"));
            }
        }
        // P3: what was deregistered and has left does not come back, unless another server has not heard of it yet.
        if elsewhere {
            seen.let_go.retain(|id, _| !content.contains_key(id));
        }
        for (id, version) in &content {
            let gone = self.gone.get(id).is_some_and(|(last, _)| version <= last);
            if gone && seen.let_go.get(id).is_some_and(|let_go| version <= let_go) {
                self.wrong(eye, shown, &format!("{id}/{version} was deregistered and is back"));
            }
        }
        if !elsewhere {
            let left = seen.shown.iter().filter(|(id, _)| !content.contains_key(*id));
            seen.let_go.extend(left.map(|(id, version)| (id.clone(), *version)));
        }
        (seen.shown, seen.epoch) = (content, epoch);
    }

    /// A view shows states that the store had, and goes from older ones to newer ones.
    fn stays_in_history(
        &mut self,
        eye: &Eye,
        seen: &mut Seen,
        shown: &Shown,
        (elsewhere, misled, now): (bool, bool, Duration),
    ) {
        if seen.mixed || misled {
            seen.last = 0;
            return;
        }
        let first = if elsewhere { 0 } else { seen.last };
        let since = if elsewhere { now.saturating_sub(UNDER_WAY) } else { Duration::ZERO };
        match self.history.find(&eye.service, digest(shown), first, since) {
            Some(at) => seen.last = at,
            None => {
                let reason = match self.history.find(&eye.service, digest(shown), 0, Duration::ZERO) {
                    Some(older) => format!("goes back from state {} to {older}", seen.last),
                    None => "shows what the store never had".into(),
                };
                self.wrong(eye, shown, &reason);
            }
        }
    }

    /// Long enough after the last disturbance, what is shown is the truth.
    fn settled(&mut self, eye: &Eye, shown: &Shown) {
        let now = self.sim.now();
        let since = self.seen.get(eye).map_or(now, |seen| seen.since);
        let calm = self.disturbed[eye.cache].max(since) + NOTICED;
        if now < calm || self.misled(eye.cache, now) {
            return;
        }
        // Lives are rounded up before they are waited for.
        let longest = Duration::from_secs(LONGEST_TTL.unsigned_abs()) + Duration::from_millis(2500);
        let window = longest * 5 / 3 + NOTICED;
        let protected =
            self.history.restarted_at.is_some_and(|at| now < at.max(self.disturbed[eye.cache]) + window);
        let late = now.saturating_sub(self.latency);
        match shown.state {
            StoreState::Live => {
                if self.history.find(&eye.service, digest(shown), 0, late).is_none() {
                    let reason = format!("is not what the store holds: {}", self.truth(eye));
                    self.wrong(eye, shown, &reason);
                }
                self.exact += 1;
            }
            StoreState::Protected if protected => {
                // It may show more than there is, but nothing less.
                for held in self.sim.truth(&self.namespace, &eye.service) {
                    let steady = self.history.steady.get(held.id()).is_some_and(|(_, since)| *since < late);
                    if steady && !shown.instances.iter().any(|shown| shown.id() == held.id()) {
                        self.wrong(eye, shown, &format!("does not show {}", held.id()));
                    }
                }
            }
            state => {
                let reason =
                    format!("is {} {:?} after the last disturbance", state.as_str(), now - calm + NOTICED);
                self.wrong(eye, shown, &reason);
            }
        }
    }

    fn truth(&self, eye: &Eye) -> String {
        let held = self.sim.truth(&self.namespace, &eye.service);
        held.iter().map(|held| format!("{}/{} ", held.id(), version(held))).collect()
    }

    fn wrong(&mut self, eye: &Eye, shown: &Shown, reason: &str) {
        let content: String =
            shown.instances.iter().map(|held| format!("{}/{} ", held.id(), version(held))).collect();
        let now = self.sim.now().as_secs_f64();
        let Eye { cache, service, number } = eye;
        let state = shown.state.as_str();
        let line =
            format!("at {now:.3} cache {cache}, view {number} of {service} ({state}: {content}) {reason}");
        self.sim.note(|| format!("WRONG: {line}"));
        if self.violations.len() < 20 {
            self.violations.push(line);
        }
    }
}

fn digest(shown: &Shown) -> u64 {
    let mut digest = Digest::default();
    shown.instances.iter().for_each(|instance| digest.add(of_instance(instance)));
    digest.get()
}
