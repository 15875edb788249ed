//! What changed, instance by instance.

use std::{cmp::Ordering, fmt, sync::Arc};

use cosky_core::{ServiceInstance, StoreState};

use crate::{Shown, View};

/// The changes of a view, one by one. It compares what it told last with what is shown now, so it needs no queue, never
/// falls behind, and may skip what came and went in between; adding up what it tells always gives what is shown.
pub struct Changes {
    view: View,
    /// What has been told whole.
    old: Arc<Shown>,
    /// What is being told, and how far both lists were compared.
    new: Arc<Shown>,
    at: (usize, usize),
    /// The state that was told last.
    state: Option<StoreState>,
}

/// One change of a view.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ViewChange {
    /// An instance is there that was not.
    Added(ServiceInstance),
    /// An instance says something else of itself: weight, metadata or kind.
    Updated {
        /// What it said.
        old: ServiceInstance,
        /// What it says now.
        new: ServiceInstance,
    },
    /// An instance is not there any more.
    Removed(ServiceInstance),
    /// The list can be trusted this far from now on. Comes after the changes of the list that came with it.
    State(StoreState),
}

impl Changes {
    pub(crate) fn new(view: View) -> Self {
        let new = view.shown();
        let mut nothing = (*new).clone();
        nothing.content = Default::default();
        Self { view, old: Arc::new(nothing), new, at: (0, 0), state: None }
    }

    /// The next change. Begins with an `Added` for each instance that was there, and the state. Never ends. May be
    /// cancelled at any time without losing a change.
    pub async fn next(&mut self) -> ViewChange {
        loop {
            if let Some(change) = self.compare() {
                return change;
            }
            self.old = self.new.clone();
            self.new = self.view.entry().changed(self.old.version).await;
            self.at = (0, 0);
        }
    }

    /// The next difference that was not told yet.
    fn compare(&mut self) -> Option<ViewChange> {
        loop {
            let (old, new) = (self.old.instances.get(self.at.0), self.new.instances.get(self.at.1));
            let order = match (old, new) {
                (Some(old), Some(new)) => old.id().cmp(new.id()),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => break,
            };
            self.at.0 += usize::from(order.is_le());
            self.at.1 += usize::from(order.is_ge());
            let (old, new) = (old.filter(|_| order.is_le()).cloned(), new.filter(|_| order.is_ge()).cloned());
            match (old, new) {
                (Some(old), Some(new)) if old.instance() == new.instance() => {}
                (Some(old), Some(new)) => return Some(ViewChange::Updated { old, new }),
                (Some(old), None) => return Some(ViewChange::Removed(old)),
                (None, Some(new)) => return Some(ViewChange::Added(new)),
                (None, None) => {}
            }
        }
        let state = self.new.state;
        (self.state.replace(state) != Some(state)).then_some(ViewChange::State(state))
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").field("view", &self.view).finish_non_exhaustive()
    }
}
