//! What a client keeps in memory: how quick it is to read, what views cost, and what clients cost the store.

use std::{
    collections::HashMap,
    env,
    hint::black_box,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use cosky::Cosky;
use cosky_cache::{Cache, Options as CacheOptions};
use cosky_core::{Namespace, Port, Registration, Registry, ServiceId, Store, wire};
use cosky_embedded::{Embedded, Options};
use cosky_testkit::process::CoskyServer;
use futures_util::future::try_join_all;
use tokio::{process::Command, runtime, time::timeout};

use super::{Setup, api_token, many, register_many, registration};
use crate::{
    client::{Connection, request},
    load::median,
    machine::{self, Cores},
    report::{Goal, Row, Unit},
    serve::instance,
};

const NAMESPACE: &str = "bench-{c}";
/// How long views may take to show everything.
const PATIENCE: Duration = Duration::from_secs(20);
/// Services that are cached for the rows of reading.
const NAMES: usize = 1_000;
/// Views for the row of memory, and instances of each.
const VIEWS: i64 = 10_000;
const EACH: i64 = 10;
/// Clients that watch a rolling restart, and the instances that are restarted.
const CLIENTS: usize = 100;
const RESTARTED: i64 = 1_000;
/// How long one measurement runs, and how many there are.
const ROUND: Duration = Duration::from_millis(200);
const ROUNDS: usize = 9;
/// Operations between two looks at the clock.
const STRETCH: usize = 1_000;

/// What the process with the views is told.
#[derive(Debug, clap::Args)]
pub(crate) struct ViewsArgs {
    #[arg(long)]
    address: String,
}

pub(super) async fn measure(setup: &Setup) -> Result<Vec<Row>> {
    let mut rows = reading(setup.cores)?;
    rows.push(views(setup).await?);
    rows.push(rolling_restart(setup).await?);
    Ok(rows)
}

/// The rows of reading, on a runtime of their own whose thread does nothing else meanwhile.
fn reading(cores: Cores) -> Result<Vec<Row>> {
    let measured = thread::spawn(move || -> Result<Vec<Row>> {
        let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let directory = tempfile::tempdir()?;
        let (cache, namespace, services, engine) = runtime.block_on(async {
            let engine = Arc::new(Embedded::open(Options::new(directory.path())).await?);
            let namespace = Namespace::new(NAMESPACE)?;
            let new = (0..NAMES).map(|at| {
                let mut new = many(i64::try_from(at)? * 100)?;
                new.ephemeral = false;
                Ok(new)
            });
            let new = new.collect::<Result<Vec<_>>>()?;
            try_join_all(new.iter().map(|new| engine.register(&namespace, new))).await?;
            let services: Vec<_> = new.into_iter().map(|new| new.service).collect();
            let cache = Cache::new(engine.clone(), CacheOptions::default());
            for service in &services {
                let list = cache.instances(&namespace, service).await?.value;
                ensure!(list.len() == 1, "{service} has {} instances", list.len());
            }
            Ok::<_, anyhow::Error>((cache, namespace, services, engine))
        })?;
        let rows = vec![
            by_name(&cache, &namespace, &services),
            held_view(&cache, &namespace, &services[0])?,
            two_threads(&cache, &namespace, &services[0], cores)?,
            choose(&cache, &namespace, &services[0])?,
        ];
        drop(cache);
        runtime.block_on(engine.close());
        Ok(rows)
    });
    measured.join().expect("a panic ends the bench")
}

fn by_name(cache: &Cache, namespace: &Namespace, services: &[ServiceId]) -> Row {
    let map: HashMap<ServiceId, Arc<u64>> = services.iter().map(|name| (name.clone(), Arc::new(1))).collect();
    let (mut ours, mut plain) = (services.iter().cycle(), services.iter().cycle());
    let [ours, plain] = pair(
        || {
            black_box(ours.next().map(|name| cache.read(namespace, name, |shown| shown.instances.len())));
        },
        || {
            black_box(plain.next().map(|name| map.get(name).cloned()));
        },
    );
    Row::beside(
        "read by name / HashMap get and Arc clone, one thread",
        1.0 / ours,
        1.0 / plain,
        Unit::PerSecond,
        Goal::RatioAtLeast(0.6),
    )
}

fn held_view(cache: &Cache, namespace: &Namespace, service: &ServiceId) -> Result<Row> {
    let mut reader = cache.view(namespace, service)?.reader();
    let (flag, last) = (AtomicU64::new(7), black_box(7));
    let [ours, plain] = pair(
        || {
            black_box(black_box(&mut reader).instances().len());
        },
        || {
            black_box(black_box(&flag).load(Ordering::Acquire) == last);
        },
    );
    Ok(Row::beside(
        "read a held view / atomic load and compare",
        ours,
        plain,
        Unit::Seconds,
        Goal::RatioAtMost(3.0),
    ))
}

/// One thread beside two, each with a reader of the same view on a core of its own.
fn two_threads(cache: &Cache, namespace: &Namespace, service: &ServiceId, cores: Cores) -> Result<Row> {
    let view = cache.view(namespace, service)?;
    let rate = |cores: &[usize]| -> Result<f64> {
        let threads = cores.iter().map(|core| {
            let (mut reader, core) = (view.reader(), *core);
            thread::spawn(move || -> Result<f64> {
                machine::pin(core)?;
                let mut read = || {
                    black_box(black_box(&mut reader).instances().len());
                };
                Ok(1.0 / time(&mut read))
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().expect("a panic ends the bench")).sum()
    };
    let (mut one, mut two) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        one.push(rate(&[cores.load])?);
        two.push(rate(&[cores.load, cores.server])?);
    }
    Ok(Row::beside(
        "read a held view, two threads / one",
        median(&mut two),
        median(&mut one),
        Unit::PerSecond,
        Goal::RatioAtLeast(1.7),
    ))
}

fn choose(cache: &Cache, namespace: &Namespace, service: &ServiceId) -> Result<Row> {
    let view = cache.view(namespace, service)?;
    let (mut reader, mut other) = (view.reader(), view.reader());
    let [ours, plain] = pair(
        || {
            black_box(black_box(&mut reader).shown().choose().is_some());
        },
        || {
            black_box((black_box(&mut other).instances().len(), rand::random::<u64>()));
        },
    );
    Ok(Row::beside(
        "weighted choice / read a held view and a random number",
        ours,
        plain,
        Unit::Seconds,
        Goal::RatioAtMost(4.0),
    ))
}

/// Seconds that each of two things takes, in rounds that alternate.
fn pair(mut ours: impl FnMut(), mut plain: impl FnMut()) -> [f64; 2] {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        times[0].push(time(&mut ours));
        times[1].push(time(&mut plain));
    }
    times.map(|mut times| median(&mut times))
}

/// Seconds of this thread that `operation` takes.
fn time(operation: &mut impl FnMut()) -> f64 {
    let (start, cpu) = (Instant::now(), machine::thread_time());
    let mut count = 0;
    while start.elapsed() < ROUND {
        for _ in 0..STRETCH {
            operation();
        }
        count += STRETCH;
    }
    (machine::thread_time() - cpu).as_secs_f64() / count as f64
}

/// The memory of a process that holds the views, over what it has before the first.
async fn views(setup: &Setup) -> Result<Row> {
    let server = setup.start_cosky().await?;
    let token = api_token(&server).await?;
    register_many(&server, &token, &Namespace::new(NAMESPACE)?, VIEWS * EACH, viewed).await?;
    let views = Command::new(env::current_exe()?)
        .args(["views", "--address", &format!("http://{}", server.address())])
        .env("COSKY_TOKEN", &token)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let output = views.wait_with_output().await?;
    ensure!(output.status.success(), "the process with the views ended with {}", output.status);
    let bytes: f64 = String::from_utf8(output.stdout)?.trim().parse().context("it prints a number")?;
    Ok(Row::alone("10,000 views of 10 instances each", bytes, Unit::Bytes, Goal::AtMost(60e6)))
}

/// Holds the views, and prints how many bytes more are resident than before the first.
pub(crate) async fn hold_views(args: ViewsArgs) -> Result<()> {
    let cosky = Cosky::connect(args.address).token(env::var("COSKY_TOKEN")?).await?;
    let namespace = cosky.namespace(NAMESPACE)?;
    let before = machine::resident_bytes(std::process::id())?;
    let mut views = Vec::new();
    for number in 0..VIEWS {
        views.push(namespace.discover(viewed(number * EACH)?.service.as_str()).await?);
    }
    let wrong = views.iter().filter(|view| view.snapshot().len() as i64 != EACH).count();
    ensure!(wrong == 0, "{wrong} views have not what they should");
    println!("{}", machine::resident_bytes(std::process::id())? - before);
    Ok(())
}

/// The instance number `number` of those that are viewed.
fn viewed(number: i64) -> Result<Registration> {
    let mut new = instance(&format!("service-{:05}", number / EACH), number)?;
    new.ephemeral = false;
    Ok(new)
}

/// What a rolling restart costs the store when many clients watch it through one server: reads for each change.
async fn rolling_restart(setup: &Setup) -> Result<Row> {
    let server = setup.start_cosky().await?;
    let token = api_token(&server).await?;
    let namespace = Namespace::new(NAMESPACE)?;
    register_many(&server, &token, &namespace, RESTARTED, many).await?;
    let mut views = Vec::new();
    for _ in 0..CLIENTS {
        let cosky = Cosky::connect(format!("http://{}", server.address())).token(token.clone()).await?;
        let namespace = cosky.namespace(NAMESPACE)?;
        for number in (0..RESTARTED).step_by(100) {
            views.push(namespace.discover(many(number)?.service.as_str()).await?);
        }
    }
    let before = reads(&server, &token).await?;
    let mut connection = Connection::open(server.address()).await?;
    for number in 0..RESTARTED {
        let (old, mut new) = (many(number)?, many(number)?);
        new.port = Port::new(8081)?;
        let path = ["services", old.service.as_str(), "instances", old.id().as_str()].map(str::to_owned);
        let path: Vec<_> = path.iter().map(String::as_str).collect();
        connection.ok(&request("DELETE", &wire::namespace_path(&namespace, &path), &token, None)).await?;
        connection.ok(&registration(&namespace, &token, &new)?).await?;
    }
    let told = timeout(PATIENCE, async {
        for view in &mut views {
            while view.snapshot().len() != 100
                || view.snapshot().iter().any(|known| known.port().get() != 8081)
            {
                view.changed().await;
            }
        }
    });
    told.await.context("a view does not show the restart")?;
    let changes = 2 * RESTARTED;
    let each = (reads(&server, &token).await? - before) / changes as f64;
    Ok(Row::alone("store reads for a change, 100 clients see a restart", each, Unit::Rate, Goal::AtMost(2.0)))
}

/// How often the server has read from its store for somebody since its start.
async fn reads(server: &CoskyServer, token: &str) -> Result<f64> {
    let answer =
        Connection::open(server.address()).await?.ok(&request("GET", "/metrics", token, None)).await?;
    let text = String::from_utf8(answer)?;
    let counted = text.lines().filter(|line| {
        line.starts_with("cosky_operations_total")
            && ["\"read", "\"choose\"", "\"watch\""].iter().any(|kind| line.contains(kind))
    });
    counted.map(|line| Ok(line.rsplit(' ').next().context("a metric has a value")?.parse::<f64>()?)).sum()
}
