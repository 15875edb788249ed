//! Calls a service with reqwest, and calls another instance when one fails: each instance at most once per call, and only
//! where doing it twice is as good as once.
//!
//! ```sh
//! export COSKY_USER=cosky COSKY_PASSWORD_FILE=./password
//! cargo run -p cosky --example reqwest_caller -- stock
//! ```
//!
//! It calls a hundred times a second until SIGTERM or Ctrl-C, and says every second how that goes.

use std::time::Duration;

use cosky::{
    Cosky, InstanceId, LiveView, ServiceInstance,
    core::{Weighted, eligible},
};
use reqwest::{Client, Error, Method, Response, StatusCode};
use tokio::time::{Instant, MissedTickBehavior, interval};

/// How the calls went so far.
#[derive(Default)]
struct Tally {
    calls: u64,
    /// Calls that another instance answered than the first one.
    repeated: u64,
    failed: u64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let service = std::env::args().nth(1).ok_or("usage: reqwest_caller SERVICE")?;
    let namespace = Cosky::from_env().await?.default_namespace()?;
    let view = namespace.discover(service).await?;
    let client =
        Client::builder().connect_timeout(Duration::from_secs(1)).timeout(Duration::from_secs(2)).build()?;

    let mut tally = Tally::default();
    let mut pace = interval(Duration::from_millis(10));
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = Instant::now();
    let mut end = std::pin::pin!(cosky::terminated());
    loop {
        tokio::select! {
            () = &mut end => break,
            _ = pace.tick() => {}
        }
        let (answer, tries) = call(&client, &view, Method::GET, "/").await;
        tally.calls += 1;
        tally.repeated += u64::from(tries > 1);
        if let Err(reason) = answer {
            tally.failed += 1;
            println!("failed: {reason}");
        }
        if told.elapsed() >= Duration::from_secs(1) {
            tally.tell();
            told = Instant::now();
        }
    }
    tally.tell();
    Ok(())
}

/// Calls one instance after the other until one answers, and says how many were called.
async fn call(
    client: &Client,
    view: &LiveView,
    method: Method,
    path: &str,
) -> (Result<Response, String>, usize) {
    let mut tried: Vec<InstanceId> = Vec::new();
    let mut last = format!("{} has no instance in service", view.service());
    while let Some(target) = another(view, &tried) {
        tried.push(target.id().clone());
        let Some(uri) = target.uri() else { continue };
        let answer = client.request(method.clone(), format!("{uri}{path}")).send().await;
        match answer {
            Ok(answer) if !(is_busy(answer.status()) && is_safe(&method)) => {
                return (Ok(answer), tried.len());
            }
            Ok(answer) => last = format!("{} answers {}", target.id(), answer.status()),
            Err(error) => {
                last = format!("{}: {error}", target.id());
                if !never_arrived(&error) && !is_safe(&method) {
                    break;
                }
            }
        }
    }
    (Err(last), tried.len())
}

/// A random instance that was not tried yet, each as likely as its weight.
fn another(view: &LiveView, tried: &[InstanceId]) -> Option<ServiceInstance> {
    let instances = view.snapshot();
    let untried = eligible(&instances).filter(|(_, instance)| !tried.contains(instance.id()));
    let at = Weighted::of(untried.map(|(at, instance)| (at, instance.weight()))).pick()?;
    Some(instances[at].clone())
}

/// Whether doing it twice is as good as once (RFC 9110, 9.2.2).
fn is_safe(method: &Method) -> bool {
    method.is_idempotent()
}

/// Whether it is certain that the instance did not begin with it.
fn never_arrived(error: &Error) -> bool {
    error.is_connect()
}

/// Whether another instance may be better off.
fn is_busy(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT)
}

impl Tally {
    fn tell(&self) {
        println!("{} calls, {} repeated, {} failed", self.calls, self.repeated, self.failed);
    }
}
