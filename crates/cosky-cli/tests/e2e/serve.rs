//! `cosky serve` and `cosky reset-root`: starting, stopping, and the account that is there from the start.

use std::time::{Duration, Instant};

use cosky_core::wire::TokenPair;
use cosky_testkit::process::CoskyServer;
use reqwest::{Client, StatusCode};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
};

use crate::user::{COSKY, PATIENCE, User, server};

/// The password in what a server printed at its first start; `None` when there is none.
fn printed_password(log: &str) -> Option<String> {
    let mut lines = log.lines().filter_map(|line| line.split_once("  password  "));
    let (_, rest) = lines.next()?;
    assert!(lines.next().is_none(), "printed twice: {log}");
    Some(rest.trim_end_matches('│').trim().to_owned())
}

fn client() -> Client {
    Client::builder().no_proxy().timeout(PATIENCE).build().unwrap()
}

async fn login(server: &CoskyServer, user: &str, password: &str) -> Result<TokenPair, StatusCode> {
    let request = client().post(format!("{}/v1/authenticate/{user}/login", server.url()));
    let answer = request.json(&json!({ "password": password })).send().await.unwrap();
    if answer.status().is_success() { Ok(answer.json().await.unwrap()) } else { Err(answer.status()) }
}

async fn status_with(server: &CoskyServer, token: &str) -> StatusCode {
    client().get(format!("{}/v1/namespaces", server.url())).bearer_auth(token).send().await.unwrap().status()
}

fn signal(server: &CoskyServer, signal: Signal) {
    kill_process(Pid::from_raw(server.pid().cast_signed()).unwrap(), signal).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn c92_the_password_is_printed_once_and_replaced_by_reset_root_alone() {
    // Two at once on one empty directory: one serves, the other one says why it does not, and one password is printed.
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let start = || server().data_dir(&data).password(None).try_start();
    let (mut running, refused) = match tokio::join!(start(), start()) {
        (Ok(running), Err(refused)) | (Err(refused), Ok(running)) => (running, refused),
        (one, two) => panic!("one must serve and one must not: {:?} {:?}", one.err(), two.err()),
    };
    assert_eq!(refused.status.code(), Some(1), "{}", refused.log);
    assert!(refused.log.contains("in use") && refused.log.contains("--data-dir"), "{}", refused.log);
    assert_eq!(printed_password(&refused.log), None);
    let password = printed_password(&running.log()).expect("the first start prints it");
    assert_eq!(password.chars().count(), 20);

    let session = login(&running, "cosky", &password).await.expect("the printed password works");
    for (user, word) in
        [("cosky", "cosky"), ("nacos", "nacos"), ("admin", "admin"), ("cosky", ""), ("root", "root")]
    {
        assert_eq!(login(&running, user, word).await.err(), Some(StatusCode::BAD_REQUEST), "{user}/{word}");
    }
    for file in std::fs::read_dir(&data).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        let mut windows = bytes.windows(password.len());
        assert!(!windows.any(|window| window == password.as_bytes()), "the password is stored in plain text");
    }

    // A reset does not touch what a server holds, and says so.
    let user = User::of(running.url());
    let reset = || user.run(["reset-root", "--data-dir", data.to_str().unwrap()]);
    let said = reset().await;
    assert_eq!((said.code, said.out.as_str()), (Some(1), ""), "{said:?}");
    assert!(said.err.contains("in use"), "{said:?}");
    assert!(running.stop().await.success());

    let mut running = start().await.unwrap();
    assert_eq!(printed_password(&running.log()), None, "a restart prints nothing");
    assert_eq!(status_with(&running, &session.access_token).await, StatusCode::OK, "and changes nothing");
    assert!(login(&running, "cosky", &password).await.is_ok());
    assert!(running.stop().await.success());

    let said = reset().await;
    assert_eq!(said.code, Some(0), "{said:?}");
    let fresh = said.out.trim();
    assert!(fresh != password && fresh.chars().count() == 20, "{said:?}");
    let running = start().await.unwrap();
    assert_eq!(printed_password(&running.log()), None);
    assert!(login(&running, "cosky", &password).await.is_err(), "the old password is void");
    assert!(login(&running, "cosky", fresh).await.is_ok());
    assert_eq!(
        status_with(&running, &session.access_token).await,
        StatusCode::UNAUTHORIZED,
        "old sessions end"
    );
    let refresh = client().post(format!("{}/v1/authenticate/cosky/refresh", running.url())).json(&session);
    assert_eq!(refresh.send().await.unwrap().status(), StatusCode::BAD_REQUEST);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_that_is_given_is_used_and_not_printed() {
    let running = server().password(Some("correct horse battery")).start().await;
    assert!(login(&running, "cosky", "correct horse battery").await.is_ok());
    assert!(
        !running.log().contains("horse") && printed_password(&running.log()).is_none(),
        "{}",
        running.log()
    );
    let refused = server().password(Some("short")).try_start().await.expect_err("a short one is refused");
    assert_eq!(refused.status.code(), Some(2), "{}", refused.log);
    assert!(
        refused.log.contains("COSKY_ROOT_PASSWORD") && !refused.log.contains("short\""),
        "{}",
        refused.log
    );
}

/// A start that fails for another reason does not use up the one printing of the password.
#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_is_taken_costs_no_password() {
    let home = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let start = || server().data_dir(home.path().join("data")).password(None);
    let refused = start().listen(&address).try_start().await.expect_err("the port is taken");
    assert_eq!(refused.status.code(), Some(1), "{}", refused.log);
    assert!(refused.log.contains(&address) && refused.log.contains("--listen"), "{}", refused.log);
    assert_eq!(printed_password(&refused.log), None);
    let refused = start().args(["--metrics-listen", &address]).try_start().await.expect_err("it is taken");
    assert_eq!(refused.status.code(), Some(1), "{}", refused.log);
    assert_eq!(printed_password(&refused.log), None);
    assert!(printed_password(&start().start().await.log()).is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_cannot_be_used_is_named_and_left_alone() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("file");
    std::fs::write(&file, "a file").unwrap();
    let refused = server().data_dir(&file).try_start().await.expect_err("it is no directory");
    assert_eq!(refused.status.code(), Some(1), "{}", refused.log);
    assert!(refused.log.contains(file.to_str().unwrap()), "{}", refused.log);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "a file");

    let damaged = home.path().join("damaged");
    std::fs::create_dir(&damaged).unwrap();
    std::fs::write(damaged.join("cosky.redb"), "no database").unwrap();
    let refused = server().data_dir(&damaged).try_start().await.expect_err("it is damaged");
    assert_eq!(refused.status.code(), Some(1), "{}", refused.log);
    assert!(!refused.log.contains("panicked"), "{}", refused.log);
    assert_eq!(std::fs::read_to_string(damaged.join("cosky.redb")).unwrap(), "no database");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_keeps_is_for_its_user_alone() {
    use std::os::unix::fs::PermissionsExt as _;

    let running = server().start().await;
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o077;
    assert_eq!(mode(running.data_dir()), 0);
    for file in std::fs::read_dir(running.data_dir()).unwrap() {
        let file = file.unwrap().path();
        assert_eq!(mode(&file), 0, "{file:?} holds the key that signs logins");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_in_json_are_json_to_the_last_line() {
    let mut running = server().password(None).args(["--log-format", "json", "--log", "debug"]).start().await;
    assert!(running.stop().await.success());
    let log = running.log();
    let lines: Vec<Value> = log
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let password =
        lines.iter().find_map(|line| line["password"].as_str()).expect("the password is in a line");
    assert_eq!(password.chars().count(), 20);
    let others: Vec<&str> = log.lines().filter(|line| !line.starts_with('{')).collect();
    assert_eq!(others.len(), 3, "the banner on standard output: {others:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_authentication_everything_is_open_and_metrics_have_their_own_address() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let running = server().args(["--no-auth", "--metrics-listen", &free.to_string()]).start().await;
    let user = User::of(running.url());
    assert_eq!(user.json("service", &["list"]).await, json!([]));
    assert_eq!(printed_password(&running.log()), None);
    let metrics = client().get(format!("http://{free}/metrics")).send().await.unwrap();
    assert_eq!(metrics.status(), StatusCode::OK);
    assert!(metrics.text().await.unwrap().contains("cosky_"));
}

/// A request that the server has begun to work on: its head has come and half of its body.
struct HalfSent {
    stream: TcpStream,
    rest: String,
}

impl HalfSent {
    async fn new(server: &CoskyServer, token: &str, port: usize) -> Self {
        let body = json!({ "schema": "http", "host": "10.0.0.1", "port": port }).to_string();
        let (now, later) = body.split_at(body.len() / 2);
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        let head = format!(
            "PUT /v1/namespaces/ns/services/order/instances HTTP/1.1\r\nHost: cosky\r\n\
             Authorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
             Expect: 100-continue\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        // The server says this when it begins to read the body, so the request is in flight for certain.
        let mut answer = [0; 25];
        tokio::time::timeout(PATIENCE, stream.read_exact(&mut answer)).await.unwrap().unwrap();
        assert_eq!(&answer, b"HTTP/1.1 100 Continue\r\n\r\n");
        stream.write_all(now.as_bytes()).await.unwrap();
        Self { stream, rest: later.to_owned() }
    }

    async fn finish(mut self) -> String {
        self.stream.write_all(self.rest.as_bytes()).await.expect("the connection is still there");
        let mut answer = String::new();
        let read = self.stream.read_to_string(&mut answer);
        tokio::time::timeout(PATIENCE, read).await.expect("it is answered in time").expect("and not reset");
        answer
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c33_a_server_that_is_told_to_stop_finishes_what_it_began() {
    for end in [Signal::TERM, Signal::INT] {
        let mut running = server().start().await;
        let token = running.token().await;
        let url = format!("{}/v1/namespaces/ns/watch", running.url());
        let mut watches = Vec::new();
        for _ in 0..20 {
            let answer = client().get(&url).bearer_auth(&token).send().await.unwrap();
            assert_eq!(answer.status(), StatusCode::OK);
            watches.push(answer);
        }
        let mut requests = Vec::new();
        for port in 1..=50 {
            requests.push(HalfSent::new(&running, &token, port).await);
        }

        signal(&running, end);
        let asked = Instant::now();
        for watch in watches {
            let text = tokio::time::timeout(PATIENCE, watch.text()).await.expect("it ends").expect("cleanly");
            assert!(text.trim_end().ends_with("data: {\"state\":\"draining\"}"), "{text}");
        }
        let refused = TcpStream::connect(running.address()).await;
        assert!(refused.is_err(), "a new connection is refused while old ones finish");
        for request in requests {
            let answer = request.finish().await;
            assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("true"), "{answer}");
        }
        assert_eq!(running.wait().await.code(), Some(0), "{}", running.log());
        assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());

        // What was answered is there after the restart.
        let next = running.successor(false).binary(COSKY).start().await;
        let list = User::root(&next).await.json("instance", &["list", "-n", "ns", "order"]).await;
        assert_eq!(list.as_array().unwrap().len(), 50);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c33_what_does_not_finish_is_cut_off_and_the_exit_is_bounded() {
    let mut running = server().start().await;
    let token = running.token().await;
    let stuck = HalfSent::new(&running, &token, 1).await;
    let asked = Instant::now();
    running.terminate();
    assert_eq!(running.wait().await.code(), Some(0), "{}", running.log());
    let took = asked.elapsed();
    assert!((Duration::from_secs(9)..Duration::from_secs(15)).contains(&took), "the grace is 10 s: {took:?}");
    drop(stuck);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_at_once_and_a_hangup_is_ignored() {
    let mut running = server().start().await;
    let token = running.token().await;
    signal(&running, Signal::HUP);
    assert_eq!(status_with(&running, &token).await, StatusCode::OK);
    let stuck = HalfSent::new(&running, &token, 1).await;
    let mut watch = TcpStream::connect(running.address()).await.unwrap();
    let head =
        format!("GET /v1/namespaces/ns/watch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n");
    watch.write_all(head.as_bytes()).await.unwrap();
    let mut lines = BufReader::new(watch).lines();
    let mut hear = async |word: &str| {
        tokio::time::timeout(PATIENCE, async {
            while !lines.next_line().await.unwrap().expect("the stream goes on").contains(word) {}
        })
        .await
        .unwrap_or_else(|_| panic!("{word} was never said"));
    };
    hear("snapshot").await;
    running.terminate();
    hear("draining").await;
    let asked = Instant::now();
    running.terminate();
    assert_eq!(running.wait().await.code(), Some(1));
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    drop(stuck);
}
