//! Batched beats of 100,000 instances: in the engine on one thread, and over HTTP per core.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use cosky_core::{Beat, BeatKey, Namespace, Registry, Scope, Store, limits, wire};
use cosky_embedded::{Embedded, Options};
use futures_util::{StreamExt, future::try_join_all};
use tokio::runtime;

use super::{Setup, api_token, many, register_many};
use crate::{
    client::request,
    load::{closed_loop, median},
    machine::{self, Cores},
    report::{Goal, Row, Unit},
};

const INSTANCES: i64 = 100_000;
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(1);

pub(super) async fn measure(setup: &Setup) -> Result<Vec<Row>> {
    let cores = setup.cores;
    // Nothing else runs on this thread meanwhile, so it may wait.
    let engine = thread::spawn(move || in_engine(cores)).join().expect("a panic ends the bench")?;
    let goal = Goal::AtLeast(5e6);
    let engine = Row::alone("batched beats, embedded engine, a thread", engine, Unit::PerSecond, goal);
    let goal = Goal::AtLeast(0.7e6);
    let http = Row::alone(
        "batched beats over HTTP, 1,000 a batch, a core",
        over_http(setup).await?,
        Unit::PerSecond,
        goal,
    );
    Ok(vec![engine, http])
}

/// Which instances batch number `batch` beats: each of them once in a hundred batches, far apart in memory.
fn batch(batch: i64) -> impl Iterator<Item = i64> {
    let size = i64::try_from(limits::BEATS).expect("a thousand");
    (batch * size..(batch + 1) * size).map(|turn| turn * 7919 % INSTANCES)
}

/// Beats a second of a thread's time on its core, while the engine's own threads have the other one.
fn in_engine(cores: Cores) -> Result<f64> {
    machine::pin(cores.server)?;
    let data = tempfile::tempdir()?;
    let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let namespace = Namespace::new("bench-{b}")?;
    let engine = Arc::new(runtime.block_on(async {
        let engine = Embedded::open(Options::new(data.path())).await?;
        for first in (0..INSTANCES).step_by(1000) {
            let new = (first..first + 1000).map(many).collect::<Result<Vec<_>>>()?;
            try_join_all(new.iter().map(|new| engine.register(&namespace, new))).await?;
        }
        let mut watch = engine.watch(&namespace, Scope::All, None).await?;
        tokio::spawn(async move { while watch.next().await.is_some() {} });
        anyhow::Ok(engine)
    })?);

    let beating = Arc::clone(&engine);
    let rate = thread::spawn(move || {
        machine::pin(cores.load)?;
        let runtime = runtime::Builder::new_current_thread().build()?;
        runtime.block_on(beat_all(&beating, &namespace))
    });
    let rate = rate.join().expect("a panic ends the bench")?;
    let figures = engine.figures();
    ensure!(
        figures.expirations == 0 && figures.watchers == 1,
        "the engine is not as it should be: {figures:?}"
    );
    runtime.block_on(engine.close());
    Ok(rate)
}

async fn beat_all(engine: &Embedded, namespace: &Namespace) -> Result<f64> {
    let batches = INSTANCES / i64::try_from(limits::BEATS)?;
    let new = (0..INSTANCES).map(many).collect::<Result<Vec<_>>>()?;
    let ids: Vec<_> = new.iter().map(|new| (new.service.as_str(), new.id())).collect();
    let keys: Vec<Vec<BeatKey<'_>>> = (0..batches)
        .map(|number| {
            let keys = batch(number).map(|at| &ids[usize::try_from(at).expect("from 0 up")]);
            keys.map(|(service, id)| BeatKey { service, instance: id.as_str() }).collect()
        })
        .collect();
    let mut rates = Vec::new();
    for _ in 0..ROUNDS {
        let (start, cpu) = (Instant::now(), machine::thread_time());
        let mut beats = 0;
        while start.elapsed() < ROUND {
            for keys in &keys {
                let answers = engine.beat(namespace, keys).await?;
                ensure!(
                    answers.iter().all(|answer| matches!(answer, Beat::Renewed(_))),
                    "a beat was refused"
                );
                beats += answers.len();
            }
        }
        rates.push(beats as f64 / (machine::thread_time() - cpu).as_secs_f64());
    }
    Ok(median(&mut rates))
}

/// Beats a second of the server's time on its core.
async fn over_http(setup: &Setup) -> Result<f64> {
    let server = setup.start_cosky().await?;
    let token = api_token(&server).await?;
    let namespace = Namespace::new("bench-{b}")?;
    register_many(&server, &token, &namespace, INSTANCES, many).await?;
    let path = wire::namespace_path(&namespace, &["beats"]);
    let mut requests = Vec::new();
    for number in 0..INSTANCES / i64::try_from(limits::BEATS)? {
        let new = batch(number).map(many).collect::<Result<Vec<_>>>()?;
        let body: Vec<_> = new
            .iter()
            .map(|new| wire::BeatBody {
                service_id: new.service.as_str().into(),
                instance_id: new.id().as_str().to_owned().into(),
            })
            .collect();
        requests.push(request("POST", &path, &token, Some(&serde_json::to_vec(&body)?)));
    }
    let requests = Arc::new(requests);
    let mut rates = Vec::new();
    for _ in 0..ROUNDS {
        let load = closed_loop(server.address(), server.pid(), 4, &requests, ROUND).await?;
        rates.push(load.per_core_second() * limits::BEATS as f64);
    }
    let answer = crate::client::Connection::open(server.address()).await?.ok(&requests[0]).await?;
    let answer: wire::BeatsAnswer = serde_json::from_slice(&answer)?;
    ensure!(answer.renewed == limits::BEATS, "not every beat was taken: {answer:?}");
    Ok(median(&mut rates))
}
