//! The clients that write: processes that register, beat, change, leave and die.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use cosky_core::{
    Beat, BeatKey, Error, InstanceId, Metadata, Namespace, Owner, Registration, Registry as _, ServiceId, Ttl,
};
use cosky_testkit::sim::{Link, Sim};
use rand::{RngExt as _, rngs::StdRng};

/// How many services there are.
pub(crate) const SERVICES: usize = 5;
/// Addresses of each of them.
const ADDRESSES: i64 = 3;
/// The longest TTL of an instance, in seconds.
pub(crate) const LONGEST_TTL: i64 = 9;

/// All processes.
pub(crate) struct Fleet {
    sim: Sim,
    link: Arc<Link>,
    namespace: Namespace,
    rng: StdRng,
    processes: BTreeMap<InstanceId, Process>,
    /// Gives each thing that is written a version of its own.
    version: u64,
    /// What was deregistered and acknowledged: the last version that it had, and when.
    pub(crate) gone: BTreeMap<InstanceId, (u64, Duration)>,
}

/// One process at one address.
struct Process {
    registration: Registration,
    version: u64,
    /// When it beats or tries to register next.
    due: Duration,
    registered: bool,
}

/// The `n`th service.
pub(crate) fn service(n: usize) -> ServiceId {
    ServiceId::new(&format!("s{n}")).expect("a valid name")
}

impl Fleet {
    pub(crate) fn new(sim: &Sim, link: Arc<Link>, namespace: Namespace, rng: StdRng) -> Self {
        let (processes, gone) = (BTreeMap::new(), BTreeMap::new());
        Self { sim: sim.clone(), link, namespace, rng, processes, version: 0, gone }
    }

    /// Something is written.
    pub(crate) async fn act(&mut self) {
        let service = service(self.rng.random_range(0..SERVICES));
        let port = 8_000 + self.rng.random_range(0..ADDRESSES);
        let lot = self.rng.random_range(0..100);
        let new = Registration::new(service.clone(), "http", "10.0.0.1", port).expect("a valid address");
        let id = new.id();
        match lot {
            // Also in the place of one that is there: a process that was restarted at the same address.
            0..45 => self.start(new).await,
            45..60 => self.deregister(&id).await,
            // It dies without a word.
            60..70 => drop(self.processes.remove(&id)),
            70..95 => self.edit(&id).await,
            _ => drop(self.link.remove_service(&self.namespace, &service).await),
        }
    }

    async fn start(&mut self, new: Registration) {
        let ttl = Ttl::from_seconds(self.rng.random_range(3..=LONGEST_TTL)).expect("a valid TTL");
        let owner = Owner::new(&format!("o{}", self.version)).expect("a valid owner");
        let ephemeral = self.rng.random_bool(0.9);
        let registration = Registration { ttl: Some(ttl), owner: Some(owner), ephemeral, ..new };
        let due = self.sim.now();
        let id = registration.id();
        self.processes.insert(id.clone(), Process { registration, version: 0, due, registered: false });
        self.register(&id).await;
    }

    /// Registers a process, with a version of its own.
    async fn register(&mut self, id: &InstanceId) {
        self.version += 1;
        let Some(process) = self.processes.get_mut(id) else { return };
        process.registration.metadata = metadata(self.version);
        let answer = self.link.register(&self.namespace, &process.registration).await;
        process.registered = answer.is_ok();
        process.version = self.version;
        let period = process.registration.ttl.map_or(Duration::from_secs(1), Ttl::duration) / 3;
        process.due = self.sim.now() + if answer.is_ok() { period } else { Duration::from_millis(500) };
        if matches!(answer, Err(Error::Gone { .. })) {
            self.processes.remove(id);
        }
    }

    async fn deregister(&mut self, id: &InstanceId) {
        let Some(process) = self.processes.get(id).filter(|process| process.registered) else { return };
        let Registration { service, owner, .. } = &process.registration;
        let answer = self.link.deregister(&self.namespace, service, id.as_str(), owner.as_ref()).await;
        if let Ok(true) = answer {
            self.gone.insert(id.clone(), (process.version, self.sim.now()));
            self.processes.remove(id);
        }
    }

    async fn edit(&mut self, id: &InstanceId) {
        self.version += 1;
        let Some(process) = self.processes.get_mut(id).filter(|process| process.registered) else { return };
        let service = &process.registration.service;
        let metadata = metadata(self.version);
        let answer = self.link.set_metadata(&self.namespace, service, id.as_str(), &metadata).await;
        if let Ok(true) = answer {
            process.version = self.version;
        }
    }

    /// Whoever is due beats, or tries to register again.
    pub(crate) async fn beat(&mut self) {
        let now = self.sim.now();
        let due: Vec<_> = self
            .processes
            .iter()
            .filter(|(_, process)| process.due <= now)
            .map(|(id, _)| id.clone())
            .collect();
        for id in due {
            let Some(process) = self.processes.get_mut(&id) else { continue };
            let key = BeatKey { service: process.registration.service.as_str(), instance: id.as_str() };
            let beaten = match process.registered {
                true => self.link.beat(&self.namespace, &[key]).await,
                false => Ok(vec![Beat::Unknown]),
            };
            match beaten.as_deref() {
                Ok([Beat::Renewed(_)]) => {
                    let ttl = process.registration.ttl.map_or(Duration::from_secs(3), Ttl::duration);
                    process.due = now + ttl / 3;
                }
                Ok([Beat::Unknown]) => self.register(&id).await,
                Ok(_) => drop(self.processes.remove(&id)),
                Err(_) => process.due = now + Duration::from_millis(500),
            }
        }
    }
}

fn metadata(version: u64) -> Metadata {
    Metadata::new([("v", version.to_string())]).expect("a short value")
}
