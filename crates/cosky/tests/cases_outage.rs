//! Field cases of a registry that is away, or that lacks what one looks for: nobody floods a log or asks in a loop.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use cosky::{Cosky, Instance, Registry as _, StoreState};
use support::{
    NS, PATIENCE, namespace,
    part::{Part, Play, Provider},
    proxy::Proxy,
    real::{Process, open},
};
use tokio::time::{sleep, timeout};

/// How many lines of a log stand for a state that lasted for the two minutes of the case, when the registry is away for
/// `measured` here and logged so many lines in `sample` of it.
fn in_two_minutes(lines: usize, in_sample: usize, measured: Duration, sample: Duration) -> f64 {
    lines as f64
        + in_sample as f64 * (Duration::from_secs(120) - measured).as_secs_f64() / sample.as_secs_f64()
}

/// The registry is away for 20 s here instead of 120 s; what grows with time is extrapolated from the second half.
#[tokio::test(flavor = "multi_thread")]
async fn c47_a_registry_that_is_away_costs_neither_log_nor_processor() {
    const AWAY: Duration = Duration::from_secs(20);
    const SAMPLE: Duration = Duration::from_secs(10);
    let mut server = open().start().await;
    let mut crowd = Play::new(server.url(), &["crowd", "1", "100", "20", "9000"]).start();
    // Each of the 20 instances is in one view of the 100.
    crowd.tells("crowd", PATIENCE, |told| told == "100 20 20").await;
    assert_eq!(crowd.log().lines().count(), 0, "all is well");
    server.kill().await;
    sleep(AWAY - SAMPLE).await;
    let (before, settled) = (Process::of(crowd.pid()), crowd.log().lines().count());
    sleep(SAMPLE).await;
    let busy = Process::of(crowd.pid()).share_since(&before);
    assert!(busy < 0.05, "{busy} of a processor");
    assert!(crowd.last("crowd").unwrap().1.starts_with("0 20 "), "stale, and nothing is lost");
    let in_sample = crowd.log().lines().count() - settled;

    let back = Instant::now();
    let server = server.successor(true).args(["--no-auth", "--instance-ttl", "3s"]).start().await;
    let recovered = crowd.tells("crowd", Duration::from_secs(30), |told| told == "100 20 20").await;
    // Instances may have died meanwhile, views may have been told so, and all of them are back.
    assert!(recovered - back < Duration::from_secs(10), "{:?}", recovered - back);
    let log = crowd.log();
    let lines = in_two_minutes(log.lines().count(), in_sample, AWAY, SAMPLE);
    assert!(lines < 500.0, "{lines} lines:\n{log}");
    let bytes = lines * log.len() as f64 / log.lines().count().max(1) as f64;
    assert!(bytes < 200e3, "{bytes} bytes");
    // What becomes of one view or instance is told when it begins and when it ends, and not in between.
    for one in ["svc-7 ", "svc-7@"] {
        assert!(log.matches(one).count() <= 3, "{one}:\n{log}");
    }
    support::real::sound(&server);
    assert!(crowd.runs());
}

/// 30 s instead of the 60 s of the case, with the bound of the whole minute.
#[tokio::test(flavor = "multi_thread")]
async fn c50_to_watch_what_does_not_exist_costs_nothing() {
    let server = open().start().await;
    let proxy = Proxy::before(server.address()).await;
    let shop = Cosky::connect(proxy.url()).await.unwrap().namespace(NS).unwrap();
    let before = proxy.seen("", "").len();
    let mut view = shop.discover("nowhere").await.unwrap();
    assert!(view.snapshot().is_empty() && view.state() == StoreState::Live);
    assert!(timeout(Duration::from_secs(30), view.changed()).await.is_err(), "nothing changes");
    let seen = proxy.seen("", "");
    assert!(seen.len() - before < 5, "{:?}", &seen[before..]);
    let direct = Cosky::connect(server.url()).await.unwrap();
    let services = direct.registry().services(&namespace()).await.unwrap().value;
    assert!(services.is_empty(), "looking for it has not made it");
    let direct = direct.namespace(NS).unwrap();
    let made = Instant::now();
    let kept = direct.register(Instance::http("nowhere", "10.0.0.1", 80)).await.unwrap();
    while view.snapshot().is_empty() {
        timeout(PATIENCE, view.changed()).await.expect("it is told that there is one now");
    }
    assert!(made.elapsed() <= Duration::from_secs(2), "{:?}", made.elapsed());
    kept.close().await.unwrap();
}

/// The registry comes 5 s after the processes here instead of 30 s.
#[tokio::test(flavor = "multi_thread")]
async fn c51_a_process_that_starts_before_its_registry_ends_or_gets_there() {
    let mut server = open().start().await;
    server.kill().await;
    let start = |how: &str| Play::new(server.url(), &["consumer", how, "stock"]).start();
    let began = Instant::now();
    let [mut fast, mut lazy, mut empty] = ["fast", "lazy", "empty"].map(start);

    // It fails at once, and says why.
    fails(&mut fast, began, Duration::from_secs(2)).await;
    // It waits for its first list as long as it was told, and not for ever.
    fails(&mut lazy, began, Duration::from_secs(7)).await;
    // It works with nothing, and says so.
    empty.tells("list", Duration::from_secs(2), |list| list == "Stale").await;
    let provider = Play::new(server.url(), &["crowd", "1", "0", "1", "9000"]).start();
    let mut waiting = start("lazy");
    sleep(began + Duration::from_secs(5) - Instant::now().min(began + Duration::from_secs(5))).await;
    assert!(empty.runs(), "{}", empty.log());
    assert_eq!(empty.last("list").unwrap().1, "Stale");

    let server = server.successor(true).args(["--no-auth", "--instance-ttl", "3s"]).start().await;
    let ready = Instant::now();
    for part in [&empty, &waiting] {
        let live = part.tells("list", PATIENCE, |list| list == "Live").await;
        assert!(live.saturating_duration_since(ready) <= Duration::from_secs(5));
    }
    let registered = provider.tells("crowd", PATIENCE, |told| told.ends_with(" 1")).await;
    assert!(registered.saturating_duration_since(ready) <= Duration::from_secs(5));
    let stock = Provider::start(server.url(), Ipv4Addr::LOCALHOST).await;
    let list = format!("Live stock@http#127.0.0.1#{}=4", stock.address.port());
    for part in [&empty, &waiting] {
        part.tells("list", PATIENCE, |told| told == list).await;
    }
    assert!(empty.runs() && waiting.runs());
}

async fn fails(part: &mut Part, began: Instant, limit: Duration) {
    assert_eq!(part.ended().await.code(), Some(4), "{}", part.log());
    assert!(began.elapsed() <= limit + Duration::from_secs(1), "{:?}", began.elapsed());
    let said = part.last("failed").expect("it says why").1;
    assert!(said.contains("cannot be reached") || said.contains("no answer"), "{said}");
}
