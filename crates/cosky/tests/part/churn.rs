//! Views that are opened and given up, again and again.

use std::time::Duration;

use tokio::time::sleep;

use crate::{connect, tell};

/// At one time.
const TOGETHER: usize = 20;
const TELL_EVERY: Duration = Duration::from_millis(250);

/// Tells `done N` after every tenth part of the rounds.
pub(crate) async fn run(rounds: usize, end: impl Future<Output = ()>) {
    let namespace = connect().await.unwrap().default_namespace().unwrap();
    let one = async |round: usize| {
        // Half of them wait for their first list, the others go before it can come.
        let look = namespace.discover(format!("svc-{}", round % 100));
        if round.is_multiple_of(2) {
            drop(look.await.unwrap())
        } else {
            drop(look.start_empty().await.unwrap())
        }
    };
    for part in 1..=10 {
        let mut round = 0;
        while round < rounds / 10 {
            let together = (0..TOGETHER).map(|at| one(round + at));
            futures_util::future::join_all(together).await;
            round += TOGETHER;
        }
        tell(format_args!("done {}", part * rounds / 10));
        sleep(TELL_EVERY).await;
    }
    end.await;
}
