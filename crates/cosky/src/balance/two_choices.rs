//! The less busy of two.

use std::collections::HashMap;

use cosky_core::{InstanceId, ServiceInstance, Weighted};

use super::{
    Balancer,
    requests::{Request, Requests},
};

/// The power of two choices: of two random instances, drawn by weight, the one with fewer requests under way for its
/// weight. Of two that are equally busy it is the first one drawn, so idle instances are chosen as their weights say.
///
/// A request is under way as long as its [`super::Picked`] is held, also while the list changes, so hold it until the
/// answer has come. Counted is what this [`super::Balanced`] and its clones chose, not what others send.
///
/// A pick is two random numbers and two binary searches. Threads never wait for each other.
///
/// ```no_run
/// # async fn send(uri: String) {}
/// # async fn example(stock: cosky::LiveView) {
/// use cosky::balance::TwoChoices;
///
/// let balanced = stock.balanced_by(TwoChoices::default());
/// if let Some(target) = balanced.pick() {
///     send(target.uri().unwrap_or_default()).await;
///     drop(target); // the request is over
/// }
/// # }
/// ```
#[derive(Debug, Default)]
pub struct TwoChoices {
    weighted: Weighted,
    members: Box<[Member]>,
    /// Those that may not be chosen now and have requests under way: some of them come back.
    pub(super) absent: Box<[(InstanceId, Requests)]>,
}

/// A request that [`TwoChoices`] counts, until this is dropped.
#[derive(Debug)]
pub struct UnderWay(#[expect(dead_code, reason = "it counts by being there")] Request);

#[derive(Debug)]
struct Member {
    id: InstanceId,
    weight: u64,
    /// Requests under way.
    requests: Requests,
}

impl TwoChoices {
    /// Whether `one` has more to do than `other`, each measured by its weight.
    fn is_busier(&self, one: usize, other: usize) -> bool {
        let (one, other) = (&self.members[one], &self.members[other]);
        one.requests() * other.weight > other.requests() * one.weight
    }
}

impl Member {
    fn requests(&self) -> u64 {
        self.requests.count().into()
    }
}

impl Balancer for TwoChoices {
    type Key = ();
    type Held = UnderWay;

    fn rebuild(&self, eligible: &[&ServiceInstance]) -> Self {
        let present = self.members.iter().map(|member| (&member.id, &member.requests));
        let absent = self.absent.iter().map(|(id, requests)| (id, requests));
        let mut counts: HashMap<&InstanceId, &Requests> = present.chain(absent).collect();
        let members = eligible.iter().map(|instance| Member {
            id: instance.id().clone(),
            weight: instance.weight().get().into(),
            requests: counts.remove(instance.id()).cloned().unwrap_or_default(),
        });
        let members = members.collect();
        let absent = counts
            .into_iter()
            .filter(|(_, requests)| requests.count() > 0)
            .map(|(id, requests)| (id.clone(), requests.clone()));
        Self {
            weighted: Weighted::of(eligible.iter().map(|instance| instance.weight()).enumerate()),
            members,
            absent: absent.collect(),
        }
    }

    fn pick(&self, (): &()) -> Option<(usize, UnderWay)> {
        let (first, second) = self.weighted.pick_two()?;
        let at = if self.is_busier(first, second) { second } else { first };
        Some((at, UnderWay(self.members[at].requests.begin())))
    }
}
