//! Providers in processes of their own: paused, killed, told to end, and replaced one by one.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use cosky_core::{Event, InstanceOp, Registry as _, Scope};
use rustix::process::Signal;
use support::{
    NS, Server, namespace,
    part::Provider,
    proxy::{Mode, Proxy},
    until,
};
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};

const TTL: Duration = Duration::from_secs(3);
const RENEW: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn c24_after_a_pause_longer_than_the_ttl_it_is_back_as_it_was() {
    let server = Server::start().await;
    let provider = Provider::start(&server.url(), Ipv4Addr::LOCALHOST).await;
    let shop = server.cosky().await.namespace(NS).unwrap();
    let json = async || {
        let mut answer: serde_json::Value =
            reqwest::get(format!("{}/v1/namespaces/shop-%7Beu%7D/services/stock/instances", server.url()))
                .await
                .unwrap()
                .json()
                .await
                .unwrap();
        // The only field that time changes.
        answer.as_array_mut().unwrap().iter_mut().for_each(|instance| drop(instance["ttlAt"].take()));
        answer
    };
    let before = json().await;
    assert_eq!(before[0]["weight"], 7);
    let mut watch = shop.watch(Scope::All);
    watch.next().await;
    provider.part.signal(Signal::STOP);
    let paused = Instant::now();
    until("it is gone", async || server.ids("stock").await.is_empty()).await;
    assert!(paused.elapsed() <= TTL + Duration::from_millis(1500), "{:?}", paused.elapsed());
    while paused.elapsed() < 3 * TTL {
        assert!(server.ids("stock").await.is_empty(), "nobody beats for it");
        sleep(Duration::from_millis(100)).await;
    }
    provider.part.signal(Signal::CONT);
    let back = until("it is back", async || !server.ids("stock").await.is_empty()).await;
    assert!(back <= RENEW + Duration::from_secs(1), "{back:?}");
    assert_eq!(json().await, before);
    sleep(2 * RENEW).await;
    let mut heard = Vec::new();
    while let Ok(cosky::Watched::Change(change)) = timeout(Duration::from_millis(200), watch.next()).await {
        if let Event::Instance { op, .. } = &change.event {
            heard.push(*op);
        }
    }
    assert_eq!(heard, [InstanceOp::Expired, InstanceOp::Register]);
}

#[tokio::test(flavor = "multi_thread")]
async fn c28_a_killed_provider_leaves_an_idle_consumer_in_time() {
    let server = Server::start().await;
    let mut provider = Provider::start(&server.url(), Ipv4Addr::LOCALHOST).await;
    let cosky = server.cosky().await;
    let mut view = cosky.namespace(NS).unwrap().discover("stock").await.unwrap();
    assert!(view.choose().is_ok());
    // Somewhere between two beats.
    sleep(RENEW * 3 / 2).await;
    provider.part.signal(Signal::KILL);
    // The last beat came before this, so that the bound below is only wider than the promise by a few ms.
    let killed = Instant::now();
    provider.part.ended().await;
    // Nobody reads and nobody writes: the consumer only waits.
    timeout(2 * TTL, view.changed()).await.expect("it hears of the death");
    assert!(view.choose().is_err());
    assert!(killed.elapsed() <= TTL + Duration::from_secs(1), "{:?}", killed.elapsed());
    let registry = cosky.registry();
    let stat = registry.stat(&namespace()).await.unwrap().value;
    assert_eq!((stat.instances, stat.healthy_services), (0, 0));
    let stats = registry.service_stats(&namespace()).await.unwrap().value;
    assert!(stats.iter().all(|stat| stat.instances == 0), "{stats:?}");
}

/// Five providers are replaced one by one by five at other addresses; of the old ones every second is killed and the
/// others are told to end. A client chooses and connects a hundred times a second.
#[tokio::test(flavor = "multi_thread")]
async fn c32_a_rolling_update_to_new_addresses() {
    let server = Server::start().await;
    let host = |last| Ipv4Addr::new(127, 0, 0, last);
    let mut old = Vec::new();
    for last in 2..=6 {
        old.push(Provider::start(&server.url(), host(last)).await);
    }
    let mut view = server.cosky().await.namespace(NS).unwrap().discover("stock").await.unwrap();
    while view.snapshot().len() < old.len() {
        view.changed().await;
    }
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let client = tokio::spawn({
        let view = view.clone();
        async move {
            let mut tick = tokio::time::interval(Duration::from_millis(10));
            let mut calls = Vec::new();
            while stopped.try_recv().is_err() {
                tick.tick().await;
                let target = view.choose().expect("there is always somebody");
                let address: SocketAddr =
                    format!("{}:{}", target.host().as_str(), target.port().get()).parse().unwrap();
                let ok = TcpStream::connect(address).await.is_ok();
                calls.push((Instant::now(), address, ok));
            }
            calls
        }
    });
    let mut new = Vec::new();
    let mut ends = BTreeMap::new();
    for (at, provider) in old.iter_mut().enumerate() {
        new.push(Provider::start(&server.url(), host(12 + at as u8)).await);
        let killed = at % 2 == 0;
        provider.part.signal(if killed { Signal::KILL } else { Signal::TERM });
        ends.insert(provider.address, (Instant::now(), killed));
        let status = provider.part.ended().await;
        assert_eq!(status.success(), !killed, "{status}");
    }
    let addresses: Vec<_> = new.iter().map(|provider| provider.address).collect();
    let last_end = ends.values().map(|(at, _)| *at).max().unwrap();
    until("only new ones are left", async || {
        view.snapshot().iter().all(|i| addresses.iter().any(|a| a.port() == i.port().get() as u16))
    })
    .await;
    assert!(last_end.elapsed() <= TTL + Duration::from_millis(1500), "{:?}", last_end.elapsed());
    sleep(Duration::from_secs(1)).await;
    stop.send(()).unwrap();
    let calls = client.await.unwrap();

    for (at, address, ok) in &calls {
        if *ok {
            continue;
        }
        let (end, killed) = ends.get(address).unwrap_or_else(|| panic!("a new address failed: {address}"));
        let after = at.saturating_duration_since(*end);
        assert!(*killed, "{address} was told to end, and failed {after:?} after that");
        assert!(
            after <= TTL + Duration::from_millis(1500),
            "{address} was still chosen {after:?} after its death"
        );
    }
    let late = calls.iter().filter(|(at, ..)| at.elapsed() < Duration::from_millis(900));
    let chosen: std::collections::BTreeSet<_> = late.map(|(_, address, _)| *address).collect();
    assert_eq!(chosen, addresses.into_iter().collect(), "the new ones, and all of them");
}

#[tokio::test(flavor = "multi_thread")]
async fn c33_a_provider_says_goodbye_then_drains_then_ends() {
    let server = Server::start().await;
    let proxy = Proxy::before(server.address).await;
    let mut provider = Provider::start(&proxy.url(), Ipv4Addr::LOCALHOST).await;
    sleep(RENEW * 3 / 2).await;
    provider.part.signal(Signal::TERM);
    until("it is gone", async || server.ids("stock").await.is_empty()).await;
    // Whoever chose it just before still gets through.
    assert!(TcpStream::connect(provider.address).await.is_ok(), "it drains after its goodbye");
    let start = Instant::now();
    assert_eq!(provider.part.ended().await.code(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    let goodbye = proxy.seen("DELETE", "").last().unwrap().at;
    assert!(proxy.seen("POST", "/beats").iter().all(|beat| beat.at < goodbye));

    // Again, with a registry that does not answer any more.
    for mode in [Mode::Freeze, Mode::Cut] {
        proxy.set(Mode::Pass);
        let mut provider = Provider::start(&proxy.url(), Ipv4Addr::LOCALHOST).await;
        proxy.set(mode);
        let start = Instant::now();
        provider.part.signal(Signal::TERM);
        assert_eq!(provider.part.ended().await.code(), Some(3), "it says that its goodbye was not heard");
        assert!(start.elapsed() <= Duration::from_secs(10), "{mode:?}: {:?}", start.elapsed());
    }
}
