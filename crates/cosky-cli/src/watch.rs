//! `cosky watch`: what changes in a namespace, one JSON object a line.

use std::{sync::Arc, thread};

use clap::Args;
use cosky::{Watch, Watched};
use cosky_core::{Change, Error, Event, Scope, ServiceId};
use rustix::event::{PollFd, PollFlags, poll};
use tokio::sync::oneshot;

use crate::{
    client::{Connection, NamespaceArgs, ServerArgs},
    exit::ReaderGone,
    output::{print, say},
};

/// Print what changes, one JSON object a line, until interrupted
#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    scope: NamespaceArgs,
    /// Service to follow; may be repeated; all of the namespace, when not given
    #[arg(long, value_name = "SERVICE")]
    service: Vec<ServiceId>,
}

pub(crate) async fn run(args: WatchArgs) -> anyhow::Result<()> {
    let scope = if args.service.is_empty() { Scope::All } else { Scope::services(args.service)? };
    let connection = Connection::open(&args.server).await?;
    let watch = connection.namespace(&args.scope.namespace)?.watch(scope);
    // A pipe that nobody reads is noticed at the next line only, and that may be hours away.
    let (tell, gone) = oneshot::channel();
    thread::spawn(move || {
        reader_gone();
        tell.send(())
    });
    tokio::select! {
        result = follow(watch) => result,
        _ = gone => Err(ReaderGone.into()),
    }
}

/// Prints for ever. A stream that is lost is opened again where it ended; when no server knows that place any more, a
/// snapshot tells what is.
async fn follow(mut watch: Watch) -> anyhow::Result<()> {
    let mut begun = false;
    loop {
        match watch.next().await {
            Watched::Change(change) => {
                print(&line(&change))?;
                begun = true;
            }
            Watched::Resumed => {}
            Watched::Lost(error @ Error::Unavailable { .. }) if begun => {
                say(format_args!("cosky: {error}; watching again"));
            }
            Watched::Lost(error) => return Err(error.into()),
        }
    }
}

/// `{"event":…,"index":…,"data":…}` and a line break.
fn line(change: &Arc<Change>) -> String {
    let name = match change.event {
        Event::Snapshot(_) => "snapshot",
        Event::Instance { .. } => "instance",
        Event::Service { .. } => "service",
        Event::State(_) => "state",
        _ => "other",
    };
    let data = change.frame().lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or("null");
    format!("{{\"event\":\"{name}\",\"index\":\"{}\",\"data\":{data}}}\n", change.index)
}

/// Blocks until nobody reads standard output any more; for ever, when it is no pipe.
fn reader_gone() {
    let stdout = std::io::stdout();
    loop {
        let mut wanted = [PollFd::new(&stdout, PollFlags::empty())];
        match poll(&mut wanted, None) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(_) if wanted[0].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) => {
                return;
            }
            _ => loop {
                thread::park();
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use cosky_core::{Index, Life, Registration, ServiceInstance};

    use super::*;

    #[test]
    fn a_line_is_one_json_object() {
        let service = ServiceId::new("order").unwrap();
        let new = Registration::new(service.clone(), "http", "h", 80).unwrap();
        let event = Event::Instance {
            op: cosky_core::InstanceOp::Register,
            service,
            id: new.id(),
            instance: Some(ServiceInstance::new(Arc::new(new.into()), Life::Permanent)),
        };
        let line = line(&Arc::new(Change::new(Index { epoch: 1, sequence: 2 }, event)));
        assert_eq!(line.matches('\n').count(), 1);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["event"], "instance");
        assert_eq!(value["index"], "0000000000000001:2");
        assert_eq!(value["data"]["op"], "register");
        assert_eq!(value["data"]["instance"]["instanceId"], "order@http#h#80");
    }
}
