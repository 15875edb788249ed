//! A process that looks at one service all the time.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use cosky::{LiveView, ServiceInstance, StoreState};
use tokio::time::{MissedTickBehavior, interval};

use crate::{NO_SERVER, connect, tell};

/// How often it looks, whether or not it was told of a change.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How often it tells its clock.
const CLOCK_EVERY: u64 = 200;

/// `fast` asks for a server and for the first list before it goes on, `lazy` waits for the list only, `empty` for nothing.
pub(crate) async fn run(start: &str, service: &str, end: impl Future<Output = ()>) {
    let view = match open(start, service).await {
        Ok(view) => view,
        Err(error) => {
            tell(format_args!("failed {error}"));
            std::process::exit(NO_SERVER);
        }
    };
    tokio::pin!(end);
    let mut tick = interval(LOOK_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let (mut looks, mut last, mut line) = (0u64, None, String::new());
    loop {
        let mut changes = view.clone();
        tokio::select! {
            () = &mut end => break,
            _ = tick.tick() => {}
            _ = changes.changed() => {}
        }
        if looks.is_multiple_of(CLOCK_EVERY) {
            tell(format_args!("clock {}", SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()));
        }
        looks += 1;
        let (state, list) = (view.state(), view.snapshot());
        if last.as_ref().is_some_and(|(was, had)| *was == state && Arc::ptr_eq(had, &list)) {
            continue;
        }
        let seen = told(state, &list);
        if seen != line {
            tell(format_args!("list {seen}"));
            line = seen;
        }
        last = Some((state, list));
    }
    tell(format_args!("looks {looks}"));
}

async fn open(start: &str, service: &str) -> cosky::Result<LiveView> {
    let cosky = if start == "fast" { connect().await? } else { connect().lazy().await? };
    let look = cosky.default_namespace()?.discover(service);
    if start == "empty" { look.start_empty().await } else { look.await }
}

/// The state, then each instance with its version.
fn told(state: StoreState, list: &[ServiceInstance]) -> String {
    let mut line = format!("{state:?}");
    for instance in list {
        let version = instance.metadata().get("version").unwrap_or_default();
        line.push_str(&format!(" {}={version}", instance.id()));
    }
    line
}
