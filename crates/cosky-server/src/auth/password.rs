//! Password hashes: argon2id, two at once, because each takes 19 MiB and tens of milliseconds.

use std::{sync::Arc, time::Duration};

use argon2::{
    Argon2,
    password_hash::{PasswordHasher, PasswordVerifier, phc::PasswordHash},
};
use cosky_core::Error;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use crate::ApiError;

/// Hashes computed at once.
const AT_ONCE: usize = 2;
/// Logins that wait for their turn; above it 429.
const WAITING: usize = 128;
/// How long a login waits for its turn; after it 429.
const PATIENCE: Duration = Duration::from_secs(10);
/// Stands for the hash of a user who does not exist, so that the answer takes as long. Nothing verifies against it:
/// whether it matched is not asked.
const NOBODY: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$Y29za3ktbm9ib2R5LTAx$k0xQv1mF3o8yq0bq3lqj2Yt8l9Yc5p3m8oZ1n7w4u2E";

/// Guards the processor and the memory against many logins at once.
pub(crate) struct Passwords {
    waiting: Arc<Semaphore>,
    at_once: Arc<Semaphore>,
}

/// The right to check one password. The next in the queue has it when this is dropped.
pub(crate) struct Turn {
    _held: OwnedSemaphorePermit,
}

impl Passwords {
    pub(crate) fn new() -> Self {
        Self { waiting: Arc::new(Semaphore::new(WAITING)), at_once: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// Waits for a turn, in the order of coming. Dropping the future leaves the queue.
    ///
    /// # Errors
    /// 429 when too many wait, or when the turn does not come within 10 seconds.
    pub(crate) async fn turn(&self) -> Result<Turn, ApiError> {
        let full = || ApiError::limit_reached("too many logins at once; try again");
        let place = self.waiting.try_acquire().map_err(|_| full())?;
        let turn = timeout(PATIENCE, Arc::clone(&self.at_once).acquire_owned()).await.map_err(|_| full())?;
        drop(place);
        Ok(Turn { _held: turn.expect("the semaphore is never closed") })
    }
}

impl Turn {
    /// Whether `password` belongs to `stored`; false, after the same time, when nothing is stored. Not to be dropped
    /// half way: the hash would be computed to its end while the next has the turn.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when `stored` is no hash, [`Error::Unavailable`] when the runtime is shutting down.
    pub(crate) async fn verify(&self, password: String, stored: Option<String>) -> Result<bool, Error> {
        in_background(
            move || Ok(matches(&password, stored.as_deref().unwrap_or(NOBODY))? && stored.is_some()),
        )
        .await
    }
}

/// The hash that is stored of `password`, in PHC form with a salt of its own.
///
/// # Errors
/// [`Error::Unavailable`] when the runtime is shutting down.
pub(crate) async fn hash(password: &str) -> Result<String, Error> {
    let password = password.to_owned();
    in_background(move || {
        let hash = Argon2::default().hash_password(password.as_bytes());
        Ok(hash.expect("the default parameters are valid and any text can be hashed").to_string())
    })
    .await
}

fn matches(password: &str, stored: &str) -> Result<bool, Error> {
    let corrupt = |error| Error::Corrupt { reason: format!("a password hash: {error}") };
    let stored = PasswordHash::new(stored).map_err(corrupt)?;
    Ok(Argon2::default().verify_password(password.as_bytes(), &stored).is_ok())
}

async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|_| Err(Error::unavailable("the server is shutting down")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_password_matches_its_hash_only() {
        let turn = Passwords::new().turn().await.unwrap();
        let stored = hash("correct horse").await.unwrap();
        assert!(stored.starts_with("$argon2id$"), "{stored}");
        assert_ne!(stored, hash("correct horse").await.unwrap(), "each hash has a salt of its own");
        let verify = |word: &str, stored: Option<&String>| turn.verify(word.into(), stored.cloned());
        assert!(verify("correct horse", Some(&stored)).await.unwrap());
        assert!(!verify("correct horse ", Some(&stored)).await.unwrap());
        assert!(!verify("correct horse", None).await.unwrap());
        let no_hash = String::from("no hash");
        assert!(matches!(verify("x", Some(&no_hash)).await, Err(Error::Corrupt { .. })));
    }

    #[tokio::test(start_paused = true)]
    async fn the_queue_is_bounded_and_so_is_the_wait() {
        let passwords = Arc::new(Passwords::new());
        let turns = [passwords.turn().await.unwrap(), passwords.turn().await.unwrap()];
        let begun = tokio::time::Instant::now();
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..WAITING {
            let passwords = Arc::clone(&passwords);
            waiting.spawn(async move { passwords.turn().await.map(drop) });
        }
        while passwords.waiting.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(passwords.turn().await.err().unwrap().status(), 429, "too many wait");
        assert_eq!(begun.elapsed(), Duration::ZERO, "which is said at once");
        let answers = waiting.join_all().await;
        assert!(
            answers.iter().all(|answer| answer.as_ref().is_err_and(|e| e.status() == 429)),
            "{answers:?}"
        );
        assert_eq!(begun.elapsed().as_secs(), PATIENCE.as_secs());
        let (next, ()) = tokio::join!(passwords.turn(), async { drop(turns) });
        next.unwrap();
    }

    #[test]
    fn nobody_costs_as_much_as_somebody() {
        let nobody = PasswordHash::new(NOBODY).unwrap();
        let somebody = Argon2::default().hash_password(b"x").unwrap();
        assert_eq!(nobody.algorithm, somebody.algorithm);
        assert_eq!(nobody.params.to_string(), somebody.params.to_string());
        let size = |hash: Option<argon2::password_hash::phc::Output>| hash.map(|hash| hash.len());
        assert_eq!(size(nobody.hash), size(somebody.hash));
    }
}
