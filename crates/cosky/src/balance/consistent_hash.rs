//! By a key.

use std::ops::Range;

use cosky_core::ServiceInstance;

use super::Balancer;

/// The same instance for the same key, in every process that sees the same list, and few keys move when it changes.
///
/// When an instance goes, only its keys move, each to one of the others; when one comes, it takes only what is to be
/// its own. Each has as many of the keys as its weight says, and a changed weight moves only the difference.
///
/// It is weighted rendezvous hashing: every instance draws a lot for the key and the best lot wins. A pick looks at
/// every instance, for one or two nanoseconds each. Threads never wait for each other.
///
/// ```no_run
/// # fn example(carts: cosky::LiveView, user: &str) {
/// use cosky::balance::ConsistentHash;
///
/// let balanced = carts.balanced_by(ConsistentHash::default());
/// let target = balanced.pick_for(user.as_bytes());
/// # }
/// ```
#[derive(Debug, Default)]
pub struct ConsistentHash {
    /// (hash of the id, position), those of equal weight side by side.
    members: Box<[(u64, usize)]>,
    groups: Box<[Group]>,
}

/// Instances of equal weight. Among them the highest lot wins, so only the winners are weighed against each other.
#[derive(Debug)]
struct Group {
    weight: f64,
    members: Range<usize>,
}

impl Balancer for ConsistentHash {
    type Key = [u8];
    type Held = ();

    fn rebuild(&self, eligible: &[&ServiceInstance]) -> Self {
        let mut order: Vec<usize> = (0..eligible.len()).collect();
        order.sort_by_key(|&at| eligible[at].weight().get());
        let mut end = 0;
        let groups = order.chunk_by(|&a, &b| eligible[a].weight() == eligible[b].weight()).map(|equal| {
            let members = end..end + equal.len();
            end = members.end;
            Group { weight: eligible[equal[0]].weight().get().into(), members }
        });
        Self {
            groups: groups.collect(),
            members: order.iter().map(|&at| (hash(eligible[at].id().as_str().as_bytes()), at)).collect(),
        }
    }

    fn pick(&self, key: &[u8]) -> Option<(usize, ())> {
        let key = hash(key);
        let winners = self.groups.iter().filter_map(|group| {
            let lots = self.members[group.members.clone()].iter().map(|(id, at)| (mix(key ^ id), *at));
            lots.max().map(|(lot, at)| (delay(lot) / group.weight, at))
        });
        winners.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, at)| (at, ()))
    }
}

/// Turns a lot into a time that is exponentially distributed: the first of several such times, each divided by a
/// weight, is the one of weight w in w of all cases. A higher lot is an earlier time.
#[expect(clippy::cast_precision_loss, reason = "53 bits are kept, which is what the type holds")]
fn delay(lot: u64) -> f64 {
    let share = ((lot >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    -share.ln()
}

/// FNV-1a of 64 bits, mixed. Written out because processes of different builds have to agree on it for ever, which the
/// hashers of libraries do not promise.
fn hash(bytes: &[u8]) -> u64 {
    let fnv = bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    mix(fnv)
}

/// The finisher of SplitMix64: every bit of the input changes half the bits of the output.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
