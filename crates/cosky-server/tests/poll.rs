//! Long polls: when they answer, and with what.

mod support;

use std::time::{Duration, Instant};

use serde_json::json;
use support::{NS, Server, Setup, client::Answer, instance};

const LIST: &str = "/v1/namespaces/%7Bt1%7D/services/order/instances";

fn index(answer: &Answer) -> String {
    answer.header("x-cosky-index").expect("every read has an index").to_owned()
}

/// Waits until so many polls wait.
async fn waiting(server: &Server, polls: usize) {
    let mut client = server.client().await;
    let line = format!("cosky_long_polls {polls}");
    let shown = async {
        while !client.get("/metrics").await.expect(200).text().lines().any(|l| l == line) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), shown).await.expect("polls wait");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_index_the_answer_comes_at_once() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let begun = Instant::now();
    assert_eq!(client.get(&format!("{LIST}?wait=60s")).await.expect(200).value(), json!([]));
    let first = client.get(LIST).await;
    assert_eq!(client.get(&format!("{LIST}?index={}", index(&first))).await.expect(200).value(), json!([]));
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_wait_come_the_same_index_and_the_same_body() {
    let server = Server::start().await;
    let mut client = server.client().await;
    client.register("order", &instance("10.0.0.1", 8080)).await;
    let first = client.get(LIST).await.expect(200);
    for wait in ["300ms", "0s", "0"] {
        let begun = Instant::now();
        let same = client.get(&format!("{LIST}?wait={wait}&index={}", index(&first))).await.expect(200);
        assert_eq!((index(&same), same.value()), (index(&first), first.value()));
        assert!(wait != "300ms" || begun.elapsed() >= Duration::from_millis(300), "{:?}", begun.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_the_service_ends_the_wait_and_no_other_does() {
    let server = Setup::new().ttl(30).start().await;
    let mut client = server.client().await;
    let mut poller = server.client().await;
    let mut seen = index(&poller.get(LIST).await);
    for (step, expected) in [("register", 1), ("metadata", 1), ("expire", 0)] {
        let path = format!("{LIST}?wait=60s&index={seen}");
        poller.write("GET", &path, &[], b"").await;
        waiting(&server, 1).await;
        client.register("stock", &instance("10.0.0.9", 9)).await;
        client.put(&format!("{NS}/services/{step}")).await.expect(200);
        waiting(&server, 1).await;
        match step {
            "register" => drop(client.register("order", &instance("10.0.0.1", 8080)).await),
            "metadata" => {
                let path = format!("{LIST}/order%40http%2310.0.0.1%238080/metadata");
                assert_eq!(client.text("PUT", &path, r#"{"k":"v"}"#).await.value(), true);
            }
            _ => server.pass(Duration::from_secs(31)).await,
        }
        let news = poller.read("GET").await.expect(200);
        assert_eq!(news.value().as_array().unwrap().len(), expected, "{step}");
        assert_ne!(index(&news), seen);
        seen = index(&news);
    }
    let path = format!("{LIST}?wait=100ms&index={seen}");
    assert_eq!(index(&poller.get(&path).await), seen, "what was answered is not news again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_before_the_poll_is_not_missed() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let seen = index(&client.get(LIST).await);
    client.register("order", &instance("10.0.0.1", 8080)).await;
    let begun = Instant::now();
    let news = client.get(&format!("{LIST}?wait=60s&index={seen}")).await.expect(200);
    assert_eq!(news.ids(), ["order@http#10.0.0.1#8080"]);
    let unknown = client.get(&format!("{LIST}?wait=60s&index=0:0")).await.expect(200);
    assert_eq!(
        (index(&unknown), unknown.ids()),
        (index(&news), news.ids()),
        "another server's index is answered at once"
    );
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn places_are_limited_and_given_back() {
    let mut setup = Setup::new();
    setup.config.limits.long_polls = 1;
    let server = setup.start().await;
    let mut client = server.client().await;
    let path = format!("{LIST}?wait=60s&index={}", index(&client.get(LIST).await));
    let mut first = server.client().await;
    first.write("GET", &path, &[], b"").await;
    waiting(&server, 1).await;
    let refused = client.get(&path).await;
    assert!(refused.header("retry-after").is_some());
    refused.refused(429, "limit_reached", "");
    assert_eq!(client.get(LIST).await.expect(200).value(), json!([]), "reads that do not wait need no place");
    drop(first);
    waiting(&server, 0).await;
    let mut second = server.client().await;
    second.write("GET", &path, &[], b"").await;
    waiting(&server, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_ends_the_wait() {
    let mut server = Server::start().await;
    let mut client = server.client().await;
    let seen = index(&client.get(LIST).await);
    client.write("GET", &format!("{LIST}?wait=60s&index={seen}"), &[], b"").await;
    waiting(&server, 1).await;
    server.drain();
    let answer = client.read("GET").await.expect(200);
    assert_eq!((index(&answer), answer.value()), (seen, json!([])));
    drop(client);
    server.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_credential_ends_the_wait() {
    let mut setup = Setup::new().auth();
    setup.config.access_token_ttl = Duration::from_secs(2);
    let server = setup.start().await;
    let mut root = server.root().await;
    let seen = index(&root.get(LIST).await.expect(200));
    let begun = Instant::now();
    let answer = root.get(&format!("{LIST}?wait=15s&index={seen}")).await.expect(200);
    assert_eq!(index(&answer), seen);
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    root.get(LIST).await.refused(401, "unauthorized", "");
}
