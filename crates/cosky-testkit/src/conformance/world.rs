//! What a case needs to know of the engine that it judges.

use std::{future::Future, sync::Arc, time::Duration};

use async_trait::async_trait;
use cosky_core::{Accounts, Namespace, Registration, Registry, ServiceId, Ttl};
use tokio::sync::Barrier;

/// A fresh, empty engine, and the time that it lives in. The engine may stand behind a network, in which case time
/// passes by itself; or it has a [`crate::ManualClock`], and time passes when a case says so.
#[async_trait]
pub trait World: Send + Sync + 'static {
    /// The engine under test, the same at each call.
    fn registry(&self) -> Arc<dyn Registry>;

    /// The accounts of the same store.
    ///
    /// # Panics
    /// When the engine is not a store; then no case of the stores may run on it.
    fn accounts(&self) -> Arc<dyn Accounts> {
        panic!("this engine keeps no accounts")
    }

    /// Closes the store, opens it again, and gives the world in which it lives on. This one is of no use any more.
    async fn reopen(&self) -> Arc<dyn World>;

    /// A world like this one, with an empty store of its own.
    async fn another(&self) -> Arc<dyn World>;

    /// How many changes a watcher may fall behind before it is cut off.
    ///
    /// # Panics
    /// When the engine is not a store; then no case of the stores may run on it.
    fn ring(&self) -> usize {
        panic!("this engine has no ring of its own")
    }

    /// The TTL of instances that a case wants to see expire: at least 3 s, since that is what the HTTP API takes, and
    /// no longer when the time is real.
    fn ttl(&self) -> Ttl;

    /// The time of this world.
    fn now(&self) -> Duration;

    /// Lets at least `time` pass, and what is due in it happen.
    async fn pass(&self, time: Duration);

    /// How much later than promised something may be seen because the machine that runs the tests is busy. Zero when
    /// time passes at command.
    fn slack(&self) -> Duration {
        Duration::ZERO
    }

    /// How long, in real time, a case waits for what must come before it fails.
    fn patience(&self) -> Duration {
        Duration::from_secs(20)
    }
}

/// The namespace in which most cases play.
pub(super) fn shop() -> Namespace {
    namespace("shop-{eu}")
}

pub(super) fn namespace(name: &str) -> Namespace {
    Namespace::new(name).expect("the cases use valid names, but for those about names")
}

pub(super) fn service(name: &str) -> ServiceId {
    ServiceId::new(name).expect("the cases use valid names, but for those about names")
}

/// An ephemeral HTTP instance of `name` on port `port` of 10.0.0.1 that lives for [`World::ttl`].
pub(super) fn instance(world: &dyn World, name: &str, port: u16) -> Registration {
    let mut new = permanent(name, port);
    new.ephemeral = true;
    new.ttl = Some(world.ttl());
    new
}

/// The same, but permanent.
pub(super) fn permanent(name: &str, port: u16) -> Registration {
    let new = Registration::new(service(name), "http", "10.0.0.1", port.into());
    Registration { ephemeral: false, ..new.expect("an address and a port") }
}

/// Runs `count` tasks that begin at the same moment, and gives their answers in order.
pub(super) async fn together<T, F>(count: usize, task: impl Fn(usize) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let barrier = Arc::new(Barrier::new(count));
    let start = |n| {
        let (barrier, work) = (Arc::clone(&barrier), task(n));
        tokio::spawn(async move {
            barrier.wait().await;
            work.await
        })
    };
    let tasks: Vec<_> = (0..count).map(start).collect();
    let mut answers = Vec::with_capacity(count);
    for task in tasks {
        answers.push(task.await.expect("a task of a case does not panic"));
    }
    answers
}
