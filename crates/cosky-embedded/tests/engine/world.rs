//! The embedded engine in a world of its own: a disk in memory and a clock that moves at command.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use cosky_core::{Accounts, Clock, Registry, Store as _, Ttl};
use cosky_embedded::{Embedded, Limits, OpenError, Options};
use cosky_testkit::{ManualClock, conformance::World, disk::Disk};

/// Small enough that a test can overtake it.
const WATCHER_QUEUE: usize = 512;

pub(crate) struct Memory {
    pub(crate) engine: Arc<Embedded>,
    pub(crate) clock: ManualClock,
    disk: Disk,
    patience: Duration,
}

impl Memory {
    pub(crate) async fn new() -> Self {
        Self::on(Disk::new(), ManualClock::new(), Duration::from_secs(20)).await
    }

    async fn on(disk: Disk, clock: ManualClock, patience: Duration) -> Self {
        let engine = open(&disk, &clock).await.expect("the disk can be opened");
        Self { engine: Arc::new(engine), clock, disk, patience }
    }

    /// Gives up early what never comes, where that is what is expected.
    pub(crate) async fn impatient() -> Self {
        Self { patience: Duration::from_millis(500), ..Self::new().await }
    }
}

/// Opens what is on `disk`.
pub(crate) async fn open(disk: &Disk, clock: &ManualClock) -> Result<Embedded, OpenError> {
    let limits =
        Limits { watcher_queue: WATCHER_QUEUE, ring: WATCHER_QUEUE, api_tokens: 300, ..Limits::default() };
    // A clock that a test moves on jumps, but the process was not stopped.
    let stall_limit = Duration::MAX;
    let options = Options { limits, stall_limit, clock: Arc::new(clock.clone()), ..Options::new("unused") };
    Embedded::open_backend(disk.file(), options).await
}

#[async_trait]
impl World for Memory {
    fn registry(&self) -> Arc<dyn Registry> {
        Arc::clone(&self.engine) as _
    }

    fn accounts(&self) -> Arc<dyn Accounts> {
        Arc::clone(&self.engine) as _
    }

    async fn reopen(&self) -> Arc<dyn World> {
        self.engine.close().await;
        Arc::new(Self::on(self.disk.clone(), self.clock.clone(), self.patience).await)
    }

    async fn another(&self) -> Arc<dyn World> {
        Arc::new(Self::on(Disk::new(), self.clock.clone(), self.patience).await)
    }

    fn ring(&self) -> usize {
        WATCHER_QUEUE
    }

    fn ttl(&self) -> Ttl {
        Ttl::DEFAULT
    }

    fn now(&self) -> Duration {
        self.clock.now()
    }

    async fn pass(&self, time: Duration) {
        self.clock.advance(time);
        self.engine.run_due().await;
    }

    fn patience(&self) -> Duration {
        self.patience
    }
}
