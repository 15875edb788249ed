//! The handle of a registered instance.

use std::{fmt, sync::Arc, time::Duration};

use cosky_core::{Error as CoreError, InstanceId, Metadata, MetadataPatch};
use tokio::{sync::watch, time::timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::{Result, beats::Keeper, entry::Entry, entry::RegistrationState};

/// An instance that this process keeps registered for as long as it holds this handle.
///
/// It beats in the background, all instances of one [`crate::NamespaceClient`] in common batches. When the server does
/// not know the instance any more (a pause longer than the TTL, say) it is registered again within one period, with
/// the same owner and **with the newest metadata that this client has seen**: what it registered or set by itself, or
/// what an operator set and a [`crate::LiveView`] of the same service and namespace client showed. An operator's edit
/// that no view of this client has seen is lost by an expiry; plain beats never change metadata.
///
/// When somebody else deregisters the instance, it stops beating and stays away ([`RegistrationState::Deregistered`]).
///
/// Registering one id twice through one namespace client gives two handles of one instance: closing either deregisters
/// it, and dropping the last one does.
#[must_use = "dropping the handle deregisters the instance"]
pub struct Registration {
    entry: Arc<Entry>,
    keeper: Arc<Keeper>,
    close_timeout: Duration,
    _beats: Arc<AbortOnDropHandle<()>>,
}

impl Registration {
    pub(crate) fn new(
        entry: Arc<Entry>,
        keeper: Arc<Keeper>,
        close_timeout: Duration,
        beats: Arc<AbortOnDropHandle<()>>,
    ) -> Self {
        Self { entry, keeper, close_timeout, _beats: beats }
    }

    /// The instance's id.
    pub fn id(&self) -> &InstanceId {
        &self.entry.id
    }

    /// How it stands now.
    pub fn state(&self) -> RegistrationState {
        self.entry.state.borrow().clone()
    }

    /// How it stands, to be awaited. Several changes at once show the last one.
    pub fn state_changes(&self) -> watch::Receiver<RegistrationState> {
        self.entry.state.subscribe()
    }

    /// When the server last confirmed it, by a registration or a beat; `None` before the first.
    pub fn last_beat(&self) -> Option<std::time::Instant> {
        self.entry.lock().last_beat.map(tokio::time::Instant::into_std)
    }

    /// The metadata with which it would be registered again now.
    pub fn metadata(&self) -> Metadata {
        self.entry.lock().registration.metadata.clone()
    }

    /// Replaces its metadata. While the server does not have the instance, the next registration carries it.
    ///
    /// # Errors
    /// As [`cosky_core::Registry::set_metadata`]. Cancelling leaves open whether it was set.
    pub async fn set_metadata(&self, metadata: Metadata) -> Result<()> {
        let _operation = self.entry.operation.lock().await;
        let (registry, namespace) = (self.keeper.registry(), self.keeper.namespace());
        registry.set_metadata(namespace, &self.entry.service, self.entry.id.as_str(), &metadata).await?;
        self.entry.saw_metadata(&metadata);
        Ok(())
    }

    /// Sets and removes single metadata entries and leaves the others alone, for example its status:
    /// `[("instance_status", Some("OUT_OF_SERVICE"))]`.
    ///
    /// # Errors
    /// As [`cosky_core::Registry::patch_metadata`]. Cancelling leaves open whether it was set.
    pub async fn patch_metadata<'a>(
        &self,
        entries: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
    ) -> Result<()> {
        let owned = |(key, value): (&str, Option<&str>)| (key.to_owned(), value.map(str::to_owned));
        let patch = MetadataPatch::new(entries.into_iter().map(owned))?;
        let _operation = self.entry.operation.lock().await;
        let (registry, namespace) = (self.keeper.registry(), self.keeper.namespace());
        registry.patch_metadata(namespace, &self.entry.service, self.entry.id.as_str(), &patch).await?;
        let patched = self.metadata().patched(&patch)?;
        self.entry.saw_metadata(&patched);
        Ok(())
    }

    /// Deregisters it: stops beating, waits for a beat that is under way, then tells the server. True when the instance
    /// was still there and is gone now; false when it had gone before, or when the answer of a first try was lost.
    ///
    /// # Errors
    /// [`crate::Error::Registry`] when the server refused or did not answer in time; it is asked on in the background
    /// until the instance's TTL is over. In every case this client does not beat for it any more. Cancelling leaves
    /// the deregistration running.
    pub async fn close(self) -> Result<bool> {
        if self.entry.begin_to_leave() {
            self.keeper.leave(self.entry.clone());
        }
        let mut state = self.entry.state.subscribe();
        let left = state.wait_for(|state| *state == RegistrationState::Deregistered);
        if timeout(self.close_timeout, left).await.is_err() {
            let limit = self.close_timeout;
            let reason = format!(
                "the deregistration of {} was not answered within {limit:?}; the instance leaves when its TTL is over",
                self.entry.id
            );
            return Err(CoreError::Unavailable { reason, maybe_applied: true, source: None }.into());
        }
        self.entry.outcome.get().cloned().unwrap_or(Ok(false))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.keeper.drop_handle(&self.entry);
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
