//! What is counted. The registry is passed in; labels come from closed sets, matched routes or a bounded list, never
//! from what a client sends.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use cosky_core::{Beat, Error, Store};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::{ConstGauge, Gauge},
        histogram::Histogram,
    },
    registry::Registry,
};

/// Namespaces that get a line of their own in `cosky_instances`; the others are summed under the name `""`.
const NAMESPACES: usize = 100;
/// Upper ends of the buckets of durations, in seconds.
const BUCKETS: [f64; 12] =
    [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0];

/// The counters of one server. Handles, so cloning is cheap and counting takes no lock.
#[derive(Debug, Clone)]
pub struct Metrics {
    operations: Arc<[[Counter; Outcome::ALL.len()]; Operation::ALL.len()]>,
    logins: [Counter; LoginResult::ALL.len()],
    cut: [Counter; Cut::ALL.len()],
    durations: Family<RouteLabels, Histogram, fn() -> Histogram>,
    watchers: Gauge,
    long_polls: Gauge,
    connections: Gauge,
    in_flight: Gauge,
}

/// What a caller wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Operation {
    /// Listing a namespace.
    AddNamespace,
    /// Unlisting or purging a namespace.
    RemoveNamespace,
    /// Listing a service.
    SetService,
    /// Unlisting a service.
    RemoveService,
    /// Registering an instance.
    Register,
    /// One instance's beat, alone or in a batch.
    Beat,
    /// Deregistering an instance.
    Deregister,
    /// Replacing or merging metadata.
    SetMetadata,
    /// Reading instances, one or a service's.
    ReadInstances,
    /// Reading anything else.
    Read,
    /// Choosing an instance.
    Choose,
    /// Opening a watch stream.
    Watch,
}

/// How it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Outcome {
    /// Done.
    Ok,
    /// The instance is not there (a beat).
    Unknown,
    /// Somebody deregistered the instance.
    Gone,
    /// The caller's fault, or a limit.
    Refused,
    /// The store's fault.
    Failed,
}

/// How a login or refresh went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum LoginResult {
    /// Tokens were issued.
    Ok,
    /// Wrong user, password or token.
    Refused,
    /// Too many tries.
    Frozen,
    /// The store's fault.
    Failed,
}

/// Why a watcher was cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Cut {
    /// It fell behind the bounded ring of changes.
    Lagged,
    /// It took nothing from its connection.
    Stuck,
}

/// Counts one for as long as it lives.
#[derive(Debug)]
pub struct Counted(Gauge);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabels {
    operation: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    method: &'static str,
    route: Arc<str>,
}

/// Asks the store for its figures at each scrape.
struct StoreFigures(Arc<dyn Store>);

impl Operation {
    const ALL: [Self; 12] = [
        Self::AddNamespace,
        Self::RemoveNamespace,
        Self::SetService,
        Self::RemoveService,
        Self::Register,
        Self::Beat,
        Self::Deregister,
        Self::SetMetadata,
        Self::ReadInstances,
        Self::Read,
        Self::Choose,
        Self::Watch,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::AddNamespace => "add_namespace",
            Self::RemoveNamespace => "remove_namespace",
            Self::SetService => "set_service",
            Self::RemoveService => "remove_service",
            Self::Register => "register",
            Self::Beat => "beat",
            Self::Deregister => "deregister",
            Self::SetMetadata => "set_metadata",
            Self::ReadInstances => "read_instances",
            Self::Read => "read",
            Self::Choose => "choose",
            Self::Watch => "watch",
        }
    }
}

impl Outcome {
    const ALL: [Self; 5] = [Self::Ok, Self::Unknown, Self::Gone, Self::Refused, Self::Failed];

    fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Gone => "gone",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

impl From<&Error> for Outcome {
    fn from(error: &Error) -> Self {
        match error {
            Error::Gone { .. } => Self::Gone,
            Error::Unavailable { .. } | Error::Corrupt { .. } => Self::Failed,
            _ => Self::Refused,
        }
    }
}

impl LoginResult {
    const ALL: [Self; 4] = [Self::Ok, Self::Refused, Self::Frozen, Self::Failed];

    fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Refused => "refused",
            Self::Frozen => "frozen",
            Self::Failed => "failed",
        }
    }
}

impl Cut {
    const ALL: [Self; 2] = [Self::Lagged, Self::Stuck];

    fn as_str(self) -> &'static str {
        match self {
            Self::Lagged => "lagged",
            Self::Stuck => "stuck",
        }
    }
}

impl Metrics {
    /// Makes the counters and puts them into `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let registry = registry.sub_registry_with_prefix("cosky");

        let operations = Family::<OperationLabels, Counter>::default();
        registry.register("operations", "Operations by kind and result", operations.clone());
        let operation = |operation: Operation, result: Outcome| {
            operations.get_or_create_owned(&OperationLabels {
                operation: operation.as_str(),
                result: result.as_str(),
            })
        };

        let logins = Family::<ResultLabel, Counter>::default();
        registry.register("logins", "Logins and refreshes by result", logins.clone());
        let login =
            |result: LoginResult| logins.get_or_create_owned(&ResultLabel { result: result.as_str() });

        let cut = Family::<ReasonLabel, Counter>::default();
        registry.register("watchers_cut", "Watchers that were cut off, by reason", cut.clone());
        let reason = |cut_by: Cut| cut.get_or_create_owned(&ReasonLabel { reason: cut_by.as_str() });

        let metrics = Self {
            operations: Arc::new(
                Operation::ALL.map(|kind| Outcome::ALL.map(|result| operation(kind, result))),
            ),
            logins: LoginResult::ALL.map(login),
            cut: Cut::ALL.map(reason),
            durations: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            watchers: Gauge::default(),
            long_polls: Gauge::default(),
            connections: Gauge::default(),
            in_flight: Gauge::default(),
        };
        registry.register(
            "request_duration_seconds",
            "Time from a request's head to its answer's head, by matched route; streams and long polls excepted",
            metrics.durations.clone(),
        );
        registry.register("watchers", "Open watch streams", metrics.watchers.clone());
        registry.register("long_polls", "Waiting long polls", metrics.long_polls.clone());
        registry.register("connections", "Open connections", metrics.connections.clone());
        registry.register(
            "requests_in_flight",
            "Requests that have no answer's head yet",
            metrics.in_flight.clone(),
        );
        metrics
    }

    /// Puts the figures into `registry` that `store` tells at each scrape.
    pub fn register_store(registry: &mut Registry, store: Arc<dyn Store>) {
        registry.sub_registry_with_prefix("cosky").register_collector(Box::new(StoreFigures(store)));
    }

    /// Counts one operation by how it went.
    pub fn record<T>(&self, operation: Operation, result: &Result<T, Error>) {
        let outcome = match result {
            Ok(_) => Outcome::Ok,
            Err(error) => error.into(),
        };
        self.add(operation, outcome, 1);
    }

    /// Counts `times` operations.
    pub fn add(&self, operation: Operation, outcome: Outcome, times: u64) {
        self.operations[operation as usize][outcome as usize].inc_by(times);
    }

    /// Counts each beat of a batch by its answer.
    pub fn record_beats(&self, beats: &[Beat]) {
        let mut counts = [0; Outcome::ALL.len()];
        for beat in beats {
            let outcome = match beat {
                Beat::Renewed(_) => Outcome::Ok,
                Beat::Unknown => Outcome::Unknown,
                Beat::Gone => Outcome::Gone,
            };
            counts[outcome as usize] += 1;
        }
        for (outcome, count) in Outcome::ALL.into_iter().zip(counts).filter(|(_, count)| *count > 0) {
            self.add(Operation::Beat, outcome, count);
        }
    }

    /// Counts one login or refresh.
    pub fn login(&self, result: LoginResult) {
        self.logins[result as usize].inc();
    }

    /// Counts a watcher that was cut off.
    pub fn watcher_cut(&self, reason: Cut) {
        self.cut[reason as usize].inc();
    }

    /// An open watch stream, until the guard is dropped.
    #[must_use]
    pub fn watcher(&self) -> Counted {
        Counted::new(&self.watchers)
    }

    /// A waiting long poll, until the guard is dropped.
    #[must_use]
    pub fn long_poll(&self) -> Counted {
        Counted::new(&self.long_polls)
    }

    /// An open connection, until the guard is dropped.
    #[must_use]
    pub fn connection(&self) -> Counted {
        Counted::new(&self.connections)
    }

    /// A request without an answer yet, until the guard is dropped.
    #[must_use]
    pub fn request(&self) -> Counted {
        Counted::new(&self.in_flight)
    }

    /// Notes how long a request of `route` took. `route` is a route's pattern, never a path.
    pub(crate) fn duration(&self, method: &'static str, route: Arc<str>, duration: Duration) {
        self.durations.get_or_create(&RouteLabels { method, route }).observe(duration.as_secs_f64());
    }
}

impl Counted {
    fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl fmt::Debug for StoreFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreFigures")
    }
}

impl Collector for StoreFigures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let figures = self.0.figures();
        let gauges = [
            ("store_watchers", "Open watches of the store", figures.watchers),
            ("write_queue", "Writes that wait for the store", figures.write_queue),
        ];
        for (name, help, value) in gauges {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        let counters = [
            ("expirations", "Instances removed because their beats stopped", figures.expirations),
            ("commits", "Group commits", figures.commits),
            ("failed_commits", "Group commits that failed", figures.failed_commits),
            ("lagged_watches", "Watches of the store that fell behind", figures.lagged_watchers),
        ];
        for (name, help, value) in counters {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        let kind = prometheus_client::metrics::MetricType::Gauge;
        let help =
            "Live instances by namespace; of many namespaces the largest, the others under an empty name";
        let mut family = encoder.encode_descriptor("instances", help, None, kind)?;
        for (namespace, count) in largest(&figures.instances) {
            let labels = [("namespace", namespace)];
            let gauge = ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX));
            gauge.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

/// Counts by namespace; of more than [`NAMESPACES`] the largest, and the sum of the others under an empty name.
fn largest(instances: &BTreeMap<String, u64>) -> Vec<(&str, u64)> {
    let mut instances: Vec<_> =
        instances.iter().map(|(namespace, count)| (namespace.as_str(), *count)).collect();
    if instances.len() > NAMESPACES {
        instances.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        let rest = instances.split_off(NAMESPACES).into_iter().map(|(_, count)| count).sum();
        instances.push(("", rest));
    }
    instances
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_namespaces_the_largest_have_lines() {
        let few = BTreeMap::from([("a".to_owned(), 0), ("b".to_owned(), 2)]);
        assert_eq!(largest(&few), [("a", 0), ("b", 2)]);
        let many: BTreeMap<_, _> = (0..250).map(|n| (format!("{n:03}"), n)).collect();
        let lines = largest(&many);
        assert_eq!(lines.len(), NAMESPACES + 1);
        assert_eq!(lines[0], ("249", 249));
        assert_eq!(lines[NAMESPACES], ("", (0..150).sum::<u64>()));
        assert_eq!(lines.iter().map(|(_, count)| count).sum::<u64>(), (0..250).sum::<u64>());
    }

    #[test]
    fn each_kind_counts_in_its_own_line() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let beats = [Beat::Renewed(None), Beat::Unknown, Beat::Gone, Beat::Renewed(None)];
        metrics.record_beats(&beats);
        metrics.record::<()>(Operation::Register, &Err(Error::unavailable("away")));
        metrics.record::<()>(Operation::Register, &Err(Error::invalid("host", "is odd")));
        metrics.login(LoginResult::Frozen);
        metrics.watcher_cut(Cut::Stuck);
        let watcher = metrics.watcher();
        let text = || {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            text
        };
        for line in [
            "cosky_operations_total{operation=\"beat\",result=\"ok\"} 2",
            "cosky_operations_total{operation=\"beat\",result=\"unknown\"} 1",
            "cosky_operations_total{operation=\"beat\",result=\"gone\"} 1",
            "cosky_operations_total{operation=\"register\",result=\"failed\"} 1",
            "cosky_operations_total{operation=\"register\",result=\"refused\"} 1",
            "cosky_logins_total{result=\"frozen\"} 1",
            "cosky_watchers_cut_total{reason=\"stuck\"} 1",
            "cosky_watchers 1",
        ] {
            assert!(text().lines().any(|got| got == line), "{line}\n{}", text());
        }
        drop(watcher);
        assert!(text().contains("\ncosky_watchers 0\n"));
    }

    /// The counters are found by position.
    #[test]
    fn each_kind_is_at_its_place() {
        assert!(Operation::ALL.iter().enumerate().all(|(at, kind)| at == *kind as usize));
        assert!(Outcome::ALL.iter().enumerate().all(|(at, kind)| at == *kind as usize));
        assert!(LoginResult::ALL.iter().enumerate().all(|(at, kind)| at == *kind as usize));
        assert!(Cut::ALL.iter().enumerate().all(|(at, kind)| at == *kind as usize));
    }
}
