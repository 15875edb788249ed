//! `cosky agent`: the way into the registry for a program in any language.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::ExitStatus,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use cosky::{Cosky, LiveView};
use cosky_testkit::process::CoskyServer;
use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader},
    net::TcpStream,
    process::Child,
};

use crate::user::{PATIENCE, User, server};

/// A running agent. Killed when dropped, and its command with it.
struct Agent {
    child: Child,
    pid: Pid,
}

impl Agent {
    fn start(user: &User, options: &[&str], command: &[&str]) -> Self {
        let mut agent = user.command([&["agent"], options, &["--"], command].concat());
        let child = agent.process_group(0).spawn().unwrap();
        let pid = Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
        Self { child, pid }
    }

    fn signal(&self, signal: Signal) {
        assert!(self.child.id().is_some(), "it runs");
        kill_process(self.pid, signal).unwrap();
    }

    /// What a key like Ctrl-C does: the signal reaches every process of the group.
    fn signal_group(&self, signal: Signal) {
        assert!(self.child.id().is_some(), "it runs");
        kill_process_group(self.pid, signal).unwrap();
    }

    async fn wait(&mut self) -> ExitStatus {
        tokio::time::timeout(PATIENCE, self.child.wait()).await.expect("the agent ends").unwrap()
    }

    /// What it and its command said, once all who could say something have ended.
    async fn said(&mut self) -> String {
        let mut text = String::new();
        let mut stderr = self.child.stderr.take().unwrap();
        tokio::time::timeout(PATIENCE, stderr.read_to_string(&mut text)).await.expect("it ends").unwrap();
        text
    }
}

/// A shell line that notes its process id in `file` and becomes `rest`.
fn noting(file: &Path, rest: &str) -> String {
    format!("echo $$ > '{0}.new' && mv '{0}.new' '{0}' && {rest}", file.display())
}

async fn until<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = probe().await {
            return value;
        }
        assert!(Instant::now() < end, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn noted(file: &Path) -> Pid {
    let text = until("the command runs", async || std::fs::read_to_string(file).ok()).await;
    Pid::from_raw(text.trim().parse().unwrap()).unwrap()
}

/// Whether the process has ended; one that nobody waited for yet has.
fn is_dead(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid()));
    test_kill_process(pid).is_err()
        || stat.map_or(true, |stat| stat.rsplit(')').next().unwrap().starts_with(" Z"))
}

async fn instances(user: &User, service: &str) -> Vec<Value> {
    user.json("instance", &["list", service]).await.as_array().unwrap().clone()
}

/// A view of `service` from a Rust program.
async fn view(server: &CoskyServer, service: &str) -> (Cosky, LiveView) {
    let cosky = Cosky::connect(server.url()).login("cosky", server.password()).await.unwrap();
    let view = cosky.namespace("cosky-{default}").unwrap().discover(service).await.unwrap();
    (cosky, view)
}

/// Waits until `view` holds `count` instances.
async fn holds(view: &mut LiveView, count: usize) {
    tokio::time::timeout(PATIENCE, async {
        while view.snapshot().len() != count {
            view.changed().await;
        }
    })
    .await
    .unwrap_or_else(|_| panic!("the view never held {count} instances"));
}

/// The "real input", in all its ways: seen by the command line, by curl and by a Rust program; gone after a
/// kill within TTL + 1 s with nobody reading, the command dead; gone before the agent exits after a SIGTERM.
#[tokio::test(flavor = "multi_thread")]
async fn c28_a_web_server_is_found_while_it_runs_and_leaves_when_it_dies() {
    let server = server().start().await;
    let user = User::root(&server).await;
    let token = server.token().await;
    let pid_file = user.home().join("pid");
    let command = noting(&pid_file, "exec python3 -m http.server --bind 127.0.0.1 $PORT");
    let options = ["--service", "web", "--port", "0", "--ttl", "3s"];
    let mut agent = Agent::start(&user, &options, &["sh", "-c", &command]);
    let child = noted(&pid_file).await;

    let (_cosky, mut view) = view(&server, "web").await;
    holds(&mut view, 1).await;
    let seen = view.choose().unwrap();
    let listed = instances(&user, "web").await;
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0]["instanceId"], seen.id().as_str());
    assert_eq!((&listed[0]["host"], &listed[0]["schema"]), (&"127.0.0.1".into(), &"http".into()));

    let url = format!("{}/v1/namespaces/cosky-%7Bdefault%7D/services/web/instances", server.url());
    let bearer = format!("Authorization: Bearer {token}");
    let curl =
        tokio::process::Command::new("curl").args(["-sf", "-H", &bearer, &url]).output().await.unwrap();
    let body: Value = serde_json::from_slice(&curl.stdout).unwrap();
    assert_eq!(body[0]["instanceId"], seen.id().as_str());
    let page = until("python serves", async || {
        let page =
            tokio::process::Command::new("curl").args(["-sf", &seen.uri().unwrap()]).output().await.unwrap();
        page.status.success().then_some(page.stdout)
    });
    assert!(String::from_utf8(page.await).unwrap().contains("Directory listing"));

    // Nobody reads from here on: one idle view of the SDK, and one stream as any other language has it.
    let mut stream = follow(&server, &token, "web").await;
    agent.signal(Signal::KILL);
    let killed = Instant::now();
    assert_eq!(agent.wait().await.signal(), Some(9));
    let (gone_from_view, event) = tokio::join!(
        async {
            holds(&mut view, 0).await;
            killed.elapsed()
        },
        async {
            let event = event_of(&mut stream, "expired").await;
            (killed.elapsed(), event)
        }
    );
    // The last beat came at most a period before the kill; the promise counts from the last beat.
    let promised = Duration::from_secs(3 + 1);
    assert!(gone_from_view <= promised, "{gone_from_view:?}");
    assert!(event.0 <= promised, "{:?}", event.0);
    assert!(event.1.contains("web@http#127.0.0.1#"), "{}", event.1);
    assert!(is_dead(child), "the command outlived the agent");
    assert!(view.choose().is_err());
    assert_eq!(user.json("service", &["stats"]).await[0]["instanceCount"], 0);
    assert_eq!(user.json("ns", &["get", "cosky-{default}"]).await["instances"], 0);

    std::fs::remove_file(&pid_file).unwrap();
    let mut agent = Agent::start(&user, &options, &["sh", "-c", &command]);
    let child = noted(&pid_file).await;
    holds(&mut view, 1).await;
    agent.signal(Signal::TERM);
    let status = agent.wait().await;
    assert_eq!(instances(&user, "web").await, Vec::<Value>::new(), "gone before the agent exits");
    assert_eq!(status.code(), Some(128 + 15), "python ended by the signal");
    assert!(is_dead(child));
}

/// Opens a watch as curl does.
async fn follow(server: &CoskyServer, token: &str, service: &str) -> tokio::process::ChildStdout {
    let url = format!("{}/v1/namespaces/cosky-%7Bdefault%7D/watch?service={service}", server.url());
    let mut curl = tokio::process::Command::new("curl")
        .args(["-sN", "--max-time", "60", "-H", &format!("Authorization: Bearer {token}"), &url])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stream = curl.stdout.take().unwrap();
    read_until(&mut stream, "\"services\"").await;
    stream
}

async fn event_of(stream: &mut tokio::process::ChildStdout, op: &str) -> String {
    read_until(stream, &format!("\"op\":\"{op}\"")).await
}

/// Reads until a whole event that contains `word` has come.
async fn read_until(stream: &mut tokio::process::ChildStdout, word: &str) -> String {
    let mut text = String::new();
    let mut buffer = [0; 4096];
    tokio::time::timeout(PATIENCE, async {
        while !text.split_inclusive("\n\n").any(|event| event.contains(word) && event.ends_with("\n\n")) {
            let read = stream.read(&mut buffer).await.unwrap();
            assert!(read > 0, "the stream ended: {text}");
            text.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
        }
    })
    .await
    .unwrap_or_else(|_| panic!("no {word} in {text}"));
    text
}

/// The command hears of the end only after the instance is gone: it asks the registry itself when the signal comes.
#[tokio::test(flavor = "multi_thread")]
async fn c33_the_instance_is_gone_before_the_command_is_told_to_stop() {
    for signal in [Signal::TERM, Signal::INT, Signal::QUIT] {
        let server = server().start().await;
        let user = User::root(&server).await;
        let (ready, answer) = (user.home().join("ready"), user.home().join("answer"));
        let script = format!(
            "trap '{cosky} instance list web -o json > {answer}; exit 7' TERM INT QUIT; touch {ready}; \
             while :; do sleep 0.05; done",
            cosky = crate::user::COSKY,
            answer = answer.display(),
            ready = ready.display(),
        );
        let mut agent = Agent::start(&user, &["--service", "web", "--port", "0"], &["sh", "-c", &script]);
        until("it is registered", async || (instances(&user, "web").await.len() == 1).then_some(())).await;
        until("its trap is set", async || ready.exists().then_some(())).await;
        agent.signal_group(signal);
        assert_eq!(agent.wait().await.code(), Some(7), "the command's own code");
        assert_eq!(std::fs::read_to_string(&answer).unwrap(), "[]\n", "{signal:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_end_is_the_agents_end_and_takes_the_instance_along() {
    let server = server().start().await;
    let user = User::root(&server).await;
    let go = user.home().join("go");
    for (end, code) in [("exit 0", 0), ("exit 42", 42), ("kill -9 $$", 137), ("kill -15 $$", 143)] {
        let script = format!("while [ ! -e {} ]; do sleep 0.05; done; {end}", go.display());
        let mut agent = Agent::start(&user, &["--service", "job", "--port", "1234"], &["sh", "-c", &script]);
        until("it is registered", async || (instances(&user, "job").await.len() == 1).then_some(())).await;
        std::fs::write(&go, "").unwrap();
        assert_eq!(agent.wait().await.code(), Some(code), "{end}");
        assert_eq!(instances(&user, "job").await, Vec::<Value>::new(), "{end}");
        std::fs::remove_file(&go).unwrap();
    }
}

/// What an operator took out stays out: the agent says so and lets the command run.
#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_somebody_deregistered_stays_away() {
    let server = server().start().await;
    let user = User::root(&server).await;
    let pid_file = user.home().join("pid");
    let script = noting(&pid_file, "exec sleep 600");
    let options = ["--service", "web", "--port", "0", "--ttl", "3s"];
    let mut agent = Agent::start(&user, &options, &["sh", "-c", &script]);
    let child = noted(&pid_file).await;
    let found = until("it is registered", async || instances(&user, "web").await.pop()).await;
    user.ok(["instance", "rm", found["instanceId"].as_str().unwrap()]).await;
    let mut log = BufReader::new(agent.child.stderr.take().unwrap()).lines();
    let told = async {
        while !log.next_line().await.unwrap().expect("it runs").contains("somebody deregistered") {}
    };
    tokio::time::timeout(PATIENCE, told).await.expect("the agent says so");
    let end = Instant::now() + Duration::from_secs(4);
    while Instant::now() < end {
        assert_eq!(instances(&user, "web").await, Vec::<Value>::new(), "it came back");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(!is_dead(child));
    agent.signal(Signal::TERM);
    assert_eq!(agent.wait().await.code(), Some(143));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_cannot_start_is_never_registered() {
    let server = server().start().await;
    let user = User::root(&server).await;
    let plain = user.home().join("plain");
    std::fs::write(&plain, "no program").unwrap();
    for (command, code) in
        [("no-such-command", 127), ("./no-such-command", 127), (plain.to_str().unwrap(), 126)]
    {
        let mut agent = Agent::start(&user, &["--service", "web", "--port", "0"], &[command]);
        assert_eq!(agent.wait().await.code(), Some(code), "{command}");
        let said = agent.said().await;
        assert!(said.contains(command), "{said}");
    }
    assert_eq!(user.json("service", &["list"]).await, serde_json::json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn other_signals_are_passed_on_and_change_nothing() {
    let server = server().start().await;
    let user = User::root(&server).await;
    let heard = user.home().join("heard");
    let script = format!(
        "for s in HUP USR1 USR2; do trap \"echo $s >> {0}\" $s; done; touch {0}; while :; do sleep 0.05; done",
        heard.display()
    );
    let mut agent = Agent::start(&user, &["--service", "web", "--port", "0"], &["sh", "-c", &script]);
    until("its traps are set", async || heard.exists().then_some(())).await;
    until("it is registered", async || (instances(&user, "web").await.len() == 1).then_some(())).await;
    for (signal, name) in [(Signal::HUP, "HUP"), (Signal::USR1, "USR1"), (Signal::USR2, "USR2")] {
        agent.signal(signal);
        until(name, async || {
            std::fs::read_to_string(&heard).unwrap().lines().any(|line| line == name).then_some(())
        })
        .await;
    }
    assert_eq!(instances(&user, "web").await.len(), 1);
    agent.signal(Signal::TERM);
    assert_eq!(agent.wait().await.code(), Some(143));
}

/// The command is not held up by a registry that is down, and is found as soon as there is one.
#[tokio::test(flavor = "multi_thread")]
async fn the_command_runs_while_no_server_can_be_reached() {
    let mut first = server().start().await;
    let user = User::root(&first).await;
    // A token of its own: the server's own access tokens last 15 minutes, which is all that this test needs.
    let address: SocketAddr = first.address();
    first.stop().await;
    let pid_file = user.home().join("pid");
    let script = noting(&pid_file, "exec sleep 600");
    let mut agent =
        Agent::start(&user, &["--service", "web", "--port", "0", "--ttl", "3s"], &["sh", "-c", &script]);
    let child = noted(&pid_file).await;
    assert!(!is_dead(child));
    let second = first.successor(true).binary(crate::user::COSKY).start().await;
    assert_eq!(second.address(), address);
    until("it is registered", async || (instances(&user, "web").await.len() == 1).then_some(())).await;
    assert!(!is_dead(child), "it is the same command");
    agent.signal(Signal::TERM);
    assert_eq!(agent.wait().await.code(), Some(143));
}

/// With the registry gone for good the agent still ends, and in time.
#[tokio::test(flavor = "multi_thread")]
async fn c33_the_agent_ends_within_its_limit_without_a_server() {
    let mut server = server().start().await;
    let user = User::root(&server).await;
    let mut agent = Agent::start(&user, &["--service", "web", "--port", "0"], &["sleep", "600"]);
    until("it is registered", async || (instances(&user, "web").await.len() == 1).then_some(())).await;
    // Worse than refused connections: nothing is answered at all.
    server.pause();
    let asked = Instant::now();
    agent.signal(Signal::TERM);
    assert_eq!(agent.wait().await.code(), Some(143));
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    server.resume();
    server.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_gets_its_port_and_the_registry_what_others_are_to_use() {
    let server = server().start().await;
    let user = User::root(&server).await;
    let file: PathBuf = user.home().join("variables");
    let script = format!("env > '{0}.new' && mv '{0}.new' '{0}' && exec sleep 600", file.display());
    let options = [
        "--service",
        "web",
        "--port",
        "4567",
        "--advertise-port",
        "30080",
        "--host",
        "web.example.org",
        "--schema",
        "https",
        "--weight",
        "7",
        "--metadata",
        "zone=z1",
        "--metadata",
        "a=b=c",
    ];
    let mut agent = Agent::start(&user, &options, &["sh", "-c", &script]);
    let variables = until("the command runs", async || std::fs::read_to_string(&file).ok()).await;
    for line in ["PORT=4567", "COSKY_SERVICE=web", "COSKY_NAMESPACE=cosky-{default}"] {
        assert!(variables.lines().any(|said| said == line), "{line} in {variables}");
    }
    let found = until("it is registered", async || instances(&user, "web").await.pop()).await;
    assert_eq!(found["instanceId"], "web@https#web.example.org#30080");
    assert_eq!((&found["weight"], &found["metadata"]["zone"]), (&7.into(), &"z1".into()));
    assert_eq!(found["metadata"]["a"], "b=c");
    agent.signal(Signal::TERM);
    agent.wait().await;
}

/// A TTL that leaves no room for beats is refused before anything starts, and the shortest that is taken never flickers.
#[tokio::test(flavor = "multi_thread")]
async fn c27_no_ttl_makes_an_instance_flicker() {
    let server = server().start().await;
    let user = User::root(&server).await;
    let pid_file = user.home().join("pid");
    let script = noting(&pid_file, "exec sleep 600");
    for ttl in ["0", "-1", "0s", "-1s", "1500ms", "2s", "25h", "x"] {
        let options = ["--service", "web", "--port", "0", "--ttl", ttl];
        let mut agent = Agent::start(&user, &options, &["sh", "-c", &script]);
        assert_eq!(agent.wait().await.code(), Some(2), "{ttl}");
        let said = agent.said().await;
        assert!(said.contains("--ttl"), "{said}");
        assert!(!pid_file.exists(), "{ttl}: nothing may start");
    }
    let (_cosky, mut view) = view(&server, "web").await;
    let options = ["--service", "web", "--port", "0", "--ttl", "3s"];
    let mut agent = Agent::start(&user, &options, &["sleep", "600"]);
    holds(&mut view, 1).await;
    let end = Instant::now() + Duration::from_secs(5 * 3);
    while Instant::now() < end {
        assert_eq!(view.snapshot().len(), 1);
        assert_eq!(instances(&user, "web").await.len(), 1);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    agent.signal(Signal::TERM);
    agent.wait().await;
}

/// With `cosky login` instead of a token, an agent outlives many access tokens.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_lives_longer_than_its_login() {
    let server = server().args(["--access-token-ttl", "2s"]).start().await;
    let user = User::of(server.url());
    let login = crate::user::finish(&mut user.command(["login"]), server.password()).await;
    assert_eq!(login.code, Some(0), "{login:?}");
    let (_cosky, mut view) = view(&server, "web").await;
    let options = ["--service", "web", "--port", "0", "--ttl", "3s"];
    let mut agent = Agent::start(&user, &options, &["sleep", "600"]);
    holds(&mut view, 1).await;
    let end = tokio::time::sleep(Duration::from_secs(10));
    tokio::pin!(end);
    loop {
        tokio::select! {
            () = &mut end => break,
            list = view.changed() => assert_eq!(list.len(), 1, "it was absent"),
        }
    }
    agent.signal(Signal::TERM);
    assert_eq!(agent.wait().await.code(), Some(143));
    holds(&mut view, 0).await;
}

/// A web server that, told to stop, serves for another second: what an application's drain looks like.
const DRAINING: &str = "
import http.server, os, signal, sys, threading
address = (sys.argv[1], int(os.environ['PORT']))
server = http.server.ThreadingHTTPServer(address, http.server.SimpleHTTPRequestHandler)
signal.signal(signal.SIGTERM, lambda *_: threading.Timer(1, lambda: os._exit(0)).start())
server.serve_forever()
";

/// Five instances are replaced one by one by five at new addresses, half of the old ones ended, half of them killed. A
/// client chooses and connects all the while.
#[tokio::test(flavor = "multi_thread")]
async fn c32_a_rolling_update_to_new_addresses_fails_nobody_but_for_a_crash() {
    let server = server().start().await;
    let user = User::root(&server).await;
    let start = |host: &str| {
        let options = ["--service", "web", "--port", "0", "--ttl", "3s", "--host", host];
        Agent::start(&user, &options, &["python3", "-c", DRAINING, host])
    };
    let mut old: Vec<(String, Agent)> =
        (2..=6).map(|n| format!("127.0.0.{n}")).map(|host| (host.clone(), start(&host))).collect();
    let (_cosky, mut view) = view(&server, "web").await;
    holds(&mut view, 5).await;

    // Who was connected to, when it was chosen, and whether it worked.
    let attempts = Arc::new(Mutex::new(Vec::<(String, Instant, bool)>::new()));
    let client = tokio::spawn({
        let (attempts, mut reader) = (attempts.clone(), view.reader());
        async move {
            let mut tick = tokio::time::interval(Duration::from_millis(10));
            loop {
                tick.tick().await;
                let at = Instant::now();
                let chosen = reader.choose().expect("there is always one to choose").clone();
                let host = chosen.host().as_str().to_owned();
                let port = u16::try_from(chosen.port().get()).unwrap();
                let connected = TcpStream::connect((host.as_str(), port)).await.is_ok();
                attempts.lock().unwrap().push((host, at, connected));
            }
        }
    });
    // Registered at once, an instance may be found a moment before it listens.
    let serves = async |host: &str| {
        let served = async || {
            let attempts = attempts.lock().unwrap();
            attempts.iter().any(|(to, _, connected)| to == host && *connected).then_some(())
        };
        until("the instance serves", served).await;
    };
    for (host, _) in &old {
        serves(host).await;
    }
    let mut new = Vec::new();
    let mut killed = BTreeMap::new();
    for (n, (host, mut agent)) in old.drain(..).enumerate() {
        let successor = format!("127.0.0.{}", 12 + n);
        new.push((successor.clone(), start(&successor)));
        serves(&successor).await;
        if n % 2 == 0 {
            agent.signal(Signal::TERM);
            assert_eq!(agent.wait().await.code(), Some(0), "{host}");
        } else {
            killed.insert(host, Instant::now());
            agent.signal(Signal::KILL);
            agent.wait().await;
        }
    }
    holds(&mut view, 5).await;
    client.abort();
    assert!(client.await.is_err_and(|end| end.is_cancelled()), "the client had always somebody to choose");

    let found: BTreeSet<String> = view.snapshot().iter().map(|one| one.host().as_str().to_owned()).collect();
    assert_eq!(found, new.iter().map(|(host, _)| host.clone()).collect(), "the new addresses and no other");
    let mut up = BTreeSet::new();
    for (host, at, connected) in attempts.lock().unwrap().iter() {
        if *connected {
            up.insert(host.clone());
        } else if up.contains(host) {
            let since = killed.get(host).map(|killed| at.saturating_duration_since(*killed));
            assert!(
                since.is_some_and(|since| since <= Duration::from_secs(4)),
                "{host} failed, killed {since:?} ago"
            );
        }
    }
    for (_, agent) in &mut new {
        agent.signal(Signal::TERM);
        agent.wait().await;
    }
}
