//! What lies between one client and the servers.

use std::{sync::Arc, time::Duration};

use cosky_core::{Error, Namespace, Read, Result};
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
    pub(super) sim: Sim,
    pub(super) number: usize,
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
    pub(super) async fn ask<T>(
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

    pub(super) async fn write<T>(
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

    pub(super) async fn read<T>(
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
