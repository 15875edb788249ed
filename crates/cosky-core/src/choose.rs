//! Who may be chosen, and weighted random choice: what `GET …/lb` and the SDK's balancers share.

use rand::RngExt;

use crate::{ServiceInstance, Weight};

/// Cumulative weights of the instances that may be chosen: in service and of a weight above 0. Built once per
/// snapshot; a choice is one random number and a binary search.
#[derive(Debug, Clone, Default)]
pub struct Weighted {
    /// (sum of the weights up to and including this one, position in the slice it was built from)
    sums: Box<[(u64, usize)]>,
}

/// The instances that may be chosen, in service and of a weight above 0, each with its position in `instances`.
pub fn eligible(instances: &[ServiceInstance]) -> impl Iterator<Item = (usize, &ServiceInstance)> {
    instances.iter().enumerate().filter(|(_, i)| i.weight().get() > 0 && i.is_in_service())
}

impl Weighted {
    /// Looks at every instance once.
    pub fn new(instances: &[ServiceInstance]) -> Self {
        Self::of(eligible(instances).map(|(at, instance)| (at, instance.weight())))
    }

    /// Of positions and their weights, whatever they stand for. A weight of 0 is never chosen.
    pub fn of(shares: impl IntoIterator<Item = (usize, Weight)>) -> Self {
        let mut sum = 0;
        let sums = shares.into_iter().filter(|(_, weight)| weight.get() > 0).map(|(at, weight)| {
            sum += u64::from(weight.get());
            (sum, at)
        });
        Self { sums: sums.collect() }
    }

    /// The position of a random instance, each as likely as its weight; `None` when none may be chosen.
    pub fn pick(&self) -> Option<usize> {
        let (total, only) = *self.sums.last()?;
        if self.sums.len() == 1 {
            return Some(only);
        }
        Some(self.sums[self.holder(rand::rng().random_range(0..total))].1)
    }

    /// The positions of two different random instances: the first as [`Weighted::pick`] gives it, the second in the same
    /// way from the others. The same twice when there is only one; `None` when none may be chosen.
    pub fn pick_two(&self) -> Option<(usize, usize)> {
        let (total, only) = *self.sums.last()?;
        if self.sums.len() == 1 {
            return Some((only, only));
        }
        let mut random = rand::rng();
        let first = self.holder(random.random_range(0..total));
        let below = first.checked_sub(1).map_or(0, |before| self.sums[before].0);
        let share = self.sums[first].0 - below;
        let ticket = random.random_range(0..total - share);
        // The first one's tickets are left out: what lies behind them moves up.
        let second = self.holder(if ticket < below { ticket } else { ticket + share });
        Some((self.sums[first].1, self.sums[second].1))
    }

    /// Whose ticket this is, as an index of `sums`. Tickets go from 0 to the sum of all weights − 1.
    fn holder(&self, ticket: u64) -> usize {
        self.sums.partition_point(|(sum, _)| *sum <= ticket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Instance, Life, Metadata, Registration, ServiceId};

    fn instances(weights: &[(u32, &str)]) -> Vec<ServiceInstance> {
        weights
            .iter()
            .zip(1..)
            .map(|(&(weight, status), port)| {
                let service = ServiceId::new("app").unwrap();
                let mut new = Registration::new(service, "http", "10.0.0.1", port).unwrap();
                new.weight = crate::Weight::new(i64::from(weight)).unwrap();
                new.metadata = Metadata::new([("instance_status", status)]).unwrap();
                ServiceInstance::new(std::sync::Arc::new(Instance::from(new)), Life::Permanent)
            })
            .collect()
    }

    #[test]
    fn shares_follow_the_weights() {
        let chooser =
            Weighted::new(&instances(&[(1, "UP"), (3, "UP"), (6, "UP"), (0, "UP"), (9, "OUT_OF_SERVICE")]));
        let mut counts = [0u32; 5];
        for _ in 0..30_000 {
            counts[chooser.pick().unwrap()] += 1;
        }
        for (count, share) in counts.into_iter().zip([0.1, 0.3, 0.6, 0.0, 0.0]) {
            assert!((f64::from(count) / 30_000.0 - share).abs() < 0.02, "{counts:?}");
        }
        assert_eq!((counts[3], counts[4]), (0, 0), "weight 0 and out of service are never chosen");
    }

    #[test]
    fn two_are_different_and_both_follow_the_weights() {
        let chooser = Weighted::new(&instances(&[(1, "UP"), (3, "UP"), (0, "UP"), (6, "UP"), (9, "DOWN")]));
        let mut counts = [[0u32; 5]; 2];
        for _ in 0..30_000 {
            let (first, second) = chooser.pick_two().unwrap();
            assert_ne!(first, second);
            counts[0][first] += 1;
            counts[1][second] += 1;
        }
        // The second of each is its share of what the first left: for weight 1, 0.3 × 1/7 + 0.6 × 1/4.
        for (counts, shares) in
            counts.into_iter().zip([[0.1, 0.3, 0.0, 0.6, 0.0], [0.1929, 0.4833, 0.0, 0.3238, 0.0]])
        {
            for (count, share) in counts.into_iter().zip(shares) {
                assert!((f64::from(count) / 30_000.0 - share).abs() < 0.02, "{counts:?}");
            }
        }
    }

    #[test]
    fn nothing_to_choose_from() {
        assert_eq!(Weighted::new(&[]).pick(), None);
        assert_eq!(Weighted::new(&instances(&[(0, "UP"), (0, "UP")])).pick(), None);
        assert_eq!(Weighted::new(&instances(&[(0, "UP"), (1, "UP")])).pick(), Some(1));
        assert_eq!(Weighted::new(&instances(&[(0, "UP")])).pick_two(), None);
        assert_eq!(Weighted::new(&instances(&[(0, "UP"), (1, "UP")])).pick_two(), Some((1, 1)));
    }
}
