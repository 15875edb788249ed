//! The first kind: services and their instances.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use cosky_core::{
    Error, Event, InstanceId, InstanceOp, Namespace, Registry, Scope, ServiceId, ServiceInstance, Snapshot,
    Weighted, digest,
};

use crate::{
    Instances, OnMetadata, Recall,
    kind::{Kind, Loading, Step},
};

/// Services and their instances.
pub(crate) struct Services;

impl Kind for Services {
    type Name = ServiceId;
    type Id = InstanceId;
    type Item = ServiceInstance;
    type Content = Instances;

    fn scope(names: BTreeSet<ServiceId>) -> Scope {
        Scope::Services(names)
    }

    fn weight(name: &ServiceId) -> usize {
        let encoded = |byte: u8| if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) { 1 } else { 3 };
        "&service=".len() + name.as_str().bytes().map(encoded).sum::<usize>()
    }

    fn covers(scope: &Scope, name: &ServiceId) -> bool {
        scope.covers(name)
    }

    fn id(item: &ServiceInstance) -> &InstanceId {
        item.id()
    }

    fn snapshot<'a>(snapshot: &'a Snapshot, name: &ServiceId) -> &'a [ServiceInstance] {
        snapshot.services.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    fn step(event: &Event) -> Option<(&ServiceId, Step<'_, Self>)> {
        let Event::Instance { op, service, id, instance } = event else { return None };
        let step = match instance {
            Some(item) => Step::Put { item, edited: *op == InstanceOp::SetMetadata },
            None => Step::Gone { id, on_purpose: *op != InstanceOp::Expired },
        };
        Some((service, step))
    }

    fn content(items: Vec<ServiceInstance>) -> Instances {
        let weighted = Arc::new(Weighted::new(&items));
        Instances { instances: items.into(), weighted }
    }

    fn items(content: &Instances) -> &[ServiceInstance] {
        &content.instances
    }

    fn life(item: &ServiceInstance) -> Option<Duration> {
        item.life().remaining()
    }

    fn number(item: &ServiceInstance) -> u64 {
        digest::of_instance(item)
    }

    fn load(
        registry: Arc<dyn Registry>,
        namespace: Namespace,
        name: ServiceId,
    ) -> Loading<Vec<ServiceInstance>> {
        Box::pin(async move { registry.instances(&namespace, &name).await })
    }

    fn saw(hook: &OnMetadata, namespace: &Namespace, item: &ServiceInstance) {
        hook(namespace, item);
    }

    fn recall(
        hook: &Recall,
        namespace: &Namespace,
        name: &ServiceId,
        why: &Error,
    ) -> Option<(Instances, Duration)> {
        let (instances, age) = hook(namespace, name, why)?;
        let weighted = Arc::new(Weighted::new(&instances));
        Some((Instances { instances, weighted }, age))
    }
}
