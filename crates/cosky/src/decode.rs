//! Answers of servers, read back into the words of `cosky-core`.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use cosky_core::{
    Change, Error, Event, Index, InstanceId, Life, Read, Result, ServiceId, ServiceInstance, Snapshot,
    StoreState,
    wire::{self, ErrorBody, InstanceBody, InstanceEventBody, ServiceEventBody, SnapshotBody, StateBody},
};
use reqwest::{
    StatusCode,
    header::{DATE, HeaderMap, RETRY_AFTER},
};
use serde::de::DeserializeOwned;

use crate::{sse::SseEvent, transport::Answer};

/// What the limits of a store count. [`Error::Exhausted`] names one of them.
const COUNTED: [&str; 7] =
    ["namespaces", "services", "instances", "watchers", "API tokens", "connections", "long polls"];

/// `Date` and `ttlAt` are whole seconds, the one cut off and the other rounded: together they may say so much more than
/// is left.
const ROUNDED: Duration = Duration::from_millis(1500);

/// The clock of a server, known from the `Date` of one of its answers and run on by the local clock, so that no two
/// machines' clocks are compared.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServerClock {
    /// Seconds since 1970 at `seen`, when the server told.
    unix: Option<Duration>,
    seen: Instant,
}

impl ServerClock {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let date = headers.get(DATE).and_then(|date| date.to_str().ok());
        let date = date.and_then(|date| httpdate::parse_http_date(date).ok());
        Self {
            unix: date.and_then(|date: SystemTime| date.duration_since(UNIX_EPOCH).ok()),
            seen: Instant::now(),
        }
    }

    /// How long it is until `ttl_at` there: never more than is left, and up to 2 s less, but at least a millisecond, since
    /// whether a life is over is not for this clock to say.
    fn until(&self, ttl_at: i64) -> Duration {
        let end = Duration::from_secs(u64::try_from(ttl_at).unwrap_or_default());
        let left = self.unix.and_then(|unix| end.checked_sub(unix + self.seen.elapsed() + ROUNDED));
        left.unwrap_or_default().max(Duration::from_millis(1))
    }

    /// When `remaining` is over there, in seconds since 1970.
    pub(crate) fn end_of(&self, remaining: Duration) -> i64 {
        let end = self.unix.map(|unix| unix + self.seen.elapsed() + remaining).unwrap_or_default();
        i64::try_from(end.as_secs()).unwrap_or(i64::MAX)
    }

    fn instance(&self, body: InstanceBody) -> Result<ServiceInstance> {
        let remaining = if body.is_expired { Duration::ZERO } else { self.until(body.ttl_at) };
        body.read(Some(remaining))
    }
}

/// A JSON body.
///
/// # Errors
/// What [`refusal`] says of any status but 200, and [`Error::Corrupt`] for a body of another shape.
pub(crate) fn json<T: DeserializeOwned>(answer: &Answer) -> Result<T> {
    if answer.status != StatusCode::OK {
        return Err(refusal(answer));
    }
    parse(&answer.body)
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    serde_json::from_slice(body)
        .map_err(|error| Error::Corrupt { reason: format!("the server's answer has another form: {error}") })
}

/// The code and the text of an answer that refuses.
pub(crate) fn error_body(answer: &Answer) -> ErrorBody {
    serde_json::from_slice(&answer.body).unwrap_or_else(|_| ErrorBody {
        code: String::new(),
        msg: format!("the server answers {}", answer.status),
        authorized: None,
        reason: None,
    })
}

/// Whether a cosky server says that it does not have such a path, or not this method on it.
pub(crate) fn is_unknown_path(answer: &Answer) -> bool {
    match answer.status {
        StatusCode::METHOD_NOT_ALLOWED => true,
        StatusCode::NOT_FOUND => error_body(answer).msg.starts_with(wire::NO_SUCH_PATH),
        _ => false,
    }
}

/// Whether this is how the CoSky server of the JVM refuses (compat §4.2).
pub(crate) fn is_jvm_refusal(body: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Refusal {
        Code {
            code: String,
            #[serde(rename = "msg")]
            _msg: String,
        },
        Authorized {
            authorized: bool,
            #[serde(rename = "reason")]
            _reason: String,
        },
    }
    match serde_json::from_slice(body) {
        Ok(Refusal::Code { code, .. }) => code == "0001",
        Ok(Refusal::Authorized { authorized, .. }) => !authorized,
        Err(_) => false,
    }
}

/// How long the server asks to stay away. Ours say it in seconds; a date would need a clock that agrees with theirs.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?;
    seconds.trim().parse().ok().map(Duration::from_secs)
}

/// What a status other than 200 means.
pub(crate) fn refusal(answer: &Answer) -> Error {
    let status = answer.status;
    let body = error_body(answer);
    let msg = body.msg;
    match status.as_u16() {
        401 => Error::Unauthorized { reason: body.reason.unwrap_or(msg) },
        403 => Error::Forbidden { reason: body.reason.unwrap_or(msg) },
        404 => Error::NotFound { what: before(msg, " does not exist") },
        // The body was on its way for too long, so the server did nothing.
        408 => Error::unavailable(msg),
        409 => Error::Conflict { reason: msg },
        410 => Error::Gone { what: before(msg, " was deregistered") },
        413 => {
            let (field, limit) = msg.rsplit_once(" is larger than ").unwrap_or((&msg, ""));
            Error::TooLarge { limit: number(limit), field: field.to_owned().into() }
        }
        429 => {
            let what = COUNTED.into_iter().find(|what| msg.contains(what)).unwrap_or("requests");
            let limit = msg.split(|c: char| !c.is_ascii_digit()).find(|digits| !digits.is_empty());
            Error::Exhausted { what, limit: number(limit.unwrap_or_default()) }
        }
        400..=499 => {
            let (field, reason) = msg.split_once(": ").unwrap_or(("request", &msg));
            Error::InvalidArgument { field: field.to_owned().into(), reason: reason.to_owned().into() }
        }
        500 => Error::Corrupt { reason: msg },
        // Our servers say when nothing was written; of what anything in between says, nothing is known.
        _ => {
            let nothing_written = matches!(body.code.as_str(), "unavailable" | "shutting_down");
            Error::Unavailable { reason: msg, maybe_applied: !nothing_written, source: None }
        }
    }
}

fn before(msg: String, end: &str) -> String {
    msg.strip_suffix(end).map(str::to_owned).unwrap_or(msg)
}

fn number(text: &str) -> usize {
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_default()
}

/// `value` with what the headers say of it.
///
/// # Errors
/// [`Error::Corrupt`] when they say nothing.
pub(crate) fn read<T>(headers: &HeaderMap, value: T) -> Result<Read<T>> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let index = text(wire::INDEX).and_then(|index| index.parse().ok());
    let state = text(wire::STATE).map(state);
    let (Some(index), Some(state)) = (index, state) else {
        let reason = "the answer lacks X-Cosky-Index or X-Cosky-State; is the server too old?".into();
        return Err(Error::Corrupt { reason });
    };
    let age = text(wire::AGE).and_then(|age| age.parse().ok()).map_or(Duration::ZERO, Duration::from_millis);
    Ok(Read { value, index, age, state })
}

/// How long a registered instance lives without a beat: absent for a permanent one.
pub(crate) fn life(headers: &HeaderMap) -> Life {
    let ms = headers.get(wire::TTL_MS).and_then(|ms| ms.to_str().ok()).and_then(|ms| ms.parse().ok());
    match ms.map(Duration::from_millis) {
        None => Life::Permanent,
        Some(remaining) => Life::Remaining { remaining, ttl_at: ServerClock::of(headers).end_of(remaining) },
    }
}

/// The instances in an answer. One that cannot be read is left out: it must not hide the others.
pub(crate) fn instances(answer: &Answer) -> Result<Vec<ServiceInstance>> {
    let clock = ServerClock::of(&answer.headers);
    let bodies: Vec<InstanceBody> = parse(&answer.body)?;
    Ok(bodies.into_iter().filter_map(|body| readable(body, clock)).collect())
}

/// The instance in an answer, or nothing in an empty one. Its remaining life is in a header.
pub(crate) fn instance(answer: &Answer) -> Result<Option<ServiceInstance>> {
    if answer.body.is_empty() {
        return Ok(None);
    }
    parse::<InstanceBody>(&answer.body)?.read(life(&answer.headers).remaining()).map(Some)
}

fn readable(body: InstanceBody, clock: ServerClock) -> Option<ServiceInstance> {
    clock.instance(body).inspect_err(|error| tracing::debug!(%error, "left out an instance")).ok()
}

/// Service ids in an answer. One that breaks our rules is left out: it must not hide the others.
pub(crate) fn services(body: &Bytes) -> Result<Vec<ServiceId>> {
    let names: Vec<String> = parse(body)?;
    Ok(names.iter().filter_map(|name| ServiceId::new(name).ok()).collect())
}

/// What an event of a watch says; nothing for an event, an operation or a state that this client does not know, and for
/// a service that breaks our rules. An instance that cannot be read counts as gone, as a snapshot leaves it out. `last` is
/// the place of an event without an id.
///
/// # Errors
/// [`Error::Corrupt`], and no other, when it has another form than its name says.
pub(crate) fn change(
    event: &SseEvent,
    last: Option<Index>,
    clock: ServerClock,
) -> Result<Option<Arc<Change>>> {
    let data = event.data.as_bytes();
    let known = match event.name.as_str() {
        "snapshot" => Some(snapshot(parse(data)?, clock)),
        "instance" => instance_event(parse(data)?, clock),
        "service" => service_event(&parse(data)?),
        "state" => parse::<StateBody>(data)?.state.parse().ok().map(Event::State),
        _ => None,
    };
    let Some(known) = known else {
        tracing::debug!(event = event.name, data = event.data, "passed over what is not known here");
        return Ok(None);
    };
    if event.id.is_empty() {
        return Ok(last.map(|place| Arc::new(Change::new(place, known))));
    }
    let place =
        event.id.parse().map_err(|error| Error::Corrupt { reason: format!("an event's id: {error}") })?;
    Ok(Some(Arc::new(Change::new(place, known))))
}

fn instance_event(body: InstanceEventBody, clock: ServerClock) -> Option<Event> {
    Some(Event::Instance {
        op: body.op.parse().ok()?,
        service: ServiceId::new(&body.service_id).ok()?,
        id: InstanceId::stored(&body.instance_id),
        instance: body.instance.and_then(|instance| readable(instance, clock)),
    })
}

fn service_event(body: &ServiceEventBody) -> Option<Event> {
    Some(Event::Service { op: body.op.parse().ok()?, service: ServiceId::new(&body.service_id).ok()? })
}

fn snapshot(body: SnapshotBody, clock: ServerClock) -> Event {
    let named = |(name, list): (String, Vec<InstanceBody>)| {
        let list = list.into_iter().filter_map(|body| readable(body, clock)).collect();
        Some((ServiceId::new(&name).ok()?, list))
    };
    // A form that is not known tells as little as none.
    let store = body.store.and_then(|store| store.parse().ok());
    let services = body.services.into_iter().filter_map(named).collect();
    Event::Snapshot(Snapshot { services, state: state(&body.state), store })
}

/// The state in a word. Of one that is not known here what is there counts, and what is absent does not.
fn state(word: &str) -> StoreState {
    word.parse().unwrap_or(StoreState::Protected)
}

#[cfg(test)]
mod tests {
    use cosky_core::StoreId;

    use super::*;

    fn answer(status: u16, body: &str) -> Answer {
        let status = StatusCode::from_u16(status).unwrap();
        Answer {
            status,
            headers: HeaderMap::new(),
            body: Bytes::copy_from_slice(body.as_bytes()),
            stream: None,
            address: 0,
        }
    }

    #[test]
    fn every_kind_of_error_survives_the_wire() {
        let errors = [
            (400, Error::invalid("host", "must not be empty: really")),
            (401, Error::Unauthorized { reason: "Token Expired".into() }),
            (403, Error::Forbidden { reason: "Implicit Deny".into() }),
            (404, Error::NotFound { what: "instance a@http#h#1".into() }),
            (408, Error::unavailable("the body did not arrive within 10 s; nothing was written")),
            (409, Error::Conflict { reason: "has live instances".into() }),
            (410, Error::Gone { what: "instance a@http#h#1".into() }),
            (413, Error::TooLarge { field: "metadata.x".into(), limit: 4096 }),
            (429, Error::Exhausted { what: "instances", limit: 100_000 }),
            (503, Error::unavailable("the disk is full")),
        ];
        for (status, error) in errors {
            let reason = match &error {
                Error::Unauthorized { reason } | Error::Forbidden { reason } => Some(reason.clone()),
                _ => None,
            };
            let body = ErrorBody { code: "x".into(), msg: error.to_string(), authorized: None, reason };
            let read = refusal(&answer(status, &serde_json::to_string(&body).unwrap()));
            assert_eq!(read.to_string(), error.to_string());
            assert_eq!(std::mem::discriminant(&read), std::mem::discriminant(&error));
        }
        assert!(refusal(&answer(418, "<html>")).to_string().contains("418"));
    }

    #[test]
    fn a_server_says_whether_a_write_may_have_been_applied() {
        let maybe = |code: &str| {
            let error = refusal(&answer(503, &format!(r#"{{"code":"{code}","msg":"m"}}"#)));
            matches!(error, Error::Unavailable { maybe_applied: true, .. })
        };
        assert!(maybe("outcome_unknown") && maybe("from a proxy"));
        assert!(!maybe("unavailable") && !maybe("shutting_down"));
    }

    #[test]
    fn an_unreadable_instance_does_not_hide_the_others() {
        let good = r#"{"instanceId":"a@http#h#1","serviceId":"a","schema":"http","host":"h","port":1,"weight":1,
            "isEphemeral":true,"ttlAt":1790000060,"isExpired":false,"metadata":{}}"#;
        let bad = good.replace(r#""host":"h""#, r#""host":"no host""#);
        let list = instances(&answer(200, &format!("[{bad},{good}]"))).unwrap();
        assert_eq!(list.len(), 1);
        assert!(!list[0].life().is_expired(), "without a Date nothing is said to be over");
    }

    fn told(name: &str, id: &str, data: &str) -> Result<Option<Arc<Change>>> {
        let event = SseEvent { id: id.into(), name: name.into(), data: data.into() };
        change(&event, None, ServerClock::of(&HeaderMap::new()))
    }

    #[test]
    fn what_a_newer_server_says_beside_is_passed_over_and_costs_nothing_else() {
        for (name, data) in [
            ("weather", "sunny"),
            ("state", r#"{"state":"dreaming"}"#),
            ("service", r#"{"op":"renamed","serviceId":"a"}"#),
            ("service", r#"{"op":"set","serviceId":"a@b"}"#),
            ("instance", r#"{"op":"paused","serviceId":"a","instanceId":"a@http#h#1"}"#),
            ("instance", r#"{"op":"expired","serviceId":"a@b","instanceId":"a@http#h#1"}"#),
        ] {
            assert!(told(name, "1:2", data).unwrap().is_none(), "{name} {data}");
        }
        let change = told("snapshot", "1:2", r#"{"services":{"a":[]},"state":"dreaming"}"#).unwrap().unwrap();
        let Event::Snapshot(snapshot) = &change.event else { panic!("{change:?}") };
        assert_eq!((snapshot.state, snapshot.services.len()), (StoreState::Protected, 1));
    }

    #[test]
    fn what_cannot_be_read_is_corrupt_so_that_the_next_stream_begins_anew() {
        for (id, data) in [("1:2", "{}"), ("1:2", "no json"), ("of tomorrow", r#"{"state":"live"}"#)] {
            let error = told("state", id, data).unwrap_err();
            assert!(matches!(error, Error::Corrupt { .. }), "{error:?}");
        }
    }

    #[test]
    fn an_event_with_an_unreadable_instance_says_that_it_is_gone() {
        let data = r#"{"op":"register","serviceId":"a","instanceId":"a@http#h#1","instance":{
            "instanceId":"a@http#no host#1","serviceId":"a","schema":"http","host":"no host","port":1,"weight":1,
            "isEphemeral":true,"ttlAt":1790000060,"isExpired":false,"metadata":{}}}"#;
        let change = told("instance", "1:2", data).unwrap().unwrap();
        let Event::Instance { id, instance, .. } = &change.event else { panic!("{change:?}") };
        assert_eq!((id.as_str(), instance), ("a@http#h#1", &None));
    }

    #[test]
    fn a_snapshot_may_name_its_store() {
        let store = |field: &str| {
            let data = format!(r#"{{"services":{{}},"state":"live"{field}}}"#);
            let event = SseEvent { id: "1:1".into(), name: "snapshot".into(), data };
            let clock = ServerClock::of(&HeaderMap::new());
            match &change(&event, None, clock).unwrap().unwrap().event {
                Event::Snapshot(snapshot) => snapshot.store,
                other => panic!("{other:?}"),
            }
        };
        let named = StoreId { id: 0xfeed, opened: 3, opening: 0xbeef };
        assert_eq!(store(r#","store":"000000000000feed:3:000000000000beef""#), Some(named));
        assert_eq!(store(""), None, "an older server");
        assert_eq!(store(r#","store":null"#), None);
        assert_eq!(store(r#","store":"of tomorrow""#), None, "it must not cost the snapshot");
    }

    #[test]
    fn remaining_life_is_told_by_the_servers_own_clock() {
        let mut headers = HeaderMap::new();
        headers.insert(DATE, "Sun, 06 Nov 1994 08:49:37 GMT".parse().unwrap());
        let left = ServerClock::of(&headers).until(784_111_777 + 30);
        assert!(left > Duration::from_secs(28) && left < Duration::from_secs(29), "{left:?}");
        assert_eq!(
            ServerClock::of(&headers).until(784_111_777),
            Duration::from_millis(1),
            "over is for others to say"
        );
        headers.insert(wire::TTL_MS, "30000".parse().unwrap());
        let Life::Remaining { remaining, ttl_at } = life(&headers) else { panic!("it has an end") };
        assert_eq!((remaining, ttl_at), (Duration::from_secs(30), 784_111_807));
    }
}
