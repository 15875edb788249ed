//! What is measured, in groups that share a server.

mod beats;
pub(crate) mod cache;
mod crash;
mod fan_out;
mod footprint;
mod requests;

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use anyhow::{Context, Result};
use cosky_core::{Namespace, Registration, Ttl, wire};
use cosky_testkit::process::{CoskyServer, ServerOptions};
use tokio::task::JoinSet;

use crate::{
    client::{Connection, request},
    machine::{self, Cores},
    report::Row,
    serve::instance,
};

/// Connections that register at the same time.
const REGISTERING: usize = 128;
/// The TTL of many instances: longer than it takes to register them all, and to beat them for the first time.
const MANY_TTL_SECONDS: i64 = 120;

/// What every group needs.
#[derive(Debug)]
pub(crate) struct Setup {
    /// The release binary.
    pub(crate) cosky: PathBuf,
    pub(crate) cores: Cores,
}

/// A group of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Group {
    /// Reading ten instances and one beat, beside static answers.
    Requests,
    /// Batched beats, in process and over HTTP.
    Beats,
    /// What a client keeps in memory: reading it, and what it costs.
    Cache,
    /// Deregistration told to many watchers, and beats beside them.
    FanOut,
    /// A killed process leaves every watcher.
    Crash,
    /// Memory, start and size.
    Footprint,
}

impl Group {
    pub(crate) const ALL: [Self; 6] =
        [Self::Requests, Self::Beats, Self::Cache, Self::FanOut, Self::Crash, Self::Footprint];

    pub(crate) async fn measure(self, setup: &Setup) -> Result<Vec<Row>> {
        match self {
            Self::Requests => requests::measure(setup).await,
            Self::Beats => beats::measure(setup).await,
            Self::Cache => cache::measure(setup).await,
            Self::FanOut => fan_out::measure(setup).await,
            Self::Crash => crash::measure(setup).await,
            Self::Footprint => footprint::measure(setup).await,
        }
    }
}

impl Setup {
    /// Starts `binary serve` on the server's core, on a free port with an empty data directory.
    pub(crate) async fn start(&self, options: ServerOptions) -> Result<CoskyServer> {
        machine::pin(self.cores.server)?;
        let server = options.start().await;
        machine::pin(self.cores.load)?;
        Ok(server)
    }

    /// Starts it on all cores, for what is measured without a load beside it.
    pub(crate) async fn start_on_all_cores(&self, options: ServerOptions) -> Result<CoskyServer> {
        machine::unpin(self.cores)?;
        let server = options.start().await;
        machine::pin(self.cores.load)?;
        Ok(server)
    }

    /// The product's own binary on an empty data directory.
    pub(crate) async fn start_cosky(&self) -> Result<CoskyServer> {
        self.start(ServerOptions::default().binary(&self.cosky)).await
    }
}

/// An API token of the root user.
async fn api_token(server: &CoskyServer) -> Result<String> {
    let body =
        serde_json::to_vec(&wire::NewTokenBody { name: "bench".into(), expires_in_seconds: Some(3600) })?;
    let ask = request("POST", "/v1/tokens", &server.token().await, Some(&body));
    let answer: wire::TokenBody =
        serde_json::from_slice(&Connection::open(server.address()).await?.ok(&ask).await?)?;
    answer.token.context("a new token comes with its secret")
}

/// The request that registers `new`.
fn registration(namespace: &Namespace, token: &str, new: &Registration) -> Result<Vec<u8>> {
    let path = wire::namespace_path(namespace, &["services", new.service.as_str(), "instances"]);
    Ok(request("PUT", &path, token, Some(&serde_json::to_vec(&wire::RegisterBody::from(new))?)))
}

/// Registers the first `count` of the instances that `new` gives, over HTTP, from many connections at once.
async fn register_many(
    server: &CoskyServer,
    token: &str,
    namespace: &Namespace,
    count: i64,
    new: fn(i64) -> Result<Registration>,
) -> Result<()> {
    let next = Arc::new(AtomicI64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..REGISTERING {
        let mut connection = Connection::open(server.address()).await?;
        let (next, token, namespace) = (Arc::clone(&next), token.to_owned(), namespace.clone());
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return Ok(());
                }
                connection.ok(&registration(&namespace, &token, &new(number)?)?).await?;
            }
        });
    }
    tasks.join_all().await.into_iter().collect()
}

/// The registration number `number` of many: a hundred to a service, with three entries of metadata each.
fn many(number: i64) -> Result<Registration> {
    let mut new = instance(&format!("service-{:04}", number / 100), number)?;
    new.ttl = Some(Ttl::from_seconds(MANY_TTL_SECONDS)?);
    Ok(new)
}
