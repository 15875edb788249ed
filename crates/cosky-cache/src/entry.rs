//! One cached name, as readers and the task that keeps it share it.

use std::{
    ops::Deref,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use arc_swap::ArcSwap;
use tokio::{sync::Notify, time::Instant};

use crate::{Incident, Shown, kind::Kind};

/// A name and what is shown of it.
pub(crate) struct Entry<K: Kind> {
    pub(crate) name: K::Name,
    shown: ArcSwap<Shown<K::Content>>,
    changed: Notify,
    /// Views and waiting look-ups that hold it.
    holders: AtomicUsize,
    /// It was looked up since somebody last asked.
    used: AtomicBool,
    inbox: Arc<Inbox<K>>,
}

/// What a namespace's task is told by others. Holds each entry once, so it is bounded by the limit of entries.
pub(crate) struct Inbox<K: Kind> {
    mail: Mutex<Mail<K>>,
    wake: Notify,
}

pub(crate) struct Mail<K: Kind> {
    pub(crate) wanted: Vec<Arc<Entry<K>>>,
    pub(crate) incident: Option<Incident>,
}

impl<K: Kind> Entry<K> {
    pub(crate) fn new(name: K::Name, inbox: Arc<Inbox<K>>) -> Self {
        Self {
            name,
            shown: ArcSwap::from_pointee(Shown::nothing(Instant::now())),
            changed: Notify::new(),
            holders: AtomicUsize::new(0),
            used: AtomicBool::new(false),
            inbox,
        }
    }

    /// Shows something new, and wakes those who wait for it. For [`crate::shelf::Shelf::show`] alone.
    pub(crate) fn show(&self, shown: Arc<Shown<K::Content>>) {
        self.shown.store(shown);
        self.changed.notify_waiters();
    }

    /// Waits until something else is shown than the version `seen`, and gives it.
    pub(crate) async fn changed(&self, seen: u64) -> Arc<Shown<K::Content>> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // From here on nothing is missed.
            changed.as_mut().enable();
            let shown = self.shown.load_full();
            if shown.version != seen {
                return shown;
            }
            changed.await;
        }
    }

    /// Notes a look-up. Mostly a load of what nobody writes.
    pub(crate) fn touch(&self) {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it was looked up since this was last asked.
    pub(crate) fn was_used(&self) -> bool {
        self.used.load(Ordering::Relaxed) && self.used.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn hold(&self) {
        self.holders.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn let_go(&self) {
        if self.holders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.inbox.wake.notify_one();
        }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.holders.load(Ordering::Acquire) > 0
    }
}

/// What is shown.
impl<K: Kind> Deref for Entry<K> {
    type Target = ArcSwap<Shown<K::Content>>;

    fn deref(&self) -> &Self::Target {
        &self.shown
    }
}

impl<K: Kind> Inbox<K> {
    pub(crate) fn new() -> Self {
        Self { mail: Mutex::new(Mail { wanted: Vec::new(), incident: None }), wake: Notify::new() }
    }

    pub(crate) fn want(&self, entry: Arc<Entry<K>>) {
        self.lock().wanted.push(entry);
        self.wake.notify_one();
    }

    pub(crate) fn incident(&self, incident: Incident) {
        self.lock().incident = Some(incident);
        self.wake.notify_one();
    }

    /// What came since the last call.
    pub(crate) fn take(&self) -> Mail<K> {
        std::mem::replace(&mut *self.lock(), Mail { wanted: Vec::new(), incident: None })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().wanted.is_empty()
    }

    /// Waits until there may be something. May be cancelled at any time.
    pub(crate) async fn woken(&self) {
        self.wake.notified().await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Mail<K>> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
