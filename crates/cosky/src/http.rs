//! The registry behind an HTTP server.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use cosky_cache::Backoff;
use cosky_core::{
    Beat, BeatKey, ConsumerName, Error, Index, Metadata, MetadataPatch, Namespace, Owner, Read, Registered,
    Registration, Registry, Result, Scope, ServiceId, ServiceInstance, ServiceStat, Stat, WatchStream,
    engine,
    wire::{
        self, BeatBody, BeatsAnswer, DigestBody, RegisterBody, ServiceStatBody, StatBody, namespace_path,
    },
};
use futures_util::StreamExt as _;
use reqwest::{
    Method, Response,
    header::{ACCEPT, HeaderName, HeaderValue},
};
use tokio::time::{Instant, sleep};

use crate::{
    decode::{self, ServerClock},
    sse::{EVENT_BYTES, SseEvent, SseParser},
    transport::{Answer, Call, Repeat, Transport},
};

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Bytes of names in one call of beats. As JSON they are at most six times as long, below the servers' limit of a body.
const BATCH_BYTES: usize = 128 * 1024;

/// The engine trait over HTTP, with every promise of [`Registry`], and these differences:
///
/// * **Failover.** A request that no server began to work on goes to the next address. One whose answer was lost is
///   sent again only when twice is as good as once: reads, beats, a registration or deregistration that names its
///   owner, and `set_metadata`. A repeated `deregister` answers false when the first one had removed the instance.
///   Everything else fails with [`Error::Unavailable`] and `maybe_applied` set.
/// * **Several servers.** `instances` and `digest` ask the server first at which a watch of the namespace stands, so that
///   their indexes and the watch's can be compared.
/// * **Remaining life** in lists and watches is told by the server's clock in whole seconds: never more than is left, and
///   up to 2 s less. In [`Registry::instance`] and [`Registry::register`] it is exact to the millisecond.
/// * **`add_dependency`** is noted by the server beside a read, so this reads until the topology shows it.
#[derive(Debug, Clone)]
pub struct HttpRegistry {
    transport: Transport,
    consumer: Option<ConsumerName>,
    streams: Arc<Streams>,
}

/// Where the streams of each namespace stand, the newest last. As many as there are streams.
#[derive(Debug, Default)]
struct Streams(Mutex<HashMap<Namespace, Vec<Arc<usize>>>>);

/// One of them; its place is forgotten with it.
struct Place {
    streams: Arc<Streams>,
    namespace: Namespace,
    address: Arc<usize>,
}

/// One stream of changes.
struct Stream {
    _place: Place,
    transport: Transport,
    response: Response,
    address: usize,
    clock: ServerClock,
    parser: SseParser,
    /// Events that arrived and were not given yet, the next one last.
    arrived: Vec<SseEvent>,
    last: Option<Index>,
}

impl HttpRegistry {
    /// Watches and reads of instances are noted in the topology as those of `consumer`.
    pub(crate) fn new(transport: Transport, consumer: Option<ConsumerName>) -> Self {
        Self { transport, consumer, streams: Arc::default() }
    }

    pub(crate) fn transport(&self) -> &Transport {
        &self.transport
    }

    async fn get(&self, path: String) -> Result<Answer> {
        self.transport.call(&Call::new(Method::GET, path)).await
    }

    /// As [`HttpRegistry::get`], of the server that tells of the namespace, when there is one.
    async fn get_beside_the_stream(&self, namespace: &Namespace, path: String) -> Result<Answer> {
        let call = Call::new(Method::GET, path).first(self.streams.newest(namespace));
        self.transport.call(&call).await
    }

    /// Says who asks.
    fn sign(&self, path: &mut String) {
        if let Some(consumer) = &self.consumer {
            path.push_str(if path.contains('?') { "&consumer=" } else { "?consumer=" });
            wire::encode_segment(path, consumer.as_str());
        }
    }

    /// A write that answers a bare boolean.
    async fn ask(&self, call: Call) -> Result<bool> {
        decode::json(&self.transport.call(&call).await?)
    }

    async fn beat_once(&self, namespace: &Namespace, keys: &[BeatKey<'_>]) -> Result<BeatsAnswer> {
        let body: Vec<BeatBody<'_>> = keys
            .iter()
            .map(|key| BeatBody { service_id: key.service.into(), instance_id: key.instance.into() })
            .collect();
        let call = Call::new(Method::POST, namespace_path(namespace, &["beats"]));
        decode::json(&self.transport.call(&call.body(&body).repeat(Repeat::Always)).await?)
    }
}

#[async_trait]
impl Registry for HttpRegistry {
    async fn namespaces(&self) -> Result<Vec<Namespace>> {
        let names: Vec<String> = decode::json(&self.get("/v1/namespaces".into()).await?)?;
        Ok(names.iter().filter_map(|name| Namespace::new(name).ok()).collect())
    }

    async fn add_namespace(&self, namespace: &Namespace) -> Result<bool> {
        self.ask(Call::new(Method::PUT, namespace_path(namespace, &[]))).await
    }

    async fn remove_namespace(&self, namespace: &Namespace) -> Result<bool> {
        self.ask(Call::new(Method::DELETE, namespace_path(namespace, &[]))).await
    }

    async fn purge_namespace(&self, namespace: &Namespace) -> Result<bool> {
        let path = format!("{}?purge=true", namespace_path(namespace, &[]));
        self.ask(Call::new(Method::DELETE, path)).await
    }

    async fn services(&self, namespace: &Namespace) -> Result<Read<Vec<ServiceId>>> {
        let answer = self.get(namespace_path(namespace, &["services"])).await?;
        decode::read(&answer.headers, decode::services(&answer.body)?)
    }

    async fn service_stats(&self, namespace: &Namespace) -> Result<Read<Vec<ServiceStat>>> {
        let answer = self.get(namespace_path(namespace, &["services", "stats"])).await?;
        let bodies: Vec<ServiceStatBody> = decode::json(&answer)?;
        let stat = |body: ServiceStatBody| {
            Some(ServiceStat {
                service: ServiceId::new(&body.service_id).ok()?,
                instances: body.instance_count,
            })
        };
        decode::read(&answer.headers, bodies.into_iter().filter_map(stat).collect())
    }

    async fn stat(&self, namespace: &Namespace) -> Result<Read<Stat>> {
        let answer = self.get(namespace_path(namespace, &["stat"])).await?;
        decode::read(&answer.headers, decode::json::<StatBody>(&answer)?.into())
    }

    async fn set_service(&self, namespace: &Namespace, service: &ServiceId) -> Result<bool> {
        self.ask(Call::new(Method::PUT, namespace_path(namespace, &["services", service.as_str()]))).await
    }

    async fn remove_service(&self, namespace: &Namespace, service: &ServiceId) -> Result<bool> {
        self.ask(Call::new(Method::DELETE, namespace_path(namespace, &["services", service.as_str()]))).await
    }

    async fn register(&self, namespace: &Namespace, new: &Registration) -> Result<Registered> {
        let repeat = if new.owner.is_some() { Repeat::Always } else { Repeat::OnlyUnsent };
        let path = namespace_path(namespace, &["services", new.service.as_str(), "instances"]);
        let call = Call::new(Method::PUT, path).body(&RegisterBody::from(new)).repeat(repeat);
        let answer = self.transport.call(&call).await?;
        let owner = answer.headers.get(wire::OWNER).and_then(|owner| owner.to_str().ok());
        let owner =
            owner.ok_or_else(|| Error::Corrupt { reason: "the answer lacks X-Cosky-Owner".into() })?;
        Ok(Registered { life: decode::life(&answer.headers), owner: Owner::new(owner)? })
    }

    async fn beat(&self, namespace: &Namespace, keys: &[BeatKey<'_>]) -> Result<Vec<Beat>> {
        engine::check_batch(keys.len())?;
        let mut beats = vec![Beat::Unknown; keys.len()];
        let mut left: Vec<usize> = (0..keys.len()).collect();
        // The answer names instances without their services, so no call may name one id twice; and very long names must
        // not make a body that is refused.
        while !left.is_empty() {
            let (mut named, mut bytes) = (BTreeMap::new(), 0);
            let (now, later): (Vec<_>, Vec<_>) = left.into_iter().partition(|at| {
                let key = keys[*at];
                bytes += key.service.len() + key.instance.len();
                (named.is_empty() || bytes <= BATCH_BYTES) && *named.entry(key.instance).or_insert(*at) == *at
            });
            left = later;
            let batch: Vec<_> = now.iter().map(|at| keys[*at]).collect();
            let answer = self.beat_once(namespace, &batch).await?;
            for at in now {
                beats[at] = Beat::Renewed(None);
            }
            for (ids, beat) in [(&answer.unknown, Beat::Unknown), (&answer.gone, Beat::Gone)] {
                for at in ids.iter().filter_map(|id| named.get(id.as_str())) {
                    beats[*at] = beat;
                }
            }
        }
        Ok(beats)
    }

    async fn deregister(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
        instance: &str,
        owner: Option<&Owner>,
    ) -> Result<bool> {
        let mut path = namespace_path(namespace, &["services", service.as_str(), "instances", instance]);
        let mut repeat = Repeat::OnlyUnsent;
        if let Some(owner) = owner {
            path.push_str("?owner=");
            path.push_str(owner.as_str());
            repeat = Repeat::Always;
        }
        self.ask(Call::new(Method::DELETE, path).repeat(repeat)).await
    }

    async fn set_metadata(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
        instance: &str,
        metadata: &Metadata,
    ) -> Result<bool> {
        let path =
            namespace_path(namespace, &["services", service.as_str(), "instances", instance, "metadata"]);
        self.ask(Call::new(Method::PUT, path).body(metadata).repeat(Repeat::Always)).await
    }

    async fn patch_metadata(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
        instance: &str,
        patch: &MetadataPatch,
    ) -> Result<bool> {
        let path =
            namespace_path(namespace, &["services", service.as_str(), "instances", instance, "metadata"]);
        let body: BTreeMap<&str, Option<&str>> = patch.iter().collect();
        self.ask(Call::new(Method::PATCH, path).body(&body)).await
    }

    async fn instances(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
    ) -> Result<Read<Vec<ServiceInstance>>> {
        let mut path = namespace_path(namespace, &["services", service.as_str(), "instances"]);
        self.sign(&mut path);
        let answer = self.get_beside_the_stream(namespace, path).await?;
        decode::read(&answer.headers, decode::instances(&answer)?)
    }

    async fn instance(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
        instance: &str,
    ) -> Result<Read<Option<ServiceInstance>>> {
        let path = namespace_path(namespace, &["services", service.as_str(), "instances", instance]);
        let answer = self.get(path).await?;
        decode::read(&answer.headers, decode::instance(&answer)?)
    }

    async fn digest(&self, namespace: &Namespace, scope: &Scope) -> Result<Read<u64>> {
        let mut path = namespace_path(namespace, &["digest"]);
        name_services(&mut path, scope);
        let answer = self.get_beside_the_stream(namespace, path).await.map_err(|error| {
            match crate::Error::from(error.clone()) {
                crate::Error::TooOld(old) => Error::NotFound { what: format!("the digest ({old})") },
                _ => error,
            }
        })?;
        decode::read(&answer.headers, decode::json::<DigestBody>(&answer)?.digest)
    }

    async fn add_dependency(
        &self,
        namespace: &Namespace,
        consumer: &ConsumerName,
        producer: &str,
    ) -> Result<()> {
        let mut path = namespace_path(namespace, &["services", producer, "instances"]);
        path.push_str("?consumer=");
        wire::encode_segment(&mut path, consumer.as_str());
        let noted = |topology: BTreeMap<String, Vec<String>>| {
            topology.get(consumer.as_str()).is_some_and(|known| known.iter().any(|known| known == producer))
        };
        let mut backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(200));
        let end = Instant::now() + self.transport.timeouts().request;
        loop {
            self.get(path.clone()).await?;
            if consumer.as_str() == producer || noted(self.topology(namespace).await?) {
                return Ok(());
            }
            if Instant::now() >= end {
                return Err(Error::unavailable(format!(
                    "the server did not note that {consumer} looks for {producer}"
                )));
            }
            sleep(backoff.delay()).await;
        }
    }

    async fn topology(&self, namespace: &Namespace) -> Result<BTreeMap<String, Vec<String>>> {
        decode::json(&self.get(namespace_path(namespace, &["stat", "topology"])).await?)
    }

    async fn watch(&self, namespace: &Namespace, scope: Scope, from: Option<Index>) -> Result<WatchStream> {
        let mut path = namespace_path(namespace, &["watch"]);
        name_services(&mut path, &scope);
        self.sign(&mut path);
        let mut call = Call::new(Method::GET, path).stream();
        call = call.header(ACCEPT, HeaderValue::from_static("text/event-stream"));
        if let Some(from) = from {
            let id =
                HeaderValue::from_str(&from.to_string()).expect("an index is hexadecimal and decimal digits");
            call = call.header(LAST_EVENT_ID, id);
        }
        let answer = self.transport.call(&call).await?;
        let response = answer.stream.ok_or_else(|| Error::unavailable("the server gave no stream"))?;
        // What the caller knows is old until the snapshot has arrived whole, which may take a while: no stream stands before.
        let begins_anew = answer.headers.get(wire::RESUMED).is_some_and(|resumed| resumed == "false");
        let mut stream = Stream {
            _place: self.streams.stands(namespace, answer.address),
            transport: self.transport.clone(),
            response,
            address: answer.address,
            clock: ServerClock::of(&answer.headers),
            parser: SseParser::new(EVENT_BYTES),
            arrived: Vec::new(),
            last: from,
        };
        let first = if begins_anew { stream.next().await? } else { None };
        let rest = futures_util::stream::unfold(Some(stream), |stream| async {
            let mut stream = stream?;
            match stream.next().await {
                Ok(change) => change.map(|change| (Ok(change), Some(stream))),
                Err(error) => Some((Err(error), None)),
            }
        });
        Ok(Box::pin(futures_util::stream::iter(first.map(Ok)).chain(rest)))
    }
}

/// Appends the services of `scope` to a path without a query.
fn name_services(path: &mut String, scope: &Scope) {
    let Scope::Services(services) = scope else { return };
    for (at, service) in services.iter().enumerate() {
        path.push_str(if at == 0 { "?service=" } else { "&service=" });
        wire::encode_segment(path, service.as_str());
    }
}

impl Streams {
    fn lock(&self) -> MutexGuard<'_, HashMap<Namespace, Vec<Arc<usize>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a stream stands at this address.
    fn stands(self: &Arc<Self>, namespace: &Namespace, address: usize) -> Place {
        let place = Place { streams: self.clone(), namespace: namespace.clone(), address: Arc::new(address) };
        self.lock().entry(namespace.clone()).or_default().push(place.address.clone());
        place
    }

    fn newest(&self, namespace: &Namespace) -> Option<usize> {
        self.lock().get(namespace)?.last().map(|address| **address)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut places = self.streams.lock();
        if let Some(streams) = places.get_mut(&self.namespace) {
            streams.retain(|address| !Arc::ptr_eq(address, &self.address));
            if streams.is_empty() {
                places.remove(&self.namespace);
            }
        }
    }
}

impl Stream {
    async fn next(&mut self) -> Result<Option<Arc<cosky_core::Change>>> {
        loop {
            while let Some(event) = self.arrived.pop() {
                if let Some(change) = decode::change(&event, self.last, self.clock)? {
                    self.last = Some(change.index);
                    if matches!(change.event, cosky_core::Event::State(cosky_core::StoreState::Draining)) {
                        self.transport.avoid(self.address);
                    }
                    return Ok(Some(change));
                }
            }
            let chunk = self.transport.next_chunk(&mut self.response, self.address).await?;
            let Some(chunk) = chunk else { return Ok(None) };
            let parsed = self.parser.push(&chunk, &mut self.arrived);
            self.arrived.reverse();
            parsed.map_err(|error| Error::Corrupt { reason: error.to_string() })?;
        }
    }
}
