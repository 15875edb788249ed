//! Long polls: the news of a watch for clients that have nothing but single requests.

use std::{
    future::poll_fn,
    task::Poll,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use cosky_core::{Error, Index, Namespace, Read, Result, Scope, ServiceId, ServiceInstance, WatchStream};
use serde::Deserialize;
use tokio::time::sleep;
use utoipa::IntoParams;

use super::counted;
use crate::{ApiResult, AppState, Caller, metrics::Operation};

/// The longest wait.
const LONGEST: Duration = Duration::from_secs(60);

/// Whether to wait for news, and who asks.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Polling {
    /// How long to wait at most: `30s`, `500ms` or plain seconds. More than 60 s counts as 60 s. Needs `index`; without
    /// it the answer comes at once.
    wait: Option<String>,
    /// The `X-Cosky-Index` of the last answer. Opaque: one that this server does not know is answered at once.
    index: Option<String>,
    /// Who asks, for the topology.
    pub(super) consumer: Option<String>,
}

/// A wait for what comes after an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wait {
    longest: Duration,
    after: Index,
}

impl Polling {
    /// What to wait for, if anything.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] of `wait` or `index`.
    pub(super) fn wait(&self) -> Result<Option<Wait>> {
        let longest = self.wait.as_deref().map(duration).transpose()?;
        let after = self.index.as_deref().map(str::parse).transpose()?;
        Ok(longest.zip(after).map(|(longest, after)| Wait { longest, after }))
    }
}

/// The instances of `service`: now, or as soon as something changed after an index, or when the wait is over. A drain
/// and the end of the caller's credential end a wait early. An answer without news has the index that was asked with. Who
/// was let in by what was revoked meanwhile is refused.
///
/// Dropping the future gives the place among the waiting polls back.
pub(super) async fn instances(
    state: &AppState,
    caller: &Caller,
    namespace: &Namespace,
    service: &ServiceId,
    wait: Option<Wait>,
) -> ApiResult<Read<Vec<ServiceInstance>>> {
    let read =
        async || counted(state, Operation::ReadInstances, state.store.instances(namespace, service).await);
    let Some(Wait { longest, after }) = wait else { return read().await };
    let place = state.streams.long_poll()?;
    let waiting = state.metrics.long_poll();
    let scope = Scope::services([service.clone()])?;
    let mut changes = state.store.watch(namespace, scope, Some(after)).await?;
    let longest = remaining(caller).map_or(longest, |left| left.min(longest));
    let news = tokio::select! {
        biased;
        () = arrival(&mut changes) => true,
        () = state.streams.draining().cancelled() => false,
        () = sleep(longest) => false,
    };
    drop((place, waiting));
    state.auth.check_again(caller).await?;
    let mut read = read().await?;
    // What came between the end of the wait and the read is in the body, so the body must not go by the old index.
    if !news && !arrived(&mut changes).await {
        read.index = after;
    }
    Ok(read)
}

/// How long the caller's credential is still good; `None` when it has no end.
pub(super) fn remaining(caller: &Caller) -> Option<Duration> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    caller.expires_at.map(|end| Duration::from_secs(end).saturating_sub(now))
}

/// Waits until the stream has anything to say: a change, an error or its end. Each is a reason to read again.
async fn arrival(changes: &mut WatchStream) {
    poll_fn(|cx| changes.as_mut().poll_next(cx).map(drop)).await;
}

/// Whether [`arrival`] would not wait.
async fn arrived(changes: &mut WatchStream) -> bool {
    poll_fn(|cx| Poll::Ready(changes.as_mut().poll_next(cx).is_ready())).await
}

/// `30s`, `500ms` or plain seconds, at most [`LONGEST`].
fn duration(text: &str) -> Result<Duration> {
    let (number, unit): (_, fn(u64) -> Duration) = match text.strip_suffix("ms") {
        Some(number) => (number, Duration::from_millis),
        None => (text.strip_suffix('s').unwrap_or(text), Duration::from_secs),
    };
    let digits = !number.is_empty() && number.len() <= 9 && number.bytes().all(|b| b.is_ascii_digit());
    match number.parse() {
        Ok(number) if digits => Ok(unit(number).min(LONGEST)),
        _ => Err(Error::invalid(
            "wait",
            "must be a number of seconds such as 30s, or of milliseconds such as 500ms",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_seconds_or_milliseconds() {
        for (text, ms) in
            [("30s", 30_000), ("500ms", 500), ("2", 2_000), ("0s", 0), ("61s", 60_000), ("999999999", 60_000)]
        {
            assert_eq!(duration(text).unwrap(), Duration::from_millis(ms), "{text}");
        }
        for bad in
            ["", "s", "ms", "-1s", "+1s", "1.5s", "1m", "1 s", "9999999999", "18446744073709551616s", "٣s"]
        {
            assert!(duration(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn without_both_there_is_no_wait() {
        let polling = |wait: Option<&str>, index: Option<&str>| {
            Polling { wait: wait.map(Into::into), index: index.map(Into::into), consumer: None }.wait()
        };
        let index = Index { epoch: 1, sequence: 2 };
        let wait = Wait { longest: Duration::from_secs(1), after: index };
        assert_eq!(polling(Some("1s"), Some(&index.to_string())).unwrap(), Some(wait));
        assert_eq!(polling(Some("1s"), None).unwrap(), None);
        assert_eq!(polling(None, Some(&index.to_string())).unwrap(), None);
        assert!(polling(None, Some("7")).is_err(), "a bad index is an error even when nothing waits for it");
        assert!(polling(Some("soon"), None).is_err());
    }
}
