//! Balancers: ways to choose an instance of a live view.
//!
//! | | chooses | for |
//! |---|---|---|
//! | [`WeightedRandom`] | at random, each as often as its weight | many callers; what [`LiveView::choose`] does |
//! | [`RoundRobin`] | in turn, each as often as its weight, evenly spread | few callers, even load |
//! | [`TwoChoices`] | of two at random the one with fewer requests under way | requests or instances of unequal speed |
//! | [`ConsistentHash`] | by a key, the same key always the same one | caches and sessions at the instances |
//! | [`ZoneFirst`] | with any of these, in the own zone while that has anybody | several zones |
//!
//! None of them ever chooses what is out of service (metadata `instance_status` present and not `UP`) or of weight 0.
//! They work on the view's own list: [`LiveView::balanced_by`] rebuilds one at the first pick after the list changed
//! and never between, and a pick is never older than what the view showed when it was asked for. A pick allocates
//! nothing and asks nobody; when nothing may be chosen it says so at once.
//!
//! ```no_run
//! use cosky::balance::{RoundRobin, ZoneFirst};
//!
//! # async fn example(shop: cosky::NamespaceClient) -> cosky::Result<()> {
//! let stock = shop.discover("stock").await?;
//! let balanced = stock.balanced_by(ZoneFirst::from_env(RoundRobin::default()));
//! if let Some(target) = balanced.pick() {
//!     println!("calling {}", target.uri().unwrap_or_default());
//! }
//! # Ok(())
//! # }
//! ```

mod consistent_hash;
mod requests;
mod round_robin;
#[cfg(test)]
mod tests;
mod two_choices;
mod weighted_random;
mod zone_first;

use std::{
    fmt,
    ops::Deref,
    sync::{Arc, Mutex, PoisonError},
};

use arc_swap::{ArcSwap, Guard};
use cosky_core::{ServiceInstance, eligible};

pub use self::{
    consistent_hash::ConsistentHash,
    round_robin::RoundRobin,
    two_choices::{TwoChoices, UnderWay},
    weighted_random::WeightedRandom,
    zone_first::ZoneFirst,
};
use crate::{LiveView, SubsetView};

/// A way to choose among instances: one of this module, or one's own.
///
/// A value is built for one list and never sees another. What comes before any list, and is handed to
/// [`LiveView::balanced_by`], is a value of an empty list.
///
/// ```
/// use cosky::{ServiceInstance, balance::Balancer};
///
/// /// Always the one of the highest weight: a primary with its stand-ins.
/// #[derive(Default)]
/// struct Heaviest(Option<usize>);
///
/// impl Balancer for Heaviest {
///     type Key = ();
///     type Held = ();
///
///     fn rebuild(&self, eligible: &[&ServiceInstance]) -> Self {
///         Self((0..eligible.len()).max_by_key(|&at| eligible[at].weight().get()))
///     }
///
///     fn pick(&self, (): &()) -> Option<(usize, ())> {
///         self.0.map(|at| (at, ()))
///     }
/// }
/// ```
pub trait Balancer: Sized + Send + Sync + 'static {
    /// What the caller says with each pick: `()` for nothing.
    type Key: ?Sized;
    /// What lives as long as the caller holds on to the pick, to learn by its `Drop` when a request is over: `()` for
    /// nothing.
    type Held;

    /// The balancer of the next list, `self` being that of the last one: whatever has to outlive a change is taken
    /// over here. `eligible` holds only what may be chosen, sorted by id, and may be empty.
    ///
    /// Called by the first pick after a change, while other threads may still pick from `self`.
    #[must_use]
    fn rebuild(&self, eligible: &[&ServiceInstance]) -> Self;

    /// Chooses a position in the list that `self` was built from; `None` to choose nobody, as is a position that is not
    /// there. Any number of threads pick at once, so it must neither wait nor take long.
    fn pick(&self, key: &Self::Key) -> Option<(usize, Self::Held)>;
}

/// A live view, or a part of one, with a balancer; see [`LiveView::balanced_by`] and [`SubsetView::balanced_by`].
///
/// Clones share the balancer and what it remembers. The view's stream lives at least as long as they do.
pub struct Balanced<B> {
    shared: Arc<Shared<B>>,
}

/// A chosen instance. Hold on to it until the request is over: some balancers count what is under way.
#[must_use = "the balancer takes the request for done when this is dropped"]
pub struct Picked<H> {
    instance: ServiceInstance,
    _held: H,
}

struct Shared<B> {
    source: Source,
    built: ArcSwap<Built<B>>,
    /// Held by the one who rebuilds; the others wait for it instead of picking from a list that is over.
    rebuilding: Mutex<()>,
}

/// What is chosen from.
enum Source {
    View(LiveView),
    Part(SubsetView),
}

/// A balancer and the list that it was built from, so that positions always fit.
struct Built<B> {
    list: Arc<[ServiceInstance]>,
    /// Where those that may be chosen stand in `list`.
    eligible: Box<[usize]>,
    balancer: B,
}

impl LiveView {
    /// Chooses from this view with `balancer`.
    ///
    /// Keep what this returns, and clone it for other threads: each call starts a balancer that knows nothing of the
    /// others.
    pub fn balanced_by<B: Balancer>(&self, balancer: B) -> Balanced<B> {
        Balanced::new(Source::View(self.clone()), &balancer)
    }
}

impl SubsetView {
    /// As [`LiveView::balanced_by`], from this part of the view.
    pub fn balanced_by<B: Balancer>(&self, balancer: B) -> Balanced<B> {
        Balanced::new(Source::Part(self.clone()), &balancer)
    }
}

impl Source {
    fn snapshot(&self) -> Arc<[ServiceInstance]> {
        match self {
            Self::View(view) => view.snapshot(),
            Self::Part(part) => part.snapshot(),
        }
    }

    fn shows(&self, list: &Arc<[ServiceInstance]>) -> bool {
        match self {
            Self::View(view) => view.shows(list),
            Self::Part(part) => part.shows(list),
        }
    }
}

impl<B: Balancer> Balanced<B> {
    fn new(source: Source, balancer: &B) -> Self {
        let built = ArcSwap::from_pointee(Built::of(source.snapshot(), balancer));
        Self { shared: Arc::new(Shared { source, built, rebuilding: Mutex::default() }) }
    }

    /// Chooses an instance; `None` when none may be chosen.
    pub fn pick(&self) -> Option<Picked<B::Held>>
    where
        B: Balancer<Key = ()>,
    {
        self.pick_for(&())
    }

    /// Chooses an instance for `key`; `None` when none may be chosen.
    pub fn pick_for(&self, key: &B::Key) -> Option<Picked<B::Held>> {
        let built = self.shared.current();
        if built.eligible.is_empty() {
            return None;
        }
        let (at, held) = built.balancer.pick(key)?;
        let instance = built.list[*built.eligible.get(at)?].clone();
        Some(Picked { instance, _held: held })
    }
}

impl<B> Balanced<B> {
    /// The view that it chooses from, or from a part of which it does.
    pub fn view(&self) -> &LiveView {
        match &self.shared.source {
            Source::View(view) => view,
            Source::Part(part) => part.view(),
        }
    }
}

impl<B: Balancer> Shared<B> {
    /// What is built from the list that the view shows.
    fn current(&self) -> Guard<Arc<Built<B>>> {
        let built = self.built.load();
        if self.source.shows(&built.list) {
            return built;
        }
        drop(built);
        // Nothing is half done when a balancer of somebody else's panics: the old one stays, the next pick tries again.
        let _alone = self.rebuilding.lock().unwrap_or_else(PoisonError::into_inner);
        let built = self.built.load();
        let list = self.source.snapshot();
        if Arc::ptr_eq(&list, &built.list) {
            return built;
        }
        self.built.store(Arc::new(Built::of(list, &built.balancer)));
        self.built.load()
    }
}

impl<B: Balancer> Built<B> {
    fn of(list: Arc<[ServiceInstance]>, before: &B) -> Self {
        let (positions, instances): (Vec<usize>, Vec<&ServiceInstance>) = eligible(&list).unzip();
        let balancer = before.rebuild(&instances);
        Self { eligible: positions.into(), balancer, list }
    }
}

impl<B> Clone for Balanced<B> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<H> Deref for Picked<H> {
    type Target = ServiceInstance;

    fn deref(&self) -> &ServiceInstance {
        &self.instance
    }
}

impl<B> fmt::Debug for Balanced<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Balanced")
            .field("view", self.view())
            .field("balancer", &std::any::type_name::<B>())
            .finish_non_exhaustive()
    }
}

impl<H> fmt::Debug for Picked<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Picked").field(self.instance.id()).finish()
    }
}
