//! The scheduler in front of an engine that does as it is told, in time that passes at command.

use tokio::time::{advance, sleep};

use super::{
    scripted::{Call, Engine, PERIOD, Script, TTL},
    *,
};
use crate::{Instance, RegistrationState};

const LIMIT: Duration = Duration::from_secs(60);

fn keeper(engine: &Arc<Engine>) -> Arc<Keeper> {
    let namespace = Namespace::new("shop").unwrap();
    let keeper = Arc::new(Keeper::new(engine.clone(), namespace, Handle::current(), LIMIT));
    tokio::spawn(keeper.clone().run());
    keeper
}

/// Registers an instance as the namespace client does.
async fn join(keeper: &Keeper, port: u16) -> Arc<Entry> {
    let wanted = Instance::http("order", "10.0.0.5", port).ttl(TTL).check().unwrap();
    let (entry, _) = keeper.enter(&wanted, Phase::Joining).unwrap();
    let registered = keeper.register(&entry, &wanted).await.unwrap();
    entry.registered(wanted, registered.life, entry.wish()).unwrap();
    keeper.wake();
    entry
}

#[tokio::test(start_paused = true)]
async fn the_first_beat_follows_after_a_second_and_the_others_by_the_period() {
    let engine = Arc::<Engine>::default();
    let keeper = keeper(&engine);
    let start = Instant::now();
    let _entry = join(&keeper, 1).await;
    sleep(200 * PERIOD).await;
    let beats = engine.beats();
    assert_eq!((beats[0] - start).as_secs(), 1);
    let steps: Vec<f64> = beats.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64() / 10.0).collect();
    assert!(steps.iter().all(|step| (0.899..=1.101).contains(step)), "{steps:?}");
    assert!(steps.iter().any(|step| *step < 0.95) && steps.iter().any(|step| *step > 1.05), "no jitter");
    let mean = steps.iter().sum::<f64>() / steps.len() as f64;
    assert!((mean - 1.0).abs() < 0.02, "{mean}");
}

#[tokio::test(start_paused = true)]
async fn beats_that_hang_are_given_up_before_the_next_and_never_pile_up() {
    let engine = Arc::<Engine>::default();
    let keeper = keeper(&engine);
    let entry = join(&keeper, 1).await;
    engine.script([Script::Hang; 50]);
    sleep(10 * PERIOD).await;
    let mut under_way: i32 = 0;
    for call in engine.words() {
        match call {
            Call::Beat(_) => under_way += 1,
            Call::BeatEnded => under_way -= 1,
            _ => {}
        }
        assert!((0..=1).contains(&under_way));
    }
    let (begun, ended) = (engine.beats(), engine.times(|call| *call == Call::BeatEnded));
    assert!(begun.len() <= 12, "{} tries in 10 periods", begun.len());
    assert!(begun.iter().zip(&ended).all(|(begun, ended)| *ended - *begun < PERIOD));
    assert!(matches!(*entry.state.borrow(), RegistrationState::Unreachable { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_lost_beat_is_tried_again_long_before_a_third_of_the_life_is_over() {
    let engine = Arc::<Engine>::default();
    let keeper = keeper(&engine);
    let entry = join(&keeper, 1).await;
    engine.script([Script::Fail, Script::Fail]);
    sleep(Duration::from_secs(6)).await;
    let beats = engine.beats();
    assert_eq!(beats.len(), 3, "two that failed and one that did not");
    assert!(beats[2] - beats[0] < PERIOD / 2);
    assert_eq!(*entry.state.borrow(), RegistrationState::Registered);
}

#[tokio::test(start_paused = true)]
async fn leaving_waits_for_the_beat_under_way_and_ignores_its_answer() {
    for answer in [Beat::Unknown, Beat::Renewed(None), Beat::Gone] {
        let engine = Arc::<Engine>::default();
        let keeper = keeper(&engine);
        let entry = join(&keeper, 1).await;
        engine.script([Script::After(Duration::from_secs(3), answer)]);
        sleep(Duration::from_secs(2)).await;
        assert_eq!(engine.beats().len(), 1, "it is under way");
        assert!(entry.begin_to_leave() == Leave::Goodbye && entry.begin_to_leave() == Leave::Begun);
        keeper.leave(entry.clone());
        sleep(100 * PERIOD).await;
        let expected = [Call::Register, Call::Beat(1), Call::BeatEnded, Call::Deregister];
        assert_eq!(engine.words(), expected, "after {answer:?}");
        assert_eq!(*entry.state.borrow(), RegistrationState::Deregistered);
        assert!(entry.outcome.get().unwrap().as_ref().is_ok_and(|was_there| *was_there));
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_from_before_a_new_registration_is_ignored() {
    for answer in [Beat::Unknown, Beat::Gone] {
        let engine = Arc::<Engine>::default();
        let keeper = keeper(&engine);
        let entry = join(&keeper, 1).await;
        engine.script([Script::After(Duration::from_secs(3), answer)]);
        sleep(Duration::from_secs(2)).await;
        let again = join(&keeper, 1).await;
        assert!(Arc::ptr_eq(&entry, &again));
        sleep(Duration::from_secs(4)).await;
        assert_eq!(engine.registrations(), 2, "no third one after {answer:?}");
        assert_eq!(*entry.state.borrow(), RegistrationState::Registered);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_unknown_is_registered_at_once_few_at_a_time() {
    let engine = Arc::new(Engine { slow: Duration::from_millis(10), ..Engine::default() });
    let keeper = keeper(&engine);
    let mut entries = Vec::new();
    for port in 1..=100 {
        entries.push(join(&keeper, port).await);
    }
    sleep(Duration::from_secs(5)).await;
    let before = engine.registrations();
    engine.state().most_registering = 0;
    // One answer for all, as after a pause longer than the TTL.
    engine.script([Script::Answer(Beat::Unknown)]);
    advance(2 * TTL).await;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(engine.registrations() - before, 100);
    let most = engine.state().most_registering;
    assert!((2..=RETURNING).contains(&most), "{most} at a time");
    assert!(entries.iter().all(|entry| *entry.state.borrow() == RegistrationState::Registered));
}

#[tokio::test(start_paused = true)]
async fn a_batch_takes_a_thousand_and_the_rest_follows() {
    let engine = Arc::<Engine>::default();
    let keeper = keeper(&engine);
    let mut entries = Vec::new();
    for port in 1..=2500 {
        entries.push(join(&keeper, port).await);
    }
    sleep(Duration::from_millis(1500)).await;
    let sizes: Vec<_> = engine.words().into_iter().filter(|call| matches!(call, Call::Beat(_))).collect();
    assert_eq!(sizes, [Call::Beat(1000), Call::Beat(1000), Call::Beat(500)]);
}

#[tokio::test(start_paused = true)]
async fn registrations_are_bounded() {
    let keeper = keeper(&Arc::<Engine>::default());
    let wanted = |port: usize| {
        Instance::http("order", format!("h{}", port / 60_000), 1 + u16::try_from(port % 60_000).unwrap())
            .check()
            .unwrap()
    };
    for port in 0..REGISTRATIONS {
        keeper.enter(&wanted(port), Phase::Joining).unwrap();
    }
    let error = keeper.enter(&wanted(REGISTRATIONS), Phase::Joining).unwrap_err();
    assert!(matches!(error, Error::Exhausted { limit: REGISTRATIONS, .. }), "{error}");
    // One more handle of a known one is no new registration.
    assert!(keeper.enter(&wanted(0), Phase::Joining).is_ok());
}
