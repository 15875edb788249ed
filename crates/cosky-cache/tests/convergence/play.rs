//! One play: a store, servers, links, three caches and whatever may happen to them, all from one seed.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use cosky_cache::{Cache, Figures, Options, View};
use cosky_core::{Namespace, Ttl};
use cosky_testkit::sim::{Counts, Delay, Quality, Shape, Sim, VirtualClock};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::task::JoinHandle;

use crate::{
    faults::Target,
    fleet::{Fleet, SERVICES, service},
    judge::{Eye, Judge},
};

/// Caches in a play.
const CACHES: usize = 3;
/// Until when things are written and go wrong.
const ACTS: Duration = Duration::from_secs(45);
/// When it ends: whatever went wrong unnoticed must be right again, and protection be over.
const END: Duration = Duration::from_secs(82);

/// The most times that a cache may ask for single services in a play. Most ask a few times; those that ask at the end of
/// each life, of which the shortest is 3 s, come near to it.
const MOST_LOADS: usize = 150;
/// The most watches, snapshots and digests together: while nobody answers, a watch is tried every 2 s.
const MOST_OTHERS: usize = 60;

/// What came of a play.
pub(crate) struct Outcome {
    pub(crate) violations: Vec<String>,
    pub(crate) trace: Vec<String>,
    /// How often a view was found to be exactly right.
    pub(crate) exact: usize,
    /// What each cache asked for, and how it counts itself.
    pub(crate) asked: Vec<(Counts, Figures)>,
    /// How many faults there were.
    pub(crate) faults: usize,
}

/// Views that are open, with the tasks that look at them.
struct Audience {
    judge: Judge,
    caches: Vec<Cache>,
    namespace: Namespace,
    open: BTreeMap<Eye, (View, JoinHandle<()>)>,
    opened: usize,
}

/// Plays a seed. The same seed always plays the same.
pub(crate) fn play(seed: u64, record: bool) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime can be built").block_on(run(seed, record))
}

async fn run(seed: u64, record: bool) -> Outcome {
    let mut rng = StdRng::seed_from_u64(seed);
    let servers = if rng.random_bool(0.6) { 1 } else { 2 };
    let lag = if servers == 1 { 0 } else { rng.random_range(0..200) };
    let slow = [2, 20, 300][rng.random_range(0..3)];
    let quality = Quality {
        delay: Delay::ms(0, slow),
        roaming: if servers > 1 && rng.random_bool(0.5) { 0.2 } else { 0.0 },
        silence: Duration::from_secs(25),
        ..Quality::perfect()
    };
    let shape = Shape {
        servers,
        lag: Delay::ms(0, lag),
        ring: [4, 40, 4_000][rng.random_range(0..3)],
        default_ttl: Ttl::DEFAULT,
    };
    let sim = Sim::new(rng.random(), shape);
    if record {
        sim.record();
    }
    sim.note(|| format!("seed {seed}: {shape:?} {quality:?}"));
    let namespace = Namespace::new("shop").expect("a valid name");
    let latency = Duration::from_millis(lag + 2 * slow + 10);
    let links: Vec<_> = (0..CACHES).map(|_| sim.link(quality)).collect();
    let judge = Judge::new(&sim, namespace.clone(), links.clone(), servers > 1, latency);
    let clocks: Vec<_> = (0..CACHES).map(|_| VirtualClock::new()).collect();
    for (clock, wrong) in clocks.iter().zip([-600_000, 0, 600_000]) {
        clock.set_wrong_by(wrong);
    }
    let caches = links.iter().zip(&clocks).map(|(link, clock)| {
        let options = Options {
            idle: Duration::from_secs(rng.random_range(2..60)),
            ask_at_deadline: rng.random_bool(0.3),
            clock: Arc::new(clock.clone()),
            seed: Some(rng.random()),
            ..Options::default()
        };
        Cache::new(Arc::clone(link) as _, options)
    });
    let mut audience = Audience {
        judge: judge.clone(),
        caches: caches.collect(),
        namespace: namespace.clone(),
        open: BTreeMap::new(),
        opened: 0,
    };
    let unreliable = rng.random_bool(0.3);
    let target = Target {
        sim: sim.clone(),
        servers,
        links: links.clone(),
        clocks,
        judge: judge.clone(),
        quality,
        unreliable,
    };
    let writer = sim.link(Quality::perfect());
    let mut fleet = Fleet::new(&sim, writer, namespace, StdRng::from_rng(&mut rng));

    let second = Duration::from_secs(1);
    let mut faults: Vec<Duration> =
        (0..rng.random_range(0..8)).map(|_| Duration::from_millis(rng.random_range(3_000..40_000))).collect();
    faults.sort();
    let struck = faults.len();
    faults.reverse();
    let misled = rng.random_range(5..30) * second;
    let (mut misleads, mut leads) = (Some(misled), Some(misled + rng.random_range(1..10) * second));
    let (mut next_act, mut next_look, mut next_check) = (Duration::ZERO, Duration::ZERO, second);
    while sim.now() < END {
        let now = sim.now();
        fleet.beat().await;
        if now >= next_act && now < ACTS {
            let burst = if rng.random_bool(0.05) { 12 } else { 1 };
            for _ in 0..burst {
                fleet.act().await;
            }
            next_act = now + Duration::from_millis(rng.random_range(0..900));
        }
        judge.follow(&fleet.gone);
        if now >= next_look && now < ACTS {
            audience.act(&mut rng);
            next_look = now + Duration::from_millis(rng.random_range(0..4_000));
        }
        if faults.pop_if(|at| *at <= now).is_some() {
            target.strike(&mut rng, ACTS.saturating_sub(now));
            judge.follow(&fleet.gone);
        }
        if misleads.take_if(|at| *at <= now).is_some() {
            target.mislead(true, &mut rng);
        }
        if leads.take_if(|at| *at <= now).is_some() {
            target.mislead(false, &mut rng);
        }
        if now >= next_check {
            audience.check();
            next_check = now + second;
        }
        if !judge.violations().is_empty() && !record {
            break;
        }
        tokio::time::sleep(Duration::from_millis(rng.random_range(5..200))).await;
    }
    let mut violations = judge.violations();
    for (at, link) in links.iter().enumerate() {
        let Counts { loads, watches, snapshots, digests, .. } = link.counts();
        if loads > MOST_LOADS || watches + snapshots + digests > MOST_OTHERS {
            violations.push(format!("cache {at} asked too often: {:?}", link.counts()));
        }
    }
    let asked = links.iter().zip(&audience.caches).map(|(link, cache)| (link.counts(), cache.figures()));
    Outcome { violations, exact: judge.exact(), asked: asked.collect(), faults: struck, trace: sim.trace() }
}

impl Audience {
    /// Opens a view, closes one, or looks a name up.
    fn act(&mut self, rng: &mut StdRng) {
        let cache = rng.random_range(0..CACHES);
        let service = service(rng.random_range(0..SERVICES));
        match rng.random_range(0..10) {
            0..4 => {
                self.opened += 1;
                let eye = Eye { cache, service, number: self.opened };
                let view = self.caches[cache].view(&self.namespace, &eye.service).expect("there is room");
                let (judge, mut watched, seen) = (self.judge.clone(), view.clone(), eye.clone());
                let task = tokio::spawn(async move {
                    loop {
                        judge.look(&seen, &watched.shown());
                        watched.changed().await;
                    }
                });
                self.open.insert(eye, (view, task));
            }
            4..6 => {
                let open = self.open.len();
                if let Some(eye) = self.open.keys().nth(rng.random_range(0..open.max(1))).cloned()
                    && let Some((_, task)) = self.open.remove(&eye)
                {
                    task.abort();
                    self.judge.forget(&eye);
                }
            }
            _ => {
                let (asked, namespace) = (self.caches[cache].clone(), self.namespace.clone());
                let judge = self.judge.clone();
                tokio::spawn(async move {
                    let calm = judge.is_calm(cache);
                    let answer = asked.instances(&namespace, &service).await;
                    if let Some(shown) = asked.known(&namespace, &service) {
                        judge.look(&Eye { cache, service, number: 0 }, &shown);
                    }
                    if let Err(error) = answer
                        && calm
                        && judge.is_calm(cache)
                    {
                        judge.failed(cache, &error);
                    }
                });
            }
        }
    }

    /// Everything that is shown must be right, if it had the time.
    fn check(&self) {
        for (eye, (view, _)) in &self.open {
            self.judge.settled(eye, &view.shown());
        }
    }
}
