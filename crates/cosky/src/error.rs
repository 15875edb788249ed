//! What can go wrong in the SDK, told by kind.

use std::time::Duration;

/// The result of every fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation of the SDK was refused or failed. Match kinds; texts are for people and say what to do.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The registry refused or could not be reached.
    #[error(transparent)]
    Registry(cosky_core::Error),
    /// Something answers at the address, and it is not a cosky server.
    #[error(transparent)]
    NotCosky(#[from] NotCosky),
    /// A cosky server answers, and it is too old for what it was asked.
    #[error(transparent)]
    TooOld(#[from] TooOld),
    /// A setting of the client cannot be used.
    #[error("{setting}: {reason}")]
    Config {
        /// The builder's method or the environment variable.
        setting: String,
        /// What is wrong and what to do.
        reason: String,
    },
    /// The period between beats leaves no room for one beat within the TTL, so the instance would flicker.
    #[error(
        "the period between beats ({period:?}) is not below the TTL ({ttl:?}): \
         shorten it, a third of the TTL is the default, or raise the TTL"
    )]
    Period {
        /// The period that was asked for.
        period: Duration,
        /// The instance's TTL.
        ttl: Duration,
    },
    /// A view has no instance that may be chosen: none is registered, in service and of a weight above 0.
    #[error("{service} has no instance in service")]
    NoInstance {
        /// The service that was looked for.
        service: String,
    },
}

/// The answer of something that is not a cosky server: it lacks the header `X-Cosky-Version`.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{address} is not a cosky server (it answers {status}): {}", advice(*.jvm))]
#[non_exhaustive]
pub struct NotCosky {
    /// The address that was asked.
    pub address: String,
    /// The HTTP status that came back.
    pub status: u16,
    /// Whether it answers as the CoSky server of the JVM does, which has the same REST API and no streams.
    pub jvm: bool,
}

/// The answer of a cosky server that does not have what it was asked for.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "the cosky server at {address} is too old for this: it is version {server} and {missing}; \
     this client is version {client}. Update the server, or use the client of its version"
)]
#[non_exhaustive]
pub struct TooOld {
    /// The address that was asked.
    pub address: String,
    /// The server's version.
    pub server: String,
    /// The version of this client.
    pub client: &'static str,
    /// What the server lacks, in words.
    pub missing: String,
}

fn advice(jvm: bool) -> &'static str {
    if jvm {
        "it is a CoSky server of the JVM, which has no streams to keep views by; give the address of a cosky server"
    } else {
        "check host, port and path of the address"
    }
}

impl Error {
    pub(crate) fn config(setting: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Config { setting: setting.into(), reason: reason.into() }
    }

    /// Whether the same call may succeed later without any change of its arguments or of the credential.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Registry(cosky_core::Error::Unavailable { .. }))
    }
}

/// Takes a [`NotCosky`] or [`TooOld`] out again that crossed the engine trait as the source of an `Unavailable`.
impl From<cosky_core::Error> for Error {
    fn from(error: cosky_core::Error) -> Self {
        if let cosky_core::Error::Unavailable { source: Some(source), .. } = &error {
            if let Some(stranger) = source.downcast_ref::<NotCosky>() {
                return Self::NotCosky(stranger.clone());
            }
            if let Some(old) = source.downcast_ref::<TooOld>() {
                return Self::TooOld(old.clone());
            }
        }
        Self::Registry(error)
    }
}

impl From<NotCosky> for cosky_core::Error {
    fn from(stranger: NotCosky) -> Self {
        Self::Unavailable {
            reason: stranger.to_string(),
            maybe_applied: false,
            source: Some(std::sync::Arc::new(stranger)),
        }
    }
}

impl From<TooOld> for cosky_core::Error {
    fn from(old: TooOld) -> Self {
        Self::Unavailable {
            reason: old.to_string(),
            maybe_applied: false,
            source: Some(std::sync::Arc::new(old)),
        }
    }
}
