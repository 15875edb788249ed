//! A process that is killed leaves every watcher's view, with nobody reading and nobody writing.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use cosky_core::Namespace;
use tokio::{process::Command, time::sleep};

use super::{Setup, api_token};
use crate::{
    report::{Goal, Row, Unit},
    watchers::Watchers,
};

const WATCHERS: usize = 100;
const ROUNDS: usize = 3;
const TTL: Duration = Duration::from_secs(3);
/// Long enough for the instance to live by its beats alone.
const LIFE: Duration = Duration::from_secs(5);

pub(super) async fn measure(setup: &Setup) -> Result<Vec<Row>> {
    let server = setup.start_cosky().await?;
    let token = api_token(&server).await?;
    let namespace = Namespace::new("bench-{c}")?;
    let watchers = Watchers::open(server.address(), &token, &namespace, WATCHERS).await?;
    let mut longest = Duration::ZERO;
    for round in 0..ROUNDS {
        let service = format!("crash-{round}");
        watchers.listen_for(&format!("\"op\":\"register\",\"serviceId\":\"{service}\""));
        let mut agent = Command::new(&setup.cosky)
            .args(["agent", "--service", &service, "--host", "127.0.0.1", "--port", "9", "--ttl", "3s"])
            .args(["--", "sleep", "60"])
            .env("COSKY_ADDR", server.url())
            .env("COSKY_TOKEN", &token)
            .env("COSKY_NAMESPACE", namespace.as_str())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("starting the agent")?;
        watchers.all_heard(Duration::from_secs(10)).await?;
        watchers.listen_for(&format!("\"op\":\"expired\",\"serviceId\":\"{service}\""));
        sleep(LIFE).await;
        let killed = Instant::now();
        agent.kill().await?;
        let heard = watchers.all_heard(TTL * 10).await?;
        for moment in heard {
            let after = moment.checked_duration_since(killed).context("it expired while it was alive")?;
            longest = longest.max(after);
        }
    }
    let goal = Goal::AtMost((TTL + Duration::from_secs(1)).as_secs_f64());
    let what = "kill -9 until gone for all of 100 watchers, TTL 3 s";
    Ok(vec![Row::alone(what, longest.as_secs_f64(), Unit::Seconds, goal)])
}
