//! A part of a live view, chosen by metadata, with what to do when that part has nobody.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use arc_swap::{ArcSwap, Guard};
use cosky_core::{ServiceInstance, Weighted, eligible};

use crate::{Error, LiveView, Result};

/// Which instances of a service are meant: those with these metadata, else others, in an order that is stated once.
///
/// An alternative counts as soon as one of its instances may be chosen: in service and of a weight above 0. Without an
/// alternative that is stated nobody is chosen, and never somebody else.
///
/// ```
/// use cosky::Subset;
///
/// // The blue lane, while it has nobody the green one, and nobody else.
/// let lanes = Subset::of("lane", "blue").or("lane", "green");
/// // Version 2 in the own region, else version 2 anywhere, else everybody.
/// let version = Subset::of("version", "2").and("region", "eu").or("version", "2").or_all();
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subset {
    /// The metadata that each alternative asks for; none means everybody.
    alternatives: Vec<Vec<(Box<str>, Box<str>)>>,
}

/// A part of a live view; see [`LiveView::subset`].
///
/// It is computed when the view's list has changed and somebody asks, never in between. Clones share that.
#[derive(Clone)]
pub struct SubsetView {
    shared: Arc<Shared>,
}

struct Shared {
    view: LiveView,
    subset: Subset,
    part: ArcSwap<Part>,
    /// Held by the one who computes; the others wait for it instead of choosing from a list that is over.
    computing: Mutex<()>,
}

/// What the view's list gives.
struct Part {
    /// The list that this is a part of.
    whole: Arc<[ServiceInstance]>,
    instances: Arc<[ServiceInstance]>,
    weighted: Weighted,
    /// Which alternative it is; `None` when nobody may be chosen.
    alternative: Option<usize>,
}

impl Subset {
    /// The instances whose metadata `key` is `value`.
    pub fn of(key: impl AsRef<str>, value: impl AsRef<str>) -> Self {
        Self { alternatives: vec![vec![entry(key, value)]] }
    }

    /// And these metadata as well, of the alternative that was stated last.
    #[must_use]
    pub fn and(mut self, key: impl AsRef<str>, value: impl AsRef<str>) -> Self {
        if let Some(last) = self.alternatives.last_mut() {
            last.push(entry(key, value));
        }
        self
    }

    /// While the alternatives before have nobody that may be chosen: the instances whose metadata `key` is `value`.
    #[must_use]
    pub fn or(mut self, key: impl AsRef<str>, value: impl AsRef<str>) -> Self {
        self.alternatives.push(vec![entry(key, value)]);
        self
    }

    /// While the alternatives before have nobody that may be chosen: everybody.
    #[must_use]
    pub fn or_all(mut self) -> Self {
        self.alternatives.push(Vec::new());
        self
    }
}

fn entry(key: impl AsRef<str>, value: impl AsRef<str>) -> (Box<str>, Box<str>) {
    (key.as_ref().into(), value.as_ref().into())
}

fn has(instance: &ServiceInstance, wanted: &[(Box<str>, Box<str>)]) -> bool {
    wanted.iter().all(|(key, value)| instance.metadata().get(key) == Some(value))
}

impl LiveView {
    /// The part of this view that `subset` means.
    ///
    /// Keep what this returns, and clone it for other threads: each call computes its own.
    pub fn subset(&self, subset: Subset) -> SubsetView {
        let part = ArcSwap::from_pointee(Part::of(self.snapshot(), &subset, None));
        SubsetView {
            shared: Arc::new(Shared { view: self.clone(), subset, part, computing: Mutex::default() }),
        }
    }
}

impl SubsetView {
    /// The instances of the alternative that counts now, sorted by id, those out of service included; when nobody may
    /// be chosen at all, those of the first alternative. The list is immutable; a change makes a new one.
    pub fn snapshot(&self) -> Arc<[ServiceInstance]> {
        self.shared.current().instances.clone()
    }

    /// A random instance among those of the part that may be chosen, each as likely as its weight.
    ///
    /// # Errors
    /// [`Error::NoInstance`] when there is none.
    pub fn choose(&self) -> Result<ServiceInstance> {
        let part = self.shared.current();
        let chosen = part.weighted.pick().map(|at| part.instances[at].clone());
        chosen.ok_or_else(|| Error::NoInstance { service: self.view().service().to_string() })
    }

    /// Which alternative counts now: 0 for what [`Subset::of`] said, 1 for the first that was stated behind it, and so
    /// on; `None` when nobody may be chosen.
    pub fn alternative(&self) -> Option<usize> {
        self.shared.current().alternative
    }

    /// The view that this is a part of: its state, its age, and its changes.
    pub fn view(&self) -> &LiveView {
        &self.shared.view
    }

    /// Whether `list` is what [`SubsetView::snapshot`] would give.
    pub(crate) fn shows(&self, list: &Arc<[ServiceInstance]>) -> bool {
        Arc::ptr_eq(&self.shared.current().instances, list)
    }
}

impl Shared {
    /// The part of the list that the view shows.
    fn current(&self) -> Guard<Arc<Part>> {
        let part = self.part.load();
        if self.view.shows(&part.whole) {
            return part;
        }
        drop(part);
        let _alone = self.computing.lock().unwrap_or_else(PoisonError::into_inner);
        let part = self.part.load();
        let whole = self.view.snapshot();
        if Arc::ptr_eq(&whole, &part.whole) {
            return part;
        }
        self.part.store(Arc::new(Part::of(whole, &self.subset, Some(&part))));
        self.part.load()
    }
}

impl Part {
    fn of(whole: Arc<[ServiceInstance]>, subset: &Subset, before: Option<&Self>) -> Self {
        let counts = |wanted: &Vec<_>| eligible(&whole).any(|(_, instance)| has(instance, wanted));
        let alternative = subset.alternatives.iter().position(counts);
        let wanted = &subset.alternatives[alternative.unwrap_or_default()];
        let instances: Vec<_> = whole.iter().filter(|instance| has(instance, wanted)).cloned().collect();
        // What changed elsewhere in the list makes no balancer of this part start anew.
        let instances = match before {
            Some(before) if *before.instances == *instances => before.instances.clone(),
            _ => instances.into(),
        };
        Self { weighted: Weighted::new(&instances), whole, instances, alternative }
    }
}

impl fmt::Debug for SubsetView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubsetView")
            .field("view", &self.shared.view)
            .field("subset", &self.shared.subset)
            .field("alternative", &self.alternative())
            .finish_non_exhaustive()
    }
}
