//! Look-ups by name.

use std::time::Duration;

use cosky_cache::Silence;
use cosky_core::{Error, InstanceOp, StoreState};
use tokio::time::{Instant, sleep};

use super::*;

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test(start_paused = true)]
async fn the_first_look_up_asks_and_the_next_ones_do_not() {
    let scene = Scene::new();
    scene.desk.put("a", 1);
    let (ns, a) = (namespace(), service("a"));
    assert!(scene.cache.known(&ns, &a).is_none());
    for _ in 0..100 {
        let read = scene.cache.instances(&ns, &a).await.unwrap();
        assert_eq!((read.value.len(), read.state, read.age), (1, StoreState::Live, Duration::ZERO));
    }
    scene.desk.put("a", 2);
    until("the change", || scene.cache.known(&ns, &a).unwrap().instances.len() == 2).await;
    assert_eq!(scene.desk.state().asked, ["watch a"]);
}

#[tokio::test(start_paused = true)]
async fn names_that_nobody_looks_up_are_let_go_with_their_subscription() {
    let scene = Scene::new();
    let (ns, a, missing) = (namespace(), service("a"), service("missing"));
    let view = scene.view("a").await;
    assert!(scene.cache.instances(&ns, &missing).await.unwrap().value.is_empty());
    sleep(s(50)).await;
    assert!(scene.cache.known(&ns, &missing).is_some());
    sleep(s(55)).await;
    assert_eq!(scene.cache.figures().entries, 2, "looking it up keeps it");
    sleep(s(10)).await;
    assert_eq!(scene.cache.figures().entries, 1);
    assert!(scene.cache.known(&ns, &missing).is_none());
    until("it is narrowed", || scene.desk.asked("watch a from") == 1).await;
    scene.cache.instances(&ns, &a).await.unwrap();
    drop(view);
    sleep(s(50)).await;
    assert_eq!(scene.cache.figures().entries, 1, "it was looked up");
    sleep(s(15)).await;
    assert_eq!((scene.cache.figures().entries, scene.desk.watchers()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_told_once_and_not_remembered() {
    let scene = Scene::new();
    let (ns, a) = (namespace(), service("a"));
    scene.desk.put("a", 1);
    scene.desk.state().refuses_watch = Some(Error::Forbidden { reason: "no".into() });
    let error = scene.cache.instances(&ns, &a).await.unwrap_err();
    assert!(matches!(error, Error::Forbidden { .. }), "{error:?}");
    assert!(scene.cache.known(&ns, &a).is_none(), "an error is no content");
    scene.desk.state().refuses_watch = None;
    assert_eq!(scene.cache.instances(&ns, &a).await.unwrap().value.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_look_up_waits_no_longer_than_it_may() {
    let scene = Scene::with(|options| options.wait = s(3));
    let (ns, b) = (namespace(), service("b"));
    let _a = scene.view("a").await;
    scene.desk.holds_loads.store(true, std::sync::atomic::Ordering::SeqCst);
    let start = Instant::now();
    let error = scene.cache.instances(&ns, &b).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert_eq!(start.elapsed().as_secs(), 3);
}

#[tokio::test(start_paused = true)]
async fn stale_content_is_given_with_its_age() {
    let scene = Scene::new();
    let (ns, a) = (namespace(), service("a"));
    scene.desk.put("a", 1);
    scene.cache.instances(&ns, &a).await.unwrap();
    scene.desk.state().refuses_watch = Some(Error::unavailable("nobody answers"));
    scene.desk.cut();
    sleep(s(10)).await;
    let read = scene.cache.instances(&ns, &a).await.unwrap();
    assert_eq!((read.value.len(), read.state, read.age.as_secs()), (1, StoreState::Stale, 10));
}

/// C45.
#[tokio::test(start_paused = true)]
async fn c45_an_instance_that_the_cache_lacks_is_asked_for_and_none_is_made_up() {
    let scene = Scene::new();
    scene.desk.put("a", 1);
    let view = scene.view("a").await;
    let ns = namespace();
    let ask = async |id: &str| scene.cache.instance(&ns, &service("a"), id).await;
    assert!(ask("a@http#10.0.0.1#1").await.unwrap().is_some());
    assert_eq!(scene.desk.asked("instance "), 0, "it was at hand");
    scene.desk.state().mute = true;
    scene.desk.put("a", 2);
    assert_eq!(ask("a@http#10.0.0.1#2").await.unwrap().unwrap().port().get(), 2);
    assert!(ask("a@http#10.0.0.1#9").await.unwrap().is_none());
    assert_eq!((ports(&view), scene.cache.figures().entries), (vec![1], 1));
    assert!(scene.cache.instance(&ns, &service("z"), "z@http#h#1").await.unwrap().is_none());
    assert_eq!(scene.cache.figures().entries, 1, "nothing is kept of what does not exist");
    scene.desk.state().refuses_read = Some(Error::unavailable("no answer"));
    assert!(ask("a@http#10.0.0.1#2").await.is_err(), "an error is not an absence");
}

#[tokio::test(start_paused = true)]
async fn entries_are_bounded_and_those_that_went_make_room() {
    let scene = Scene::with(|options| options.entries = 2);
    let (a, _b) = (scene.view("a").await, scene.view("b").await);
    let error = scene.cache.view(&namespace(), &service("c")).unwrap_err();
    assert!(matches!(error, Error::Exhausted { limit: 2, .. }), "{error:?}");
    assert!(scene.cache.instances(&namespace(), &service("c")).await.is_err());
    scene.view("a").await;
    drop(a);
    until("a is let go", || scene.cache.figures().entries == 1).await;
    scene.view("c").await;
}

#[tokio::test(start_paused = true)]
async fn names_that_anybody_can_think_of_take_nobodys_place() {
    let scene = Scene::with(|options| options.entries = 64);
    let look_up = async |name: String| scene.cache.instances(&namespace(), &service(&name)).await;
    let known = |name: &str| scene.cache.known(&namespace(), &service(name)).is_some();
    scene.desk.put("real", 1);
    look_up("real".into()).await.unwrap();
    for at in 0..1000 {
        assert!(look_up(format!("made-up-{at}")).await.unwrap().value.is_empty());
    }
    assert!(known("real") && scene.cache.figures().entries <= 64);
    scene.view("of another service").await;
    // Too many that are there: those go that were not looked up for longest.
    for at in 0..100 {
        let name = format!("there-{at}");
        scene.desk.put(&name, 1);
        assert_eq!(look_up(name).await.unwrap().value.len(), 1);
        sleep(Duration::from_millis(10)).await;
        assert!(known("real"), "it is looked up all the time");
    }
    assert!(known("there-99") && !known("there-0"));
}

/// A cache that knows from before that "a" had port 7, an hour ago.
fn recalling() -> Scene {
    Scene::with(|options| {
        options.recall = Some(Arc::new(|_, name, why| {
            let list: Arc<[_]> = [desk::living("a", 7, &[])].into();
            let helps = name.as_str() == "a" && !why.to_string().contains("stranger");
            helps.then_some((list, s(3600)))
        }));
    })
}

#[tokio::test(start_paused = true)]
async fn what_was_known_before_is_shown_while_nobody_answers_and_replaced_by_the_first_answer() {
    let scene = recalling();
    scene.desk.put("a", 1);
    scene.desk.state().refuses_watch = Some(Error::unavailable("nobody listens"));
    let mut view = scene.view("a").await;
    assert_eq!((ports(&view), view.state(), view.age().as_secs()), (vec![7], StoreState::Stale, 3600));
    let read = scene.cache.instances(&namespace(), &service("a")).await.unwrap();
    assert_eq!((read.value.len(), read.state, read.age.as_secs()), (1, StoreState::Stale, 3600));
    // It stays as it is, and gets older.
    sleep(s(100)).await;
    assert_eq!((ports(&view), view.state(), view.age().as_secs()), (vec![7], StoreState::Stale, 3700));
    assert_eq!(scene.cache.all().len(), 1);
    // Nothing is known of the others.
    let error = scene.empty_view("b").ready(s(5)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");

    scene.desk.state().refuses_watch = None;
    while view.state() != StoreState::Live {
        view.changed().await;
    }
    assert_eq!((ports(&view), view.age()), (vec![1], Duration::ZERO));
}

/// Nothing that was recalled is protected: the first answer counts, even of a registry that has just come back.
#[tokio::test(start_paused = true)]
async fn what_was_known_before_is_not_held_against_the_registry() {
    let scene = recalling();
    scene.desk.state().refuses_watch = Some(Error::unavailable("nobody listens"));
    scene.desk.state().says = Some(StoreState::Protected);
    let view = scene.view("a").await;
    scene.desk.state().refuses_watch = None;
    until("the registry tells", || view.state() == StoreState::Protected).await;
    assert!(ports(&view).is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_was_known_before_is_not_shown_when_the_registry_answers_or_refuses() {
    let scene = recalling();
    scene.desk.put("a", 1);
    assert_eq!(ports(&scene.view("a").await), [1]);
    let scene = recalling();
    scene.desk.state().refuses_watch = Some(Error::Forbidden { reason: "no".into() });
    let error = scene.empty_view("a").ready(PATIENCE).await.unwrap_err();
    assert!(matches!(error, Error::Forbidden { .. }), "{error:?}");
}

/// C48, for views: far more than there is room for come and go within no time.
#[tokio::test(start_paused = true)]
async fn c48_views_that_are_given_up_make_room_at_once_and_leave_nothing() {
    let scene = Scene::with(|options| options.entries = 10);
    let _kept = scene.view("kept").await;
    for at in 0..20_000 {
        drop(scene.empty_view(&format!("s{at}")));
        tokio::task::yield_now().await;
    }
    until("they are let go", || scene.cache.figures().entries == 1).await;
    until("one stream is left", || scene.desk.watchers() == 1).await;
    let asked = scene.desk.asked("");
    assert!(asked < 10, "{asked} questions");
}

async fn looked_up(scene: &Scene, name: &str) -> cosky_core::Result<Vec<u32>> {
    let read = scene.cache.instances(&namespace(), &service(name)).await?;
    Ok(read.value.iter().map(|instance| instance.port().get()).collect())
}

/// P11. The stream is late all the while.
#[tokio::test(start_paused = true)]
async fn what_this_process_wrote_is_in_the_next_look_up_and_in_views() {
    let scene = Scene::new();
    let (ns, a) = (namespace(), service("a"));
    let mut view = scene.view("a").await;
    scene.desk.state().mute = true;
    for port in 1..=200 {
        scene.desk.put("a", port);
        scene.cache.wrote(&ns, &a);
        assert!(looked_up(&scene, "a").await.unwrap().contains(&port));
        let id = format!("a@http#10.0.0.1#{port}");
        assert!(scene.cache.instance(&ns, &a, &id).await.unwrap().is_some());
        assert_eq!(ports(&view), [port]);
        scene.desk.remove("a", port, InstanceOp::Deregister);
        scene.cache.wrote(&ns, &a);
        assert_eq!(looked_up(&scene, "a").await.unwrap(), [] as [u32; 0]);
    }
    assert_eq!(scene.desk.asked("instance "), 0, "one was enough");
    // What the stream tells late is nothing new.
    soon(view.changed()).await;
    scene.desk.speak();
    assert!(timeout(s(60), view.changed()).await.is_err());
    // Nothing comes of what nobody looks for.
    scene.cache.wrote(&ns, &service("z"));
    assert_eq!(scene.cache.figures().entries, 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_asked_for_before_a_write_does_not_count_for_it() {
    let scene = Scene::new();
    let (ns, a) = (namespace(), service("a"));
    let view = scene.view("a").await;
    scene.desk.state().mute = true;
    scene.desk.holds_loads.store(true, std::sync::atomic::Ordering::SeqCst);
    scene.desk.put("a", 1);
    scene.cache.wrote(&ns, &a);
    until("it is asked for", || scene.desk.asked("instances a") == 1).await;
    scene.desk.put("a", 2);
    scene.cache.wrote(&ns, &a);
    let (list, ()) = tokio::join!(looked_up(&scene, "a"), async {
        sleep(s(1)).await;
        scene.desk.answer();
    });
    assert_eq!((list.unwrap(), ports(&view)), (vec![1, 2], vec![1, 2]));
}

#[tokio::test(start_paused = true)]
async fn many_writes_at_once_and_a_stream_that_begins_anew_are_waited_for() {
    let scene = Scene::new();
    let names: Vec<_> = (0..50).map(|at| format!("s{at}")).collect();
    let mut views = Vec::new();
    for name in &names {
        views.push(scene.view(name).await);
    }
    scene.desk.state().mute = true;
    for (port, name) in (1..).zip(&names) {
        scene.desk.put(name, port);
        scene.cache.wrote(&namespace(), &service(name));
    }
    let resyncs = scene.cache.figures().resyncs;
    for (port, name) in (1..).zip(&names) {
        assert_eq!(looked_up(&scene, name).await.unwrap(), [port]);
    }
    assert_eq!(scene.cache.figures().resyncs, resyncs);
    scene.desk.put("s0", 100);
    scene.desk.restart();
    scene.cache.wrote(&namespace(), &service("s0"));
    assert_eq!(looked_up(&scene, "s0").await.unwrap(), [1, 100]);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_cannot_be_shown_in_time_is_told_unless_the_list_says_that_it_is_stale() {
    let scene = Scene::new();
    let (ns, a) = (namespace(), service("a"));
    let view = scene.view("a").await;
    scene.desk.state().mute = true;
    scene.desk.state().refuses_read = Some(Error::Exhausted { what: "requests", limit: 1 });
    scene.desk.put("a", 1);
    scene.cache.wrote(&ns, &a);
    let start = Instant::now();
    let error = looked_up(&scene, "a").await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert_eq!(
        (start.elapsed().as_secs(), view.state()),
        (2, StoreState::Live),
        "others are told of nothing"
    );
    assert!(looked_up(&scene, "a").await.is_err());
    assert_eq!(start.elapsed().as_secs(), 2, "no second wait for one write");
    scene.desk.state().refuses_watch = Some(Error::unavailable("nobody answers"));
    scene.desk.cut();
    until("it is stale", || view.state() == StoreState::Stale).await;
    assert_eq!(looked_up(&scene, "a").await.unwrap(), [] as [u32; 0]);
    scene.desk.state().refuses_read = None;
    scene.desk.state().refuses_watch = None;
    until("it is live", || view.state() == StoreState::Live).await;
    let list = async {
        loop {
            // The question is asked again by itself, after a pause that grew.
            match looked_up(&scene, "a").await {
                Ok(list) => return list,
                Err(_) => sleep(s(1)).await,
            }
        }
    };
    assert_eq!(soon(list).await, [1]);
}

#[tokio::test(start_paused = true)]
async fn one_instance_is_asked_for_while_the_list_is_not_live() {
    let scene = Scene::new();
    scene.desk.put("a", 1);
    scene.desk.put("a", 2);
    let view = scene.view("a").await;
    scene.desk.state().refuses_watch = Some(Error::unavailable("nobody answers"));
    scene.desk.cut();
    until("it is stale", || view.state() == StoreState::Stale).await;
    scene.desk.remove("a", 1, InstanceOp::Deregister);
    let ask = async |id: &str| scene.cache.instance(&namespace(), &service("a"), id).await;
    assert!(ask("a@http#10.0.0.1#1").await.unwrap().is_none(), "the registry says so");
    assert!(ask("a@http#10.0.0.1#2").await.unwrap().is_some());
    scene.desk.state().refuses_read = Some(Error::unavailable("no answer"));
    assert!(ask("a@http#10.0.0.1#1").await.unwrap().is_some(), "better than nothing");
    scene.desk.state().refuses_read = Some(Error::Forbidden { reason: "no".into() });
    assert!(ask("a@http#10.0.0.1#1").await.is_err());
}

/// What refuses later on is told, and what was recalled stays beside it.
#[tokio::test(start_paused = true)]
async fn a_refusal_that_follows_an_outage_is_told_beside_what_was_known_before() {
    let scene = recalling();
    scene.desk.state().refuses_watch = Some(Error::unavailable("nobody listens"));
    let mut view = scene.view("a").await;
    scene.desk.state().refuses_watch = Some(Error::Forbidden { reason: "no".into() });
    until("it is told", || matches!(view.shown().error, Some(Error::Forbidden { .. }))).await;
    assert_eq!((ports(&view), view.state()), (vec![7], StoreState::Stale));
    assert!(view.age() >= s(3600), "{:?}", view.age());
    assert!(timeout(s(60), view.changed()).await.is_err(), "neither list nor state is another");
}

#[tokio::test(start_paused = true)]
async fn what_was_known_before_does_not_hide_a_stranger() {
    let scene = recalling();
    scene.desk.state().refuses_watch = Some(Error::unavailable("a stranger answers"));
    let error = scene.empty_view("a").ready(s(5)).await.unwrap_err();
    assert!(error.to_string().contains("stranger"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn what_was_known_before_is_shown_in_time_though_no_server_says_anything() {
    let scene = recalling();
    scene.desk.holds_watches.store(true, std::sync::atomic::Ordering::SeqCst);
    let start = Instant::now();
    let mut view = scene.empty_view("a");
    view.ready(s(5)).await.unwrap();
    assert!(start.elapsed() >= s(1) && start.elapsed() <= s(2), "{:?}", start.elapsed());
    assert_eq!((ports(&view), view.state(), view.age() >= s(3600)), (vec![7], StoreState::Stale, true));
    scene.desk.put("a", 1);
    scene.desk.answer();
    until("it is live", || view.state() == StoreState::Live).await;
    assert_eq!(ports(&view), [1]);
}

/// The clock of readers stands still while the machine sleeps.
#[tokio::test(start_paused = true)]
async fn age_counts_the_time_that_nobody_was_there() {
    let scene = Scene::new();
    scene.desk.put("a", 1);
    let view = scene.view("a").await;
    scene.desk.holds_watches.store(true, std::sync::atomic::Ordering::SeqCst);
    scene.clock.suspend(s(8 * 3600));
    until("it is stale", || view.state() == StoreState::Stale).await;
    assert!(view.age() >= s(8 * 3600), "{:?}", view.age());
    scene.clock.suspend(s(3600));
    sleep(s(2)).await;
    assert!(view.age() >= s(9 * 3600), "{:?}", view.age());
    scene.desk.answer();
    until("it is live", || view.state() == StoreState::Live).await;
    assert_eq!(view.age(), Duration::ZERO);
    // And in a process that shows what was known before.
    let scene = recalling();
    scene.desk.state().refuses_watch = Some(Error::unavailable("nobody listens"));
    let view = scene.view("a").await;
    scene.clock.suspend(s(3600));
    sleep(s(2)).await;
    assert!(view.age() >= s(7200), "{:?}", view.age());
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_was_silent_tells_nothing_of_that_time() {
    let scene = Scene::new();
    let view = scene.view("a").await;
    scene.desk.state().refuses_watch = Some(Error::unavailable("nobody answers"));
    let source: Arc<dyn std::error::Error + Send + Sync> = Arc::new(Silence(s(25)));
    scene.desk.break_off(&Error::Unavailable {
        reason: "silent".into(),
        maybe_applied: false,
        source: Some(source),
    });
    until("it is stale", || view.state() == StoreState::Stale).await;
    assert!(view.age() >= s(25), "{:?}", view.age());
}
