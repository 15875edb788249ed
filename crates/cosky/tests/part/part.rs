//! What the tests run in processes of their own. It finds its server in the environment, as [`Cosky::from_env`] does,
//! tells by lines on standard output what it sees, logs to standard error, and ends on SIGTERM.
//!
//! * `part provider HOST PORT VERSION`: listens (port 0: anywhere), registers, says goodbye at the end and drains.
//! * `part consumer fast|lazy|empty SERVICE`: follows a service, each time telling the list and its state.
//! * `part crowd CLIENTS WATCHES PROVIDERS FIRST_PORT`: many clients, each with views of the same services.
//! * `part service`: a web service that takes its settings from the environment and drains at the end.
//! * `part churn ROUNDS`: opens views and gives them up.
#![expect(clippy::unwrap_used, reason = "a part that fails ends, and the test that started it notices")]

mod churn;
mod consumer;
mod crowd;
mod provider;
mod service;

use std::io::Write as _;

use cosky::{Connect, Cosky};
use tokio::signal::unix::{SignalKind, signal};

/// The exit code when nothing answers at the start.
const NO_SERVER: i32 = 4;

#[tokio::main]
async fn main() {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut terminate = signal(SignalKind::terminate()).unwrap();
    let end = async move {
        terminate.recv().await;
    };
    match arguments[..] {
        ["provider", host, port, version] => {
            provider::run(host.parse().unwrap(), port.parse().unwrap(), version, end).await;
        }
        ["service"] => service::run().await,
        ["consumer", start, service] => consumer::run(start, service, end).await,
        ["crowd", clients, watches, providers, first_port] => {
            let [clients, watches, providers] = [clients, watches, providers].map(|n| n.parse().unwrap());
            crowd::run(crowd::Size { clients, watches, providers }, first_port.parse().unwrap(), end).await;
        }
        ["churn", rounds] => churn::run(rounds.parse().unwrap(), end).await,
        _ => panic!("no part in the tests: {arguments:?}"),
    }
}

fn connect() -> Connect {
    Cosky::from_env()
}

/// Tells the test something, at once.
fn tell(line: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    // Whoever does not listen any more has ended.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
