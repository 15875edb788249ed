//! Accounts with a fault.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU8, Ordering},
};

use async_trait::async_trait;
use cosky_core::{
    Accounts, Error, Result, UserName,
    account::{Account, ApiToken, LoginAttempt},
};

use super::Fault;

pub(super) struct Faulty {
    good: Arc<dyn Accounts>,
    fault: Option<Fault>,
    /// Tokens beyond the good store's limit.
    surplus: Mutex<Vec<ApiToken>>,
    keys: AtomicU8,
}

impl Faulty {
    pub(super) fn new(good: Arc<dyn Accounts>, fault: Option<Fault>) -> Self {
        Self { good, fault, surplus: Mutex::default(), keys: AtomicU8::new(0) }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }
}

#[async_trait]
impl Accounts for Faulty {
    async fn account(&self, user: &UserName) -> Result<Option<Account>> {
        let account = self.good.account(user).await?;
        let hide = |account: Account| Account { generation: 1, ..account };
        Ok(if self.has(Fault::GenerationStays) { account.map(hide) } else { account })
    }

    async fn add_account(&self, user: &UserName, password_hash: &str) -> Result<bool> {
        self.good.add_account(user, password_hash).await
    }

    async fn set_password(&self, user: &UserName, password_hash: &str) -> Result<bool> {
        self.good.set_password(user, password_hash).await
    }

    async fn signing_key(&self, candidate: &[u8]) -> Result<Vec<u8>> {
        let mut key = self.good.signing_key(candidate).await?;
        if self.has(Fault::KeyPerCall) {
            key[0] ^= self.keys.fetch_add(1, Ordering::SeqCst);
        }
        Ok(key)
    }

    async fn login_attempt(&self, user: &UserName) -> Result<LoginAttempt> {
        match self.good.login_attempt(user).await? {
            LoginAttempt::Frozen { .. } if self.has(Fault::NeverFreezes) => Ok(LoginAttempt::Allowed(1)),
            attempt => Ok(attempt),
        }
    }

    async fn login_succeeded(&self, user: &UserName) -> Result<()> {
        self.good.login_succeeded(user).await
    }

    async fn use_refresh_token(&self, token_id: &str, expires_at: u64) -> Result<bool> {
        let first = self.good.use_refresh_token(token_id, expires_at).await?;
        Ok(first || self.has(Fault::RefreshTwice))
    }

    async fn api_tokens(&self) -> Result<Vec<ApiToken>> {
        let mut tokens = self.good.api_tokens().await?;
        tokens.extend_from_slice(&self.surplus.lock().expect("nothing panics under this lock"));
        Ok(tokens)
    }

    async fn add_api_token(&self, token: &ApiToken) -> Result<()> {
        let unbounded = self.has(Fault::UnboundedTokens);
        if unbounded && !self.surplus.lock().expect("nothing panics under this lock").is_empty() {
            self.surplus.lock().expect("nothing panics under this lock").push(token.clone());
            return Ok(());
        }
        match self.good.add_api_token(token).await {
            Err(Error::Exhausted { .. }) if unbounded => {
                self.surplus.lock().expect("nothing panics under this lock").push(token.clone());
                Ok(())
            }
            answer => answer,
        }
    }

    async fn remove_api_token(&self, id: &str) -> Result<bool> {
        self.good.remove_api_token(id).await
    }
}
