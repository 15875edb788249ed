//! How a cache behaves, and how it tells what it does.

use std::{fmt, sync::Arc, time::Duration};

use cosky_core::{Clock, Error, Namespace, ServiceId, ServiceInstance, SystemClock};

/// Called with every instance that the registry told of, by snapshots, answers and events, in the order in which they count
/// and only with what counts: an old answer that comes late is not handed on. Must return quickly and never wait: the namespace's task calls it.
pub type OnMetadata = Arc<dyn Fn(&Namespace, &ServiceInstance) + Send + Sync>;

/// Gives what was known of a service before this process, and how old that is, when the registry cannot be reached for a
/// reason like this. Must return quickly and never wait: the namespace's task calls it.
pub type Recall =
    Arc<dyn Fn(&Namespace, &ServiceId, &Error) -> Option<(Arc<[ServiceInstance]>, Duration)> + Send + Sync>;

/// The settings of a [`crate::Cache`].
#[derive(Clone)]
pub struct Options {
    /// The most names that are cached at once, 10,000.
    pub entries: usize,
    /// How long a name stays after the last look-up of it, 60 s. One that was only shown by views goes with the last. Where
    /// more than half of the entries are taken, names without instances may go sooner; where more than seven eighths are,
    /// those that were not looked up for longest.
    pub idle: Duration,
    /// How long a look-up by name waits for the first answer, 5 s.
    pub wait: Duration,
    /// Whether absence is ignored for a while after the store had an incident, true. See [`crate::Incident`].
    pub protect: bool,
    /// The longest that one incident is answered with protection, 5 min after the store is back.
    pub protect_limit: Duration,
    /// Whether the registry is asked for an instance at the end of the life that it announced: for engines without a
    /// reaper behind them. False: the registry tells when an instance has expired.
    pub ask_at_deadline: bool,
    /// How often what is cached is compared with the registry's digest, 25 s ± 10 %. Zero: never.
    pub digest_every: Duration,
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
    /// What delays are drawn from: by chance without, the same each time with it, so that a test can be played again.
    pub seed: Option<u64>,
    /// Who else wants to know the metadata that is told.
    pub on_metadata: Option<OnMetadata>,
    /// Where to look for a service when the registry cannot be reached, or no watch stands within 1 to 2 s, and has told
    /// nothing of it. What that gives is
    /// shown as `Stale` until the registry tells, which replaces it whole.
    pub recall: Option<Recall>,
}

/// Something that happened to the store, noticed by an engine: what is absent from it afterwards may only be late. While
/// protection lasts nothing that was known before goes unless somebody deregisters it. It lasts for the longest life that
/// was seen, rounded up, and two periods (a third of that life each) after the store is back, at least 5 s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Incident {
    /// Data is gone, or replaced by an older copy.
    DataLost,
    /// Another node took over that may lack the last changes.
    Failover,
    /// The store threw data away for want of memory.
    Eviction,
    /// The store could not be reached for so long that instances may have expired though their clients beat.
    Unreachable,
}

/// A cache in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figures {
    /// Names that are cached.
    pub entries: u64,
    /// Streams that are open: one per namespace at most, and another for the moment in which one takes over.
    pub subscriptions: u64,
    /// Single names that were asked for since the start.
    pub loads: u64,
    /// Streams that were begun anew since the start, with a snapshot instead of after the last change, because what was
    /// known could not be trusted or too many names were new.
    pub resyncs: u64,
    /// Digests that were compared since the start.
    pub digests: u64,
    /// Digests that differed.
    pub digests_differed: u64,
    /// Names that are under protection.
    pub protected: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            entries: 10_000,
            idle: Duration::from_secs(60),
            wait: Duration::from_secs(5),
            protect: true,
            protect_limit: Duration::from_secs(300),
            ask_at_deadline: false,
            digest_every: Duration::from_secs(25),
            clock: Arc::new(SystemClock),
            seed: None,
            on_metadata: None,
            recall: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("entries", &self.entries)
            .field("idle", &self.idle)
            .field("wait", &self.wait)
            .field("protect", &self.protect)
            .field("protect_limit", &self.protect_limit)
            .field("ask_at_deadline", &self.ask_at_deadline)
            .field("digest_every", &self.digest_every)
            .finish_non_exhaustive()
    }
}
