//! What can go wrong, told by kind. Callers match kinds; texts are for people.

use std::{borrow::Cow, sync::Arc};

/// The result of every fallible operation of this workspace's engines.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation was refused or failed. Cheap to clone, since one failed commit answers many callers.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value breaks a rule; nothing was written.
    #[error("{field}: {reason}")]
    InvalidArgument {
        /// The argument as the caller knows it, for example `host` or `metadata._x`.
        field: Cow<'static, str>,
        /// The rule, in words.
        reason: Cow<'static, str>,
    },
    /// The thing that was named does not exist.
    #[error("{what} does not exist")]
    NotFound {
        /// Kind and name.
        what: String,
    },
    /// The thing was there and somebody removed it on purpose; do not bring it back.
    #[error("{what} was deregistered")]
    Gone {
        /// Kind and name.
        what: String,
    },
    /// The operation contradicts the present state; nothing was written.
    #[error("{reason}")]
    Conflict {
        /// What stands against it and what to do.
        reason: String,
    },
    /// A value is larger than its limit; nothing was written.
    #[error("{field} is larger than {limit}")]
    TooLarge {
        /// The argument as the caller knows it.
        field: Cow<'static, str>,
        /// The limit in the unit of the field (bytes or entries).
        limit: usize,
    },
    /// A store-wide limit is reached; nothing was written.
    #[error("the limit of {limit} {what} is reached")]
    Exhausted {
        /// What is counted.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The server does not accept the credential that was sent, or none was sent.
    #[error("not authorised: {reason}")]
    Unauthorized {
        /// The server's words.
        reason: String,
    },
    /// The credential is good, the right is missing.
    #[error("forbidden: {reason}")]
    Forbidden {
        /// The server's words.
        reason: String,
    },
    /// The store cannot serve this now. Trying again later may succeed; whether a write was applied is unknown only
    /// when `maybe_applied` is set.
    #[error("{reason}")]
    Unavailable {
        /// What failed.
        reason: String,
        /// The write may have reached the store before the failure (P7: it is not repeated unless idempotent).
        maybe_applied: bool,
        /// The cause, when there is one.
        #[source]
        source: Option<Arc<dyn std::error::Error + Send + Sync>>,
    },
    /// A watcher fell behind the bounded ring of changes and was cut off; subscribe again for a new snapshot.
    #[error("the watcher fell behind and was cut off")]
    Lagged,
    /// Stored data cannot be read.
    #[error("stored data cannot be read: {reason}")]
    Corrupt {
        /// What and where.
        reason: String,
    },
}

impl Error {
    /// An [`Error::InvalidArgument`] of `field`.
    pub fn invalid(field: impl Into<Cow<'static, str>>, reason: impl Into<Cow<'static, str>>) -> Self {
        Self::InvalidArgument { field: field.into(), reason: reason.into() }
    }

    /// An [`Error::Unavailable`] of which it is certain that nothing was written.
    pub fn unavailable(reason: impl Into<String>) -> Self {
        Self::Unavailable { reason: reason.into(), maybe_applied: false, source: None }
    }
}
