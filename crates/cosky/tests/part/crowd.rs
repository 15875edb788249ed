//! Many clients in one process.

use std::time::Duration;

use cosky::{Instance, LiveView, Registration, RegistrationState, StoreState};
use tokio::time::sleep;

use crate::{connect, tell};

const TTL: Duration = Duration::from_secs(6);
const LOOK_EVERY: Duration = Duration::from_millis(50);

pub(crate) struct Size {
    pub(crate) clients: usize,
    /// Of each client: `svc-0` and so on.
    pub(crate) watches: usize,
    /// Of all clients together, each an instance of the next service.
    pub(crate) providers: usize,
}

/// Tells `crowd LIVE INSTANCES REGISTERED` whenever one of them changes: views that are live, what all of them show
/// together, and instances that are registered.
pub(crate) async fn run(size: Size, first_port: u16, end: impl Future<Output = ()>) {
    let (mut views, mut registrations) = (Vec::new(), Vec::new());
    for client in 0..size.clients {
        let namespace = connect().lazy().await.unwrap().default_namespace().unwrap();
        for service in 0..size.watches {
            views.push(namespace.discover(format!("svc-{service}")).start_empty().await.unwrap());
        }
        for at in (client..size.providers).step_by(size.clients) {
            let service = format!("svc-{}", at % size.watches.max(1));
            let port = first_port + u16::try_from(at).unwrap();
            let instance = Instance::http(service, "127.0.0.1", port).ttl(TTL);
            registrations.push(namespace.keep_registered(instance).unwrap());
        }
    }
    tokio::select! {
        () = end => {}
        () = look(&views, &registrations) => {}
    }
}

async fn look(views: &[LiveView], registrations: &[Registration]) {
    let mut last = None;
    loop {
        let live = views.iter().filter(|view| view.state() == StoreState::Live).count();
        let instances: usize = views.iter().map(|view| view.snapshot().len()).sum();
        let registered =
            registrations.iter().filter(|one| one.state() == RegistrationState::Registered).count();
        let seen = Some((live, instances, registered));
        if seen != last {
            tell(format_args!("crowd {live} {instances} {registered}"));
            last = seen;
        }
        sleep(LOOK_EVERY).await;
    }
}
