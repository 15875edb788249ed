//! The handle of a registered instance.

use std::{fmt, sync::Arc, time::Duration};

use cosky_core::{InstanceId, Metadata, MetadataPatch, STATUS};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    Health, RegistrationState, Result, UP, Vitals, VitalsChanges, beats::Keeper, drain::Held, entry::Entry,
};

/// An instance that this process keeps registered for as long as it holds this handle.
///
/// It beats in the background, all instances of one [`crate::NamespaceClient`] in common batches. When the server does
/// not know the instance any more (a pause longer than the TTL, say) it is registered again within one period, with
/// the same owner and **with the newest metadata that this client has seen**: what it registered or set by itself, or
/// what an operator set and the registry told this client while it followed the service, for a [`crate::LiveView`] or a
/// look-up by name ([`crate::NamespaceClient::instances`]). An operator's edit that it was not told is lost by an expiry; plain beats never change metadata.
///
/// When somebody else deregisters the instance, it stops beating and stays away ([`RegistrationState::Deregistered`]).
///
/// Registering one id twice through one namespace client gives two handles of one instance: closing either deregisters
/// it, and dropping the last one does.
#[must_use = "dropping the handle deregisters the instance"]
pub struct Registration {
    held: Held,
}

impl Registration {
    pub(crate) fn new(
        entry: Arc<Entry>,
        keeper: Arc<Keeper>,
        close_timeout: Duration,
        beats: Arc<AbortOnDropHandle<()>>,
    ) -> Self {
        Self { held: Held { entry, keeper, close_timeout, _beats: beats } }
    }

    fn entry(&self) -> &Arc<Entry> {
        &self.held.entry
    }

    /// The instance's id.
    pub fn id(&self) -> &InstanceId {
        &self.entry().id
    }

    /// Registers what waits, in the background, whether it is ready or not. False when it did not wait.
    pub fn begin(&self) -> bool {
        let begun = self.entry().begin();
        self.held.keeper.wake();
        begun
    }

    /// How it stands now.
    pub fn state(&self) -> RegistrationState {
        self.entry().state.borrow().clone()
    }

    /// How it stands, to be awaited. Several changes at once show the last one.
    pub fn state_changes(&self) -> watch::Receiver<RegistrationState> {
        self.entry().state.subscribe()
    }

    /// When the server last confirmed it, by a registration or a beat; `None` before the first.
    pub fn last_beat(&self) -> Option<std::time::Instant> {
        self.entry().lock().vitals.last_beat
    }

    /// How it did so far, for the application's metrics.
    pub fn vitals(&self) -> Vitals {
        self.entry().lock().vitals.clone()
    }

    /// As [`Registration::vitals`], with the state, at every beat and every other change.
    pub fn vitals_changes(&self) -> VitalsChanges {
        VitalsChanges::of(self.entry().clone())
    }

    /// What the application's own health route says of it.
    ///
    /// ```
    /// # use cosky::{Health, Registration};
    /// fn health(registration: &Registration) -> (u16, Health) {
    ///     let health = registration.health();
    ///     (health.http_status(), health) // the body, as JSON
    /// }
    /// ```
    pub fn health(&self) -> Health {
        Health::of(self.entry())
    }

    /// The metadata with which it would be registered again now.
    pub fn metadata(&self) -> Metadata {
        self.entry().lock().registration.metadata.clone()
    }

    /// Its status as this client knows it: [`UP`] when it has none.
    pub fn status(&self) -> String {
        self.entry().lock().registration.metadata.get(STATUS).unwrap_or(UP).to_owned()
    }

    /// Sets its status ([`UP`], [`crate::OUT_OF_SERVICE`] or a word of one's own) and leaves all other metadata alone.
    /// A registration after an expiry has it too.
    ///
    /// # Errors
    /// As [`Registration::patch_metadata`].
    pub async fn set_status(&self, status: &str) -> Result<()> {
        self.patch_metadata([(STATUS, Some(status))]).await
    }

    /// Replaces its metadata. While the server does not have the instance, the next registration carries it.
    ///
    /// # Errors
    /// As [`cosky_core::Registry::set_metadata`]. Cancelling leaves open whether it was set.
    pub async fn set_metadata(&self, metadata: Metadata) -> Result<()> {
        let entry = self.entry();
        let _operation = entry.operation.lock().await;
        if entry.was_told() {
            let (registry, namespace) = (self.held.keeper.registry(), self.held.keeper.namespace());
            registry.set_metadata(namespace, &entry.service, entry.id.as_str(), &metadata).await?;
            self.held.keeper.wrote(&entry.service);
        }
        entry.set_metadata(metadata);
        Ok(())
    }

    /// Sets and removes single metadata entries and leaves the others alone. While the server does not have the
    /// instance, the next registration carries them.
    ///
    /// # Errors
    /// As [`cosky_core::Registry::patch_metadata`]. Cancelling leaves open whether it was set.
    pub async fn patch_metadata<'a>(
        &self,
        entries: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
    ) -> Result<()> {
        let owned = |(key, value): (&str, Option<&str>)| (key.to_owned(), value.map(str::to_owned));
        let patch = MetadataPatch::new(entries.into_iter().map(owned))?;
        self.held.patch(&patch).await
    }

    /// Deregisters it: stops beating, waits for a beat that is under way, then tells the server. True when the instance
    /// was still there and is gone now; false when it had gone before, or when the answer of a first try was lost.
    ///
    /// # Errors
    /// [`crate::Error::Registry`] when the server refused or did not answer in time; it is asked on in the background
    /// until the instance's TTL is over. In every case this client does not beat for it any more. Cancelling leaves
    /// the deregistration running.
    pub async fn close(self) -> Result<bool> {
        self.held.deregister().await
    }

    /// Takes it out in good order, for the end of an application: sets its status to [`crate::OUT_OF_SERVICE`],
    /// deregisters it, then waits for `wait`, in which readers that chose it just before still get their answers. Stop
    /// taking work after that.
    ///
    /// Each step has a limit (1 s, that of [`Registration::close`], `wait`), and one that fails does not hold up the
    /// next. [`Registration::health`] is `DOWN` from the beginning. What was never registered does not wait. Calling it
    /// again waits for the same drain and gives the same result.
    ///
    /// # Errors
    /// As [`Registration::close`], after the wait. Cancelling stops before the next step; a deregistration that has
    /// begun goes on.
    pub async fn drain(&self, wait: Duration) -> Result<bool> {
        self.held.drain(wait).await
    }

    /// Drains it when `signal` comes, for the graceful shutdown of a server: the future is done when the server should
    /// stop taking work, [`crate::Instance::drain_wait`] after the goodbye. Keep the handle until the server has ended.
    /// Failures are logged.
    ///
    /// ```no_run
    /// # async fn example(listener: tokio::net::TcpListener, app: axum::Router, order: cosky::Registration) {
    /// let stop = order.drained_on(cosky::terminated());
    /// axum::serve(listener, app).with_graceful_shutdown(stop).await.unwrap();
    /// # }
    /// ```
    pub fn drained_on<S>(&self, signal: S) -> impl Future<Output = ()> + Send + use<S>
    where
        S: Future<Output = ()> + Send,
    {
        let held = self.held.clone();
        async move {
            signal.await;
            let wait = held.entry.lock().limits.drain_wait;
            // Each step has said what failed.
            let _ = held.drain(wait).await;
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.held.keeper.drop_handle(&self.held.entry);
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration")
            .field("id", self.id())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// Compiles the examples of the page about this.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/sdk.md")]
mod page {}
