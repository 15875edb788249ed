//! Several addresses: who is asked, and what is never sent twice.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::time::{Duration, Instant};

use cosky::{Cosky, Error, Instance, StoreState, core};
use cosky_core::{MetadataPatch, Registration, Registry as _, ServiceId};
use cosky_testkit::proxy::{End, FaultProxy, Flow, Way};
use futures_util::future::try_join_all;
use support::{
    NS, Server, Setup, namespace, nobody,
    proxy::{Mode, Proxy},
    until,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

fn service() -> ServiceId {
    ServiceId::new("order").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_at_which_nobody_listens_is_passed_over() {
    let server = Server::start().await;
    // Whichever of them a client starts with.
    for _ in 0..16 {
        let addresses = [nobody().await, server.url(), nobody().await];
        let registry = Cosky::connect(addresses).await.unwrap().registry();
        registry.set_service(&namespace(), &service()).await.unwrap();
        assert_eq!(registry.services(&namespace()).await.unwrap().value, [service()]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_stay_with_one_address_until_it_fails() {
    let server = Server::start().await;
    let proxies = [Proxy::before(server.address).await, Proxy::before(server.address).await];
    let registry = Cosky::connect([proxies[0].url(), proxies[1].url()]).await.unwrap().registry();
    let counts = || proxies.each_ref().map(|proxy| proxy.seen("GET", "/services").len());
    for _ in 0..20 {
        registry.services(&namespace()).await.unwrap();
    }
    let first = counts().iter().position(|count| *count == 20).expect("one of them got all");
    proxies[first].set(Mode::Cut);
    for _ in 0..20 {
        registry.services(&namespace()).await.unwrap();
    }
    assert_eq!(counts()[1 - first], 20, "the other one got the rest, with the one that was under way");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_hangs_costs_no_beat() {
    let server = Server::start().await;
    let proxies = [Proxy::before(server.address).await, Proxy::before(server.address).await];
    let cosky = Cosky::connect([proxies[0].url(), proxies[1].url()]).await.unwrap();
    let shop = cosky.namespace(NS).unwrap();
    let instance = Instance::http("order", "10.0.0.5", 8080).ttl(Duration::from_secs(3));
    let _handle = shop.register(instance).await.unwrap();
    let used = proxies.iter().position(|proxy| !proxy.seen("PUT", "/instances").is_empty()).unwrap();
    proxies[used].set(Mode::Freeze);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(9) {
        assert_eq!(server.ids("order").await.len(), 1, "absent after {:?}", start.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(!proxies[1 - used].seen("POST", "/beats").is_empty());
}

/// A router that restarts has forgotten its connections and tells nobody. All that wait for the next request are dead
/// then; once each of them cost a beat, and with three of them the instance expired.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_a_network_has_forgotten_cost_one_beat() {
    let server = Server::start().await;
    let proxy = FaultProxy::before(server.address, 1).await;
    let cosky = Cosky::connect(proxy.url()).await.unwrap();
    let shop = cosky.namespace(NS).unwrap();
    let instance = Instance::http("order", "10.0.0.5", 8080).ttl(Duration::from_secs(3));
    let handle = shop.register(instance).await.unwrap();
    let first = handle.last_beat();
    until("it beats", async || handle.last_beat() > first).await;
    let registry = cosky.registry();
    let (ns, order) = (namespace(), service());
    try_join_all((0..8).map(|_| registry.instances(&ns, &order))).await.unwrap();
    assert!(proxy.counts().open >= 8, "{:?}", proxy.counts());
    proxy.forget();
    let (start, before) = (Instant::now(), handle.last_beat());
    while start.elapsed() < Duration::from_secs(6) {
        assert_eq!(server.ids("order").await.len(), 1, "absent after {:?}", start.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(handle.last_beat() > before);
    assert!(proxy.counts().swallowed > 0, "a beat was lost");
}

/// P4: a stream that is asked for and does not begin is given up in time.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_whose_beginning_is_lost_delays_a_view_for_less_than_5_s() {
    let server = Server::start().await;
    let proxy = FaultProxy::before(server.address, 1).await;
    let shop = Cosky::connect(proxy.url()).await.unwrap().namespace(NS).unwrap();
    let view = shop.discover("order").await.unwrap();
    proxy.set(Way::Both, Flow::Swallow);
    proxy.cut(End::Reset);
    until("the view asks for another stream", async || proxy.counts().swallowed > 0).await;
    proxy.heal().await;
    let took = until("it is live", async || view.state() == StoreState::Live).await;
    assert!(took < Duration::from_secs(5), "{took:?}");
}

/// P7, for every write of the registry.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_answer_was_lost_is_repeated_only_when_twice_is_as_good_as_once() {
    let server = Server::start().await;
    let proxies = [Proxy::before(server.address).await, Proxy::before(server.address).await];
    for proxy in &proxies {
        proxy.set(Mode::LoseAnswers);
    }
    let connect = Cosky::connect([proxies[0].url(), proxies[1].url()]).lazy();
    let registry = connect.request_timeout(Duration::from_secs(2)).await.unwrap().registry();
    let (ns, service) = (namespace(), service());
    let mut owned = Registration::new(service.clone(), "http", "10.0.0.5", 8080).unwrap();
    owned.owner = Some(core::Owner::random());
    let anybody = Registration { owner: None, port: core::Port::new(8081).unwrap(), ..owned.clone() };
    let id = owned.id();
    let id = id.as_str();
    let patch = MetadataPatch::new([("zone".to_owned(), Some("a".to_owned()))]).unwrap();
    let sent =
        |method: &str, part: &str| proxies.iter().map(|proxy| proxy.seen(method, part).len()).sum::<usize>();

    // (what it is, its error, how often a server got it)
    let mut outcomes = Vec::new();
    let mut note = |what, result: core::Result<()>, times: usize, expected: usize| {
        let error = result.expect_err("no answer comes back");
        let unknown = matches!(error, core::Error::Unavailable { maybe_applied: true, .. });
        outcomes.push((what, unknown, times, expected));
    };
    let result = registry.add_namespace(&ns).await.map(drop);
    note("add_namespace", result, sent("PUT", "shop-%7Beu%7D"), 1);
    let result = registry.set_service(&ns, &service).await.map(drop);
    note("set_service", result, sent("PUT", "services/order"), 1);
    let result = registry.remove_service(&ns, &service).await.map(drop);
    note("remove_service", result, sent("DELETE", "services/order"), 1);
    let result = registry.register(&ns, &anybody).await.map(drop);
    note("register without an owner", result, sent("PUT", "services/order/instances"), 1);
    let result = registry.register(&ns, &owned).await.map(drop);
    note("register", result, sent("PUT", "services/order/instances") - 1, 2);
    let result = registry.set_metadata(&ns, &service, id, &core::Metadata::default()).await.map(drop);
    note("set_metadata", result, sent("PUT", "/metadata"), 2);
    let result = registry.patch_metadata(&ns, &service, id, &patch).await.map(drop);
    note("patch_metadata", result, sent("PATCH", "/metadata"), 1);
    let key = core::BeatKey { service: service.as_str(), instance: id };
    let result = registry.beat(&ns, &[key]).await.map(drop);
    note("beat", result, sent("POST", "/beats"), 2);
    let result = registry.deregister(&ns, &service, id, None).await.map(drop);
    note("deregister of anybody's", result, sent("DELETE", "8080"), 1);
    let result = registry.deregister(&ns, &service, id, owned.owner.as_ref()).await.map(drop);
    note("deregister", result, sent("DELETE", "?owner="), 2);
    let result = registry.purge_namespace(&ns).await.map(drop);
    note("purge_namespace", result, sent("DELETE", "purge"), 1);
    let result = registry.remove_namespace(&ns).await.map(drop);
    let times = |proxy: &Proxy| {
        let whole = proxy.seen("DELETE", "").into_iter().filter(|seen| seen.line.ends_with("/shop-%7Beu%7D"));
        whole.count()
    };
    note("remove_namespace", result, proxies.iter().map(times).sum(), 1);
    for (what, unknown, times, expected) in outcomes {
        assert!(unknown, "{what}: whether it was applied is not known");
        assert_eq!(times, expected, "{what}");
    }
    // A read leaves nothing behind of which one could not know.
    let error = registry.services(&ns).await.unwrap_err();
    assert!(matches!(error, core::Error::Unavailable { maybe_applied: false, .. }), "{error:?}");
    assert_eq!(sent("GET", "/services"), 2);
}

/// Answers every request with these bytes.
async fn stranger(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            if stream.read(&mut request).await.is_ok_and(|count| count > 0) {
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        }
    });
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn something_else_at_the_address_is_told_from_an_empty_registry() {
    let other = stranger("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n[]").await;
    let error = Cosky::connect(other.as_str()).await.unwrap_err();
    let Error::NotCosky(stranger) = &error else { panic!("{error:?}") };
    assert_eq!((stranger.address.as_str(), stranger.status), (other.as_str(), 200));
    let shop = Cosky::connect(other.as_str()).lazy().await.unwrap().namespace(NS).unwrap();
    let start = Instant::now();
    let error = shop.discover("order").await.unwrap_err();
    assert!(matches!(error, Error::NotCosky(_)), "{error:?}");
    assert!(start.elapsed() < Duration::from_secs(4), "waiting does not help");
    let error = shop.register(Instance::http("order", "10.0.0.5", 8080)).await.unwrap_err();
    assert!(matches!(error, Error::NotCosky(_)), "{error:?}");
    // Beside a good one it is passed over.
    let server = Server::start().await;
    for _ in 0..8 {
        Cosky::connect([other.clone(), server.url()]).await.unwrap().registry().namespaces().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_not_followed_with_the_credential() {
    let server = Setup::new().auth().start().await;
    let elsewhere = format!(
        "HTTP/1.1 302 Found\r\nlocation: {}/\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        server.url()
    );
    let url = stranger(elsewhere.leak()).await;
    let error = Cosky::connect(url).token("secret").await.unwrap_err();
    assert!(matches!(error, Error::NotCosky(ref stranger) if stranger.status == 302), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_reaches_nobody_is_no_stranger() {
    let url = stranger("HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
    let error = Cosky::connect(url).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("502"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_server_is_found_again() {
    let server = Server::start().await;
    let shop = server.cosky().await.namespace(NS).unwrap();
    let instance = Instance::http("order", "10.0.0.5", 8080).ttl(Duration::from_secs(3));
    let handle = shop.register(instance).await.unwrap();
    let before = handle.last_beat();
    let stopped = server.stop().await;
    let server = stopped.again(Setup::new()).await;
    until("a beat is answered", async || handle.last_beat() > before).await;
    assert_eq!(server.ids("order").await.len(), 1);
}

/// Indexes of two servers cannot be compared with each other, so a cache must not be answered by both.
#[tokio::test(flavor = "multi_thread")]
async fn what_belongs_to_a_stream_is_asked_where_it_stands() {
    let servers = [Server::start().await, Server::start().await];
    let proxies = [Proxy::before(servers[0].address).await, Proxy::before(servers[1].address).await];
    let scope = core::Scope::Services([service()].into());
    // The first address of streams and that of other requests are drawn: both ways come up.
    for _ in 0..10 {
        let cosky = Cosky::connect([proxies[0].url(), proxies[1].url()]).await.unwrap();
        let watches = |proxy: &Proxy| proxy.seen("GET", "/watch").len();
        let before = watches(&proxies[0]);
        let view = cosky.namespace(NS).unwrap().discover("order").await.unwrap();
        let at = usize::from(watches(&proxies[0]) == before);
        let asked =
            |proxy: &Proxy| proxy.seen("GET", "/instances").len() + proxy.seen("GET", "/digest").len();
        let other = asked(&proxies[1 - at]);
        cosky.registry().digest(&namespace(), &scope).await.unwrap();
        cosky.registry().instances(&namespace(), &service()).await.unwrap();
        assert_eq!(asked(&proxies[1 - at]), other, "the stream stands at {at}");
        drop(view);
    }
    // One that does not answer is passed over all the same.
    let cosky = Cosky::connect([proxies[0].url(), proxies[1].url()]).await.unwrap();
    let before = proxies[0].seen("GET", "/watch").len();
    let _view = cosky.namespace(NS).unwrap().discover("order").await.unwrap();
    let at = usize::from(proxies[0].seen("GET", "/watch").len() == before);
    proxies[at].set(Mode::Cut);
    cosky.registry().instances(&namespace(), &service()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_may_take_for_ever() {
    let server = Server::start().await;
    let cosky = server.connect().request_timeout(Duration::MAX).await.unwrap();
    assert_eq!(cosky.registry().services(&namespace()).await.unwrap().value, []);
    cosky.namespace(NS).unwrap().discover("order").timeout(Duration::MAX).await.unwrap();
}
