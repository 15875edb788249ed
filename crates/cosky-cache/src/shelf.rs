//! All entries of one kind, and the tasks that keep them.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{Hash, Hasher},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use cosky_core::{Error, Namespace, Registry, Result};
use foldhash::fast::RandomState;
use papaya::Equivalent;
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    Figures, Incident, Options, Shown,
    entry::{Entry, Inbox},
    kind::Kind,
    supervisor::Supervisor,
};

/// All entries of one kind.
pub(crate) struct Shelf<K: Kind> {
    pub(crate) registry: Arc<dyn Registry>,
    pub(crate) options: Options,
    runtime: Handle,
    entries: papaya::HashMap<Key<K>, Slot<K>, RandomState>,
    /// Entries come and go under this lock only.
    spaces: Mutex<HashMap<Namespace, Kept<K>>>,
    pub(crate) counters: Counters,
}

/// A name, and what is known of it.
pub(crate) type Listed<K> = (Namespace, <K as Kind>::Name, Arc<Shown<<K as Kind>::Content>>);

/// An entry, and what is shown of it once more: a look-up by name finds it without another step.
struct Slot<K: Kind> {
    entry: Arc<Entry<K>>,
    shown: Arc<Shown<K::Content>>,
}

/// The task that keeps one namespace.
struct Kept<K: Kind> {
    inbox: Arc<Inbox<K>>,
    _task: AbortOnDropHandle<()>,
}

/// Ends the tasks with the last that holds this.
pub(crate) struct Life<K: Kind>(pub(crate) Arc<Shelf<K>>);

/// What happened so far, and what is there now.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) entries: AtomicU64,
    pub(crate) subscriptions: AtomicU64,
    pub(crate) loads: AtomicU64,
    pub(crate) resyncs: AtomicU64,
    pub(crate) digests: AtomicU64,
    pub(crate) digests_differed: AtomicU64,
    pub(crate) protected: AtomicU64,
}

struct Key<K: Kind> {
    namespace: Namespace,
    name: K::Name,
}

/// A key whose parts are somewhere else: looking up copies nothing.
struct Asked<'a, K: Kind> {
    namespace: &'a Namespace,
    name: &'a K::Name,
}

impl<K: Kind> Shelf<K> {
    pub(crate) fn new(registry: Arc<dyn Registry>, options: Options) -> Self {
        Self {
            registry,
            options,
            runtime: Handle::current(),
            entries: papaya::HashMap::default(),
            spaces: Mutex::default(),
            counters: Counters::default(),
        }
    }

    /// What `read` makes of what is shown of a name that is cached and known.
    pub(crate) fn read<T>(
        &self,
        namespace: &Namespace,
        name: &K::Name,
        read: impl FnOnce(&Arc<Shown<K::Content>>) -> T,
    ) -> Option<T> {
        self.look(namespace, name, |_, shown| read(shown))
    }

    /// As [`Shelf::read`], beside the entry.
    pub(crate) fn look<T>(
        &self,
        namespace: &Namespace,
        name: &K::Name,
        read: impl FnOnce(&Arc<Entry<K>>, &Arc<Shown<K::Content>>) -> T,
    ) -> Option<T> {
        let entries = self.entries.pin();
        let slot = entries.get(&Asked::<K> { namespace, name })?;
        slot.entry.touch();
        slot.shown.known.then(|| read(&slot.entry, &slot.shown))
    }

    /// This process has changed something of a name, and the registry has said so.
    pub(crate) fn wrote(&self, namespace: &Namespace, name: &K::Name) {
        if let Some(slot) = self.entries.pin().get(&Asked::<K> { namespace, name }) {
            slot.entry.wrote();
        }
    }

    /// Shows something new of an entry, to its views and to look-ups.
    pub(crate) fn show(&self, namespace: &Namespace, entry: &Arc<Entry<K>>, shown: Shown<K::Content>) {
        let shown = Arc::new(shown);
        // An entry that was taken out meanwhile has no slot, and gets none.
        let key = Key { namespace: namespace.clone(), name: entry.name.clone() };
        self.entries.pin().update(key, |slot| Slot {
            entry: slot.entry.clone(),
            shown: if Arc::ptr_eq(&slot.entry, entry) { shown.clone() } else { slot.shown.clone() },
        });
        entry.show(shown);
    }

    /// Everything that is known.
    pub(crate) fn all(&self) -> Vec<Listed<K>> {
        let entries = self.entries.pin();
        let known = |(key, slot): (&Key<K>, &Slot<K>)| {
            let shown = &slot.shown;
            shown.known.then(|| (key.namespace.clone(), key.name.clone(), shown.clone()))
        };
        entries.iter().filter_map(known).collect()
    }

    /// The entry of a name, made when there is none, and held once for the caller.
    ///
    /// # Errors
    /// [`Error::Exhausted`] at the limit of entries.
    pub(crate) fn hold(self: &Arc<Self>, namespace: &Namespace, name: &K::Name) -> Result<Arc<Entry<K>>> {
        let mut spaces = self.lock();
        let entries = self.entries.pin();
        if let Some(slot) = entries.get(&Asked::<K> { namespace, name }) {
            slot.entry.hold();
            return Ok(slot.entry.clone());
        }
        let limit = self.options.entries;
        if self.counters.entries.load(Ordering::Relaxed) >= limit as u64 {
            return Err(Error::Exhausted { what: "names of one cache", limit });
        }
        self.counters.entries.fetch_add(1, Ordering::Relaxed);
        let inbox = match spaces.get(namespace) {
            Some(kept) => kept.inbox.clone(),
            None => self.keep(&mut spaces, namespace),
        };
        let entry = Arc::new(Entry::new(name.clone(), inbox.clone()));
        entry.hold();
        let slot = Slot { entry: entry.clone(), shown: entry.load_full() };
        entries.insert(Key { namespace: namespace.clone(), name: name.clone() }, slot);
        inbox.want(entry.clone());
        Ok(entry)
    }

    /// Starts the task of a namespace.
    fn keep(
        self: &Arc<Self>,
        spaces: &mut HashMap<Namespace, Kept<K>>,
        namespace: &Namespace,
    ) -> Arc<Inbox<K>> {
        let inbox = Arc::new(Inbox::new());
        let supervisor = Supervisor::new(self.clone(), namespace.clone(), inbox.clone());
        let task = AbortOnDropHandle::new(self.runtime.spawn(supervisor.run()));
        spaces.insert(namespace.clone(), Kept { inbox: inbox.clone(), _task: task });
        inbox
    }

    /// How many entries are taken beyond a half of what there is room for, and how many beyond seven eighths.
    pub(crate) fn crowd(&self) -> (usize, usize) {
        let taken = usize::try_from(self.counters.entries.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        let limit = self.options.entries;
        (taken.saturating_sub(limit / 2), taken.saturating_sub(limit - limit / 8))
    }

    /// Takes those of `entries` out that nobody holds any more.
    pub(crate) fn release(&self, namespace: &Namespace, candidates: &[Arc<Entry<K>>]) -> Vec<K::Name> {
        let _spaces = self.lock();
        let entries = self.entries.pin();
        let released: Vec<_> = candidates.iter().filter(|entry| !entry.is_held()).collect();
        for entry in &released {
            entries.remove(&Asked::<K> { namespace, name: &entry.name });
        }
        self.counters.entries.fetch_sub(released.len() as u64, Ordering::Relaxed);
        released.into_iter().map(|entry| entry.name.clone()).collect()
    }

    /// Forgets a namespace without entries; false when one has just come. For its task, which ends then.
    pub(crate) fn forget(&self, namespace: &Namespace, inbox: &Inbox<K>) -> bool {
        let mut spaces = self.lock();
        let empty = inbox.is_empty();
        if empty {
            spaces.remove(namespace);
        }
        empty
    }

    /// Takes out what the task of `inbox` kept, whose end nobody wished for: the next who wants any of it starts another.
    /// Gives all that had been wanted of that task.
    pub(crate) fn abandon(
        &self,
        namespace: &Namespace,
        inbox: &Arc<Inbox<K>>,
        mut abandoned: BTreeMap<K::Name, Arc<Entry<K>>>,
    ) -> BTreeMap<K::Name, Arc<Entry<K>>> {
        let mut spaces = self.lock();
        abandoned.extend(inbox.take().wanted.into_iter().map(|entry| (entry.name.clone(), entry)));
        let entries = self.entries.pin();
        for name in abandoned.keys() {
            entries.remove(&Asked::<K> { namespace, name });
        }
        self.counters.entries.fetch_sub(abandoned.len() as u64, Ordering::Relaxed);
        if spaces.get(namespace).is_some_and(|kept| Arc::ptr_eq(&kept.inbox, inbox)) {
            spaces.remove(namespace);
        }
        abandoned
    }

    pub(crate) fn incident(&self, incident: Incident) {
        for kept in self.lock().values() {
            kept.inbox.incident(incident);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Namespace, Kept<K>>> {
        self.spaces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Kind> Drop for Life<K> {
    fn drop(&mut self) {
        for kept in std::mem::take(&mut *self.0.lock()).into_values() {
            // Of a task that never ran: its mail holds entries, and they hold the inbox.
            drop(kept.inbox.take());
        }
    }
}

impl Counters {
    pub(crate) fn figures(&self) -> Figures {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Figures {
            entries: get(&self.entries),
            subscriptions: get(&self.subscriptions),
            loads: get(&self.loads),
            resyncs: get(&self.resyncs),
            digests: get(&self.digests),
            digests_differed: get(&self.digests_differed),
            protected: get(&self.protected),
        }
    }
}

impl<K: Kind> Hash for Key<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Asked::<K> { namespace: &self.namespace, name: &self.name }.hash(state);
    }
}

impl<K: Kind> PartialEq for Key<K> {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.namespace == other.namespace
    }
}

impl<K: Kind> Eq for Key<K> {}

impl<K: Kind> Hash for Asked<'_, K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.namespace.hash(state);
        self.name.hash(state);
    }
}

impl<K: Kind> Equivalent<Key<K>> for Asked<'_, K> {
    fn equivalent(&self, key: &Key<K>) -> bool {
        *self.name == key.name && *self.namespace == key.namespace
    }
}

#[cfg(test)]
mod tests {
    use cosky_core::{ServiceId, Ttl};
    use cosky_testkit::sim::{Delay, Quality, Shape, Sim};

    use super::*;
    use crate::services::Services;

    #[tokio::test(start_paused = true)]
    async fn an_entry_that_no_task_had_the_time_to_follow_is_gone_with_the_cache() {
        let default_ttl = Ttl::from_seconds(30).unwrap();
        let sim = Sim::new(1, Shape { servers: 1, lag: Delay::ms(0, 0), ring: 16, default_ttl });
        let shelf = Shelf::<Services>::new(sim.link(Quality::perfect()), Options::default());
        let life = Life(Arc::new(shelf));
        let entry = life.0.hold(&Namespace::new("shop").unwrap(), &ServiceId::new("a").unwrap()).unwrap();
        let left = Arc::downgrade(&entry);
        drop((entry, life));
        tokio::task::yield_now().await;
        assert_eq!(left.strong_count(), 0);
    }
}
