//! Accounts, API tokens and what a store remembers of logins. Hashing and signing are the server's.

use std::fmt;

use crate::UserName;

/// The name of the user who may do everything.
pub const ROOT: &str = "cosky";
/// Characters of the shortest password that may be set.
pub const PASSWORD_CHARS: usize = 8;
/// Failed logins after which an account is frozen.
pub const LOGIN_ATTEMPTS: u32 = 10;
/// How long an account stays frozen after its last counted attempt, in seconds.
pub const LOGIN_FREEZE_SECONDS: u64 = 900;

/// A user as it is stored.
#[derive(Clone, PartialEq, Eq)]
pub struct Account {
    /// The password's hash in PHC form.
    pub password_hash: String,
    /// Counts changes of the password. A token that was issued under another generation is void.
    pub generation: u64,
}

/// A token for machines: 256 random bits, of which only the SHA-256 is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiToken {
    /// Names it in the list; not secret.
    pub id: String,
    /// What it is for, in its maker's words.
    pub name: String,
    /// For whom it acts.
    pub user: UserName,
    /// SHA-256 of the secret.
    pub digest: [u8; 32],
    /// Seconds since 1970.
    pub created_at: u64,
    /// Seconds since 1970; never, when absent.
    pub expires_at: Option<u64>,
}

/// Whether a password may be tried now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginAttempt {
    /// It may; this was the n-th try since the last success.
    Allowed(u32),
    /// Too many tries; the account is frozen.
    Frozen {
        /// Seconds until it may be tried again.
        seconds: u64,
    },
}

/// A hash is a secret of a kind, so it is not printed.
impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account").field("generation", &self.generation).finish_non_exhaustive()
    }
}
