//! A whole installation in one thread, with time that costs nothing: one store, servers that know of its changes with a
//! lag, and for each client a link that may delay, hold, cut, lose, double and reorder what travels on it.
//!
//! Everything is drawn from one seed and nothing looks at a real clock, so a seed always plays the same: the tests that use
//! it run on a paused tokio runtime of one thread. [`Sim::trace`] tells what happened, line by line.
//!
//! It is no easier than reality. Epochs are random and sequences start anywhere at each start of a server; a server
//! that cannot reach its store answers with what it knew, marked stale; two servers of one store know of a change at
//! different times; a ring of recent changes is small; a store may come back without its data, or with those of a copy.

mod clock;
mod link;
mod pipe;
mod registry;
mod server;
mod store;
#[cfg(test)]
mod tests;
mod world;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use cosky_core::{Event, Namespace, ServiceId, ServiceInstance, StoreId, StoreState, Ttl};
use tokio::{task::AbortHandle, time::MissedTickBehavior};

pub use clock::VirtualClock;
pub use link::{Counts, Delay, Link, Quality};
pub use store::Restart;

use clock::WALL;
use link::LinkState;
use world::World;

/// How often a store looks for what is dead.
const TICK: Duration = Duration::from_millis(250);

/// What is simulated.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// How many servers serve the store, at least one.
    pub servers: usize,
    /// How long a server takes to know of a change; drawn at each of its starts.
    pub lag: Delay,
    /// How many recent changes a server keeps for watchers that resume, at least one. A small number makes resuming fail now
    /// and then.
    pub ring: usize,
    /// The TTL of an instance that brings none.
    pub default_ttl: Ttl,
}

/// Something that happened in the store.
#[derive(Debug, Clone)]
pub struct Past {
    /// When, since the start of the simulation.
    pub at: Duration,
    /// What.
    pub what: What,
}

/// What may happen in a store.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum What {
    /// A change. Without a namespace it concerns all of them.
    Happened(Option<Namespace>, Event),
    /// It was started anew, and has this.
    Restarted(Restart),
}

/// The simulation. Clones are the same one. It ends with the runtime that it was made in.
#[derive(Clone)]
pub struct Sim {
    world: Arc<Mutex<World>>,
    /// Ends the store's own work with the last clone.
    _reaper: Arc<Reaper>,
}

struct Reaper(AbortHandle);

impl Sim {
    /// A store without data and its servers. To be called in a paused tokio runtime of one thread.
    ///
    /// # Panics
    /// Without a server or a ring.
    pub fn new(seed: u64, shape: Shape) -> Self {
        assert!(shape.servers > 0 && shape.ring > 0, "{shape:?} can serve nobody");
        let world = Arc::new(Mutex::new(World::new(seed, shape)));
        let reaped = Arc::downgrade(&world);
        let reaper = tokio::spawn(async move {
            let mut tick = tokio::time::interval(TICK);
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tick.tick().await;
                let Some(world) = reaped.upgrade() else { return };
                world.lock().unwrap_or_else(PoisonError::into_inner).reap();
            }
        });
        Self { world, _reaper: Arc::new(Reaper(reaper.abort_handle())) }
    }

    /// Writes a trace from now on.
    pub fn record(&self) {
        self.lock().trace.get_or_insert_default();
    }

    /// Adds a line to the trace, when there is one.
    pub fn note(&self, line: impl FnOnce() -> String) {
        self.lock().note(line);
    }

    /// The trace so far.
    pub fn trace(&self) -> Vec<String> {
        self.lock().trace.clone().unwrap_or_default()
    }

    /// A new client's link to the servers.
    pub fn link(&self, quality: Quality) -> Arc<Link> {
        let mut world = self.lock();
        let (number, rng) = (world.links.len(), world.random());
        let server = number % world.servers.len();
        world.links.push(LinkState::new(rng, server, quality));
        Arc::new(Link::new(self.clone(), number))
    }

    /// Time since the start.
    pub fn now(&self) -> Duration {
        self.lock().now()
    }

    /// What the store holds of a service, sorted by id.
    pub fn truth(&self, namespace: &Namespace, service: &ServiceId) -> Vec<ServiceInstance> {
        let world = self.lock();
        world.store.instances(namespace, service, world.now())
    }

    /// What the store says of itself.
    pub fn state(&self) -> StoreState {
        self.lock().store.state()
    }

    /// Which data the store has.
    pub fn store_id(&self) -> StoreId {
        self.lock().store.id
    }

    /// What happened in the store, in order, but for the first `known`.
    pub fn past(&self, known: usize) -> Vec<Past> {
        self.lock().past.get(known..).unwrap_or_default().to_vec()
    }

    /// Keeps a copy of the store, for a [`Restart::Copy`].
    pub fn copy_store(&self) {
        self.lock().store.copy();
    }

    /// Stops the store and its servers, and starts them after `down`. Tells what the store came back with.
    pub fn restart_store(&self, wanted: Restart, down: Duration) -> Restart {
        self.lock().restart_store(wanted, down)
    }

    /// Stops one server, and starts it after `down`. The store goes on.
    pub fn restart_server(&self, server: usize, down: Duration) {
        self.lock().restart_server(server, down);
    }

    /// For `time`, a server cannot reach its store: it answers with what it knows, and says that this is stale.
    pub fn cut_off_server(&self, server: usize, time: Duration) {
        {
            let mut world = self.lock();
            world.note(|| format!("server {server}: cut off from its store for {time:?}"));
            let now = world.now();
            let told = world.servers[server].cut_off(now);
            world.deliver(told);
        }
        self.later(time, move |world| {
            let (now, state) = (world.now(), world.store.state());
            let told = world.servers[server].rejoin(state, now);
            world.deliver(told);
        });
    }

    /// Does something to the world after `time`.
    fn later(&self, time: Duration, change: impl FnOnce(&mut World) + Send + 'static) {
        let world = Arc::downgrade(&self.world);
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            if let Some(world) = world.upgrade() {
                change(&mut world.lock().unwrap_or_else(PoisonError::into_inner));
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.0.abort();
    }
}
