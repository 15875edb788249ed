//! The built `cosky` binary as a server that ends with the test.

use std::{
    ffi::{OsStr, OsString},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use cosky_core::{
    account::ROOT,
    wire::{LoginBody, TokenPair},
};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    process::{Child, Command},
    sync::watch,
};

/// The password of the root user of every server that is started here without another one.
pub const PASSWORD: &str = "a-password-for-tests-only";

/// How long a server may take to start or to stop before the test fails.
const PATIENCE: Duration = Duration::from_secs(30);
/// Lines of a server's output that are kept.
const LOG_LINES: usize = 20_000;

/// A running `cosky serve`. Killed when it is dropped.
#[derive(Debug)]
pub struct CoskyServer {
    child: Child,
    pid: Pid,
    url: String,
    address: SocketAddr,
    password: String,
    data_dir: PathBuf,
    temporary: Option<Arc<TempDir>>,
    log: Log,
    client: reqwest::Client,
}

/// How to start a server.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    binary: Option<PathBuf>,
    data_dir: Option<PathBuf>,
    temporary: Option<Arc<TempDir>>,
    password: Option<String>,
    listen: String,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
}

/// A server that ended before it was ready.
#[derive(Debug)]
pub struct StartFailure {
    /// How it ended.
    pub status: ExitStatus,
    /// All that it printed.
    pub log: String,
}

/// What a server printed so far, and the address in it.
#[derive(Debug, Clone)]
struct Log {
    lines: Arc<Mutex<Vec<String>>>,
    address: watch::Sender<Option<SocketAddr>>,
}

/// The path of the built `cosky` binary: the one that cargo names to the tests of its own crate, or else built now,
/// once per test process.
///
/// # Panics
/// When it cannot be built.
pub fn cosky_binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        std::env::var_os("CARGO_BIN_EXE_cosky")
            .map_or_else(|| build("cosky-cli", &["--bin", "cosky"], "cosky"), PathBuf::from)
    })
}

/// The path of an example of `package`, built now. Tests that need processes of their own start it.
///
/// # Panics
/// When it cannot be built.
pub fn example_binary(package: &str, name: &str) -> PathBuf {
    build(package, &["--example", name], name)
}

fn build(package: &str, target: &[&str], name: &str) -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = std::process::Command::new(cargo)
        .args(["build", "--quiet", "--message-format", "json", "-p", package])
        .args(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo starts, since it started this test");
    assert!(built.status.success(), "{name} of {package} does not build");
    String::from_utf8_lossy(&built.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == name && message["executable"].is_string())
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .expect("cargo names the executable that it built")
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            binary: None,
            data_dir: None,
            temporary: None,
            password: Some(PASSWORD.to_owned()),
            listen: "127.0.0.1:0".to_owned(),
            args: Vec::new(),
            env: Vec::new(),
        }
    }
}

impl ServerOptions {
    /// Starts this binary instead of the one that [`cosky_binary`] finds.
    #[must_use]
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.binary = Some(path.into());
        self
    }

    /// Uses this data directory, which stays when the server is dropped; without one it gets a temporary one.
    #[must_use]
    pub fn data_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.data_dir = Some(path.into());
        self
    }

    /// Sets the root user's password; with `None` the server makes one and prints it.
    #[must_use]
    pub fn password(mut self, password: Option<&str>) -> Self {
        self.password = password.map(str::to_owned);
        self
    }

    /// Listens here instead of on a free port of 127.0.0.1.
    #[must_use]
    pub fn listen(mut self, address: &str) -> Self {
        address.clone_into(&mut self.listen);
        self
    }

    /// Adds an argument to `cosky serve`.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments to `cosky serve`.
    #[must_use]
    pub fn args<S: AsRef<OsStr>>(self, args: impl IntoIterator<Item = S>) -> Self {
        args.into_iter().fold(self, Self::arg)
    }

    /// Sets a variable of the server's environment.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Starts the server and waits until it is ready.
    ///
    /// # Panics
    /// With the server's output, when it does not get ready.
    pub async fn start(self) -> CoskyServer {
        match self.try_start().await {
            Ok(server) => server,
            Err(failure) => panic!("cosky serve ended with {}:\n{}", failure.status, failure.log),
        }
    }

    /// As [`start`](Self::start), for tests of what keeps a server from starting.
    ///
    /// # Errors
    /// When the server ends before it is ready.
    ///
    /// # Panics
    /// With the server's output, when it is neither ready nor ended within half a minute.
    pub async fn try_start(self) -> Result<CoskyServer, StartFailure> {
        let (data_dir, temporary) = match (self.data_dir, self.temporary) {
            (Some(dir), temporary) => (dir, temporary),
            (None, _) => {
                let dir = Arc::new(tempfile::tempdir().expect("the temporary directory takes a directory"));
                (dir.path().join("data"), Some(dir))
            }
        };
        let binary = match self.binary {
            Some(path) => path,
            None => tokio::task::spawn_blocking(cosky_binary).await.expect("cosky builds").to_owned(),
        };
        let mut command = Command::new(binary);
        command.arg("serve").args(["--listen", &self.listen]).arg("--data-dir").arg(&data_dir);
        command.args(self.args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("COSKY_"))
        {
            command.env_remove(name);
        }
        if let Some(password) = &self.password {
            command.env("COSKY_ROOT_PASSWORD", password);
        }
        let mut child = command.envs(self.env).kill_on_drop(true).spawn().expect("the binary can be started");
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed())).expect("it has not been reaped");
        let log = Log::default();
        let readers = [
            log.follow(child.stdout.take().expect("piped")),
            log.follow(child.stderr.take().expect("piped")),
        ];

        let mut address = log.address.subscribe();
        let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().expect("a plain client");
        let ready = async {
            let address = *address.wait_for(Option::is_some).await.expect("the log lives as long as this");
            let address = address.expect("waited for");
            let url = format!("http://{address}");
            while !client.get(format!("{url}/readyz")).send().await.is_ok_and(|a| a.status().is_success()) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            (url, address)
        };
        let outcome = tokio::time::timeout(PATIENCE, async {
            tokio::select! {
                ready = ready => Ok(ready),
                status = child.wait() => Err(status.expect("a child can be waited for")),
            }
        });
        match outcome.await {
            Ok(Ok((url, address))) => Ok(CoskyServer {
                child,
                pid,
                url,
                address,
                password: self.password.unwrap_or_default(),
                data_dir,
                temporary,
                log,
                client,
            }),
            Ok(Err(status)) => {
                for reader in readers {
                    // A grandchild may hold the pipe open; what the server itself said is there by then.
                    let _ = tokio::time::timeout(Duration::from_secs(1), reader).await;
                }
                Err(StartFailure { status, log: log.text() })
            }
            Err(_) => panic!("cosky serve is not ready after {PATIENCE:?}:\n{}", log.text()),
        }
    }
}

impl CoskyServer {
    /// A server on a free port with an empty data directory.
    ///
    /// # Panics
    /// With the server's output, when it does not get ready.
    pub async fn start() -> Self {
        ServerOptions::default().start().await
    }

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_pid().cast_unsigned()
    }

    /// Where its data is.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// All that it printed so far.
    pub fn log(&self) -> String {
        self.log.text()
    }

    /// The root user's password.
    pub fn password(&self) -> &str {
        &self.password
    }

    /// Logs the root user in.
    ///
    /// # Panics
    /// When the server refuses, with its words.
    pub async fn login(&self) -> TokenPair {
        let body = LoginBody { password: self.password.clone() };
        let request = self.client.post(format!("{}/v1/authenticate/{ROOT}/login", self.url)).json(&body);
        let answer = request.send().await.expect("the server answers");
        let status = answer.status();
        let text = answer.text().await.expect("the server finishes its answer");
        assert!(status.is_success(), "the login is answered {status}: {text}");
        serde_json::from_str(&text).expect("a login is answered with two tokens")
    }

    /// A fresh access token of the root user.
    ///
    /// # Panics
    /// As [`login`](Self::login).
    pub async fn token(&self) -> String {
        self.login().await.access_token
    }

    /// Stops it where it stands (`SIGSTOP`): connections stay open and nothing is answered.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on (`SIGCONT`).
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Asks it to end (`SIGTERM`) and does not wait.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Waits until it has ended by itself.
    ///
    /// # Panics
    /// When that takes longer than half a minute.
    pub async fn wait(&mut self) -> ExitStatus {
        match tokio::time::timeout(PATIENCE, self.child.wait()).await {
            Ok(status) => status.expect("a child can be waited for"),
            Err(_) => panic!("cosky serve does not end:\n{}", self.log()),
        }
    }

    /// Ends it as an operator does (`SIGTERM`) and waits.
    ///
    /// # Panics
    /// When that takes longer than half a minute.
    pub async fn stop(&mut self) -> ExitStatus {
        self.terminate();
        self.wait().await
    }

    /// Ends it as a crash does (`SIGKILL`) and waits until it is gone.
    pub async fn kill(&mut self) {
        self.child.kill().await.expect("one's own child can be killed");
    }

    /// Options that start a server on the same data directory with the same password, once this one has ended. With
    /// `same_port`, where clients of this one look for it.
    pub fn successor(&self, same_port: bool) -> ServerOptions {
        let options = ServerOptions {
            temporary: self.temporary.clone(),
            password: Some(self.password.clone()),
            ..ServerOptions::default()
        };
        let options = options.data_dir(&self.data_dir);
        if same_port { options.listen(&self.address.to_string()) } else { options }
    }

    fn signal(&self, signal: Signal) {
        // After it was reaped its id may be another process's.
        if self.child.id().is_some() {
            kill_process(self.pid, signal).expect("one's own child takes signals");
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { lines: Arc::default(), address: watch::Sender::new(None) }
    }
}

impl Log {
    /// Keeps what comes out of `output` until it ends.
    fn follow(&self, output: impl AsyncRead + Send + Unpin + 'static) -> tokio::task::JoinHandle<()> {
        let log = self.clone();
        tokio::spawn(async move {
            let mut lines = BufReader::new(output).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                if let Some(found) = address(&line) {
                    log.address.send_if_modified(|known| known.is_none() && known.replace(found).is_none());
                }
                let mut kept = log.lines.lock().unwrap_or_else(PoisonError::into_inner);
                if kept.len() < LOG_LINES {
                    kept.push(line);
                }
            }
        })
    }

    fn text(&self) -> String {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).join("\n")
    }
}

/// The address in the line that tells where the server listens.
fn address(line: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once("http://")?;
    let end = rest.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | ':'))).unwrap_or(rest.len());
    rest[..end].trim_end_matches(['.', ':']).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_a_line() {
        let expected = Some("127.0.0.1:8080".parse().unwrap());
        for line in [
            "http://127.0.0.1:8080",
            "INFO cosky: listening on http://127.0.0.1:8080.",
            "{\"address\":\"http://127.0.0.1:8080/\"}",
            "\u{1b}[2mhttp://127.0.0.1:8080\u{1b}[0m",
        ] {
            assert_eq!(address(line), expected, "{line}");
        }
        assert_eq!(address("see http://example.org"), None);
    }
}
