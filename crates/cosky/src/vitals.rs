//! How a registration does: as numbers for metrics, and as an answer for the application's own health route.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use cosky_core::STATUS;
use serde::Serialize;
use tokio::sync::watch;

use crate::{
    RegistrationState, UP,
    entry::{Entry, Phase},
};

/// How a registration did so far. Plain numbers, for whatever metrics the application has.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Vitals {
    /// When the server last confirmed it, by a registration or a beat.
    pub last_beat: Option<Instant>,
    /// What went wrong last, and when. It stays when all is well again.
    pub last_error: Option<(Instant, Arc<str>)>,
    /// Beats that renewed it.
    pub beats: u64,
    /// Registrations that succeeded: one, and one more after each time that the server had forgotten it.
    pub registrations: u64,
    /// Beats and registrations in the background that failed.
    pub failures: u64,
    /// Those of them since the last that succeeded.
    pub failures_in_a_row: u32,
    /// How long it lives without a beat.
    pub ttl: Duration,
    /// The period between beats.
    pub period: Duration,
}

/// The changes of a registration's [`Vitals`] and state. Several at once show the last one.
#[derive(Debug)]
pub struct VitalsChanges {
    entry: Arc<Entry>,
    pulse: watch::Receiver<()>,
    ended: bool,
}

/// What the application's health route says of its registration; serialises to JSON in camelCase.
///
/// It is `DOWN` only while this process itself is leaving. That the registry is away, that the instance is not
/// registered yet, that an operator took it out: none of that is healed by killing the process, so it is `DEGRADED`, and
/// [`Health::http_status`] stays 200. A liveness probe that asks this route never restarts a whole fleet because of a
/// registry that restarts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Health {
    /// How it stands.
    pub status: HealthStatus,
    /// Why it is not `UP`, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The instance's id.
    pub instance_id: String,
    /// Milliseconds since the server last confirmed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_beat_ms: Option<u64>,
    /// Beats and registrations that failed since then.
    pub failures: u32,
}

/// The health of a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
#[non_exhaustive]
pub enum HealthStatus {
    /// All is well.
    Up,
    /// The application serves, and others may not find it.
    Degraded,
    /// The application is ending.
    Down,
}

impl Vitals {
    pub(crate) fn new(ttl: Duration) -> Self {
        Self {
            last_beat: None,
            last_error: None,
            beats: 0,
            registrations: 0,
            failures: 0,
            failures_in_a_row: 0,
            ttl,
            period: ttl / 3,
        }
    }

    /// How many failures in a row end with this.
    pub(crate) fn succeeded(&mut self) -> u32 {
        self.last_beat = Some(now());
        std::mem::take(&mut self.failures_in_a_row)
    }

    pub(crate) fn failed(&mut self, error: &Arc<str>) {
        self.last_error = Some((now(), error.clone()));
        self.failures += 1;
        self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
    }
}

/// By tokio's clock, which a test may pause.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl VitalsChanges {
    pub(crate) fn of(entry: Arc<Entry>) -> Self {
        let mut pulse = entry.pulse.subscribe();
        pulse.mark_changed();
        Self { entry, pulse, ended: false }
    }

    /// How it stands now the first time, then after the next change; `None` after what was final. Cancelling loses
    /// nothing.
    pub async fn next(&mut self) -> Option<(RegistrationState, Vitals)> {
        if self.ended || self.pulse.changed().await.is_err() {
            return None;
        }
        let (state, vitals) = {
            let living = self.entry.lock();
            (living.state.clone(), living.vitals.clone())
        };
        self.ended = state.is_final();
        Some((state, vitals))
    }
}

impl Health {
    pub(crate) fn of(entry: &Entry) -> Self {
        let living = entry.lock();
        let vitals = &living.vitals;
        let status = living.registration.metadata.get(STATUS).unwrap_or(UP);
        let error = || vitals.last_error.as_ref().map_or_else(String::new, |(_, error)| format!(": {error}"));
        let (health, reason) = match &living.state {
            RegistrationState::Disabled => {
                (HealthStatus::Up, Some("the registration is switched off".to_owned()))
            }
            _ if living.leaves_by_itself || living.phase == Phase::Leaving => {
                (HealthStatus::Down, Some("the application is ending".to_owned()))
            }
            RegistrationState::Deregistered => {
                let reason = "somebody deregistered the instance; it stays away until it is registered anew";
                (HealthStatus::Degraded, Some(reason.to_owned()))
            }
            RegistrationState::Waiting => {
                (HealthStatus::Degraded, Some(format!("it is not ready to be registered yet{}", error())))
            }
            RegistrationState::Registering => {
                (HealthStatus::Degraded, Some(format!("it is being registered{}", error())))
            }
            RegistrationState::Unreachable { last_error, .. } => {
                (HealthStatus::Degraded, Some(format!("the registry does not keep it: {last_error}")))
            }
            RegistrationState::Registered if status != UP => {
                (HealthStatus::Degraded, Some(format!("its status is {status}")))
            }
            RegistrationState::Registered => (HealthStatus::Up, None),
        };
        let since = vitals.last_beat.map(|beat| now().saturating_duration_since(beat));
        Self {
            status: health,
            reason,
            instance_id: entry.id.to_string(),
            last_beat_ms: since.map(|since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX)),
            failures: vitals.failures_in_a_row,
        }
    }

    /// The HTTP status to answer with: 503 while the application is ending, so that load balancers send nothing new;
    /// else 200.
    pub fn http_status(&self) -> u16 {
        match self.status {
            HealthStatus::Up | HealthStatus::Degraded => 200,
            HealthStatus::Down => 503,
        }
    }
}
