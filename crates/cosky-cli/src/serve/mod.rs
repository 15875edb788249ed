//! `cosky serve` and `cosky reset-root`: the server's process around the server's library.

mod settings;

use std::{fs, path::Path, sync::Arc};

use anyhow::Context as _;
use clap::Args;
use cosky_core::{Store, account::ROOT};
use cosky_embedded::{Embedded, Options};
use rustix::{
    fs::Mode,
    process::{Resource, Rlimit, getrlimit, setrlimit, umask},
};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

pub(crate) use self::settings::{ROOT_PASSWORD, ServeArgs};
use self::settings::{Settings, StoreArgs};
use crate::{
    exit::usage,
    logging::{self, LogFormat},
    output::{print, say},
};

/// Give root a new password, print it once, and end root's sessions
#[derive(Debug, Args)]
pub(crate) struct ResetRootArgs {
    #[command(flatten)]
    store: StoreArgs,
}

/// Runs a server until SIGTERM or SIGINT, then drains it. A second one of them ends it at once.
pub(crate) fn serve(args: ServeArgs) -> anyhow::Result<()> {
    let print_config = args.print_config;
    let settings = Settings::resolve(args, root_password()?)?;
    if print_config {
        return print(&settings.to_toml());
    }
    logging::start(&settings.log, settings.log_format)?;
    keep_private();
    raise_file_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(run(settings))
}

async fn run(settings: Settings) -> anyhow::Result<()> {
    // Taken over first: a signal during a slow start must not end the process halfway.
    let shutdown = shutdown()?;
    let store = open(&settings.data_dir, &settings).await?;
    let result = serve_on(&settings, store.clone(), shutdown).await;
    store.close().await;
    result
}

async fn serve_on(
    settings: &Settings,
    store: Arc<dyn Store>,
    shutdown: impl Future<Output = ()> + Send,
) -> anyhow::Result<()> {
    let listen = settings.listen;
    let listener =
        TcpListener::bind(listen).await.with_context(|| format!("cannot listen on {listen} (--listen)"))?;
    let address = listener.local_addr()?;
    let mut banner = format!(
        "cosky {} listening on http://{address}\n  data   {}\n",
        env!("CARGO_PKG_VERSION"),
        settings.data_dir.display()
    );
    banner.push_str(&if settings.auth {
        format!("  login  cosky login --addr http://{address} --user {ROOT}\n")
    } else {
        "  login  none: --no-auth lets everybody on this machine do everything\n".to_owned()
    });
    // Whoever started the server may not read what it says; it serves all the same.
    let _ = print(&banner);
    let announce = match settings.log_format {
        LogFormat::Text => show_password,
        LogFormat::Json => log_password,
    };
    let config = cosky_server::Config { announce, ..settings.server() };
    cosky_server::serve(config, store, listener, shutdown).await?;
    Ok(())
}

/// Makes a new password for root in a store that no server holds.
pub(crate) fn reset_root(args: ResetRootArgs) -> anyhow::Result<()> {
    let data_dir = args.store.data_dir()?;
    // Opening would make a store where there is none, with a password for nobody.
    if !fs::read_dir(&data_dir).is_ok_and(|mut files| files.next().is_some()) {
        return Err(usage(format!("there is no store in {} (--data-dir)", data_dir.display())));
    }
    keep_private();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let opened = Embedded::open(Options::new(&data_dir)).await;
        let store: Arc<dyn Store> = Arc::new(opened.context("the password was not changed")?);
        let result = cosky_server::reset_root(&store).await;
        store.close().await;
        let password = result.context("the password was not changed")?;
        say(format_args!("root's new password, not shown again; all of root's logins have ended:"));
        print(&format!("{password}\n"))
    })
}

async fn open(data_dir: &Path, settings: &Settings) -> anyhow::Result<Arc<dyn Store>> {
    let mut options = Options::new(data_dir);
    options.default_ttl = settings.instance_ttl;
    Ok(Arc::new(Embedded::open(options).await?))
}

/// The password for the first start, from the environment.
fn root_password() -> anyhow::Result<Option<String>> {
    match std::env::var(ROOT_PASSWORD) {
        Ok(password) => Ok(Some(password)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => Err(usage(format!("{ROOT_PASSWORD} must be UTF-8"))),
    }
}

/// The password that was made at the first start, where lines are JSON.
fn log_password(password: &str) {
    let line = serde_json::json!({
        "level": "WARN", "message": "the root account was made; its password is not shown again",
        "user": ROOT, "password": password,
    });
    say(format_args!("{line}"));
}

/// The same for people.
fn show_password(password: &str) {
    let lines = [
        "The root account was made. Its password is not shown again:".to_owned(),
        String::new(),
        format!("    user      {ROOT}"),
        format!("    password  {password}"),
        String::new(),
        "Lost it? Stop the server and run: cosky reset-root".to_owned(),
    ];
    let width = lines.iter().map(|line| line.chars().count()).max().unwrap_or_default();
    let edge = "─".repeat(width + 2);
    let body: String = lines.iter().map(|line| format!("│ {line:<width$} │\n")).collect();
    say(format_args!("┌{edge}┐\n{body}└{edge}┘"));
}

/// Resolves at the first SIGTERM or SIGINT; the second one ends the process, for an operator who does not want to wait.
/// SIGHUP is ignored: there is nothing to read again, and a closed terminal is no reason to stop.
fn shutdown() -> anyhow::Result<impl Future<Output = ()> + Send> {
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let mut hup = signal(SignalKind::hangup())?;
    let (begin, begun) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let mut begin = Some(begin);
        loop {
            let name = tokio::select! {
                _ = term.recv() => "SIGTERM",
                _ = int.recv() => "SIGINT",
                _ = hup.recv() => continue,
            };
            let Some(begin) = begin.take() else {
                tracing::warn!("{name} again: ending without waiting for requests");
                std::process::exit(crate::exit::ERROR.into());
            };
            tracing::info!("{name}: draining; once more ends at once");
            let _ = begin.send(());
        }
    });
    Ok(async move {
        let _ = begun.await;
    })
}

/// The data directory holds the key that signs logins: whatever is made from now on is for this user alone.
fn keep_private() {
    umask(Mode::RWXG | Mode::RWXO);
}

/// Every watcher holds a connection, and many systems give a process 1,024 files until it asks for more.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current < limit.maximum || limit.maximum.is_none() {
        let wanted = Rlimit { current: limit.maximum.or(Some(1 << 20)), ..limit };
        if let Err(error) = setrlimit(Resource::Nofile, wanted) {
            tracing::warn!(%error, "cannot raise the limit of open files");
        }
    }
}
