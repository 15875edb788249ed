//! The state machine alone: one test per rule, and random play against a plain model.

use cosky_core::{Instance, InstanceOp, Life, Registration, ServiceId, ServiceInstance, Weight};
use proptest::prelude::*;

use super::*;
use crate::services::Services;

const TTL: u64 = 30;
const LIMIT: Duration = Duration::from_secs(300);

fn service(name: &str) -> ServiceId {
    ServiceId::new(name).unwrap()
}

fn living(name: &str, port: u32, weight: u32, life: Life) -> ServiceInstance {
    let mut new = Registration::new(service(name), "http", "10.0.0.1", i64::from(port)).unwrap();
    new.weight = Weight::new(i64::from(weight)).unwrap();
    ServiceInstance::new(Arc::new(Instance::from(new)), life)
}

fn instance(name: &str, port: u32) -> ServiceInstance {
    living(name, port, 1, Life::Remaining { remaining: Duration::from_secs(TTL), ttl_at: 0 })
}

fn at(epoch: u64, sequence: u64) -> Index {
    Index { epoch, sequence }
}

fn event(index: Index, op: InstanceOp, what: &ServiceInstance) -> Arc<Change> {
    let gone = matches!(op, InstanceOp::Deregister | InstanceOp::Expired);
    let (service, id) = (what.service().clone(), what.id().clone());
    let instance = (!gone).then(|| what.clone());
    Arc::new(Change::new(index, Event::Instance { op, service, id, instance }))
}

fn snapshot_of(
    index: Index,
    lists: &[(&str, &[u32])],
    state: StoreState,
    store: Option<StoreId>,
) -> Arc<Change> {
    let list = |name: &str, ports: &[u32]| ports.iter().map(|&port| instance(name, port)).collect();
    let services = lists.iter().map(|(name, ports)| (service(name), list(name, ports))).collect();
    Arc::new(Change::new(index, Event::Snapshot(Snapshot { services, state, store })))
}

fn snapshot(index: Index, ports: &[u32]) -> Arc<Change> {
    snapshot_of(index, &[("a", ports)], StoreState::Live, None)
}

fn read(index: Index, value: Vec<ServiceInstance>) -> Result<Read<Vec<ServiceInstance>>> {
    Ok(Read { value, index, age: Duration::ZERO, state: StoreState::Live })
}

/// A space and the time in which it is played with.
struct Play {
    space: Space<Services>,
    start: Instant,
    time: Duration,
}

impl Play {
    fn new() -> Self {
        Self::with(true, false)
    }

    fn with(protect: bool, asks: bool) -> Self {
        let space = Space::new(Protection::new(protect, LIMIT), asks);
        Self { space, start: Instant::now(), time: Duration::ZERO }
    }

    /// With the service `a`, followed since a snapshot at 1:10.
    fn following(ports: &[u32]) -> Self {
        let mut play = Self::new();
        play.follow(ports);
        play
    }

    fn follow(&mut self, ports: &[u32]) {
        self.want("a");
        self.space.opened(Scope::services([service("a")]).unwrap(), false);
        self.good(&snapshot(at(1, 10), ports));
    }

    fn now(&self) -> Now {
        Now { clock: self.time, instant: self.start + self.time }
    }

    fn want(&mut self, name: &str) {
        self.space.want(service(name), self.now());
    }

    fn change(&mut self, change: &Arc<Change>) -> Verdict {
        self.space.change(change, self.now())
    }

    fn good(&mut self, change: &Arc<Change>) {
        let verdict = self.change(change);
        assert!(matches!(verdict, Verdict::GoOn), "{verdict:?}");
    }

    fn loaded(&mut self, name: &str, answer: Result<Read<Vec<ServiceInstance>>>) -> Verdict {
        self.space.loaded(&service(name), 0, answer, self.now())
    }

    fn lose(&mut self) {
        self.space.lost(Error::unavailable("the stream is lost"), self.now());
    }

    fn pass(&mut self, seconds: u64) {
        self.time += Duration::from_secs(seconds);
        self.space.tick(self.now());
    }

    fn asked(&mut self) -> Vec<String> {
        self.space.take_loads().into_iter().map(|ask| ask.name.to_string()).collect()
    }

    fn shown(&mut self, name: &str) -> Shown {
        let now = self.now();
        self.space.show(service(name), now).unwrap().1
    }

    fn ports(&mut self, name: &str) -> Vec<u32> {
        self.shown(name).instances.iter().map(|instance| instance.port().get()).collect()
    }

    fn state(&mut self) -> StoreState {
        self.shown("a").state
    }
}

#[test]
fn nothing_is_known_before_the_snapshot() {
    let mut play = Play::new();
    play.want("a");
    assert!(!play.shown("a").known);
    play.space.opened(Scope::All, false);
    assert_eq!(play.asked(), [""; 0], "the snapshot will tell");
    play.good(&snapshot_of(at(1, 5), &[("a", &[2, 1]), ("b", &[3])], StoreState::Live, None));
    let shown = play.shown("a");
    assert_eq!((shown.known, shown.state, shown.index), (true, StoreState::Live, Some(at(1, 5))));
    assert_eq!(play.ports("a"), [1, 2]);
}

#[test]
fn changes_are_applied_once_and_in_order() {
    let mut play = Play::following(&[1, 2]);
    let gone = event(at(1, 11), InstanceOp::Deregister, &instance("a", 1));
    let back = event(at(1, 12), InstanceOp::Register, &instance("a", 1));
    play.good(&gone);
    assert_eq!(play.ports("a"), [2]);
    play.good(&back);
    play.good(&gone);
    assert_eq!(play.ports("a"), [1, 2], "hearing it again does no harm");
    play.good(&event(at(1, 13), InstanceOp::Expired, &instance("a", 2)));
    assert_eq!(play.ports("a"), [1], "without an incident expiry counts");
}

#[test]
fn a_snapshot_of_another_epoch_replaces_everything() {
    let mut play = Play::following(&[1, 2, 3]);
    play.lose();
    play.space.opened(Scope::All, true);
    play.good(&snapshot(at(2, 1), &[2]));
    assert_eq!(play.ports("a"), [2], "what was deregistered while nobody listened is gone");
    play.good(&event(at(2, 2), InstanceOp::Register, &instance("a", 9)));
    assert_eq!(play.ports("a"), [2, 9], "sequences of two epochs are not compared");
}

#[test]
fn an_older_snapshot_of_the_same_epoch_takes_nothing_back() {
    let mut play = Play::following(&[1]);
    play.good(&event(at(1, 20), InstanceOp::Register, &instance("a", 2)));
    play.want("b");
    play.space.opened(Scope::All, false);
    play.good(&snapshot_of(at(1, 15), &[("a", &[1]), ("b", &[5])], StoreState::Live, None));
    assert_eq!((play.ports("a"), play.ports("b")), (vec![1, 2], vec![5]));
    play.good(&event(at(1, 16), InstanceOp::Deregister, &instance("b", 5)));
    play.good(&event(at(1, 20), InstanceOp::Register, &instance("a", 2)));
    assert_eq!((play.ports("a"), play.ports("b")), (vec![1, 2], vec![]), "each name has its own place");
}

#[test]
fn a_change_of_a_strange_epoch_or_before_the_snapshot_begins_everything_anew() {
    let mut play = Play::following(&[1]);
    let strange = event(at(7, 11), InstanceOp::Deregister, &instance("a", 1));
    assert!(matches!(play.change(&strange), Verdict::BeginAnew));
    play.space.opened(Scope::All, false);
    let early = event(at(1, 11), InstanceOp::Deregister, &instance("a", 1));
    assert!(matches!(play.change(&early), Verdict::BeginAnew));
    assert_eq!(play.ports("a"), [1]);
}

#[test]
fn a_new_name_is_asked_for_and_what_was_told_meanwhile_counts_when_it_is_newer() {
    let mut play = Play::following(&[1]);
    play.want("b");
    assert_eq!(play.asked(), [""; 0], "the stream does not tell of it yet");
    play.space.opened(Scope::All, true);
    assert_eq!(play.asked(), ["b"]);
    play.good(&event(at(1, 11), InstanceOp::Register, &instance("b", 1)));
    play.good(&event(at(1, 12), InstanceOp::Deregister, &instance("b", 2)));
    play.good(&event(at(1, 13), InstanceOp::Register, &instance("b", 3)));
    assert!(!play.shown("b").known);
    // The answer has what 12 removed again: it is newer.
    let items = vec![instance("b", 1), instance("b", 2)];
    assert!(matches!(play.loaded("b", read(at(1, 12), items)), Verdict::GoOn));
    assert_eq!(play.ports("b"), [1, 2, 3]);
    play.want("c");
    assert_eq!(play.asked(), ["c"], "the stream tells of everything");
}

#[test]
fn an_answer_older_than_the_question_is_asked_for_again() {
    let mut play = Play::following(&[1]);
    play.want("b");
    play.space.opened(Scope::All, true);
    play.asked();
    assert!(matches!(play.loaded("b", read(at(1, 9), vec![])), Verdict::GoOn));
    assert!(!play.shown("b").known);
    assert_eq!(play.space.take_loads(), [Ask { name: service("b"), failures: 1, writes: 0, own: false }]);
    assert!(matches!(play.loaded("b", read(at(1, 10), vec![])), Verdict::GoOn));
    assert!(play.shown("b").known);
}

#[test]
fn an_answer_that_more_changes_overtook_than_are_kept_is_asked_for_again() {
    let mut play = Play::following(&[1]);
    play.want("b");
    play.space.opened(Scope::All, true);
    play.asked();
    for sequence in 11..400 {
        play.good(&event(at(1, sequence), InstanceOp::Register, &instance("b", 1)));
    }
    let _ = play.loaded("b", read(at(1, 11), vec![]));
    assert_eq!((play.shown("b").known, play.asked()), (false, vec!["b".to_owned()]));
    let _ = play.loaded("b", read(at(1, 399), vec![instance("b", 1)]));
    assert_eq!(play.ports("b"), [1]);
}

#[test]
fn an_answer_of_another_epoch_begins_everything_anew() {
    let mut play = Play::following(&[1]);
    play.want("b");
    play.space.opened(Scope::All, true);
    assert!(matches!(play.loaded("b", read(at(2, 50), vec![])), Verdict::BeginAnew));
    assert!(!play.shown("b").known);
    play.space.opened(Scope::All, false);
    play.good(&snapshot_of(at(2, 51), &[("a", &[1]), ("b", &[8])], StoreState::Live, None));
    assert!(matches!(play.loaded("b", read(at(2, 40), vec![])), Verdict::GoOn), "the snapshot came first");
    assert_eq!(play.ports("b"), [8]);
}

#[test]
fn a_failed_answer_is_told_and_asked_for_again_and_is_no_content() {
    let mut play = Play::following(&[1]);
    play.want("b");
    play.space.opened(Scope::All, true);
    play.asked();
    for failures in 1..4 {
        let _ = play.loaded("b", Err(Error::unavailable("no answer")));
        let shown = play.shown("b");
        assert!(!shown.known && shown.error.is_some() && shown.state == StoreState::Stale);
        assert_eq!(play.space.take_loads(), [Ask { name: service("b"), failures, writes: 0, own: false }]);
    }
    assert_eq!(play.state(), StoreState::Live, "others are not concerned");
    let _ = play.loaded("b", read(at(1, 10), vec![]));
    let shown = play.shown("b");
    assert!(shown.known && shown.error.is_none() && shown.state == StoreState::Live);
}

#[test]
fn a_lost_stream_leaves_the_list_and_a_resumed_one_makes_it_live_again() {
    let mut play = Play::following(&[1, 2]);
    play.lose();
    play.time += Duration::from_secs(9);
    let shown = play.shown("a");
    assert_eq!((shown.state, shown.instances.len()), (StoreState::Stale, 2));
    assert_eq!(shown.since, Some(play.start), "since the loss and not since somebody looked");
    play.space.opened(Scope::All, true);
    assert_eq!(play.state(), StoreState::Stale, "nothing was heard yet");
    play.space.heard(play.now());
    assert_eq!((play.state(), play.shown("a").since), (StoreState::Live, None));
}

#[test]
fn the_snapshot_of_a_stale_server_replaces_nothing_that_is_known() {
    let mut play = Play::following(&[1]);
    play.want("b");
    play.space.opened(Scope::All, false);
    let stale = snapshot_of(at(9, 1), &[("a", &[7]), ("b", &[8])], StoreState::Stale, None);
    assert!(matches!(play.change(&stale), Verdict::Refuse(_)));
    assert_eq!((play.ports("a"), play.ports("b")), (vec![1], vec![8]), "it is better than nothing");
    assert!(play.shown("b").known);
    let mut play = Play::new();
    play.want("a");
    play.space.opened(Scope::All, false);
    play.good(&stale);
    assert_eq!((play.ports("a"), play.state()), (vec![7], StoreState::Stale));
}

#[test]
fn a_stale_answer_replaces_nothing_that_is_known() {
    let mut play = Play::with(true, true);
    play.follow(&[1]);
    play.pass(TTL);
    assert_eq!(play.asked(), ["a"]);
    let stale = Read { value: vec![], index: at(1, 20), age: Duration::ZERO, state: StoreState::Stale };
    let _ = play.loaded("a", Ok(stale));
    assert_eq!((play.ports("a"), play.state()), (vec![1], StoreState::Stale));
}

#[test]
fn data_lost_is_protected_until_those_who_beat_had_the_time_to_come_back() {
    let id = |id, opened| Some(StoreId { id, opened, opening: opened });
    let mut play = Play::new();
    play.want("a");
    play.space.opened(Scope::All, false);
    play.good(&snapshot_of(at(1, 1), &[("a", &[1, 2, 3, 4])], StoreState::Live, id(5, 8)));
    play.lose();
    play.space.opened(Scope::All, true);
    play.good(&snapshot_of(at(2, 1), &[("a", &[])], StoreState::Live, id(5, 7)));
    assert_eq!((play.ports("a"), play.state()), (vec![1, 2, 3, 4], StoreState::Protected));
    // 1 comes back, 2 comes back and dies, 3 expires without having come back, 4 is deregistered.
    play.good(&event(at(2, 2), InstanceOp::Register, &instance("a", 1)));
    play.good(&event(at(2, 3), InstanceOp::Register, &instance("a", 2)));
    play.good(&event(at(2, 4), InstanceOp::Expired, &instance("a", 2)));
    play.good(&event(at(2, 5), InstanceOp::Expired, &instance("a", 3)));
    play.good(&event(at(2, 6), InstanceOp::Deregister, &instance("a", 4)));
    assert_eq!(play.ports("a"), [1, 3]);
    play.pass(TTL * 5 / 3 - 1);
    assert_eq!((play.ports("a"), play.state()), (vec![1, 3], StoreState::Protected));
    play.pass(6);
    assert_eq!((play.ports("a"), play.state()), (vec![1], StoreState::Live));
}

#[test]
fn a_store_of_another_id_is_an_incident_and_an_ordinary_restart_is_none() {
    for (id, opened, opening, kept) in
        [(5, 9, 2, vec![]), (5, 8, 1, vec![]), (5, 8, 2, vec![1]), (6, 9, 1, vec![1]), (5, 7, 1, vec![1])]
    {
        let mut play = Play::new();
        play.want("a");
        play.space.opened(Scope::All, false);
        let first = Some(StoreId { id: 5, opened: 8, opening: 1 });
        play.good(&snapshot_of(at(1, 1), &[("a", &[1])], StoreState::Live, first));
        play.good(&snapshot_of(
            at(2, 1),
            &[("a", &[])],
            StoreState::Live,
            Some(StoreId { id, opened, opening }),
        ));
        assert_eq!(play.ports("a"), kept, "{id}:{opened}:{opening}");
    }
}

#[test]
fn what_a_protected_registry_lacks_goes_when_it_says_that_it_is_live() {
    let mut play = Play::following(&[1, 2]);
    play.lose();
    play.space.opened(Scope::All, true);
    play.good(&snapshot_of(at(2, 1), &[("a", &[2])], StoreState::Protected, None));
    play.good(&event(at(2, 2), InstanceOp::Expired, &instance("a", 2)));
    assert_eq!((play.ports("a"), play.state()), (vec![1, 2], StoreState::Protected));
    play.good(&Arc::new(Change::new(at(2, 3), Event::State(StoreState::Live))));
    assert_eq!((play.ports("a"), play.state()), (vec![], StoreState::Live));
}

#[test]
fn what_a_store_that_was_restarted_in_order_lacks_goes_at_once() {
    let store = |opened| Some(StoreId { id: 5, opened, opening: opened });
    let mut play = Play::new();
    play.want("a");
    play.space.opened(Scope::All, false);
    play.good(&snapshot_of(at(1, 1), &[("a", &[1, 2, 3])], StoreState::Live, store(8)));
    play.lose();
    play.space.opened(Scope::All, true);
    play.good(&snapshot_of(at(2, 1), &[("a", &[2, 3])], StoreState::Protected, store(9)));
    assert_eq!((play.ports("a"), play.state()), (vec![2, 3], StoreState::Protected));
    play.good(&event(at(2, 2), InstanceOp::Expired, &instance("a", 2)));
    assert_eq!(play.ports("a"), [3], "it had a whole life since the start");
    play.good(&Arc::new(Change::new(at(2, 3), Event::State(StoreState::Live))));
    assert_eq!((play.ports("a"), play.state()), (vec![3], StoreState::Live));
    play.good(&Arc::new(Change::new(at(2, 4), Event::State(StoreState::Protected))));
    play.good(&event(at(2, 5), InstanceOp::Expired, &instance("a", 3)));
    assert_eq!(play.ports("a"), [3], "something else has happened to it since");
}

#[test]
fn protection_does_not_end_while_nobody_tells_what_is_there() {
    let mut play = Play::following(&[1, 2]);
    play.space.incident(play.now());
    play.good(&event(at(1, 11), InstanceOp::Expired, &instance("a", 1)));
    play.lose();
    play.pass(1000);
    assert_eq!((play.ports("a"), play.state()), (vec![1, 2], StoreState::Stale));
    play.space.opened(Scope::All, true);
    play.space.heard(play.now());
    play.pass(1);
    assert_eq!((play.ports("a"), play.state()), (vec![2], StoreState::Live));
}

#[test]
fn an_incident_while_the_store_is_away_counts_from_its_return() {
    let mut play = Play::following(&[1]);
    play.lose();
    play.space.incident(play.now());
    play.pass(500);
    play.space.opened(Scope::All, true);
    play.good(&snapshot(at(2, 1), &[]));
    play.pass(TTL * 5 / 3 - 1);
    assert_eq!(play.ports("a"), [1]);
    play.pass(6);
    assert_eq!(play.ports("a"), [0; 0]);
}

#[test]
fn a_stream_that_tells_again_what_was_told_goes_back_nowhere() {
    let mut play = Play::following(&[1]);
    play.good(&event(at(1, 20), InstanceOp::Register, &instance("a", 2)));
    play.space.opened(Scope::services([service("a"), service("b")]).unwrap(), true);
    play.good(&event(at(1, 15), InstanceOp::Register, &instance("c", 1)));
    assert_eq!(play.space.at(), Some(at(1, 20)));
    play.good(&Arc::new(Change::new(at(1, 16), Event::State(StoreState::Live))));
    assert_eq!(play.space.at(), Some(at(1, 20)));
    play.good(&event(at(1, 21), InstanceOp::Register, &instance("a", 3)));
    assert_eq!(play.space.at(), Some(at(1, 21)));
}

#[test]
fn a_name_that_comes_when_nothing_is_followed_any_more_waits_for_a_stream() {
    let mut play = Play::following(&[1]);
    play.space.release(&service("a"));
    play.space.unfollowed();
    play.want("a");
    assert_eq!(play.asked(), [""; 0], "there is no stream that it could be in step with");
    assert!(!play.shown("a").known);
    play.space.opened(Scope::All, false);
    play.good(&snapshot(at(1, 11), &[1, 2]));
    assert_eq!((play.ports("a"), play.state()), (vec![1, 2], StoreState::Live));
}

#[test]
fn without_protection_absence_counts_at_once() {
    let mut play = Play::with(false, false);
    play.follow(&[1]);
    play.space.incident(play.now());
    play.good(&snapshot_of(at(2, 1), &[("a", &[])], StoreState::Protected, None));
    assert_eq!((play.ports("a"), play.state()), (vec![], StoreState::Protected));
}

#[test]
fn at_its_deadline_an_instance_is_asked_for_before_it_goes() {
    let mut play = Play::with(true, true);
    play.follow(&[1, 2]);
    assert_eq!(play.space.next_ask(), Some(Duration::from_secs(TTL)));
    play.pass(TTL - 1);
    assert_eq!(play.asked(), [""; 0]);
    play.pass(1);
    assert_eq!((play.asked(), play.ports("a")), (vec!["a".to_owned()], vec![1, 2]), "one question for all");
    let _ = play.loaded("a", Err(Error::unavailable("no answer")));
    assert_eq!((play.ports("a"), play.state()), (vec![1, 2], StoreState::Stale));
    assert_eq!(play.asked(), ["a"]);
    let _ = play.loaded("a", read(at(1, 10), vec![instance("a", 2)]));
    assert_eq!((play.ports("a"), play.state()), (vec![2], StoreState::Live));
    assert_eq!(play.space.next_ask(), Some(Duration::from_secs(2 * TTL)), "it lives, and the deadline moved");
    play.lose();
    assert_eq!(play.space.next_ask(), None, "nobody answers");
    play.pass(1000);
    assert_eq!((play.asked(), play.ports("a")), (vec![], vec![2]));
}

#[test]
fn digests_leave_out_what_protection_holds() {
    let mut play = Play::following(&[1, 2]);
    let names = [service("a")];
    let number = |port| cosky_core::digest::of_instance(&instance("a", port));
    assert_eq!(play.space.digest(&names), Some(number(1).wrapping_add(number(2))));
    play.space.incident(play.now());
    play.good(&event(at(1, 11), InstanceOp::Expired, &instance("a", 1)));
    assert_eq!(play.space.digest(&names), Some(number(2)));
    play.want("b");
    assert_eq!(play.space.digest(&[service("a"), service("b")]), None, "not everything is known");
    play.lose();
    assert_eq!(play.space.digest(&names), None);
}

#[test]
fn the_same_again_is_nothing_new() {
    let mut play = Play::following(&[1]);
    let now = play.now();
    assert_eq!(play.space.take_shown(now).len(), 1);
    play.good(&snapshot(at(2, 1), &[1]));
    assert_eq!(play.space.take_shown(now).len(), 0);
    play.good(&snapshot(at(3, 1), &[1, 2]));
    assert_eq!(play.space.take_shown(now).len(), 1);
}

const NAMES: [&str; 3] = ["a", "b", "c"];

/// One step of the play with the model.
#[derive(Debug, Clone)]
enum Move {
    Put(usize, u32, u32),
    Remove(usize, u32),
    Deliver(usize),
    Lose,
    /// Another stream takes over; true: after the last change that was told.
    Open(bool),
    Want(usize),
    Release(usize),
    Ask,
    Answer(usize),
    Fail(usize),
    Restart,
}

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        4 => (0..3usize, 1..4u32, 1..4u32).prop_map(|(name, port, weight)| Move::Put(name, port, weight)),
        3 => (0..3usize, 1..4u32).prop_map(|(name, port)| Move::Remove(name, port)),
        5 => (1..4usize).prop_map(Move::Deliver),
        1 => Just(Move::Lose),
        2 => any::<bool>().prop_map(Move::Open),
        2 => (0..3usize).prop_map(Move::Want),
        1 => (0..3usize).prop_map(Move::Release),
        3 => Just(Move::Ask),
        3 => (0..4usize).prop_map(Move::Answer),
        1 => (0..4usize).prop_map(Move::Fail),
        1 => Just(Move::Restart),
    ]
}

/// The registry as plain maps with their whole history, a stream, and answers under way.
#[derive(Default)]
struct Model {
    epoch: u64,
    log: Vec<Arc<Change>>,
    lists: Vec<BTreeMap<u32, u32>>,
    /// Every state that the lists had, in order.
    past: Vec<Vec<BTreeMap<u32, u32>>>,
    /// The stream: its epoch, its scope, and how much of the log it told; `None` before the snapshot.
    stream: Option<(u64, Scope, Option<usize>)>,
    told: Option<Index>,
    answers: Vec<(String, Index, Vec<ServiceInstance>)>,
    /// The last state in `past` that was shown, by name.
    seen: Vec<usize>,
}

impl Model {
    fn new() -> Self {
        let lists = vec![BTreeMap::new(); 3];
        Self { epoch: 1, past: vec![lists.clone()], lists, seen: vec![0; 3], ..Self::default() }
    }

    fn index(&self) -> Index {
        at(self.epoch, self.log.len() as u64)
    }

    fn items(&self, name: usize) -> Vec<ServiceInstance> {
        let list = self.lists[name].iter();
        list.map(|(&port, &weight)| living(NAMES[name], port, weight, Life::Permanent)).collect()
    }

    fn write(&mut self, name: usize, port: u32, weight: Option<u32>) {
        let op = if weight.is_some() { InstanceOp::Register } else { InstanceOp::Deregister };
        match weight {
            Some(weight) => drop(self.lists[name].insert(port, weight)),
            None if self.lists[name].remove(&port).is_none() => return,
            None => {}
        }
        let item = living(NAMES[name], port, weight.unwrap_or(1), Life::Permanent);
        let index = at(self.epoch, self.log.len() as u64 + 1);
        self.log.push(event(index, op, &item));
        self.past.push(self.lists.clone());
    }

    fn open(&mut self, play: &mut Play, resume: bool) {
        let wanted: Vec<_> = NAMES
            .iter()
            .map(|name| service(name))
            .filter(|name| play.space.names.contains_key(name))
            .collect();
        let Ok(scope) = Scope::services(wanted) else { return };
        let from = self.told.filter(|_| resume);
        let place = from.filter(|from| from.epoch == self.epoch).map(|from| from.sequence as usize);
        self.stream = Some((self.epoch, scope.clone(), place));
        play.space.opened(scope, from.is_some());
    }

    /// The next item of the stream; false when there is none.
    fn deliver(&mut self, play: &mut Play) -> bool {
        let Some((epoch, scope, place)) = &mut self.stream else { return false };
        if *epoch != self.epoch {
            return false;
        }
        let change = match place {
            None => {
                let lists = (0..3).filter(|&name| scope.covers(&service(NAMES[name])));
                let services = lists.map(|name| (service(NAMES[name]), name)).collect::<Vec<_>>();
                *place = Some(self.log.len());
                let services =
                    services.into_iter().map(|(service, name)| (service, self.items(name))).collect();
                let snapshot = Snapshot { services, state: StoreState::Live, store: None };
                Arc::new(Change::new(self.index(), Event::Snapshot(snapshot)))
            }
            Some(place) => {
                let Some(change) = self.log.get(*place) else { return false };
                *place += 1;
                if !change.event.service().is_some_and(|service| scope.covers(service)) {
                    return true;
                }
                change.clone()
            }
        };
        self.told = Some(change.index);
        if let Verdict::BeginAnew = play.change(&change) {
            panic!("the stream is in order");
        }
        true
    }

    fn ask(&mut self, play: &mut Play) {
        for ask in play.asked() {
            let name = NAMES.iter().position(|name| *name == ask).unwrap();
            self.answers.push((ask, self.index(), self.items(name)));
        }
    }

    fn answer(&mut self, play: &mut Play, at: usize) {
        if self.answers.is_empty() {
            return;
        }
        let (name, index, items) = self.answers.remove(at % self.answers.len());
        if let Verdict::BeginAnew = play.loaded(&name, read(index, items)) {
            self.open(play, false);
        }
    }

    /// What is known of a name is what it once was, and never older than what was known before.
    fn check(&mut self, play: &mut Play) {
        for (at, name) in NAMES.iter().enumerate() {
            if !play.space.names.contains_key(&service(name)) {
                continue;
            }
            let shown = play.shown(name);
            if !shown.known {
                continue;
            }
            let list: BTreeMap<u32, u32> =
                shown.instances.iter().map(|i| (i.port().get(), i.weight().get())).collect();
            let later = self.past[self.seen[at]..].iter().position(|lists| lists[at] == list);
            let later = later.unwrap_or_else(|| panic!("{name} goes back to {list:?}"));
            self.seen[at] += later;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn whatever_happens_nothing_goes_back_and_everything_ends_as_the_registry_has_it(
        moves in proptest::collection::vec(moves(), 1..120),
    ) {
        let (mut play, mut model) = (Play::new(), Model::new());
        for step in moves {
            match step {
                Move::Put(name, port, weight) => model.write(name, port, Some(weight)),
                Move::Remove(name, port) => model.write(name, port, None),
                Move::Deliver(times) => for _ in 0..times {
                    model.deliver(&mut play);
                },
                Move::Lose => {
                    model.stream = None;
                    play.lose();
                }
                Move::Open(resume) => model.open(&mut play, resume),
                Move::Want(name) => play.want(NAMES[name]),
                Move::Release(name) => {
                    play.space.release(&service(NAMES[name]));
                    model.seen[name] = 0;
                }
                Move::Ask => model.ask(&mut play),
                Move::Answer(at) => model.answer(&mut play, at),
                Move::Fail(at) => {
                    if !model.answers.is_empty() {
                        let at = at % model.answers.len();
                        let (name, ..) = model.answers.remove(at);
                        let _ = play.loaded(&name, Err(Error::unavailable("no answer")));
                    }
                }
                Move::Restart => {
                    model.epoch += 1;
                    model.log.clear();
                    model.stream = None;
                    play.lose();
                }
            }
            model.check(&mut play);
        }
        NAMES.iter().for_each(|name| play.want(name));
        model.open(&mut play, true);
        for _ in 0..1000 {
            let more = model.deliver(&mut play);
            model.ask(&mut play);
            if !more && model.answers.is_empty() {
                break;
            }
            model.answer(&mut play, 0);
            model.check(&mut play);
        }
        play.space.heard(play.now());
        for (at, name) in NAMES.iter().enumerate() {
            let shown = play.shown(name);
            prop_assert!(shown.known && shown.state == StoreState::Live, "{name}: {shown:?}");
            let list: BTreeMap<u32, u32> =
                shown.instances.iter().map(|i| (i.port().get(), i.weight().get())).collect();
            prop_assert_eq!(&list, &model.lists[at]);
        }
    }
}
