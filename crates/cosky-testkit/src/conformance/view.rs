//! Watching as a client does: the events as words, and the state that they add up to.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use cosky_core::{
    Change, Error, Event, Index, Instance, InstanceId, InstanceOp, Namespace, Registry, Scope, ServiceId,
    ServiceInstance, ServiceOp, Snapshot, WatchStream, digest::Digest,
};
use futures_util::StreamExt;

use super::world::{World, service};

/// A watch that waits for a bounded time and checks that places only grow.
pub(super) struct Watcher {
    stream: WatchStream,
    patience: Duration,
    place: Option<Index>,
    fences: u32,
}

/// What a watcher of a whole namespace knows. Applying an event that contradicts it panics.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct View(pub(super) BTreeMap<ServiceId, BTreeMap<InstanceId, Arc<Instance>>>);

impl Watcher {
    /// Watches the whole of `namespace` from now on, its snapshot heard.
    pub(super) async fn open(world: &dyn World, namespace: &Namespace) -> Self {
        let mut watcher = Self::from(world, namespace, Scope::All, None).await;
        watcher.snapshot().await;
        watcher
    }

    pub(super) async fn from(
        world: &dyn World,
        namespace: &Namespace,
        scope: Scope,
        from: Option<Index>,
    ) -> Self {
        let stream = world.registry().watch(namespace, scope, from).await.expect("a watch can be opened");
        Self { stream, patience: world.patience(), place: from, fences: 0 }
    }

    /// The next item, whatever it is.
    pub(super) async fn item(&mut self) -> Option<Result<Arc<Change>, Error>> {
        let next = tokio::time::timeout(self.patience, self.stream.next()).await;
        next.expect("a watcher is told in time")
    }

    /// The next change that is not about the store's state.
    pub(super) async fn next(&mut self) -> Arc<Change> {
        loop {
            let change = self.item().await.expect("the stream goes on").expect("the watcher is not cut off");
            if matches!(change.event, Event::State(_)) {
                continue;
            }
            let snapshot = matches!(change.event, Event::Snapshot(_));
            if let Some(place) = self.place.filter(|_| !snapshot) {
                assert_eq!(change.index.epoch, place.epoch, "one stream has one epoch");
                assert!(change.index.sequence > place.sequence, "{change:?} comes after {place}");
            }
            self.place = Some(change.index);
            return change;
        }
    }

    /// The next change, which must be a snapshot.
    pub(super) async fn snapshot(&mut self) -> Snapshot {
        match &self.next().await.event {
            Event::Snapshot(snapshot) => snapshot.clone(),
            other => panic!("expected a snapshot, not {other:?}"),
        }
    }

    /// The place of the last change that was heard.
    pub(super) fn place(&self) -> Index {
        self.place.expect("something was heard")
    }

    /// The next changes must be these, as `op id` or `op service`.
    pub(super) async fn hears<S: AsRef<str>>(&mut self, expected: &[S]) {
        let mut heard = Vec::new();
        for word in expected {
            heard.push(words(&self.next().await.event));
            assert_eq!(heard.last().map(String::as_str), Some(word.as_ref()), "after {heard:?}");
        }
    }

    /// Nothing but what was heard has happened: the next change is one that is made now. A filtered watch must cover
    /// the services `fence-1`, `fence-2` and so on.
    pub(super) async fn hears_nothing(&mut self, registry: &dyn Registry, namespace: &Namespace) {
        self.fences += 1;
        let fence = format!("fence-{}", self.fences);
        let new = registry.set_service(namespace, &service(&fence)).await.expect("a service can be set");
        assert!(new, "each watcher of a case that uses fences has a namespace of its own");
        self.hears(&[format!("set {fence}")]).await;
    }
}

/// An event in words: `register order@http#10.0.0.1#80`, `remove order`, `snapshot`.
pub(super) fn words(event: &Event) -> String {
    match event {
        Event::Instance { op, id, .. } => format!("{} {id}", op.as_str()),
        Event::Service { op, service } => format!("{} {service}", op.as_str()),
        Event::Snapshot(_) => "snapshot".to_owned(),
        other => panic!("an event of an unknown kind: {other:?}"),
    }
}

impl View {
    /// What `registry` answers to reads.
    pub(super) async fn read(registry: &dyn Registry, namespace: &Namespace) -> Self {
        let mut view = BTreeMap::new();
        for service in registry.services(namespace).await.expect("services can be read").value {
            let list = registry.instances(namespace, &service).await.expect("instances can be read").value;
            view.insert(service, by_id(&list));
        }
        Self(view)
    }

    /// The digest of all that is known.
    pub(super) fn digest(&self) -> u64 {
        Digest::of(self.0.values().flat_map(BTreeMap::values).map(|instance| &**instance)).get()
    }

    /// Takes an event in, and checks that it fits what is known.
    pub(super) fn apply(&mut self, event: &Event) {
        match event {
            Event::Snapshot(snapshot) => {
                self.0 = snapshot.services.iter().map(|(s, list)| (s.clone(), by_id(list))).collect();
            }
            Event::Service { op: ServiceOp::Set, service } => {
                let old = self.0.insert(service.clone(), BTreeMap::new());
                assert!(old.is_none(), "{service} was set though it was listed");
            }
            Event::Service { op: ServiceOp::Remove, service } => {
                let old = self.0.remove(service);
                assert!(old.is_some_and(|list| list.is_empty()), "{service} was removed as empty");
            }
            Event::Instance { op, service, id, instance } => {
                let list = self.0.get_mut(service).expect("a service is set before its instances come");
                match (op, instance) {
                    (InstanceOp::Register, Some(new)) => {
                        list.insert(id.clone(), Arc::clone(new.instance()));
                    }
                    (InstanceOp::SetMetadata, Some(new)) => {
                        let old = list.insert(id.clone(), Arc::clone(new.instance()));
                        assert!(old.is_some(), "the metadata of {id} was set while it was there");
                    }
                    (InstanceOp::Deregister | InstanceOp::Expired, None) => {
                        assert!(list.remove(id).is_some(), "{id} went while it was there");
                    }
                    other => panic!("{id}: an event that makes no sense: {other:?}"),
                }
            }
            other => panic!("an event of an unknown kind: {other:?}"),
        }
    }

    /// Follows `watcher` up to the event that these words tell, that one included.
    pub(super) async fn follow(&mut self, watcher: &mut Watcher, until: &str) {
        loop {
            let change = watcher.next().await;
            self.apply(&change.event);
            if words(&change.event) == until {
                return;
            }
        }
    }
}

fn by_id(list: &[ServiceInstance]) -> BTreeMap<InstanceId, Arc<Instance>> {
    list.iter().map(|found| (found.id().clone(), Arc::clone(found.instance()))).collect()
}

/// The ids of instances, in the order in which they were read.
pub(super) fn ids(list: &[ServiceInstance]) -> Vec<String> {
    list.iter().map(|found| found.id().to_string()).collect()
}
