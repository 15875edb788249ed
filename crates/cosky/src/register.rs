//! Registering through a [`NamespaceClient`].

use std::sync::Arc;

use cosky_core::Error as CoreError;

use crate::{
    Instance, NamespaceClient, Ready, Registration, Result,
    beats::Keeper,
    entry::{Entry, Phase},
    instance::Wanted,
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
    /// [`crate::Error::Registry`] that names the field, or says why no server took it; [`crate::Error::Config`] for a host
    /// or port that cannot be found; [`crate::Error::Period`] for a period that is not below the TTL. After an error nothing stays behind. Cancelling deregisters in the background.
    pub async fn register(&self, instance: Instance) -> Result<Registration> {
        let wanted = instance.at_home(&self.core.home).await?.check()?;
        if !wanted.enabled || !wanted.auto_register {
            return self.later(wanted, None);
        }
        let keeper = &self.core.keeper;
        let mut refused = None;
        for _ in 0..CROSSINGS {
            let (entry, new) = keeper.enter(&wanted, Phase::Joining)?;
            let handle = self.handle(entry.clone());
            let wish = entry.wish();
            let operation = entry.operation.lock().await;
            if matches!(entry.phase(), Phase::Leaving | Phase::Left) {
                continue;
            }
            match keeper.register(&entry, &wanted).await {
                Ok(registered) => {
                    let kept = entry.registered(wanted.clone(), registered.life, wish);
                    keeper.wake();
                    let Err(error) = kept else { return Ok(handle) };
                    drop(operation);
                    if new && entry.is_held_once() {
                        // What cannot be kept alive must not be found.
                        let _ = handle.close().await;
                    } else {
                        entry.not_joined();
                        keeper.wake();
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
                    entry.not_joined();
                    keeper.wake();
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
    /// registry. [`Registration::state_changes`] tells when it is there. A host that is to be found is found without
    /// looking up names.
    ///
    /// # Errors
    /// Only for an instance that no server could take: the error names the field.
    pub fn keep_registered(&self, instance: Instance) -> Result<Registration> {
        let wanted = instance.at_home_now(&self.core.home)?.check()?;
        if !wanted.enabled || !wanted.auto_register {
            return self.later(wanted, None);
        }
        let (entry, new) = self.core.keeper.enter(&wanted, Phase::Absent)?;
        if !new {
            entry.want(wanted);
            entry.begin();
            self.core.keeper.wake();
        }
        Ok(self.handle(entry))
    }

    /// Registers `instance` in the background as soon as `ready` says so. Until then nobody finds it, and dropping the
    /// handle means that it never was registered. Otherwise as [`NamespaceClient::keep_registered`].
    ///
    /// An id that this namespace client has registered already stays registered and gets the new data. With
    /// [`Instance::auto_register`] off, `ready` is not asked.
    ///
    /// ```no_run
    /// # async fn example(shop: cosky::NamespaceClient) -> cosky::Result<()> {
    /// use cosky::{Instance, Ready};
    /// use tokio::net::TcpStream;
    ///
    /// let open = Ready::check(|| async { TcpStream::connect("127.0.0.1:8080").await });
    /// let order = shop.register_when(Instance::named("order").port(8080), open)?;
    /// # drop(order);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Only for an instance that no server could take: the error names the field.
    pub fn register_when(&self, instance: Instance, ready: Ready) -> Result<Registration> {
        let wanted = instance.at_home_now(&self.core.home)?.check()?;
        let ready = Some(ready).filter(|_| wanted.auto_register);
        self.later(wanted, ready)
    }

    /// A handle that waits for `ready`, or without it for [`Registration::begin`].
    fn later(&self, wanted: Wanted, ready: Option<Ready>) -> Result<Registration> {
        let keeper = &self.core.keeper;
        if !wanted.enabled {
            return Ok(self.handle(Keeper::disabled(&wanted)));
        }
        let (entry, new) = keeper.enter(&wanted, Phase::Waiting)?;
        if !new {
            entry.want(wanted);
            keeper.wake();
        }
        if let Some(ready) = ready {
            let (keeper, entry) = (keeper.clone(), entry.clone());
            self.core.keeper.runtime().spawn(async move {
                if ready.for_entry(entry.clone()).await && entry.begin() {
                    keeper.wake();
                }
            });
        }
        Ok(self.handle(entry))
    }

    fn handle(&self, entry: Arc<Entry>) -> Registration {
        Registration::new(entry, self.core.keeper.clone(), self.core.close_timeout, self.core.beats.clone())
    }
}

#[cfg(test)]
mod tests;
