//! Twenty rounds of trouble between real processes: a provider that beats and two consumers with live views, each behind
//! a proxy that spoils their connections, and a server that is killed. Who asks the server past the proxies says what
//! is true.
//!
//! Each run draws its order, lengths and changes anew and prints its seed; `COSKY_TEST_SEED` repeats one.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod plan;
mod witness;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use cosky::{Cosky, HttpRegistry, Instance, LiveView, NamespaceClient, Registration, StoreState, core};
use cosky_core::{Metadata, MetadataPatch, Namespace, Registry as _, ServiceId, account::ROOT};
use cosky_testkit::{
    process::CoskyServer,
    proxy::{End, FaultProxy},
};
use futures_util::future::join_all;
use plan::{Fault, Round, Sight, TTL, plan};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::SliceRandom as _};
use tokio::{
    sync::{Mutex, watch},
    time::{sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;
use witness::{Line, Witness, lines};

const NS: &str = "shop-{eu}";
/// P4.
const CONVERGES: Duration = Duration::from_secs(5);
/// After how much silence the wary consumer gives a stream up.
const SILENCE: Duration = Duration::from_millis(1500);
/// How soon a consumer knows that its stream is lost, the wary one's silence included.
const NOTICED: Duration = Duration::from_secs(3);
/// For what no promise bounds, on a machine that does other work as well.
const PATIENCE: Duration = Duration::from_secs(20);

struct World {
    rng: StdRng,
    server: CoskyServer,
    /// The way of the provider, and that of the consumers.
    proxies: [FaultProxy; 2],
    /// The server, past the proxies.
    direct: watch::Sender<Arc<HttpRegistry>>,
    /// All that go through them.
    clients: Vec<Cosky>,
    provider: NamespaceClient,
    beater: Registration,
    /// Whether the beater has to be in every list.
    steady: Arc<AtomicBool>,
    consumers: [Consumer; 2],
    witness: Arc<Witness>,
    /// Held while nothing must happen in the service.
    quiet: Arc<Mutex<()>>,
    /// Permanent instances that may be removed and edited.
    permanent: Vec<String>,
    /// Instances of the provider that said goodbye.
    parted: Vec<String>,
    next_port: u16,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

struct Consumer {
    view: LiveView,
    /// Whether it gives a silent stream up within [`NOTICED`]. The other one has the settings of an application.
    wary: bool,
    witness: Arc<Witness>,
    _task: AbortOnDropHandle<()>,
}

fn namespace() -> Namespace {
    Namespace::new(NS).unwrap()
}

fn stock() -> ServiceId {
    ServiceId::new("stock").unwrap()
}

/// A client that asks `server` itself.
async fn past_the_proxies(server: &CoskyServer) -> Arc<HttpRegistry> {
    Cosky::connect(server.url()).login(ROOT, server.password()).await.unwrap().registry()
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_happens_on_the_way_the_views_converge_and_nothing_flickers() {
    let seed = std::env::var("COSKY_TEST_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    println!("COSKY_TEST_SEED={seed} repeats this");
    let mut rng = StdRng::seed_from_u64(seed);
    let rounds = plan(&mut rng);
    let mut world = World::new(seed, rng).await;
    for (at, round) in rounds.into_iter().enumerate() {
        let start = Instant::now();
        println!("round {at}: {:?} for {:?}", round.fault, round.length);
        world.play(round).await;
        println!("round {at} took {:?}", start.elapsed());
    }
    let parted = |list: &[Line]| list.iter().all(|(id, ..)| !world.parted.contains(id));
    world.wait("who said goodbye is gone", TTL + Duration::from_secs(1), parted).await;
    world.converge(|_| true, CONVERGES).await;
    world.beater.close().await.unwrap();
}

impl World {
    async fn new(seed: u64, rng: StdRng) -> Self {
        let server = CoskyServer::start().await;
        let direct = watch::Sender::new(past_the_proxies(&server).await);
        let proxies = [
            FaultProxy::before(server.address(), seed).await,
            FaultProxy::before(server.address(), seed).await,
        ];
        let connect = |proxy: &FaultProxy| Cosky::connect(proxy.url()).login(ROOT, server.password());
        // A goodbye that nobody hears goes on in the background; the rounds need not wait for it.
        let mut clients = vec![connect(&proxies[0]).close_timeout(NOTICED).await.unwrap()];
        let provider = clients[0].namespace(NS).unwrap();
        let beater = provider.register(Instance::http("stock", "10.0.0.5", 1).ttl(TTL)).await.unwrap();
        let steady = Arc::new(AtomicBool::new(true));
        let id = beater.id().as_str();
        let witness = Witness::new("the server", id, &steady);
        let quiet = Arc::<Mutex<()>>::default();
        let mut consumers = Vec::new();
        for (who, wary) in [("the patient view", false), ("the wary view", true)] {
            let connect = connect(&proxies[1]);
            let connect = if wary { connect.silence_timeout(SILENCE) } else { connect };
            let client = connect.await.unwrap();
            let view = client.namespace(NS).unwrap().discover("stock").await.unwrap();
            clients.push(client);
            let witness = Witness::new(who, id, &steady);
            let look = follow(view.clone(), witness.clone());
            consumers.push(Consumer {
                view,
                wary,
                witness,
                _task: AbortOnDropHandle::new(tokio::spawn(look)),
            });
        }
        let tasks = vec![
            AbortOnDropHandle::new(tokio::spawn(poll(direct.subscribe(), witness.clone()))),
            AbortOnDropHandle::new(tokio::spawn(tick(direct.subscribe(), quiet.clone()))),
        ];
        let consumers = consumers.try_into().unwrap_or_else(|_| unreachable!("there are two of them"));
        let mut world = Self {
            rng,
            server,
            proxies,
            direct,
            clients,
            provider,
            beater,
            steady,
            consumers,
            witness,
            quiet,
            permanent: Vec::new(),
            parted: Vec::new(),
            next_port: 1000,
            _tasks: tasks,
        };
        for _ in 0..4 {
            world.add().await;
        }
        world
    }

    async fn play(&mut self, round: Round) {
        let Round { fault, length } = round;
        self.converge(|_| true, PATIENCE).await;
        let port = self.port();
        let parting = Instance::http("stock", "10.0.0.6", port).ttl(TTL);
        // In the background and for as long as it takes: a connection that was lost in silence costs a request its time.
        let parting = self.provider.keep_registered(parting).unwrap();
        let gone = parting.id().to_string();
        self.wait("it is registered", PATIENCE, |list| list.iter().any(|(id, ..)| *id == gone)).await;
        self.steady.store(fault != Fault::Outlast, Ordering::SeqCst);

        if fault == Fault::Forget {
            self.hold_connections().await;
        }
        let start = Instant::now();
        self.begin(fault).await;
        let goodbye = tokio::spawn(parting.close());
        let blind = self.see_nothing(fault.sight()).await;
        let mut changes: Vec<u8> = vec![0, 1, 2, self.rng.random_range(0..3)];
        if fault != Fault::Outlast {
            // Nobody could bring an edit back that no client had seen before the instance expired.
            changes.push(3);
        }
        changes.shuffle(&mut self.rng);
        let end = (start + length).max(Instant::now() + Duration::from_millis(300));
        let pause = end.saturating_duration_since(Instant::now()) / (changes.len() as u32 + 1);
        for change in changes {
            self.stay_blind(&blind, pause).await;
            self.change(change).await;
        }
        self.stay_blind(&blind, end.saturating_duration_since(Instant::now())).await;
        if fault.sight() == Sight::Clear {
            self.converge(|consumer| !consumer.wary, CONVERGES).await;
        }
        let list = self.list().await;
        let beats = list.iter().any(|(id, ..)| id == self.beater.id().as_str());
        assert_eq!(beats, fault != Fault::Outlast, "after {:?}: {list:?}", start.elapsed());

        // From here on nobody writes, so that no later event can hide one that was lost.
        let quiet = self.quiet.clone().lock_owned().await;
        self.end().await;
        let lost = fault.loses_streams();
        let took = self.converge(|consumer| consumer.wary || !lost, CONVERGES).await;
        println!(
            "  converged {took:?} after the end of the fault, which lasted {:?}",
            start.elapsed() - took
        );
        if lost {
            // A consumer with the settings of an application takes a stream that is silent for 25 s as lost.
            self.proxies[1].cut(End::Reset);
            self.converge(|consumer| !consumer.wary, CONVERGES).await;
        }
        drop(quiet);

        match goodbye.await.unwrap() {
            Ok(_) => assert!(self.list().await.iter().all(|(id, ..)| *id != gone), "{gone} said goodbye"),
            // It is asked on in the background.
            Err(error) => assert!(error.is_unavailable(), "{error}"),
        }
        self.parted.push(gone);
        if fault == Fault::Outlast {
            let back = self.beater.id().to_string();
            self.wait("it is back", CONVERGES, |list| list.iter().any(|(id, ..)| *id == back)).await;
            self.converge(|_| true, CONVERGES).await;
        }
        self.steady.store(true, Ordering::SeqCst);
        assert!(self.witness.testify() > 10, "the server is asked all the time");
        for consumer in &self.consumers {
            consumer.witness.testify();
        }
    }

    /// Whoever asked for several things at once holds several connections. Some of them may be lost already.
    async fn hold_connections(&self) {
        let registries = self.clients.iter().flat_map(|client| [(); 4].map(|()| client.registry()));
        join_all(registries.map(async |registry| registry.namespaces().await.is_ok())).await;
    }

    async fn begin(&mut self, fault: Fault) {
        let (way, flow) = fault.flow();
        for proxy in &self.proxies {
            proxy.set(way, flow);
            match fault {
                Fault::Cut(how) => proxy.cut(how),
                Fault::CutOff(how) => {
                    proxy.turn_away(Some(how));
                    proxy.cut(how);
                }
                Fault::Outlast => {
                    proxy.turn_away(Some(End::Reset));
                    proxy.cut(End::Reset);
                }
                Fault::Forget => proxy.forget(),
                Fault::Refuse => proxy.refuse().await,
                Fault::Vanish => {
                    proxy.refuse().await;
                    proxy.cut(End::Reset);
                }
                _ => {}
            }
        }
        match fault {
            Fault::Kill => self.server.kill().await,
            Fault::Restart => assert!(self.server.stop().await.success()),
            _ => return,
        }
        // The proxies lead to the old one for now.
        self.server = self.server.successor(false).start().await;
        self.direct.send_replace(past_the_proxies(&self.server).await);
    }

    async fn end(&self) {
        for proxy in &self.proxies {
            proxy.aim(self.server.address());
            proxy.heal().await;
        }
    }

    /// The consumers that know that they see nothing, what they show, and how old they say that it is.
    async fn see_nothing(&self, sight: Sight) -> Vec<Blind> {
        let mut blind = Vec::new();
        for (at, consumer) in self.consumers.iter().enumerate() {
            if sight != Sight::Lost && !(sight == Sight::Silent && consumer.wary) {
                continue;
            }
            let stale = async {
                while consumer.view.state() != StoreState::Stale {
                    sleep(Duration::from_millis(5)).await;
                }
            };
            timeout(NOTICED, stale).await.unwrap_or_else(|_| panic!("{:?} is cut off", consumer.view));
            let shows = lines(&consumer.view.snapshot());
            let age = consumer.view.age();
            blind.push(Blind { at, shows, age, since: Instant::now() });
        }
        blind
    }

    /// P5: they show what they showed, and say that it gets older.
    async fn stay_blind(&self, blind: &[Blind], how_long: Duration) {
        let end = Instant::now() + how_long;
        loop {
            for Blind { at, shows, age, since } in blind {
                let view = &self.consumers[*at].view;
                let passed = since.elapsed();
                assert!(view.age() >= *age + passed, "{:?} after {age:?} and {passed:?}", view.age());
                assert_eq!((view.state(), &lines(&view.snapshot())), (StoreState::Stale, shows));
                view.choose().unwrap();
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            sleep(left.min(Duration::from_millis(20))).await;
        }
    }

    /// P4: waits until the views of these consumers show what the server has, and trust it as far as the server does: one
    /// that has started anew says for a while that it is protected.
    async fn converge(&self, who: impl Fn(&Consumer) -> bool, limit: Duration) -> Duration {
        let start = Instant::now();
        let mut waits: Vec<_> = self.consumers.iter().filter(|consumer| who(consumer)).collect();
        while !waits.is_empty() {
            let (state, list) = self.read().await;
            waits.retain(|consumer| {
                consumer.view.state() != state || lines(&consumer.view.snapshot()) != list
            });
            if let Some(late) = waits.first()
                && start.elapsed() >= limit
            {
                panic!(
                    "after {limit:?} {:?} shows {:?} and not {state:?} {list:?}",
                    late.view,
                    lines(&late.view.snapshot())
                );
            }
            sleep(Duration::from_millis(10)).await;
        }
        start.elapsed()
    }

    async fn wait(&self, what: &str, limit: Duration, holds: impl Fn(&[Line]) -> bool) {
        let start = Instant::now();
        loop {
            let list = self.list().await;
            if holds(&list) {
                return;
            }
            assert!(start.elapsed() < limit, "waited for {limit:?}: {what}: {list:?}");
            sleep(Duration::from_millis(10)).await;
        }
    }

    fn registry(&self) -> Arc<HttpRegistry> {
        self.direct.borrow().clone()
    }

    /// What is true.
    async fn read(&self) -> (StoreState, Vec<Line>) {
        let read = self.registry().instances(&namespace(), &stock()).await.unwrap();
        (read.state, lines(&read.value))
    }

    async fn list(&self) -> Vec<Line> {
        self.read().await.1
    }

    fn port(&mut self) -> u16 {
        self.next_port += 1;
        self.next_port
    }

    async fn change(&mut self, which: u8) {
        while self.permanent.len() < 3 {
            self.add().await;
        }
        let (registry, ns, service) = (self.registry(), namespace(), stock());
        let at = self.rng.random_range(0..self.permanent.len());
        let mark = self.rng.random::<u32>().to_string();
        match which {
            0 => self.add().await,
            1 => {
                let id = self.permanent.swap_remove(at);
                assert!(registry.deregister(&ns, &service, &id, None).await.unwrap());
            }
            2 => {
                let metadata = Metadata::new([("mark", mark)]).unwrap();
                let id = &self.permanent[at];
                assert!(registry.set_metadata(&ns, &service, id, &metadata).await.unwrap());
            }
            _ => {
                let patch = MetadataPatch::new([("mark".to_owned(), Some(mark))]).unwrap();
                let id = self.beater.id().as_str();
                assert!(registry.patch_metadata(&ns, &service, id, &patch).await.unwrap());
            }
        }
    }

    async fn add(&mut self) {
        let port = self.port().into();
        let mut new = core::Registration::new(stock(), "http", "10.0.0.7", port).unwrap();
        new.ephemeral = false;
        new.weight = core::Weight::new(self.rng.random_range(1..100)).unwrap();
        self.registry().register(&namespace(), &new).await.unwrap();
        self.permanent.push(new.id().to_string());
    }
}

/// A consumer that knows that it is cut off.
struct Blind {
    at: usize,
    shows: Vec<Line>,
    /// How old it said that it was, at `since` or just before.
    age: Duration,
    since: Instant,
}

/// Looks at every list that a view shows.
async fn follow(mut view: LiveView, witness: Arc<Witness>) {
    loop {
        let steady = witness.steady();
        witness.look(&view.snapshot(), steady);
        view.changed().await;
    }
}

/// Asks the server all the time, as long as there is one.
async fn poll(direct: watch::Receiver<Arc<HttpRegistry>>, witness: Arc<Witness>) {
    loop {
        let (registry, steady) = (direct.borrow().clone(), witness.steady());
        if let Ok(read) = registry.instances(&namespace(), &stock()).await {
            witness.look(&read.value, steady);
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// Changes an instance four times a second, so that a stream in good health is not silent.
async fn tick(direct: watch::Receiver<Arc<HttpRegistry>>, quiet: Arc<Mutex<()>>) {
    let mut new = core::Registration::new(stock(), "http", "10.0.0.8", 1).unwrap();
    new.ephemeral = false;
    for tick in 0_u64.. {
        let turn = quiet.lock().await;
        let registry = direct.borrow().clone();
        new.metadata = Metadata::new([("tick", tick.to_string())]).unwrap();
        // There may be no server at the moment.
        let _ = registry.register(&namespace(), &new).await;
        drop(turn);
        sleep(Duration::from_millis(250)).await;
    }
}
