//! Who watches what, and the ring of recent changes from which a watcher resumes.
//!
//! A change is pushed to the queues of the watchers that it concerns and to nobody else, so ten thousand idle watchers
//! cost nothing when something happens elsewhere. A queue is bounded; whoever lets it fill up is cut off.

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
    of_all: Vec<u64>,
    of_service: HashMap<ServiceId, Vec<u64>>,
}

struct Watcher {
    namespace: Namespace,
    scope: Scope,
    /// Changes up to here are in what the watcher was given at first.
    known: u64,
    queue: mpsc::Sender<Arc<Change>>,
    lagged: Arc<AtomicBool>,
}

/// One watcher's stream.
pub(crate) struct Watch {
    first: VecDeque<Arc<Change>>,
    queue: mpsc::Receiver<Arc<Change>>,
    lagged: Arc<AtomicBool>,
    id: u64,
    shared: Weak<Shared>,
}

impl Hub {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            ring: VecDeque::new(),
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
            None => {
                let snapshot = Event::Snapshot(memory.snapshot(namespace, &scope, &*shared.clock));
                (VecDeque::from([Arc::new(Change::new(last, snapshot))]), memory.sequence)
            }
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
        let lagged = Arc::new(AtomicBool::new(false));
        let watcher = Watcher {
            namespace: namespace.clone(),
            scope,
            known,
            queue: sender,
            lagged: Arc::clone(&lagged),
        };
        self.watchers.insert(id, watcher);
        Ok(Watch { first, queue, lagged, id, shared: Arc::downgrade(shared) })
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
            self.ring.push_back((namespace, change));
            if self.ring.len() > self.limits.ring
                && let Some((_, oldest)) = self.ring.pop_front()
            {
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
        let Some(watcher) = self.watchers.get(&id) else { return };
        if change.index.sequence <= watcher.known {
            return;
        }
        if watcher.queue.try_send(Arc::clone(change)).is_err() {
            watcher.lagged.store(true, Ordering::Release);
            self.lagged += 1;
            self.unsubscribe(id);
        }
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

impl Stream for Watch {
    type Item = Result<Arc<Change>>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if let Some(change) = this.first.pop_front() {
            return Poll::Ready(Some(Ok(change)));
        }
        match this.queue.poll_recv(cx) {
            Poll::Ready(None) if this.lagged.swap(false, Ordering::AcqRel) => {
                Poll::Ready(Some(Err(Error::Lagged)))
            }
            Poll::Ready(change) => Poll::Ready(change.map(Ok)),
            Poll::Pending => Poll::Pending,
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
