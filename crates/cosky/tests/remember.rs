//! The last-known file: a process that starts while no server answers.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use cosky::{Cosky, LiveView, StoreState, core};
use cosky_core::{Registration, Registry as _, ServiceId};
use support::{NS, PATIENCE, Server, Setup, namespace, nobody, until};
use tokio::time::timeout;

async fn put(server: &Server, service: &str, port: i64) {
    let mut new = Registration::new(ServiceId::new(service).unwrap(), "http", "10.0.0.5", port).unwrap();
    new.ephemeral = false;
    server.engine.register(&namespace(), &new).await.unwrap();
}

fn ports(view: &LiveView) -> Vec<u32> {
    view.snapshot().iter().map(|instance| instance.port().get()).collect()
}

async fn look(cosky: &Cosky, service: &str) -> LiveView {
    cosky.namespace(NS).unwrap().discover(service).await.unwrap()
}

/// Follows a service until `path` tells of its port.
async fn remembered(server: &Server, path: &Path, port: i64) {
    let cosky = server.connect().remember_in(path).await.unwrap();
    let _view = look(&cosky, "stock").await;
    let part = format!("10.0.0.5#{port}\"");
    let told = async || std::fs::read_to_string(path).is_ok_and(|text| text.contains(&part));
    until("it is in the file", told).await;
}

fn file() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("known");
    (dir, path)
}

#[tokio::test(flavor = "multi_thread")]
async fn c51_a_process_without_a_registry_serves_what_was_last_known_until_one_answers() {
    let (_dir, path) = file();
    let server = Server::start().await;
    put(&server, "stock", 1).await;
    remembered(&server, &path, 1).await;
    let (url, stopped) = (server.url(), server.stop().await);

    let cosky = Cosky::connect(&url).remember_in(&path).await.expect("there is something to go on with");
    let mut view = look(&cosky, "stock").await;
    assert_eq!((ports(&view), view.state()), (vec![1], StoreState::Stale));
    assert!(view.age() > Duration::ZERO && view.age() < PATIENCE, "{:?}", view.age());
    assert_eq!(view.choose().unwrap().port().get(), 1);
    let read = cosky.namespace(NS).unwrap().instances("stock").await.unwrap();
    assert_eq!((read.value.len(), read.state), (1, StoreState::Stale));
    // Of another service nothing is known.
    let error =
        cosky.namespace(NS).unwrap().discover("order").timeout(Duration::from_secs(1)).await.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    // It gets older as long as nobody answers, and is told so to the process after this one.
    let before = view.age();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(view.age() >= before + Duration::from_secs(3));
    let later = Cosky::connect(&url).remember_in(&path).await.unwrap();
    assert!(look(&later, "stock").await.age() >= before + Duration::from_secs(3));

    let server = stopped.again(Setup::new()).await;
    put(&server, "stock", 2).await;
    let live = async {
        while view.state() != StoreState::Live || ports(&view) != [1, 2] {
            view.changed().await;
        }
    };
    timeout(PATIENCE, live).await.expect("what the server says replaces it");
    assert_eq!(view.age(), Duration::ZERO);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_registry_says_goes_before_what_is_remembered() {
    let (_dir, path) = file();
    let server = Server::start().await;
    put(&server, "stock", 1).await;
    remembered(&server, &path, 1).await;
    let id = "stock@http#10.0.0.5#1";
    server.engine.deregister(&namespace(), &ServiceId::new("stock").unwrap(), id, None).await.unwrap();
    let cosky = server.connect().remember_in(&path).await.unwrap();
    let view = look(&cosky, "stock").await;
    assert_eq!((ports(&view), view.state()), (vec![], StoreState::Live));
    let empty = async || std::fs::read_to_string(&path).is_ok_and(|text| !text.contains("10.0.0.5"));
    until("the file follows", empty).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_good_file_a_process_without_a_registry_is_told_so_at_once() {
    let (_dir, path) = file();
    let server = Server::start().await;
    put(&server, "stock", 1).await;
    remembered(&server, &path, 1).await;
    let good = std::fs::read(&path).unwrap();
    for bad in [&good[..good.len() - 1], b"", b"something of somebody else's"] {
        std::fs::write(&path, bad).unwrap();
        let error = Cosky::connect(nobody().await).remember_in(&path).await.unwrap_err();
        assert!(matches!(error, cosky::Error::Registry(core::Error::Unavailable { .. })), "{error:?}");
        assert_eq!(std::fs::read(&path).unwrap(), bad);
    }
    std::fs::remove_file(&path).unwrap();
    assert!(Cosky::connect(nobody().await).remember_in(&path).await.is_err());
    // A good one helps against silence only.
    std::fs::write(&path, good).unwrap();
    let server = Setup::new().auth().start().await;
    let cosky = server.connect().remember_in(&path).await.unwrap();
    let error = cosky.namespace(NS).unwrap().discover("stock").await.unwrap_err();
    assert!(matches!(error, cosky::Error::Registry(core::Error::Unauthorized { .. })), "{error:?}");
}

/// A process may keep nothing but its views.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_view_shows_is_remembered_while_there_is_a_view() {
    let (_dir, path) = file();
    let server = Server::start().await;
    put(&server, "stock", 1).await;
    let view = look(&server.connect().remember_in(&path).await.unwrap(), "stock").await;
    put(&server, "stock", 2).await;
    let told = async || std::fs::read_to_string(&path).is_ok_and(|text| text.contains("10.0.0.5#2\""));
    until("it is in the file", told).await;
    drop(view);
}

/// Whoever remembers must not take somebody else for an outage.
#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_at_the_address_is_told_and_not_made_up_for() {
    let (_dir, path) = file();
    let server = Server::start().await;
    put(&server, "stock", 1).await;
    remembered(&server, &path, 1).await;
    let stranger =
        axum::Router::new().fallback(|| async { (axum::http::StatusCode::NOT_FOUND, "no such page") });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move { axum::serve(listener, stranger).await.unwrap() });
    let cosky = Cosky::connect(url).remember_in(&path).lazy().await.unwrap();
    let error = cosky.namespace(NS).unwrap().discover("stock").await.unwrap_err();
    assert!(matches!(error, cosky::Error::NotCosky(_)), "{error:?}");
    serving.abort();
}
