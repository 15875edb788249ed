//! A registry with a fault.

use std::{
    collections::{BTreeMap, HashMap},
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use cosky_core::{
    Beat, BeatKey, ConsumerName, Error, Index, Life, Metadata, MetadataPatch, Namespace, Owner, Read,
    Registered, Registration, Registry, Result, Scope, ServiceId, ServiceInstance, ServiceStat, Stat, Ttl,
    WatchStream,
    digest::{Digest, of_instance},
    limits::BEATS,
};

use super::{Every, Fault, stream};

type List = Read<Vec<ServiceInstance>>;

pub(super) struct Faulty {
    good: Arc<dyn Registry>,
    fault: Option<Fault>,
    every: Every,
    /// What was registered last at each address.
    known: Mutex<HashMap<(Namespace, String), Registration>>,
    /// The answers that were given last.
    lists: Mutex<HashMap<(Namespace, ServiceId), List>>,
}

impl Faulty {
    pub(super) fn new(good: Arc<dyn Registry>, fault: Option<Fault>) -> Self {
        Self { good, fault, every: Every::new(3), known: Mutex::default(), lists: Mutex::default() }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Whether this call is one of those that go wrong.
    fn now(&self, fault: Fault) -> bool {
        self.has(fault) && self.every.now()
    }

    fn known(&self, namespace: &Namespace, instance: &str) -> Option<Registration> {
        let known = self.known.lock().expect("nothing panics under this lock");
        known.get(&(namespace.clone(), instance.to_owned())).cloned()
    }

    /// Makes a change once, or twice.
    async fn once<T, F: Future<Output = Result<T>>>(&self, change: impl Fn() -> F) -> Result<T> {
        let first = change().await;
        if self.has(Fault::AppliedTwice) {
            change().await?;
        }
        first
    }

    /// Shows an instance as the fault would have it; `None` when it hides it.
    fn show(&self, namespace: &Namespace, found: ServiceInstance) -> Option<ServiceInstance> {
        let asked = self.known(namespace, found.id().as_str()).and_then(|new| new.ttl);
        let asked = asked.unwrap_or(Ttl::DEFAULT).duration();
        let left = found.life().remaining()?;
        match self.fault {
            Some(Fault::ExpiresEarly) => (left >= asked / 2).then_some(found),
            Some(Fault::NeverExpires) => {
                let life = Life::Remaining { remaining: left.min(asked), ttl_at: found.life().ttl_at() };
                Some(ServiceInstance::new(Arc::clone(found.instance()), life))
            }
            _ => Some(found),
        }
    }

    /// As [`show`](Self::show), which is about ephemeral instances.
    fn shown(&self, namespace: &Namespace, found: ServiceInstance) -> Option<ServiceInstance> {
        if found.life() == Life::Permanent { Some(found) } else { self.show(namespace, found) }
    }

    /// Answers beats as they should be answered, and renews nothing.
    async fn pretend(&self, namespace: &Namespace, keys: &[BeatKey<'_>]) -> Result<Vec<Beat>> {
        let mut answers = Vec::new();
        for key in keys {
            let found = match ServiceId::new(key.service) {
                Ok(service) => self.good.instance(namespace, &service, key.instance).await?.value,
                Err(_) => None,
            };
            match found {
                Some(_) => answers.push(Beat::Renewed(None)),
                None => answers.extend(self.good.beat(namespace, std::slice::from_ref(key)).await?),
            }
        }
        Ok(answers)
    }

    fn place<T>(&self, read: Read<T>) -> Read<T> {
        if self.has(Fault::IndexBehind) {
            let index = Index { sequence: read.index.sequence.saturating_sub(1), ..read.index };
            return Read { index, ..read };
        }
        read
    }
}

#[async_trait]
impl Registry for Faulty {
    async fn namespaces(&self) -> Result<Vec<Namespace>> {
        self.good.namespaces().await
    }

    async fn add_namespace(&self, namespace: &Namespace) -> Result<bool> {
        self.good.add_namespace(namespace).await
    }

    async fn remove_namespace(&self, namespace: &Namespace) -> Result<bool> {
        self.good.remove_namespace(namespace).await
    }

    async fn purge_namespace(&self, namespace: &Namespace) -> Result<bool> {
        if self.has(Fault::HalfPurged) {
            for service in self.good.services(namespace).await?.value {
                self.good.remove_service(namespace, &service).await?;
            }
        }
        self.good.purge_namespace(namespace).await
    }

    async fn services(&self, namespace: &Namespace) -> Result<Read<Vec<ServiceId>>> {
        Ok(self.place(self.good.services(namespace).await?))
    }

    async fn service_stats(&self, namespace: &Namespace) -> Result<Read<Vec<ServiceStat>>> {
        Ok(self.place(self.good.service_stats(namespace).await?))
    }

    async fn stat(&self, namespace: &Namespace) -> Result<Read<Stat>> {
        Ok(self.place(self.good.stat(namespace).await?))
    }

    async fn set_service(&self, namespace: &Namespace, service: &ServiceId) -> Result<bool> {
        self.good.set_service(namespace, service).await
    }

    async fn remove_service(&self, namespace: &Namespace, service: &ServiceId) -> Result<bool> {
        self.good.remove_service(namespace, service).await
    }

    async fn register(&self, namespace: &Namespace, new: &Registration) -> Result<Registered> {
        let key = (namespace.clone(), new.id().to_string());
        self.known.lock().expect("nothing panics under this lock").insert(key, new.clone());
        let mut given = new.clone();
        if self.has(Fault::NeverExpires) {
            given.ttl = Some(Ttl::from_seconds(Ttl::MAX.into()).expect("the longest TTL is one"));
        }
        let answer = self.once(|| self.good.register(namespace, &given)).await;
        if let (Err(Error::Gone { .. }), true) = (&answer, self.has(Fault::RepeatComesBack)) {
            given.owner = None;
            return self.good.register(namespace, &given).await;
        }
        let Registered { life, owner } = answer?;
        let life = match (life, new.ttl) {
            (Life::Remaining { remaining, ttl_at }, Some(ttl)) => {
                Life::Remaining { remaining: remaining.min(ttl.duration()), ttl_at }
            }
            (life, _) => life,
        };
        Ok(Registered { life, owner })
    }

    async fn beat(&self, namespace: &Namespace, keys: &[BeatKey<'_>]) -> Result<Vec<Beat>> {
        if self.has(Fault::UnboundedBatch) && keys.len() > BEATS {
            let mut answers = Vec::new();
            for part in keys.chunks(BEATS) {
                answers.extend(self.good.beat(namespace, part).await?);
            }
            return Ok(answers);
        }
        if self.has(Fault::BeatNotMade) {
            return self.pretend(namespace, keys).await;
        }
        let mut answers = self.good.beat(namespace, keys).await?;
        for (answer, key) in answers.iter_mut().zip(keys) {
            match (&*answer, self.fault) {
                (Beat::Gone, Some(Fault::BeatBringsBack)) => {
                    if let Some(new) = self.known(namespace, key.instance) {
                        let new = Registration { owner: None, ..new };
                        *answer = Beat::Renewed(Some(self.good.register(namespace, &new).await?.life));
                    }
                }
                (Beat::Gone, Some(Fault::NoMark)) => *answer = Beat::Unknown,
                (Beat::Unknown, Some(Fault::BeatOfNothingSucceeds)) => *answer = Beat::Renewed(None),
                _ => {}
            }
        }
        Ok(answers)
    }

    async fn deregister(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
        instance: &str,
        owner: Option<&Owner>,
    ) -> Result<bool> {
        if self.now(Fault::AcknowledgedOnly) {
            return Ok(self.good.instance(namespace, service, instance).await?.value.is_some());
        }
        let owner = owner.filter(|_| !self.has(Fault::OwnerIgnored));
        self.good.deregister(namespace, service, instance, owner).await
    }

    async fn set_metadata(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
        instance: &str,
        metadata: &Metadata,
    ) -> Result<bool> {
        self.once(|| self.good.set_metadata(namespace, service, instance, metadata)).await
    }

    async fn patch_metadata(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
        instance: &str,
        patch: &MetadataPatch,
    ) -> Result<bool> {
        match self.fault {
            Some(Fault::HalfWritten) => {
                let mut found = false;
                for (key, value) in patch.iter() {
                    let entry = MetadataPatch::new([(key.to_owned(), value.map(str::to_owned))])?;
                    found = self.good.patch_metadata(namespace, service, instance, &entry).await?;
                }
                Ok(found)
            }
            Some(Fault::LostUpdate) => {
                let Some(old) = self.good.instance(namespace, service, instance).await?.value else {
                    return Ok(false);
                };
                tokio::time::sleep(Duration::from_millis(1)).await;
                self.good.set_metadata(namespace, service, instance, &old.metadata().patched(patch)?).await
            }
            _ => self.once(|| self.good.patch_metadata(namespace, service, instance, patch)).await,
        }
    }

    async fn instances(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
    ) -> Result<Read<Vec<ServiceInstance>>> {
        let mut read = self.good.instances(namespace, service).await?;
        read.value = read.value.into_iter().filter_map(|found| self.shown(namespace, found)).collect();
        if self.now(Fault::LiveInstanceMissing) {
            read.value.pop();
        }
        if self.has(Fault::ReadBeforeWrite) {
            let mut lists = self.lists.lock().expect("nothing panics under this lock");
            let old = lists.insert((namespace.clone(), service.clone()), read.clone());
            read = old.unwrap_or(read);
        }
        Ok(self.place(read))
    }

    async fn instance(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
        instance: &str,
    ) -> Result<Read<Option<ServiceInstance>>> {
        let mut read = self.good.instance(namespace, service, instance).await?;
        read.value = read.value.and_then(|found| self.shown(namespace, found));
        if self.has(Fault::StaleRead) && self.every.now() {
            let index = Index { sequence: read.index.sequence.saturating_sub(3), ..read.index };
            return Ok(Read { value: None, index, ..read });
        }
        Ok(self.place(read))
    }

    async fn digest(&self, namespace: &Namespace, scope: &Scope) -> Result<Read<u64>> {
        let scope = if self.has(Fault::DigestOfAll) { &Scope::All } else { scope };
        let mut read = self.good.digest(namespace, scope).await?;
        if self.has(Fault::DigestWithoutMetadata) {
            let mut digest = Digest::default();
            for service in self.good.services(namespace).await?.value {
                for found in self.good.instances(namespace, &service).await?.value {
                    digest.add(of_instance(&found.with_metadata(Metadata::default())));
                }
            }
            read.value = digest.get();
        }
        Ok(self.place(read))
    }

    async fn add_dependency(
        &self,
        namespace: &Namespace,
        consumer: &ConsumerName,
        producer: &str,
    ) -> Result<()> {
        self.good.add_dependency(namespace, consumer, producer).await
    }

    async fn topology(&self, namespace: &Namespace) -> Result<BTreeMap<String, Vec<String>>> {
        self.good.topology(namespace).await
    }

    async fn watch(&self, namespace: &Namespace, scope: Scope, from: Option<Index>) -> Result<WatchStream> {
        let scope = if self.has(Fault::FilterIgnored) { Scope::All } else { scope };
        let good = match self.fault {
            Some(Fault::NeverResumes) => self.good.watch(namespace, scope, None).await?,
            Some(Fault::ResumesAtHead) => {
                let head = self.good.services(namespace).await?.index;
                self.good.watch(namespace, scope, from.map(|_| head)).await?
            }
            Some(Fault::GapAfterSnapshot) if from.is_none() => {
                stream::with_gap(&*self.good, namespace, scope).await?
            }
            _ => self.good.watch(namespace, scope, from).await?,
        };
        Ok(stream::faulty(good, self.fault))
    }
}
