//! Who may call: tokens, logins and the root account. Every request outside health, login and docs passes
//! [`layer::authenticate`], which asks [`Auth`].

pub(crate) mod jwt;
pub(crate) mod layer;
pub(crate) mod login;
mod password;
pub(crate) mod root;
mod secret;
mod spent;
pub(crate) mod tokens;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

use cosky_core::{
    Accounts, Error, UserName,
    account::{ApiToken, ROOT},
};
use tokio::time::Instant;

use self::{
    jwt::{Keys, Refusal, unix_now},
    password::Passwords,
    secret::API_TOKEN_PREFIX,
    spent::Spent,
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
    accounts: Arc<dyn Accounts>,
    /// Without authentication every request acts as this user.
    everybody: Option<UserName>,
    keys: Keys,
    passwords: Passwords,
    spent: Spent,
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

/// What a caller's credential stands on, so that what takes long can ask again whether it still does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proof {
    /// Nothing: no credential was asked for.
    None,
    /// A login under this generation of the account.
    Login(u64),
    /// The API token of this digest.
    ApiToken([u8; 32]),
}

impl Auth {
    /// Makes the signing key at the first start.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) async fn open(accounts: Arc<dyn Accounts>, config: &Config) -> Result<Self, Error> {
        let secret = accounts.signing_key(&secret::random_bytes::<{ jwt::KEY_BYTES }>()).await?;
        let keys = Keys::new(&secret, config.access_token_ttl, config.refresh_token_ttl)?;
        let snapshot = Snapshot::take(accounts.as_ref()).await?;
        let everybody = if config.auth { None } else { Some(root_name()) };
        Ok(Self {
            accounts,
            everybody,
            keys,
            passwords: Passwords::new(),
            spent: Spent::default(),
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
            return Ok(Caller { user: user.clone(), expires_at: None, proof: Proof::None });
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

    /// Whether what `caller` was let in by still stands: the login's password was not changed, the API token was not
    /// revoked. Its end in time is not looked at.
    ///
    /// # Errors
    /// 401 when it does not, 503 when the store has not answered for a quarter of an hour.
    pub(crate) async fn check_again(&self, caller: &Caller) -> Result<(), ApiError> {
        let stands = match caller.proof {
            Proof::None => true,
            Proof::Login(generation) => self.generation(&caller.user).await? == Some(generation),
            Proof::ApiToken(digest) => {
                self.snapshot().await?.tokens.contains_key(&digest)
                    && self.generation(&caller.user).await?.is_some()
            }
        };
        if stands { Ok(()) } else { Err(invalid()) }
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
        let proof = Proof::Login(claims.generation);
        Ok(snapshot.remember(token, Caller { user, expires_at: Some(claims.exp), proof }))
    }

    async fn by_api_token(&self, snapshot: &Snapshot, secret: &str) -> Result<Caller, ApiError> {
        let digest = secret::digest(secret);
        let Some(token) = snapshot.tokens.get(&digest) else { return Err(invalid()) };
        if self.generation(&token.user).await?.is_none() {
            return Err(invalid());
        }
        let proof = Proof::ApiToken(digest);
        let caller = Caller { user: token.user.clone(), expires_at: token.expires_at, proof };
        Ok(snapshot.remember(secret, caller))
    }

    /// The generation of `user`'s account; `None` when there is no such user.
    async fn generation(&self, user: &UserName) -> Result<Option<u64>, ApiError> {
        let known = || self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        match self.accounts.account(user).await {
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
        match Snapshot::take(self.accounts.as_ref()).await {
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
        match Snapshot::take(self.accounts.as_ref()).await {
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
    async fn take(accounts: &dyn Accounts) -> Result<Self, Error> {
        // The age counts from before the question: what the answer misses is at most that old.
        let taken = Instant::now();
        let tokens = accounts.api_tokens().await?;
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use async_trait::async_trait;
    use cosky_core::{
        Result, Store,
        account::{Account, LoginAttempt},
        wire::TokenPair,
    };
    use cosky_embedded::{Embedded, Options};

    use super::*;

    /// A store whose connection can be cut.
    struct Distant {
        store: Arc<dyn Store>,
        away: AtomicBool,
    }

    impl Distant {
        fn reach(&self) -> Result<&dyn Store> {
            if self.away.load(Ordering::Relaxed) {
                return Err(Error::unavailable("the store is away"));
            }
            Ok(self.store.as_ref())
        }
    }

    #[async_trait]
    impl Accounts for Distant {
        async fn account(&self, user: &UserName) -> Result<Option<Account>> {
            self.reach()?.account(user).await
        }

        async fn add_account(&self, user: &UserName, password_hash: &str) -> Result<bool> {
            self.reach()?.add_account(user, password_hash).await
        }

        async fn set_password(&self, user: &UserName, password_hash: &str) -> Result<bool> {
            self.reach()?.set_password(user, password_hash).await
        }

        async fn signing_key(&self, candidate: &[u8]) -> Result<Vec<u8>> {
            self.reach()?.signing_key(candidate).await
        }

        async fn login_attempt(&self, user: &UserName) -> Result<LoginAttempt> {
            self.reach()?.login_attempt(user).await
        }

        async fn login_succeeded(&self, user: &UserName) -> Result<()> {
            self.reach()?.login_succeeded(user).await
        }

        async fn use_refresh_token(&self, token_id: &str, expires_at: u64) -> Result<bool> {
            self.reach()?.use_refresh_token(token_id, expires_at).await
        }

        async fn api_tokens(&self) -> Result<Vec<ApiToken>> {
            self.reach()?.api_tokens().await
        }

        async fn add_api_token(&self, token: &ApiToken) -> Result<()> {
            self.reach()?.add_api_token(token).await
        }

        async fn remove_api_token(&self, id: &str) -> Result<bool> {
            self.reach()?.remove_api_token(id).await
        }
    }

    struct Fixture {
        auth: Auth,
        store: Arc<dyn Store>,
        distant: Arc<Distant>,
        generation: u64,
        pair: TokenPair,
        secret: String,
        _dir: tempfile::TempDir,
    }

    impl Fixture {
        async fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let store: Arc<dyn Store> = Arc::new(Embedded::open(Options::new(dir.path())).await.unwrap());
            root::ensure_root(&store, Some("eight888")).await.unwrap();
            let secret = secret::api_token();
            let token = ApiToken {
                id: "1".into(),
                name: "ci".into(),
                user: root_name(),
                digest: secret::digest(&secret),
                created_at: 0,
                expires_at: None,
            };
            store.add_api_token(&token).await.unwrap();
            let distant = Arc::new(Distant { store: Arc::clone(&store), away: AtomicBool::new(false) });
            let auth = Auth::open(distant.clone(), &Config::default()).await.unwrap();
            let generation = store.account(&root_name()).await.unwrap().unwrap().generation;
            let pair = auth.keys.issue(&root_name(), generation);
            Self { auth, store, distant, generation, pair, secret, _dir: dir }
        }

        fn cut(&self) {
            self.distant.away.store(true, Ordering::Relaxed);
        }

        async fn status(&self, credential: &str) -> u16 {
            self.auth.caller(Some(credential)).await.map_or_else(|e| e.status().as_u16(), |_| 200)
        }

        /// Of the access token and of the API token.
        async fn statuses(&self) -> [u16; 2] {
            [self.status(&self.pair.access_token).await, self.status(&self.secret).await]
        }
    }

    /// A store that is away for a moment must not cost a registration.
    #[tokio::test]
    async fn the_last_known_rights_count_a_quarter_of_an_hour() {
        let fixture = Fixture::new().await;
        assert_eq!(fixture.statuses().await, [200, 200]);
        fixture.cut();
        tokio::time::pause();
        for minutes in [1, 7, 6] {
            tokio::time::advance(Duration::from_secs(60 * minutes)).await;
            assert_eq!(fixture.statuses().await, [200, 200]);
            let unseen = fixture.auth.keys.issue(&root_name(), fixture.generation).access_token;
            assert_eq!(fixture.status(&unseen).await, 200, "its user is known");
            let other = fixture.auth.keys.issue(&root_name(), fixture.generation + 1).access_token;
            assert_eq!(fixture.status(&other).await, 401);
            assert_eq!(fixture.status("cosky_unknown").await, 401);
        }
        tokio::time::advance(Duration::from_secs(62)).await;
        assert_eq!(fixture.statuses().await, [503, 503]);
        fixture.distant.away.store(false, Ordering::Relaxed);
        tokio::time::advance(RETRY).await;
        assert_eq!(fixture.statuses().await, [200, 200]);
    }

    #[tokio::test]
    async fn what_was_verified_is_not_verified_for_ever() {
        let fixture = Fixture::new().await;
        assert_eq!(fixture.statuses().await, [200, 200]);
        assert_eq!(fixture.auth.present().verified.read().unwrap().len(), 2);
        root::reset_root(&fixture.store).await.unwrap();
        fixture.store.remove_api_token("1").await.unwrap();
        tokio::time::pause();
        tokio::time::advance(FRESH).await;
        assert_eq!(fixture.statuses().await, [401, 401]);
    }

    #[tokio::test]
    async fn one_request_renews_and_the_others_do_not_wait_for_it() {
        let fixture = Fixture::new().await;
        tokio::time::pause();
        tokio::time::advance(RENEW_AFTER).await;
        let renewing = fixture.auth.renewal.lock().await;
        assert_eq!(fixture.statuses().await, [200, 200]);
        drop(renewing);
        let before = fixture.auth.present().taken;
        assert_eq!(fixture.statuses().await, [200, 200]);
        assert!(fixture.auth.present().taken > before);
    }

    #[tokio::test]
    async fn a_revocation_counts_although_the_store_fails_right_after_it() {
        let fixture = Fixture::new().await;
        assert_eq!(fixture.statuses().await, [200, 200]);
        fixture.store.remove_api_token("1").await.unwrap();
        fixture.cut();
        fixture.auth.tokens_changed(Some("1")).await;
        assert_eq!(fixture.statuses().await, [200, 401]);
    }

    #[tokio::test]
    async fn what_is_remembered_is_bounded() {
        let fixture = Fixture::new().await;
        for _ in 0..=VERIFIED {
            let token = fixture.auth.keys.issue(&root_name(), 0).access_token;
            fixture
                .auth
                .present()
                .remember(&token, Caller { user: root_name(), expires_at: None, proof: Proof::Login(0) });
        }
        assert_eq!(fixture.auth.present().verified.read().unwrap().len(), VERIFIED);
    }
}
