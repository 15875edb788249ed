//! The balancers by themselves, list after list; tests/balance.rs has them on a view of a real server.

use std::{collections::BTreeMap, fmt::Debug, sync::Arc};

use cosky_core::{Instance, Life, Metadata, Registration, ServiceId, ServiceInstance, Weight};

use super::*;

/// (port, weight, zone)
type Row = (i64, i64, &'static str);

const ONE_THREE_SIX: [Row; 3] = [(1, 1, ""), (2, 3, ""), (3, 6, "")];

fn instances(rows: &[Row]) -> Vec<ServiceInstance> {
    let one = |&(port, weight, zone): &Row| {
        let mut new = Registration::new(ServiceId::new("stock").unwrap(), "http", "10.0.0.5", port).unwrap();
        new.weight = Weight::new(weight).unwrap();
        new.metadata = Metadata::new([("zone", zone)]).unwrap();
        ServiceInstance::new(Arc::new(Instance::from(new)), Life::Permanent)
    };
    rows.iter().map(one).collect()
}

fn rebuilt<B: Balancer>(before: &B, rows: &[Row]) -> B {
    before.rebuild(&instances(rows).iter().collect::<Vec<_>>())
}

/// The port that is chosen from what was built of `rows`.
fn port<B: Balancer>(balancer: &B, rows: &[Row], key: &B::Key) -> Option<i64> {
    balancer.pick(key).map(|(at, _)| rows[at].0)
}

fn counts(ports: impl IntoIterator<Item = i64>) -> BTreeMap<i64, u32> {
    let mut counts = BTreeMap::new();
    for port in ports {
        *counts.entry(port).or_default() += 1;
    }
    counts
}

#[test]
fn an_empty_list_chooses_nobody() {
    fn check<B: Balancer<Held: Debug>>(new: B, key: &B::Key) {
        assert!(new.pick(key).is_none());
        let full = rebuilt(&new, &ONE_THREE_SIX);
        assert!(full.pick(key).is_some());
        assert!(rebuilt(&full, &[]).pick(key).is_none());
        assert!(rebuilt(&full, &ONE_THREE_SIX[..1]).pick(key).is_some_and(|(at, _)| at == 0));
    }
    check(WeightedRandom::default(), &());
    check(RoundRobin::default(), &());
    check(TwoChoices::default(), &());
    check(ConsistentHash::default(), b"");
    check(ZoneFirst::new("a", RoundRobin::default()), &());
}

#[test]
fn round_robin_is_exact_and_spreads_the_turns() {
    for _ in 0..100 {
        let balancer = rebuilt(&RoundRobin::default(), &ONE_THREE_SIX);
        let ports: Vec<i64> = (0..1000).map(|_| port(&balancer, &ONE_THREE_SIX, &()).unwrap()).collect();
        for window in ports.windows(10) {
            let counts = counts(window.iter().copied());
            for (port, weight, _) in ONE_THREE_SIX {
                let count = i64::from(counts.get(&port).copied().unwrap_or_default());
                assert!((count - weight).abs() <= 1, "{port}: {window:?}");
            }
        }
    }
}

#[test]
fn round_robin_takes_the_largest_weights_with_the_smallest() {
    let rows = [(1, 1, ""), (2, i64::from(i32::MAX), ""), (3, i64::from(i32::MAX) - 1, "")];
    let balancer = rebuilt(&RoundRobin::default(), &rows);
    let counts = counts((0..10_000).map(|_| port(&balancer, &rows, &()).unwrap()));
    assert!(
        counts[&2].abs_diff(counts[&3]) <= 2 && counts.get(&1).is_none_or(|&count| count == 1),
        "{counts:?}"
    );
}

#[test]
fn round_robin_prefers_nobody_when_the_list_changes() {
    let steady: Vec<Row> = (1..=5).map(|port| (port, 1, "")).collect();
    let with_another: Vec<Row> = (1..=6).map(|port| (port, 1, "")).collect();
    // Two are fewer than a round: a balancer that starts anew with each list never gets to the end of it.
    for (picks, tolerance) in [(2_u32, 0.3), (20, 0.05)] {
        let mut balancer = RoundRobin::default();
        let mut ports = Vec::new();
        for change in 0..6000 {
            let rows = if change % 2 == 0 { &with_another } else { &steady };
            balancer = rebuilt(&balancer, rows);
            ports.extend((0..picks).filter_map(|_| port(&balancer, rows, &())));
        }
        let counts = counts(ports);
        let (least, most) =
            ((1..=5).map(|port| counts[&port]).min(), (1..=5).map(|port| counts[&port]).max());
        assert!(most.unwrap() - least.unwrap() <= 2, "{picks}: {counts:?}");
        // Whoever comes and goes has a sixth while it is there, and with each coming at most a part of a turn besides.
        let share = f64::from(counts[&6]) / f64::from(3000 * picks / 6);
        assert!((share - 1.0).abs() < tolerance, "{picks}: {counts:?}");
    }
}

#[test]
fn round_robin_starts_anywhere() {
    let rows: Vec<Row> = (1..=4).map(|port| (port, 1, "")).collect();
    let first = || port(&rebuilt(&RoundRobin::default(), &rows), &rows, &()).unwrap();
    let counts = counts((0..4000).map(|_| first()));
    assert!(counts.values().all(|count| (850..1150).contains(count)), "{counts:?}");
}

#[test]
fn round_robin_follows_a_new_weight_at_once() {
    let before = rebuilt(&RoundRobin::default(), &[(1, 1, ""), (2, 1000, "")]);
    let swapped = [(1, 1000, ""), (2, 1, "")];
    let balancer = rebuilt(&before, &swapped);
    let counts = counts((0..2002).map(|_| port(&balancer, &swapped, &()).unwrap()));
    assert!(counts[&1].abs_diff(2000) <= 2, "{counts:?}");
}

#[test]
fn two_choices_fill_up_the_idle_ones() {
    let rows: Vec<Row> = (1..=4).map(|port| (port, 1, "")).collect();
    let balancer = rebuilt(&TwoChoices::default(), &rows);
    let held: Vec<_> = (0..400).map(|_| balancer.pick(&()).unwrap()).collect();
    let by_port = counts(held.iter().map(|(at, _)| rows[*at].0));
    // Uniform choice would be off by ± 9 one time in three.
    assert!(by_port.values().all(|count| count.abs_diff(100) <= 5), "{by_port:?}");
    // One is slow and keeps its requests, the others finish at once.
    let slow: Vec<_> = held.into_iter().filter(|(at, _)| *at == 0).collect();
    let next: Vec<i64> = (0..4000).map(|_| port(&balancer, &rows, &()).unwrap()).collect();
    assert!(!next.contains(&1), "all the others have nothing to do");
    drop(slow);
    assert!((0..4000).any(|_| port(&balancer, &rows, &()) == Some(1)));
}

#[test]
fn two_choices_measure_requests_by_weight() {
    let balancer = rebuilt(&TwoChoices::default(), &ONE_THREE_SIX);
    let held: Vec<_> = (0..1000).map(|_| balancer.pick(&()).unwrap()).collect();
    let by_port = counts(held.iter().map(|(at, _)| ONE_THREE_SIX[*at].0));
    for (port, weight, _) in ONE_THREE_SIX {
        assert!(i64::from(by_port[&port]).abs_diff(100 * weight) <= 20, "{by_port:?}");
    }
}

#[test]
fn two_choices_go_on_counting_when_the_list_changes() {
    let rows = [(1, 1, ""), (2, 1, "")];
    let balancer = rebuilt(&TwoChoices::default(), &rows[..1]);
    let held: Vec<_> = (0..10).map(|_| balancer.pick(&()).unwrap()).collect();
    // It goes out of service and comes back while its requests are under way.
    let without = rebuilt(&rebuilt(&balancer, &rows[1..]), &rows[1..]);
    let both = rebuilt(&without, &rows);
    assert!((0..1000).all(|_| port(&both, &rows, &()) == Some(2)));
    drop(held);
    assert!((0..1000).any(|_| port(&both, &rows, &()) == Some(1)));
    assert!(rebuilt(&both, &[]).absent.is_empty(), "who has nothing under way is forgotten");
}

fn key_ports(balancer: &ConsistentHash, rows: &[Row]) -> Vec<i64> {
    (0..10_000).map(|key| port(balancer, rows, format!("user-{key}").as_bytes()).unwrap()).collect()
}

#[test]
fn few_keys_move() {
    let rows: Vec<Row> = (1..=10).map(|port| (port, if port == 10 { 4 } else { 1 }, "")).collect();
    let start = ConsistentHash::default();
    let before = key_ports(&rebuilt(&start, &rows), &rows);
    let without: Vec<Row> = rows.iter().copied().filter(|(port, ..)| *port != 4).collect();
    let after = key_ports(&rebuilt(&start, &without), &without);
    let moved = before.iter().zip(&after).filter(|(before, after)| before != after);
    assert!(moved.clone().all(|(before, _)| *before == 4), "only the keys of the one that went move");
    assert!((600..940).contains(&moved.clone().count()), "a thirteenth: {}", moved.count());
    let taken_by = counts(before.iter().zip(&after).filter(|(before, _)| **before == 4).map(|(_, now)| *now));
    assert_eq!(taken_by.len(), 9, "all the others take some: {taken_by:?}");

    let mut heavier = rows.clone();
    heavier[1].1 = 3;
    let after = key_ports(&rebuilt(&start, &heavier), &heavier);
    let moved: Vec<_> = before.iter().zip(&after).filter(|(before, after)| before != after).collect();
    assert!(moved.iter().all(|(_, after)| **after == 2), "only to the one that grew heavier");
    assert!((1050..1550).contains(&moved.len()), "3/15 − 1/13 of all: {}", moved.len());
}

/// Processes of different versions must agree, so what a key maps to never changes.
#[test]
fn keys_stay_where_they_are_from_version_to_version() {
    let rows: Vec<Row> = (1..=9).map(|port| (port, port, "")).collect();
    let balancer = rebuilt(&ConsistentHash::default(), &rows);
    let keys = ["", "a", "user-1", "user-2", "user-3", "order/17", "ключ", "2f6d0e5c"];
    let ports = keys.map(|key| port(&balancer, &rows, key.as_bytes()).unwrap());
    assert_eq!(ports, [9, 3, 7, 7, 9, 5, 8, 5]);
}

#[test]
fn the_own_zone_comes_first_and_the_others_when_it_has_nobody() {
    let mut rows = vec![(1, 1, "a"), (2, 1, "b"), (3, 1, "b"), (4, 1, "")];
    let start = ZoneFirst::new(" b ", RoundRobin::default());
    assert_eq!(start.zone(), Some("b"));
    let mut balancer = rebuilt(&start, &rows);
    let ports = |balancer: &ZoneFirst<RoundRobin>, rows: &[Row]| {
        counts((0..12).map(|_| port(balancer, rows, &()).unwrap())).into_iter().collect::<Vec<_>>()
    };
    assert_eq!(ports(&balancer, &rows), [(2, 6), (3, 6)]);
    for row in &mut rows {
        row.2 = "c";
    }
    balancer = rebuilt(&balancer, &rows);
    assert_eq!(ports(&balancer, &rows), [(1, 3), (2, 3), (3, 3), (4, 3)]);
    rows[3].2 = "b";
    balancer = rebuilt(&balancer, &rows);
    assert_eq!(ports(&balancer, &rows), [(4, 12)]);
}

#[test]
fn the_own_zone_comes_from_the_environment() {
    let from = |value: Option<&str>| {
        ZoneFirst::from_lookup(
            |name| value.filter(|_| name == "COSKY_ZONE").map(str::to_owned),
            ConsistentHash::default(),
        )
    };
    assert_eq!(from(Some("eu-1a")).zone(), Some("eu-1a"));
    for unknown in [None, Some(""), Some("  ")] {
        let rows = [(1, 1, ""), (2, 1, "b")];
        let balancer = rebuilt(&from(unknown), &rows);
        assert_eq!(balancer.zone(), None);
        let keys = (0..100).map(|key: i32| port(&balancer, &rows, &key.to_le_bytes()).unwrap());
        assert_eq!(counts(keys).len(), 2, "without an own zone it is among all");
    }
}
