//! Who looks for whom: what `?consumer=NAME` of a read notes for the topology.

use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex, PoisonError},
};

use cosky_core::{ConsumerName, Namespace, ServiceId};
use tokio::sync::Semaphore;

use crate::AppState;

/// Dependencies that are remembered as noted, about 1 MiB.
const KNOWN: usize = 65_536;
/// Notes on their way to the store at one time.
const WRITES: usize = 64;
/// Reads whose notes are on their way or wait for it. Each has one task and, of a watch, up to 1,000 services.
const NOTING: usize = 1_024;

/// Remembers which dependencies the store knows, so that a read costs one look-up after the first.
#[derive(Debug)]
pub(crate) struct Dependencies {
    /// Hashes under a seed of this process: two of at most 65,536 agree once in billions of such sets, and all that is
    /// lost then is one line of the topology until the next start.
    known: Mutex<HashSet<u64>>,
    seed: RandomState,
    writes: Semaphore,
    noting: Arc<Semaphore>,
}

impl Default for Dependencies {
    fn default() -> Self {
        Self {
            known: Mutex::default(),
            seed: RandomState::default(),
            writes: Semaphore::new(WRITES),
            noting: Arc::new(Semaphore::new(NOTING)),
        }
    }
}

impl Dependencies {
    /// Whether this is not known yet; it is, from now on.
    fn learn(&self, dependency: u64) -> bool {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.contains(&dependency) {
            return false;
        }
        if known.len() >= KNOWN {
            known.clear();
        }
        known.insert(dependency)
    }

    /// After a purge, which takes them out of the store. Those of other namespaces are noted once more, which changes
    /// nothing.
    pub(super) fn forget_all(&self) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn forget(&self, dependency: u64) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(&dependency);
    }
}

/// Checks the `consumer` of a query.
///
/// # Errors
/// 400 that names `consumer`.
pub(super) fn parse(consumer: Option<&str>) -> cosky_core::Result<Option<ConsumerName>> {
    consumer.map(ConsumerName::new).transpose()
}

/// Notes that `consumer` looks for `producers`, in turn, beside the answer and not before it. What cannot be noted now,
/// since the store fails or too many reads have something to note, is noted by a later read.
pub(super) fn note<'a>(
    state: &AppState,
    namespace: &Namespace,
    consumer: Option<&ConsumerName>,
    producers: impl IntoIterator<Item = &'a ServiceId>,
) {
    let Some(consumer) = consumer else { return };
    let dependencies = &state.shared.dependencies;
    let new: Vec<_> = producers
        .into_iter()
        .map(|producer| (dependencies.seed.hash_one((namespace, consumer, producer)), producer))
        .filter(|(dependency, _)| dependencies.learn(*dependency))
        .map(|(dependency, producer)| (dependency, producer.clone()))
        .collect();
    if new.is_empty() {
        return;
    }
    let Ok(place) = Arc::clone(&dependencies.noting).try_acquire_owned() else {
        new.iter().for_each(|(dependency, _)| dependencies.forget(*dependency));
        return;
    };
    let (shared, store) = (Arc::clone(&state.shared), Arc::clone(&state.store));
    let (namespace, consumer) = (namespace.clone(), consumer.clone());
    tokio::spawn(async move {
        for (dependency, producer) in new {
            let turn = shared.dependencies.writes.acquire().await.expect("the semaphore is never closed");
            if let Err(error) = store.add_dependency(&namespace, &consumer, producer.as_str()).await {
                tracing::debug!(%namespace, %consumer, "service.id" = %producer, "dependency not noted: {error}");
                shared.dependencies.forget(dependency);
            }
            drop(turn);
        }
        drop(place);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_bounded() {
        let dependencies = Dependencies::default();
        for dependency in 0..3 * KNOWN as u64 {
            assert!(dependencies.learn(dependency));
            assert!(!dependencies.learn(dependency), "known now");
            assert!(dependencies.known.lock().unwrap().len() <= KNOWN);
        }
        dependencies.forget(3 * KNOWN as u64 - 1);
        assert!(dependencies.learn(3 * KNOWN as u64 - 1), "a failed note is tried again");
    }
}
