//! Kinds of content: what a name is, what it holds, and how the registry tells it.
//!
//! A name holds a list of items with ids of their own. Everything else, following, loading, protecting, comparing, knows
//! no more than that.

use std::{collections::BTreeSet, fmt, future::Future, hash::Hash, pin::Pin, sync::Arc, time::Duration};

use cosky_core::{Error, Event, Namespace, Read, Registry, Result, Scope, Snapshot};

use crate::{OnMetadata, Recall};

/// What the registry is being asked.
pub(crate) type Loading<T> = Pin<Box<dyn Future<Output = Result<Read<T>>> + Send>>;

/// A kind of content.
pub(crate) trait Kind: Send + Sync + Sized + 'static {
    /// What is looked for.
    type Name: Clone + Ord + Hash + fmt::Display + fmt::Debug + Send + Sync + 'static;
    /// An item's name in the list.
    type Id: Clone + Ord + fmt::Debug + Send + Sync + 'static;
    /// What a name holds any number of.
    type Item: Clone + Send + Sync + 'static;
    /// What readers are shown, made of a list of items.
    type Content: Clone + Default + Send + Sync + 'static;

    /// What to watch for these names, of which there is at least one.
    fn scope(names: BTreeSet<Self::Name>) -> Scope;

    /// Bytes of a name in a question, roughly.
    fn weight(name: &Self::Name) -> usize;

    /// Whether a watch of `scope` tells of `name`.
    fn covers(scope: &Scope, name: &Self::Name) -> bool;

    /// The id of an item.
    fn id(item: &Self::Item) -> &Self::Id;

    /// What a snapshot says of `name`.
    fn snapshot<'a>(snapshot: &'a Snapshot, name: &Self::Name) -> &'a [Self::Item];

    /// What an event says, and of which name; nothing when it says nothing of this kind.
    fn step(event: &Event) -> Option<(&Self::Name, Step<'_, Self>)>;

    /// Makes what is shown. The items are sorted by id.
    fn content(items: Vec<Self::Item>) -> Self::Content;

    /// The items that it was made of.
    fn items(content: &Self::Content) -> &[Self::Item];

    /// How long an item lives unless the registry says otherwise; nothing when it has no end.
    fn life(item: &Self::Item) -> Option<Duration>;

    /// An item's number in the digest.
    fn number(item: &Self::Item) -> u64;

    /// Asks for one name.
    fn load(registry: Arc<dyn Registry>, namespace: Namespace, name: Self::Name) -> Loading<Vec<Self::Item>>;

    /// Hands on what an item says of itself.
    fn saw(hook: &OnMetadata, namespace: &Namespace, item: &Self::Item);

    /// What was known of a name before this process, and how old that is.
    fn recall(
        hook: &Recall,
        namespace: &Namespace,
        name: &Self::Name,
        why: &Error,
    ) -> Option<(Self::Content, Duration)>;
}

/// What happens to a name's list.
pub(crate) enum Step<'a, K: Kind> {
    /// It has this item now.
    Put {
        /// The item.
        item: &'a K::Item,
        /// Somebody changed what it says of itself.
        edited: bool,
    },
    /// It lost an item.
    Gone {
        /// Its id.
        id: &'a K::Id,
        /// Somebody took it away; otherwise its time was over.
        on_purpose: bool,
    },
}
