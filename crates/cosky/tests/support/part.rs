//! Processes of the program `part` (`tests/part/part.rs`), and what they tell.

use std::{
    fs::File,
    io::Read as _,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use cosky_testkit::process::{CoskyServer, example_binary};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    sync::watch,
    time::timeout,
};
use tokio_util::task::AbortOnDropHandle;

use super::{NS, PATIENCE};

/// A line, and when it came.
pub(crate) type Told = (Instant, String);

/// A process. Killed when it is dropped.
pub(crate) struct Part {
    child: Child,
    log: PathBuf,
    lines: watch::Receiver<Vec<Told>>,
    _reader: AbortOnDropHandle<()>,
}

/// How to start one.
pub(crate) struct Play {
    command: Command,
    log: PathBuf,
}

/// Holds what the parts of this test write, and what they read.
fn files() -> &'static Path {
    static FILES: OnceLock<TempDir> = OnceLock::new();
    FILES.get_or_init(|| tempfile::tempdir().unwrap()).path()
}

impl Play {
    /// A part before the server at `address`, which asks for no credential.
    pub(crate) fn new(address: impl AsRef<str>, arguments: &[&str]) -> Self {
        static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let program = PROGRAM.get_or_init(|| example_binary("cosky", "part"));
        let log = files().join(format!("part-{}.log", COUNT.fetch_add(1, Ordering::Relaxed)));
        let mut command = Command::new(program);
        command.args(arguments).env("COSKY_ADDR", address.as_ref()).env("COSKY_NAMESPACE", NS);
        Self { command, log }
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Logs in as the root user of `server`.
    pub(crate) fn login(mut self, server: &CoskyServer) -> Self {
        let file = self.log.with_extension("password");
        std::fs::write(&file, server.password()).unwrap();
        self.command.env("COSKY_USER", "cosky").env("COSKY_PASSWORD_FILE", file);
        self
    }

    /// With a wall clock that is wrong by so many seconds, or that steps (`"step"`).
    pub(crate) fn clock(mut self, wrong: &str) -> Self {
        static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
        let library = LIBRARY.get_or_init(|| {
            let library = files().join("clock.so");
            let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/part/clock.c");
            let mut cc = std::process::Command::new("cc");
            cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source);
            assert!(cc.status().unwrap().success(), "the C compiler that links this test takes clock.c");
            library
        });
        self.command.env("LD_PRELOAD", library).env("COSKY_TEST_CLOCK", wrong);
        self
    }

    pub(crate) fn start(mut self) -> Part {
        self.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&self.log).unwrap());
        let mut child = self.command.kill_on_drop(true).spawn().unwrap();
        let (told, lines) = watch::channel(Vec::new());
        let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
        let reader = async move {
            while let Ok(Some(line)) = out.next_line().await {
                told.send_modify(|lines| lines.push((Instant::now(), line)));
            }
        };
        let reader = AbortOnDropHandle::new(tokio::spawn(reader));
        Part { child, log: self.log, lines, _reader: reader }
    }
}

impl Part {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id().expect("it has not ended")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid().cast_signed()).unwrap(), signal).unwrap();
    }

    pub(crate) async fn ended(&mut self) -> ExitStatus {
        timeout(PATIENCE, self.child.wait()).await.expect("the part ends").unwrap()
    }

    /// Whether it goes on, under its own process id.
    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// What it logged.
    pub(crate) fn log(&self) -> String {
        let mut text = String::new();
        File::open(&self.log).unwrap().read_to_string(&mut text).unwrap();
        text
    }

    /// What it told of `topic` so far, without the topic.
    pub(crate) fn told(&self, topic: &str) -> Vec<Told> {
        let of = |(at, line): &Told| line.strip_prefix(topic).map(|rest| (*at, rest.trim().to_owned()));
        self.lines.borrow().iter().filter_map(of).collect()
    }

    /// The last of what it told of `topic`.
    pub(crate) fn last(&self, topic: &str) -> Option<Told> {
        self.told(topic).pop()
    }

    /// Waits until what it told last of `topic` is what is wanted, and says when that came.
    pub(crate) async fn tells(&self, topic: &str, limit: Duration, wanted: impl Fn(&str) -> bool) -> Instant {
        let mut lines = self.lines.clone();
        let came = lines.wait_for(|lines| {
            let last = lines.iter().rev().find_map(|(_, line)| line.strip_prefix(topic));
            last.is_some_and(|line| wanted(line.trim()))
        });
        let came = timeout(limit, came).await.map(|came| came.is_ok());
        let last = self.last(topic);
        assert!(
            came == Ok(true),
            "not told within {limit:?}; {topic} was last {last:?}; the log:\n{}",
            self.log()
        );
        last.expect("it was told").0
    }
}

/// A part that serves.
pub(crate) struct Provider {
    pub(crate) part: Part,
    pub(crate) address: SocketAddr,
}

impl Provider {
    /// On a free port of `host`, registered.
    pub(crate) async fn start(registry: &str, host: Ipv4Addr) -> Self {
        Self::play(Play::new(registry, &["provider", &host.to_string(), "0", "4"]), host).await
    }

    /// As told, on `host`.
    pub(crate) async fn play(play: Play, host: Ipv4Addr) -> Self {
        let part = play.start();
        part.tells("port", PATIENCE, |_| true).await;
        let port: u16 = part.last("port").unwrap().1.parse().unwrap();
        Self { part, address: (host, port).into() }
    }
}
