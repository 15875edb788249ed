//! What answers at an address: no cosky server, one that is too old, a newer one, or one that holds nothing.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/script.rs"]
mod script;
mod support;

use std::time::{Duration, Instant};

use cosky::{Cosky, Error, Instance, StoreState, core};
use cosky_core::{BeatKey, Owner, Registration, Registry as _, Scope, ServiceId};
use script::{Reply, Script};
use support::{NS, Server, namespace};

/// The version of this client.
const OURS: &str = env!("CARGO_PKG_VERSION");
const NO_SUCH_PATH: &str =
    r#"{"code":"not_found","msg":"there is no such path; /swagger-ui/ shows those that there are"}"#;

/// What a lazy client says when it is used, and whether it said so before its time was over.
async fn when_used(url: &str) -> [Error; 3] {
    let cosky = Cosky::connect(url).lazy().await.unwrap();
    let shop = cosky.namespace(NS).unwrap();
    let start = Instant::now();
    let discovered = shop.discover("order").await.unwrap_err();
    let registered = shop.register(Instance::http("order", "10.0.0.5", 8080)).await.unwrap_err();
    let read = cosky.registry().namespaces().await.unwrap_err().into();
    assert!(start.elapsed() < Duration::from_secs(4), "waiting does not help");
    [discovered, registered, read]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_web_server_is_no_cosky_server() {
    let server = Script::play(|_| Reply::new(200, "content-type: text/html\r\n", "<h1>It works!</h1>")).await;
    let mut errors = vec![Cosky::connect(server.url.as_str()).await.unwrap_err()];
    errors.extend(when_used(&server.url).await);
    for error in errors {
        let Error::NotCosky(stranger) = &error else { panic!("{error:?}") };
        assert_eq!(
            (stranger.address.as_str(), stranger.status, stranger.jvm),
            (server.url.as_str(), 200, false)
        );
        let text = error.to_string();
        assert!(text.contains("not a cosky server") && text.contains("check host, port and path"), "{text}");
    }
}

/// As the real server answers (compat §4.2): 400 `0001` to a path that it does not know, 401 without a token, and its
/// REST API to the rest.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_the_jvm_is_told_by_name() {
    for (status, headers, body) in [
        (400, "", r#"{"code":"0001","msg":"404 NOT_FOUND \"No static resource livez.\""}"#),
        (401, "", r#"{"authorized":false,"reason":"Implicit Deny"}"#),
        (200, "CoSec-Request-Id: 0197c1\r\n", r#"["cosky-{system}"]"#),
    ] {
        let server = Script::play(move |_| Reply::new(status, headers, body)).await;
        let mut errors = vec![Cosky::connect(server.url.as_str()).await.unwrap_err()];
        errors.extend(when_used(&server.url).await);
        for error in errors {
            let Error::NotCosky(stranger) = &error else { panic!("{error:?}") };
            assert!(stranger.jvm, "{status}: {error:?}");
            let text = error.to_string();
            assert!(
                text.contains("CoSky server of the JVM") && text.contains("address of a cosky server"),
                "{text}"
            );
        }
    }
}

/// P7: what has the same REST API may have done what it was told.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_another_kind_of_server_may_have_done_is_told_so_and_not_repeated() {
    let jvm = |_: &str| Reply::new(200, "CoSec-Request-Id: 0197c1\r\n", "true");
    let old = |_: &str| Reply::cosky("0.0.9", 200, "true");
    for (one, other) in [
        (Script::play(jvm).await, Script::play(jvm).await),
        (Script::play(old).await, Script::play(old).await),
    ] {
        let registry = Cosky::connect([one.url.as_str(), &other.url]).lazy().await.unwrap().registry();
        let error = registry.add_namespace(&namespace()).await.unwrap_err();
        assert!(matches!(error, core::Error::Unavailable { maybe_applied: true, .. }), "{error:?}");
        assert_eq!(one.seen("PUT").len() + other.seen("PUT").len(), 1);
        let error = registry.namespaces().await.unwrap_err();
        assert!(matches!(error, core::Error::Unavailable { maybe_applied: false, .. }), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_below_the_version_that_is_needed_is_too_old() {
    let server = Script::play(|_| Reply::cosky("0.0.9", 200, "[]")).await;
    let mut errors = vec![Cosky::connect(server.url.as_str()).await.unwrap_err()];
    errors.extend(when_used(&server.url).await);
    for error in errors {
        let Error::TooOld(old) = &error else { panic!("{error:?}") };
        assert_eq!(
            (old.address.as_str(), old.server.as_str(), old.client),
            (server.url.as_str(), "0.0.9", OURS)
        );
        let text = error.to_string();
        for part in ["too old", "version 0.0.9", "at least version 0.1.0", OURS, "Update the server"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

/// A server that has everything but what is asked for, as one before this client's.
async fn without(part: &'static str, refusal: (u16, &'static str)) -> Script {
    Script::play(move |line| match line {
        line if line.contains(part) => Reply::cosky(OURS, refusal.0, refusal.1),
        line if line.contains("/watch") => {
            let snapshot = r#"{"services":{},"state":"live"}"#;
            Reply::stream(OURS, &format!("id: 1:1\nevent: snapshot\ndata: {snapshot}\n\n"))
        }
        _ => Reply::cosky(OURS, 200, "[]"),
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_the_route_is_too_old_for_it_and_serves_everything_else() {
    let refused = r#"{"code":"method_not_allowed","msg":"the path does not take this method"}"#;
    for refusal in [(404, NO_SUCH_PATH), (405, refused)] {
        let server = without("/beats", refusal).await;
        let cosky = Cosky::connect(server.url.as_str()).await.unwrap();
        let key = BeatKey { service: "order", instance: "order@http#10.0.0.5#8080" };
        let error: Error = cosky.registry().beat(&namespace(), &[key]).await.unwrap_err().into();
        let Error::TooOld(old) = &error else { panic!("{error:?}") };
        assert_eq!(old.missing, "does not know POST /v1/namespaces/shop-%7Beu%7D/beats");
        assert!(error.to_string().contains(&format!("it is version {OURS} and does not know")), "{error}");
        let view = cosky.namespace(NS).unwrap().discover("order").await.unwrap();
        assert_eq!((view.state(), view.snapshot().len()), (StoreState::Live, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_path_names_may_be_missing_at_a_server_of_any_age() {
    let missing = r#"{"code":"not_found","msg":"service order does not exist"}"#;
    let server = without("/services/order", (404, missing)).await;
    let cosky = Cosky::connect(server.url.as_str()).await.unwrap();
    let error =
        cosky.registry().set_service(&namespace(), &ServiceId::new("order").unwrap()).await.unwrap_err();
    assert!(matches!(error, core::Error::NotFound { .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_server_is_too_old_for_another_one_does() {
    let old = without("/services/", (404, NO_SUCH_PATH)).await;
    let server = Server::start().await;
    for _ in 0..16 {
        let cosky = Cosky::connect([old.url.clone(), server.url()]).await.unwrap();
        let mut new = Registration::new(ServiceId::new("order").unwrap(), "http", "10.0.0.5", 8080).unwrap();
        new.owner = Some(Owner::random());
        cosky.registry().register(&namespace(), &new).await.unwrap();
    }
    assert!(!old.seen("PUT").is_empty(), "some of them asked it first");
}

/// The engine's contract has a word of its own for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_digests_is_compared_with_nothing() {
    let server = without("/digest", (404, NO_SUCH_PATH)).await;
    let registry = Cosky::connect(server.url.as_str()).await.unwrap().registry();
    let error = registry.digest(&namespace(), &Scope::All).await.unwrap_err();
    assert!(matches!(error, core::Error::NotFound { .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_server_works_whatever_it_says_beside() {
    let instance = r#"{"instanceId":"order@http#h#1","serviceId":"order","schema":"http","host":"h","port":1,
        "weight":1,"isEphemeral":true,"ttlAt":1790000060,"isExpired":false,"metadata":{},"colour":{"of":"tomorrow"}}"#;
    let instance = instance.replace('\n', "");
    let events = format!(
        "retry: 100\nid: 1:1\nevent: snapshot\ndata: {{\"services\":{{\"order\":[{instance}]}},\"state\":\"live\",\
         \"hologram\":[1]}}\n\nid: 1:2\nevent: hologram\ndata: [\"?\"]\n\n"
    );
    let server = Script::play(move |line| match line {
        line if line.contains("/watch") => Reply::stream("9.1.0-rc.1", &events),
        _ => Reply::cosky("9.1.0-rc.1", 200, r#"["shop-{eu}"]"#),
    })
    .await;
    let cosky = Cosky::connect(server.url.as_str()).await.unwrap();
    assert_eq!(cosky.registry().namespaces().await.unwrap(), [namespace()]);
    let view = cosky.namespace(NS).unwrap().discover("order").await.unwrap();
    assert_eq!((view.state(), view.choose().unwrap().port().get()), (StoreState::Live, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_server_is_an_answer_and_no_error() {
    let server = Server::start().await;
    let cosky = server.cosky().await;
    assert_eq!(cosky.registry().services(&namespace()).await.unwrap().value, []);
    let view = cosky.namespace(NS).unwrap().discover("order").await.unwrap();
    assert_eq!((view.state(), view.snapshot().len()), (StoreState::Live, 0));
    assert!(matches!(view.choose(), Err(Error::NoInstance { .. })));
}
