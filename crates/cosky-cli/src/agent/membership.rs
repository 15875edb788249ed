//! The agent's registration: tried for ever, kept alive by the SDK, and ended within a limit.

use std::{net::IpAddr, time::Duration};

use cosky::{Instance, RegistrationState};
use cosky_core::{Namespace, Registration};
use tokio::{net::UdpSocket, sync::oneshot, task::JoinHandle};

use crate::client::Connection;

/// How long a deregistration may hold up the command's end.
const GOODBYE: Duration = Duration::from_secs(5);
/// The same, when the instance was never seen to be registered: only a lost answer could have left one behind.
const HASTY_GOODBYE: Duration = Duration::from_secs(1);
/// The pause between tries to find this machine's address.
const PAUSE: Duration = Duration::from_secs(2);

/// An instance that is registered as soon as a server takes it, until it leaves.
pub(crate) struct Membership {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Membership {
    /// Begins to register `wanted` beside the caller; with `find_host` under the address that this machine has towards
    /// the server.
    pub(crate) fn begin(
        connection: Connection,
        namespace: Namespace,
        wanted: Registration,
        find_host: bool,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(be_member(connection, namespace, wanted, find_host, stopped));
        Self { stop, task }
    }

    /// Stops beating and deregisters. Takes [`GOODBYE`] at most; what is not gone by then goes when its TTL is over.
    pub(crate) async fn leave(self) {
        let _ = self.stop.send(());
        if let Err(error) = self.task.await {
            tracing::error!(%error, "not deregistered; the instance goes when its TTL is over");
        }
    }
}

async fn be_member(
    connection: Connection,
    namespace: Namespace,
    wanted: Registration,
    find_host: bool,
    mut stopped: oneshot::Receiver<()>,
) {
    let host = tokio::select! {
        host = async { if find_host { find(connection.addr()).await } else { wanted.host.as_str().to_owned() } } => host,
        _ = &mut stopped => return,
    };
    let kept = connection
        .namespace(&namespace)
        .and_then(|client| Ok(client.keep_registered(instance(&wanted, host))?));
    let registration = match kept {
        Ok(registration) => registration,
        Err(error) => {
            return tracing::error!("never registered, the command runs on without being found: {error:#}");
        }
    };
    let mut changes = registration.state_changes();
    let mut was_registered = false;
    let told = async {
        let _ = changes.wait_for(|state| *state == RegistrationState::Registered).await;
        was_registered = true;
        tracing::info!(instance.id = %registration.id(), %namespace, "registered");
        // The SDK logs what comes and goes by itself. What somebody decided is for the operator to know.
        let _ = changes.wait_for(|state| *state == RegistrationState::Deregistered).await;
        tracing::warn!("somebody deregistered the instance; the command runs on without being found");
        std::future::pending::<()>().await;
    };
    tokio::select! {
        _ = &mut stopped => {}
        () = told => {}
    }
    let limit = if was_registered { GOODBYE } else { HASTY_GOODBYE };
    match tokio::time::timeout(limit, registration.close()).await {
        // The SDK has said so.
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::warn!("not deregistered; the instance goes when its TTL is over: {error}"),
        Err(_) if was_registered => {
            tracing::warn!("not deregistered within {limit:?}; the instance goes when its TTL is over");
        }
        Err(_) => {}
    }
}

/// The instance as the SDK takes it.
fn instance(wanted: &Registration, host: String) -> Instance {
    let port = u16::try_from(wanted.port.get()).expect("a port that was checked has 16 bits");
    let instance = Instance::new(wanted.service.as_str(), wanted.schema.as_str(), host, port);
    let instance = instance.weight(wanted.weight.get());
    let instance =
        wanted.metadata.iter().fold(instance, |instance, (key, value)| instance.metadata(key, value));
    match wanted.ttl {
        Some(ttl) => instance.ttl(ttl.duration()),
        None => instance,
    }
}

/// [`own_address`], tried until the server's name can be resolved.
async fn find(addresses: &str) -> String {
    loop {
        match own_address(addresses).await {
            Ok(own) => return own.to_string(),
            Err(error) => {
                tracing::warn!("cannot tell this machine's address towards the server yet: {error:#}")
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The address that this machine has towards the first server: what the system would send from. Nothing is sent.
async fn own_address(addresses: &str) -> anyhow::Result<IpAddr> {
    let first = addresses.split(',').next().unwrap_or_default();
    let url = reqwest::Url::parse(first)?;
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let port = url.port_or_known_default().unwrap_or(80);
    let mut last = None;
    for server in tokio::net::lookup_host((host, port)).await? {
        let any: IpAddr = if server.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
        let attempt = async {
            let socket = UdpSocket::bind((any, 0)).await?;
            socket.connect(server).await?;
            socket.local_addr()
        };
        match attempt.await {
            Ok(own) => return Ok(own.ip()),
            Err(error) => last = Some(error),
        }
    }
    Err(last.map_or_else(|| anyhow::anyhow!("{host} has no address"), Into::into))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn towards_the_loopback_interface_the_own_address_is_there_too() {
        for (server, own) in [("http://127.0.0.1:1", "127.0.0.1"), ("http://127.0.0.1,http://x", "127.0.0.1")]
        {
            assert_eq!(own_address(server).await.unwrap(), own.parse::<IpAddr>().unwrap());
        }
    }
}
