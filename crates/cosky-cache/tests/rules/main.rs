//! What a cache promises, in virtual time over a registry that says what a test wants.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod desk;
mod following;
mod lookups;
mod reading;

use std::{sync::Arc, time::Duration};

use cosky_cache::{Cache, Options, View};
use cosky_core::{Namespace, ServiceId};
use desk::{Desk, VirtualClock};
use tokio::time::{Instant, sleep, timeout};

/// How long a test waits, in virtual time.
const PATIENCE: Duration = Duration::from_secs(20);

/// A cache over a desk.
struct Scene {
    desk: Arc<Desk>,
    clock: VirtualClock,
    cache: Cache,
}

impl Scene {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut Options)) -> Self {
        let (desk, clock) = (Desk::new(), VirtualClock::new());
        let mut options = Options { clock: Arc::new(clock.clone()), ..Options::default() };
        change(&mut options);
        let cache = Cache::new(desk.clone(), options);
        Self { desk, clock, cache }
    }

    /// A view that shows something.
    async fn view(&self, name: &str) -> View {
        let mut view = self.empty_view(name);
        view.ready(PATIENCE).await.unwrap();
        view
    }

    fn empty_view(&self, name: &str) -> View {
        self.cache.view(&namespace(), &service(name)).unwrap()
    }
}

fn namespace() -> Namespace {
    Namespace::new("shop").unwrap()
}

fn service(name: &str) -> ServiceId {
    ServiceId::new(name).unwrap()
}

fn ports(view: &View) -> Vec<u32> {
    view.snapshot().iter().map(|instance| instance.port().get()).collect()
}

/// What comes, which must be within a minute of virtual time.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(60), what).await.expect("it comes within a minute")
}

/// Waits until `holds`; the time that it took.
async fn until(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "waited for {PATIENCE:?}: {what}");
        sleep(Duration::from_millis(5)).await;
    }
    start.elapsed()
}
