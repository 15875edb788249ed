//! `cosky agent`: runs a command as an instance of a service.
//!
//! The command starts first and is never held up by the registry: registering is tried for ever beside it. At the end
//! the order is the other way round: the instance is deregistered before the command hears that it has to stop, so
//! that nobody is sent to something that is about to close its doors.

mod child;
mod exec;
mod membership;

use std::{
    ffi::OsString,
    net::{Ipv4Addr, TcpListener},
    process::ExitCode,
};

use anyhow::Context as _;
use clap::Args;
use cosky_core::{Host, Port, ServiceId};

pub(crate) use self::exec::{VERB as EXEC_VERB, run as exec};
use self::{
    child::{Child, Signals, ends},
    membership::Membership,
};
use crate::{
    client::{Connection, NamespaceArgs, ServerArgs},
    instance::WhatArgs,
    logging::LogArgs,
};

/// Run a command as an instance of a service: it is registered while it runs and dies with the agent
#[derive(Debug, Args)]
#[command(after_help = "The command finds its port in $PORT.\n\
    SIGTERM, SIGINT and SIGQUIT: the instance is deregistered, then the signal is passed on.\n\
    SIGHUP, SIGUSR1 and SIGUSR2 are passed on. Signals reach the command itself: begin a shell line with exec.\n\
    The agent ends with the command's exit code, or 128 + the signal that ended it.")]
pub(crate) struct AgentArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    scope: NamespaceArgs,
    /// The service's id
    #[arg(long, value_name = "NAME")]
    service: ServiceId,
    /// Port that the command listens on; 0 takes a free one
    #[arg(long, value_name = "NUMBER")]
    port: u16,
    /// Address or host name that others reach the command by; that of this machine towards the server, when not given
    #[arg(long, value_name = "HOST", env = "COSKY_ADVERTISE_HOST", hide_env_values = true)]
    host: Option<String>,
    /// Port that others reach the command by, when it is not --port
    #[arg(long, value_name = "NUMBER", env = "COSKY_ADVERTISE_PORT", hide_env_values = true)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    advertise_port: Option<u16>,
    #[command(flatten)]
    what: WhatArgs,
    #[command(flatten)]
    log: LogArgs,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs the command and gives the code to end with.
pub(crate) fn run(args: AgentArgs) -> anyhow::Result<ExitCode> {
    args.log.start("info")?;
    // The runtime stays on this thread: the command dies with the thread that started it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(supervise(args))
}

async fn supervise(args: AgentArgs) -> anyhow::Result<ExitCode> {
    let port = if args.port == 0 { free_port()? } else { args.port };
    let advertised = args.advertise_port.unwrap_or(port);
    // Everything that can be refused is refused before the command starts.
    Port::new(advertised.into())?;
    let host = args.host.as_deref().map(Host::new).transpose()?;
    let placeholder = Host::new("localhost")?;
    let host_now = host.as_ref().unwrap_or(&placeholder);
    let registration = args.what.registration(args.service.clone(), host_now.as_str(), advertised.into())?;
    let connection = Connection::open(&args.server).await?;
    let command = &args.command;
    if let Err(code) = exec::find(&command[0]) {
        return Ok(code);
    }

    let variables = [
        ("PORT", port.to_string()),
        ("COSKY_ADDR", connection.addr().to_owned()),
        ("COSKY_NAMESPACE", args.scope.namespace.to_string()),
        ("COSKY_SERVICE", args.service.to_string()),
    ];
    let mut signals = Signals::take()?;
    let mut child = Child::start(command, &variables)?;
    tracing::info!(service.id = %args.service, port, "the command runs");
    let mut membership =
        Some(Membership::begin(connection, args.scope.namespace, registration, host.is_none()));
    let mut leaving = None;
    let code = loop {
        let signal = tokio::select! {
            code = child.wait() => break code?,
            signal = signals.next() => signal,
        };
        if ends(signal)
            && let Some(membership) = membership.take()
        {
            tracing::info!(signal = signal.as_raw(), "deregistering, then passing the signal on");
            let goodbye = leaving.insert(tokio::spawn(membership.leave()));
            loop {
                tokio::select! {
                    _ = &mut *goodbye => {
                        leaving = None;
                        break;
                    }
                    again = signals.next() => {
                        child.signal(again);
                        // Whoever asks twice does not want to wait.
                        if ends(again) {
                            break;
                        }
                    }
                }
            }
        }
        child.signal(signal);
    };
    match (membership, leaving) {
        (Some(membership), _) => membership.leave().await,
        (None, Some(goodbye)) => goodbye.await.context("deregistering failed")?,
        (None, None) => {}
    }
    tracing::info!(code, "the command ended");
    Ok(ExitCode::from(code))
}

/// A port that was free on all IPv4 addresses a moment ago.
fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).context("no port is free")?;
    Ok(listener.local_addr()?.port())
}
