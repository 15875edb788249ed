//! A live view: the instances of one service, kept by the client's cache, read without asking anybody.

use std::{fmt, sync::Arc, time::Duration};

use cosky_cache::{Changes, View};
use cosky_core::{ServiceId, ServiceInstance, StoreState};

use crate::{Error, Result};

/// The instances of one service, always at hand.
///
/// Reading is one atomic load: nothing waits and nothing is asked. The list is that of the last known state. While no
/// server can be reached it stays as it is, [`LiveView::state`] says `Stale` and [`LiveView::age`] grows. A view never
/// drops an instance by itself; the server does, within TTL + 1 s of the last beat. When the store has lost data, the list
/// keeps what is missing for as long as its clients need to come back, and the state says `Protected`.
///
/// All views of a namespace share one stream. It ends when the last of them is dropped.
#[derive(Clone)]
pub struct LiveView {
    view: View,
}

/// A view for one thread's inner loop: an unchanged list costs one atomic load and a comparison.
pub struct ViewReader {
    reader: cosky_cache::ViewReader,
}

impl LiveView {
    pub(crate) fn new(view: View) -> Self {
        Self { view }
    }

    /// The service that it shows.
    pub fn service(&self) -> &ServiceId {
        self.view.service()
    }

    /// All instances, sorted by id, those out of service included. The list is immutable; a change makes a new one.
    pub fn snapshot(&self) -> Arc<[ServiceInstance]> {
        self.view.snapshot()
    }

    /// A random instance among those in service, each as likely as its weight.
    ///
    /// # Errors
    /// [`Error::NoInstance`] when there is none.
    pub fn choose(&self) -> Result<ServiceInstance> {
        self.view.peek().choose().cloned().ok_or_else(|| nobody(self.service()))
    }

    /// Waits for the next change of the list or of the state after the last call of this (or after the handle was
    /// made), and gives the list. Changes that came together count as one. May be cancelled at any time.
    pub async fn changed(&mut self) -> Arc<[ServiceInstance]> {
        self.view.changed().await;
        self.snapshot()
    }

    /// What changes, instance by instance, beginning with all that is there now.
    ///
    /// ```no_run
    /// use cosky::ViewChange;
    ///
    /// # async fn example(stock: cosky::LiveView) {
    /// let mut changes = stock.changes();
    /// loop {
    ///     match changes.next().await {
    ///         ViewChange::Added(new) => println!("{} is there", new.id()),
    ///         ViewChange::Removed(old) => println!("{} is gone", old.id()),
    ///         other => println!("{other:?}"),
    ///     }
    /// }
    /// # }
    /// ```
    pub fn changes(&self) -> Changes {
        self.view.changes()
    }

    /// Waits until the registry has told what there is: for a view that started empty. Returns at once when it has.
    ///
    /// # Errors
    /// What stands against it: at once when waiting cannot help, else after `limit`.
    pub async fn ready(&mut self, limit: Duration) -> Result<()> {
        // An answer of somebody else than a cosky server, for one, is no outage.
        let hopeless = |error: &cosky_core::Error| !Error::from(error.clone()).is_unavailable();
        Ok(self.view.ready_unless(limit, hopeless).await?)
    }

    /// How far the list can be trusted: `Live`, `Stale` or `Protected`.
    pub fn state(&self) -> StoreState {
        self.view.state()
    }

    /// How old the list may be: zero while it is live.
    pub fn age(&self) -> Duration {
        self.view.age()
    }

    /// Why the service cannot be followed at the moment, when it cannot: an outage, or a server that refuses.
    pub fn error(&self) -> Option<Error> {
        self.view.peek().error.clone().map(Error::from)
    }

    /// A reader of the same view for one thread.
    pub fn reader(&self) -> ViewReader {
        ViewReader { reader: self.view.reader() }
    }

    /// Whether `list` is what [`LiveView::snapshot`] would give.
    pub(crate) fn shows(&self, list: &Arc<[ServiceInstance]>) -> bool {
        Arc::ptr_eq(&self.view.peek().instances, list)
    }
}

impl ViewReader {
    /// As [`LiveView::snapshot`].
    #[inline]
    pub fn instances(&mut self) -> &[ServiceInstance] {
        self.reader.instances()
    }

    /// As [`LiveView::choose`].
    ///
    /// # Errors
    /// [`Error::NoInstance`] when there is none.
    pub fn choose(&mut self) -> Result<&ServiceInstance> {
        self.reader.choose().map_err(nobody)
    }
}

fn nobody(service: &ServiceId) -> Error {
    Error::NoInstance { service: service.to_string() }
}

impl fmt::Debug for LiveView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveView")
            .field("service", self.service())
            .field("state", &self.state())
            .field("instances", &self.view.peek().instances.len())
            .finish()
    }
}

impl fmt::Debug for ViewReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ViewReader").field("service", self.reader.service()).finish_non_exhaustive()
    }
}
