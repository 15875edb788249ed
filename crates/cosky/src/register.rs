//! Registering through a [`NamespaceClient`].

use std::sync::Arc;

use cosky_core::Error as CoreError;

use crate::{
    Instance, NamespaceClient, Registration, Result,
    entry::{Entry, Phase},
};

/// Times that a registration is tried again because somebody closed it in the same moment.
const CROSSINGS: usize = 3;

impl NamespaceClient {
    /// Registers `instance` and keeps it registered for as long as the handle lives.
    ///
    /// An id that this namespace client keeps already gets another handle and the new data. One that somebody
    /// deregistered is registered anew: calling this is a new wish.
    ///
    /// # Errors
    /// [`crate::Error::Registry`] that names the field, or says why no server took it; [`crate::Error::Period`] for a
    /// period that is not below the TTL. After an error nothing stays behind. Cancelling deregisters in the background.
    pub async fn register(&self, instance: Instance) -> Result<Registration> {
        let wanted = instance.check()?;
        let keeper = &self.core.keeper;
        let mut refused = None;
        for _ in 0..CROSSINGS {
            let (entry, new) = keeper.enter(&wanted, Phase::Joining)?;
            let handle = self.handle(entry.clone());
            let operation = entry.operation.lock().await;
            if matches!(entry.phase(), Phase::Leaving | Phase::Left) {
                continue;
            }
            match keeper.register(&entry, &wanted).await {
                Ok(registered) => {
                    let kept =
                        entry.registered(wanted.registration.clone(), wanted.beat_every, registered.life);
                    keeper.wake();
                    let Err(error) = kept else { return Ok(handle) };
                    drop(operation);
                    if new {
                        // What cannot be kept alive must not be found.
                        let _ = handle.close().await;
                    }
                    return Err(error);
                }
                Err(error @ CoreError::Gone { .. }) => {
                    keeper.deregistered_by_somebody(&entry);
                    refused = Some(error);
                }
                Err(error) => {
                    if !matches!(error, CoreError::Unavailable { maybe_applied: true, .. }) {
                        keeper.give_up(&entry);
                    }
                    return Err(error.into());
                }
            }
        }
        Err(refused
            .unwrap_or_else(|| CoreError::Conflict {
                reason: format!("{} is being deregistered by this client", wanted.registration.id()),
            })
            .into())
    }

    /// Registers `instance` in the background, for as long as it takes: for a process that starts without its
    /// registry. [`Registration::state_changes`] tells when it is there.
    ///
    /// # Errors
    /// Only for an instance that no server could take: the error names the field.
    pub fn keep_registered(&self, instance: Instance) -> Result<Registration> {
        let wanted = instance.check()?;
        let (entry, new) = self.core.keeper.enter(&wanted, Phase::Absent)?;
        if !new {
            entry.want(wanted.registration, wanted.beat_every);
            self.core.keeper.wake();
        }
        Ok(self.handle(entry))
    }

    fn handle(&self, entry: Arc<Entry>) -> Registration {
        Registration::new(entry, self.core.keeper.clone(), self.core.close_timeout, self.core.beats.clone())
    }
}
