//! The traits that every engine implements: embedded, Redis, and the SDK's HTTP client.
//!
//! They hold atomic operations only; balancing, diffing and the like are functions over what these return. What each
//! method says about atomicity, events, errors and cancellation is asserted for every engine by the conformance suite
//! of `cosky-testkit`.
//!
//! Common to all methods:
//! * **Errors.** [`Error::Unavailable`] when the store cannot be reached or refuses writes (a full disk, say); with
//!   `maybe_applied` set when the write may have been applied all the same. [`Error::Exhausted`] when a limit of the
//!   store is reached. After any other error nothing was written.
//! * **Cancellation.** Dropping the future abandons the answer, not the work: what was already handed to the store is
//!   carried out whole or not at all.
//! * **Order.** When a write has been answered, the next read on the same engine sees it (P11). Watchers are told of
//!   the changes of one namespace in the order in which they were made, and only of what is durable (P6).

use std::{collections::BTreeMap, pin::Pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_core::Stream;

use crate::{
    Change, ConsumerName, Error, Index, Life, Metadata, MetadataPatch, Namespace, Owner, Registration,
    Result, Scope, ServiceId, ServiceInstance, StoreState, UserName,
    account::{Account, ApiToken, LoginAttempt},
};

/// What a watcher is told. Ends after an error, and without one when the store view ends.
pub type WatchStream = Pin<Box<dyn Stream<Item = Result<Arc<Change>>> + Send>>;

/// An answer together with how far it can be trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read<T> {
    /// The answer.
    pub value: T,
    /// The last change of the namespace that is in it. A watch or long poll from here misses nothing.
    pub index: Index,
    /// How old it is; zero when live.
    pub age: Duration,
    /// How far it can be trusted.
    pub state: StoreState,
}

/// The answer to a registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// How long the instance lives without a beat.
    pub life: Life,
    /// Who owns it now.
    pub owner: Owner,
}

/// Names an instance in a batch of beats. Not validated: what does not exist is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BeatKey<'a> {
    /// The service.
    pub service: &'a str,
    /// The instance's id.
    pub instance: &'a str,
}

/// The answer to one beat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beat {
    /// It lives this long from now, where the engine tells (a batch over HTTP does not). A permanent instance is not
    /// changed by a beat.
    Renewed(Option<Life>),
    /// It is not there: register it again.
    Unknown,
    /// Somebody deregistered it within its last two TTLs: stop.
    Gone,
}

/// How many live instances a service has.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceStat {
    /// The service.
    pub service: ServiceId,
    /// Instances that have not expired.
    pub instances: u64,
}

/// A namespace in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stat {
    /// Namespaces in the index of the whole store.
    pub namespaces: u64,
    /// Services in the namespace's list.
    pub services: u64,
    /// Those with at least one live instance.
    pub healthy_services: u64,
    /// Live instances.
    pub instances: u64,
    /// Configs.
    pub configs: u64,
}

/// Namespaces, services, instances and their changes.
#[async_trait]
pub trait Registry: Send + Sync + 'static {
    /// The index of namespaces, sorted. A namespace may hold data without being listed.
    async fn namespaces(&self) -> Result<Vec<Namespace>>;

    /// Lists `namespace`; true when it was not listed. No event.
    async fn add_namespace(&self, namespace: &Namespace) -> Result<bool>;

    /// Takes `namespace` out of the index; true when it was listed. Its data stays, and no event is published.
    async fn remove_namespace(&self, namespace: &Namespace) -> Result<bool>;

    /// Removes the namespace's data and takes it out of the index; true when either was there. Watchers hear `remove`
    /// for each service. In steps, each atomic: a failure on the way leaves some services, never half of one.
    ///
    /// # Errors
    /// [`Error::Conflict`] while it has a live instance; nothing was removed then.
    async fn purge_namespace(&self, namespace: &Namespace) -> Result<bool>;

    /// The namespace's list of services, sorted, those without instances included.
    async fn services(&self, namespace: &Namespace) -> Result<Read<Vec<ServiceId>>>;

    /// Live instances of each listed service, sorted.
    async fn service_stats(&self, namespace: &Namespace) -> Result<Read<Vec<ServiceStat>>>;

    /// The namespace in numbers.
    async fn stat(&self, namespace: &Namespace) -> Result<Read<Stat>>;

    /// Lists `service`; true when it was not listed. Event: `set`, when true.
    async fn set_service(&self, namespace: &Namespace, service: &ServiceId) -> Result<bool>;

    /// Takes `service` out of the list; true when no live instance stands against it, also for a service that was
    /// never there. Event: `remove`, when it was listed; before it `expired` for each dead member.
    async fn remove_service(&self, namespace: &Namespace, service: &ServiceId) -> Result<bool>;

    /// Registers an instance, or registers it again with everything replaced: weight, TTL, metadata, ephemeral or
    /// permanent. Without an owner the present owner stays, and a new instance gets a fresh one. Clears a
    /// deregistration mark that another owner left. Events, in order: `set` of the service when it was not listed,
    /// then `register`.
    ///
    /// # Errors
    /// [`Error::Gone`] when this very owner's registration was deregistered within the last two TTLs: a late
    /// repeat never brings it back (P3).
    async fn register(&self, namespace: &Namespace, new: &Registration) -> Result<Registered>;

    /// Renews instances, each with its own TTL, and answers for each in the order of `keys`. Not durable and no event.
    /// One instance's answer does not depend on another's.
    ///
    /// # Errors
    /// [`Error::TooLarge`] above [`crate::limits::BEATS`].
    async fn beat(&self, namespace: &Namespace, keys: &[BeatKey<'_>]) -> Result<Vec<Beat>>;

    /// Removes an instance; true when it was there. With an owner, only when that owner registered it. Leaves a mark
    /// for two TTLs, so that beats of what was removed are answered [`Beat::Gone`]. Event: `deregister`, when true.
    async fn deregister(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
        instance: &str,
        owner: Option<&Owner>,
    ) -> Result<bool>;

    /// Replaces an instance's metadata; false when it is not there. Its life does not change. Event: `set_metadata`,
    /// when true.
    async fn set_metadata(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
        instance: &str,
        metadata: &Metadata,
    ) -> Result<bool>;

    /// Sets and removes single metadata entries in one step; false when the instance is not there. Event:
    /// `set_metadata`, when true.
    async fn patch_metadata(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
        instance: &str,
        patch: &MetadataPatch,
    ) -> Result<bool>;

    /// The live instances of a service, sorted by id; empty when it does not exist.
    async fn instances(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
    ) -> Result<Read<Vec<ServiceInstance>>>;

    /// One instance of a service; `None` when it is not there or belongs to another service.
    async fn instance(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
        instance: &str,
    ) -> Result<Read<Option<ServiceInstance>>>;

    /// The [digest](crate::digest) of the instances that `scope` covers: equal to that of any other party that holds the
    /// same. Named services that do not exist have no instances.
    ///
    /// # Errors
    /// [`Error::NotFound`] from a server that is too old to tell.
    async fn digest(&self, namespace: &Namespace, scope: &Scope) -> Result<Read<u64>>;

    /// Notes that `consumer` looks for `producer`: a service id of the same namespace, or `NAMESPACE.SERVICE`. The
    /// first time counts; nothing is noted of a consumer that looks for itself. No event.
    async fn add_dependency(
        &self,
        namespace: &Namespace,
        consumer: &ConsumerName,
        producer: &str,
    ) -> Result<()>;

    /// Who looks for whom: producers by consumer, sorted.
    async fn topology(&self, namespace: &Namespace) -> Result<BTreeMap<String, Vec<String>>>;

    /// Follows a namespace. The first item is a [`crate::Event::Snapshot`] of what `scope` covers, unless `from` lies
    /// in the bounded ring of this epoch's changes: then the changes after it come instead. No change is missed in
    /// between, none comes twice, and all come in order. Dropping the stream ends the subscription.
    ///
    /// # Errors
    /// The stream's last item is [`Error::Lagged`] when the reader was too slow. A slow reader delays nobody.
    async fn watch(&self, namespace: &Namespace, scope: Scope, from: Option<Index>) -> Result<WatchStream>;
}

/// Accounts and credentials. Implemented by stores, not by the HTTP client.
#[async_trait]
pub trait Accounts: Send + Sync + 'static {
    /// A user's account.
    async fn account(&self, user: &UserName) -> Result<Option<Account>>;

    /// Creates an account; false when there is one, which then is not changed. Of two at once one gets true.
    async fn add_account(&self, user: &UserName, password_hash: &str) -> Result<bool>;

    /// Replaces a password and raises the generation, which ends every session; false when there is no such user.
    async fn set_password(&self, user: &UserName, password_hash: &str) -> Result<bool>;

    /// The key that signs tokens: the stored one, or `candidate`, stored now. Of two at once both get the same.
    async fn signing_key(&self, candidate: &[u8]) -> Result<Vec<u8>>;

    /// Counts one try of a password, known user or not. Tries 1 to 10 restart the freeze of 15 minutes.
    async fn login_attempt(&self, user: &UserName) -> Result<LoginAttempt>;

    /// Forgets the tries of `user`.
    async fn login_succeeded(&self, user: &UserName) -> Result<()>;

    /// Marks a refresh token as used until it would expire (seconds since 1970); false when it was used before. Of two
    /// at once one gets true.
    async fn use_refresh_token(&self, token_id: &str, expires_at: u64) -> Result<bool>;

    /// All API tokens, expired ones included, sorted by creation.
    async fn api_tokens(&self) -> Result<Vec<ApiToken>>;

    /// Adds an API token.
    ///
    /// # Errors
    /// [`Error::Exhausted`] at the limit of tokens.
    async fn add_api_token(&self, token: &ApiToken) -> Result<()>;

    /// Revokes an API token; false when there is none of that id.
    async fn remove_api_token(&self, id: &str) -> Result<bool>;
}

/// What stands behind a server: a registry that also keeps accounts and can say how it is.
#[async_trait]
pub trait Store: Registry + Accounts {
    /// How the store is, from memory: never waits for it.
    fn health(&self) -> StoreHealth;

    /// The store in numbers, for metrics.
    fn figures(&self) -> Figures;

    /// Writes what is pending and lets go of the store. Later operations are refused. Idempotent.
    async fn close(&self);
}

/// How a store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreHealth {
    /// How far reads can be trusted.
    pub state: StoreState,
    /// Why writes are refused, when they are.
    pub refuses_writes: Option<String>,
    /// Bytes free on the disk that holds the store, when it has one.
    pub disk_free: Option<u64>,
}

/// A store in numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Figures {
    /// Live instances by namespace.
    pub instances: BTreeMap<String, u64>,
    /// Instances removed because their beats stopped, since the start.
    pub expirations: u64,
    /// Open watches.
    pub watchers: u64,
    /// Watchers cut off since the start because they fell behind.
    pub lagged_watchers: u64,
    /// Writes that wait for the store.
    pub write_queue: u64,
    /// Group commits since the start.
    pub commits: u64,
    /// Commits that failed since the start.
    pub failed_commits: u64,
}

/// Checks the size of a batch of beats.
///
/// # Errors
/// [`Error::TooLarge`] above [`crate::limits::BEATS`].
pub fn check_batch(keys: usize) -> Result<()> {
    let limit = crate::limits::BEATS;
    if keys > limit { Err(Error::TooLarge { field: "beats".into(), limit }) } else { Ok(()) }
}
