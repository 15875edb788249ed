//! What is known of one namespace: a state machine without I/O and without a clock.
//!
//! It is told what the stream and the registry say, and tells which names must be asked for and which must be shown anew.
//! The rules:
//!
//! * A snapshot replaces everything that it covers, except what is newer than it in the same epoch.
//! * A change counts when it is newer than what is known of its name, so hearing it twice does no harm.
//! * An answer to a question counts when it is of the stream's epoch and not older than the stream was when it was asked;
//!   what the stream told since is applied to it again.
//! * What a server says that is itself cut off from its store replaces nothing that is known.
//! * Errors change how far the content can be trusted, and never the content.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use cosky_core::{
    Change, Error, Event, Index, Read, Result, Scope, Snapshot, StoreId, StoreState, digest::Digest,
};
use tokio::time::Instant;

use crate::{
    Shown,
    held::{Held, Loading},
    kind::{Kind, Step},
    protection::{Protection, Turn},
};

/// How long it takes at least until a name is asked for again because something of it may be over.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// What is known of one namespace.
pub(crate) struct Space<K: Kind> {
    names: BTreeMap<K::Name, Held<K>>,
    /// What the stream tells of; none while there is no stream.
    scope: Option<Scope>,
    /// The stream begins with a snapshot that has not come yet.
    awaits: bool,
    /// Where the stream stands.
    at: Option<Index>,
    /// What the registry last said of itself.
    server: StoreState,
    /// Why nothing can be followed, while nothing can.
    error: Option<Error>,
    store: Option<StoreId>,
    /// It was restarted in order, so that what it has is all there is, though it says that it is protected.
    intact: bool,
    protection: Protection,
    asks_at_deadline: bool,
    to_load: Vec<K::Name>,
    dirty: Vec<K::Name>,
}

/// The same moment on both clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    /// By the clock that counts suspended time.
    pub(crate) clock: Duration,
    /// For readers, who count by this one.
    pub(crate) instant: Instant,
}

/// What must be done with the stream.
#[derive(Debug)]
#[must_use]
pub(crate) enum Verdict {
    /// Nothing.
    GoOn,
    /// It cannot be trusted: another one that begins with a snapshot.
    BeginAnew,
    /// Its server is no help: another one, later, elsewhere.
    Refuse(Error),
}

/// A name that must be asked for, after a delay when that has failed before.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ask<N> {
    pub(crate) name: N,
    pub(crate) failures: u32,
    /// Writes of this process that the answer will have.
    pub(crate) writes: u64,
    /// It is asked for those alone.
    pub(crate) own: bool,
}

impl<K: Kind> Space<K> {
    pub(crate) fn new(protection: Protection, asks_at_deadline: bool) -> Self {
        Self {
            names: BTreeMap::new(),
            scope: None,
            awaits: false,
            at: None,
            server: StoreState::Live,
            error: None,
            store: None,
            intact: false,
            protection,
            asks_at_deadline,
            to_load: Vec::new(),
            dirty: Vec::new(),
        }
    }

    /// Somebody wants a name.
    pub(crate) fn want(&mut self, name: K::Name, now: Now) {
        self.names.entry(name.clone()).or_insert_with(|| Held::new(now.instant));
        self.load_what_is_covered(Some(&name));
    }

    /// This process has changed something of a name, for the `writes`th time, and the registry has said so.
    pub(crate) fn wrote(&mut self, name: &K::Name, writes: u64) {
        if let Some(held) = self.names.get_mut(name) {
            held.wrote = held.wrote.max(writes);
            self.load_what_is_covered(Some(name));
        }
    }

    /// Nobody wants a name any more.
    pub(crate) fn release(&mut self, name: &K::Name) {
        self.names.remove(name);
    }

    /// A stream of `scope` stands. When it does not resume, it begins with a snapshot.
    pub(crate) fn opened(&mut self, scope: Scope, resumes: bool) {
        self.awaits = !resumes;
        for (name, held) in &mut self.names {
            if !K::covers(&scope, name) {
                held.follows = false;
            }
            if self.awaits {
                held.loading = None;
            }
        }
        self.scope = Some(scope);
        self.load_what_is_covered(None);
    }

    /// The stream told something.
    pub(crate) fn change(&mut self, change: &Arc<Change>, now: Now) -> Verdict {
        match &change.event {
            Event::Snapshot(snapshot) => return self.snapshot(snapshot, change.index, now),
            // Whoever drains says nothing of what is known; the watch goes elsewhere by itself.
            Event::State(StoreState::Draining) => return Verdict::GoOn,
            _ if self.awaits || self.at.is_some_and(|at| at.epoch != change.index.epoch) => {
                return Verdict::BeginAnew;
            }
            Event::State(state) => {
                self.advance(change.index);
                self.enter(*state, now);
                return Verdict::GoOn;
            }
            _ => {}
        }
        self.advance(change.index);
        if let Some((name, step)) = K::step(&change.event)
            && let Some(held) = self.names.get_mut(name)
        {
            if let Some(loading) = &mut held.loading {
                loading.push(change.clone());
            }
            if held.follows && change.index.sequence > held.at {
                apply(held, &step, change.index.sequence, now, &mut self.protection, self.asks_at_deadline);
                mark(&mut self.dirty, name, held);
            }
        }
        self.heard(now);
        Verdict::GoOn
    }

    /// A stream that took over may tell again what the last one has told.
    fn advance(&mut self, to: Index) {
        let before = self.at.filter(|at| at.epoch == to.epoch && at.sequence > to.sequence);
        self.at = Some(before.unwrap_or(to));
    }

    /// Nothing is followed any more, since nothing is wanted.
    pub(crate) fn unfollowed(&mut self) {
        self.scope = None;
        self.awaits = false;
    }

    /// The stream goes on after the last change, and nothing happened since.
    pub(crate) fn heard(&mut self, now: Now) {
        if self.error.is_some() {
            self.enter(self.server, now);
        }
    }

    /// A stream that would tell of more is refused; this one goes on. Who waits for what it does not tell is told why.
    pub(crate) fn refused(&mut self, error: &Error) {
        for (name, held) in &mut self.names {
            if !held.follows && held.loading.is_none() {
                held.error = Some(error.clone());
                mark(&mut self.dirty, name, held);
            }
        }
    }

    /// The stream was lost, or cannot be trusted any more.
    pub(crate) fn lost(&mut self, error: Error, now: Now) {
        self.scope = None;
        self.awaits = false;
        let first = self.error.replace(error).is_none();
        for (name, held) in &mut self.names {
            held.since.get_or_insert(now.instant);
            // Who waits for a first answer is told of each failure.
            if first || !held.known {
                mark(&mut self.dirty, name, held);
            }
        }
    }

    /// A name must be shown again.
    pub(crate) fn show_again(&mut self, name: &K::Name) {
        if let Some(held) = self.names.get_mut(name) {
            mark(&mut self.dirty, name, held);
        }
    }

    /// Time passed that the readers' clock does not count.
    pub(crate) fn slept(&mut self, time: Duration) {
        for since in self.names.values_mut().filter_map(|held| held.since.as_mut()) {
            *since = earlier(*since, time);
        }
    }

    /// The registry answered, or failed to. The answer has so many `writes` of this process.
    pub(crate) fn loaded(
        &mut self,
        name: &K::Name,
        writes: u64,
        answer: Result<Read<Vec<K::Item>>>,
        now: Now,
    ) -> Verdict {
        let Some(held) = self.names.get_mut(name) else { return Verdict::GoOn };
        // A snapshot came first otherwise.
        let Some(loading) = held.loading.take() else { return Verdict::GoOn };
        let read = match answer {
            Ok(read) if read.state == StoreState::Stale && held.known => {
                return self.failed(
                    name,
                    Error::unavailable("the server itself is cut off from its store"),
                    now,
                );
            }
            Ok(read) => read,
            Err(error) => return self.failed(name, error, now),
        };
        let Some(at) = self.at.filter(|at| at.epoch == read.index.epoch) else {
            // Another server than the stream's. Without a stream the next one settles it.
            held.writes_to_come = held.writes_to_come.max(writes);
            return if self.scope.is_some() { Verdict::BeginAnew } else { Verdict::GoOn };
        };
        if !loading.reaches(read.index.sequence) {
            held.failures = held.failures.saturating_add(1);
            held.loading = Some(Loading::new(at.sequence));
            self.to_load.push(name.clone());
            return Verdict::GoOn;
        }
        let items = &read.value;
        let mut changed =
            renew(held, items, read.index.sequence, now, &mut self.protection, self.asks_at_deadline);
        for change in loading.into_buffer() {
            if let Some((_, step)) = K::step(&change.event)
                && change.index.sequence > held.at
            {
                apply(held, &step, change.index.sequence, now, &mut self.protection, self.asks_at_deadline);
                changed = true;
            }
        }
        if changed {
            mark(&mut self.dirty, name, held);
        }
        has_writes(&mut self.dirty, name, held, writes);
        self.load_what_is_covered(Some(name));
        Verdict::GoOn
    }

    /// The store had an incident.
    pub(crate) fn incident(&mut self, now: Now) {
        let turn = self.protection.incident(now.clock, self.scope.is_some() && !self.awaits);
        self.turn(turn);
    }

    /// Time passes.
    pub(crate) fn tick(&mut self, now: Now) {
        // What is absent is known only while somebody tells.
        if !self.is_followed() {
            return;
        }
        let turn = self.protection.pass(now.clock);
        self.turn(turn);
        for (name, held) in &mut self.names {
            if held.ask_at.is_some_and(|at| at <= now.clock) && held.loading.is_none() && held.follows {
                held.ask_at = None;
                held.loading = Some(Loading::new(self.at.map_or(0, |at| at.sequence)));
                self.to_load.push(name.clone());
            }
        }
    }

    /// When [`Space::tick`] has something to do at the latest.
    pub(crate) fn next_ask(&self) -> Option<Duration> {
        // While nobody tells, nobody is asked; what comes next wakes the caller anyway.
        if !self.asks_at_deadline || self.error.is_some() || self.scope.is_none() || self.awaits {
            return None;
        }
        let waits = |held: &&Held<K>| held.loading.is_none() && held.follows;
        self.names.values().filter(waits).filter_map(|held| held.ask_at).min()
    }

    /// The names that must be asked for. What is not answered, or was given up, must be told to [`Space::loaded`].
    pub(crate) fn take_loads(&mut self) -> Vec<Ask<K::Name>> {
        let names = std::mem::take(&mut self.to_load);
        let ask = |name: K::Name| {
            let held = self.names.get(&name)?;
            let own = held.follows && held.is_behind();
            Some(Ask { name, failures: held.failures, writes: held.wrote, own })
        };
        names.into_iter().filter_map(ask).collect()
    }

    /// What must be shown anew.
    pub(crate) fn take_shown(&mut self, now: Now) -> Vec<(K::Name, Shown<K::Content>)> {
        let names = std::mem::take(&mut self.dirty);
        names.into_iter().filter_map(|name| self.show(name, now)).collect()
    }

    /// The digest of these names, when all of them are followed at this moment.
    pub(crate) fn digest(&self, names: &[K::Name]) -> Option<u64> {
        if !self.is_followed() {
            return None;
        }
        let mut digest = Digest::default();
        for name in names {
            let held = self.names.get(name).filter(|held| held.follows && held.loading.is_none())?;
            digest.add(held.digest().get());
        }
        Some(digest.get())
    }

    /// The last change that is in any of these names.
    pub(crate) fn newest(&self, names: &[K::Name]) -> Option<u64> {
        names.iter().filter_map(|name| Some(self.names.get(name)?.at)).max()
    }

    /// Where the stream stands.
    pub(crate) fn at(&self) -> Option<Index> {
        self.at
    }

    /// What a name has, sorted by id, when the stream tells of it: nothing older counts any more.
    pub(crate) fn followed(&self, name: &K::Name) -> &[K::Item] {
        self.names.get(name).filter(|held| held.follows).map(Held::items).unwrap_or_default()
    }

    /// Names that the stream does not tell of yet.
    pub(crate) fn strangers(&self) -> usize {
        self.names.values().filter(|held| !held.follows).count()
    }

    /// Whether absence is no answer at the moment.
    pub(crate) fn is_protected(&self) -> bool {
        self.protection.is_open()
    }

    /// Names of which something is under protection.
    pub(crate) fn protected(&self) -> u64 {
        self.names.values().filter(|held| held.is_protected()).count() as u64
    }

    /// Whether the stream tells everything that happens.
    fn is_followed(&self) -> bool {
        self.error.is_none() && self.scope.is_some() && !self.awaits
    }

    fn snapshot(&mut self, snapshot: &Snapshot, index: Index, now: Now) -> Verdict {
        if snapshot.state == StoreState::Stale && self.names.values().any(|held| held.known) {
            // What a cut-off server remembers may be older than what is shown here.
            for (name, held) in self.names.iter_mut().filter(|(_, held)| !held.known) {
                held.replace(K::snapshot(snapshot, name));
                held.known = true;
                mark(&mut self.dirty, name, held);
            }
            return Verdict::Refuse(Error::unavailable("the server itself is cut off from its store"));
        }
        self.meet(snapshot.store, now);
        if snapshot.state == StoreState::Protected && !self.intact {
            let turn = self.protection.registry_says(true, now.clock);
            self.turn(turn);
        }
        let same = self.at.is_some_and(|at| at.epoch == index.epoch);
        if self.protection.is_open() && !same {
            self.turn(Turn::Begun);
        }
        self.at = Some(index);
        self.awaits = false;
        let Some(scope) = &self.scope else { return Verdict::GoOn };
        for (name, held) in self.names.iter_mut().filter(|(name, _)| K::covers(scope, name)) {
            if same && held.follows && held.at > index.sequence {
                continue;
            }
            held.loading = None;
            let items = K::snapshot(snapshot, name);
            if renew(held, items, index.sequence, now, &mut self.protection, self.asks_at_deadline) {
                mark(&mut self.dirty, name, held);
            }
            has_writes(&mut self.dirty, name, held, held.writes_to_come);
        }
        self.enter(snapshot.state, now);
        self.load_what_is_covered(None);
        Verdict::GoOn
    }

    /// Compares whose data this is with whose it was.
    fn meet(&mut self, store: Option<StoreId>, now: Now) {
        let before = self.store;
        self.store = store.or(before);
        let (Some(store), Some(before)) = (store, before) else {
            self.intact = false;
            return;
        };
        if !store.follows(before) {
            self.intact = false;
            let turn = self.protection.incident(now.clock, true);
            self.turn(turn);
        } else if store != before {
            self.intact = true;
        }
    }

    /// The registry says how far it can be trusted, so it answers.
    fn enter(&mut self, state: StoreState, now: Now) {
        let before = (self.server, self.error.take().is_some());
        self.server = state;
        if state != StoreState::Stale {
            self.protection.back(now.clock);
            self.intact &= state == StoreState::Protected;
            let protected = state == StoreState::Protected && !self.intact;
            let turn = self.protection.registry_says(protected, now.clock);
            self.turn(turn);
        }
        if before != (state, false) {
            self.mark_all();
        }
    }

    fn failed(&mut self, name: &K::Name, error: Error, now: Now) -> Verdict {
        let streams = self.scope.is_some() && !self.awaits;
        let Some(held) = self.names.get_mut(name) else { return Verdict::GoOn };
        held.failures = held.failures.saturating_add(1);
        // What the stream tells of, and was asked for to have a write of this process, is as good as before.
        if !(held.follows && held.is_behind()) {
            held.since.get_or_insert(now.instant);
            if held.error.replace(error).is_none() || !held.known {
                mark(&mut self.dirty, name, held);
            }
        }
        if streams {
            held.loading = Some(Loading::new(self.at.map_or(0, |at| at.sequence)));
            self.to_load.push(name.clone());
        } else if held.known {
            held.ask_at = Some(now.clock);
        }
        Verdict::GoOn
    }

    /// Asks for names that the stream tells of though it did not begin with them, and for those that may lack a write of
    /// this process.
    fn load_what_is_covered(&mut self, only: Option<&K::Name>) {
        let Some(scope) = self.scope.as_ref().filter(|_| !self.awaits) else { return };
        let at = self.at.map_or(0, |at| at.sequence);
        let mut ask = |name: &K::Name, held: &mut Held<K>| {
            let lacks = !held.follows || held.is_behind();
            if lacks && held.loading.is_none() && K::covers(scope, name) {
                held.loading = Some(Loading::new(at));
                self.to_load.push(name.clone());
            }
        };
        match only {
            Some(name) => drop(self.names.get_mut(name).map(|held| ask(name, held))),
            None => self.names.iter_mut().for_each(|(name, held)| ask(name, held)),
        }
    }

    fn turn(&mut self, turn: Turn) {
        match turn {
            Turn::Same => return,
            Turn::Begun => self.names.values_mut().for_each(Held::protect),
            Turn::Ended => self.names.values_mut().for_each(Held::unprotect),
        }
        self.mark_all();
    }

    fn mark_all(&mut self) {
        for (name, held) in &mut self.names {
            mark(&mut self.dirty, name, held);
        }
    }

    fn show(&mut self, name: K::Name, now: Now) -> Option<(K::Name, Shown<K::Content>)> {
        let held = self.names.get_mut(&name)?;
        held.dirty = false;
        let error = held.error.as_ref().or(self.error.as_ref()).cloned();
        let state = if !held.known || error.is_some() {
            StoreState::Stale
        } else if self.server == StoreState::Live && self.protection.is_open() {
            StoreState::Protected
        } else {
            self.server
        };
        if state == StoreState::Live {
            held.since = None;
        } else {
            held.since.get_or_insert(now.instant);
        }
        held.version += u64::from(std::mem::take(&mut held.changed));
        let shown = Shown {
            content: held.content(),
            state,
            since: held.since,
            known: held.known,
            error,
            index: self.at.filter(|_| held.known),
            version: held.version,
            writes: held.writes,
        };
        Some((name, shown))
    }
}

/// Everything of a name is as the registry says. Whether that is anything new.
fn renew<K: Kind>(
    held: &mut Held<K>,
    items: &[K::Item],
    at: u64,
    now: Now,
    protection: &mut Protection,
    asks: bool,
) -> bool {
    let changed = held.replace(items);
    let new = !std::mem::replace(&mut held.known, true);
    let healed = held.error.take().is_some();
    held.follows = true;
    held.at = at;
    held.failures = 0;
    held.ask_at = None;
    for life in items.iter().filter_map(K::life) {
        protection.saw_life(life);
        ask_after(held, life, now, asks);
    }
    changed || new || healed
}

/// The moment that much earlier, as far as the clock reaches back.
pub(crate) fn earlier(moment: Instant, time: Duration) -> Instant {
    moment.checked_sub(time).unwrap_or(moment)
}

fn apply<K: Kind>(
    held: &mut Held<K>,
    step: &Step<'_, K>,
    at: u64,
    now: Now,
    protection: &mut Protection,
    asks: bool,
) {
    held.at = at;
    held.step(step);
    if let Step::Put { item, .. } = step
        && let Some(life) = K::life(item)
    {
        protection.saw_life(life);
        ask_after(held, life, now, asks);
    }
}

/// The earliest end of what is there. An item that was renewed leaves it where it is: asking early does no harm. One whose
/// life is over may still be there until the registry gets round to it, so it is not asked about without a pause.
fn ask_after<K: Kind>(held: &mut Held<K>, life: Duration, now: Now, asks: bool) {
    if asks {
        let end = now.clock.saturating_add(life.max(ASK_AGAIN));
        held.ask_at = Some(held.ask_at.map_or(end, |at| at.min(end)));
    }
}

/// So many writes of this process are in it.
fn has_writes<K: Kind>(dirty: &mut Vec<K::Name>, name: &K::Name, held: &mut Held<K>, writes: u64) {
    if held.writes < writes {
        held.writes = writes;
        mark_quietly(dirty, name, held);
    }
}

fn mark<K: Kind>(dirty: &mut Vec<K::Name>, name: &K::Name, held: &mut Held<K>) {
    held.changed = true;
    mark_quietly(dirty, name, held);
}

/// Marks what is no news to readers of the content.
fn mark_quietly<K: Kind>(dirty: &mut Vec<K::Name>, name: &K::Name, held: &mut Held<K>) {
    if !std::mem::replace(&mut held.dirty, true) {
        dirty.push(name.clone());
    }
}

#[cfg(test)]
mod tests;
