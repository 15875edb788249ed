//! The JSON of instances, and server-sent events. An instance is written far more often than it changes, so nearly all of
//! its text is made once and kept.

use std::fmt::Write as _;

use serde::Serialize;

use super::{ServiceEventBody, StateBody};
use crate::{Change, Event, Instance, InstanceId, ServiceId, ServiceInstance, Snapshot, StoreState};

/// An instance's JSON around the two fields that change with time.
#[derive(Debug)]
pub(crate) struct Fragments {
    head: Box<str>,
    tail: Box<str>,
}

impl Fragments {
    pub(crate) fn of(instance: &Instance) -> Self {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Head<'a> {
            instance_id: &'a InstanceId,
            service_id: &'a ServiceId,
            schema: &'a str,
            host: &'a str,
            port: u32,
            uri: Option<String>,
            is_secure: bool,
            weight: u32,
            is_ephemeral: bool,
        }
        let mut head = json(&Head {
            instance_id: instance.id(),
            service_id: instance.service(),
            schema: instance.schema().as_str(),
            host: instance.host().as_str(),
            port: instance.port().get(),
            uri: instance.uri(),
            is_secure: instance.schema().is_secure(),
            weight: instance.weight().get(),
            is_ephemeral: instance.is_ephemeral(),
        });
        head.pop();
        head.push_str(",\"ttlAt\":");
        let tail = format!(",\"metadata\":{}}}", json(instance.metadata()));
        Self { head: head.into(), tail: tail.into() }
    }
}

fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("text, numbers and maps of text always have a JSON form")
}

/// Appends an instance's JSON to `out`: two copies and a number, since the rest was made before.
pub fn write_instance(out: &mut String, instance: &ServiceInstance) {
    let fragments = instance.instance().json();
    out.push_str(&fragments.head);
    let _ = write!(out, "{}", instance.life().ttl_at());
    out.push_str(if instance.life().is_expired() { ",\"isExpired\":true" } else { ",\"isExpired\":false" });
    out.push_str(&fragments.tail);
}

/// The JSON array of `instances`.
pub fn instances(instances: &[ServiceInstance]) -> String {
    let mut out = String::with_capacity(2 + instances.len() * 256);
    write_instances(&mut out, instances);
    out
}

fn write_instances(out: &mut String, instances: &[ServiceInstance]) {
    out.push('[');
    for (at, instance) in instances.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        write_instance(out, instance);
    }
    out.push(']');
}

/// The server-sent event of a change (design §5).
pub(crate) fn frame(change: &Change) -> String {
    let (name, data) = match &change.event {
        Event::Snapshot(snapshot) => ("snapshot", snapshot_json(snapshot)),
        Event::Instance { op, service, id, instance } => {
            let mut data = format!(
                "{{\"op\":\"{}\",\"serviceId\":{},\"instanceId\":{},\"instance\":",
                op.as_str(),
                json(service),
                json(id)
            );
            match instance {
                Some(instance) => write_instance(&mut data, instance),
                None => data.push_str("null"),
            }
            data.push('}');
            ("instance", data)
        }
        Event::Service { op, service } => {
            ("service", json(&ServiceEventBody { op: op.as_str().into(), service_id: service.to_string() }))
        }
        Event::State(state) => ("state", state_json(*state)),
    };
    format!("id: {}\nevent: {name}\ndata: {data}\n\n", change.index)
}

fn state_json(state: StoreState) -> String {
    json(&StateBody { state: state.as_str().into() })
}

fn snapshot_json(snapshot: &Snapshot) -> String {
    let mut data = String::from("{\"services\":{");
    for (at, (service, list)) in snapshot.services.iter().enumerate() {
        if at > 0 {
            data.push(',');
        }
        data.push_str(&json(service));
        data.push(':');
        write_instances(&mut data, list);
    }
    data.push_str("},\"configs\":{},\"state\":\"");
    data.push_str(snapshot.state.as_str());
    data.push('"');
    if let Some(store) = snapshot.store {
        let _ = write!(data, ",\"store\":\"{store}\"");
    }
    data.push('}');
    data
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc, time::Duration};

    use super::*;
    use crate::{
        Index, Life, Metadata, Registration,
        wire::{InstanceBody, SnapshotBody},
    };

    fn instance(host: &str, life: Life) -> ServiceInstance {
        let mut new = Registration::new(ServiceId::new("order").unwrap(), "http", host, 8080).unwrap();
        new.metadata = Metadata::new([("zone", "a\"\n")]).unwrap();
        ServiceInstance::new(Arc::new(Instance::from(new)), life)
    }

    #[test]
    fn an_instance_reads_back_as_it_was_written() {
        let life = Life::Remaining { remaining: Duration::from_secs(3), ttl_at: 1_790_000_060 };
        let mut text = String::new();
        write_instance(&mut text, &instance("2001:db8::1", life));
        let body: InstanceBody = serde_json::from_str(&text).unwrap();
        assert_eq!(body.instance_id, "order@http#2001:db8::1#8080");
        assert_eq!(body.uri.as_deref(), Some("http://[2001:db8::1]:8080"));
        assert_eq!((body.ttl_at, body.is_expired, body.is_ephemeral), (1_790_000_060, false, true));
        assert_eq!(
            serde_json::to_value(&body).unwrap(),
            serde_json::from_str::<serde_json::Value>(&text).unwrap()
        );
        let read = body.read(life.remaining()).unwrap();
        assert_eq!(*read.instance(), *instance("2001:db8::1", life).instance());
        assert_eq!(read.life(), life);
    }

    #[test]
    fn frames_are_server_sent_events() {
        let service = ServiceId::new("order").unwrap();
        let index = Index { epoch: 1, sequence: 2 };
        let change =
            Change::new(index, Event::Service { op: crate::ServiceOp::Set, service: service.clone() });
        let expected =
            "id: 0000000000000001:2\nevent: service\ndata: {\"op\":\"set\",\"serviceId\":\"order\"}\n\n";
        assert_eq!(&**change.frame(), expected);
        let services = BTreeMap::from([(service, vec![instance("h", Life::Permanent)])]);
        let store = crate::StoreId { id: 0xfeed, opened: 3, opening: 0xbeef };
        let snapshot = Event::Snapshot(Snapshot { services, state: StoreState::Live, store: Some(store) });
        let frame = Change::new(index, snapshot).frame().to_string();
        assert_eq!(frame.lines().count(), 4, "line breaks in values must not break the frame: {frame}");
        let data = frame.lines().nth(2).unwrap().strip_prefix("data: ").unwrap();
        let body: SnapshotBody = serde_json::from_str(data).unwrap();
        assert_eq!(body.services["order"][0].metadata["zone"], "a\"\n");
        assert_eq!(body.store.as_deref(), Some("000000000000feed:3:000000000000beef"));
    }
}
