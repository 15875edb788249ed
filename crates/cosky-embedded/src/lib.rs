//! The embedded engine: everything is read from memory, and what must last is in one redb file.
//!
//! One writer thread owns all changes. It takes what is waiting (up to a limit), decides each request against the rows
//! of one redb transaction, commits with an fsync, applies the effects to memory, tells the watchers, and only then
//! answers. So an acknowledged write is durable, a refused one leaves nothing, and watchers hear of durable changes
//! only (P6). Beats move a deadline in memory and never wait for the disk.
//!
//! The same thread removes instances whose deadline has passed. An instance is present until it is removed there:
//! no reader hides it by looking at a clock, so all readers and watchers agree.

mod accounts;
mod batch;
mod deadline;
mod disk;
mod hub;
mod members;
mod memory;
mod open;
mod overlay;
mod registry;
mod row;
mod vitals;
mod writer;

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use cosky_core::{Clock, Error, Figures, Result, Store, StoreHealth, SystemClock, Ttl};
use redb::StorageBackend;
use tokio::sync::{mpsc, oneshot};

pub use open::OpenError;

use crate::{
    batch::Batch,
    hub::Hub,
    memory::Memory,
    vitals::Vitals,
    writer::{Job, Pending},
};

/// How to open the engine.
#[derive(Clone)]
pub struct Options {
    /// The directory that holds the file; made when it is not there.
    pub data_dir: PathBuf,
    /// The TTL of ephemeral instances that bring none.
    pub default_ttl: Ttl,
    /// What the engine holds at most.
    pub limits: Limits,
    /// When the process is stopped or the machine suspended, no beat is taken, so every deadline moves on by as much; after
    /// more than this, every ephemeral instance gets a full TTL again. [`Duration::MAX`] for a clock that a test moves.
    pub stall_limit: Duration,
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
}

/// What the engine holds at most (P9). At a limit, what would grow it is refused with [`Error::Exhausted`].
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Listed namespaces.
    pub namespaces: usize,
    /// Listed services, in all namespaces together.
    pub services: usize,
    /// Instances, in all namespaces together.
    pub instances: usize,
    /// Edges of the topology, in all namespaces together.
    pub dependencies: usize,
    /// Open watches.
    pub watchers: usize,
    /// Changes that are handed to one watcher ahead of its reading; beyond it, it reads on from the ring.
    pub watcher_queue: usize,
    /// Changes that are kept for watchers that resume or are slow; whoever falls behind it is cut off.
    pub ring: usize,
    /// Bytes of these changes, their text as it is sent included, roughly.
    pub ring_bytes: usize,
    /// Marks of deregistered instances; at the limit the one that would end first goes.
    pub gone_marks: usize,
    /// API tokens.
    pub api_tokens: usize,
    /// Accounts.
    pub accounts: usize,
    /// Used refresh tokens that have not expired.
    pub used_refresh_tokens: usize,
    /// Names whose failed logins are counted; at the limit the oldest goes.
    pub login_counters: usize,
    /// Writes that may wait for the writer; beyond it callers wait.
    pub write_queue: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            namespaces: 10_000,
            services: 200_000,
            instances: 1_000_000,
            dependencies: 100_000,
            watchers: 50_000,
            watcher_queue: 256,
            ring: 16_384,
            ring_bytes: 32 << 20,
            gone_marks: 100_000,
            api_tokens: 10_000,
            accounts: 10_000,
            used_refresh_tokens: 100_000,
            login_counters: 10_000,
            write_queue: 1024,
        }
    }
}

impl Options {
    /// The defaults of `cosky serve` in `data_dir`.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            default_ttl: Ttl::DEFAULT,
            limits: Limits::default(),
            stall_limit: Duration::from_secs(2),
            clock: Arc::new(SystemClock),
        }
    }
}

/// The engine. Dropping it lets the writer thread finish what is queued and end; [`Store::close`] waits for that.
pub struct Embedded {
    shared: Arc<Shared>,
    jobs: mpsc::Sender<Job>,
}

/// What the callers' side and the writer thread both see.
struct Shared {
    memory: std::sync::RwLock<Memory>,
    hub: std::sync::Mutex<Hub>,
    clock: Arc<dyn Clock>,
    default_ttl: Ttl,
    limits: Limits,
    counters: Counters,
    logins: accounts::LoginCounters,
    vitals: Vitals,
}

#[derive(Default)]
struct Counters {
    expirations: AtomicU64,
    commits: AtomicU64,
    failed_commits: AtomicU64,
}

impl Embedded {
    /// Opens the data directory, or makes it, and loads what it holds. Every ephemeral instance gets one full TTL from
    /// now, since beats could not arrive while the store was closed; until the longest of these has passed, reads are
    /// marked as protected.
    ///
    /// # Errors
    /// [`OpenError`] says what stands in the way and what to do. The directory is then as it was.
    ///
    /// # Cancellation
    /// A dropped future lets the opening finish in the background and close again.
    pub async fn open(options: Options) -> Result<Self, OpenError> {
        Self::start(options, |options, now| open::directory(&options.data_dir, now)).await
    }

    /// Opens a storage backend of redb's instead of a directory. Clones of `backend` must share one storage: the engine
    /// opens another one after an I/O error.
    ///
    /// # Errors
    /// As [`Embedded::open`].
    pub async fn open_backend<B: StorageBackend + Clone>(
        backend: B,
        options: Options,
    ) -> Result<Self, OpenError> {
        Self::start(options, |_, now| open::backend(backend, now)).await
    }

    async fn start<F>(options: Options, open: F) -> Result<Self, OpenError>
    where
        F: FnOnce(&Options, Duration) -> Result<(disk::Disk, Memory), OpenError> + Send + 'static,
    {
        tokio::task::spawn_blocking(move || {
            let now = options.clock.now();
            let (disk, memory) = open(&options, now)?;
            let vitals = Vitals::new(options.clock.now(), options.stall_limit);
            let shared = Arc::new(Shared {
                hub: Hub::new(options.limits).into(),
                memory: memory.into(),
                clock: options.clock,
                default_ttl: options.default_ttl,
                limits: options.limits,
                counters: Counters::default(),
                logins: accounts::LoginCounters::default(),
                vitals,
            });
            let path = options.data_dir;
            vitals::spawn(&shared).map_err(|source| OpenError::Io { path, source })?;
            let jobs = writer::spawn(Arc::clone(&shared), disk)?;
            Ok(Self { shared, jobs })
        })
        .await
        .unwrap_or_else(|panic| Err(OpenError::Corrupt { reason: format!("opening it panicked: {panic}") }))
    }

    /// Removes what is due by the engine's clock now, instead of at the writer's next tick (at most 250 ms away), and
    /// returns when the watchers have been told.
    pub async fn run_due(&self) {
        let _ = self.write(|_| Ok(())).await;
    }

    /// Has the writer thread run `operation` in its next transaction, and waits for the commit.
    async fn write<T: Send + 'static>(
        &self,
        operation: impl for<'t> FnOnce(&mut Batch<'t>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (caller, answered) = oneshot::channel();
        let job = Job::Write(Box::new(Pending::new(operation, caller)));
        self.jobs.send(job).await.map_err(|_| closed())?;
        answered.await.unwrap_or_else(|_| Err(closed()))
    }
}

fn closed() -> Error {
    Error::unavailable("the store is closed")
}

#[async_trait]
impl Store for Embedded {
    fn health(&self) -> StoreHealth {
        let now = self.shared.clock.now();
        StoreHealth {
            state: self.shared.read().state(now),
            refuses_writes: self.shared.vitals.refusal(now),
            disk_free: self.shared.vitals.disk_free(),
        }
    }

    fn figures(&self) -> Figures {
        let (watchers, lagged_watchers) = self.shared.hub().figures();
        Figures {
            instances: self.shared.read().instance_counts(),
            expirations: self.shared.counters.expirations.load(Ordering::Relaxed),
            watchers,
            lagged_watchers,
            write_queue: (self.jobs.max_capacity() - self.jobs.capacity()) as u64,
            commits: self.shared.counters.commits.load(Ordering::Relaxed),
            failed_commits: self.shared.counters.failed_commits.load(Ordering::Relaxed),
        }
    }

    async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.jobs.send(Job::Close(done)).await.is_ok() {
            let _ = closed.await;
        }
    }
}

impl Shared {
    fn read(&self) -> std::sync::RwLockReadGuard<'_, Memory> {
        self.memory.read().expect("no code under this lock panics")
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Memory> {
        self.memory.write().expect("no code under this lock panics")
    }

    fn hub(&self) -> std::sync::MutexGuard<'_, Hub> {
        self.hub.lock().expect("no code under this lock panics")
    }
}
