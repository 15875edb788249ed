//! Logins that are refused, put off or lost, and those that programs keep themselves.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use cosky::{Cosky, Error, HttpRegistry, Instance, RegistrationState, TokenSource, core};
use cosky_core::{Registry as _, UserName, wire::TokenPair};
use support::{
    NS, PASSWORD, Setup,
    desk::{Desk, Say},
    proxy::{Mode, Proxy},
    until,
};
use tokio::time::sleep;

const FROZEN: &str = "account_frozen";

/// A client that has asked nobody yet.
async fn client(desk: &Desk) -> Arc<HttpRegistry> {
    Cosky::connect(desk.url.as_str()).login("cosky", "word").lazy().await.unwrap().registry()
}

async fn works(registry: &HttpRegistry) -> bool {
    registry.namespaces().await.is_ok()
}

/// How long after the first login the second one came, when somebody needs it all the time and the first was answered
/// by `first`.
async fn second_login(first: Say) -> f64 {
    let desk = Desk::open().await;
    desk.say(first, Say::Pair);
    let registry = client(&desk).await;
    assert!(!works(&registry).await);
    desk.say(Say::Pair, Say::Pair);
    until("a second login", async || works(&registry).await).await;
    let logins = desk.logins();
    assert_eq!(logins.len(), 2, "{logins:?}");
    (logins[1].at - logins[0].at).as_secs_f64()
}

/// The upper ends hold half as much again, and a second for a machine that does other work as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_login_comes_again_when_the_server_said_and_not_before() {
    let (frozen, full, away) = tokio::join!(
        second_login(Say::No(400, FROZEN, Some(2))),
        second_login(Say::No(429, "limit_reached", Some(2))),
        second_login(Say::No(503, "unavailable", Some(2))),
    );
    for waited in [frozen, full, away] {
        assert!((2.0..4.0).contains(&waited), "{frozen} {full} {away}");
    }
}

/// A freeze ends before its time when somebody else's right login succeeds, and an instance lives for 30 s.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_logins_again_before_its_time_is_noticed() {
    let waited = second_login(Say::No(400, FROZEN, Some(900))).await;
    assert!((5.0..8.5).contains(&waited), "{waited}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_wrong_password_is_not_taken_for_one() {
    let (odd, lost) =
        tokio::join!(second_login(Say::No(400, "invalid_body", None)), second_login(Say::Nothing));
    assert!(odd < 2.0 && lost < 2.0, "{odd} {lost}");
}

/// How much longer it waits after further refusals is told by the unit tests.
#[tokio::test(flavor = "multi_thread")]
async fn a_password_that_was_wrong_is_tried_again() {
    let waited = second_login(Say::No(400, "login_failed", None)).await;
    assert!((5.0..8.5).contains(&waited), "{waited}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_password_in_the_file_is_tried_at_once() {
    let server = Setup::new().auth().start().await;
    let proxy = Proxy::before(server.address).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    std::fs::write(&file, "a wrong word").unwrap();
    let cosky = Cosky::connect(proxy.url()).password_file("cosky", &file).lazy().await.unwrap();
    let handle =
        cosky.namespace(NS).unwrap().keep_registered(Instance::http("order", "10.0.0.5", 8080)).unwrap();
    let refused = |state: &RegistrationState| matches!(state, RegistrationState::Unreachable { .. });
    handle.state_changes().wait_for(refused).await.unwrap();
    std::fs::write(&file, PASSWORD).unwrap();
    let took = until("the registration", async || server.ids("order").await.len() == 1).await;
    // The first refusal alone is worth 5 s.
    assert!(took < Duration::from_secs(4), "{took:?}");
    assert_eq!(proxy.seen("POST", "/login").len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_that_was_not_carried_out_keeps_its_pair() {
    for no in [Say::No(503, "shutting_down", Some(1)), Say::No(429, "limit_reached", None)] {
        let desk = Desk::open().await;
        let registry = client(&desk).await;
        assert!(works(&registry).await);
        desk.say(Say::No(400, FROZEN, Some(900)), no);
        desk.expire();
        assert!(!works(&registry).await);
        desk.say(Say::No(400, FROZEN, Some(900)), Say::Pair);
        until("a refresh", async || works(&registry).await).await;
        let refreshs = desk.refreshs();
        assert!(refreshs.iter().all(|refresh| refresh.body.contains("\"r1\"")), "{refreshs:?}");
        assert_eq!((desk.logins().len(), refreshs.len()), (1, 2), "{no:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_whose_answer_was_lost_is_not_sent_again() {
    let desk = Desk::open().await;
    let registry = client(&desk).await;
    assert!(works(&registry).await);
    desk.say(Say::Pair, Say::Nothing);
    desk.expire();
    assert!(works(&registry).await, "the password buys what the pair may have bought");
    assert_eq!((desk.logins().len(), desk.refreshs().len()), (2, 1));
}

/// What became of the login is not known; the call itself has surely not been carried out.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_login_was_lost_was_not_carried_out() {
    let desk = Desk::open().await;
    desk.say(Say::Nothing, Say::Nothing);
    let error = client(&desk).await.add_namespace(&support::namespace()).await.unwrap_err();
    assert!(matches!(error, core::Error::Unavailable { maybe_applied: false, .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pair_buys_one_other() {
    let server = Setup::new().auth().start().await;
    let access = Cosky::connect(server.url()).lazy().await.unwrap().access();
    let user = UserName::new("cosky").unwrap();
    let wrong = access.log_in(&user, "a wrong word").await.err().unwrap();
    assert_eq!(wrong.to_string(), "not authorised: wrong user or password");
    let first = access.log_in(&user, PASSWORD).await.unwrap();
    let second = access.refresh(&user, &first).await.unwrap();
    let again = access.refresh(&user, &first).await.err().unwrap();
    assert!(matches!(again, Error::Registry(core::Error::Unauthorized { .. })), "{again:?}");
    let registry = Cosky::connect(server.url()).token(second.access_token).await.unwrap().registry();
    registry.namespaces().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_made_listed_and_revoked() {
    let server = Setup::new().auth().start().await;
    let access = Cosky::connect(server.url()).login("cosky", PASSWORD).await.unwrap().access();
    let made = access.create_token("ci", Some(Duration::from_secs(60))).await.unwrap();
    let list = access.tokens().await.unwrap();
    assert_eq!((list.len(), &list[0].id, &list[0].token), (1, &made.id, &None));
    assert_eq!(made.expires_at.unwrap() - made.created_at, 60);
    let machine = Cosky::connect(server.url()).token(made.token.unwrap()).await.unwrap();
    machine.registry().namespaces().await.unwrap();
    assert!(access.revoke_token(&made.id).await.unwrap());
    assert!(!access.revoke_token(&made.id).await.unwrap());
    assert!(machine.registry().namespaces().await.is_err());
    let error = access.create_token(" ", None).await.err().unwrap();
    let Error::Registry(core::Error::InvalidArgument { field, .. }) = &error else { panic!("{error:?}") };
    assert_eq!(field, "name");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_whose_answer_was_lost_may_have_been_made() {
    let server = Setup::new().auth().start().await;
    let proxy = Proxy::before(server.address).await;
    let access = Cosky::connect(proxy.url()).login("cosky", PASSWORD).await.unwrap().access();
    proxy.set(Mode::LoseAnswers);
    let error = access.create_token("ci", None).await.err().unwrap();
    let Error::Registry(core::Error::Unavailable { maybe_applied, .. }) = error else { panic!("{error:?}") };
    assert!(maybe_applied);
    proxy.set(Mode::Pass);
    assert_eq!(access.tokens().await.unwrap().len(), 1, "it was made, and once");
}

/// Keeps a login as a program would that shares it with others.
struct Kept {
    access: cosky::Access,
    pair: Mutex<TokenPair>,
    asked: Mutex<Vec<Option<String>>>,
}

#[async_trait::async_trait]
impl TokenSource for Kept {
    async fn token(&self, refused: Option<&str>) -> core::Result<String> {
        self.asked.lock().unwrap().push(refused.map(str::to_owned));
        let pair = self.pair.lock().unwrap().clone();
        if refused.is_none() {
            return Ok(pair.access_token);
        }
        let fresh = self.access.refresh(&UserName::new("cosky")?, &pair).await;
        let fresh = fresh.map_err(|error| core::Error::Unauthorized { reason: error.to_string() })?;
        *self.pair.lock().unwrap() = fresh.clone();
        Ok(fresh.access_token)
    }
}

/// Access tokens of 2 s, a TTL of 3 s.
#[tokio::test(flavor = "multi_thread")]
async fn a_source_is_asked_when_its_token_is_refused_and_not_before() {
    let mut setup = Setup::new().auth();
    setup.config.access_token_ttl = Duration::from_secs(2);
    let server = setup.start().await;
    let access = Cosky::connect(server.url()).lazy().await.unwrap().access();
    let pair = access.log_in(&UserName::new("cosky").unwrap(), PASSWORD).await.unwrap();
    let first = pair.access_token.clone();
    let kept = Arc::new(Kept { access, pair: Mutex::new(pair), asked: Mutex::default() });
    let shop = Cosky::connect(server.url()).token_source(kept.clone()).await.unwrap().namespace(NS).unwrap();
    let order = Instance::http("order", "10.0.0.5", 8080).ttl(Duration::from_secs(3));
    let handle = shop.register(order).await.unwrap();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(8) {
        assert_eq!(server.ids("order").await.len(), 1, "absent after {:?}", start.elapsed());
        sleep(Duration::from_millis(50)).await;
    }
    let asked = kept.asked.lock().unwrap().clone();
    assert_eq!(asked[..2], [None, Some(first)]);
    assert!((3..=6).contains(&asked.len()) && asked[1..].iter().all(Option::is_some), "{}", asked.len());
    handle.close().await.unwrap();
}

/// Gives the same again and again.
struct Stubborn(Mutex<u32>);

#[async_trait::async_trait]
impl TokenSource for Stubborn {
    async fn token(&self, _: Option<&str>) -> core::Result<String> {
        *self.0.lock().unwrap() += 1;
        Ok("same".into())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_has_no_other_token_is_not_asked_all_the_time() {
    let desk = Desk::open().await;
    let source = Arc::new(Stubborn(Mutex::default()));
    let connect = Cosky::connect(desk.url.as_str()).token_source(source.clone()).lazy();
    let registry = connect.await.unwrap().registry();
    for _ in 0..40 {
        let error = registry.namespaces().await.unwrap_err();
        assert!(error.to_string().contains("there is no other one"), "{error}");
    }
    let asked = *source.0.lock().unwrap();
    assert!(asked < 10, "{asked}");
}
