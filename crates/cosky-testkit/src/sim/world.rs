//! Store, servers, links and what travels between them, under one lock.

use std::{collections::BTreeMap, fmt::Display, time::Duration};

use cosky_core::{Change, Error, Event, Index, Namespace, Result, Scope, StoreState};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::time::Instant;

use super::{
    Past, Shape, What,
    link::LinkState,
    pipe::{End, Pipe, Taken},
    server::{Delivery, Server},
    store::{Happened, Restart, Store},
};

pub(super) struct World {
    begin: Instant,
    shape: Shape,
    rng: StdRng,
    pub(super) store: Store,
    store_down_until: Duration,
    pub(super) servers: Vec<Server>,
    pub(super) links: Vec<LinkState>,
    pipes: BTreeMap<u64, Pipe>,
    next_pipe: u64,
    pub(super) past: Vec<Past>,
    pub(super) trace: Option<Vec<String>>,
}

impl World {
    pub(super) fn new(seed: u64, shape: Shape) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let store = Store::new(rng.random(), shape.default_ttl);
        let mut world = Self {
            begin: Instant::now(),
            shape,
            rng,
            store,
            store_down_until: Duration::ZERO,
            servers: Vec::new(),
            links: Vec::new(),
            pipes: BTreeMap::new(),
            next_pipe: 0,
            past: Vec::new(),
            trace: None,
        };
        for _ in 0..shape.servers {
            let server = world.fresh_server();
            world.servers.push(server);
        }
        world
    }

    pub(super) fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    /// When a time of the simulation is, for timers.
    pub(super) fn instant(&self, at: Duration) -> Instant {
        self.begin + at
    }

    pub(super) fn random(&mut self) -> StdRng {
        StdRng::from_rng(&mut self.rng)
    }

    fn fresh_server(&mut self) -> Server {
        let place = (self.rng.random(), self.rng.random_range(0..100));
        let lag = self.shape.lag.draw(&mut self.rng);
        Server::start(&self.store, place, lag, self.shape.ring)
    }

    /// Writes a line of the trace, when somebody wants one.
    pub(super) fn note(&mut self, line: impl FnOnce() -> String) {
        let now = self.now();
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>9.3} {}", now.as_secs_f64(), line()));
        }
    }

    /// Tells every server what happened in the store.
    pub(super) fn tell(&mut self, told: Vec<Happened>) {
        let now = self.now();
        for (namespace, event) in told {
            self.note(|| format!("store: {}", Told(&event)));
            self.past.push(Past { at: now, what: What::Happened(namespace.clone(), event.clone()) });
            for at in 0..self.servers.len() {
                let deliveries = self.servers[at].hear((namespace.clone(), event.clone()), now);
                self.deliver(deliveries);
            }
        }
    }

    pub(super) fn deliver(&mut self, deliveries: Vec<Delivery>) {
        for Delivery { pipe, at, change } in deliveries {
            let Some(pipe) = self.pipes.get_mut(&pipe) else { continue };
            let (number, link) = (pipe.link, &mut self.links[pipe.link]);
            let mishap = pipe.send(&change, at, &link.quality, &mut link.rng);
            if let Some(mishap) = mishap {
                link.counts.mishaps += 1;
                self.note(|| format!("link {number}: {mishap:?} {}", Told(&change.event)));
            }
        }
    }

    /// Removes what is dead, as the store does by itself.
    pub(super) fn reap(&mut self) {
        let now = self.now();
        if self.store_down_until <= now {
            let mut told = Vec::new();
            self.store.reap(now, &mut told);
            self.tell(told);
        }
    }

    /// Whether a server's store takes writes and answers.
    pub(super) fn check_store(&self, server: usize) -> Result<()> {
        if self.store_down_until > self.now() || self.servers[server].is_cut_off() {
            return Err(Error::unavailable("the store cannot be reached"));
        }
        Ok(())
    }

    pub(super) fn subscribe(
        &mut self,
        link: usize,
        server: usize,
        (namespace, scope, from): (&Namespace, Scope, Option<Index>),
    ) -> u64 {
        let number = self.next_pipe;
        self.next_pipe += 1;
        self.pipes.insert(number, Pipe::new(link));
        let now = self.now();
        let first = self.servers[server].subscribe(number, (namespace, scope, from), &self.store, now);
        self.deliver(first);
        number
    }

    pub(super) fn unsubscribe(&mut self, pipe: u64) {
        self.pipes.remove(&pipe);
        self.servers.iter_mut().for_each(|server| server.unsubscribe(pipe));
    }

    /// What a watcher finds in its pipe.
    pub(super) fn take(&mut self, number: u64) -> Taken {
        let now = self.now();
        let Some(pipe) = self.pipes.get_mut(&number) else { return Taken::Ended(None) };
        let (at, link) = (pipe.link, &mut self.links[pipe.link]);
        let taken = pipe.take(now, link.freeze.as_ref(), link.quality.silence);
        match &taken {
            Taken::Item(change) => {
                link.counts.snapshots += usize::from(matches!(change.event, Event::Snapshot(_)));
                let change = std::sync::Arc::clone(change);
                self.note(|| {
                    format!("link {at}: stream {number} brings {}: {}", change.index, Told(&change.event))
                });
            }
            Taken::Ended(error) => {
                let error = error.clone();
                self.unsubscribe(number);
                self.lost(at);
                self.note(|| format!("link {at}: stream {number} ended: {error:?}"));
            }
            Taken::Wait(_) => {}
        }
        taken
    }

    pub(super) fn wake(&self, pipe: u64) -> Option<std::sync::Arc<tokio::sync::Notify>> {
        self.pipes.get(&pipe).map(|pipe| std::sync::Arc::clone(&pipe.wake))
    }

    /// A client that has lost a connection may come back at another server.
    pub(super) fn lost(&mut self, link: usize) {
        let servers = self.servers.len();
        let link = &mut self.links[link];
        if !link.pinned && servers > 1 && link.rng.random_bool(0.5) {
            link.server = (link.server + 1) % servers;
        }
    }

    /// Breaks every connection of a link.
    pub(super) fn cut(&mut self, link: usize) {
        self.note(|| format!("link {link}: cut"));
        self.end_streams(link, End::Cut, false);
        self.links[link].break_all();
    }

    /// Ends the streams of a link, after a word of warning when the server drains.
    pub(super) fn end_streams(&mut self, link: usize, end: End, draining: bool) {
        let now = self.now();
        let of_link: Vec<u64> =
            self.pipes.iter().filter(|(_, pipe)| pipe.link == link).map(|(number, _)| *number).collect();
        for number in of_link {
            if draining {
                let index = self.servers[self.links[link].server].last_index();
                let change = Change::new(index, Event::State(StoreState::Draining));
                self.deliver(vec![Delivery { pipe: number, at: now, change: change.into() }]);
            }
            self.servers.iter_mut().for_each(|server| server.unsubscribe(number));
            if let Some(pipe) = self.pipes.get_mut(&number) {
                pipe.end(end);
            }
        }
    }

    /// Wakes whoever waits for something that a link holds.
    pub(super) fn wake_link(&mut self, link: usize) {
        self.pipes.values().filter(|pipe| pipe.link == link).for_each(|pipe| pipe.wake.notify_one());
    }

    /// A server process ends and another one starts in its place.
    pub(super) fn restart_server(&mut self, server: usize, down: Duration) {
        let until = self.now() + down;
        self.note(|| format!("server {server}: restarts, back at {:.3}", until.as_secs_f64()));
        let watchers: Vec<u64> = self.servers[server].watchers().collect();
        for number in watchers {
            if let Some(pipe) = self.pipes.get_mut(&number) {
                pipe.end(End::Cut);
            }
        }
        for link in self.links.iter_mut().filter(|link| link.server == server) {
            link.break_all();
        }
        self.servers[server] = self.fresh_server();
        self.servers[server].down_until = until;
    }

    /// The store stops and starts anew, and every server with it.
    pub(super) fn restart_store(&mut self, wanted: Restart, down: Duration) -> Restart {
        let until = self.now() + down;
        let done = self.store.restart(wanted, until);
        self.note(|| format!("store: restarts, {done:?}"));
        self.past.push(Past { at: self.now(), what: What::Restarted(done) });
        self.store_down_until = until;
        for server in 0..self.servers.len() {
            self.restart_server(server, down);
        }
        done
    }
}

/// An event in a few words.
pub(super) struct Told<'a>(pub(super) &'a Event);

impl Display for Told<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Event::Snapshot(snapshot) => {
                write!(f, "snapshot ({})", snapshot.state.as_str())?;
                for (service, instances) in &snapshot.services {
                    write!(f, " {service}: [")?;
                    instances.iter().try_for_each(|instance| write!(f, " {}", Brief(instance)))?;
                    write!(f, " ]")?;
                }
                Ok(())
            }
            Event::Instance { op, instance: Some(instance), .. } => {
                write!(f, "{} {}", op.as_str(), Brief(instance))
            }
            Event::Instance { op, id, .. } => write!(f, "{} {id}", op.as_str()),
            Event::Service { op, service } => write!(f, "service {} {service}", op.as_str()),
            Event::State(state) => write!(f, "state {}", state.as_str()),
            other => write!(f, "{other:?}"),
        }
    }
}

/// An instance in a few words: its id and the values of its metadata.
struct Brief<'a>(&'a cosky_core::ServiceInstance);

impl Display for Brief<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.id().as_str())?;
        self.0.metadata().iter().try_for_each(|(_, value)| write!(f, "/{value}"))
    }
}
