//! What a server needs: memory, time to start, room on the disk.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use cosky_core::{Metadata, Namespace, Registry, Store};
use cosky_embedded::{Embedded, Options};
use cosky_testkit::process::ServerOptions;
use futures_util::future::try_join_all;
use tokio::time::sleep;

use super::{Setup, api_token, many, register_many};
use crate::{
    load::median,
    machine,
    report::{Goal, Row, Unit},
};

const IDLE: Duration = Duration::from_secs(60);
const INSTANCES: i64 = 100_000;
/// Bytes of metadata of each instance in the data that a start is measured with, for a file of a good 100 MB.
const PADDING: usize = 400;
const STARTS: usize = 5;

pub(super) async fn measure(setup: &Setup) -> Result<Vec<Row>> {
    let idle = setup.start_cosky().await?;
    let started = Instant::now();
    let binary = fs::metadata(&setup.cosky)?.len() as f64;
    let filled = filled(setup).await?;
    let start = start(setup).await?;
    sleep(IDLE.saturating_sub(started.elapsed())).await;
    let idle = machine::resident_bytes(idle.pid())?;
    Ok(vec![
        Row::alone("resident memory, idle for 60 s", idle, Unit::Bytes, Goal::AtMost(25e6)),
        Row::alone("resident memory, 100,000 instances", filled, Unit::Bytes, Goal::AtMost(120e6)),
        Row::alone(
            "clean start to ready, 100,000 instances in 100 MB",
            start,
            Unit::Seconds,
            Goal::AtMost(0.2),
        ),
        Row::alone("stripped binary", binary, Unit::Bytes, Goal::AtMost(25e6)),
    ])
}

/// The resident memory with 100,000 instances that were registered over HTTP.
async fn filled(setup: &Setup) -> Result<f64> {
    let server = setup.start_cosky().await?;
    let token = api_token(&server).await?;
    register_many(&server, &token, &Namespace::new("bench-{m}")?, INSTANCES, many).await?;
    machine::resident_bytes(server.pid())
}

/// Seconds from starting the binary on a file of 100 MB until `/readyz` says so.
async fn start(setup: &Setup) -> Result<f64> {
    let data = tempfile::tempdir()?;
    fill(data.path()).await?;
    let mut times = Vec::new();
    for _ in 0..STARTS {
        let options = ServerOptions::default().binary(&setup.cosky).data_dir(data.path());
        let begin = Instant::now();
        let mut server = setup.start_on_all_cores(options).await?;
        times.push(begin.elapsed().as_secs_f64());
        let status = server.stop().await;
        ensure!(status.success(), "the server ended with {status}:\n{}", server.log());
    }
    Ok(median(&mut times))
}

/// Writes permanent instances, and closes the store; the file is at least as large as the row says.
async fn fill(data: &Path) -> Result<()> {
    let engine = Embedded::open(Options::new(data)).await?;
    let namespace = Namespace::new("bench-{d}")?;
    for first in (0..INSTANCES).step_by(1000) {
        let mut new = (first..first + 1000).map(many).collect::<Result<Vec<_>>>()?;
        for new in &mut new {
            new.ephemeral = false;
            new.metadata = Metadata::new([("about", "x".repeat(PADDING))])?;
        }
        try_join_all(new.iter().map(|new| engine.register(&namespace, new))).await?;
    }
    engine.close().await;
    let bytes = std::fs::metadata(data.join("cosky.redb"))?.len();
    ensure!(bytes >= 100_000_000, "the file has {bytes} bytes only");
    Ok(())
}
