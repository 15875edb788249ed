//! At random, by weight.

use cosky_core::{ServiceInstance, Weighted};

use super::Balancer;

/// A random instance, each as likely as its weight: what [`crate::LiveView::choose`] and the server's `GET …/lb` do.
///
/// A pick is one random number and a binary search. Threads never wait for each other.
///
/// ```no_run
/// # fn example(stock: cosky::LiveView) {
/// use cosky::balance::WeightedRandom;
///
/// let balanced = stock.balanced_by(WeightedRandom::default());
/// let target = balanced.pick();
/// # }
/// ```
#[derive(Debug, Default)]
pub struct WeightedRandom(Weighted);

impl Balancer for WeightedRandom {
    type Key = ();
    type Held = ();

    fn rebuild(&self, eligible: &[&ServiceInstance]) -> Self {
        Self(Weighted::of(eligible.iter().map(|instance| instance.weight()).enumerate()))
    }

    fn pick(&self, (): &()) -> Option<(usize, ())> {
        self.0.pick().map(|at| (at, ()))
    }
}
