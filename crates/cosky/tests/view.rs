//! What a live view promises, in front of a real server.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use cosky::{Cosky, Error, Instance, LiveView, StoreState, ViewChange, core};
use cosky_core::{Metadata, Registration, Registry as _, ServiceId};
use support::{
    NS, Server, Setup, namespace, nobody,
    proxy::{Mode, Proxy},
    until,
};
use tokio::time::{sleep, timeout};

fn service() -> ServiceId {
    ServiceId::new("stock").unwrap()
}

/// Registers a permanent instance past the client.
async fn put(server: &Server, port: i64, weight: i64, status: &str) {
    let mut new = Registration::new(service(), "http", "10.0.0.5", port).unwrap();
    new.ephemeral = false;
    new.weight = core::Weight::new(weight).unwrap();
    new.metadata = Metadata::new([("instance_status", status)]).unwrap();
    server.engine.register(&namespace(), &new).await.unwrap();
}

async fn remove(server: &Server, port: i64) {
    let id = format!("stock@http#10.0.0.5#{port}");
    server.engine.deregister(&namespace(), &service(), &id, None).await.unwrap();
}

/// The ports of what it shows, sorted: a view sorts by id, which is text.
fn ports(view: &LiveView) -> Vec<u32> {
    let mut ports: Vec<u32> = view.snapshot().iter().map(|instance| instance.port().get()).collect();
    ports.sort_unstable();
    ports
}

async fn shows(view: &mut LiveView, expected: &[u32]) {
    let wait = async {
        while ports(view) != expected {
            view.changed().await;
        }
    };
    timeout(support::PATIENCE, wait).await.unwrap_or_else(|_| panic!("waited for {expected:?}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_shows_what_is_there_and_every_change() {
    let server = Server::start().await;
    put(&server, 1, 1, "UP").await;
    let shop = server.cosky().await.namespace(NS).unwrap();
    let mut view = shop.discover("stock").await.unwrap();
    assert_eq!((ports(&view), view.state(), view.age()), (vec![1], StoreState::Live, Duration::ZERO));
    let old = view.snapshot();
    put(&server, 2, 1, "UP").await;
    shows(&mut view, &[1, 2]).await;
    put(&server, 2, 9, "UP").await;
    until("the new weight", async || view.snapshot()[1].weight().get() == 9).await;
    remove(&server, 1).await;
    shows(&mut view, &[2]).await;
    assert_eq!(old.len(), 1, "a list that was given does not change");
    let mut reader = view.reader();
    assert_eq!(reader.instances().len(), 1);
    put(&server, 3, 1, "UP").await;
    shows(&mut view, &[2, 3]).await;
    assert_eq!(reader.instances().len(), 2);
    // Nothing else happens, so nothing else is told.
    while timeout(Duration::from_millis(50), view.changed()).await.is_ok() {}
    assert!(timeout(Duration::from_millis(200), view.changed()).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn choices_follow_weights_and_status() {
    let server = Server::start().await;
    put(&server, 1, 1, "UP").await;
    put(&server, 2, 3, "UP").await;
    put(&server, 3, 0, "UP").await;
    put(&server, 4, 9, "OUT_OF_SERVICE").await;
    let shop = server.cosky().await.namespace(NS).unwrap();
    let mut view = shop.discover("stock").await.unwrap();
    let mut reader = view.reader();
    let mut counts = BTreeMap::<u32, u32>::new();
    for _ in 0..4000 {
        *counts.entry(view.choose().unwrap().port().get()).or_default() += 1;
        *counts.entry(reader.choose().unwrap().port().get()).or_default() += 1;
    }
    assert_eq!(counts.keys().copied().collect::<Vec<_>>(), [1, 2]);
    let share = f64::from(counts[&2]) / 8000.0;
    assert!((share - 0.75).abs() < 0.03, "{share}");
    remove(&server, 1).await;
    remove(&server, 2).await;
    shows(&mut view, &[3, 4]).await;
    for error in [view.choose().unwrap_err(), reader.choose().map(drop).unwrap_err()] {
        assert!(matches!(&error, Error::NoInstance { service } if service == "stock"), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_stream_leaves_the_list_and_tells_its_age() {
    let server = Server::start().await;
    put(&server, 1, 1, "UP").await;
    let proxy = Proxy::before(server.address).await;
    let shop = Cosky::connect(proxy.url()).await.unwrap().namespace(NS).unwrap();
    let mut view = shop.discover("stock").await.unwrap();
    proxy.set(Mode::Cut);
    until("it is stale", async || view.state() == StoreState::Stale).await;
    put(&server, 2, 1, "UP").await;
    sleep(Duration::from_millis(500)).await;
    assert_eq!(ports(&view), [1]);
    assert_eq!(view.choose().unwrap().port().get(), 1);
    assert!(view.age() >= Duration::from_millis(400), "{:?}", view.age());
    proxy.set(Mode::Pass);
    shows(&mut view, &[1, 2]).await;
    assert_eq!((view.state(), view.age()), (StoreState::Live, Duration::ZERO));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quiet_stream_that_comes_back_is_live_again() {
    let server = Server::start().await;
    put(&server, 1, 1, "UP").await;
    let proxy = Proxy::before(server.address).await;
    let shop = Cosky::connect(proxy.url()).await.unwrap().namespace(NS).unwrap();
    let view = shop.discover("stock").await.unwrap();
    proxy.set(Mode::Cut);
    until("it is stale", async || view.state() == StoreState::Stale).await;
    proxy.set(Mode::Pass);
    // Nothing changes in the service: the resumed stream has nothing to tell.
    let back = until("it is live", async || view.state() == StoreState::Live).await;
    assert!(back < Duration::from_secs(5), "{back:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_stream_counts_as_lost() {
    let server = Server::start().await;
    put(&server, 1, 1, "UP").await;
    let proxy = Proxy::before(server.address).await;
    let connect = Cosky::connect(proxy.url()).silence_timeout(Duration::from_millis(300));
    let shop = connect.await.unwrap().namespace(NS).unwrap();
    let view = shop.discover("stock").await.unwrap();
    proxy.set(Mode::Freeze);
    until("it is stale", async || view.state() == StoreState::Stale).await;
    assert!(view.age() >= Duration::from_millis(300), "nothing was heard before either: {:?}", view.age());
    assert_eq!(ports(&view), [1]);
    assert!(view.error().unwrap().is_unavailable());
}

/// Two servers of one store would need one engine behind both; here the second one knows nothing of the first one's
/// changes, which makes a stream that went over visible.
#[tokio::test(flavor = "multi_thread")]
async fn a_draining_server_hands_its_views_over_without_a_gap() {
    let mut servers = [Server::start().await, Server::start().await];
    for server in &servers {
        put(server, 1, 1, "UP").await;
    }
    let shop = Cosky::connect([servers[0].url(), servers[1].url()]).await.unwrap().namespace(NS).unwrap();
    let mut view = shop.discover("stock").await.unwrap();
    // Which one it follows shows by a change that only one of them has.
    put(&servers[0], 2, 1, "UP").await;
    put(&servers[1], 3, 1, "UP").await;
    while ports(&view).len() < 2 {
        view.changed().await;
    }
    let first = usize::from(ports(&view) == [1, 3]);
    let other = 1 - first;
    let watched = {
        let view = view.clone();
        tokio::spawn(async move {
            let (mut stale, mut empty) = (0, 0);
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(3) {
                stale += u32::from(view.state() != StoreState::Live);
                empty += u32::from(view.snapshot().is_empty());
                sleep(Duration::from_millis(1)).await;
            }
            (stale, empty)
        })
    };
    servers[first].drain();
    let expected = if other == 0 { [1, 2] } else { [1, 3] };
    shows(&mut view, &expected).await;
    assert_eq!(watched.await.unwrap(), (0, 0), "(stale, empty)");
    remove(&servers[other], 1).await;
    shows(&mut view, &expected[1..]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_end_by_age_leave_no_gap() {
    let mut setup = Setup::new();
    setup.config.stream_age = Duration::from_millis(300);
    let server = setup.start().await;
    let proxy = Proxy::before(server.address).await;
    let shop = Cosky::connect(proxy.url()).await.unwrap().namespace(NS).unwrap();
    let mut view = shop.discover("stock").await.unwrap();
    for port in 1..=20 {
        put(&server, port, 1, "UP").await;
        sleep(Duration::from_millis(100)).await;
        assert_eq!(view.state(), StoreState::Live);
    }
    let all: Vec<u32> = (1..=20).collect();
    shows(&mut view, &all).await;
    let streams = proxy.seen("GET", "/watch").len();
    assert!((2..=12).contains(&streams), "resumed, and not in a rush: {streams}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_server_is_followed_again() {
    let server = Server::start().await;
    put(&server, 1, 1, "UP").await;
    let shop = server.cosky().await.namespace(NS).unwrap();
    let mut view = shop.discover("stock").await.unwrap();
    let stopped = server.stop().await;
    until("it is stale", async || view.state() == StoreState::Stale).await;
    assert_eq!(ports(&view), [1], "the list stays");
    let server = stopped.again(Setup::new()).await;
    put(&server, 2, 1, "UP").await;
    let start = Instant::now();
    shows(&mut view, &[1, 2]).await;
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn views_of_one_service_share_a_stream_which_ends_with_the_last() {
    let server = Server::start().await;
    let proxy = Proxy::before(server.address).await;
    let cosky = Cosky::connect(proxy.url()).await.unwrap();
    let (first, second) = (cosky.namespace(NS).unwrap(), cosky.namespace(NS).unwrap());
    let views = [first.discover("stock").await.unwrap(), second.discover("stock").await.unwrap()];
    assert_eq!(proxy.seen("GET", "/watch").len(), 1);
    assert_eq!(core::Store::figures(&*server.engine).watchers, 1);
    drop(views);
    until("the stream ends", async || core::Store::figures(&*server.engine).watchers == 0).await;
    let _again = first.discover("stock").await.unwrap();
    assert_eq!(proxy.seen("GET", "/watch").len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_services_of_a_namespace_share_a_stream() {
    let server = Server::start().await;
    put(&server, 1, 1, "UP").await;
    let proxy = Proxy::before(server.address).await;
    let cosky = Cosky::connect(proxy.url()).await.unwrap();
    let shop = cosky.namespace(NS).unwrap();
    let stock = shop.discover("stock").await.unwrap();
    let mut tax = shop.discover("tax").await.unwrap();
    let figures = cosky.figures();
    assert_eq!((figures.entries, figures.subscriptions, figures.loads), (2, 1, 1));
    until("the old stream ends", async || core::Store::figures(&*server.engine).watchers == 1).await;
    let new = Registration::new(ServiceId::new("tax").unwrap(), "http", "10.0.0.6", 7).unwrap();
    server.engine.register(&namespace(), &new).await.unwrap();
    shows(&mut tax, &[7]).await;
    assert_eq!((ports(&stock), stock.state()), (vec![1], StoreState::Live));
    assert_eq!(proxy.seen("GET", "/watch").len(), 2, "the first one, and the wider one after it");
}

#[tokio::test(flavor = "multi_thread")]
async fn typed_changes_begin_with_what_is_there() {
    let server = Server::start().await;
    put(&server, 1, 1, "UP").await;
    let shop = server.cosky().await.namespace(NS).unwrap();
    let stock = shop.discover("stock").await.unwrap();
    let mut changes = stock.changes();
    let first = changes.next().await;
    assert!(matches!(&first, ViewChange::Added(new) if new.port().get() == 1), "{first:?}");
    assert_eq!(changes.next().await, ViewChange::State(StoreState::Live));
    put(&server, 1, 9, "UP").await;
    let next = changes.next().await;
    let ViewChange::Updated { old, new } = &next else { panic!("{next:?}") };
    assert_eq!((old.weight().get(), new.weight().get()), (1, 9));
    remove(&server, 1).await;
    let next = changes.next().await;
    assert!(matches!(&next, ViewChange::Removed(old) if old.port().get() == 1), "{next:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_that_started_empty_says_when_it_is_ready() {
    let shop = Cosky::connect(nobody().await).lazy().await.unwrap().namespace(NS).unwrap();
    let mut view = shop.discover("stock").start_empty().await.unwrap();
    assert_eq!((view.snapshot().len(), view.state()), (0, StoreState::Stale));
    let error = view.ready(Duration::from_millis(300)).await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    let server = Server::start().await;
    put(&server, 1, 1, "UP").await;
    let shop = server.connect().lazy().await.unwrap().namespace(NS).unwrap();
    let mut view = shop.discover("stock").start_empty().await.unwrap();
    view.ready(support::PATIENCE).await.unwrap();
    assert_eq!((ports(&view), view.state()), (vec![1], StoreState::Live));
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_looked_up_without_a_view() {
    let server = Server::start().await;
    put(&server, 1, 1, "UP").await;
    let proxy = Proxy::before(server.address).await;
    let shop = Cosky::connect(proxy.url()).await.unwrap().namespace(NS).unwrap();
    for _ in 0..50 {
        let read = shop.instances("stock").await.unwrap();
        assert_eq!((read.value.len(), read.state, read.age), (1, StoreState::Live, Duration::ZERO));
    }
    put(&server, 2, 1, "UP").await;
    until("the change", async || shop.instances("stock").await.unwrap().value.len() == 2).await;
    let id = "stock@http#10.0.0.5#2";
    assert_eq!(shop.instance("stock", id).await.unwrap().unwrap().port().get(), 2);
    assert_eq!(proxy.seen("GET", "/instances").len(), 0, "memory knew it all");
    assert!(shop.instance("stock", "stock@http#10.0.0.5#9").await.unwrap().is_none());
    assert!(shop.instances("missing").await.unwrap().value.is_empty());
    assert!(matches!(
        shop.instances("a@b").await.unwrap_err(),
        Error::Registry(core::Error::InvalidArgument { .. })
    ));
}

/// P11. The stream is late all the while, so that only what was asked for can have it.
#[tokio::test(flavor = "multi_thread")]
async fn p11_what_this_client_wrote_is_in_its_next_look_up() {
    let server = Server::start().await;
    let proxy = Proxy::before(server.address).await;
    let shop = Cosky::connect(proxy.url()).await.unwrap().namespace(NS).unwrap();
    let stock = shop.discover("stock").await.unwrap();
    proxy.set(Mode::HoldStreams);
    let ids = async || -> Vec<String> {
        let read = shop.instances("stock").await.unwrap();
        read.value.iter().map(|instance| instance.id().to_string()).collect()
    };
    for _ in 0..200 {
        let registered = shop.register(Instance::http("stock", "10.0.0.5", 8080)).await.unwrap();
        let id = registered.id().to_string();
        assert_eq!(ids().await, [id.as_str()]);
        assert_eq!(stock.snapshot().len(), 1, "views have it too");
        registered.set_status("DRAINING").await.unwrap();
        let seen = shop.instance("stock", &id).await.unwrap().unwrap();
        assert_eq!(seen.metadata().get("instance_status"), Some("DRAINING"));
        registered.close().await.unwrap();
        assert_eq!(ids().await, [""; 0]);
        assert!(shop.instance("stock", &id).await.unwrap().is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn discovering_fails_in_time_when_nobody_answers() {
    let shop = Cosky::connect(nobody().await).lazy().await.unwrap().namespace(NS).unwrap();
    let start = Instant::now();
    let error = shop.discover("stock").timeout(Duration::from_millis(700)).await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(600) && took < Duration::from_secs(4), "{took:?}");
    let error = shop.discover("a@b").await.unwrap_err();
    assert!(matches!(error, Error::Registry(core::Error::InvalidArgument { .. })), "{error:?}");
}

/// The example of the crate's first page, run.
#[tokio::test(flavor = "multi_thread")]
async fn the_ten_lines_of_the_first_page_work() {
    async fn example(address: &str, token: String) -> cosky::Result<String> {
        let cosky = Cosky::connect(address).token(token).await?;
        let shop = cosky.namespace("shop-{eu}")?;
        let order = shop.register(Instance::http("order", "10.0.0.5", 8080)).await?;
        let stock = shop.discover("stock").await?;
        let target = stock.choose()?;
        order.close().await?;
        Ok(target.uri().unwrap_or_default())
    }
    let server = Server::start().await;
    put(&server, 1, 1, "UP").await;
    let target = example(&server.url(), "any".into()).await.unwrap();
    assert_eq!(target, "http://10.0.0.5:1");
    assert!(server.ids("order").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_looks_for_whom_is_noted_when_the_client_says_who_it_is() {
    let server = Server::start().await;
    let _nobody = server.cosky().await.namespace(NS).unwrap().discover("stock").await.unwrap();
    let order = server.connect().consumer("order").await.unwrap();
    let _view = order.namespace(NS).unwrap().discover("stock").await.unwrap();
    order.registry().instances(&namespace(), &ServiceId::new("tax").unwrap()).await.unwrap();
    let expected = BTreeMap::from([("order".to_owned(), vec!["stock".to_owned(), "tax".to_owned()])]);
    until("it is noted", async || server.engine.topology(&namespace()).await.unwrap() == expected).await;
}

/// A burst is taken in together, and the last list is right.
#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_changes_ends_in_the_stores_state() {
    let server = Arc::new(Server::start().await);
    let shop = server.cosky().await.namespace(NS).unwrap();
    let mut view = shop.discover("stock").await.unwrap();
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let server = server.clone();
            tokio::spawn(async move {
                for step in 0..50 {
                    let port = 1 + (task * 50 + step) % 40;
                    if step % 3 == 0 {
                        remove(&server, port).await
                    } else {
                        put(&server, port, 1, "UP").await
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let read = server.engine.instances(&namespace(), &service()).await.unwrap();
    let mut expected: Vec<u32> = read.value.iter().map(|instance| instance.port().get()).collect();
    expected.sort_unstable();
    shows(&mut view, &expected).await;
}
