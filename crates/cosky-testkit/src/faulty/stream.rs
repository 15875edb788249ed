//! Watch streams with a fault.

use std::{sync::Arc, time::Duration};

use cosky_core::{
    Change, Event, InstanceOp, Namespace, Registry, Result, Scope, ServiceOp, Snapshot, StoreId, WatchStream,
};
use futures_util::{StreamExt, stream};

use super::{Every, Fault};

/// `good` as a watcher hears it through `fault`.
pub(super) fn faulty(good: WatchStream, fault: Option<Fault>) -> WatchStream {
    match fault {
        Some(Fault::StoresLookAlike) => stores(good, |store| StoreId { id: 1, ..store }),
        Some(Fault::OpeningsNotCounted) => stores(good, |store| StoreId { opened: 1, ..store }),
        Some(Fault::ExpiresSilently) => each(good, |change| match change.event {
            Event::Instance { op: InstanceOp::Expired, .. } => vec![],
            _ => vec![change],
        }),
        Some(Fault::EventMissed) => {
            let every = Every::new(3);
            each(good, move |change| if is_instance(&change) && every.now() { vec![] } else { vec![change] })
        }
        Some(Fault::EventDoubled) => {
            let every = Every::new(3);
            each(good, move |change| {
                let twice = is_instance(&change) && every.now();
                if twice { vec![Arc::clone(&change), change] } else { vec![change] }
            })
        }
        Some(Fault::EventsReordered) => {
            swapped(good, |first, second| is_instance(first) && is_instance(second))
        }
        Some(Fault::WrongOrder) => swapped(good, |first, second| {
            matches!(first.event, Event::Service { op: ServiceOp::Set, .. }) && is_instance(second)
        }),
        Some(Fault::WrongWord) => each(good, |change| match &change.event {
            Event::Instance { op: InstanceOp::Deregister, service, id, .. } => {
                let (service, id) = (service.clone(), id.clone());
                let event = Event::Instance { op: InstanceOp::Expired, service, id, instance: None };
                vec![Arc::new(Change::new(change.index, event))]
            }
            _ => vec![change],
        }),
        Some(Fault::OldStateTold) => {
            let mut last = None;
            each(good, move |change| match &change.event {
                Event::Instance { op, service, id, instance: Some(new) } => {
                    let old = last.replace(new.clone());
                    let told = old.filter(|old| old.id() == id).unwrap_or_else(|| new.clone());
                    let (service, id) = (service.clone(), id.clone());
                    let event = Event::Instance { op: *op, service, id, instance: Some(told) };
                    vec![Arc::new(Change::new(change.index, event))]
                }
                _ => vec![change],
            })
        }
        Some(Fault::UnboundedWatcher) => {
            let (keep, kept) = tokio::sync::mpsc::unbounded_channel();
            tokio::spawn(async move {
                let mut good = good;
                while let Some(item) = good.next().await {
                    if keep.send(item).is_err() {
                        break;
                    }
                }
            });
            Box::pin(stream::unfold(kept, async |mut kept| Some((kept.recv().await?, kept))))
        }
        _ => good,
    }
}

/// A watch whose snapshot was taken some time before its changes begin: until something has changed, when anything
/// does.
pub(super) async fn with_gap(
    good: &dyn Registry,
    namespace: &Namespace,
    scope: Scope,
) -> Result<WatchStream> {
    let snapshot = good.watch(namespace, scope.clone(), None).await?.next().await;
    let place = good.services(namespace).await?.index;
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(1)).await;
        if good.services(namespace).await?.index != place {
            break;
        }
    }
    let changes = good.watch(namespace, scope, None).await?.skip(1);
    Ok(Box::pin(stream::iter(snapshot).chain(changes)))
}

fn is_instance(change: &Change) -> bool {
    matches!(change.event, Event::Instance { .. })
}

/// Puts what `tell` gives for each change in its place.
fn each(
    good: WatchStream,
    mut tell: impl FnMut(Arc<Change>) -> Vec<Arc<Change>> + Send + 'static,
) -> WatchStream {
    let told = good.flat_map(move |item| {
        let items: Vec<Result<_>> = match item {
            Ok(change) => tell(change).into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        };
        stream::iter(items)
    });
    Box::pin(told)
}

/// Names another store in each snapshot.
fn stores(good: WatchStream, tell: fn(StoreId) -> StoreId) -> WatchStream {
    each(good, move |change| match &change.event {
        Event::Snapshot(snapshot) => {
            let snapshot = Snapshot { store: snapshot.store.map(tell), ..snapshot.clone() };
            vec![Arc::new(Change::new(change.index, Event::Snapshot(snapshot)))]
        }
        _ => vec![change],
    })
}

/// Lets two changes that follow each other change places when `swap` says so.
fn swapped(good: WatchStream, swap: impl Fn(&Change, &Change) -> bool + Send + 'static) -> WatchStream {
    let mut held: Option<Arc<Change>> = None;
    let told = good.ready_chunks(64).flat_map(move |items| {
        let mut out: Vec<Result<Arc<Change>>> = Vec::new();
        for item in items {
            match (held.take(), item) {
                (Some(first), Ok(second)) if swap(&first, &second) => {
                    // The places change with the events, or the order of the places alone would give it away.
                    out.push(Ok(Arc::new(Change::new(first.index, second.event.clone()))));
                    out.push(Ok(Arc::new(Change::new(second.index, first.event.clone()))));
                }
                (first, item) => {
                    out.extend(first.map(Ok));
                    match item {
                        Ok(second) => held = Some(second),
                        Err(error) => out.push(Err(error)),
                    }
                }
            }
        }
        out.extend(held.take().map(Ok));
        stream::iter(out)
    });
    Box::pin(told)
}
