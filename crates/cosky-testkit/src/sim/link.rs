//! What lies between one client and the servers.

use std::{
    collections::BTreeMap,
    sync::{Arc, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use cosky_core::{
    Beat, BeatKey, ConsumerName, Error, Index, Metadata, MetadataPatch, Namespace, Owner, Read, Registered,
    Registration, Registry, Result, Scope, ServiceId, ServiceInstance, ServiceStat, Stat, WatchStream,
    engine::check_batch,
};
use futures_util::stream;
use rand::{RngExt as _, rngs::StdRng};
use tokio::{sync::Notify, time::sleep_until};

use super::{
    Sim,
    pipe::{End, Mishap},
    store::Happened,
    world::World,
};

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A time between two, to be drawn.
#[derive(Debug, Clone, Copy)]
pub struct Delay {
    /// The shortest, in milliseconds.
    pub least: u64,
    /// The longest, in milliseconds.
    pub most: u64,
}

/// How good a link is.
///
/// A TCP connection can be slow, break, fall silent, and lose what was under way when it broke; it never drops, doubles or
/// reorders in the middle. `dropped`, `doubled` and `overtaken` are for links on which a message goes by itself and nobody
/// notices what became of it, as with pub/sub. They strike changes of instances and services, never snapshots or states.
#[derive(Debug, Clone, Copy)]
pub struct Quality {
    /// How long a message takes each way.
    pub delay: Delay,
    /// How likely a change is lost.
    pub dropped: f64,
    /// How likely it comes twice, the second time up to 1.5 s late.
    pub doubled: f64,
    /// How likely it is up to 1.5 s late, so that others overtake it.
    pub overtaken: f64,
    /// How likely it is that another server answers a single request.
    pub roaming: f64,
    /// After how long without a word a client gives its stream up.
    pub silence: Duration,
}

/// What a client has asked for through its link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads of a service's instances.
    pub loads: usize,
    /// Reads of one instance.
    pub singles: usize,
    /// Watches that were asked for.
    pub watches: usize,
    /// Snapshots that a stream brought.
    pub snapshots: usize,
    /// Digests that were asked for.
    pub digests: usize,
    /// Changes that were dropped, doubled or overtaken.
    pub mishaps: usize,
}

/// A registry as one client sees it through a network that may do anything.
pub struct Link {
    sim: Sim,
    number: usize,
}

/// A connection that is open, and silent.
pub(super) struct Freeze {
    pub(super) since: Duration,
    pub(super) until: Duration,
    /// Requests have connections of their own that go on.
    streams_only: bool,
}

pub(super) struct LinkState {
    pub(super) rng: StdRng,
    pub(super) server: usize,
    /// Whether it stays with its server whatever happens.
    pub(super) pinned: bool,
    pub(super) quality: Quality,
    down_until: Duration,
    pub(super) freeze: Option<Freeze>,
    refusal: Option<(Duration, Error)>,
    /// How often everything was cut.
    cuts: u64,
    /// Wakes those whose message is under way when that happens.
    broken: Arc<Notify>,
    pub(super) counts: Counts,
}

/// A message under way.
struct Journey {
    arrival: Duration,
    /// When the client gives up.
    end: Duration,
    /// How often the link had been cut when it began.
    cuts: u64,
    broken: Arc<Notify>,
}

impl Delay {
    /// From `least` to `most` milliseconds.
    pub fn ms(least: u64, most: u64) -> Self {
        Self { least, most }
    }

    pub(super) fn draw(self, rng: &mut StdRng) -> Duration {
        Duration::from_millis(rng.random_range(self.least..=self.most))
    }
}

impl Quality {
    /// No delay and no fault.
    pub fn perfect() -> Self {
        Self {
            delay: Delay::ms(0, 0),
            dropped: 0.0,
            doubled: 0.0,
            overtaken: 0.0,
            roaming: 0.0,
            silence: Duration::from_secs(25),
        }
    }

    pub(super) fn mishap(&self, rng: &mut StdRng) -> Option<Mishap> {
        let lot = rng.random::<f64>();
        let (doubled, overtaken) =
            (self.dropped + self.doubled, self.dropped + self.doubled + self.overtaken);
        match lot {
            _ if lot < self.dropped => Some(Mishap::Dropped),
            _ if lot < doubled => Some(Mishap::Doubled),
            _ if lot < overtaken => Some(Mishap::Overtaken),
            _ => None,
        }
    }
}

impl LinkState {
    /// Every message that is under way is lost.
    pub(super) fn break_all(&mut self) {
        self.cuts += 1;
        self.broken.notify_waiters();
    }

    pub(super) fn new(rng: StdRng, server: usize, quality: Quality) -> Self {
        Self {
            rng,
            server,
            pinned: false,
            quality,
            down_until: Duration::ZERO,
            freeze: None,
            refusal: None,
            cuts: 0,
            broken: Arc::default(),
            counts: Counts::default(),
        }
    }
}

impl Link {
    pub(super) fn new(sim: Sim, number: usize) -> Self {
        Self { sim, number }
    }

    /// Changes how good it is, from the next message on.
    pub fn set_quality(&self, quality: Quality) {
        self.with(|_, link| link.quality = quality);
    }

    /// Breaks every connection, and refuses new ones for `time`.
    pub fn cut(&self, time: Duration) {
        let mut world = self.sim.lock();
        world.links[self.number].down_until = world.now() + time;
        world.cut(self.number);
        world.lost(self.number);
    }

    /// Nothing travels for `time`, and no connection breaks: half-open. With `streams_only` requests go on. Afterwards what
    /// was held arrives, or, with `reset`, everything breaks.
    pub fn freeze(&self, time: Duration, streams_only: bool, reset: bool) {
        let now = {
            let mut world = self.sim.lock();
            let number = self.number;
            world.note(|| format!("link {number}: freezes for {time:?} {streams_only} {reset}"));
            let now = world.now();
            world.links[number].freeze = Some(Freeze { since: now, until: now + time, streams_only });
            world.wake_link(number);
            now
        };
        let number = self.number;
        self.sim.later(time, move |world| {
            let over = world.links[number].freeze.as_ref().is_some_and(|freeze| freeze.since == now);
            if over {
                world.links[number].freeze = None;
                if reset {
                    world.cut(number);
                }
                world.wake_link(number);
            }
        });
    }

    /// The server ends the streams after everything that it had sent; when it drains it says so before.
    pub fn end_streams(&self, draining: bool) {
        self.sim.lock().end_streams(self.number, End::Clean, draining);
    }

    /// The server cuts the streams off because their reader fell behind.
    pub fn fall_behind(&self) {
        self.sim.lock().end_streams(self.number, End::Lagged, false);
    }

    /// Every request is answered with `error` for `time`. Streams go on.
    pub fn refuse(&self, error: Error, time: Duration) {
        self.with(|now, link| link.refusal = Some((now + time, error)));
    }

    /// From the next connection on, this server answers, and no other.
    pub fn pin(&self, server: usize) {
        self.with(|_, link| (link.server, link.pinned) = (server, true));
    }

    /// What was asked for so far.
    pub fn counts(&self) -> Counts {
        self.with(|_, link| link.counts)
    }

    fn with<T>(&self, change: impl FnOnce(Duration, &mut LinkState) -> T) -> T {
        let mut world = self.sim.lock();
        let now = world.now();
        change(now, &mut world.links[self.number])
    }

    /// Asks a server and brings its answer.
    async fn ask<T>(
        &self,
        what: impl Fn() -> String,
        count: impl FnOnce(&mut Counts),
        answer: impl FnOnce(&mut World, usize, Duration) -> Result<T>,
    ) -> Result<T> {
        let (mut journey, server, back) = {
            let mut world = self.sim.lock();
            world.note(|| format!("link {}: asks {}", self.number, what()));
            let (now, servers) = (world.now(), world.servers.len());
            let link = &mut world.links[self.number];
            count(&mut link.counts);
            let delay = link.quality.delay;
            let (there, back) = (delay.draw(&mut link.rng), delay.draw(&mut link.rng));
            let roams = link.quality.roaming > 0.0 && link.rng.random_bool(link.quality.roaming);
            let server = if roams { link.rng.random_range(0..servers) } else { link.server };
            let journey = Journey {
                arrival: now + there,
                end: now + PATIENCE,
                cuts: link.cuts,
                broken: Arc::clone(&link.broken),
            };
            (journey, server, back)
        };
        let refused = |answer: Result<T>, link: &Self| {
            if let Err(error) = &answer {
                link.sim.lock().note(|| format!("link {}: {} failed: {error}", link.number, what()));
            }
            answer
        };
        if let Err(error) = self.travel(&journey).await {
            return refused(Err(error), self);
        }
        let answered = {
            let mut world = self.sim.lock();
            let now = world.now();
            let link = &world.links[self.number];
            let refusal = link.refusal.as_ref().filter(|(until, _)| *until > now);
            if link.down_until > now || world.servers[server].down_until > now {
                world.lost(self.number);
                Err(Error::unavailable("the connection was refused"))
            } else if let Some((_, error)) = refusal {
                Err(error.clone())
            } else {
                world.servers[server].catch_up(now);
                answer(&mut world, server, now)
            }
        };
        journey.arrival = self.sim.now() + back;
        if let Err(error) = self.travel(&journey).await {
            let reason = error.to_string();
            return refused(Err(Error::Unavailable { reason, maybe_applied: true, source: None }), self);
        }
        refused(answered, self)
    }

    /// Waits until a message has arrived.
    async fn travel(&self, journey: &Journey) -> Result<()> {
        loop {
            let mut broken = std::pin::pin!(journey.broken.notified());
            broken.as_mut().enable();
            let until = {
                let world = self.sim.lock();
                let now = world.now();
                if world.links[self.number].cuts != journey.cuts {
                    return Err(Error::unavailable("the connection was cut"));
                }
                let freeze = world.links[self.number].freeze.as_ref();
                let held = freeze.filter(|freeze| !freeze.streams_only && freeze.until > now);
                let arrival = held.map_or(journey.arrival, |freeze| journey.arrival.max(freeze.until));
                if arrival <= now {
                    return Ok(());
                }
                if journey.end <= now {
                    return Err(Error::unavailable("no answer in time"));
                }
                world.instant(arrival.min(journey.end))
            };
            tokio::select! {
                biased;
                () = broken => {}
                () = sleep_until(until) => {}
            }
        }
    }

    async fn write<T>(
        &self,
        what: impl Fn() -> String,
        change: impl FnOnce(&mut World, Duration, &mut Vec<Happened>) -> Result<T>,
    ) -> Result<T> {
        let apply = |world: &mut World, server, now| {
            world.check_store(server)?;
            let mut told = Vec::new();
            // What is dead is gone before anything is decided.
            world.store.reap(now, &mut told);
            let answer = change(world, now, &mut told);
            world.tell(told);
            world.servers[server].catch_up(now);
            answer
        };
        self.ask(what, |_| {}, apply).await
    }

    async fn read<T>(
        &self,
        (namespace, what): (&Namespace, impl Fn() -> String),
        count: impl FnOnce(&mut Counts),
        value: impl FnOnce(&World, usize, Duration) -> T,
    ) -> Result<Read<T>> {
        let answer = |world: &mut World, server: usize, now| {
            let known = &world.servers[server];
            let (index, age, state) = (known.index(namespace), known.age(now), known.state());
            Ok(Read { value: value(world, server, now), index, age, state })
        };
        self.ask(what, count, answer).await
    }
}

#[async_trait]
impl Registry for Link {
    async fn namespaces(&self) -> Result<Vec<Namespace>> {
        let listed = |world: &mut World, _, _| {
            let spaces = world.store.spaces.iter().filter(|(_, space)| space.listed);
            Ok(spaces.map(|(namespace, _)| namespace.clone()).collect())
        };
        self.ask(|| "namespaces".into(), |_| {}, listed).await
    }

    async fn add_namespace(&self, namespace: &Namespace) -> Result<bool> {
        let add = |world: &mut World, _, _: &mut Vec<Happened>| {
            Ok(!std::mem::replace(&mut world.store.space(namespace).listed, true))
        };
        self.write(|| format!("to list {namespace}"), add).await
    }

    async fn remove_namespace(&self, namespace: &Namespace) -> Result<bool> {
        let remove = |world: &mut World, _, _: &mut Vec<Happened>| {
            Ok(std::mem::replace(&mut world.store.space(namespace).listed, false))
        };
        self.write(|| format!("to unlist {namespace}"), remove).await
    }

    async fn purge_namespace(&self, namespace: &Namespace) -> Result<bool> {
        let purge = |world: &mut World, _, told: &mut Vec<Happened>| {
            let space = world.store.space(namespace);
            if !space.instances.is_empty() {
                return Err(Error::Conflict { reason: format!("{namespace} has live instances") });
            }
            let any = space.listed || !space.services.is_empty() || !space.edges.is_empty();
            (space.listed, space.edges) = (false, BTreeMap::new());
            for service in space.services.clone() {
                world.store.remove_service(namespace, &service, told);
            }
            Ok(any)
        };
        self.write(|| format!("to purge {namespace}"), purge).await
    }

    async fn services(&self, namespace: &Namespace) -> Result<Read<Vec<ServiceId>>> {
        let list = |world: &World, server: usize, _| world.servers[server].services(namespace);
        self.read((namespace, || "services".into()), |_| {}, list).await
    }

    async fn service_stats(&self, namespace: &Namespace) -> Result<Read<Vec<ServiceStat>>> {
        let stats = |world: &World, server: usize, now| {
            let services = world.servers[server].services(namespace).into_iter();
            let stat = |service: ServiceId| {
                let instances = world.servers[server].instances(namespace, &service, &world.store, now).len();
                ServiceStat { service, instances: instances as u64 }
            };
            services.map(stat).collect()
        };
        self.read((namespace, || "stats".into()), |_| {}, stats).await
    }

    async fn stat(&self, namespace: &Namespace) -> Result<Read<Stat>> {
        let Read { value: stats, index, age, state } = self.service_stats(namespace).await?;
        let value = Stat {
            namespaces: self.namespaces().await?.len() as u64,
            services: stats.len() as u64,
            healthy_services: stats.iter().filter(|stat| stat.instances > 0).count() as u64,
            instances: stats.iter().map(|stat| stat.instances).sum(),
            configs: 0,
        };
        Ok(Read { value, index, age, state })
    }

    async fn set_service(&self, namespace: &Namespace, service: &ServiceId) -> Result<bool> {
        let set = |world: &mut World, _, told: &mut Vec<Happened>| {
            Ok(world.store.set_service(namespace, service, told))
        };
        self.write(|| format!("to list {service}"), set).await
    }

    async fn remove_service(&self, namespace: &Namespace, service: &ServiceId) -> Result<bool> {
        let remove = |world: &mut World, _, told: &mut Vec<Happened>| {
            Ok(world.store.remove_service(namespace, service, told))
        };
        self.write(|| format!("to remove {service}"), remove).await
    }

    async fn register(&self, namespace: &Namespace, new: &Registration) -> Result<Registered> {
        let register = |world: &mut World, now, told: &mut Vec<Happened>| {
            world.store.register(namespace, new, now, told)
        };
        self.write(|| format!("to register {}", new.id()), register).await
    }

    async fn beat(&self, namespace: &Namespace, keys: &[BeatKey<'_>]) -> Result<Vec<Beat>> {
        check_batch(keys.len())?;
        let beat = |world: &mut World, now, _: &mut Vec<Happened>| Ok(world.store.beat(namespace, keys, now));
        self.write(|| format!("{} beats", keys.len()), beat).await
    }

    async fn deregister(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
        instance: &str,
        owner: Option<&Owner>,
    ) -> Result<bool> {
        let deregister = |world: &mut World, now, told: &mut Vec<Happened>| {
            Ok(world.store.deregister(namespace, service, instance, owner, (now, told)))
        };
        self.write(|| format!("to deregister {instance}"), deregister).await
    }

    async fn set_metadata(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
        instance: &str,
        metadata: &Metadata,
    ) -> Result<bool> {
        let set = |world: &mut World, now, told: &mut Vec<Happened>| {
            world.store.edit(namespace, service, instance, |_| Ok(metadata.clone()), (now, told))
        };
        self.write(|| format!("to set metadata of {instance}"), set).await
    }

    async fn patch_metadata(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
        instance: &str,
        patch: &MetadataPatch,
    ) -> Result<bool> {
        let edit = |world: &mut World, now, told: &mut Vec<Happened>| {
            world.store.edit(namespace, service, instance, |old| old.patched(patch), (now, told))
        };
        self.write(|| format!("to patch metadata of {instance}"), edit).await
    }

    async fn instances(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
    ) -> Result<Read<Vec<ServiceInstance>>> {
        let list = |world: &World, server: usize, now| {
            world.servers[server].instances(namespace, service, &world.store, now)
        };
        let what = || format!("instances of {service}");
        self.read((namespace, what), |counts| counts.loads += 1, list).await
    }

    async fn instance(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
        instance: &str,
    ) -> Result<Read<Option<ServiceInstance>>> {
        let find = |world: &World, server: usize, now| {
            let list = world.servers[server].instances(namespace, service, &world.store, now);
            list.into_iter().find(|found| found.id().as_str() == instance)
        };
        let what = || format!("instance {instance}");
        self.read((namespace, what), |counts| counts.singles += 1, find).await
    }

    async fn digest(&self, namespace: &Namespace, scope: &Scope) -> Result<Read<u64>> {
        let digest = |world: &World, server: usize, _| world.servers[server].digest(namespace, scope);
        self.read((namespace, || "digest".into()), |counts| counts.digests += 1, digest).await
    }

    async fn add_dependency(
        &self,
        namespace: &Namespace,
        consumer: &ConsumerName,
        producer: &str,
    ) -> Result<()> {
        let add = |world: &mut World, _, _: &mut Vec<Happened>| {
            if consumer.as_str() != producer {
                let edges = world.store.space(namespace).edges.entry(consumer.to_string()).or_default();
                edges.insert(producer.to_owned());
            }
            Ok(())
        };
        self.write(|| format!("to note {consumer} -> {producer}"), add).await
    }

    async fn topology(&self, namespace: &Namespace) -> Result<BTreeMap<String, Vec<String>>> {
        let edges = |world: &mut World, _, _| {
            let space = world.store.space(namespace);
            let producers = |set: &std::collections::BTreeSet<String>| set.iter().cloned().collect();
            Ok(space.edges.iter().map(|(consumer, set)| (consumer.clone(), producers(set))).collect())
        };
        self.ask(|| "topology".into(), |_| {}, edges).await
    }

    async fn watch(&self, namespace: &Namespace, scope: Scope, from: Option<Index>) -> Result<WatchStream> {
        let what = || format!("to watch {scope:?} from {from:?}");
        let number = self.number;
        let open = |world: &mut World, server, _| {
            let pipe = world.subscribe(number, server, (namespace, scope.clone(), from));
            Ok(Subscription { sim: self.sim.clone(), pipe })
        };
        let subscription = self.ask(what, |counts| counts.watches += 1, open).await?;
        let next = async |subscription: Subscription| {
            let item = subscription.next().await?;
            Some((item, subscription))
        };
        Ok(Box::pin(stream::unfold(subscription, next)))
    }
}

/// A watcher's end of its pipe. Dropping it ends the subscription.
struct Subscription {
    sim: Sim,
    pipe: u64,
}

impl Subscription {
    async fn next(&self) -> Option<Result<Arc<cosky_core::Change>>> {
        loop {
            let (until, wake) = {
                let mut world: MutexGuard<'_, World> = self.sim.lock();
                match world.take(self.pipe).item() {
                    Ok(item) => return item,
                    Err(until) => (until.map(|until| world.instant(until)), world.wake(self.pipe)?),
                }
            };
            let due = async {
                match until {
                    Some(until) => sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = wake.notified() => {}
                () = due => {}
            }
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.sim.lock().unsubscribe(self.pipe);
    }
}
