//! An engine of tests that takes registrations and beats, does as it is told, and remembers what it was asked.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use cosky_core::{
    Beat, BeatKey, ConsumerName, Error, Index, Life, Metadata, MetadataPatch, Namespace, Owner, Read,
    Registered, Registration, Registry, Result, Scope, ServiceId, ServiceInstance, ServiceStat, Stat,
    WatchStream,
};
use tokio::time::{Instant, sleep};

pub(crate) const TTL: Duration = Duration::from_secs(30);
pub(crate) const PERIOD: Duration = Duration::from_secs(10);

/// How the next beat goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Script {
    Answer(Beat),
    After(Duration, Beat),
    Hang,
    Fail,
}

/// How other calls go, from now on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    #[default]
    Answer,
    Hang,
    Fail,
}

/// What reached the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Call {
    Register,
    Beat(usize),
    BeatEnded,
    /// With the entries.
    Patch(String),
    Deregister,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) calls: Vec<(Instant, Call)>,
    /// How the next beats go; those after them are answered well.
    pub(crate) script: VecDeque<Script>,
    /// How everything else goes.
    pub(crate) register: Mode,
    pub(crate) patch: Mode,
    pub(crate) deregister: Mode,
    /// What the last registration said.
    pub(crate) registered: Option<Registration>,
    pub(crate) registering: usize,
    pub(crate) most_registering: usize,
}

#[derive(Default)]
pub(crate) struct Engine {
    pub(crate) state: Mutex<State>,
    /// How long a registration takes.
    pub(crate) slow: Duration,
}

/// Tells when a beat ends, by an answer or by being given up.
struct Ended<'a>(&'a Engine);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.note(Call::BeatEnded);
    }
}

impl Engine {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn note(&self, call: Call) {
        self.state().calls.push((Instant::now(), call));
    }

    pub(crate) fn script(&self, steps: impl IntoIterator<Item = Script>) {
        self.state().script.extend(steps);
    }

    /// When each call of this kind came.
    pub(crate) fn times(&self, wanted: fn(&Call) -> bool) -> Vec<Instant> {
        self.state().calls.iter().filter(|(_, call)| wanted(call)).map(|(at, _)| *at).collect()
    }

    pub(crate) fn beats(&self) -> Vec<Instant> {
        self.times(|call| matches!(call, Call::Beat(_)))
    }

    pub(crate) fn registrations(&self) -> usize {
        self.times(|call| *call == Call::Register).len()
    }

    pub(crate) fn words(&self) -> Vec<Call> {
        self.state().calls.iter().map(|(_, call)| call.clone()).collect()
    }
}

impl Mode {
    async fn play<T>(self, answer: T) -> Result<T> {
        match self {
            Self::Answer => Ok(answer),
            Self::Hang => std::future::pending().await,
            Self::Fail => absent(),
        }
    }
}

fn absent<T>() -> Result<T> {
    Err(Error::unavailable("this engine only takes registrations and beats"))
}

#[async_trait]
impl Registry for Engine {
    async fn register(&self, _: &Namespace, new: &Registration) -> Result<Registered> {
        self.note(Call::Register);
        let mode = {
            let mut state = self.state();
            state.registered = Some(new.clone());
            state.registering += 1;
            state.most_registering = state.most_registering.max(state.registering);
            state.register
        };
        sleep(self.slow).await;
        self.state().registering -= 1;
        let life = Life::Remaining { remaining: TTL, ttl_at: 0 };
        mode.play(Registered { life, owner: new.owner.clone().unwrap() }).await
    }

    async fn beat(&self, _: &Namespace, keys: &[BeatKey<'_>]) -> Result<Vec<Beat>> {
        self.note(Call::Beat(keys.len()));
        let _ended = Ended(self);
        let step = self.state().script.pop_front().unwrap_or(Script::Answer(Beat::Renewed(None)));
        match step {
            Script::Answer(beat) => Ok(vec![beat; keys.len()]),
            Script::After(time, beat) => {
                sleep(time).await;
                Ok(vec![beat; keys.len()])
            }
            Script::Hang => std::future::pending().await,
            Script::Fail => absent(),
        }
    }

    async fn deregister(&self, _: &Namespace, _: &ServiceId, _: &str, _: Option<&Owner>) -> Result<bool> {
        self.note(Call::Deregister);
        let mode = self.state().deregister;
        mode.play(true).await
    }

    async fn namespaces(&self) -> Result<Vec<Namespace>> {
        absent()
    }
    async fn add_namespace(&self, _: &Namespace) -> Result<bool> {
        absent()
    }
    async fn remove_namespace(&self, _: &Namespace) -> Result<bool> {
        absent()
    }
    async fn purge_namespace(&self, _: &Namespace) -> Result<bool> {
        absent()
    }
    async fn services(&self, _: &Namespace) -> Result<Read<Vec<ServiceId>>> {
        absent()
    }
    async fn service_stats(&self, _: &Namespace) -> Result<Read<Vec<ServiceStat>>> {
        absent()
    }
    async fn stat(&self, _: &Namespace) -> Result<Read<Stat>> {
        absent()
    }
    async fn set_service(&self, _: &Namespace, _: &ServiceId) -> Result<bool> {
        absent()
    }
    async fn remove_service(&self, _: &Namespace, _: &ServiceId) -> Result<bool> {
        absent()
    }
    async fn set_metadata(&self, _: &Namespace, _: &ServiceId, _: &str, _: &Metadata) -> Result<bool> {
        absent()
    }
    async fn patch_metadata(
        &self,
        _: &Namespace,
        _: &ServiceId,
        _: &str,
        patch: &MetadataPatch,
    ) -> Result<bool> {
        let entries = patch.iter().map(|(key, value)| format!("{key}={}", value.unwrap_or_default()));
        self.note(Call::Patch(entries.collect::<Vec<_>>().join(",")));
        let mode = self.state().patch;
        mode.play(true).await
    }
    async fn instances(&self, _: &Namespace, _: &ServiceId) -> Result<Read<Vec<ServiceInstance>>> {
        absent()
    }
    async fn instance(&self, _: &Namespace, _: &ServiceId, _: &str) -> Result<Read<Option<ServiceInstance>>> {
        absent()
    }
    async fn digest(&self, _: &Namespace, _: &Scope) -> Result<Read<u64>> {
        absent()
    }
    async fn add_dependency(&self, _: &Namespace, _: &ConsumerName, _: &str) -> Result<()> {
        absent()
    }
    async fn topology(&self, _: &Namespace) -> Result<BTreeMap<String, Vec<String>>> {
        absent()
    }
    async fn watch(&self, _: &Namespace, _: Scope, _: Option<Index>) -> Result<WatchStream> {
        absent()
    }
}
