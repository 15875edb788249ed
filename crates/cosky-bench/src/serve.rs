//! The product with static answers beside it: shared bytes of the same size, behind the same middleware.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::{Context, Result};
use axum::{
    Router,
    http::header::CONTENT_TYPE,
    response::IntoResponse,
    routing::{get, put},
};
use bytes::Bytes;
use cosky_core::{Life, Namespace, Registration, Registry, ServiceId, wire};
use cosky_embedded::{Embedded, Options};
use cosky_server::{AppState, Config};
use tokio::net::TcpListener;

/// The namespace of the ten instances.
pub(crate) const NAMESPACE: &str = "bench-{a}";
/// The service of the ten instances.
pub(crate) const SERVICE: &str = "order";
/// How many instances the service has.
pub(crate) const INSTANCES: i64 = 10;
/// Answers what a list of the ten instances says.
pub(crate) const STATIC_LIST: &str = "/bench/list";
/// Answers what a beat says.
pub(crate) const STATIC_BEAT: &str = "/bench/beat";

/// The same as those of `cosky serve`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    listen: SocketAddr,
    #[arg(long)]
    data_dir: PathBuf,
}

/// The registration number `number` of the service.
pub(crate) fn instance(service: &str, number: i64) -> Result<Registration> {
    let host = format!("10.{}.{}.{}", number >> 16, (number >> 8) & 255, number & 255);
    let mut new = Registration::new(ServiceId::new(service)?, "http", &host, 8080)?;
    new.metadata = cosky_core::Metadata::new([("zone", "az-1"), ("version", "1.2.3"), ("from", "bench")])?;
    Ok(new)
}

/// Serves until the process is ended.
pub(crate) async fn run(args: Args) -> Result<()> {
    let store = Embedded::open(Options::new(&args.data_dir)).await?;
    let namespace = Namespace::new(NAMESPACE)?;
    for number in 0..INSTANCES {
        store.register(&namespace, &instance(SERVICE, number)?).await?;
    }
    let list = store.instances(&namespace, &ServiceId::new(SERVICE)?).await?.value;
    let life = list.first().map_or(Life::Permanent, |instance| instance.life());
    let list = Bytes::from(wire::instances(&list));
    let beat = Bytes::from(serde_json::to_vec(&wire::BeatAnswer::renewed(life))?);
    let fixed = Router::<AppState>::new()
        .route(STATIC_LIST, get(move || answer(list.clone())))
        .route(STATIC_BEAT, put(move || answer(beat.clone())));

    let root_password = std::env::var("COSKY_ROOT_PASSWORD").context("COSKY_ROOT_PASSWORD")?;
    let config = Config { root_password: Some(root_password), ..Config::default() };
    let listener = TcpListener::bind(args.listen).await?;
    println!("listening on http://{}", listener.local_addr()?);
    cosky_server::serve_with(config, Arc::new(store), listener, fixed, std::future::pending()).await?;
    Ok(())
}

async fn answer(body: Bytes) -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], body)
}
