//! What is known of one name: its items, where in the stream it stands, and what protection holds of it.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use cosky_core::{Change, Error, digest::Digest};
use tokio::time::Instant;

use crate::kind::{Kind, Step};

/// The most changes that are kept while a name is being asked for; after more it is asked again.
const BUFFER: usize = 256;

/// What is known of one name.
pub(crate) struct Held<K: Kind> {
    content: K::Content,
    /// The items, while they differ from what `content` was made of.
    work: Option<Vec<K::Item>>,
    pub(crate) known: bool,
    /// Whether it is in step with the stream: every later change is told.
    pub(crate) follows: bool,
    /// The last change that is in it, of the space's epoch.
    pub(crate) at: u64,
    pub(crate) loading: Option<Loading>,
    /// Failed answers in a row.
    pub(crate) failures: u32,
    pub(crate) error: Option<Error>,
    /// Since when it is not shown as live.
    pub(crate) since: Option<Instant>,
    /// When the registry must be asked whether everything still lives.
    pub(crate) ask_at: Option<Duration>,
    guard: Option<Box<Guard<K::Id>>>,
    /// Writes of this process that were acknowledged, those of them that the content has, and those that the next
    /// snapshot will have.
    pub(crate) wrote: u64,
    pub(crate) writes: u64,
    pub(crate) writes_to_come: u64,
    /// It is on the list of what must be shown anew.
    pub(crate) dirty: bool,
    /// Not only the number of writes is new.
    pub(crate) changed: bool,
    pub(crate) version: u64,
}

/// A question under way.
pub(crate) struct Loading {
    /// Where the stream stood when it was asked.
    pub(crate) asked_at: u64,
    /// What was told since, oldest first.
    buffer: Vec<Arc<Change>>,
    /// The last change that the buffer had no room for.
    overflow: Option<u64>,
}

/// What protection holds.
struct Guard<I> {
    /// Known before the incident, and neither deregistered nor registered anew since.
    before: BTreeSet<I>,
    /// Those of them that the registry does not have.
    absent: BTreeSet<I>,
}

impl<K: Kind> Held<K> {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            content: K::Content::default(),
            work: None,
            known: false,
            follows: false,
            at: 0,
            loading: None,
            failures: 0,
            error: None,
            since: Some(now),
            ask_at: None,
            guard: None,
            wrote: 0,
            writes: 0,
            writes_to_come: 0,
            dirty: false,
            changed: false,
            version: 0,
        }
    }

    pub(crate) fn items(&self) -> &[K::Item] {
        self.work.as_deref().unwrap_or_else(|| K::items(&self.content))
    }

    /// The content that is to be shown now.
    pub(crate) fn content(&mut self) -> K::Content {
        if let Some(items) = self.work.take() {
            self.content = K::content(items);
        }
        self.content.clone()
    }

    /// Everything is as the registry says; but what protection holds stays. Whether that is anything new.
    pub(crate) fn replace(&mut self, items: &[K::Item]) -> bool {
        let mut items = items.to_vec();
        items.sort_by(|a, b| K::id(a).cmp(K::id(b)));
        items.dedup_by(|a, b| K::id(a) == K::id(b));
        if let Some(guard) = &mut self.guard {
            let old = self.work.as_deref().unwrap_or_else(|| K::items(&self.content));
            let there = |id: &K::Id| items.binary_search_by(|item| K::id(item).cmp(id)).is_ok();
            let absent = |item: &&K::Item| guard.before.contains(K::id(item)) && !there(K::id(item));
            let kept: Vec<_> = old.iter().filter(absent).cloned().collect();
            guard.absent = kept.iter().map(|item| K::id(item).clone()).collect();
            items.extend(kept);
            items.sort_by(|a, b| K::id(a).cmp(K::id(b)));
        }
        let same = |(a, b): (&K::Item, &K::Item)| K::id(a) == K::id(b) && K::number(a) == K::number(b);
        let old = self.items();
        if old.len() == items.len() && old.iter().zip(&items).all(same) {
            return false;
        }
        self.work = Some(items);
        true
    }

    pub(crate) fn step(&mut self, step: &Step<'_, K>) {
        match step {
            Step::Put { item, edited } => {
                let id = K::id(item);
                if let Some(guard) = &mut self.guard {
                    guard.absent.remove(id);
                    if !edited {
                        // From here on its expiry counts again.
                        guard.before.remove(id);
                    }
                }
                let items = self.work();
                match items.binary_search_by(|other| K::id(other).cmp(id)) {
                    Ok(at) => items[at] = (*item).clone(),
                    Err(at) => items.insert(at, (*item).clone()),
                }
            }
            Step::Gone { id, on_purpose } => {
                if let Some(guard) = &mut self.guard
                    && guard.before.contains(*id)
                {
                    if !on_purpose {
                        if self.items().binary_search_by(|other| K::id(other).cmp(id)).is_ok()
                            && let Some(guard) = &mut self.guard
                        {
                            guard.absent.insert((*id).clone());
                        }
                        return;
                    }
                    guard.before.remove(*id);
                    guard.absent.remove(*id);
                }
                let items = self.work();
                if let Ok(at) = items.binary_search_by(|other| K::id(other).cmp(id)) {
                    items.remove(at);
                }
            }
        }
    }

    /// Protects everything that is there.
    pub(crate) fn protect(&mut self) {
        let ids: Vec<_> = self.items().iter().map(|item| K::id(item).clone()).collect();
        if ids.is_empty() {
            return;
        }
        let guard = self
            .guard
            .get_or_insert_with(|| Box::new(Guard { before: BTreeSet::new(), absent: BTreeSet::new() }));
        guard.before.extend(ids);
    }

    /// Ends protection; what the registry does not have goes.
    pub(crate) fn unprotect(&mut self) {
        if let Some(guard) = self.guard.take()
            && !guard.absent.is_empty()
        {
            self.work().retain(|item| !guard.absent.contains(K::id(item)));
        }
    }

    /// Whether it may lack a write of this process.
    pub(crate) fn is_behind(&self) -> bool {
        self.writes < self.wrote
    }

    pub(crate) fn is_protected(&self) -> bool {
        self.guard.is_some()
    }

    /// The digest of what the registry should have.
    pub(crate) fn digest(&self) -> Digest {
        let absent = |item: &&K::Item| self.guard.as_ref().is_some_and(|g| g.absent.contains(K::id(item)));
        let mut digest = Digest::default();
        self.items().iter().filter(|item| !absent(item)).for_each(|item| digest.add(K::number(item)));
        digest
    }

    fn work(&mut self) -> &mut Vec<K::Item> {
        self.work.get_or_insert_with(|| K::items(&self.content).to_vec())
    }
}

impl Loading {
    pub(crate) fn new(asked_at: u64) -> Self {
        Self { asked_at, buffer: Vec::new(), overflow: None }
    }

    /// Keeps a change for when the answer is there.
    pub(crate) fn push(&mut self, change: Arc<Change>) {
        if self.buffer.len() < BUFFER {
            self.buffer.push(change);
        } else {
            self.overflow = Some(change.index.sequence);
        }
    }

    /// Whether an answer of this age can be brought up to date.
    pub(crate) fn reaches(&self, sequence: u64) -> bool {
        sequence >= self.asked_at && self.overflow.is_none_or(|overflow| sequence >= overflow)
    }

    /// What was told since, oldest first.
    pub(crate) fn into_buffer(self) -> Vec<Arc<Change>> {
        self.buffer
    }
}
