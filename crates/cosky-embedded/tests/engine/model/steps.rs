//! What may happen, in any order.

use std::time::Duration;

use cosky_core::{Metadata, MetadataPatch, Namespace, Owner, Registration, ServiceId, Ttl};
use proptest::prelude::*;

pub(super) const NAMESPACES: [&str; 2] = ["shop-{eu}", "shop-{us}"];
pub(super) const SERVICES: [&str; 3] = ["order", "web", "team/x"];

/// One thing that happens. Shrinking turns what does not matter into `Nothing`.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Nothing,
    Advance(Duration),
    Register(Namespace, Registration),
    Beat(Namespace, Vec<Target>),
    Deregister(Namespace, Target, Option<Owner>),
    SetMetadata(Namespace, Target, Metadata),
    PatchMetadata(Namespace, Target, MetadataPatch),
    SetService(Namespace, ServiceId),
    RemoveService(Namespace, ServiceId),
    AddNamespace(Namespace),
    RemoveNamespace(Namespace),
    Purge(Namespace),
    AddDependency(Namespace, ServiceId, ServiceId),
    /// A new watch from so many changes ago.
    Resume(usize),
    /// So many more syncs or calls succeed, then the disk fails.
    Break {
        syncs_only: bool,
        after: u64,
    },
    /// The disk is full.
    Fill,
    /// The disk is well again.
    Heal,
    /// Ends in an orderly way and starts again.
    Restart,
    /// The power fails, and comes back; the seed chooses what of the unsynced writes is kept.
    Crash(u64),
}

/// An address, which the named service may or may not have.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) service: ServiceId,
    pub(super) id: cosky_core::InstanceId,
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => Just(Step::Nothing),
        12 => (1u64..4_000).prop_map(|ms| Step::Advance(Duration::from_millis(ms))),
        18 => (namespace(), registration()).prop_map(|(ns, new)| Step::Register(ns, new)),
        12 => (namespace(), prop::collection::vec(target(), 1..6)).prop_map(|(ns, keys)| Step::Beat(ns, keys)),
        10 => (namespace(), target(), prop::option::of(owner()))
            .prop_map(|(ns, target, owner)| Step::Deregister(ns, target, owner)),
        5 => (namespace(), target(), metadata()).prop_map(|(ns, target, m)| Step::SetMetadata(ns, target, m)),
        5 => (namespace(), target(), patch()).prop_map(|(ns, target, p)| Step::PatchMetadata(ns, target, p)),
        3 => (namespace(), service()).prop_map(|(ns, service)| Step::SetService(ns, service)),
        5 => (namespace(), service()).prop_map(|(ns, service)| Step::RemoveService(ns, service)),
        2 => namespace().prop_map(Step::AddNamespace),
        1 => namespace().prop_map(Step::RemoveNamespace),
        3 => namespace().prop_map(Step::Purge),
        2 => (namespace(), service(), service()).prop_map(|(ns, c, p)| Step::AddDependency(ns, c, p)),
        3 => (0usize..12).prop_map(Step::Resume),
        2 => (any::<bool>(), 0u64..12).prop_map(|(syncs_only, after)| Step::Break { syncs_only, after }),
        1 => Just(Step::Fill),
        4 => Just(Step::Heal),
        1 => Just(Step::Restart),
        1 => any::<u64>().prop_map(Step::Crash),
    ]
}

fn namespace() -> impl Strategy<Value = Namespace> {
    prop::sample::select(&NAMESPACES[..]).prop_map(|name| Namespace::new(name).unwrap())
}

fn service() -> impl Strategy<Value = ServiceId> {
    prop::sample::select(&SERVICES[..]).prop_map(|name| ServiceId::new(name).unwrap())
}

fn owner() -> impl Strategy<Value = Owner> {
    prop::sample::select(&["one", "two"][..]).prop_map(|name| Owner::new(name).unwrap())
}

fn registration() -> impl Strategy<Value = Registration> {
    let ttl = prop::option::weighted(0.9, 1i64..6);
    (service(), 1i64..4, ttl, prop::option::of(owner()), prop::bool::weighted(0.8), metadata()).prop_map(
        |(service, port, ttl, owner, ephemeral, metadata)| Registration {
            ttl: ttl.map(|seconds| Ttl::from_seconds(seconds).unwrap()),
            owner,
            ephemeral,
            metadata,
            ..Registration::new(service, "http", "10.0.0.1", port).unwrap()
        },
    )
}

/// Mostly an address of the service that is named, sometimes another's.
fn target() -> impl Strategy<Value = Target> {
    (service(), prop::option::weighted(0.1, service()), 1i64..4).prop_map(|(service, other, port)| {
        let at = other.unwrap_or_else(|| service.clone());
        Target { service, id: Registration::new(at, "http", "10.0.0.1", port).unwrap().id() }
    })
}

fn metadata() -> impl Strategy<Value = Metadata> {
    prop::collection::btree_map("[ab]", "[xy\n]", 0..3).prop_map(|entries| Metadata::new(entries).unwrap())
}

fn patch() -> impl Strategy<Value = MetadataPatch> {
    prop::collection::btree_map("[ab]", prop::option::of("[xy]"), 1..3)
        .prop_map(|entries| MetadataPatch::new(entries).unwrap())
}
