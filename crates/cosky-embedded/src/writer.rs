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
    memory::{Slot, millis},
    row::Key,
};

/// How often expiry is looked at when nobody writes.
const TICK: Duration = Duration::from_millis(250);
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
    stall_limit: Duration,
    /// When each ephemeral instance is looked at next: not later than its deadline, which beats move on.
    due: BinaryHeap<Reverse<Due>>,
    last_step: Duration,
    /// The state that watchers were told last.
    announced: StoreState,
}

struct Due(u64, Arc<Slot>);

/// Starts the thread. It ends when every sender is gone, or after [`Job::Close`].
pub(crate) fn spawn(
    shared: Arc<Shared>,
    disk: Disk,
    stall_limit: Duration,
) -> Result<mpsc::Sender<Job>, OpenError> {
    let (sender, jobs) = mpsc::channel(shared.limits.write_queue);
    let path = disk.directory().map(ToOwned::to_owned).unwrap_or_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(|source| OpenError::Io { path: path.clone(), source })?;
    let now = shared.clock.now();
    let (due, announced) = {
        let memory = shared.read();
        (memory.deadlines().map(|(at, slot)| Reverse(Due(at, slot))).collect(), memory.state(now))
    };
    let writer = Writer { shared, disk, jobs, stall_limit, due, last_step: now, announced };
    let thread = std::thread::Builder::new().name("cosky-writer".into());
    thread.spawn(move || writer.run(&runtime)).map_err(|source| OpenError::Io { path, source })?;
    Ok(sender)
}

impl Writer {
    fn run(mut self, runtime: &tokio::runtime::Runtime) {
        let mut busy = false;
        let closing = loop {
            let pause = if busy { Duration::ZERO } else { TICK };
            let waited = runtime.block_on(async { tokio::time::timeout(pause, self.jobs.recv()).await });
            let mut closing = None;
            let mut requests = Vec::new();
            let mut next = match waited {
                Ok(None) => break None,
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
            self.notice_stall();
            busy = self.step(requests);
            if closing.is_some() {
                break closing;
            }
        };
        self.jobs.close();
        self.shared.hub().end();
        drop(self.disk);
        drop(self.jobs);
        if let Some(done) = closing {
            let _ = done.send(());
        }
    }

    /// When this thread did not run for long, nothing of the process did, and beats could not arrive.
    fn notice_stall(&mut self) {
        let now = self.shared.clock.now();
        let gap = now.saturating_sub(self.last_step);
        self.last_step = now;
        if gap <= TICK.saturating_add(self.stall_limit) {
            return;
        }
        tracing::warn!(
            gap_ms = millis(gap),
            "this process was stopped; every ephemeral instance lives one TTL from now"
        );
        let mut memory = self.shared.write();
        memory.grace(millis(now));
        self.due = memory.deadlines().map(|(at, slot)| Reverse(Due(at, slot))).collect();
    }

    /// One transaction: what is due, then `requests`. True when there is more that is due.
    fn step(&mut self, mut requests: Vec<Box<dyn Request>>) -> bool {
        let (own, keys) = self.due_effects(if requests.is_empty() { EXPIRIES } else { usize::MAX });
        if !own.is_empty() || !requests.is_empty() || self.disk.needs_repair(self.last_step) {
            let (outcome, committed) = self.disk.transact(&self.shared, |batch| {
                // A storage failure is kept by the batch and ends it as a whole.
                for key in &keys {
                    let _ = batch.delete(key.clone());
                }
                requests.iter_mut().for_each(|request| request.decide(batch));
            });
            self.note(&committed);
            if committed.is_err() {
                self.disk.mark_dirty(keys);
            }
            // What is due happens even when the commit failed: it depends on time, not on the disk, and its rows are
            // put right later. Nothing that was asked for happens then.
            let asked = if committed.is_ok() { outcome.effects } else { Vec::new() };
            self.carry_out(own.into_iter().chain(asked).collect());
            requests.into_iter().for_each(|request| request.answer(committed.clone()));
        }
        self.announce_state();
        self.due.peek().is_some_and(|Reverse(Due(at, _))| *at <= millis(self.last_step))
    }

    /// Instances whose life is over and marks that are over: what that does to memory, and to which rows.
    fn due_effects(&mut self, limit: usize) -> (Vec<Effect>, BTreeSet<Key>) {
        let now = millis(self.shared.clock.now());
        let (mut effects, mut keys) = (Vec::new(), BTreeSet::new());
        for slot in self.take_dead(now, limit) {
            let (service, id) = (slot.instance.service().clone(), slot.instance.id().clone());
            keys.insert(Key::Instance(slot.namespace.clone(), service.clone(), id.clone()));
            effects.push(Effect::Remove(slot.namespace.clone(), service, id, InstanceOp::Expired));
        }
        self.shared.counters.expirations.fetch_add(effects.len() as u64, Ordering::Relaxed);
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
        self.shared.hub().publish(published);
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
    fn announce_state(&mut self) {
        let state = self.shared.read().state(self.shared.clock.now());
        if state != self.announced {
            self.announced = state;
            let index = self.shared.write().advance(None);
            self.shared.hub().publish(vec![(None, Arc::new(Change::new(index, Event::State(state))))]);
        }
    }

    /// Counts a commit, and keeps why writes are refused; logged when that changes.
    fn note(&self, committed: &Result<()>) {
        let counters = &self.shared.counters;
        let counter = if committed.is_ok() { &counters.commits } else { &counters.failed_commits };
        counter.fetch_add(1, Ordering::Relaxed);
        let refusal = committed.as_ref().err().map(ToString::to_string);
        let mut known = self.shared.refusal.lock().expect("no code under this lock panics");
        match (&*known, &refusal) {
            (None, Some(reason)) => tracing::error!(reason, "writes are refused"),
            (Some(_), None) => tracing::info!("writes are taken again"),
            _ => {}
        }
        *known = refusal;
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
