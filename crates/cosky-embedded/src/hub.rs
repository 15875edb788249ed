//! Who watches what, and the ring of recent changes from which a watcher resumes.
//!
//! A change is pushed to the queues of the watchers that it concerns and to nobody else, so ten thousand idle watchers
//! cost nothing when something happens elsewhere. A queue is small; whoever lets it fill up reads on from the ring, which
//! all share, and whoever falls behind the ring is cut off. So a burst costs nobody his stream who only needs a moment.

use std::{
    collections::{HashMap, VecDeque},
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use cosky_core::{Change, Error, Event, Index, Namespace, Result, Scope, ServiceId};
use futures_core::Stream;
use tokio::sync::mpsc;

use crate::{Limits, Shared, memory::Memory};

/// A change with the namespace that it concerns; without one it concerns all.
pub(crate) type Published = (Option<Namespace>, Arc<Change>);

/// All watchers, and the ring.
pub(crate) struct Hub {
    limits: Limits,
    ring: VecDeque<Published>,
    /// What the ring's changes weigh together.
    ring_bytes: usize,
    /// The sequence of the newest change that the ring has let go.
    floor: u64,
    next_watcher: u64,
    watchers: HashMap<u64, Watcher, foldhash::fast::RandomState>,
    spaces: HashMap<Namespace, Audience>,
    lagged: u64,
}

/// The watchers of one namespace.
#[derive(Default)]
struct Audience {
    recent: Option<Recent>,
    of_all: Vec<u64>,
    of_service: HashMap<ServiceId, Vec<u64>>,
}

struct Watcher {
    namespace: Namespace,
    scope: Scope,
    /// Changes up to here were handed over, or are in what the watcher was given at first.
    known: u64,
    queue: mpsc::Sender<Arc<Change>>,
    /// The queue was full: once it is empty, the watcher reads on from the ring.
    behind: Arc<AtomicBool>,
}

/// A snapshot of a whole namespace that somebody still holds, and the last change anywhere that is in it.
struct Recent {
    snapshot: Weak<Change>,
    sequence: u64,
}

/// What a watcher behind its queue is given.
enum CaughtUp {
    Changes(VecDeque<Arc<Change>>),
    Lagged,
}

/// One watcher's stream.
pub(crate) struct Watch {
    first: VecDeque<Arc<Change>>,
    queue: mpsc::Receiver<Arc<Change>>,
    behind: Arc<AtomicBool>,
    id: u64,
    shared: Weak<Shared>,
}

impl Hub {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            ring: VecDeque::new(),
            ring_bytes: 0,
            floor: 0,
            next_watcher: 0,
            watchers: HashMap::default(),
            spaces: HashMap::new(),
            lagged: 0,
        }
    }

    /// Open watches, and watchers cut off so far.
    pub(crate) fn figures(&self) -> (u64, u64) {
        (self.watchers.len() as u64, self.lagged)
    }

    /// Adds a watcher. `memory` was locked after this hub was, so what is applied to it but not published yet is told
    /// apart from what comes later.
    ///
    /// # Errors
    /// [`Error::Exhausted`] at the limit of watchers.
    pub(crate) fn subscribe(
        &mut self,
        shared: &Arc<Shared>,
        memory: &Memory,
        namespace: &Namespace,
        scope: Scope,
        from: Option<Index>,
    ) -> Result<Watch> {
        if self.watchers.len() >= self.limits.watchers {
            return Err(Error::Exhausted { what: "watchers", limit: self.limits.watchers });
        }
        let last = memory.index(namespace);
        let resumable = |from: &Index| {
            from.epoch == last.epoch
                && from.sequence <= memory.sequence
                && (from.sequence >= self.floor || from.sequence >= last.sequence)
        };
        let (first, known) = match from.filter(resumable) {
            Some(from) => (self.after(from.sequence, namespace, &scope), from.sequence),
            None => self.snapshot(shared, memory, namespace, &scope),
        };
        let (sender, queue) = mpsc::channel(self.limits.watcher_queue);
        let id = self.next_watcher;
        self.next_watcher += 1;
        let audience = self.spaces.entry(namespace.clone()).or_default();
        match &scope {
            Scope::All => audience.of_all.push(id),
            Scope::Services(services) => {
                for service in services {
                    audience.of_service.entry(service.clone()).or_default().push(id);
                }
            }
        }
        let behind = Arc::new(AtomicBool::new(false));
        let watcher = Watcher {
            namespace: namespace.clone(),
            scope,
            known,
            queue: sender,
            behind: Arc::clone(&behind),
        };
        self.watchers.insert(id, watcher);
        Ok(Watch { first, queue, behind, id, shared: Arc::downgrade(shared) })
    }

    /// A snapshot, and up to where it goes. Watchers of a whole namespace that come together, as they do after a restart,
    /// share one for as long as somebody holds it: with many instances it is large, and so is its text. What has changed
    /// since comes after it.
    fn snapshot(
        &mut self,
        shared: &Shared,
        memory: &Memory,
        namespace: &Namespace,
        scope: &Scope,
    ) -> (VecDeque<Arc<Change>>, u64) {
        let recent = self.spaces.get(namespace).and_then(|audience| audience.recent.as_ref());
        if *scope == Scope::All
            && let Some(Recent { snapshot, sequence }) = recent
            && let Some(snapshot) = snapshot.upgrade().filter(|_| *sequence >= self.floor)
        {
            let mut first = self.after(*sequence, namespace, scope);
            first.push_front(snapshot);
            return (first, *sequence);
        }
        let content = memory.snapshot(namespace, scope, &*shared.clock);
        let snapshot = Arc::new(Change::new(memory.index(namespace), Event::Snapshot(content)));
        if *scope == Scope::All {
            let recent = Recent { snapshot: Arc::downgrade(&snapshot), sequence: memory.sequence };
            self.spaces.entry(namespace.clone()).or_default().recent = Some(recent);
        }
        (VecDeque::from([snapshot]), memory.sequence)
    }

    /// The changes of the ring after `sequence` that concern a watcher.
    fn after(&self, sequence: u64, namespace: &Namespace, scope: &Scope) -> VecDeque<Arc<Change>> {
        let start = self.ring.partition_point(|(_, change)| change.index.sequence <= sequence);
        let concerns = |(of, change): &&Published| {
            of.as_ref().is_none_or(|of| of == namespace)
                && change.event.service().is_none_or(|s| scope.covers(s))
        };
        self.ring.range(start..).filter(concerns).map(|(_, change)| Arc::clone(change)).collect()
    }

    /// Puts changes into the ring and into the queues of those whom they concern, in order.
    pub(crate) fn publish(&mut self, changes: Vec<Published>) {
        for (namespace, change) in changes {
            let audience = match &namespace {
                None => self.watchers.keys().copied().collect(),
                Some(namespace) => self.audience(namespace, &change),
            };
            for id in audience {
                self.deliver(id, &change);
            }
            self.ring_bytes += weight(&change);
            self.ring.push_back((namespace, change));
            while (self.ring.len() > self.limits.ring || self.ring_bytes > self.limits.ring_bytes)
                && let Some((_, oldest)) = self.ring.pop_front()
            {
                self.ring_bytes -= weight(&oldest);
                self.floor = oldest.index.sequence;
            }
        }
    }

    fn audience(&self, namespace: &Namespace, change: &Change) -> Vec<u64> {
        let Some(audience) = self.spaces.get(namespace) else { return Vec::new() };
        let of_service = change.event.service().and_then(|service| audience.of_service.get(service));
        audience.of_all.iter().chain(of_service.into_iter().flatten()).copied().collect()
    }

    fn deliver(&mut self, id: u64, change: &Arc<Change>) {
        let Some(watcher) = self.watchers.get_mut(&id) else { return };
        if change.index.sequence <= watcher.known || watcher.behind.load(Ordering::Acquire) {
            return;
        }
        if watcher.queue.try_send(Arc::clone(change)).is_err() {
            watcher.behind.store(true, Ordering::Release);
            // The reader may have emptied the queue before it could see this; then nothing would wake it.
            if watcher.queue.try_send(Arc::clone(change)).is_err() {
                return;
            }
            watcher.behind.store(false, Ordering::Release);
        }
        watcher.known = change.index.sequence;
    }

    /// The changes that a watcher has missed since its queue was full; it hears of later ones by the queue again.
    fn catch_up(&mut self, id: u64) -> CaughtUp {
        let Some(watcher) = self.watchers.get(&id) else { return CaughtUp::Changes(VecDeque::new()) };
        if watcher.known < self.floor {
            self.lagged += 1;
            self.unsubscribe(id);
            return CaughtUp::Lagged;
        }
        let missed = self.after(watcher.known, &watcher.namespace, &watcher.scope);
        let newest = self.ring.back().map(|(_, change)| change.index.sequence);
        if let Some(watcher) = self.watchers.get_mut(&id) {
            watcher.known = newest.unwrap_or(watcher.known).max(watcher.known);
            watcher.behind.store(false, Ordering::Release);
        }
        CaughtUp::Changes(missed)
    }

    fn unsubscribe(&mut self, id: u64) {
        let Some(watcher) = self.watchers.remove(&id) else { return };
        let Some(audience) = self.spaces.get_mut(&watcher.namespace) else { return };
        match &watcher.scope {
            Scope::All => audience.of_all.retain(|other| *other != id),
            Scope::Services(services) => {
                for service in services {
                    if let Some(watchers) = audience.of_service.get_mut(service) {
                        watchers.retain(|other| *other != id);
                        if watchers.is_empty() {
                            audience.of_service.remove(service);
                        }
                    }
                }
            }
        }
        if audience.of_all.is_empty() && audience.of_service.is_empty() {
            self.spaces.remove(&watcher.namespace);
        }
    }

    /// Ends every stream.
    pub(crate) fn end(&mut self) {
        self.watchers.clear();
        self.spaces.clear();
        self.limits.watchers = 0;
    }
}

/// Roughly what a change holds: names and the record, and both again as the text that is sent.
fn weight(change: &Change) -> usize {
    match &change.event {
        Event::Instance { instance: Some(instance), .. } => 1024 + 3 * instance.metadata().bytes(),
        _ => 1024,
    }
}

impl Stream for Watch {
    type Item = Result<Arc<Change>>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(change) = this.first.pop_front() {
                return Poll::Ready(Some(Ok(change)));
            }
            match this.queue.poll_recv(cx) {
                // Pending alone does not say that the queue is empty: the runtime lets nobody read for too long.
                Poll::Pending if this.behind.load(Ordering::Acquire) && this.queue.is_empty() => {}
                polled => return polled.map(|change| change.map(Ok)),
            }
            let Some(shared) = this.shared.upgrade() else { return Poll::Ready(None) };
            match shared.hub().catch_up(this.id) {
                CaughtUp::Changes(missed) => this.first = missed,
                CaughtUp::Lagged => {
                    this.behind.store(false, Ordering::Release);
                    return Poll::Ready(Some(Err(Error::Lagged)));
                }
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.hub().unsubscribe(self.id);
        }
    }
}
