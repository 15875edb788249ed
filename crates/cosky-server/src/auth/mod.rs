//! Who may call: tokens, logins and the root account. Every request outside health, login and docs passes
//! [`layer::authenticate`], which asks [`Auth`].

pub(crate) mod jwt;
pub(crate) mod layer;
pub(crate) mod login;
mod password;
pub(crate) mod root;
mod secret;
pub(crate) mod tokens;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::{Duration, Instant},
};

use cosky_core::{
    Error, Store, UserName,
    account::{ApiToken, ROOT},
};

use self::{
    jwt::{Keys, Refusal, unix_now},
    password::Passwords,
    secret::API_TOKEN_PREFIX,
};
use crate::{ApiError, Caller, Config};

/// A snapshot of this age is renewed by the next request.
const RENEW_AFTER: Duration = Duration::from_millis(2_500);
/// A snapshot of this age is not used while the store answers.
const FRESH: Duration = Duration::from_secs(5);
/// The last rights that were known count this long while the store does not answer.
const LAST_KNOWN: Duration = Duration::from_secs(15 * 60);
/// While the store does not answer it is asked this often.
const RETRY: Duration = Duration::from_secs(1);
/// Credentials that one snapshot remembers as verified.
const VERIFIED: usize = 4_096;
/// Accounts whose generation is remembered for the time that the store does not answer.
const REMEMBERED: usize = 1_024;

/// What the auth layer knows.
pub(crate) struct Auth {
    store: Arc<dyn Store>,
    /// Without authentication every request acts as this user.
    everybody: Option<UserName>,
    keys: Keys,
    passwords: Passwords,
    snapshot: RwLock<Arc<Snapshot>>,
    /// Held while the snapshot is renewed; when the last attempt to do so failed.
    renewal: tokio::sync::Mutex<Option<Instant>>,
    generations: Mutex<HashMap<UserName, (u64, Instant)>>,
}

/// What the store said at one moment, and what was concluded from it. Conclusions end with the snapshot, so a
/// revocation or a new password counts within [`FRESH`] on every server.
struct Snapshot {
    taken: Instant,
    tokens: HashMap<[u8; 32], ApiToken>,
    verified: RwLock<HashMap<Box<str>, Caller>>,
}

impl Auth {
    /// Makes the signing key at the first start.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) async fn open(store: Arc<dyn Store>, config: &Config) -> Result<Self, Error> {
        let secret = store.signing_key(&secret::random_bytes::<{ jwt::KEY_BYTES }>()).await?;
        let keys = Keys::new(&secret, config.access_token_ttl, config.refresh_token_ttl)?;
        let snapshot = Snapshot::take(store.as_ref()).await?;
        let everybody = if config.auth { None } else { Some(root_name()) };
        Ok(Self {
            store,
            everybody,
            keys,
            passwords: Passwords::new(),
            snapshot: RwLock::new(Arc::new(snapshot)),
            renewal: tokio::sync::Mutex::new(None),
            generations: Mutex::new(HashMap::new()),
        })
    }

    /// Who sent `credential`, an access token or an API token.
    ///
    /// # Errors
    /// 401 when it is not good, 503 when the store has not answered for a quarter of an hour.
    async fn caller(&self, credential: Option<&str>) -> Result<Caller, ApiError> {
        if let Some(user) = &self.everybody {
            return Ok(Caller { user: user.clone(), expires_at: None });
        }
        let Some(credential) = credential else {
            return Err(ApiError::unauthorized(
                "a credential is needed: log in with POST /v1/authenticate/{username}/login, or send an API token, \
                 as Authorization: Bearer …",
            ));
        };
        let snapshot = self.snapshot().await?;
        let known = snapshot.verified.read().unwrap_or_else(PoisonError::into_inner).get(credential).cloned();
        let caller = match known {
            Some(caller) => caller,
            None if credential.starts_with(API_TOKEN_PREFIX) => {
                self.by_api_token(&snapshot, credential).await?
            }
            None => self.by_access_token(&snapshot, credential).await?,
        };
        if caller.expires_at.is_some_and(|end| end <= unix_now()) {
            return Err(expired());
        }
        Ok(caller)
    }

    async fn by_access_token(&self, snapshot: &Snapshot, token: &str) -> Result<Caller, ApiError> {
        let claims = self.keys.access(token).map_err(|refusal| match refusal {
            Refusal::Expired => expired(),
            Refusal::Invalid => invalid(),
        })?;
        let user = UserName::new(&claims.sub).map_err(|_| invalid())?;
        if self.generation(&user).await? != Some(claims.generation) {
            return Err(invalid());
        }
        Ok(snapshot.remember(token, Caller { user, expires_at: Some(claims.exp) }))
    }

    async fn by_api_token(&self, snapshot: &Snapshot, secret: &str) -> Result<Caller, ApiError> {
        let Some(token) = snapshot.tokens.get(&secret::digest(secret)) else { return Err(invalid()) };
        if self.generation(&token.user).await?.is_none() {
            return Err(invalid());
        }
        let caller = Caller { user: token.user.clone(), expires_at: token.expires_at };
        Ok(snapshot.remember(secret, caller))
    }

    /// The generation of `user`'s account; `None` when there is no such user.
    async fn generation(&self, user: &UserName) -> Result<Option<u64>, ApiError> {
        let known = || self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        match self.store.account(user).await {
            Ok(Some(account)) => {
                let mut known = known();
                if known.len() < REMEMBERED || known.contains_key(user) {
                    known.insert(user.clone(), (account.generation, Instant::now()));
                }
                Ok(Some(account.generation))
            }
            Ok(None) => {
                known().remove(user);
                Ok(None)
            }
            Err(error @ Error::Unavailable { .. }) => match known().get(user) {
                Some((generation, at)) if at.elapsed() < LAST_KNOWN => Ok(Some(*generation)),
                _ => Err(error.into()),
            },
            Err(error) => Err(error.into()),
        }
    }

    /// The snapshot, renewed when it is due. While one request renews it, the others go on with the present one.
    async fn snapshot(&self) -> Result<Arc<Snapshot>, ApiError> {
        let present = self.present();
        let age = present.taken.elapsed();
        if age < RENEW_AFTER {
            return Ok(present);
        }
        let mut failed_at = if age < FRESH {
            match self.renewal.try_lock() {
                Ok(guard) => guard,
                Err(_) => return Ok(present),
            }
        } else {
            self.renewal.lock().await
        };
        let present = self.present();
        let age = present.taken.elapsed();
        if age < RENEW_AFTER || (failed_at.is_some_and(|at| at.elapsed() < RETRY) && age < LAST_KNOWN) {
            return Ok(present);
        }
        match Snapshot::take(self.store.as_ref()).await {
            Ok(snapshot) => {
                *failed_at = None;
                Ok(self.replace(snapshot))
            }
            Err(error) => {
                *failed_at = Some(Instant::now());
                if age < LAST_KNOWN { Ok(present) } else { Err(error.into()) }
            }
        }
    }

    /// Makes a change of this server's own count at once. `revoked` counts even when the store cannot be read.
    async fn tokens_changed(&self, revoked: Option<&str>) {
        let mut failed_at = self.renewal.lock().await;
        match Snapshot::take(self.store.as_ref()).await {
            Ok(snapshot) => {
                *failed_at = None;
                self.replace(snapshot);
            }
            Err(_) => {
                let present = self.present();
                let mut tokens = present.tokens.clone();
                tokens.retain(|_, token| Some(token.id.as_str()) != revoked);
                self.replace(Snapshot { taken: present.taken, tokens, verified: RwLock::default() });
            }
        }
    }

    fn present(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn replace(&self, snapshot: Snapshot) -> Arc<Snapshot> {
        let snapshot = Arc::new(snapshot);
        *self.snapshot.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&snapshot);
        snapshot
    }
}

impl Snapshot {
    async fn take(store: &dyn Store) -> Result<Self, Error> {
        // The age counts from before the question: what the answer misses is at most that old.
        let taken = Instant::now();
        let tokens = store.api_tokens().await?;
        let tokens = tokens.into_iter().map(|token| (token.digest, token)).collect();
        Ok(Self { taken, tokens, verified: RwLock::default() })
    }

    /// Only what was verified is remembered, so nobody fills the memory with garbage.
    fn remember(&self, credential: &str, caller: Caller) -> Caller {
        let mut verified = self.verified.write().unwrap_or_else(PoisonError::into_inner);
        if verified.len() < VERIFIED {
            verified.insert(credential.into(), caller.clone());
        }
        caller
    }
}

/// CoSky's word: its clients know by it that a refresh helps.
fn expired() -> ApiError {
    ApiError::unauthorized("Token Expired")
}

/// One text for all that is wrong with a credential, so that it tells nothing to those who guess.
fn invalid() -> ApiError {
    ApiError::unauthorized("Token Invalid: log in again, or make a new API token")
}

fn root_name() -> UserName {
    UserName::new(ROOT).expect("the constant is a valid name")
}
