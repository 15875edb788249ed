//! A credential that expires costs neither a registration nor a view.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::time::{Duration, Instant};

use cosky::{Cosky, Instance, RegistrationState, StoreState, core};
use cosky_core::Registry as _;
use support::{NS, PASSWORD, Server, Setup, proxy::Proxy, until};
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(3);

/// Access tokens of two seconds.
async fn short_lived() -> Server {
    let mut setup = Setup::new().auth();
    setup.config.access_token_ttl = Duration::from_secs(2);
    setup.start().await
}

fn order() -> Instance {
    Instance::http("order", "10.0.0.5", 8080).ttl(TTL)
}

/// The current access token of a client that logs in.
async fn access_token(server: &Server) -> String {
    let body = core::wire::LoginBody { password: PASSWORD.to_owned() };
    let url = format!("{}/v1/authenticate/cosky/login", server.url());
    let answer = reqwest::Client::new().post(url).json(&body).send().await.unwrap();
    answer.json::<core::wire::TokenPair>().await.unwrap().access_token
}

/// Access tokens of 2 s, a TTL of 3 s, 60 s long: neither the store nor a view ever misses the instance.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_that_live_for_two_seconds_cost_no_absence_in_a_minute() {
    let server = short_lived().await;
    let proxy = Proxy::before(server.address).await;
    let shop = Cosky::connect(proxy.url()).login("cosky", PASSWORD).await.unwrap().namespace(NS).unwrap();
    let handle = shop.register(order()).await.unwrap();
    let view = shop.discover("order").await.unwrap();
    let start = Instant::now();
    let (mut samples, mut stale) = (0, 0);
    while start.elapsed() < Duration::from_secs(60) {
        assert_eq!(server.ids("order").await.len(), 1, "absent from the store after {:?}", start.elapsed());
        assert_eq!(view.snapshot().len(), 1, "absent from the view after {:?}", start.elapsed());
        stale += u32::from(view.state() != StoreState::Live);
        samples += 1;
        sleep(Duration::from_millis(50)).await;
    }
    assert!(samples > 200, "{samples} samples");
    assert_eq!(stale, 0, "of {samples} samples");
    assert_eq!(handle.state(), RegistrationState::Registered);
    // Tokens were really renewed, with refresh tokens, about once per life and not for every request.
    let (logins, refreshs) = (proxy.seen("POST", "/login").len(), proxy.seen("POST", "/refresh").len());
    assert_eq!(logins, 1);
    assert!((15..=45).contains(&refreshs), "{refreshs}");
    assert!(handle.close().await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_file_is_read_again_when_it_changes_and_when_it_is_refused() {
    let server = short_lived().await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    // Atomically, as those who renew tokens for others do.
    let renew = async |text: String| {
        std::fs::write(dir.path().join("new"), text).unwrap();
        std::fs::rename(dir.path().join("new"), &file).unwrap();
    };
    renew(format!("{}\n", access_token(&server).await)).await;
    let shop = Cosky::connect(server.url()).token_file(&file).await.unwrap().namespace(NS).unwrap();
    let handle = shop.register(order()).await.unwrap();
    let start = Instant::now();
    let mut renewed = Instant::now();
    while start.elapsed() < Duration::from_secs(12) {
        // Now and then a little too late, so that the old one is refused before.
        if renewed.elapsed() > Duration::from_millis(2200) {
            renew(access_token(&server).await).await;
            renewed = Instant::now();
        }
        assert_eq!(server.ids("order").await.len(), 1, "absent after {:?}", start.elapsed());
        sleep(Duration::from_millis(50)).await;
    }
    assert_ne!(handle.state(), RegistrationState::Deregistered);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fixed_token_that_expires_is_reported() {
    let server = short_lived().await;
    let shop =
        Cosky::connect(server.url()).token(access_token(&server).await).await.unwrap().namespace(NS).unwrap();
    let handle = shop.register(order()).await.unwrap();
    let mut states = handle.state_changes();
    let told = states
        .wait_for(|state| matches!(state, RegistrationState::Unreachable { .. }))
        .await
        .unwrap()
        .clone();
    let RegistrationState::Unreachable { last_error, .. } = told else { unreachable!() };
    assert!(last_error.contains("fixed token"), "{last_error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_credential_the_error_says_what_to_give() {
    let server = Setup::new().auth().start().await;
    let cosky = server.cosky().await;
    let error = cosky.registry().namespaces().await.unwrap_err();
    assert!(matches!(error, core::Error::Unauthorized { .. }), "{error:?}");
    assert!(error.to_string().contains("token file"), "{error}");
    assert_eq!(error.to_string().matches("not authorised").count(), 1, "{error}");
    let start = Instant::now();
    let error = cosky.namespace(NS).unwrap().discover("order").await.unwrap_err();
    assert!(matches!(error, cosky::Error::Registry(core::Error::Unauthorized { .. })), "{error:?}");
    assert!(start.elapsed() < Duration::from_secs(4), "waiting does not help");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_not_tried_again_and_again() {
    let server = Setup::new().auth().start().await;
    let proxy = Proxy::before(server.address).await;
    let error = Cosky::connect(proxy.url()).login("cosky", "wrong").await.unwrap_err();
    assert!(matches!(error, cosky::Error::Registry(core::Error::Unauthorized { .. })), "{error:?}");
    let cosky = Cosky::connect(proxy.url()).login("cosky", "wrong").lazy().await.unwrap();
    let _view = cosky.namespace(NS).unwrap().discover("order").start_empty().await.unwrap();
    let registry = cosky.registry();
    for _ in 0..20 {
        assert!(registry.namespaces().await.is_err());
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(proxy.seen("POST", "/login").len(), 2, "one by each client");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_at_once_log_in_once() {
    let server = Setup::new().auth().start().await;
    let proxy = Proxy::before(server.address).await;
    let registry = Cosky::connect(proxy.url()).login("cosky", PASSWORD).lazy().await.unwrap().registry();
    let tasks: Vec<_> = (0..32)
        .map(|_| {
            let registry = registry.clone();
            tokio::spawn(async move { registry.namespaces().await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(proxy.seen("POST", "/login").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_file_is_read_at_every_login() {
    let server = Setup::new().auth().start().await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    std::fs::write(&file, format!("{PASSWORD}\n")).unwrap();
    let cosky = Cosky::connect(server.url()).password_file("cosky", &file).await.unwrap();
    cosky.registry().namespaces().await.unwrap();
    let absent =
        Cosky::connect(server.url()).password_file("cosky", dir.path().join("none")).await.unwrap_err();
    assert!(absent.to_string().contains("none cannot be read"), "{absent}");
}

/// What a server that restarts with other keys makes of old tokens.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_the_server_forgot_is_begun_anew() {
    let server = short_lived().await;
    let proxy = Proxy::before(server.address).await;
    let registry = Cosky::connect(proxy.url()).login("cosky", PASSWORD).await.unwrap().registry();
    registry.namespaces().await.unwrap();
    // A new password ends every session; setting the same one again does so without telling the client.
    let user = core::UserName::new("cosky").unwrap();
    let hash = core::Accounts::account(&*server.engine, &user).await.unwrap().unwrap().password_hash;
    core::Accounts::set_password(&*server.engine, &user, &hash).await.unwrap();
    until("a new login", async || {
        registry.namespaces().await.is_ok() && proxy.seen("POST", "/login").len() == 2
    })
    .await;
}
