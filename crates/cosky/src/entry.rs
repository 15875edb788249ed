//! One instance that this client keeps registered: its newest data, when it beats next, and what became of it.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use cosky_cache::Backoff;
use cosky_core::{InstanceId, Life, Metadata, Owner, Registration, ServiceId, Ttl};
use tokio::{sync::watch, time::Instant};

use crate::{
    Result, Vitals,
    instance::{self, Limits, Pace, Wanted},
};

/// When the first beat follows a registration.
const FIRST_BEAT: Duration = Duration::from_secs(1);

/// How a registration stands.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegistrationState {
    /// Nobody was told of it yet: it waits for [`crate::NamespaceClient::register_when`]'s check, or for
    /// [`crate::Registration::begin`].
    Waiting,
    /// It is being registered, for the first time or again after the server did not know it.
    Registering,
    /// The server has it; the last beat was answered well.
    Registered,
    /// Beats or registrations fail. They go on; when they fail for a whole TTL the instance leaves every view, and comes
    /// back with the first that succeeds.
    Unreachable {
        /// When the first of them failed.
        since: std::time::Instant,
        /// What the last of them met.
        last_error: Arc<str>,
    },
    /// It is over: closed, dropped, or deregistered by somebody. Nothing of this client brings it back.
    Deregistered,
    /// It is switched off by [`crate::Instance::enabled`]; nobody is ever told of it.
    Disabled,
}

impl RegistrationState {
    /// Whether nothing follows any more.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Deregistered | Self::Disabled)
    }
}

/// What may happen to an entry next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nobody was told of it, and nobody is before something lets it begin.
    Waiting,
    /// A first registration is being asked for by a caller who waits for it.
    Joining,
    /// The server is not known to have it; it is registered when due.
    Absent,
    /// Its registration is under way.
    Returning,
    /// It beats when due, or is permanent.
    Beating,
    /// It is being deregistered.
    Leaving,
    /// It is over.
    Left,
}

/// What there is to do for somebody who wants an entry to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leave {
    /// Nothing: somebody else began before.
    Begun,
    /// To forget it: no server was ever told of it.
    Untold,
    /// To tell the server.
    Goodbye,
}

/// Shared by the handles of one instance and by the task that beats.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: InstanceId,
    pub(crate) service: ServiceId,
    pub(crate) owner: Owner,
    /// Held during a registration, deregistration or change of metadata, so that they follow each other.
    pub(crate) operation: tokio::sync::Mutex<()>,
    /// How many handles there are.
    handles: AtomicUsize,
    /// Shows [`Living::state`] to those who await it. It is changed by [`Entry::publish`] alone, and never while `life` is
    /// locked: whoever looks at it may ask for something that `life` holds.
    pub(crate) state: watch::Sender<RegistrationState>,
    /// What the deregistration answered; set before the state says `Deregistered`.
    pub(crate) outcome: OnceLock<Result<bool>>,
    /// Tells of every change of its vitals.
    pub(crate) pulse: watch::Sender<()>,
    /// What the drain came to, when there was one.
    pub(crate) drained: tokio::sync::OnceCell<Result<bool>>,
    life: Mutex<Living>,
}

/// What changes over the life of an entry.
#[derive(Debug)]
pub(crate) struct Living {
    pub(crate) phase: Phase,
    pub(crate) state: RegistrationState,
    /// The newest data that this client knows: what was registered, and metadata that was set or seen since.
    pub(crate) registration: Registration,
    pub(crate) pace: Pace,
    pub(crate) limits: Limits,
    /// When it beats or registers next; never, for a permanent instance.
    pub(crate) due: Option<Instant>,
    /// Counts what makes an answer that is still under way stale.
    pub(crate) turn: u64,
    /// Counts the data that was wanted in the background: a registration that began with older data does not replace it.
    pub(crate) wish: u64,
    /// When the server was last asked to register or renew it, answered or not.
    pub(crate) last_asked: Option<Instant>,
    pub(crate) vitals: Vitals,
    /// Whether this process takes it out: its health is down from then on.
    pub(crate) leaves_by_itself: bool,
    pub(crate) backoff: Backoff,
}

impl Entry {
    pub(crate) fn new(wanted: &Wanted, phase: Phase) -> Self {
        let registration = wanted.registration.clone();
        let owner = registration.owner.clone().unwrap_or_else(Owner::random);
        let ttl = registration.ttl.unwrap_or(Ttl::DEFAULT).duration();
        let state = match phase {
            Phase::Waiting => RegistrationState::Waiting,
            Phase::Left => RegistrationState::Disabled,
            _ => RegistrationState::Registering,
        };
        Self {
            id: registration.id(),
            service: registration.service.clone(),
            operation: tokio::sync::Mutex::new(()),
            handles: AtomicUsize::new(0),
            state: watch::Sender::new(state.clone()),
            outcome: OnceLock::new(),
            pulse: watch::Sender::new(()),
            drained: tokio::sync::OnceCell::new(),
            life: Mutex::new(Living {
                phase,
                state,
                registration: Registration { owner: Some(owner.clone()), ..registration },
                pace: wanted.pace,
                limits: wanted.limits,
                due: (phase == Phase::Absent).then(Instant::now),
                turn: 0,
                wish: 0,
                last_asked: None,
                vitals: Vitals::new(ttl),
                leaves_by_itself: false,
                backoff: Backoff::short(),
            }),
            owner,
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Living> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn phase(&self) -> Phase {
        self.lock().phase
    }

    pub(crate) fn handle_added(&self) {
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn is_held_once(&self) -> bool {
        self.handles.load(Ordering::Acquire) == 1
    }

    /// True for the last one.
    pub(crate) fn handle_dropped(&self) -> bool {
        self.handles.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// The server has it, with this data and this life. Says nothing once it is leaving. `wish` is the one that stood when
    /// the data was taken; where other data is wanted since, that is registered next.
    ///
    /// # Errors
    /// [`crate::Error::Period`] when the wanted period is not below the TTL.
    pub(crate) fn registered(&self, wanted: Wanted, life: Life, wish: u64) -> Result<()> {
        let mut living = self.lock();
        if matches!(living.phase, Phase::Leaving | Phase::Left) {
            return Ok(());
        }
        let registration = wanted.registration;
        let ttl = registration.ttl.map(Ttl::duration).or(life.remaining());
        if let Some(ttl) = ttl {
            let period = instance::period(wanted.pace.every, ttl)?;
            living.vitals.period = period;
            living.vitals.ttl = ttl;
            if let Some(wanted) = wanted.pace.every.filter(|wanted| *wanted > period) {
                tracing::warn!(instance.id = %self.id, ?wanted, ?period, ?ttl,
                    "the period between beats is longer than half of the TTL; half of it is used");
            }
        }
        living.vitals.registrations += 1;
        if living.wish != wish {
            living.comes_back();
            self.succeeded(living);
            return Ok(());
        }
        let now = Instant::now();
        let first = wanted.pace.first.unwrap_or(FIRST_BEAT).min(living.vitals.period);
        living.due = registration.ephemeral.then(|| now + first);
        living.registration = Registration { owner: Some(self.owner.clone()), ..registration };
        living.pace = wanted.pace;
        living.limits = wanted.limits;
        living.phase = Phase::Beating;
        living.turn += 1;
        self.succeeded(living);
        Ok(())
    }

    /// A first registration failed. Whoever wants the instance in the background beside the caller still does.
    pub(crate) fn not_joined(&self) {
        let mut living = self.lock();
        if living.phase == Phase::Joining && living.wish > 0 {
            living.comes_back();
        }
    }

    /// The newest wish, for [`Entry::registered`].
    pub(crate) fn wish(&self) -> u64 {
        self.lock().wish
    }

    /// Registers it with other data, in the background; or later, when it waits.
    pub(crate) fn want(&self, wanted: Wanted) {
        let mut living = self.lock();
        living.registration = Registration { owner: Some(self.owner.clone()), ..wanted.registration };
        living.pace = wanted.pace;
        living.limits = wanted.limits;
        living.wish += 1;
        if matches!(living.phase, Phase::Beating | Phase::Absent | Phase::Returning) {
            self.become_absent(living);
        }
    }

    /// Ends the wait. False when it did not wait.
    pub(crate) fn begin(&self) -> bool {
        let mut living = self.lock();
        let waited = living.phase == Phase::Waiting;
        if waited {
            living.state = RegistrationState::Registering;
            self.become_absent(living);
        }
        waited
    }

    /// It is registered at once, in the background.
    fn become_absent(&self, mut living: MutexGuard<'_, Living>) {
        living.absent();
        drop(living);
        self.publish();
    }

    /// Shows what has changed. Reads it again, so that of two changes at once the later one stays.
    fn publish(&self) {
        self.state.send_if_modified(|shown| {
            let state = self.lock().state.clone();
            std::mem::replace(shown, state.clone()) != state
        });
        self.pulse.send_replace(());
    }

    /// The server is being asked to register or renew it.
    pub(crate) fn asked(&self) {
        self.lock().last_asked = Some(Instant::now());
    }

    /// A beat that was sent at `sent` renewed it.
    pub(crate) fn renewed(&self, turn: u64, sent: Instant) {
        let mut living = self.lock();
        if living.phase != Phase::Beating || living.turn != turn {
            return;
        }
        living.due = Some(sent + living.vitals.period.mul_f64(rand::random_range(0.9..=1.1)));
        living.vitals.beats += 1;
        self.succeeded(living);
    }

    /// The server does not know it: it is registered again at once. Returns false for a stale answer.
    pub(crate) fn unknown(&self, turn: u64) -> bool {
        let mut living = self.lock();
        if living.phase != Phase::Beating || living.turn != turn {
            return false;
        }
        living.backoff.reset();
        if living.state == RegistrationState::Registered {
            living.state = RegistrationState::Registering;
        }
        tracing::info!(instance.id = %self.id, "the server does not know the instance; registering it again");
        self.become_absent(living);
        true
    }

    /// A beat or registration failed; the next one follows after `delay`.
    pub(crate) fn failed(&self, turn: u64, delay: Duration, error: &cosky_core::Error) {
        let mut living = self.lock();
        if !matches!(living.phase, Phase::Beating | Phase::Returning) || living.turn != turn {
            return;
        }
        if living.phase == Phase::Returning {
            living.phase = Phase::Absent;
        }
        living.due = Some(Instant::now() + delay);
        let last_error: Arc<str> = error.to_string().into();
        living.vitals.failed(&last_error);
        let since = match living.state {
            RegistrationState::Unreachable { since, .. } => since,
            _ => {
                tracing::warn!(instance.id = %self.id, %error, "the instance cannot be kept registered; trying on");
                std::time::Instant::now()
            }
        };
        living.state = RegistrationState::Unreachable { since, last_error };
        drop(living);
        self.publish();
    }

    fn succeeded(&self, mut living: MutexGuard<'_, Living>) {
        let failures = living.vitals.succeeded();
        living.backoff.reset();
        living.state = RegistrationState::Registered;
        drop(living);
        if failures > 0 {
            tracing::info!(instance.id = %self.id, failures, "the instance is kept registered again");
        }
        self.publish();
    }

    /// Notes an error that changes nothing else.
    pub(crate) fn met(&self, error: &str) {
        self.lock().vitals.last_error = Some((std::time::Instant::now(), error.into()));
        self.pulse.send_replace(());
    }

    /// This process has set its metadata, or will by the next registration.
    pub(crate) fn set_metadata(&self, metadata: Metadata) {
        let mut living = self.lock();
        if !matches!(living.phase, Phase::Leaving | Phase::Left) {
            living.registration.metadata = metadata;
        }
    }

    /// The registry told its metadata. That counts only while the server has what this process registered: before, it may
    /// be a predecessor's, or older than what is wanted now.
    pub(crate) fn saw_metadata(&self, metadata: &Metadata) {
        let mut living = self.lock();
        if living.phase == Phase::Beating && living.registration.metadata != *metadata {
            living.registration.metadata = metadata.clone();
        }
    }

    /// Whether a server may have heard of it.
    pub(crate) fn was_told(&self) -> bool {
        self.lock().last_asked.is_some()
    }

    /// It ends by the wish of this process.
    pub(crate) fn begin_to_drain(&self) {
        self.lock().leaves_by_itself = true;
        self.pulse.send_replace(());
    }

    /// Begins to leave: no beat and no registration begins from now on, and answers that are under way are ignored.
    pub(crate) fn begin_to_leave(&self) -> Leave {
        let mut living = self.lock();
        let leave = match living.phase {
            Phase::Leaving | Phase::Left => return Leave::Begun,
            Phase::Waiting if living.last_asked.is_none() => Leave::Untold,
            _ => Leave::Goodbye,
        };
        living.phase = Phase::Leaving;
        living.leaves_by_itself = true;
        living.turn += 1;
        living.due = None;
        leave
    }

    /// It is over.
    pub(crate) fn left(&self, outcome: Result<bool>) {
        let _ = self.outcome.set(outcome);
        let mut living = self.lock();
        living.phase = Phase::Left;
        living.state = RegistrationState::Deregistered;
        living.turn += 1;
        living.due = None;
        drop(living);
        self.publish();
    }
}

impl Living {
    /// It is to be registered at once, and what is under way does not count any more.
    fn absent(&mut self) {
        self.phase = Phase::Absent;
        self.turn += 1;
        self.due = Some(Instant::now());
    }

    /// As [`Living::absent`], unless that is under way already.
    fn comes_back(&mut self) {
        if !matches!(self.phase, Phase::Absent | Phase::Returning) {
            self.absent();
        }
    }
}
