//! One instance that this client keeps registered: its newest data, when it beats next, and what became of it.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use cosky_core::{InstanceId, Life, Metadata, Owner, Registration, ServiceId, Ttl};
use tokio::{sync::watch, time::Instant};

use crate::{Result, backoff::Backoff, instance};

/// When the first beat follows a registration.
const FIRST_BEAT: Duration = Duration::from_secs(1);

/// How a registration stands.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegistrationState {
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
}

/// What may happen to an entry next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
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
    pub(crate) state: watch::Sender<RegistrationState>,
    /// What the deregistration answered; set before the state says `Deregistered`.
    pub(crate) outcome: OnceLock<Result<bool>>,
    life: Mutex<Living>,
}

/// What changes over the life of an entry.
#[derive(Debug)]
pub(crate) struct Living {
    pub(crate) phase: Phase,
    /// The newest data that this client knows: what was registered, and metadata that was set or seen since.
    pub(crate) registration: Registration,
    pub(crate) beat_every: Option<Duration>,
    pub(crate) ttl: Duration,
    pub(crate) period: Duration,
    /// When it beats or registers next; never, for a permanent instance.
    pub(crate) due: Option<Instant>,
    /// Counts what makes an answer that is still under way stale.
    pub(crate) turn: u64,
    pub(crate) last_beat: Option<Instant>,
    /// Failures in a row.
    pub(crate) failures: u32,
    pub(crate) backoff: Backoff,
}

impl Entry {
    pub(crate) fn new(registration: Registration, beat_every: Option<Duration>, phase: Phase) -> Self {
        let owner = registration.owner.clone().unwrap_or_else(Owner::random);
        let ttl = registration.ttl.unwrap_or(Ttl::DEFAULT).duration();
        Self {
            id: registration.id(),
            service: registration.service.clone(),
            operation: tokio::sync::Mutex::new(()),
            handles: AtomicUsize::new(0),
            state: watch::Sender::new(RegistrationState::Registering),
            outcome: OnceLock::new(),
            life: Mutex::new(Living {
                phase,
                registration: Registration { owner: Some(owner.clone()), ..registration },
                beat_every,
                ttl,
                period: ttl / 3,
                due: (phase == Phase::Absent).then(Instant::now),
                turn: 0,
                last_beat: None,
                failures: 0,
                backoff: Backoff::reconnect(),
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

    /// The server has it, with this data and this life. Says nothing once it is leaving.
    ///
    /// # Errors
    /// [`crate::Error::Period`] when the wanted period is not below the TTL.
    pub(crate) fn registered(
        &self,
        registration: Registration,
        beat_every: Option<Duration>,
        life: Life,
    ) -> Result<()> {
        let mut living = self.lock();
        if matches!(living.phase, Phase::Leaving | Phase::Left) {
            return Ok(());
        }
        let ttl = registration.ttl.map(Ttl::duration).or(life.remaining());
        if let Some(ttl) = ttl {
            living.period = instance::period(beat_every, ttl)?;
            living.ttl = ttl;
            if beat_every.is_some_and(|wanted| wanted > living.period) {
                tracing::warn!(instance.id = %self.id, wanted = ?beat_every, period = ?living.period, ?ttl,
                    "the period between beats is longer than half of the TTL; half of it is used");
            }
        }
        let now = Instant::now();
        living.due = registration.ephemeral.then(|| now + FIRST_BEAT.min(living.period));
        living.registration = Registration { owner: Some(self.owner.clone()), ..registration };
        living.beat_every = beat_every;
        living.phase = Phase::Beating;
        living.turn += 1;
        living.last_beat = Some(now);
        self.succeeded(&mut living);
        Ok(())
    }

    /// Registers it with other data, in the background.
    pub(crate) fn want(&self, registration: Registration, beat_every: Option<Duration>) {
        let mut living = self.lock();
        living.registration = Registration { owner: Some(self.owner.clone()), ..registration };
        living.beat_every = beat_every;
        if matches!(living.phase, Phase::Beating | Phase::Absent | Phase::Returning) {
            living.phase = Phase::Absent;
            living.turn += 1;
            living.due = Some(Instant::now());
        }
    }

    /// A beat that was sent at `sent` renewed it.
    pub(crate) fn renewed(&self, turn: u64, sent: Instant) {
        let mut living = self.lock();
        if living.phase != Phase::Beating || living.turn != turn {
            return;
        }
        living.last_beat = Some(Instant::now());
        living.due = Some(sent + living.period.mul_f64(rand::random_range(0.9..=1.1)));
        self.succeeded(&mut living);
    }

    /// The server does not know it: it is registered again at once. Returns false for a stale answer.
    pub(crate) fn unknown(&self, turn: u64) -> bool {
        let mut living = self.lock();
        if living.phase != Phase::Beating || living.turn != turn {
            return false;
        }
        living.phase = Phase::Absent;
        living.turn += 1;
        living.due = Some(Instant::now());
        living.backoff.reset();
        tracing::info!(instance.id = %self.id, "the server does not know the instance; registering it again");
        self.state.send_if_modified(|state| match state {
            RegistrationState::Registered => {
                *state = RegistrationState::Registering;
                true
            }
            _ => false,
        });
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
        living.failures = living.failures.saturating_add(1);
        let last_error: Arc<str> = error.to_string().into();
        self.state.send_modify(|state| {
            let since = match state {
                RegistrationState::Unreachable { since, .. } => *since,
                _ => {
                    tracing::warn!(instance.id = %self.id, %error, "the instance cannot be kept registered; trying on");
                    std::time::Instant::now()
                }
            };
            *state = RegistrationState::Unreachable { since, last_error };
        });
    }

    fn succeeded(&self, living: &mut Living) {
        let failures = std::mem::take(&mut living.failures);
        living.backoff.reset();
        if failures > 0 {
            tracing::info!(instance.id = %self.id, failures, "the instance is kept registered again");
        }
        self.state.send_if_modified(|state| {
            std::mem::replace(state, RegistrationState::Registered) != RegistrationState::Registered
        });
    }

    /// Somebody sets or was seen to set its metadata.
    pub(crate) fn saw_metadata(&self, metadata: &Metadata) {
        let mut living = self.lock();
        if !matches!(living.phase, Phase::Leaving | Phase::Left) && living.registration.metadata != *metadata
        {
            living.registration.metadata = metadata.clone();
        }
    }

    /// Begins to leave: no beat and no registration begins from now on, and answers that are under way are ignored.
    /// False when somebody else began before.
    pub(crate) fn begin_to_leave(&self) -> bool {
        let mut living = self.lock();
        if matches!(living.phase, Phase::Leaving | Phase::Left) {
            return false;
        }
        living.phase = Phase::Leaving;
        living.turn += 1;
        living.due = None;
        true
    }

    /// It is over.
    pub(crate) fn left(&self, outcome: Result<bool>) {
        {
            let mut living = self.lock();
            living.phase = Phase::Left;
            living.turn += 1;
            living.due = None;
        }
        let _ = self.outcome.set(outcome);
        self.state.send_if_modified(|state| {
            std::mem::replace(state, RegistrationState::Deregistered) != RegistrationState::Deregistered
        });
    }
}
