//! Many watchers: how soon each hears of a deregistration, what they cost, and what they do to beats.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use cosky_core::{Namespace, wire};
use cosky_testkit::process::CoskyServer;
use tokio::task::spawn_blocking;

use super::{Setup, api_token, many, register_many, registration};
use crate::{
    client::{Connection, request},
    load::{median, paced, percentile},
    machine,
    report::{Goal, Row, Unit},
    watchers::Watchers,
};

const FEW: usize = 1_000;
const MANY: usize = 10_000;
const BEATS_PER_SECOND: u32 = 500;
/// Instances that are beaten.
const BEATEN: i64 = 100;
/// How long beats are measured for one 99th percentile beside watchers: longer than the 15 s between two comment lines
/// of a stream, so that each window has its share of them.
const TOGETHER: Duration = Duration::from_secs(16);
/// The same without watchers.
const ALONE: Duration = Duration::from_secs(8);
const PATIENCE: Duration = Duration::from_secs(10);

/// A server, and what its clients know.
struct Stage {
    server: CoskyServer,
    token: String,
    namespace: Namespace,
}

pub(super) async fn measure(setup: &Setup) -> Result<Vec<Row>> {
    let server = setup.start_cosky().await?;
    let stage = Stage { token: api_token(&server).await?, server, namespace: Namespace::new("bench-{f}")? };
    register_many(&stage.server, &stage.token, &stage.namespace, BEATEN, many).await?;

    let mut alone = stage.beats(ALONE, 2).await?;
    let resident = machine::resident_bytes(stage.server.pid())?;
    let watchers = stage.watchers(MANY).await?;
    let mut together = stage.beats(TOGETHER, 3).await?;
    let each = (machine::resident_bytes(stage.server.pid())? - resident) / MANY as f64;
    let told_many = stage.deregistrations(&watchers, 10).await?;
    let dropped = watchers.ended();
    drop(watchers);
    let watchers = stage.watchers(FEW).await?;
    let told_few = stage.deregistrations(&watchers, 50).await?;
    ensure!(watchers.ended() == 0, "{} of {FEW} watchers were dropped", watchers.ended());
    drop(watchers);
    alone.extend(stage.beats(ALONE, 1).await?);

    let seconds = |duration: Duration| duration.as_secs_f64();
    let (together, alone) = (median(&mut together), median(&mut alone));
    Ok(vec![
        Row::alone(
            "deregister told to 1,000 watchers, p99",
            seconds(told_few),
            Unit::Seconds,
            Goal::AtMost(0.05),
        ),
        Row::alone(
            "deregister told to 10,000 watchers, p99",
            seconds(told_many),
            Unit::Seconds,
            Goal::AtMost(0.5),
        ),
        Row::beside(
            "500 beats/s beside 10,000 idle watchers / without, p99",
            together,
            alone,
            Unit::Seconds,
            Goal::RatioAtMost(2.0),
        ),
        Row::alone("resident memory of an idle watcher", each, Unit::Bytes, Goal::AtMost(16.0 * 1024.0)),
        Row::alone("watchers dropped of 10,000", dropped as f64, Unit::Count, Goal::AtMost(0.0)),
    ])
}

impl Stage {
    async fn watchers(&self, count: usize) -> Result<Watchers> {
        Watchers::open(self.server.address(), &self.token, &self.namespace, count).await
    }

    /// The 99th percentile of single beats at a steady pace, in seconds, in each of `windows` windows.
    async fn beats(&self, window: Duration, windows: usize) -> Result<Vec<f64>> {
        let mut requests = Vec::new();
        for number in 0..BEATEN {
            let new = many(number)?;
            let id = new.id();
            let path = ["services", new.service.as_str(), "instances", id.as_str(), "beat"];
            requests.push(request("PUT", &wire::namespace_path(&self.namespace, &path), &self.token, None));
        }
        let mut percentiles = Vec::new();
        for _ in 0..windows {
            let beating = paced(self.server.address(), requests.clone(), BEATS_PER_SECOND, window);
            let mut times = spawn_blocking(|| beating.join()).await?.expect("a panic ends the bench")?;
            percentiles.push(percentile(&mut times, 0.99).as_secs_f64());
        }
        Ok(percentiles)
    }

    /// Registers and deregisters an instance `rounds` times. The result is the 99th percentile of the time from sending
    /// the deregistration until a watcher has read of it, over all watchers and rounds.
    async fn deregistrations(&self, watchers: &Watchers, rounds: usize) -> Result<Duration> {
        let mut connection = Connection::open(self.server.address()).await?;
        let new = many(BEATEN)?;
        let register = registration(&self.namespace, &self.token, &new)?;
        let id = new.id();
        let path = ["services", new.service.as_str(), "instances", id.as_str()];
        let deregister = request("DELETE", &wire::namespace_path(&self.namespace, &path), &self.token, None);
        let mut times = Vec::new();
        for _ in 0..rounds {
            watchers.listen_for("\"op\":\"register\"");
            connection.ok(&register).await?;
            watchers.all_heard(PATIENCE).await?;
            watchers.listen_for("\"op\":\"deregister\"");
            let start = Instant::now();
            connection.ok(&deregister).await?;
            times.extend(watchers.all_heard(PATIENCE).await?.into_iter().map(|heard| heard - start));
        }
        Ok(percentile(&mut times, 0.99))
    }
}
