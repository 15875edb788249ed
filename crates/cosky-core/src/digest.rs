//! Digests: whether two parties hold the same instances, told in eight bytes.
//!
//! A cache compares the digest of what it holds with the store's, and so notices a change that it was never told of. The
//! number of an instance is the XXH3 (64 bits, seed 0) of what was registered, and the digest of a set is the sum of its
//! members' numbers modulo 2⁶⁴: it depends on no order, and a member is added or removed without looking at the others.
//! A set without members has digest 0.
//!
//! What is hashed, each number as a `u32`, little endian: the lengths in bytes of id, schema and host; the port; the weight;
//! 1 for ephemeral or 0 for permanent; the number of metadata entries; and the lengths of the key and the value of each,
//! sorted by the bytes of the key. Then the texts of which these are the lengths, in the same order. How long the instance
//! still lives is not in it, nor are its TTL and owner.
//!
//! It guards against mistakes, not against somebody who builds collisions on purpose.

use twox_hash::XxHash3_64;

use crate::Instance;

/// The digest of a set of instances.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Digest(u64);

/// The number of one instance. It was computed when the instance was made.
pub fn of_instance(instance: &Instance) -> u64 {
    instance.number()
}

impl Digest {
    /// The digest of these instances. Each must come once.
    pub fn of<'a>(instances: impl IntoIterator<Item = &'a Instance>) -> Self {
        let mut digest = Self::default();
        instances.into_iter().for_each(|instance| digest.add(of_instance(instance)));
        digest
    }

    /// Takes in a member, or all members of a set that shares none with this one, by their number.
    pub fn add(&mut self, number: u64) {
        self.0 = self.0.wrapping_add(number);
    }

    /// Takes out what was [added](Self::add).
    pub fn remove(&mut self, number: u64) {
        self.0 = self.0.wrapping_sub(number);
    }

    /// The digest as a number.
    pub fn get(self) -> u64 {
        self.0
    }
}

/// Computes the number of an instance. All is put into one piece first: that is several times faster than many small ones,
/// and a store does it for every instance when it starts.
pub(crate) fn compute(instance: &Instance) -> u64 {
    let texts = [instance.id().as_str(), instance.schema().as_str(), instance.host().as_str()];
    let metadata = instance.metadata();
    let bytes = texts.map(str::len).iter().sum::<usize>() + metadata.bytes();
    let mut piece = Vec::with_capacity(4 * (7 + 2 * metadata.len()) + bytes);
    let mut put = |number: u32| piece.extend_from_slice(&number.to_le_bytes());
    texts.iter().for_each(|text| put(length(text)));
    put(instance.port().get());
    put(instance.weight().get());
    put(instance.is_ephemeral().into());
    put(u32::try_from(metadata.len()).expect("bounded by METADATA_ENTRIES"));
    for (key, value) in metadata.iter() {
        put(length(key));
        put(length(value));
    }
    let entries = metadata.iter().flat_map(|(key, value)| [key, value]);
    texts.into_iter().chain(entries).for_each(|text| piece.extend_from_slice(text.as_bytes()));
    XxHash3_64::oneshot(&piece)
}

fn length(text: &str) -> u32 {
    u32::try_from(text.len()).expect("names, hosts and metadata are bounded")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::{Host, Metadata, Port, Registration, Schema, ServiceId, Weight};

    fn registration() -> Registration {
        let mut new = Registration::new(ServiceId::new("order").unwrap(), "http", "10.0.0.1", 8080).unwrap();
        new.metadata = Metadata::new([("zone", "z1"), ("v", "2")]).unwrap();
        new
    }

    fn number(change: impl FnOnce(&mut Registration)) -> u64 {
        let mut new = registration();
        change(&mut new);
        of_instance(&Instance::from(new))
    }

    /// Servers and clients of different versions compare these numbers, so they must never change. They were computed by
    /// another implementation of XXH3.
    #[test]
    fn numbers_are_for_ever() {
        assert_eq!(number(|_| {}), 0xe24c_3ef2_b3d0_16b7);
        let long = Metadata::new([("text", "x".repeat(1000))]).unwrap();
        assert_eq!(number(|new| new.metadata = long), 0x8547_799b_e9f6_ffb7);
    }

    #[test]
    fn every_field_counts() {
        let metadata = |entries: &[(&str, &str)]| Metadata::new(entries.iter().copied()).unwrap();
        let numbers = [
            number(|_| {}),
            number(|new| new.service = ServiceId::new("orders").unwrap()),
            number(|new| new.schema = Schema::new("https").unwrap()),
            number(|new| new.host = Host::new("10.0.0.2").unwrap()),
            number(|new| new.port = Port::new(8081).unwrap()),
            number(|new| new.weight = Weight::new(2).unwrap()),
            number(|new| new.ephemeral = false),
            number(|new| new.metadata = metadata(&[])),
            number(|new| new.metadata = metadata(&[("zone", "z2"), ("v", "2")])),
            number(|new| new.metadata = metadata(&[("zone", "z1"), ("w", "2")])),
            number(|new| new.metadata = metadata(&[("zone", "z1"), ("v", "")])),
            number(|new| new.metadata = metadata(&[("v", "2zonez1")])),
            number(|new| new.metadata = metadata(&[("a", "xy"), ("b", "")])),
            number(|new| new.metadata = metadata(&[("a", "x"), ("y", "b")])),
            number(|new| new.metadata = metadata(&[("a", "b"), ("cd", "e")])),
            number(|new| new.metadata = metadata(&[("ab", "c"), ("d", "e")])),
            number(|new| new.metadata = metadata(&[("v2", "zone"), ("z1", "")])),
            number(|new| new.metadata = metadata(&[("v", "2"), ("zonez", "1")])),
        ];
        assert_eq!(HashSet::from(numbers).len(), numbers.len(), "{numbers:x?}");
        let edited = Instance::from(registration()).with_metadata(metadata(&[("v", "2"), ("zone", "z2")]));
        assert_eq!(of_instance(&edited), numbers[8], "an edit counts as a registration of the same");
    }

    #[test]
    fn what_was_registered_counts_alone() {
        assert_eq!(
            number(|_| {}),
            number(|new| {
                new.ttl = Some(crate::Ttl::DEFAULT);
                new.owner = Some(crate::Owner::random());
            })
        );
    }

    #[test]
    fn a_digest_depends_on_its_members_alone() {
        let [a, b, c] = [1, 2, 3].map(|port| {
            let mut new = registration();
            new.port = Port::new(port).unwrap();
            Instance::from(new)
        });
        assert_eq!(Digest::of([]).get(), 0);
        assert_eq!(Digest::of([&a, &b, &c]), Digest::of([&c, &a, &b]));
        assert_ne!(Digest::of([&a, &b]), Digest::of([&a, &c]));
        let mut digest = Digest::of([&a, &b, &c]);
        digest.remove(of_instance(&b));
        assert_eq!(digest, Digest::of([&a, &c]));
        digest.add(Digest::of([&b]).get());
        assert_eq!(digest, Digest::of([&a, &b, &c]));
    }
}
