//! The instances of one service, and their digest.

use std::sync::Arc;

use cosky_core::{
    InstanceId,
    digest::{self, Digest},
};

use crate::memory::Slot;

/// The instances of one service.
#[derive(Default)]
pub(crate) struct Members {
    /// Sorted by id.
    slots: Vec<Arc<Slot>>,
    /// Of all slots, kept with them so that asking for it touches none.
    digest: Digest,
}

impl Members {
    /// Sorted by id.
    pub(crate) fn slots(&self) -> &[Arc<Slot>] {
        &self.slots
    }

    /// The digest of all of them.
    pub(crate) fn digest(&self) -> u64 {
        self.digest.get()
    }

    /// Puts `slot` in the place of the instance of the same id, if there is one.
    pub(crate) fn put(&mut self, slot: Arc<Slot>) {
        self.digest.add(digest::of_instance(&slot.instance));
        // Rows are loaded in order, and new instances often come last.
        let last = self.slots.last().is_none_or(|last| last.instance.id() < slot.instance.id());
        match if last { Err(self.slots.len()) } else { self.find(slot.instance.id()) } {
            Ok(at) => {
                let old = std::mem::replace(&mut self.slots[at], slot);
                self.digest.remove(digest::of_instance(&old.instance));
            }
            Err(at) => self.slots.insert(at, slot),
        }
    }

    pub(crate) fn remove(&mut self, instance: &InstanceId) {
        if let Ok(at) = self.find(instance) {
            let old = self.slots.remove(at);
            self.digest.remove(digest::of_instance(&old.instance));
        }
    }

    fn find(&self, instance: &InstanceId) -> Result<usize, usize> {
        self.slots.binary_search_by(|slot| slot.instance.id().cmp(instance))
    }
}
