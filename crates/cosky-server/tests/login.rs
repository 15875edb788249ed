//! Logins and refreshes, over real sockets: what buys tokens, how often, and what freezes an account.

mod support;

use std::{sync::Arc, time::Duration};

use cosky_core::{Accounts, Namespace, Registry, account::ROOT};
use cosky_embedded::{Embedded, Options};
use cosky_server::Config;
use cosky_testkit::disk::Disk;
use jsonwebtoken::Algorithm;
use serde_json::json;
use support::{
    PASSWORD, Server, Setup,
    session::{PUBLISHED_KEY, claims, login, pair, refresh, sign},
};

#[tokio::test]
async fn a_login_opens_the_door_and_a_wrong_one_does_not() {
    let server = Setup::new().auth().start().await;
    let mut client = server.client().await;
    client.get("/v1/namespaces").await.refused(401, "unauthorized", "credential");
    for (user, password) in [(ROOT, "wrong"), (ROOT, ""), ("nobody", PASSWORD), ("nobody", "")] {
        let answer = login(&mut client, user, password).await;
        answer.refused(400, "login_failed", "wrong user or password");
    }
    let pair = pair(&mut client).await;
    assert_eq!(pair.as_object().unwrap().keys().collect::<Vec<_>>(), ["accessToken", "refreshToken"]);
    let token = pair["accessToken"].as_str().unwrap();
    for value in [format!("Bearer {token}"), format!("bearer {token}"), token.to_owned()] {
        client.send("GET", "/v1/namespaces", &[("Authorization", &value)], b"").await.expect(200);
    }
    let both = [("Authorization", token), ("Authorization", token)];
    client.send("GET", "/v1/namespaces", &both, b"").await.expect(401);
    let claims = claims(&pair["accessToken"]);
    assert_eq!(claims["sub"], ROOT);
    assert_eq!(claims["exp"].as_u64().unwrap() - claims["iat"].as_u64().unwrap(), 900);
}

#[tokio::test]
async fn refusals_have_coskys_fields_too() {
    let server = Setup::new().auth().start().await;
    let answer = server.client().await.get("/v1/namespaces").await.expect(401);
    assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
    let body = answer.value();
    assert_eq!(body["authorized"], false);
    assert_eq!(body["reason"], body["msg"]);
    assert_eq!(body["code"], "unauthorized");
}

#[tokio::test]
async fn an_access_token_ends_and_a_refresh_renews_it() {
    let mut setup = Setup::new().auth();
    setup.config.access_token_ttl = Duration::from_secs(2);
    let server = setup.start().await;
    let mut client = server.client().await;
    let pair = pair(&mut client).await;
    client.token = Some(pair["accessToken"].as_str().unwrap().to_owned());
    client.get("/v1/namespaces").await.expect(200);
    let expired = loop {
        let answer = client.get("/v1/namespaces").await;
        if answer.status != 200 {
            break answer;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(
        expired.expect(401).value()["reason"],
        "Token Expired",
        "CoSky's clients refresh at this word"
    );
    let renewed = refresh(&mut client, ROOT, &pair).await.expect(200).value();
    client.token = Some(renewed["accessToken"].as_str().unwrap().to_owned());
    client.get("/v1/namespaces").await.expect(200);
}

#[tokio::test]
async fn a_refresh_token_buys_one_pair() {
    let server = Setup::new().auth().start().await;
    let mut client = server.client().await;
    let first = pair(&mut client).await;
    let second = refresh(&mut client, ROOT, &first).await.expect(200).value();
    refresh(&mut client, ROOT, &first).await.refused(400, "refresh_failed", "used before");
    assert_ne!(claims(&second["accessToken"])["jti"], claims(&first["accessToken"])["jti"]);
    assert_eq!(claims(&second["refreshToken"])["sub"], claims(&second["accessToken"])["jti"]);

    let mut tries = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (mut client, second) = (server.client().await, second.clone());
        tries.spawn(async move { refresh(&mut client, ROOT, &second).await.status });
    }
    let statuses = tries.join_all().await;
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 1, "{statuses:?}");
}

/// Access tokens end after 15 minutes; a disk that is full for longer must not cost the sessions, and with them the
/// registrations.
#[tokio::test(flavor = "multi_thread")]
async fn while_the_store_refuses_writes_a_refresh_token_still_buys_one_pair() {
    let disk = Disk::new();
    let engine = Arc::new(Embedded::open_backend(disk.file(), Options::new("unused")).await.unwrap());
    let config = Config { root_password: Some(PASSWORD.into()), ..Config::default() };
    let server = Setup::on(engine.clone(), config).await;
    let mut client = server.client().await;
    let first = pair(&mut client).await;
    disk.set_full(true);
    engine.add_namespace(&Namespace::new("a").unwrap()).await.unwrap_err();

    let second = refresh(&mut client, ROOT, &first).await.expect(200).value();
    refresh(&mut client, ROOT, &first).await.refused(400, "refresh_failed", "used before");
    client.token = Some(second["accessToken"].as_str().unwrap().to_owned());
    client.get("/v1/namespaces").await.expect(200);
    let mut tries = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (mut client, second) = (server.client().await, second.clone());
        tries.spawn(async move { refresh(&mut client, ROOT, &second).await });
    }
    let mut answers = tries.join_all().await;
    answers.retain(|answer| answer.status == 200);
    assert_eq!(answers.len(), 1);
    let third = answers.remove(0).value();
    login(&mut client, ROOT, PASSWORD).await.expect(200);

    // What was used meanwhile stays used when the store is well again, and what is used now is stored.
    disk.set_full(false);
    while client.get("/health").await.status != 200 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for used in [&first, &second] {
        refresh(&mut client, ROOT, used).await.refused(400, "refresh_failed", "used before");
    }
    refresh(&mut client, ROOT, &third).await.expect(200);
    let id = claims(&third["refreshToken"])["jti"].as_str().unwrap().to_owned();
    assert!(!engine.use_refresh_token(&id, u64::MAX).await.unwrap(), "the store knows of it");
}

#[tokio::test]
async fn a_refresh_takes_nothing_but_a_genuine_pair_of_the_user() {
    let server = Setup::new().auth().start().await;
    let mut client = server.client().await;
    let good = pair(&mut client).await;
    let other = pair(&mut client).await;
    refresh(&mut client, "alice", &good).await.refused(400, "refresh_failed", "another user");
    let mixed = json!({"accessToken": good["accessToken"], "refreshToken": other["refreshToken"]});
    refresh(&mut client, ROOT, &mixed).await.refused(400, "refresh_failed", "belong together");
    let swapped = json!({"accessToken": good["refreshToken"], "refreshToken": good["accessToken"]});
    refresh(&mut client, ROOT, &swapped).await.refused(400, "refresh_failed", "not good");

    // CoSky's defect: the access token's signature was not verified, so its bearer could claim to be anybody.
    let mut forged = claims(&good["accessToken"]);
    forged["roles"] = json!(["admin"]);
    for key in [PUBLISHED_KEY, &[7; 32]] {
        let forged = sign(Algorithm::HS256, &forged, key);
        let pair = json!({"accessToken": forged, "refreshToken": good["refreshToken"]});
        refresh(&mut client, ROOT, &pair).await.refused(400, "refresh_failed", "not good");
    }
    for missing in [json!({}), json!({"accessToken": good["accessToken"]})] {
        refresh(&mut client, ROOT, &missing).await.refused(400, "invalid_body", "Token");
    }
    refresh(&mut client, ROOT, &good).await.expect(200);
}

#[tokio::test]
async fn ten_failures_freeze_an_account_known_or_not() {
    let server = Setup::new().auth().start().await;
    let mut client = server.client().await;
    for (user, last) in [(ROOT, PASSWORD), ("nobody", "x")] {
        for _ in 0..10 {
            login(&mut client, user, "wrong").await.refused(400, "login_failed", "wrong user or password");
        }
        let answer = login(&mut client, user, last).await;
        assert_eq!(answer.header("retry-after"), Some("900"), "in seconds, for programs");
        answer.refused(400, "account_frozen", "15 minutes");
    }
    server.clock.advance(Duration::from_secs(870));
    let answer = login(&mut client, ROOT, PASSWORD).await;
    assert_eq!(answer.header("retry-after"), Some("30"));
    answer.refused(400, "account_frozen", "1 minute");
    server.clock.advance(Duration::from_secs(31));
    login(&mut client, ROOT, PASSWORD).await.expect(200);
    for _ in 0..2 {
        for _ in 0..9 {
            login(&mut client, ROOT, "wrong").await.refused(400, "login_failed", "wrong user or password");
        }
        login(&mut client, ROOT, PASSWORD).await.expect(200);
    }
}

/// Logins of `user` that all begin at once, by code; `ok` for those that succeed.
async fn at_once(server: &Server, times: usize, user: &'static str, password: &'static str) -> Vec<String> {
    let mut logins = tokio::task::JoinSet::new();
    for _ in 0..times {
        let mut client = server.client().await;
        logins.spawn(async move {
            let answer = login(&mut client, user, password).await;
            let code = answer.value()["code"].as_str().unwrap_or("ok").to_owned();
            assert_eq!(answer.header("retry-after").is_some(), !["ok", "login_failed"].contains(&&*code));
            code
        });
    }
    logins.join_all().await
}

fn count(codes: &[String], code: &str) -> usize {
    codes.iter().filter(|c| *c == code).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn parallel_guesses_get_no_more_tries() {
    let server = Setup::new().auth().start().await;
    let codes = at_once(&server, 40, ROOT, "wrong").await;
    assert_eq!((count(&codes, "login_failed"), count(&codes, "account_frozen")), (10, 30), "{codes:?}");

    // More than the queue holds: those turned away are not looked at.
    let codes = at_once(&server, 200, "nobody", "wrong").await;
    let (looked, frozen, away) =
        (count(&codes, "login_failed"), count(&codes, "account_frozen"), count(&codes, "limit_reached"));
    assert_eq!((looked, frozen + away), (10, 190), "{codes:?}");
}

/// A fleet that starts at once shares one account. Tries were counted before they waited for the hash, so that all but
/// ten were told that the account is frozen.
#[tokio::test(flavor = "multi_thread")]
async fn forty_clients_with_the_right_password_log_in_at_once() {
    let server = Setup::new().auth().start().await;
    let codes = at_once(&server, 40, ROOT, PASSWORD).await;
    assert_eq!(count(&codes, "ok"), 40, "{codes:?}");
    let codes = at_once(&server, 10, ROOT, "wrong").await;
    assert_eq!(count(&codes, "login_failed"), 10, "and none of them was left counted: {codes:?}");
}
