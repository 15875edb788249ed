//! Balancers on a live view of a real server, with one's own among them.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use cosky::{
    LiveView, ServiceInstance, StoreState,
    balance::{Balancer, ConsistentHash, RoundRobin, TwoChoices, WeightedRandom, ZoneFirst},
    core,
};
use cosky_core::{Metadata, Registration, Registry as _, ServiceId};
use support::{
    NS, Server, namespace,
    proxy::{Mode, Proxy},
    until,
};
use tokio::time::timeout;

/// Port of the instance that is chosen. Whoever goes by keys takes the number for one.
type Pick = Box<dyn Fn(u64) -> Option<u32> + Send + Sync>;

fn service() -> ServiceId {
    ServiceId::new("stock").unwrap()
}

async fn put(server: &Server, port: i64, weight: i64, metadata: &[(&str, &str)]) {
    let mut new = Registration::new(service(), "http", "10.0.0.5", port).unwrap();
    new.ephemeral = false;
    new.weight = core::Weight::new(weight).unwrap();
    new.metadata = Metadata::new(metadata.iter().copied()).unwrap();
    server.engine.register(&namespace(), &new).await.unwrap();
}

async fn remove(server: &Server, port: i64) {
    let id = format!("stock@http#10.0.0.5#{port}");
    server.engine.deregister(&namespace(), &service(), &id, None).await.unwrap();
}

async fn view(server: &Server) -> LiveView {
    server.cosky().await.namespace(NS).unwrap().discover("stock").await.unwrap()
}

/// Waits until it shows exactly these ports and weights.
async fn shows(view: &LiveView, expected: &[(u32, u32)]) {
    let mut view = view.clone();
    let wait = async {
        loop {
            let shown: Vec<_> = view.snapshot().iter().map(|i| (i.port().get(), i.weight().get())).collect();
            if shown == expected {
                return;
            }
            view.changed().await;
        }
    };
    timeout(support::PATIENCE, wait).await.unwrap_or_else(|_| panic!("waited for {expected:?}"));
}

/// Every balancer there is, on this view.
fn balancers(view: &LiveView) -> Vec<(&'static str, Pick)> {
    fn on<B: Balancer<Key = ()>>(view: &LiveView, balancer: B) -> Pick {
        let balanced = view.balanced_by(balancer);
        Box::new(move |_| balanced.pick().map(|picked| picked.port().get()))
    }
    let by_key = view.balanced_by(ConsistentHash::default());
    let chosen = view.clone();
    vec![
        ("choose", Box::new(move |_| chosen.choose().ok().map(|chosen| chosen.port().get()))),
        ("weighted random", on(view, WeightedRandom::default())),
        ("round robin", on(view, RoundRobin::default())),
        ("two choices", on(view, TwoChoices::default())),
        ("own zone, round robin", on(view, ZoneFirst::new("a", RoundRobin::default()))),
        ("no such zone, two choices", on(view, ZoneFirst::new("z", TwoChoices::default()))),
        (
            "consistent hash",
            Box::new(move |key| by_key.pick_for(&key.to_le_bytes()).map(|picked| picked.port().get())),
        ),
    ]
}

/// Picks 30,000 times: nobody has two points more or less than its weight says, and the differences are within what
/// chance makes once in a million times.
fn has_shares(name: &str, pick: &Pick, weights: &[(u32, u32)]) {
    let picks = 30_000;
    let mut counts = BTreeMap::<u32, u32>::new();
    for key in 0..picks {
        *counts.entry(pick(key).unwrap()).or_default() += 1;
    }
    let total: u32 = weights.iter().map(|(_, weight)| weight).sum();
    let mut chi_square = 0.0;
    for (port, weight) in weights {
        let count = f64::from(counts.remove(port).unwrap_or_default());
        let due = 30_000.0 * f64::from(*weight) / f64::from(total);
        assert!((count - due).abs() < 600.0, "{name}: {port} has {count} of 30,000 instead of {due}");
        chi_square += (count - due).powi(2) / due;
    }
    assert!(chi_square < 27.6, "{name}: {chi_square}");
    assert!(counts.is_empty(), "{name} chose somebody else: {counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c15_no_balancer_chooses_weight_zero_or_waits_for_nobody() {
    let server = Server::start().await;
    put(&server, 1, 1, &[("zone", "a")]).await;
    put(&server, 2, 0, &[("zone", "a")]).await;
    put(&server, 3, 9, &[("zone", "a"), ("instance_status", "OUT_OF_SERVICE")]).await;
    let view = view(&server).await;
    let balancers = balancers(&view);
    for (name, pick) in &balancers {
        assert!((0..10_000).all(|key| pick(key) == Some(1)), "{name}");
    }
    put(&server, 1, 0, &[("zone", "a")]).await;
    shows(&view, &[(1, 0), (2, 0), (3, 9)]).await;
    for (name, pick) in &balancers {
        let mut times: Vec<Duration> = (0..10_000)
            .map(|key| {
                let begun = Instant::now();
                assert_eq!(pick(key), None, "{name}");
                begun.elapsed()
            })
            .collect();
        // The slowest few belong to whoever shares the processor.
        times.sort();
        assert!(times[9_900] < Duration::from_millis(10), "{name}: {:?}", times[9_900]);
    }
    put(&server, 2, 1, &[]).await;
    shows(&view, &[(1, 0), (2, 1), (3, 9)]).await;
    for (name, pick) in &balancers {
        assert_eq!(pick(0), Some(2), "{name}");
    }
}

/// What 16 threads that pick all the time saw of an instance that was to be chosen no more.
struct Seen {
    /// When it was last chosen.
    last: Option<Instant>,
    /// Times that it was chosen by a pick that began when the view no longer had it for choosing.
    late: Vec<&'static str>,
    /// Picks that began since.
    after: usize,
}

/// Changes the list by `change` until the view shows `expected` while 16 threads pick with every balancer.
async fn while_picking(
    view: &LiveView,
    balancers: &Arc<Vec<(&'static str, Pick)>>,
    leaves: u32,
    expected: &[(u32, u32)],
    change: impl Future<Output = ()>,
) {
    let seen = Arc::new(Mutex::new(Seen { last: None, late: Vec::new(), after: 0 }));
    let (shown, stop) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (begun, picked) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let threads: Vec<_> = (0..16)
        .map(|thread| {
            let (balancers, seen) = (balancers.clone(), seen.clone());
            let (shown, stop, begun, picked) = (shown.clone(), stop.clone(), begun.clone(), picked.clone());
            thread::spawn(move || {
                let mut key = thread;
                begun.fetch_add(1, Ordering::SeqCst);
                while !stop.load(Ordering::SeqCst) {
                    for (name, pick) in balancers.iter() {
                        let after = shown.load(Ordering::SeqCst);
                        let port = pick(key);
                        picked.fetch_add(1, Ordering::SeqCst);
                        key += 16;
                        assert!(port.is_some(), "{name} found nobody");
                        if !after && port != Some(leaves) {
                            continue;
                        }
                        let mut seen = seen.lock().unwrap();
                        seen.after += usize::from(after);
                        if port == Some(leaves) {
                            seen.last = Some(Instant::now());
                            seen.late.extend(after.then_some(*name));
                        }
                    }
                    // Leaves some of the processor to the server, which is in this process.
                    thread::sleep(Duration::from_micros(500));
                }
            })
        })
        .collect();
    until("all pick", async || begun.load(Ordering::SeqCst) == 16).await;
    until("it is chosen", async || seen.lock().unwrap().last.is_some()).await;
    change.await;
    let changed = Instant::now();
    shows(view, expected).await;
    shown.store(true, Ordering::SeqCst);
    let so_far = picked.load(Ordering::SeqCst);
    until("more picks", async || picked.load(Ordering::SeqCst) > so_far + 10_000).await;
    stop.store(true, Ordering::SeqCst);
    for thread in threads {
        thread.join().expect("no thread panics while lists are swapped");
    }
    let seen = seen.lock().unwrap();
    assert!(seen.after > 5_000, "{}", seen.after);
    assert!(seen.late.is_empty(), "chosen after it had left: {:?}", seen.late);
    let last = seen.last.unwrap().saturating_duration_since(changed);
    assert!(last < Duration::from_secs(2), "{last:?} after the change");
}

#[tokio::test(flavor = "multi_thread")]
async fn c109_shares_follow_the_weights_and_every_change_of_them() {
    let server = Server::start().await;
    for (port, weight) in [(1, 1), (2, 3), (3, 6)] {
        put(&server, port, weight, &[("zone", "a")]).await;
    }
    let view = view(&server).await;
    let balancers = Arc::new(balancers(&view));
    for (name, pick) in balancers.iter() {
        has_shares(name, pick, &[(1, 1), (2, 3), (3, 6)]);
    }
    let zeroed = [(1, 1), (2, 3), (3, 0)];
    while_picking(&view, &balancers, 3, &zeroed, put(&server, 3, 0, &[("zone", "a")])).await;
    for (name, pick) in balancers.iter() {
        has_shares(name, pick, &[(1, 1), (2, 3)]);
    }
    while_picking(&view, &balancers, 1, &[(2, 3), (3, 0)], remove(&server, 1)).await;
    for (name, pick) in balancers.iter() {
        has_shares(name, pick, &[(2, 3)]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c109_round_robin_has_no_bias_when_the_list_changes() {
    let server = Server::start().await;
    let mut steady = Vec::new();
    for port in 1..=5 {
        put(&server, port.into(), 1, &[]).await;
        steady.push((port, 1));
    }
    let with_another = [&steady[..], &[(6, 1)]].concat();
    let view = view(&server).await;
    let balanced = view.balanced_by(RoundRobin::default());
    let mut counts = BTreeMap::<u32, u32>::new();
    for _ in 0..100 {
        put(&server, 6, 1, &[]).await;
        shows(&view, &with_another).await;
        // Fewer than a round between two changes.
        (0..3).for_each(|_| *counts.entry(balanced.pick().unwrap().port().get()).or_default() += 1);
        remove(&server, 6).await;
        shows(&view, &steady).await;
        (0..3).for_each(|_| *counts.entry(balanced.pick().unwrap().port().get()).or_default() += 1);
    }
    let of_steady = || (1..=5).map(|port| counts[&port]);
    assert!(of_steady().max().unwrap() - of_steady().min().unwrap() <= 2, "{counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_own_zone_is_left_while_it_has_nobody_in_service() {
    let server = Server::start().await;
    put(&server, 1, 1, &[("zone", "a")]).await;
    put(&server, 2, 5, &[("zone", "b")]).await;
    let view = view(&server).await;
    let balanced = view.balanced_by(ZoneFirst::new("a", WeightedRandom::default()));
    let ports = || (0..100).map(|_| balanced.pick().unwrap().port().get()).collect::<Vec<_>>();
    assert_eq!(ports(), [1; 100]);
    put(&server, 1, 1, &[("zone", "a"), ("instance_status", "OUT_OF_SERVICE")]).await;
    until("it is out", async || !view.snapshot()[0].is_in_service()).await;
    assert_eq!(ports(), [2; 100]);
    put(&server, 1, 0, &[("zone", "a")]).await;
    shows(&view, &[(1, 0), (2, 5)]).await;
    assert_eq!(ports(), [2; 100]);
    put(&server, 1, 1, &[("zone", "a")]).await;
    shows(&view, &[(1, 1), (2, 5)]).await;
    assert_eq!(ports(), [1; 100]);
}

/// Counts the lists that it saw, and chooses what its key says.
#[derive(Default)]
struct Told {
    lists: Arc<AtomicUsize>,
    panics: Arc<AtomicBool>,
}

impl Balancer for Told {
    type Key = str;
    type Held = Arc<AtomicUsize>;

    fn rebuild(&self, eligible: &[&ServiceInstance]) -> Self {
        assert!(!self.panics.load(Ordering::SeqCst), "as it was told");
        assert!(eligible.iter().all(|instance| instance.is_in_service() && instance.weight().get() > 0));
        self.lists.fetch_add(1, Ordering::SeqCst);
        Self { lists: self.lists.clone(), panics: self.panics.clone() }
    }

    fn pick(&self, key: &str) -> Option<(usize, Arc<AtomicUsize>)> {
        key.parse().ok().map(|at| (at, self.lists.clone()))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_balancer_of_ones_own_is_rebuilt_only_when_the_list_changes() {
    let server = Server::start().await;
    put(&server, 1, 0, &[]).await;
    put(&server, 2, 1, &[]).await;
    put(&server, 3, 1, &[]).await;
    let proxy = Proxy::before(server.address).await;
    let shop = cosky::Cosky::connect(proxy.url()).await.unwrap().namespace(NS).unwrap();
    let view = shop.discover("stock").await.unwrap();
    let told = Told::default();
    let (lists, panics) = (told.lists.clone(), told.panics.clone());
    let balanced = view.balanced_by(told);
    let port = |key: &str| balanced.clone().pick_for(key).map(|picked| picked.port().get());
    // Positions are those among the eligible; what is not there is nobody.
    assert_eq!(
        ["0", "1", "2", "18446744073709551615", "none"].map(port),
        [Some(2), Some(3), None, None, None]
    );
    assert_eq!(lists.load(Ordering::SeqCst), 1);

    // A state is no list.
    proxy.set(Mode::Cut);
    until("it is stale", async || view.state() == StoreState::Stale).await;
    assert_eq!(port("1"), Some(3));
    proxy.set(Mode::Pass);
    until("it is live", async || view.state() == StoreState::Live).await;
    assert_eq!(port("1"), Some(3));
    assert_eq!(lists.load(Ordering::SeqCst), 1);

    put(&server, 4, 1, &[]).await;
    shows(&view, &[(1, 0), (2, 1), (3, 1), (4, 1)]).await;
    assert_eq!((port("2"), port("0"), lists.load(Ordering::SeqCst)), (Some(4), Some(2), 2));

    // One that fails is asked again with the next pick, and holds up nobody.
    panics.store(true, Ordering::SeqCst);
    remove(&server, 4).await;
    shows(&view, &[(1, 0), (2, 1), (3, 1)]).await;
    let failing = balanced.clone();
    assert!(thread::spawn(move || drop(failing.pick_for("0"))).join().is_err());
    panics.store(false, Ordering::SeqCst);
    assert_eq!((port("2"), port("1"), lists.load(Ordering::SeqCst)), (None, Some(3), 3));

    // What a pick holds is let go with it.
    let before = Arc::strong_count(&lists);
    let picked = balanced.pick_for("0").unwrap();
    assert_eq!((picked.id().as_str(), Arc::strong_count(&lists)), ("stock@http#10.0.0.5#2", before + 1));
    drop(picked);
    assert_eq!(Arc::strong_count(&lists), before);
}
