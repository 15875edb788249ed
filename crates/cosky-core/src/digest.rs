//! Digests: whether two parties hold the same instances, told in eight bytes.
//!
//! A cache compares the digest of what it holds with the store's, and so notices a change that it was never told of. The
//! number of an instance is the XXH64, with seed 0, of what was registered, and the digest of a set is the sum of its
//! members' numbers modulo 2⁶⁴: it depends on no order, and a member is added or removed without looking at the others.
//! A set without members has digest 0.
//!
//! What is hashed, in this order: id, schema and host as texts, port and weight as `u32`, 1 or 0 as one byte for ephemeral
//! or permanent, the number of metadata entries as `u64`, and key and value of each, sorted by key, as texts. A text is its
//! length in bytes as `u64` and then its bytes; numbers are little endian. How long the instance still lives is not in it,
//! nor are its TTL and owner.
//!
//! It guards against mistakes, not against somebody who builds collisions on purpose.

use std::hash::Hasher as _;

use twox_hash::XxHash64;

use crate::{Host, Instance, InstanceId, Metadata, Port, Schema, Weight};

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

/// What of an instance is hashed.
pub(crate) struct Hashed<'a> {
    pub(crate) id: &'a InstanceId,
    pub(crate) schema: &'a Schema,
    pub(crate) host: &'a Host,
    pub(crate) port: Port,
    pub(crate) weight: Weight,
    pub(crate) ephemeral: bool,
    pub(crate) metadata: &'a Metadata,
}

impl Hashed<'_> {
    pub(crate) fn number(&self) -> u64 {
        let mut hasher = XxHash64::with_seed(0);
        text(&mut hasher, self.id.as_str());
        text(&mut hasher, self.schema.as_str());
        text(&mut hasher, self.host.as_str());
        hasher.write(&self.port.get().to_le_bytes());
        hasher.write(&self.weight.get().to_le_bytes());
        hasher.write(&[u8::from(self.ephemeral)]);
        hasher.write(&(self.metadata.len() as u64).to_le_bytes());
        for (key, value) in self.metadata.iter() {
            text(&mut hasher, key);
            text(&mut hasher, value);
        }
        hasher.finish()
    }
}

fn text(hasher: &mut XxHash64, text: &str) {
    hasher.write(&(text.len() as u64).to_le_bytes());
    hasher.write(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::{Registration, ServiceId};

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

    /// Servers and clients of different versions compare these numbers, so this one must never change.
    #[test]
    fn the_number_of_an_instance_is_for_ever() {
        assert_eq!(number(|_| {}), 0xe0a3b2f780014a8d);
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
