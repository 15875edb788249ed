//! What the store held, state by state, so that what a view shows can be found in it.

use std::{collections::BTreeMap, time::Duration};

use cosky_core::{
    Event, InstanceId, Namespace, ServiceId, ServiceInstance,
    digest::{Digest, of_instance},
};
use cosky_testkit::sim::{Past, Restart, Sim, What};

/// The states of every service, and what became of every instance.
#[derive(Default)]
pub(crate) struct History {
    /// How many things of the simulation's past are in it.
    known: usize,
    services: BTreeMap<ServiceId, Vec<State>>,
    held: BTreeMap<ServiceId, BTreeMap<InstanceId, ServiceInstance>>,
    /// Since which version each instance is in the store without a gap, and since when.
    pub(crate) steady: BTreeMap<InstanceId, (u64, Duration)>,
    /// How often data were lost.
    pub(crate) losses: usize,
    /// What a loss of data took with it and nobody has brought back: which version of it, and when.
    pub(crate) lost: BTreeMap<InstanceId, (u64, Duration)>,
    /// When the store was restarted last: since then, views may show what protection keeps.
    pub(crate) restarted_at: Option<Duration>,
}

/// One state of a service.
#[derive(Clone, Copy)]
pub(crate) struct State {
    pub(crate) from: Duration,
    pub(crate) digest: u64,
}

impl History {
    /// Takes in what has happened since the last call. To be called at once after a restart of the store.
    pub(crate) fn follow(&mut self, sim: &Sim, namespace: &Namespace) {
        for Past { at, what } in sim.past(self.known) {
            self.known += 1;
            if matches!(what, What::Restarted(_)) {
                self.restarted_at = Some(at);
            }
            match what {
                What::Happened(_, Event::Instance { service, id, instance, .. }) => {
                    self.lost.remove(&id);
                    let held = self.held.entry(service.clone()).or_default();
                    match instance {
                        Some(instance) => {
                            held.insert(id.clone(), instance.clone());
                            self.steady.entry(id).or_insert((version(&instance), at));
                        }
                        None => {
                            held.remove(&id);
                            self.steady.remove(&id);
                        }
                    }
                    self.note(&service, at);
                }
                What::Restarted(restart) if restart != Restart::Kept => {
                    self.losses += 1;
                    let services: Vec<_> = self.held.keys().cloned().collect();
                    for service in services {
                        let left: BTreeMap<_, _> = sim
                            .truth(namespace, &service)
                            .into_iter()
                            .map(|instance| (instance.id().clone(), instance))
                            .collect();
                        for (id, instance) in
                            self.held.insert(service.clone(), left.clone()).unwrap_or_default()
                        {
                            if !left.contains_key(&id) && instance.is_ephemeral() {
                                self.lost.insert(id.clone(), (version(&instance), at));
                            }
                            self.steady.remove(&id);
                        }
                        for (id, instance) in left {
                            self.steady.insert(id, (version(&instance), at));
                        }
                        self.note(&service, at);
                    }
                }
                _ => {}
            }
        }
    }

    fn note(&mut self, service: &ServiceId, at: Duration) {
        let mut digest = Digest::default();
        self.held[service].values().for_each(|instance| digest.add(of_instance(instance)));
        let states = self.services.entry(service.clone()).or_default();
        states.push(State { from: at, digest: digest.get() });
    }

    /// The states of a service. The first one is nothing at all.
    fn states(&self, service: &ServiceId) -> impl Iterator<Item = (usize, State, Duration)> {
        let nothing = State { from: Duration::ZERO, digest: 0 };
        let states = self.services.get(service).map(Vec::as_slice).unwrap_or_default();
        let ends = states.iter().map(|state| state.from).chain([Duration::MAX]);
        std::iter::once(nothing)
            .chain(states.iter().copied())
            .zip(ends)
            .enumerate()
            .map(|(k, (state, end))| (k, state, end))
    }

    /// The first state from number `first` on that is `digest` and did not end before `since`.
    pub(crate) fn find(
        &self,
        service: &ServiceId,
        digest: u64,
        first: usize,
        since: Duration,
    ) -> Option<usize> {
        let mut states = self.states(service).skip(first);
        states.find(|(_, state, end)| state.digest == digest && *end >= since).map(|(k, _, _)| k)
    }
}

/// Which version of itself an instance is: its metadata say so, and no two are equal.
pub(crate) fn version(instance: &ServiceInstance) -> u64 {
    instance.metadata().get("v").and_then(|v| v.parse().ok()).expect("every instance carries its version")
}
