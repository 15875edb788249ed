//! One cached name, as readers and the task that keeps it share it.

use std::{
    ops::Deref,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
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
    /// Acknowledged writes of this process.
    writes: AtomicU64,
    /// When the last of them was.
    wrote_at: Mutex<Instant>,
    /// The namespace's task was told to look at them and has not yet.
    mailed: AtomicBool,
    inbox: Arc<Inbox<K>>,
}

/// What a namespace's task is told by others. Holds each entry twice at most, so it is bounded by the limit of entries.
pub(crate) struct Inbox<K: Kind> {
    mail: Mutex<Mail<K>>,
    /// How often the last holder of an entry has gone.
    gone: AtomicUsize,
    wake: Notify,
}

pub(crate) struct Mail<K: Kind> {
    pub(crate) wanted: Vec<Arc<Entry<K>>>,
    /// Those that this process has changed something of.
    pub(crate) wrote: Vec<Arc<Entry<K>>>,
    pub(crate) incident: Option<Incident>,
}

impl<K: Kind> Entry<K> {
    pub(crate) fn new(name: K::Name, inbox: Arc<Inbox<K>>) -> Self {
        let now = Instant::now();
        Self {
            name,
            shown: ArcSwap::from_pointee(Shown::nothing(now)),
            changed: Notify::new(),
            holders: AtomicUsize::new(0),
            used: AtomicBool::new(false),
            writes: AtomicU64::new(0),
            wrote_at: Mutex::new(now),
            mailed: AtomicBool::new(false),
            inbox,
        }
    }

    /// Shows something new, and wakes those who wait for it. Look-ups by name are shown it by
    /// [`crate::shelf::Shelf::show`], which calls this; directly it is for an entry that is off the shelf.
    pub(crate) fn show(&self, shown: Arc<Shown<K::Content>>) {
        self.shown.store(shown);
        self.changed.notify_waiters();
    }

    /// Waits until something else is shown than the version `seen`, and gives it.
    pub(crate) async fn changed(&self, seen: u64) -> Arc<Shown<K::Content>> {
        self.shows(|shown| shown.version != seen).await
    }

    /// Waits until what is shown is so, and gives it.
    pub(crate) async fn shows(&self, so: impl Fn(&Shown<K::Content>) -> bool) -> Arc<Shown<K::Content>> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // From here on nothing is missed.
            changed.as_mut().enable();
            let shown = self.shown.load_full();
            if so(&shown) {
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

    /// This process has changed something of it, and the registry has said so.
    pub(crate) fn wrote(self: &Arc<Self>) {
        *self.wrote_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.writes.fetch_add(1, Ordering::SeqCst);
        if !self.mailed.swap(true, Ordering::SeqCst) {
            self.inbox.wrote(self.clone());
        }
    }

    /// Acknowledged writes of this process.
    pub(crate) fn writes(&self) -> u64 {
        self.writes.load(Ordering::SeqCst)
    }

    /// The same for the one who takes this entry out of the mail; later ones come by mail again.
    pub(crate) fn writes_in_mail(&self) -> u64 {
        self.mailed.store(false, Ordering::SeqCst);
        self.writes()
    }

    /// When the last of them was.
    pub(crate) fn wrote_at(&self) -> Instant {
        *self.wrote_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn hold(&self) {
        self.holders.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn let_go(&self) {
        if self.holders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.inbox.gone.fetch_add(1, Ordering::Relaxed);
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

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.shown
    }
}

impl<K: Kind> Mail<K> {
    fn empty() -> Self {
        Self { wanted: Vec::new(), wrote: Vec::new(), incident: None }
    }
}

impl<K: Kind> Inbox<K> {
    pub(crate) fn new() -> Self {
        Self { mail: Mutex::new(Mail::empty()), gone: AtomicUsize::new(0), wake: Notify::new() }
    }

    pub(crate) fn want(&self, entry: Arc<Entry<K>>) {
        self.lock().wanted.push(entry);
        self.wake.notify_one();
    }

    fn wrote(&self, entry: Arc<Entry<K>>) {
        self.lock().wrote.push(entry);
        self.wake.notify_one();
    }

    pub(crate) fn incident(&self, incident: Incident) {
        self.lock().incident = Some(incident);
        self.wake.notify_one();
    }

    /// What came since the last call.
    pub(crate) fn take(&self) -> Mail<K> {
        std::mem::replace(&mut *self.lock(), Mail::empty())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().wanted.is_empty()
    }

    /// Whether so many have gone since this was last true.
    pub(crate) fn have_gone(&self, least: usize) -> bool {
        let have = self.gone.load(Ordering::Relaxed) >= least;
        if have {
            self.gone.store(0, Ordering::Relaxed);
        }
        have
    }

    /// Waits until there may be something. May be cancelled at any time.
    pub(crate) async fn woken(&self) {
        self.wake.notified().await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Mail<K>> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
