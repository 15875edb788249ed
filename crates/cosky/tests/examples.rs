//! The examples, as the processes that a reader of them starts.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use cosky_testkit::process::{CoskyServer, ServerOptions, example_binary};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    sync::watch,
    time::timeout,
};

/// How long a test waits for what must come on a machine that does other work as well.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running example. Killed when it is dropped.
struct Program {
    child: Child,
    lines: watch::Receiver<Vec<String>>,
}

/// The two programs, and what they need to reach the server.
struct Stage {
    server: CoskyServer,
    service: PathBuf,
    caller: PathBuf,
    password: tempfile::NamedTempFile,
}

/// What the caller said last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tally {
    calls: u64,
    repeated: u64,
    failed: u64,
}

impl Stage {
    async fn set() -> Self {
        let server = ServerOptions::default().args(["--instance-ttl", "3s"]).start().await;
        let password = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(password.path(), server.password()).unwrap();
        let build = |name| tokio::task::spawn_blocking(move || example_binary("cosky", name));
        let service = build("axum_service").await.unwrap();
        let caller = build("reqwest_caller").await.unwrap();
        Self { server, service, caller, password }
    }

    /// A service that others find.
    async fn service(&self) -> Program {
        let service = self.play(&self.service);
        service.says("it is registered", |line| line.contains(" at 127.0.0.1:")).await;
        service
    }

    fn play(&self, program: &Path) -> Program {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("COSKY_"))
        {
            command.env_remove(name);
        }
        command.arg("stock").env("COSKY_ADDR", self.server.url()).env("COSKY_NAMESPACE", "shop-{eu}");
        command.env("COSKY_USER", "cosky").env("COSKY_PASSWORD_FILE", self.password.path());
        let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
        let (told, lines) = watch::channel(Vec::new());
        tokio::spawn(async move {
            while let Ok(Some(line)) = out.next_line().await {
                told.send_modify(|lines| lines.push(line));
            }
        });
        Program { child, lines }
    }
}

impl Program {
    /// Waits for a line.
    async fn says(&self, what: &str, is: impl Fn(&str) -> bool) {
        let mut lines = self.lines.clone();
        let said = timeout(PATIENCE, lines.wait_for(|lines| lines.iter().any(|line| is(line)))).await;
        assert!(said.is_ok_and(|said| said.is_ok()), "{what}: {:?}", self.lines.borrow());
    }

    fn signal(&self, signal: Signal) {
        let id = self.child.id().expect("it has not ended");
        kill_process(Pid::from_raw(id.cast_signed()).unwrap(), signal).unwrap();
    }

    async fn ended(&mut self) -> ExitStatus {
        timeout(PATIENCE, self.child.wait()).await.expect("it ends").unwrap()
    }

    fn tally(&self) -> Option<Tally> {
        self.lines.borrow().iter().rev().find_map(|line| tally(line))
    }

    /// Waits until the caller made so many more calls.
    async fn calls(&self, more: u64) -> Tally {
        let goal = self.tally().map_or(0, |before| before.calls) + more;
        self.says("it calls", |line| tally(line).is_some_and(|tally| tally.calls >= goal)).await;
        self.tally().unwrap()
    }
}

fn tally(line: &str) -> Option<Tally> {
    let mut numbers =
        line.strip_suffix(" failed")?.split(", ").map(|part| part.split(' ').next()?.parse().ok());
    Some(Tally { calls: numbers.next()??, repeated: numbers.next()??, failed: numbers.next()?? })
}

/// Three services come and go while a caller calls a hundred times a second: one is told to end, one is killed, and no
/// call fails. The one that leaves in good order costs no repetition either.
#[tokio::test(flavor = "multi_thread")]
async fn no_call_fails_while_services_end_and_die() {
    let stage = Stage::set().await;
    let mut leaving = stage.service().await;
    let mut dying = stage.service().await;
    let _staying = stage.service().await;
    let mut caller = stage.play(&stage.caller);
    let before = caller.calls(100).await;
    assert_eq!((before.repeated, before.failed), (0, 0), "all of them serve");

    leaving.signal(Signal::TERM);
    assert!(leaving.ended().await.success());
    leaving.says("it ended in good order", |line| line == "ended").await;
    let after = caller.calls(100).await;
    assert_eq!((after.repeated, after.failed), (0, 0), "nobody called it any more when it ended");

    dying.signal(Signal::KILL);
    dying.ended().await;
    // It is found for a TTL and a second, and every second call goes there first.
    let after = caller.calls(200).await;
    assert!(after.repeated > 0, "{after:?}");
    let late = stage.service().await;
    let after = caller.calls(500).await;
    assert_eq!(after.failed, 0, "{after:?}");
    drop(late);

    caller.signal(Signal::TERM);
    assert!(caller.ended().await.success());
    let last = caller.tally().unwrap();
    assert_eq!(last.failed, 0, "{last:?}");
}

/// A service says of itself how it stands: 200 while it serves, 503 as soon as it leaves.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_leaves_tells_its_health() {
    let stage = Stage::set().await;
    let mut service = stage.service().await;
    let address = service.lines.borrow()[0].rsplit(' ').next().unwrap().to_owned();
    let health = async || {
        let answer = reqwest::get(format!("http://{address}/health")).await.unwrap();
        (answer.status().as_u16(), answer.json::<serde_json::Value>().await.unwrap()["status"].clone())
    };
    assert_eq!(health().await, (200, "UP".into()));
    service.signal(Signal::TERM);
    let down = async {
        while health().await != (503, "DOWN".into()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, down).await.expect("it tells that it leaves, and still serves");
    assert!(service.ended().await.success());
}
