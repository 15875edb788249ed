//! Keeps the instances of one namespace registered: one task, one batch of beats under way at most.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use cosky_cache::Backoff;
use cosky_cache::Cache;
use cosky_core::{
    Beat, BeatKey, Error, InstanceId, Metadata, Namespace, Registered, Registry, ServiceId, limits::BEATS,
};
use tokio::{
    runtime::Handle,
    sync::{Notify, watch},
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};

use crate::{
    entry::{Entry, Leave, Phase},
    instance::Wanted,
    transport::rounded,
};

/// The most instances that one namespace client keeps registered.
pub(crate) const REGISTRATIONS: usize = 10_000;
/// Registrations under way at one time after many instances were lost together.
const RETURNING: usize = 16;
/// How long the deregistration of a permanent instance is tried: nothing else ends it.
const PERMANENT_GOODBYE: Duration = Duration::from_secs(600);

/// The instances of one namespace.
pub(crate) struct Keeper {
    registry: Arc<dyn Registry>,
    namespace: Namespace,
    runtime: Handle,
    /// The longest that a call may take.
    limit: Duration,
    entries: Mutex<HashMap<InstanceId, Arc<Entry>>>,
    /// Held while a batch is under way.
    batch: tokio::sync::Mutex<()>,
    wake: Notify,
    /// How many are leaving.
    leaving: watch::Sender<usize>,
    /// Shows what is written here to readers in this process.
    cache: Option<Cache>,
}

/// What is to be done now, and when to look again.
#[derive(Default)]
struct Plan {
    beats: Vec<(Arc<Entry>, u64)>,
    /// The shortest period among the beats.
    period: Duration,
    absent: Vec<(Arc<Entry>, u64)>,
    next: Option<Instant>,
}

impl Keeper {
    pub(crate) fn new(
        registry: Arc<dyn Registry>,
        namespace: Namespace,
        runtime: Handle,
        limit: Duration,
    ) -> Self {
        Self {
            registry,
            namespace,
            runtime,
            limit,
            entries: Mutex::default(),
            batch: tokio::sync::Mutex::new(()),
            wake: Notify::new(),
            leaving: watch::Sender::new(0),
            cache: None,
        }
    }

    /// Has its writes shown by `cache` as soon as they are acknowledged.
    pub(crate) fn shown_by(self, cache: Cache) -> Self {
        Self { cache: Some(cache), ..self }
    }

    /// The registry acknowledged a write.
    pub(crate) fn wrote(&self, service: &ServiceId) {
        if let Some(cache) = &self.cache {
            cache.wrote(&self.namespace, service);
        }
    }

    pub(crate) fn registry(&self) -> &Arc<dyn Registry> {
        &self.registry
    }

    pub(crate) fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<InstanceId, Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entry of `wanted`'s id, one handle more: the present one, or a new one in `phase` when there is none or the
    /// present one is leaving. True when it is new.
    ///
    /// # Errors
    /// [`Error::Exhausted`] above [`REGISTRATIONS`].
    pub(crate) fn enter(&self, wanted: &Wanted, phase: Phase) -> Result<(Arc<Entry>, bool), Error> {
        let mut entries = self.lock();
        let id = wanted.registration.id();
        if let Some(entry) = entries.get(&id)
            && !matches!(entry.phase(), Phase::Leaving | Phase::Left)
        {
            entry.handle_added();
            return Ok((entry.clone(), false));
        }
        if entries.len() >= REGISTRATIONS {
            return Err(Error::Exhausted { what: "registrations of one client", limit: REGISTRATIONS });
        }
        let entry = Arc::new(Entry::new(wanted, phase));
        entry.handle_added();
        entries.insert(id, entry.clone());
        drop(entries);
        self.wake.notify_one();
        Ok((entry, true))
    }

    /// An entry that nobody is ever told of.
    pub(crate) fn disabled(wanted: &Wanted) -> Arc<Entry> {
        let entry = Arc::new(Entry::new(wanted, Phase::Left));
        entry.handle_added();
        entry
    }

    /// Registers `entry` with `wanted`'s data, within its timeout.
    pub(crate) async fn register(&self, entry: &Entry, wanted: &Wanted) -> Result<Registered, Error> {
        let mut new = wanted.registration.clone();
        new.owner = Some(entry.owner.clone());
        entry.asked();
        let limit = wanted.limits.timeout.unwrap_or(self.limit);
        let answer = timeout(limit, self.registry.register(&self.namespace, &new)).await;
        let registered = answer.unwrap_or_else(|_| Err(late(limit)))?;
        self.wrote(&entry.service);
        Ok(registered)
    }

    /// Looks again at what is due.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    /// The newest metadata of an instance, as a watcher saw it.
    pub(crate) fn saw_metadata(&self, id: &InstanceId, metadata: &Metadata) {
        let entry = self.lock().get(id).cloned();
        if let Some(entry) = entry {
            entry.saw_metadata(metadata);
        }
    }

    /// A handle was dropped. The last one asks for the deregistration.
    pub(crate) fn drop_handle(self: &Arc<Self>, entry: &Arc<Entry>) {
        // Under the lock of the entries, so that no new handle comes between.
        let entries = self.lock();
        if entry.handle_dropped() {
            let leave = entry.begin_to_leave();
            drop(entries);
            self.follow(entry, leave);
        }
    }

    /// Takes an entry out, if nobody else has begun to: stops its beats, and tells the server when that was ever told of
    /// it. Its state says when that is done.
    pub(crate) fn goodbye(self: &Arc<Self>, entry: &Arc<Entry>) {
        self.follow(entry, entry.begin_to_leave());
    }

    fn follow(self: &Arc<Self>, entry: &Arc<Entry>, leave: Leave) {
        match leave {
            Leave::Begun => {}
            Leave::Untold => self.forget(entry, Ok(false)),
            Leave::Goodbye => self.leave(entry.clone()),
        }
    }

    /// A first registration failed and nothing of it can be on the server: takes it out, unless somebody else waits for it.
    pub(crate) fn give_up(&self, entry: &Arc<Entry>) {
        if entry.phase() == Phase::Joining && entry.is_held_once() {
            self.forget(entry, Ok(false));
        }
    }

    /// Takes out an entry of which the server was told nothing, or which it does not have any more.
    pub(crate) fn forget(&self, entry: &Arc<Entry>, outcome: crate::Result<bool>) {
        entry.left(outcome);
        let mut entries = self.lock();
        if entries.get(&entry.id).is_some_and(|present| Arc::ptr_eq(present, entry)) {
            entries.remove(&entry.id);
        }
    }

    /// Deregisters an entry that has begun to leave: waits for what is under way, then asks until the server answers or
    /// the instance has outlived its TTL. Goes on when nobody waits for it.
    fn leave(self: &Arc<Self>, entry: Arc<Entry>) {
        self.leaving.send_modify(|leaving| *leaving += 1);
        let keeper = self.clone();
        self.runtime.spawn(async move {
            let outcome = keeper.deregister(&entry).await;
            match &outcome {
                Ok(was_there) => tracing::info!(instance.id = %entry.id, was_there, "deregistered"),
                Err(error) => tracing::warn!(instance.id = %entry.id, %error, "not deregistered, and not tried any more"),
            }
            keeper.forget(&entry, outcome.map_err(crate::Error::from));
            keeper.leaving.send_modify(|leaving| *leaving -= 1);
        });
    }

    async fn deregister(&self, entry: &Entry) -> Result<bool, Error> {
        let _operation = entry.operation.lock().await;
        drop(self.batch.lock().await);
        let end = {
            let living = entry.lock();
            let Some(last_asked) = living.last_asked else { return Ok(false) };
            if living.registration.ephemeral {
                // Whatever was asked last may have been heard, whether it was answered or not.
                last_asked + living.vitals.ttl
            } else {
                Instant::now() + PERMANENT_GOODBYE
            }
        };
        let mut backoff = Backoff::short();
        loop {
            let ask = self.registry.deregister(
                &self.namespace,
                &entry.service,
                entry.id.as_str(),
                Some(&entry.owner),
            );
            let answer = timeout(self.limit, ask).await;
            let error = match answer.unwrap_or_else(|_| Err(late(self.limit))) {
                Err(
                    error
                    @ (Error::Unavailable { .. } | Error::Unauthorized { .. } | Error::Exhausted { .. }),
                ) => error,
                // Who has no right, or names what cannot be, will not be heard later either.
                Ok(was_there) => {
                    self.wrote(&entry.service);
                    return Ok(was_there);
                }
                refused => return refused,
            };
            let again = Instant::now() + backoff.delay();
            if again >= end {
                return Err(error);
            }
            tracing::debug!(instance.id = %entry.id, %error, "deregistration failed, trying on");
            sleep_until(again).await;
        }
    }

    /// Begins to leave with every instance, and waits until all have left.
    pub(crate) async fn leave_all(self: &Arc<Self>) {
        let entries: Vec<_> = self.lock().values().cloned().collect();
        for entry in &entries {
            self.goodbye(entry);
        }
        let _ = self.leaving.subscribe().wait_for(|leaving| *leaving == 0).await;
    }

    /// Beats and registers again until it is dropped.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut returning = JoinSet::new();
        let mut backoff: Option<Backoff> = None;
        loop {
            while returning.try_join_next().is_some() {}
            let plan = self.plan(Instant::now(), RETURNING - returning.len());
            for (entry, turn) in plan.absent {
                returning.spawn(self.clone().come_back(entry, turn));
            }
            if !plan.beats.is_empty() {
                self.beat(&plan.beats, plan.period, &mut backoff).await;
                continue;
            }
            let next = async {
                match plan.next {
                    Some(next) => sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = next => {}
                () = self.wake.notified() => {}
                Some(_) = returning.join_next() => {}
            }
        }
    }

    /// What is due, and what is due so soon that it may come along: a tenth of its period.
    fn plan(&self, now: Instant, places: usize) -> Plan {
        let mut plan = Plan { period: Duration::MAX, ..Plan::default() };
        for entry in self.lock().values() {
            let mut living = entry.lock();
            let Some(due) = living.due else { continue };
            match living.phase {
                Phase::Beating if due <= now + living.vitals.period / 10 && plan.beats.len() < BEATS => {
                    plan.beats.push((entry.clone(), living.turn));
                    plan.period = plan.period.min(living.vitals.period);
                }
                Phase::Absent if due <= now => {
                    if plan.absent.len() < places {
                        living.phase = Phase::Returning;
                        plan.absent.push((entry.clone(), living.turn));
                    }
                }
                Phase::Beating | Phase::Absent => {
                    plan.next = Some(plan.next.map_or(due, |next| next.min(due)))
                }
                Phase::Waiting | Phase::Joining | Phase::Returning | Phase::Leaving | Phase::Left => {}
            }
        }
        // What is only nearly due goes along with what is due, and does not start a batch.
        let due = |(entry, _): &(Arc<Entry>, u64)| entry.lock().due.is_some_and(|due| due <= now);
        if !plan.beats.is_empty() && !plan.beats.iter().any(due) {
            let soonest = plan.beats.drain(..).filter_map(|(entry, _)| entry.lock().due).min();
            plan.next = plan.next.into_iter().chain(soonest).min();
        }
        plan
    }

    /// One batch, within less than a period.
    async fn beat(&self, beats: &[(Arc<Entry>, u64)], period: Duration, backoff: &mut Option<Backoff>) {
        let keys: Vec<_> = beats
            .iter()
            .map(|(entry, _)| BeatKey { service: entry.service.as_str(), instance: entry.id.as_str() })
            .collect();
        let limit = self.limit.min(period.mul_f64(0.8));
        let under_way = self.batch.lock().await;
        let sent = Instant::now();
        for (entry, _) in beats {
            entry.asked();
        }
        let answer = timeout(limit, self.registry.beat(&self.namespace, &keys)).await;
        drop(under_way);
        match answer.unwrap_or_else(|_| Err(late(limit))) {
            Ok(answers) => {
                *backoff = None;
                tracing::trace!(namespace = %self.namespace, instances = answers.len(), "beat");
                for ((entry, turn), answer) in beats.iter().zip(answers) {
                    match answer {
                        Beat::Renewed(_) => entry.renewed(*turn, sent),
                        Beat::Unknown => drop(entry.unknown(*turn)),
                        Beat::Gone => self.gone(entry, *turn),
                    }
                }
            }
            Err(error) => {
                // Sooner than a period, so that one lost beat does not use up a third of the life.
                let backoff = backoff.get_or_insert_with(|| Backoff::new(period / 8, period / 2));
                let delay = backoff.delay();
                for (entry, turn) in beats {
                    entry.failed(*turn, delay, &error);
                }
            }
        }
    }

    fn gone(&self, entry: &Arc<Entry>, turn: u64) {
        {
            let living = entry.lock();
            if living.phase != Phase::Beating || living.turn != turn {
                return;
            }
        }
        self.deregistered_by_somebody(entry);
    }

    pub(crate) fn deregistered_by_somebody(&self, entry: &Arc<Entry>) {
        tracing::warn!(instance.id = %entry.id, "somebody deregistered the instance; it stops beating");
        entry.met("somebody deregistered the instance");
        self.forget(entry, Ok(false));
    }

    /// Registers what the server does not know, with the newest data that this client knows.
    async fn come_back(self: Arc<Self>, entry: Arc<Entry>, turn: u64) {
        let _operation = entry.operation.lock().await;
        let (wanted, wish) = {
            let living = entry.lock();
            if living.phase != Phase::Returning || living.turn != turn {
                return;
            }
            let (registration, pace, limits) = (living.registration.clone(), living.pace, living.limits);
            (Wanted { registration, pace, limits, enabled: true, auto_register: true }, living.wish)
        };
        let error = match self.register(&entry, &wanted).await {
            Ok(registered) => match entry.registered(wanted, registered.life, wish) {
                Ok(()) => return,
                Err(error) => Error::Conflict { reason: error.to_string() },
            },
            Err(Error::Gone { .. }) => {
                if entry.phase() == Phase::Returning {
                    self.deregistered_by_somebody(&entry);
                }
                return;
            }
            Err(error) => error,
        };
        let delay = entry.lock().backoff.delay();
        entry.failed(turn, delay, &error);
    }
}

fn late(limit: Duration) -> Error {
    Error::Unavailable {
        reason: format!("no answer within {}", rounded(limit)),
        maybe_applied: true,
        source: None,
    }
}

#[cfg(test)]
pub(crate) mod scripted;
#[cfg(test)]
mod tests;
