//! Streams: one per namespace, widened, narrowed, lost, resumed, doubted and compared.

use std::{
    sync::{Mutex, atomic::Ordering},
    time::Duration,
};

use cosky_cache::Incident;
use cosky_core::{Error, InstanceOp, StoreId, StoreState};
use tokio::time::sleep;

use super::*;

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test(start_paused = true)]
async fn all_names_of_a_namespace_share_one_stream() {
    let scene = Scene::new();
    scene.desk.put("a", 1);
    scene.desk.put("b", 2);
    let (a, b) = (scene.view("a").await, scene.view("b").await);
    let again = scene.view("a").await;
    assert_eq!((ports(&a), ports(&b), ports(&again)), (vec![1], vec![2], vec![1]));
    assert_eq!(scene.desk.state().asked, ["watch a", "watch a b from", "instances b"]);
    assert_eq!((scene.desk.watchers(), scene.cache.figures().subscriptions), (1, 1));
    scene.desk.put("b", 3);
    until("the change of b", || ports(&b) == [2, 3]).await;
    assert_eq!(a.state(), StoreState::Live);
}

#[tokio::test(start_paused = true)]
async fn what_happens_while_a_new_name_is_asked_for_is_not_lost() {
    let scene = Scene::new();
    scene.desk.put("b", 1);
    let a = scene.view("a").await;
    scene.desk.holds_loads.store(true, Ordering::SeqCst);
    let mut b = scene.empty_view("b");
    until("it is asked for", || scene.desk.asked("instances b") == 1).await;
    scene.desk.put("b", 2);
    scene.desk.remove("b", 1, InstanceOp::Deregister);
    scene.desk.put("a", 7);
    until("the change of a", || ports(&a) == [7]).await;
    assert!(!b.shown().known);
    scene.desk.answer();
    b.ready(PATIENCE).await.unwrap();
    assert_eq!(ports(&b), [2]);
}

#[tokio::test(start_paused = true)]
async fn a_name_that_comes_while_a_wider_stream_is_asked_for_is_not_forgotten() {
    let scene = Scene::new();
    let mut a = scene.view("a").await;
    sleep(s(1)).await;
    scene.desk.holds_watches.store(true, Ordering::SeqCst);
    let mut b = scene.empty_view("b");
    until("b is asked for", || scene.desk.asked("watch a b from") == 1).await;
    let mut c = scene.empty_view("c");
    scene.desk.put("a", 1);
    soon(a.changed()).await;
    assert_eq!(ports(&a), [1], "the old stream goes on");
    sleep(s(1)).await;
    assert_eq!(scene.desk.asked("watch"), 2, "one question at a time");
    scene.desk.answer();
    b.ready(PATIENCE).await.unwrap();
    c.ready(PATIENCE).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn above_64_names_the_whole_namespace_is_followed_and_few_names_again_below_32() {
    let scene = Scene::new();
    let mut views: Vec<_> = (0..100).map(|at| scene.empty_view(&format!("s{at}"))).collect();
    for view in &mut views {
        view.ready(PATIENCE).await.unwrap();
    }
    assert_eq!(scene.desk.state().asked, ["watch everything"]);
    scene.desk.put("s99", 1);
    until("the change", || ports(&views[99]) == [1]).await;
    views.truncate(40);
    until("they are let go", || scene.cache.figures().entries == 40).await;
    sleep(s(3)).await;
    assert_eq!(scene.desk.asked("watch"), 1, "not at once");
    views.truncate(2);
    until("the names are named", || scene.desk.asked("watch s0 s1 from") == 1).await;
    assert!(views.iter().all(|view| view.state() == StoreState::Live));
}

#[tokio::test(start_paused = true)]
async fn many_new_names_come_by_one_snapshot() {
    let scene = Scene::new();
    let _first = scene.view("first").await;
    let mut views: Vec<_> = (0..50).map(|at| scene.empty_view(&format!("s{at}"))).collect();
    for view in &mut views {
        view.ready(PATIENCE).await.unwrap();
    }
    assert_eq!((scene.desk.asked("instances"), scene.desk.asked("watch")), (0, 2));
    assert_eq!(scene.cache.figures().resyncs, 1);
}

#[tokio::test(start_paused = true)]
async fn the_stream_ends_with_the_last_view_and_begins_with_the_next() {
    let scene = Scene::new();
    let (a, b) = (scene.view("a").await, scene.view("b").await);
    drop(b);
    until("it is narrowed", || scene.desk.asked("watch a from") == 1).await;
    drop(a);
    until("it ends", || scene.desk.watchers() == 0).await;
    let figures = scene.cache.figures();
    assert_eq!((figures.entries, figures.subscriptions), (0, 0));
    scene.desk.put("a", 1);
    assert_eq!(ports(&scene.view("a").await), [1]);
}

#[tokio::test(start_paused = true)]
async fn views_outlive_the_cache_and_the_tasks_end_with_the_last() {
    let Scene { desk, cache, .. } = Scene::new();
    let mut view = cache.view(&namespace(), &service("a")).unwrap();
    drop(cache);
    view.ready(PATIENCE).await.unwrap();
    desk.put("a", 1);
    soon(view.changed()).await;
    assert_eq!(ports(&view), [1]);
    let reader = view.reader();
    drop(view);
    sleep(s(3)).await;
    assert_eq!(desk.watchers(), 1, "the reader holds it");
    drop(reader);
    until("the stream ends", || desk.watchers() == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_stream_resumes_within_three_seconds_and_tells_what_was_missed() {
    let scene = Scene::new();
    scene.desk.put("a", 1);
    let view = scene.view("a").await;
    scene.desk.state().refuses_watch = Some(Error::unavailable("nobody answers"));
    scene.desk.cut();
    until("it is stale", || view.state() == StoreState::Stale).await;
    assert!(view.shown().error.is_some());
    scene.desk.remove("a", 1, InstanceOp::Deregister);
    scene.desk.put("a", 2);
    let before = scene.desk.asked("watch");
    sleep(s(60)).await;
    let tries = scene.desk.asked("watch") - before;
    assert!((20..=30).contains(&tries), "{tries} in a minute");
    assert_eq!((ports(&view), view.age().as_secs()), (vec![1], 60));
    scene.desk.state().refuses_watch = None;
    let took = until("it is live", || view.state() == StoreState::Live).await;
    assert!(took <= s(3), "{took:?}");
    assert_eq!((ports(&view), view.age()), (vec![2], Duration::ZERO));
    assert_eq!(scene.cache.figures().resyncs, 0, "it was resumed");
}

#[tokio::test(start_paused = true)]
async fn a_quiet_stream_that_resumes_is_live_again() {
    let scene = Scene::new();
    let view = scene.view("a").await;
    scene.desk.cut();
    until("it is stale", || view.state() == StoreState::Stale).await;
    let took = until("it is live", || view.state() == StoreState::Live).await;
    assert!(took <= s(2), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn streams_that_end_well_leave_no_gap() {
    let scene = Scene::new();
    let mut view = scene.view("a").await;
    sleep(s(5)).await;
    scene.desk.end();
    scene.desk.put("a", 1);
    soon(view.changed()).await;
    assert_eq!((ports(&view), view.state()), (vec![1], StoreState::Live));
    sleep(s(5)).await;
    scene.desk.tell_state(StoreState::Draining);
    scene.desk.state().says = None;
    until("the next stream", || scene.desk.asked("watch") == 3).await;
    assert_eq!(view.state(), StoreState::Live);
}

#[tokio::test(start_paused = true)]
async fn what_was_deregistered_during_an_outage_is_gone_after_it() {
    let scene = Scene::new();
    scene.desk.put("a", 1);
    scene.desk.put("a", 2);
    let view = scene.view("a").await;
    scene.desk.cut();
    scene.desk.restart();
    scene.desk.state().lists.get_mut(&service("a")).unwrap().remove(&1);
    until("it is gone", || ports(&view) == [2]).await;
    assert_eq!(view.state(), StoreState::Live);
}

#[tokio::test(start_paused = true)]
async fn data_that_was_lost_is_protected_for_a_while() {
    for protect in [true, false] {
        let scene = Scene::with(|options| options.protect = protect);
        scene.desk.state().store = Some(StoreId::opening(5, 3));
        scene.desk.put("a", 1);
        scene.desk.put("a", 2);
        let view = scene.view("a").await;
        scene.desk.cut();
        scene.desk.restart();
        scene.desk.state().lists.clear();
        scene.desk.state().store = Some(StoreId::opening(6, 1));
        if !protect {
            until("it is empty", || ports(&view).is_empty()).await;
            continue;
        }
        until("it is protected", || view.state() == StoreState::Protected).await;
        assert_eq!(ports(&view), [1, 2]);
        assert_eq!(scene.desk.state().asked.last().unwrap(), "watch a from");
        scene.desk.put("a", 2);
        sleep(desk::TTL * 5 / 3 - s(2)).await;
        assert_eq!((ports(&view), scene.cache.figures().protected), (vec![1, 2], 1));
        sleep(s(8)).await;
        assert_eq!((ports(&view), view.state()), (vec![2], StoreState::Live));
    }
}

#[tokio::test(start_paused = true)]
async fn an_engine_can_report_an_incident() {
    let scene = Scene::new();
    scene.desk.put("a", 1);
    let view = scene.view("a").await;
    scene.cache.incident(Incident::Eviction);
    until("it is protected", || view.state() == StoreState::Protected).await;
    scene.desk.remove("a", 1, InstanceOp::Expired);
    sleep(s(5)).await;
    assert_eq!(ports(&view), [1]);
    sleep(desk::TTL * 5 / 3 + s(1)).await;
    assert_eq!((ports(&view), view.state()), (vec![], StoreState::Live));
}

#[tokio::test(start_paused = true)]
async fn a_stale_server_is_left_and_its_word_replaces_nothing() {
    let scene = Scene::new();
    scene.desk.put("a", 1);
    let view = scene.view("a").await;
    scene.desk.cut();
    scene.desk.restart();
    scene.desk.state().lists.clear();
    scene.desk.state().says = Some(StoreState::Stale);
    sleep(s(10)).await;
    assert_eq!((ports(&view), view.state()), (vec![1], StoreState::Stale));
    assert!(scene.desk.asked("watch") >= 4, "it tries on");
    scene.desk.state().says = None;
    let took = until("it is live", || view.state() == StoreState::Live).await;
    assert!(took <= s(3) && ports(&view).is_empty(), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_change_that_was_never_told_is_found_by_its_digest_within_thirty_seconds() {
    let scene = Scene::new();
    scene.desk.put("a", 1);
    let view = scene.view("a").await;
    sleep(s(70)).await;
    let figures = scene.cache.figures();
    assert!(figures.digests >= 2 && figures.digests_differed == 0, "{figures:?}");
    scene.desk.state().mute = true;
    scene.desk.put("a", 2);
    scene.desk.state().mute = false;
    let start = tokio::time::Instant::now();
    while ports(&view) != [1, 2] {
        assert!(start.elapsed() < s(30), "not within thirty seconds");
        sleep(Duration::from_millis(50)).await;
    }
    let figures = scene.cache.figures();
    assert_eq!((figures.digests_differed, figures.resyncs), (1, 1));
    sleep(s(70)).await;
    assert_eq!(scene.cache.figures().resyncs, 1, "and once is enough");
}

#[tokio::test(start_paused = true)]
async fn a_difference_at_the_same_place_is_believed_at_once() {
    let scene = Scene::new();
    scene.desk.put("a", 1);
    let view = scene.view("a").await;
    scene.desk.state().lists.get_mut(&service("a")).unwrap().remove(&1);
    sleep(s(30)).await;
    assert_eq!((ports(&view), scene.cache.figures().resyncs), (vec![], 1));
    assert_eq!(scene.desk.asked("digest"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_change_that_is_under_way_is_no_difference() {
    let scene = Scene::new();
    scene.desk.put("a", 1);
    let view = scene.view("a").await;
    scene.desk.state().mute = true;
    scene.desk.put("a", 2);
    sleep(s(20)).await;
    until("the digest is asked for", || scene.desk.asked("digest") == 1).await;
    sleep(Duration::from_millis(500)).await;
    scene.desk.speak();
    sleep(s(60)).await;
    assert_eq!(ports(&view), [1, 2]);
    let figures = scene.cache.figures();
    assert_eq!((figures.digests_differed, figures.resyncs), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn changes_of_other_services_are_no_difference() {
    let scene = Scene::new();
    scene.desk.put("a", 1);
    let _view = scene.view("a").await;
    for port in 1..200 {
        scene.desk.put("other", port);
        sleep(s(1)).await;
    }
    let figures = scene.cache.figures();
    assert!(figures.digests >= 6, "{figures:?}");
    assert_eq!((figures.digests_differed, figures.resyncs), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn what_no_snapshot_can_mend_is_asked_for_once() {
    let scene = Scene::new();
    scene.desk.put("a", 1);
    scene.desk.state().unreadable = 17;
    let view = scene.view("a").await;
    sleep(s(300)).await;
    let figures = scene.cache.figures();
    assert!(figures.digests > 8, "{figures:?}");
    assert_eq!((figures.digests_differed, figures.resyncs), (1, 1));
    // It hides no other difference.
    scene.desk.state().mute = true;
    scene.desk.put("a", 2);
    scene.desk.state().mute = false;
    sleep(s(40)).await;
    assert_eq!(ports(&view), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_server_too_old_for_digests_is_not_asked_every_time() {
    let scene = Scene::new();
    scene.desk.state().refuses_digest = Some(Error::NotFound { what: "digest".into() });
    let _view = scene.view("a").await;
    sleep(s(200)).await;
    assert_eq!(scene.desk.asked("digest"), 1);
}

#[tokio::test(start_paused = true)]
async fn after_a_suspend_nothing_is_trusted_until_a_new_stream_stands() {
    let scene = Scene::new();
    scene.desk.put("a", 1);
    let view = scene.view("a").await;
    sleep(s(10)).await;
    // The old stream is dead, and nobody noticed.
    scene.desk.state().mute = true;
    scene.desk.state().refuses_watch = Some(Error::unavailable("not yet"));
    scene.desk.put("a", 2);
    scene.clock.suspend(s(20));
    let took = until("it is stale", || view.state() == StoreState::Stale).await;
    assert!(took <= s(2), "{took:?}");
    assert_eq!(ports(&view), [1]);
    scene.desk.state().refuses_watch = None;
    scene.desk.state().mute = false;
    until("it is live", || view.state() == StoreState::Live).await;
    assert_eq!(ports(&view), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn long_names_are_not_named() {
    let scene = Scene::new();
    let mut views: Vec<_> = (0..20).map(|at| scene.empty_view(&format!("{at:0>500}"))).collect();
    for view in &mut views {
        view.ready(PATIENCE).await.unwrap();
    }
    assert_eq!(scene.desk.state().asked, ["watch everything"]);
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_wider_stream_is_told_why_there_is_none() {
    let scene = Scene::new();
    let a = scene.view("a").await;
    scene.desk.state().refuses_watch = Some(Error::Forbidden { reason: "not b".into() });
    let mut b = scene.empty_view("b");
    let start = tokio::time::Instant::now();
    let error = b.ready(PATIENCE).await.unwrap_err();
    assert!(matches!(error, Error::Forbidden { .. }), "{error:?}");
    assert!(start.elapsed() < s(5), "{:?}", start.elapsed());
    assert!(scene.desk.asked("watch a b") >= 2, "one refusal is not told");
    assert_eq!(a.state(), StoreState::Live, "the old stream goes on");
    scene.desk.state().refuses_watch = None;
    until("b is live", || b.state() == StoreState::Live).await;
    assert!(b.shown().error.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_busy_for_a_while_costs_no_stream() {
    let scene = Scene::new();
    let a = scene.view("a").await;
    for (what, tries) in [("requests", 6), ("watchers", 2)] {
        let before = scene.desk.asked("watch");
        scene.desk.state().refuses_watch = Some(Error::Exhausted { what, limit: 1 });
        let mut b = scene.empty_view(what);
        until("it is asked for", || scene.desk.asked("watch") >= before + tries).await;
        assert_eq!(scene.desk.watchers(), 1, "{what}");
        scene.desk.state().refuses_watch = None;
        until("it is known", || b.shown().known).await;
        b.ready(PATIENCE).await.unwrap();
        assert_eq!(a.state(), StoreState::Live);
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_stream_that_ended_well_nothing_is_live_for_long_without_another() {
    let scene = Scene::new();
    let view = scene.view("a").await;
    sleep(s(5)).await;
    scene.desk.holds_watches.store(true, Ordering::SeqCst);
    scene.desk.end();
    sleep(Duration::from_millis(900)).await;
    assert_eq!(view.state(), StoreState::Live, "the next one may come yet");
    sleep(Duration::from_millis(200)).await;
    assert_eq!(view.state(), StoreState::Stale);
    scene.desk.answer();
    until("it is live", || view.state() == StoreState::Live).await;
    assert_eq!(scene.desk.asked("watch"), 2, "it was waited for all the same");
}

#[tokio::test(start_paused = true)]
async fn names_that_cannot_be_asked_for_keep_nobody_waiting() {
    let scene = Scene::new();
    let _first = scene.view("first").await;
    let names = (0..20).map(|at| format!("s{at}"));
    scene.desk.state().unreachable = names.clone().map(|name| service(&name)).collect();
    let _views: Vec<_> = names.map(|name| scene.empty_view(&name)).collect();
    sleep(s(10)).await;
    let mut good = scene.empty_view("good");
    let start = tokio::time::Instant::now();
    good.ready(PATIENCE).await.unwrap();
    assert!(start.elapsed() < Duration::from_millis(100), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_full_server_gets_the_place_back_that_a_wider_stream_needs() {
    let scene = Scene::new();
    let a = scene.view("a").await;
    scene.desk.state().refuses_watch = Some(Error::Exhausted { what: "watchers", limit: 1 });
    let mut b = scene.empty_view("b");
    until("the place is given back", || scene.desk.watchers() == 0).await;
    scene.desk.state().refuses_watch = None;
    b.ready(PATIENCE).await.unwrap();
    until("both are live", || a.state() == StoreState::Live && b.state() == StoreState::Live).await;
}

/// A scene, and what it hands on: the namespace, the instance and how much metadata it has.
fn handing_on() -> (Scene, Arc<Mutex<Vec<String>>>) {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let hook = seen.clone();
    let scene = Scene::with(|options| {
        options.on_metadata = Some(Arc::new(move |namespace, instance| {
            hook.lock().unwrap().push(format!("{namespace} {} {}", instance.id(), instance.metadata().len()));
        }));
    });
    (scene, seen)
}

#[tokio::test(start_paused = true)]
async fn metadata_is_handed_on_from_snapshots_answers_registrations_and_edits() {
    let (scene, seen) = handing_on();
    scene.desk.put("a", 1);
    scene.desk.put("b", 2);
    scene.desk.put("c", 3);
    let _views = (scene.view("a").await, scene.view("b").await);
    scene.desk.put("a", 4);
    scene.desk.put_with("a", 1, InstanceOp::SetMetadata, &[("zone", "z1")]);
    until("the edit", || seen.lock().unwrap().len() == 4).await;
    let expected = [
        "shop a@http#10.0.0.1#1 0",
        "shop b@http#10.0.0.1#2 0",
        "shop a@http#10.0.0.1#4 0",
        "shop a@http#10.0.0.1#1 1",
    ];
    assert_eq!(*seen.lock().unwrap(), expected);
}

#[tokio::test(start_paused = true)]
async fn metadata_of_an_old_answer_that_comes_late_is_not_handed_on() {
    let (scene, seen) = handing_on();
    scene.desk.put("b", 2);
    let _a = scene.view("a").await;
    scene.desk.holds_loads.store(true, Ordering::SeqCst);
    let mut b = scene.empty_view("b");
    until("it is asked for", || scene.desk.asked("instances b") == 1).await;
    scene.desk.put_with("b", 2, InstanceOp::SetMetadata, &[("zone", "z1")]);
    scene.desk.put("a", 1);
    until("the stream told all of it", || !seen.lock().unwrap().is_empty()).await;
    scene.desk.answer();
    b.ready(PATIENCE).await.unwrap();
    assert_eq!(*seen.lock().unwrap(), ["shop a@http#10.0.0.1#1 0", "shop b@http#10.0.0.1#2 1"]);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_ends_before_its_time_leaves_nothing_live_and_another_takes_its_place() {
    let scene = Scene::with(|options| {
        options.on_metadata = Some(Arc::new(|_, instance| assert_eq!(instance.metadata().len(), 0)));
    });
    scene.desk.put("a", 1);
    let view = scene.view("a").await;
    scene.desk.put_with("a", 2, InstanceOp::SetMetadata, &[("zone", "z1")]);
    until("it is stale", || view.state() == StoreState::Stale).await;
    assert!(view.shown().error.is_some());
    assert_eq!((scene.cache.figures().entries, scene.cache.figures().subscriptions), (0, 0));
    scene.desk.remove("a", 2, InstanceOp::Deregister);
    let again = scene.view("a").await;
    assert_eq!((ports(&again), again.state()), (vec![1], StoreState::Live));
}

#[test]
fn nothing_is_live_after_the_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (scene, view) = runtime.block_on(async {
        let scene = Scene::new();
        let view = scene.view("a").await;
        (scene, view)
    });
    assert_eq!(view.state(), StoreState::Live);
    drop(runtime);
    assert_eq!(view.state(), StoreState::Stale);
    assert_eq!(scene.empty_view("a").state(), StoreState::Stale);
}

#[tokio::test(start_paused = true)]
async fn at_the_end_of_its_life_an_instance_is_asked_for() {
    let scene = Scene::with(|options| options.ask_at_deadline = true);
    scene.desk.put("a", 1);
    scene.desk.put("a", 2);
    let view = scene.view("a").await;
    // No reaper tells of it.
    scene.desk.state().mute = true;
    scene.desk.remove("a", 2, InstanceOp::Expired);
    scene.desk.state().refuses_digest = Some(Error::unavailable("not now"));
    sleep(desk::TTL - s(1)).await;
    assert_eq!((ports(&view), scene.desk.asked("instances")), (vec![1, 2], 0));
    scene.desk.state().refuses_read = Some(Error::unavailable("no answer"));
    sleep(s(5)).await;
    assert_eq!((ports(&view), view.state()), (vec![1, 2], StoreState::Stale));
    scene.desk.state().refuses_read = None;
    let took = until("it is gone", || ports(&view) == [1]).await;
    assert!(took <= s(3), "{took:?}");
    assert_eq!(view.state(), StoreState::Live);
}
