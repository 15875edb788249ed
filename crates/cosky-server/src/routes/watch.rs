//! `GET …/watch`: the changes of a namespace as server-sent events (design §5).

use std::sync::Arc;

use axum::{
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
};
use cosky_core::{
    ConsumerName, Error, Event, Index, Result, Scope, ServiceId, WatchStream,
    wire::{InstanceEventBody, ServiceEventBody, SnapshotBody, StateBody},
};
use futures_util::{FutureExt as _, StreamExt as _, stream};
use http::{HeaderMap, HeaderName, header};

use super::{
    Refused, consumer, counted, digest,
    place::InNamespace,
    poll::remaining,
    stream::{MayWatch, WatchBody},
};
use crate::{ApiResult, AppState, Caller, extract::Query, metrics::Operation};

/// Tells proxies of the nginx kind to pass each event on at once.
const NO_BUFFERING: (HeaderName, &str) = (HeaderName::from_static("x-accel-buffering"), "no");
const RESUMED: HeaderName = HeaderName::from_static(cosky_core::wire::RESUMED);
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The events of a watch by name, for the description of the route.
#[derive(serde::Serialize, utoipa::ToSchema)]
#[serde(untagged)]
#[schema(as = WatchEvent)]
#[expect(dead_code, reason = "describes events; cosky-core makes their text")]
pub(super) enum EventBody {
    /// `event: snapshot`
    Snapshot(SnapshotBody),
    /// `event: instance`
    Instance(InstanceEventBody),
    /// `event: service`
    Service(ServiceEventBody),
    /// `event: state`
    State(StateBody),
}

/// What a watcher asks for.
#[derive(Debug)]
struct Asked {
    scope: Scope,
    from: Option<Index>,
    consumer: Option<ConsumerName>,
}

impl Asked {
    fn new(query: &[(String, String)], headers: &HeaderMap) -> Result<Self> {
        let (mut services, mut index, mut consumer) = (Vec::new(), None, None);
        for (name, value) in query {
            match name.as_str() {
                "service" => services.push(ServiceId::new(value)?),
                "index" => index = Some(value.parse()?),
                "consumer" => consumer = Some(ConsumerName::new(value)?),
                "config" => {
                    return Err(Error::invalid(
                        "config",
                        "this server has no configs yet; leave the parameter out to watch services",
                    ));
                }
                _ => {}
            }
        }
        let scope = digest::scope(services)?;
        // A browser repeats the id of the server that it last spoke to, whatever kind that was: what is no index gets a
        // snapshot, as an index of another server does.
        let resumed = || headers.get(LAST_EVENT_ID)?.to_str().ok()?.parse().ok();
        Ok(Self { scope, from: resumed().or(index), consumer })
    }
}

/// Watch a namespace
///
/// Server-sent events. First comes a `snapshot` of what is watched, unless `Last-Event-ID` or `index` lies among the
/// changes that this server remembers; then the changes after it. A comment line every 15 s. The stream ends cleanly
/// after about half an hour, at the end of the credential or soon after it was revoked, after a `state` event `draining`
/// when the server stops, and when the watcher falls behind: ask again, with the last id, on any address.
#[utoipa::path(
    get, path = "/v1/namespaces/{namespace}/watch", tag = "watch", operation_id = "watch",
    params(
        ("namespace" = String, Path, description = "The namespace"),
        ("service" = Option<Vec<String>>, Query, description = "Services to watch, whether they exist yet or not: up to \
            1,000, as far as the address may be long; the whole namespace without"),
        ("index" = Option<String>, Query, description = "As `Last-Event-ID`, for clients that cannot set headers"),
        ("consumer" = Option<String>, Query, description = "Who asks, for the topology"),
        ("Last-Event-ID" = Option<String>, Header, description = "The `id` of the last event of an earlier stream")
    ),
    responses(
        (status = 200, description = "Events `snapshot`, `instance`, `service` and `state`; each has an `id`, the \
            `state` of a server that drains excepted",
            body = EventBody, content_type = "text/event-stream", headers(
            ("X-Cosky-Resumed" = bool, description = "`true` when the changes after the index follow, `false` when a \
                snapshot does"),
        )),
        Refused
    )
)]
pub(super) async fn watch(
    State(state): State<AppState>,
    InNamespace(namespace): InNamespace,
    Query(query): Query<Vec<(String, String)>>,
    caller: Caller,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let asked = Asked::new(&query, &headers)?;
    let place = state.streams.watcher()?;
    let changes = state.store.watch(&namespace, asked.scope.clone(), asked.from).await;
    let changes = counted(&state, Operation::Watch, changes)?;
    let (resumed, changes) = if asked.from.is_some() { resumes(changes) } else { (false, changes) };
    if let Scope::Services(services) = &asked.scope {
        consumer::note(&state, &namespace, asked.consumer.as_ref(), services);
    }
    let age = state.streams.age();
    let age = remaining(&caller).map_or(age, |left| left.min(age));
    let draining = state.streams.draining().clone();
    let body =
        WatchBody::new(changes, age, draining, may_watch(&state, caller), state.metrics.clone(), place);
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
        NO_BUFFERING,
        (RESUMED, if resumed { "true" } else { "false" }),
    ];
    Ok((headers, Body::new(body)).into_response())
}

/// Whether a stream goes on after the index that was asked for. A snapshot is there at once, but large ones take a while
/// on their way, and until then what the watcher knows is old.
fn resumes(mut changes: WatchStream) -> (bool, WatchStream) {
    let Some(first) = changes.next().now_or_never() else { return (true, changes) };
    let anew = matches!(&first, Some(Ok(change)) if matches!(change.event, Event::Snapshot(_)));
    (!anew, Box::pin(stream::iter(first).chain(changes)))
}

/// Streams outlive revocations, so each asks again.
fn may_watch(state: &AppState, caller: Caller) -> MayWatch {
    let (auth, caller) = (Arc::clone(&state.auth), Arc::new(caller));
    Box::new(move || {
        let (auth, caller) = (Arc::clone(&auth), Arc::clone(&caller));
        Box::pin(async move { auth.check_again(&caller).await.is_ok() })
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn asked(query: &[(&str, &str)], last: Option<&'static str>) -> Result<Asked> {
        let query: Vec<_> = query.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let last = last.map(|id| (LAST_EVENT_ID, HeaderValue::from_static(id)));
        Asked::new(&query, &last.into_iter().collect())
    }

    #[test]
    fn services_repeat_up_to_their_limit() {
        assert_eq!(asked(&[], None).unwrap().scope, Scope::All);
        let two = Scope::services(["a", "b"].map(|id| ServiceId::new(id).unwrap())).unwrap();
        assert_eq!(asked(&[("service", "b"), ("service", "a"), ("service", "b")], None).unwrap().scope, two);
        let many: Vec<_> = (0..1001).map(|i| i.to_string()).collect();
        let many: Vec<_> = many.iter().map(|id| ("service", id.as_str())).collect();
        assert!(asked(&many[..1000], None).is_ok());
        assert!(asked(&many, None).unwrap_err().to_string().starts_with("service: "));
        assert!(asked(&[("service", "a@b")], None).is_err());
        assert!(asked(&[("config", "x")], None).unwrap_err().to_string().starts_with("config: "));
    }

    #[test]
    fn the_last_event_counts_more_than_the_index_of_the_address() {
        let (old, new) = (Index { epoch: 1, sequence: 1 }, Index { epoch: 1, sequence: 2 });
        let index = [("index", "1:1")];
        assert_eq!(asked(&index, None).unwrap().from, Some(old));
        assert_eq!(asked(&index, Some("0000000000000001:2")).unwrap().from, Some(new));
        assert_eq!(asked(&index, Some("of another kind")).unwrap().from, Some(old));
        assert_eq!(asked(&[], Some("")).unwrap().from, None);
        assert!(asked(&[("index", "one")], None).is_err());
    }
}
