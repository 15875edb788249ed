//! Weighted random choice, used by `GET …/lb` and by live views.

use rand::RngExt;

use crate::ServiceInstance;

/// Cumulative weights of the instances that may be chosen: in service and of a weight above 0. Built once per
/// snapshot; a choice is one random number and a binary search.
#[derive(Debug, Clone, Default)]
pub struct Weighted {
    /// (sum of the weights up to and including this one, position in the slice it was built from)
    sums: Box<[(u64, usize)]>,
}

impl Weighted {
    /// Looks at every instance once.
    pub fn new(instances: &[ServiceInstance]) -> Self {
        let mut sum = 0;
        let eligible = instances.iter().enumerate().filter(|(_, i)| i.instance().is_in_service());
        let sums = eligible.filter_map(|(at, i)| match i.instance().weight().get() {
            0 => None,
            weight => {
                sum += u64::from(weight);
                Some((sum, at))
            }
        });
        Self { sums: sums.collect() }
    }

    /// The position of a random instance, each as likely as its weight; `None` when none may be chosen.
    pub fn pick(&self) -> Option<usize> {
        let (total, only) = *self.sums.last()?;
        if self.sums.len() == 1 {
            return Some(only);
        }
        let ticket = rand::rng().random_range(0..total);
        Some(self.sums[self.sums.partition_point(|(sum, _)| *sum <= ticket)].1)
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
    fn nothing_to_choose_from() {
        assert_eq!(Weighted::new(&[]).pick(), None);
        assert_eq!(Weighted::new(&instances(&[(0, "UP"), (0, "UP")])).pick(), None);
        assert_eq!(Weighted::new(&instances(&[(0, "UP"), (1, "UP")])).pick(), Some(1));
    }
}
