//! Password hashes: argon2id, two at once, because each takes 19 MiB and tens of milliseconds.

use std::sync::Arc;

use argon2::{
    Argon2,
    password_hash::{PasswordHasher, PasswordVerifier, phc::PasswordHash},
};
use cosky_core::Error;
use tokio::sync::Semaphore;

use crate::ApiError;

/// Hashes computed at once.
const AT_ONCE: usize = 2;
/// Logins that are being worked on or wait for it; above it 429.
const PLACES: usize = 64;
/// Stands for the hash of a user who does not exist, so that the answer takes as long. Nothing verifies against it:
/// whether it matched is not asked.
const NOBODY: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$Y29za3ktbm9ib2R5LTAx$k0xQv1mF3o8yq0bq3lqj2Yt8l9Yc5p3m8oZ1n7w4u2E";

/// Guards the processor and the memory against many logins at once.
pub(crate) struct Passwords {
    places: Arc<Semaphore>,
    at_once: Arc<Semaphore>,
}

impl Passwords {
    pub(crate) fn new() -> Self {
        Self { places: Arc::new(Semaphore::new(PLACES)), at_once: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// Whether `password` belongs to `stored`; false, after the same time, when nothing is stored. Dropping the future
    /// abandons the answer; a hash that is being computed is computed to its end.
    ///
    /// # Errors
    /// 429 when too many wait, 500 when `stored` is no hash.
    pub(crate) async fn verify(&self, password: String, stored: Option<String>) -> Result<bool, ApiError> {
        let full = "too many logins at once; try again";
        let place =
            Arc::clone(&self.places).try_acquire_owned().map_err(|_| ApiError::limit_reached(full))?;
        let turn = Arc::clone(&self.at_once).acquire_owned().await.expect("the semaphore is never closed");
        let right = in_background(move || {
            // Held to the end of the work, which goes on when the client has gone.
            let _held = (place, turn);
            Ok(matches(&password, stored.as_deref().unwrap_or(NOBODY))? && stored.is_some())
        });
        Ok(right.await?)
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
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_password_matches_its_hash_only() {
        let passwords = Passwords::new();
        let stored = hash("correct horse").await.unwrap();
        assert!(stored.starts_with("$argon2id$"), "{stored}");
        assert_ne!(stored, hash("correct horse").await.unwrap(), "each hash has a salt of its own");
        let verify = |word: &str, stored: Option<&String>| passwords.verify(word.into(), stored.cloned());
        assert!(verify("correct horse", Some(&stored)).await.unwrap());
        assert!(!verify("correct horse ", Some(&stored)).await.unwrap());
        assert!(!verify("correct horse", None).await.unwrap());
        let no_hash = String::from("no hash");
        assert_eq!(verify("x", Some(&no_hash)).await.unwrap_err().status(), 500);
    }

    #[tokio::test]
    async fn clients_that_go_away_do_not_make_room_for_more() {
        let passwords = Passwords::new();
        let stored = hash("x").await.unwrap();
        for _ in 0..2 {
            let verify = passwords.verify("x".into(), Some(stored.clone()));
            assert!(tokio::time::timeout(Duration::ZERO, verify).await.is_err(), "it has just begun");
        }
        assert_eq!(passwords.at_once.available_permits(), 0);
        let third = passwords.verify("x".into(), Some(stored.clone()));
        assert!(third.await.unwrap(), "waits for its turn");
        let waiting: Vec<_> =
            (0..PLACES).map(|_| Arc::clone(&passwords.places).try_acquire_owned()).collect();
        let answer = passwords.verify("x".into(), Some(stored)).await;
        assert_eq!(answer.unwrap_err().status(), 429, "{} wait", waiting.len());
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
