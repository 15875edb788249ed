//! A process that serves, and ends as it should when it is told to.

use std::{net::Ipv4Addr, time::Duration};

use cosky::Instance;
use tokio::{net::TcpListener, time::sleep};

use crate::{connect, tell};

const TTL: Duration = Duration::from_secs(3);
/// How long it goes on serving after its goodbye, for those who chose it just before.
const DRAIN: Duration = Duration::from_millis(300);
/// The exit code when nobody heard the goodbye.
const UNHEARD: i32 = 3;

pub(crate) async fn run(host: Ipv4Addr, port: u16, version: &str, end: impl Future<Output = ()>) {
    let listener = TcpListener::bind((host, port)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let _ = listener.accept().await;
        }
    });
    let shop = connect().await.unwrap().default_namespace().unwrap();
    let instance = Instance::http("stock", host.to_string(), port).ttl(TTL).weight(7);
    let handle = shop.register(instance.metadata("zone", "z1").metadata("version", version)).await.unwrap();
    tell(format_args!("port {port}"));
    end.await;
    let closed = handle.close().await;
    sleep(DRAIN).await;
    std::process::exit(if closed.is_ok() { 0 } else { UNHEARD });
}
