//! What readers of a view see.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use cosky_cache::ViewChange;
use cosky_core::{Error, InstanceOp, StoreState};
use tokio::time::{Instant, timeout};

use super::*;

#[tokio::test(start_paused = true)]
async fn ready_says_at_once_what_waiting_cannot_help_and_else_waits() {
    let scene = Scene::new();
    scene.desk.state().refuses_watch = Some(Error::unavailable("nobody answers"));
    let mut view = scene.empty_view("a");
    let start = Instant::now();
    let error = view.ready(Duration::from_secs(3)).await.unwrap_err();
    assert_eq!((error.to_string(), start.elapsed().as_secs()), ("nobody answers".to_owned(), 3));
    scene.desk.state().refuses_watch = Some(Error::Unauthorized { reason: "who are you".into() });
    let error = view.ready(Duration::from_secs(60)).await.unwrap_err();
    assert!(matches!(error, Error::Unauthorized { .. }), "{error:?}");
    assert!(start.elapsed().as_secs() < 7, "{:?}", start.elapsed());
    scene.desk.state().refuses_watch = None;
    until("it is known", || view.shown().known).await;
    view.ready(Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_limit_without_end_is_no_trouble() {
    let scene = Scene::with(|options| {
        options.wait = Duration::MAX;
        options.idle = Duration::MAX;
        options.protect_limit = Duration::MAX;
        options.digest_every = Duration::MAX;
    });
    scene.desk.state().says = Some(StoreState::Protected);
    scene.empty_view("a").ready(Duration::MAX).await.unwrap();
    scene.cache.instances(&namespace(), &service("a")).await.unwrap();
    let view = scene.view("a").await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(view.state(), StoreState::Protected);
}

#[tokio::test(start_paused = true)]
async fn changes_are_told_once_and_silence_is_kept() {
    let scene = Scene::new();
    let mut view = scene.view("a").await;
    let mut clone = view.clone();
    let mut reader = view.reader();
    assert!(timeout(Duration::from_secs(300), view.changed()).await.is_err());
    scene.desk.put("a", 1);
    soon(view.changed()).await;
    soon(clone.changed()).await;
    assert_eq!((ports(&view), reader.instances().len()), (vec![1], 1));
    assert!(timeout(Duration::from_secs(300), view.changed()).await.is_err());
}

/// Two lists in turn, of which the shorter one lacks the last place of the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_choice_is_of_one_list_however_quickly_lists_follow_each_other() {
    let scene = Scene::new();
    scene.desk.put("a", 1);
    let mut reader = scene.view("a").await.reader();
    let done = Arc::new(AtomicBool::new(false));
    let stop = done.clone();
    let chooser = std::thread::spawn(move || {
        let mut chosen = [0; 2];
        while !stop.load(Ordering::Relaxed) {
            let port = reader.choose().unwrap().port().get() as usize;
            chosen[port - 1] += 1;
        }
        chosen
    });
    for _ in 0..10_000 {
        for len in [2, 1] {
            if len == 2 {
                scene.desk.put("a", 2)
            } else {
                scene.desk.remove("a", 2, InstanceOp::Deregister)
            }
            tokio::task::yield_now().await;
        }
    }
    done.store(true, Ordering::Relaxed);
    let chosen = chooser.join().expect("no list lacks what was chosen of it");
    assert!(chosen.iter().all(|count| *count > 0), "{chosen:?}");
}

#[tokio::test(start_paused = true)]
async fn typed_changes_add_up_to_what_is_shown() {
    let scene = Scene::new();
    scene.desk.put("a", 1);
    let view = scene.view("a").await;
    let mut changes = view.changes();
    let id = |change: ViewChange| match change {
        ViewChange::Added(new) => format!("+{}", new.port().get()),
        ViewChange::Updated { old, new } => {
            format!("{}:{}→{}", new.port().get(), old.metadata().len(), new.metadata().len())
        }
        ViewChange::Removed(old) => format!("-{}", old.port().get()),
        ViewChange::State(state) => state.as_str().to_owned(),
        _ => panic!("no other kind is made"),
    };
    assert_eq!([id(soon(changes.next()).await), id(soon(changes.next()).await)], ["+1", "live"]);
    scene.desk.put("a", 2);
    scene.desk.put("a", 3);
    scene.desk.put_with("a", 2, InstanceOp::SetMetadata, &[("zone", "z1")]);
    scene.desk.remove("a", 1, InstanceOp::Deregister);
    until("all are shown", || ports(&view) == [2, 3]).await;
    let told =
        [id(soon(changes.next()).await), id(soon(changes.next()).await), id(soon(changes.next()).await)];
    assert_eq!(told, ["-1", "+2", "+3"], "what came together is told together");
    scene.desk.put_with("a", 3, InstanceOp::SetMetadata, &[("zone", "z1")]);
    assert_eq!(id(soon(changes.next()).await), "3:0→1");
    scene.desk.cut();
    assert_eq!(id(soon(changes.next()).await), "stale");
    assert_eq!(id(soon(changes.next()).await), "live");
    // A second one begins with everything.
    let mut others = view.changes();
    assert_eq!([id(soon(others.next()).await), id(soon(others.next()).await)], ["+2", "+3"]);
    assert!(timeout(Duration::from_secs(300), changes.next()).await.is_err());
    assert_eq!(view.state(), StoreState::Live);
}
