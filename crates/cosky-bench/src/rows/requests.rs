//! One read and one beat, beside static answers of the same size behind the same middleware.

use std::{env, sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use cosky_core::{Namespace, wire};
use cosky_testkit::process::{CoskyServer, ServerOptions};

use super::{Setup, api_token};
use crate::{
    client::{Connection, request},
    load::{closed_loop, median},
    report::{Goal, Row, Unit},
    serve::{INSTANCES, NAMESPACE, SERVICE, STATIC_BEAT, STATIC_LIST, instance},
};

const CONNECTIONS: usize = 50;
const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_secs(1);

pub(super) async fn measure(setup: &Setup) -> Result<Vec<Row>> {
    let server = setup.start(ServerOptions::default().binary(env::current_exe()?)).await?;
    let token = api_token(&server).await?;
    let namespace = Namespace::new(NAMESPACE)?;
    let path = wire::namespace_path(&namespace, &["services", SERVICE, "instances"]);
    let list = vec![request("GET", &path, &token, None)];
    let mut beats = Vec::new();
    for number in 0..INSTANCES {
        let id = instance(SERVICE, number)?.id();
        let path = wire::namespace_path(&namespace, &["services", SERVICE, "instances", id.as_str(), "beat"]);
        beats.push(request("PUT", &path, &token, None));
    }
    let fixed_list = vec![request("GET", STATIC_LIST, &token, None)];
    let fixed_beat = vec![request("PUT", STATIC_BEAT, &token, None)];

    // The first beat may find less life left than the static answer says, so its length may differ by a digit or two.
    same_size(&server, &list[0], &fixed_list[0], 0).await?;
    same_size(&server, &beats[0], &fixed_beat[0], 2).await?;
    Ok(vec![
        compare("GET 10 instances / static bytes, per core", &server, list, fixed_list).await?,
        compare("one beat / static bytes, per core", &server, beats, fixed_beat).await?,
    ])
}

async fn same_size(server: &CoskyServer, product: &[u8], fixed: &[u8], tolerance: usize) -> Result<()> {
    let mut connection = Connection::open(server.address()).await?;
    let (product, fixed) = (connection.ok(product).await?, connection.ok(fixed).await?);
    ensure!(
        product.len().abs_diff(fixed.len()) <= tolerance,
        "{} and {} bytes cannot be compared",
        product.len(),
        fixed.len()
    );
    Ok(())
}

async fn compare(
    what: &str,
    server: &CoskyServer,
    product: Vec<Vec<u8>>,
    fixed: Vec<Vec<u8>>,
) -> Result<Row> {
    let (product, fixed) = (Arc::new(product), Arc::new(fixed));
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (requests, rates) in [&product, &fixed].into_iter().zip(&mut rates) {
            let load = closed_loop(server.address(), server.pid(), CONNECTIONS, requests, ROUND).await?;
            rates.push(load.per_core_second());
        }
    }
    let [mut product, mut fixed] = rates;
    Ok(Row::beside(what, median(&mut product), median(&mut fixed), Unit::PerSecond, Goal::RatioAtLeast(0.7)))
}
