//! Field cases of many clients: what they ask when their server returns, and what is left of watches that are given up.
//! One at a time, since each of them measures.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use cosky::{Cosky, Registry as _};
use cosky_core::{Registration as Record, ServiceId};
use futures_util::{StreamExt as _, stream};
use support::{
    namespace,
    part::{Part, Play},
    real::{Process, metrics, open, sound, sum},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpSocket,
    sync::Mutex,
    time::{interval, sleep, timeout},
};

/// Who measures.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Requests of clients, those to metrics and probes left out.
fn requests(metrics: &std::collections::BTreeMap<String, f64>) -> f64 {
    let ours = |name: &str| name.contains("/metrics") || name.contains("/readyz") || name.contains("/livez");
    let counted = metrics
        .iter()
        .filter(|(name, _)| name.starts_with("cosky_request_duration_seconds_count") && !ours(name));
    let counted: f64 = counted.map(|(_, value)| value).sum();
    counted + sum(metrics, "cosky_operations_total{operation=\"watch\"")
}

/// 300 clients × 20 views and 300 instances that beat, in three processes; the server is killed and comes back after 2 s.
#[tokio::test(flavor = "multi_thread")]
async fn c46_a_server_that_returns_is_not_run_over() {
    const FIRST: Duration = Duration::from_secs(10);
    let _alone = ALONE.lock().await;
    let mut server = open().start().await;
    let crowds: Vec<Part> = ["10000", "11000", "12000"]
        .map(|port| Play::new(server.url(), &["crowd", "100", "20", "100", port]).start())
        .into();
    // 100 clients see all 300 instances of the 20 services.
    let all = "2000 30000 100";
    for crowd in &crowds {
        crowd.tells("crowd", Duration::from_secs(60), |told| told == all).await;
    }
    server.kill().await;
    let killed = Instant::now();
    sleep(Duration::from_secs(2)).await;
    let options = server.successor(true).args(["--no-auth", "--instance-ttl", "3s"]);
    let start = Instant::now();
    let server = options.start().await;
    let ready = Instant::now();
    // Something new, so that everybody has to hear of it.
    let registry = Cosky::connect(server.url()).await.unwrap().registry();
    let mut record = Record::new(ServiceId::new("svc-0").unwrap(), "http", "10.0.0.1", 80).unwrap();
    record.ephemeral = false;
    registry.register(&namespace(), &record).await.unwrap();

    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(1)).build().unwrap();
    let mut tick = interval(Duration::from_millis(100));
    let mut seen = vec![(Duration::ZERO, 0.0)];
    while ready.elapsed() < FIRST {
        tick.tick().await;
        let metrics = metrics(&client, server.url()).await;
        if !metrics.is_empty() {
            seen.push((ready.elapsed(), requests(&metrics)));
        }
    }
    let total = seen.last().unwrap().1;
    let until = |end: Duration| seen.iter().rev().find(|(at, _)| *at <= end).unwrap().1;
    let windows = (0..=90).map(|tenth| {
        let begin = Duration::from_millis(100 * tenth);
        (begin, until(begin + Duration::from_secs(1)) - if begin.is_zero() { 0.0 } else { until(begin) })
    });
    let worst = windows.clone().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
    let histogram: Vec<_> = windows.step_by(10).map(|(_, count)| count).collect();
    println!("{total} requests, by second {histogram:?}, start took {:?}", ready - start);
    for crowd in &crowds {
        let whole = crowd.tells("crowd", Duration::from_secs(60), |told| told == "2000 30100 100").await;
        println!("converged {:?} after it was ready", whole.saturating_duration_since(ready));
        assert!(whole.saturating_duration_since(ready) <= Duration::from_secs(15), "{:?}", whole - ready);
        let told = crowd.told("crowd");
        // The content is there sooner: a server that has just started says for a life that it is protected.
        let content = told.iter().find(|(_, told)| told.contains(" 30100 "));
        let content = content.unwrap().0.saturating_duration_since(ready);
        println!("every list was right after {content:?}");
        assert!(content <= Duration::from_secs(5), "{content:?}");
        let kept = told.iter().filter(|(at, _)| *at > killed);
        let kept = kept.map(|(_, told)| told.split(' ').nth(1).unwrap().parse::<u64>().unwrap());
        assert!(kept.min().unwrap() >= 30000, "no view lost anything meanwhile: {told:?}");
    }
    assert!(
        worst.1 <= 0.4 * total,
        "{} of {total} requests within the second at {:?}: {histogram:?}",
        worst.1,
        worst.0
    );

    // Beats do not stay in step: no tenth of a second has a large part of those of a period of 2 s.
    let mut beats = Vec::new();
    for _ in 0..40 {
        tick.tick().await;
        beats.push(sum(&metrics(&client, server.url()).await, "cosky_operations_total{operation=\"beat\""));
    }
    let most = beats.windows(4).map(|pair| pair[3] - pair[0]).max_by(f64::total_cmp).unwrap();
    let share = most / (beats.last().unwrap() - beats[0]);
    println!("at most {share} of the beats of 4 s within 300 ms");
    assert!(share < 0.3, "{share} of the beats of 4 s within 300 ms");
    sound(&server);
}

/// How a watch is asked for, and how it ends.
#[derive(Clone, Copy)]
enum Ask {
    Stream,
    LongPoll,
}

/// Opens one and gives it up: a stream after its first event, a long poll while it waits.
async fn give_up(server: SocketAddr, at: usize, index: Arc<str>) {
    let socket = TcpSocket::new_v4().unwrap();
    // Closed connections keep their ports for a while; this machine has many addresses.
    let host = std::net::Ipv4Addr::new(127, 0, 0, 2 + (at % 8) as u8);
    socket.bind((host, 0).into()).unwrap();
    let mut stream = socket.connect(server).await.unwrap();
    let ask = if at.is_multiple_of(2) { Ask::Stream } else { Ask::LongPoll };
    let path = match ask {
        Ask::Stream => format!("/v1/namespaces/shop-%7Beu%7D/watch?service=svc-{}", at % 100),
        Ask::LongPoll => {
            format!("/v1/namespaces/shop-%7Beu%7D/services/svc-{}/instances?wait=10s&index={index}", at % 100)
        }
    };
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = vec![0; 4096];
    if matches!(ask, Ask::Stream) {
        // Until the first event has come, so that nothing unread turns an orderly end into a reset.
        let mut text = String::new();
        while !text.contains("snapshot") || !text.contains("\n\n\r\n") {
            let count = timeout(Duration::from_secs(20), stream.read(&mut answer)).await.unwrap().unwrap();
            assert_ne!(count, 0, "{text}");
            text.push_str(&String::from_utf8_lossy(&answer[..count]));
            assert!(text.starts_with("HTTP/1.1 200"), "{text}");
        }
    } else {
        sleep(Duration::from_millis(5)).await;
    }
    if at % 4 < 2 {
        stream.shutdown().await.unwrap();
    } else {
        stream.set_zero_linger().unwrap();
    }
}

/// Until no watch and no long poll is open, for a minute.
async fn idle(client: &reqwest::Client, url: &str) {
    let start = Instant::now();
    loop {
        let now = metrics(client, url).await;
        let open = ["cosky_watchers", "cosky_store_watchers", "cosky_long_polls"];
        let open = open.map(|name| *now.get(name).expect("there is such a metric"));
        if open == [0.0; 3] {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "still open: {open:?}");
        sleep(Duration::from_millis(200)).await;
    }
}

/// Until `now` is within 5 % of the base, for a minute.
async fn back_to(base: Process, what: &str, now: impl Fn() -> Process) {
    let start = Instant::now();
    loop {
        let now = now();
        let files = now.files as f64 <= base.files as f64 * 1.05;
        let memory = now.memory as f64 <= base.memory as f64 * 1.05;
        if files && memory {
            println!("{what}: {base:?} {now:?} after {:?}", start.elapsed());
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{what}: {base:?} {now:?}");
        sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c48_watches_that_are_given_up_leave_nothing() {
    const TOGETHER: usize = 50;
    let _alone = ALONE.lock().await;
    let server = open().start().await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let read = format!("{}/v1/namespaces/shop-%7Beu%7D/services/svc-0/instances", server.url());
    let answer = client.get(read).send().await.unwrap();
    let index: Arc<str> = answer.headers()["x-cosky-index"].to_str().unwrap().into();
    let (address, pid) = (server.address(), server.pid());
    let many = |range: std::ops::Range<usize>| {
        let index = index.clone();
        stream::iter(range).for_each_concurrent(TOGETHER, move |at| give_up(address, at, index.clone()))
    };
    // What a server needs once and keeps: buffers, the memory of its allocator.
    many(0..4000).await;
    idle(&client, server.url()).await;
    let base = Process::of(pid);
    many(4000..24_000).await;
    idle(&client, server.url()).await;
    back_to(base, "the server", || Process::of(pid)).await;
    sound(&server);
}

#[tokio::test(flavor = "multi_thread")]
async fn c48_views_that_are_given_up_leave_nothing() {
    let _alone = ALONE.lock().await;
    let server = open().start().await;
    let churn = Play::new(server.url(), &["churn", "20000"]).start();
    churn.tells("done", Duration::from_secs(120), |told| told == "4000").await;
    let base = [Process::of(churn.pid()), Process::of(server.pid())];
    churn.tells("done", Duration::from_secs(240), |told| told == "20000").await;
    back_to(base[0], "the client", || Process::of(churn.pid())).await;
    back_to(base[1], "the server", || Process::of(server.pid())).await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    idle(&client, server.url()).await;
    sound(&server);
}
