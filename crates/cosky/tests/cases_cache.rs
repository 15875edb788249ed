//! Field cases of what consumers hold: lost events, races of the first load, lost data, wrong clocks, restarts.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use cosky::{Cosky, HttpRegistry, Instance, LiveView, NamespaceClient, Registry as _, ServiceId, StoreState};
use cosky_core::{Registration as Record, Weight};
use cosky_testkit::{
    process::ServerOptions,
    proxy::{End, FaultProxy},
};
use futures_util::{StreamExt as _, future::join_all, stream};
use rand::RngExt as _;
use rustix::process::Signal;
use support::{
    NS, PATIENCE, namespace,
    part::{Part, Play, Provider},
    proxy::{Mode, Proxy},
    real::{lines, open, sound, without_data},
    until,
};
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(3);
const RENEW: Duration = Duration::from_secs(1);
/// P4.
const CONVERGES: Duration = Duration::from_secs(5);

/// What stays until somebody removes it, in a service.
fn permanent(service: &str, port: i64) -> Record {
    let mut record = Record::new(ServiceId::new(service).unwrap(), "http", "10.0.0.1", port).unwrap();
    record.ephemeral = false;
    record
}

/// Whether the view shows what the registry has.
async fn agrees(view: &LiveView, registry: &HttpRegistry) -> bool {
    let truth = registry.instances(&namespace(), view.service()).await.unwrap().value;
    lines(&view.snapshot()) == lines(&truth)
}

async fn shop(url: &str) -> NamespaceClient {
    Cosky::connect(url).await.unwrap().namespace(NS).unwrap()
}

/// 52 rounds, by four consumers beside each other: a stream that is cut again and again returns after ever longer waits.
#[tokio::test(flavor = "multi_thread")]
async fn c36_changes_in_the_moment_of_a_cut_are_seen() {
    let server = open().start().await;
    join_all((0..4).map(|consumer| cuts(server.url(), server.address(), consumer))).await;
    sound(&server);
}

async fn cuts(url: &str, address: SocketAddr, consumer: u64) {
    let registry = Cosky::connect(url).await.unwrap().registry();
    let proxy = FaultProxy::before(address, consumer).await;
    let service = format!("svc-{consumer}");
    let (ns, id, mut old) = (namespace(), ServiceId::new(&service).unwrap(), permanent(&service, 9000));
    registry.register(&ns, &old).await.unwrap();
    let view = shop(&proxy.url()).await.discover(&service).await.unwrap();
    for round in 1..=13 {
        let new = permanent(&service, 9000 + round);
        let accepted = proxy.counts().accepted;
        proxy.cut(if round % 2 == 0 { End::Fin } else { End::Reset });
        let parting = old.id();
        let remove = registry.deregister(&ns, &id, parting.as_str(), None);
        let (registered, removed) = tokio::join!(registry.register(&ns, &new), remove);
        registered.unwrap();
        assert!(removed.unwrap());
        until("it connects again", async || proxy.counts().accepted > accepted).await;
        let took = until("both changes are seen", async || agrees(&view, &registry).await).await;
        assert!(took <= CONVERGES, "{service}, round {round}: {took:?}");
        old = new;
    }
    // What was seen stays seen.
    sleep(Duration::from_secs(1)).await;
    assert!(agrees(&view, &registry).await);
    assert_eq!(view.snapshot().len(), 1);
}

/// A thousand times a view is opened while an instance is being registered, for the first time or with other data.
#[tokio::test(flavor = "multi_thread")]
async fn c38_what_is_registered_while_a_view_starts_is_in_it() {
    let server = open().start().await;
    let url = server.url();
    let registry = Cosky::connect(url).await.unwrap().registry();
    // Half of the views share a client, the others are the first of their own.
    let shared = shop(url).await;
    let round = |round: i64| {
        let (registry, shared) = (registry.clone(), shared.clone());
        async move {
            let service = format!("svc-{round}");
            let mut second = permanent(&service, 9000);
            if round % 4 < 2 {
                registry.register(&namespace(), &second).await.unwrap();
                second.weight = Weight::new(2).unwrap();
            }
            let own = if round % 2 == 0 { shared } else { shop(url).await };
            let offset = Duration::from_micros(rand::rng().random_range(0..5000));
            let register = async {
                sleep(offset).await;
                registry.register(&namespace(), &second).await.unwrap();
                Instant::now()
            };
            let (view, written) = tokio::join!(own.discover(&service), register);
            let view = view.unwrap();
            let shown =
                || view.snapshot().iter().map(|one| (one.id().clone(), one.weight())).collect::<Vec<_>>();
            let expected = [(second.id(), second.weight)];
            while shown() != expected && written.elapsed() < Duration::from_secs(2) {
                sleep(Duration::from_millis(5)).await;
            }
            if shown() == expected && agrees(&view, &registry).await { Ok(()) } else { Err(shown()) }
        }
    };
    let rounds = stream::iter((0..1000).map(round)).buffer_unordered(20);
    let stale: Vec<_> = rounds.filter_map(async |round| round.err()).collect().await;
    assert!(stale.is_empty(), "{stale:?}");
    sound(&server);
}

#[tokio::test(flavor = "multi_thread")]
async fn c40_a_list_from_which_all_say_goodbye_is_empty_at_once() {
    let server = open().start().await;
    let provider = shop(server.url()).await;
    let kept =
        join_all((1..=10).map(|port| provider.register(Instance::http("stock", "10.0.0.1", port)))).await;
    let view = shop(server.url()).await.discover("stock").await.unwrap();
    assert_eq!(view.snapshot().len(), 10);
    let start = Instant::now();
    provider.close().await.unwrap();
    until("it is empty", async || view.snapshot().is_empty()).await;
    assert!(start.elapsed() <= Duration::from_secs(2), "{:?}", start.elapsed());
    assert!(kept.iter().all(Result::is_ok));
}

#[tokio::test(flavor = "multi_thread")]
async fn c40_of_ten_instances_exactly_the_one_that_expires_leaves() {
    let server = open().start().await;
    let provider = shop(server.url()).await;
    let _kept =
        join_all((1..=9).map(|port| provider.register(Instance::http("stock", "10.0.0.1", port)))).await;
    let dying = Provider::start(server.url(), Ipv4Addr::LOCALHOST).await;
    let mut view = shop(server.url()).await.discover("stock").await.unwrap();
    assert_eq!(view.snapshot().len(), 10);
    dying.part.signal(Signal::KILL);
    let killed = Instant::now();
    let mut sizes = Vec::new();
    while killed.elapsed() < 2 * TTL {
        let _ = tokio::time::timeout(Duration::from_millis(50), view.changed()).await;
        let size = view.snapshot().len();
        if sizes.last().is_none_or(|(_, last)| *last != size) {
            sizes.push((killed.elapsed(), size));
        }
    }
    assert_eq!(sizes.iter().map(|(_, size)| *size).collect::<Vec<_>>(), [10, 9], "{sizes:?}");
    assert!(sizes[1].0 <= TTL + Duration::from_secs(1), "{sizes:?}");
    assert!(view.snapshot().iter().all(|one| one.host().as_str() == "10.0.0.1"));
}

/// The data of the server is lost, and its ten instances die in the same moment.
#[tokio::test(flavor = "multi_thread")]
async fn c40_lost_data_empties_a_protected_list_late_and_another_one_at_once() {
    // Of the instances; the window is that, rounded up by 2.5 s, and two periods, a third of it each.
    const LIFE: Duration = Duration::from_secs(6);
    const WINDOW: Duration = Duration::from_secs(14);
    let mut server = open().start().await;
    let providers = Play::new(server.url(), &["crowd", "1", "0", "10", "9000"]).start();
    providers.tells("crowd", PATIENCE, |told| told == "0 0 10").await;
    let on = shop(server.url()).await.discover("svc-0").await.unwrap();
    let off = Cosky::connect(server.url()).protect(false).await.unwrap().namespace(NS).unwrap();
    let off = off.discover("svc-0").await.unwrap();
    assert_eq!((on.snapshot().len(), off.snapshot().len()), (10, 10));
    providers.signal(Signal::KILL);
    server.kill().await;
    let dir = tempfile::tempdir().unwrap();
    let server = without_data(open(), server.address(), &dir).start().await;
    let ready = Instant::now();
    until("who is not protected shows what is true", async || off.snapshot().is_empty()).await;
    assert!(ready.elapsed() <= CONVERGES, "{:?}", ready.elapsed());
    until("it is marked", async || on.state() == StoreState::Protected).await;
    assert!(ready.elapsed() <= CONVERGES, "{:?}", ready.elapsed());
    while ready.elapsed() < LIFE {
        assert_eq!((on.snapshot().len(), on.state()), (10, StoreState::Protected));
        assert!(on.choose().is_ok());
        sleep(Duration::from_millis(20)).await;
    }
    until("protection ends", async || on.snapshot().is_empty()).await;
    assert!(ready.elapsed() <= WINDOW + Duration::from_secs(2), "{:?}", ready.elapsed());
    until("it is trusted again", async || on.state() == StoreState::Live).await;
    sound(&server);
}

/// Providers and consumers as processes; the server loses its data, and nobody is started anew.
#[tokio::test(flavor = "multi_thread")]
async fn c41_a_registry_that_restarts_empty_is_filled_again_by_those_who_live() {
    let mut server = ServerOptions::default().args(["--instance-ttl", "3s"]).start().await;
    let host = Ipv4Addr::LOCALHOST;
    let mut providers = Vec::new();
    for _ in 0..3 {
        let play = Play::new(server.url(), &["provider", "127.0.0.1", "0", "4"]).login(&server);
        providers.push(Provider::play(play, host).await);
    }
    let consumer = || Play::new(server.url(), &["consumer", "fast", "stock"]).login(&server).start();
    let mut consumers = [consumer(), consumer()];
    let list = list(&providers.iter().collect::<Vec<_>>(), "4");
    for consumer in &consumers {
        consumer.tells("list", PATIENCE, |told| told == format!("Live {list}")).await;
    }
    server.kill().await;
    let dir = tempfile::tempdir().unwrap();
    let options = without_data(ServerOptions::default(), server.address(), &dir);
    let server = options.args(["--instance-ttl", "3s"]).start().await;
    let ready = Instant::now();
    let admin = Cosky::connect(server.url()).login("cosky", server.password()).await.unwrap().registry();
    let stock = ServiceId::new("stock").unwrap();
    until("all providers are back", async || {
        admin.instances(&namespace(), &stock).await.unwrap().value.len() == 3
    })
    .await;
    assert!(ready.elapsed() <= RENEW + Duration::from_secs(2), "{:?}", ready.elapsed());
    for consumer in &consumers {
        // They converge, and never had an empty list: they are told that the data is gone, not that nobody is there.
        consumer.tells("list", PATIENCE, |told| told == format!("Live {list}")).await;
        let told = consumer.told("list");
        assert!(told.iter().all(|(_, told)| told.ends_with(&list)), "{told:?}");
    }
    let parts = providers.iter_mut().map(|provider| &mut provider.part).chain(&mut consumers);
    assert!(parts.fold(true, |all, part| all & part.runs()), "the same processes");
    sound(&server);
}

/// Four consumers with four wall clocks.
#[tokio::test(flavor = "multi_thread")]
async fn c43_consumers_with_wrong_clocks_see_the_same() {
    let server = open().start().await;
    let clocks = ["-600", "0", "600", "step"];
    let start = |clock| Play::new(server.url(), &["consumer", "fast", "stock"]).clock(clock).start();
    let consumers = clocks.map(start);
    let see = async |list: String| {
        let mut last = Instant::now();
        for consumer in &consumers {
            last = last.max(consumer.tells("list", PATIENCE, |told| told == format!("Live{list}")).await);
        }
        last
    };
    see(String::new()).await;
    let first = Provider::start(server.url(), Ipv4Addr::LOCALHOST).await;
    see(format!(" {}", list(&[&first], "4"))).await;
    let second = Provider::start(server.url(), Ipv4Addr::LOCALHOST).await;
    see(format!(" {}", list(&[&first, &second], "4"))).await;
    // Through several lives, and then one of them dies.
    sleep(2 * TTL).await;
    first.part.signal(Signal::KILL);
    let killed = Instant::now();
    let left = see(format!(" {}", list(&[&second], "4"))).await;
    assert!(left - killed <= TTL + Duration::from_secs(1), "{:?}", left - killed);
    let lists = |part: &Part| part.told("list").into_iter().map(|(_, list)| list).collect::<Vec<_>>();
    let right = lists(&consumers[1]);
    assert_eq!(right.len(), 4, "{right:?}");
    for (consumer, clock) in consumers.iter().zip(clocks) {
        assert_eq!(lists(consumer), right, "with the clock at {clock}");
    }
    // The clocks were wrong indeed.
    let wrong = |part: &Part| -> Vec<i64> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let off = |(at, clock): (Instant, String)| {
            let then = now as i64 - at.elapsed().as_secs() as i64;
            ((clock.parse::<i64>().unwrap() - then) as f64 / 600.0).round() as i64
        };
        part.told("clock").into_iter().map(off).collect()
    };
    for (at, off) in [(0, -1), (1, 0), (2, 1)] {
        assert!(wrong(&consumers[at]).iter().all(|wrong| *wrong == off), "{:?}", wrong(&consumers[at]));
    }
    let steps = wrong(&consumers[3]);
    assert!([-1, 0, 1].iter().all(|step| steps.contains(step)), "{steps:?}");
}

/// The events of a registration are held back, so that the view lacks an instance that is there.
#[tokio::test(flavor = "multi_thread")]
async fn c45_an_instance_that_the_list_lacks_is_found_by_its_id() {
    let server = open().start().await;
    let registry = Cosky::connect(server.url()).await.unwrap().registry();
    let (known, late) = (permanent("stock", 9000), permanent("stock", 9001));
    registry.register(&namespace(), &known).await.unwrap();
    let proxy = Proxy::before(server.address()).await;
    let shop = shop(&proxy.url()).await;
    let view = shop.discover("stock").await.unwrap();
    proxy.set(Mode::HoldStreams);
    registry.register(&namespace(), &late).await.unwrap();
    let found = shop.instance("stock", late.id().as_str()).await.unwrap().expect("the registry has it");
    assert_eq!((found.id(), found.port().get()), (&late.id(), 9001));
    assert_eq!(view.snapshot().len(), 1, "its event is held back, and an answer about one is no list");
    let asked = proxy.seen("GET", "/instances/").len();
    assert!(shop.instance("stock", known.id().as_str()).await.unwrap().is_some());
    assert_eq!(proxy.seen("GET", "/instances/").len(), asked, "what is cached is not asked for");
    for unknown in ["stock@http#10.0.0.1#1", "no id at all"] {
        assert!(shop.instance("stock", unknown).await.unwrap().is_none(), "{unknown}");
        assert!(shop.instance("nowhere", unknown).await.unwrap().is_none(), "{unknown}");
    }
    assert_eq!(view.snapshot().len(), 1, "no placeholder was put in");
    proxy.set(Mode::Pass);
    until("its event comes", async || agrees(&view, &registry).await).await;
    assert!(shop.instances("nowhere").await.unwrap().value.is_empty());
    assert_eq!(view.snapshot().len(), 2);
    let services = registry.services(&namespace()).await.unwrap().value;
    assert_eq!(services.iter().map(ServiceId::as_str).collect::<Vec<_>>(), ["stock"]);
}

/// What consumers tell of these providers.
fn list(providers: &[&Provider], version: &str) -> String {
    let id = |one: &&Provider| format!("stock@http#{}#{}={version}", one.address.ip(), one.address.port());
    let mut ids: Vec<_> = providers.iter().map(id).collect();
    ids.sort();
    ids.join(" ")
}

/// A process dies, or is told to leave, and another one starts at its address.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_restarted_at_its_address_is_back_at_once_in_every_view() {
    const AT_ONCE: Duration = Duration::from_secs(1);
    let server = open().start().await;
    let cosky = Cosky::connect(server.url()).await.unwrap();
    let views = [shop(server.url()).await, shop(server.url()).await];
    let [first, second] = views.map(async |shop| shop.discover("stock").await.unwrap()).map(Box::pin);
    let views = Arc::new([first.await, second.await]);
    let consumer = Play::new(server.url(), &["consumer", "fast", "stock"]).start();
    let host = Ipv4Addr::LOCALHOST;
    let mut provider = Provider::start(server.url(), host).await;
    let port = provider.address.port().to_string();
    let id = format!("stock@http#127.0.0.1#{port}");
    let stock = ServiceId::new("stock").unwrap();
    for (round, end) in
        ["killed", "killed and forgotten", "deregistered", "goodbye"].into_iter().cycle().take(8).enumerate()
    {
        let version = format!("v{round}");
        consumer.tells("list", PATIENCE, |told| told.contains(&id)).await;
        let seen_before = consumer.told("list").len();
        match end {
            "goodbye" => provider.part.signal(Signal::TERM),
            "deregistered" => {
                assert!(cosky.registry().deregister(&namespace(), &stock, &id, None).await.unwrap());
                provider.part.signal(Signal::KILL);
            }
            _ => provider.part.signal(Signal::KILL),
        }
        provider.part.ended().await;
        if end == "killed and forgotten" {
            until("it expires", async || views.iter().all(|view| view.snapshot().is_empty())).await;
        }
        provider =
            Provider::play(Play::new(server.url(), &["provider", "127.0.0.1", &port, &version]), host).await;
        let registered = provider.part.last("port").unwrap().0;
        let back = consumer.tells("list", PATIENCE, |told| told == format!("Live {id}={version}")).await;
        assert!(back.saturating_duration_since(registered) <= AT_ONCE, "{end}: {:?}", back - registered);
        let here = |view: &LiveView| {
            let list = view.snapshot();
            list.len() == 1 && list[0].metadata().get("version") == Some(&version)
        };
        until("it is in every view", async || views.iter().all(here)).await;
        assert!(registered.elapsed() <= AT_ONCE, "{end}: {:?}", registered.elapsed());
        if end == "killed" {
            // Nobody had noticed that it was away.
            let told = consumer.told("list");
            assert!(told[seen_before..].iter().all(|(_, list)| list.contains(&id)), "{told:?}");
        }
        // Nothing of its predecessor takes it away again.
        sleep(RENEW * 3 / 2).await;
        assert!(views.iter().all(here), "{end}");
    }
}
