//! How the tests run the built binary as a client.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::Duration,
};

use cosky_testkit::process::{CoskyServer, ServerOptions};
use tempfile::TempDir;
use tokio::{io::AsyncWriteExt as _, process::Command};

/// The built binary.
pub(crate) const COSKY: &str = env!("CARGO_BIN_EXE_cosky");
/// How long anything may take before the test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A user of the command line: a home of its own and no other COSKY_ variable.
pub(crate) struct User {
    home: TempDir,
    addr: String,
    token_file: Option<PathBuf>,
}

/// What a call gave.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// A server that the tests start.
pub(crate) fn server() -> ServerOptions {
    ServerOptions::default().binary(COSKY)
}

impl User {
    /// Of a server at `addr`, without a credential.
    pub(crate) fn of(addr: &str) -> Self {
        Self { home: tempfile::tempdir().unwrap(), addr: addr.to_owned(), token_file: None }
    }

    /// Of a running server, with root's access token in a file.
    pub(crate) async fn root(server: &CoskyServer) -> Self {
        let mut user = Self::of(server.url());
        let file = user.home.path().join("token");
        std::fs::write(&file, server.token().await).unwrap();
        user.token_file = Some(file);
        user
    }

    /// Its home directory.
    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    /// A call that has not begun.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        self.program(COSKY, args)
    }

    /// A call of another program that may call cosky.
    pub(crate) fn program<S: AsRef<OsStr>>(&self, name: &str, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(name);
        command
            .args(args)
            .kill_on_drop(true)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("COSKY_"))
        {
            command.env_remove(name);
        }
        command.env_remove("XDG_CONFIG_HOME").env("HOME", self.home()).env("COSKY_ADDR", &self.addr);
        if let Some(file) = &self.token_file {
            command.env("COSKY_TOKEN_FILE", file);
        }
        command
    }

    /// Runs a call to its end.
    pub(crate) async fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Said {
        finish(&mut self.command(args), "").await
    }

    /// Runs a call that must succeed and gives what it printed.
    pub(crate) async fn ok<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> String {
        let said = self.run(args).await;
        assert_eq!(said.code, Some(0), "{said:?}");
        said.out
    }

    /// As [`User::ok`], with JSON asked for right behind the verb, since arguments may end with `--` and ids.
    pub(crate) async fn json(&self, group: &str, args: &[&str]) -> serde_json::Value {
        let out = self.ok([&[group, "-o", "json"], args].concat()).await;
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
    }
}

/// Runs `command` to its end with `input` as its standard input.
pub(crate) async fn finish(command: &mut Command, input: &str) -> Said {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = tokio::spawn(async move {
        // A program that does not read its input may close it.
        let _ = stdin.write_all(input.as_bytes()).await;
    });
    let Output { status, stdout, stderr } = tokio::time::timeout(PATIENCE, child.wait_with_output())
        .await
        .expect("the call ends in time")
        .unwrap();
    writer.await.unwrap();
    Said {
        code: status.code(),
        out: String::from_utf8(stdout).unwrap(),
        err: String::from_utf8(stderr).unwrap(),
    }
}
