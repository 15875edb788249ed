//! The one thread that changes anything: group commit, expiry, and telling the watchers.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, binary_heap::PeekMut},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use cosky_core::{Change, Error, Event, InstanceOp, Result, StoreState};
use tokio::sync::{mpsc, oneshot};

use crate::{
    OpenError, Shared,
    batch::{Batch, Effect, apply},
    disk::Disk,
    hub::Published,
    memory::{Slot, millis},
    row::Key,
    vitals::Stop,
};

/// How often expiry is looked at when nobody writes.
const TICK: Duration = Duration::from_millis(250);
/// How often the disk is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Requests that share one commit at most.
const BATCH: usize = 256;
/// Instances that one commit removes at most because their beats stopped, when nobody waits for it. A request is
/// decided after everything that was dead before it is gone.
const EXPIRIES: usize = 2500;

/// What the writer is asked to do.
pub(crate) enum Job {
    /// Decide a request in the next transaction.
    Write(Box<dyn Request>),
    /// Finish and let go of the file.
    Close(oneshot::Sender<()>),
}

/// A request, decided inside a transaction and answered when it is known whether the commit succeeded.
pub(crate) trait Request: Send {
    /// Decides it against the rows.
    fn decide(&mut self, batch: &mut Batch<'_>);

    /// Tells the caller.
    fn answer(self: Box<Self>, committed: Result<()>);
}

/// A request and the caller who waits for it.
pub(crate) struct Pending<T, F> {
    operation: Option<F>,
    result: Option<Result<T>>,
    caller: oneshot::Sender<Result<T>>,
}

impl<T, F> Pending<T, F> {
    pub(crate) fn new(operation: F, caller: oneshot::Sender<Result<T>>) -> Self {
        Self { operation: Some(operation), result: None, caller }
    }
}

impl<T: Send, F: FnOnce(&mut Batch<'_>) -> Result<T> + Send> Request for Pending<T, F> {
    fn decide(&mut self, batch: &mut Batch<'_>) {
        self.result = self.operation.take().map(|operation| operation(batch));
    }

    fn answer(self: Box<Self>, committed: Result<()>) {
        let Self { result, caller, .. } = *self;
        let undecided = || Err(Error::unavailable("the request was not carried out"));
        let _ = caller.send(committed.and_then(|()| result.unwrap_or_else(undecided)));
    }
}

struct Writer {
    shared: Arc<Shared>,
    disk: Disk,
    jobs: mpsc::Receiver<Job>,
    /// When each ephemeral instance is looked at next: not later than its deadline, which beats move on.
    due: BinaryHeap<Reverse<Due>>,
    /// When the disk is looked at next.
    next_look: Duration,
    /// The state that watchers were told last.
    announced: StoreState,
}

struct Due(u64, Arc<Slot>);

/// Tells that the writer has ended, however it did.
struct End(Arc<Shared>);

/// Starts the thread. It ends when every sender is gone, or after [`Job::Close`].
pub(crate) fn spawn(shared: Arc<Shared>, disk: Disk) -> Result<mpsc::Sender<Job>, OpenError> {
    let (sender, jobs) = mpsc::channel(shared.limits.write_queue);
    let path = disk.directory().map(ToOwned::to_owned).unwrap_or_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(|source| OpenError::Io { path: path.clone(), source })?;
    let now = shared.clock.now();
    let (due, announced) = {
        let memory = shared.read();
        (memory.deadlines().map(|(at, slot)| Reverse(Due(at, slot))).collect(), memory.state(now))
    };
    let writer = Writer { shared, disk, jobs, due, next_look: Duration::ZERO, announced };
    let thread = std::thread::Builder::new().name("cosky-writer".into());
    let end = End(Arc::clone(&writer.shared));
    let run = move || {
        let (disk, closing) = writer.run(&runtime);
        disk.close();
        drop(end);
        if let Some(done) = closing {
            let _ = done.send(());
        }
    };
    thread.spawn(run).map_err(|source| OpenError::Io { path, source })?;
    Ok(sender)
}

impl Writer {
    /// Works until it is asked to close, or nobody is left to ask. Returns the file, and who waits for its being closed.
    fn run(mut self, runtime: &tokio::runtime::Runtime) -> (Disk, Option<oneshot::Sender<()>>) {
        let mut busy = false;
        loop {
            let pause = if busy { Duration::ZERO } else { TICK };
            let waited = runtime.block_on(async { tokio::time::timeout(pause, self.jobs.recv()).await });
            let mut closing = None;
            let mut requests = Vec::new();
            let mut next = match waited {
                Ok(None) => return (self.disk, None),
                Ok(Some(job)) => Some(job),
                Err(_elapsed) => None,
            };
            while let Some(job) = next {
                match job {
                    Job::Write(request) => requests.push(request),
                    Job::Close(done) => {
                        closing = Some(done);
                        break;
                    }
                }
                next = if requests.len() < BATCH { self.jobs.try_recv().ok() } else { None };
            }
            busy = self.step(requests);
            if closing.is_some() {
                return (self.disk, closing);
            }
        }
    }

    /// While the process is stopped or the machine suspended, no beat can be taken. After a short stop every deadline moves
    /// on by as much; after a long one everything lives a full TTL again.
    fn notice_stop(&mut self, now: Duration) {
        match self.shared.vitals.take_stop(millis(now)) {
            None => return,
            Some(Stop::Short(missed)) => self.shared.write().postpone(missed),
            Some(Stop::Long) => {
                tracing::warn!(
                    "this process was stopped for a while; every ephemeral instance lives one TTL from now"
                );
                self.shared.write().grace(millis(now));
            }
        }
        self.due = self.shared.read().deadlines().map(|(at, slot)| Reverse(Due(at, slot))).collect();
    }

    /// One transaction: what is due, then `requests`. True when there is more that is due.
    fn step(&mut self, mut requests: Vec<Box<dyn Request>>) -> bool {
        let now = self.shared.clock.now();
        self.notice_stop(now);
        self.announce_state(now);
        self.shared.vitals.begin(now);
        let tell = self.look_at_disk(now);
        let (own, keys) =
            self.due_effects(millis(now), if requests.is_empty() { EXPIRIES } else { usize::MAX });
        if tell || !own.is_empty() || !requests.is_empty() || self.disk.needs_repair(now) {
            let committed = self.disk.transact(&self.shared, |batch| {
                // A storage failure is kept by the batch and ends it as a whole.
                for key in &keys {
                    let _ = batch.delete(key.clone());
                }
                requests.iter_mut().for_each(|request| request.decide(batch));
            });
            self.note(&committed);
            // What is due happens even when the commit failed: it depends on time, not on the disk, and its rows are
            // put right later. Nothing that was asked for happens then.
            let (asked, committed) = match committed {
                Ok(effects) => (effects, Ok(())),
                Err(error) => {
                    self.disk.mark_dirty(keys);
                    (Vec::new(), Err(error))
                }
            };
            self.carry_out(own.into_iter().chain(asked).collect());
            requests.into_iter().for_each(|request| request.answer(committed.clone()));
        }
        self.shared.vitals.end();
        self.due.peek().is_some_and(|Reverse(Due(at, _))| *at <= millis(now))
    }

    /// Looks now and then how much room the disk has and whether the files are still in their place; here, because a disk
    /// that hangs hangs who asks. True when that has changed whether writes are taken, so that a commit is to tell.
    fn look_at_disk(&mut self, now: Duration) -> bool {
        if now < self.next_look {
            return false;
        }
        self.next_look = now + LOOK;
        if let Some(directory) = self.disk.directory()
            && let Ok(disk) = rustix::fs::statvfs(directory)
        {
            self.shared.vitals.set_disk_free(disk.f_bavail * disk.f_frsize);
        }
        self.disk.is_in_place() == self.shared.vitals.refusal(now).is_some()
    }

    /// Instances whose life is over and marks that are over: what that does to memory, and to which rows.
    fn due_effects(&mut self, now: u64, limit: usize) -> (Vec<Effect>, BTreeSet<Key>) {
        let (mut effects, mut keys) = (Vec::new(), BTreeSet::new());
        for slot in self.take_dead(now, limit) {
            let (service, id) = (slot.instance.service().clone(), slot.instance.id().clone());
            keys.insert(Key::Instance(slot.namespace.clone(), service.clone(), id.clone()));
            effects.push(Effect::Remove(slot.namespace.clone(), service, id, InstanceOp::Expired));
        }
        let limit = self.shared.limits.gone_marks;
        for (namespace, instance) in self.shared.read().stale_marks(now, limit, EXPIRIES) {
            keys.insert(Key::Gone(namespace.clone(), instance.clone()));
            effects.push(Effect::Unmark(namespace, instance));
        }
        (effects, keys)
    }

    /// Takes up to `limit` dead instances off the queue; what beats have moved on goes back.
    fn take_dead(&mut self, now: u64, limit: usize) -> Vec<Arc<Slot>> {
        if self.due.peek().is_none_or(|due| due.0.0 > now) {
            return Vec::new();
        }
        // Under the write lock no beat can come between the decision and the mark.
        let memory = self.shared.write();
        let (mut dead, mut later) = (Vec::new(), Vec::new());
        while dead.len() < limit
            && let Some(due) = self.due.peek_mut()
            && due.0.0 <= now
        {
            let Reverse(Due(_, slot)) = PeekMut::pop(due);
            let current = memory.slot(&slot.namespace, slot.instance.id().as_str());
            if !current.is_some_and(|current| Arc::ptr_eq(current, &slot)) {
                continue;
            }
            if slot.expire(now) {
                dead.push(slot);
            } else if let Some(deadline) = slot.deadline() {
                later.push(Reverse(Due(deadline, slot)));
            }
        }
        self.due.extend(later);
        dead
    }

    /// Changes memory, and tells the watchers what readers can now see.
    fn carry_out(&mut self, effects: Vec<Effect>) {
        if effects.is_empty() {
            return;
        }
        let (published, slots) = apply(&mut self.shared.write(), effects, &*self.shared.clock);
        let expired = |(_, change): &&Published| {
            matches!(change.event, Event::Instance { op: InstanceOp::Expired, .. })
        };
        let expired = published.iter().filter(expired).count() as u64;
        self.shared.hub().publish(published);
        self.shared.counters.expirations.fetch_add(expired, Ordering::Relaxed);
        for slot in slots {
            if let Some(deadline) = slot.deadline() {
                self.due.push(Reverse(Due(deadline, slot)));
            }
        }
        self.drop_stale_dues();
    }

    /// Replaced instances stay in the queue until they are due; without this, edits in a loop would grow it.
    fn drop_stale_dues(&mut self) {
        let memory = self.shared.read();
        if self.due.len() > 2 * memory.instances + 1024 {
            self.due = memory.deadlines().map(|(at, slot)| Reverse(Due(at, slot))).collect();
        }
    }

    /// Tells all watchers when reads become protected, and when they no longer are.
    fn announce_state(&mut self, now: Duration) {
        let state = self.shared.read().state(now);
        if state != self.announced {
            self.announced = state;
            let index = self.shared.write().advance(None);
            self.shared.hub().publish(vec![(None, Arc::new(Change::new(index, Event::State(state))))]);
        }
    }

    /// Counts a commit, and keeps why writes are refused; logged when that changes.
    fn note<T>(&self, committed: &Result<T>) {
        let counters = &self.shared.counters;
        let counter = if committed.is_ok() { &counters.commits } else { &counters.failed_commits };
        counter.fetch_add(1, Ordering::Relaxed);
        let refusal = committed.as_ref().err().map(ToString::to_string);
        match (self.shared.vitals.set_refusal(refusal.clone()), refusal) {
            (None, Some(reason)) => tracing::error!(reason, "writes are refused"),
            (Some(_), None) => tracing::info!("writes are taken again"),
            _ => {}
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let reason = if std::thread::panicking() {
            "the writer has failed; start the server again"
        } else {
            "the store is closed"
        };
        self.0.vitals.set_refusal(Some(reason.into()));
        self.0.hub().end();
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}
