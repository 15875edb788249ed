//! Accounts, tokens and login counters.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

use async_trait::async_trait;
use cosky_core::{
    Accounts, Result, UserName,
    account::{Account, ApiToken, LOGIN_ATTEMPTS, LOGIN_FREEZE_SECONDS, LoginAttempt},
};

use crate::{
    Embedded,
    batch::{Batch, Effect, time},
    memory::millis,
    row::{self, Key, Row},
};

/// Failed logins by name, in memory only. A restart forgets them; whoever can restart the server needs no guessing.
#[derive(Default)]
pub(crate) struct LoginCounters {
    /// Of users that exist: as many as there are accounts. None is dropped before its time, or guessing for invented
    /// names would buy new guesses for a real one.
    known: Mutex<HashMap<UserName, Counter>>,
    /// Of other names, bounded; the one that ends first makes room.
    unknown: Mutex<HashMap<UserName, Counter>>,
}

struct Counter {
    tries: u32,
    /// Milliseconds on the engine's clock.
    until: u64,
}

#[async_trait]
impl Accounts for Embedded {
    async fn account(&self, user: &UserName) -> Result<Option<Account>> {
        Ok(self.shared.read().accounts.get(user).cloned())
    }

    async fn add_account(&self, user: &UserName, password_hash: &str) -> Result<bool> {
        let (user, password_hash) = (user.clone(), password_hash.to_owned());
        self.write(move |batch| {
            if batch.has(&Key::Account(user.clone()))? {
                return Ok(false);
            }
            let count = batch.memory.accounts.len() + batch.growth.accounts;
            batch.check_limit("accounts", count, batch.limits.accounts)?;
            batch.growth.accounts += 1;
            put_account(batch, user, Account { password_hash, generation: 1 })?;
            Ok(true)
        })
        .await
    }

    async fn set_password(&self, user: &UserName, password_hash: &str) -> Result<bool> {
        let (user, password_hash) = (user.clone(), password_hash.to_owned());
        self.write(move |batch| {
            let Some(Row::Account(_, old)) = batch.row(&Key::Account(user.clone()))? else {
                return Ok(false);
            };
            put_account(batch, user, Account { password_hash, generation: old.generation + 1 })?;
            Ok(true)
        })
        .await
    }

    async fn signing_key(&self, candidate: &[u8]) -> Result<Vec<u8>> {
        if let Some(key) = self.shared.read().signing_key.clone() {
            return Ok(key);
        }
        let candidate = candidate.to_vec();
        self.write(move |batch| {
            if let Some(Row::SigningKey(key)) = batch.row(&Key::Signing)? {
                return Ok(key);
            }
            batch.put(Key::Signing, &row::encode(&candidate))?;
            batch.effect(Effect::SetSigningKey(candidate.clone()));
            Ok(candidate)
        })
        .await
    }

    async fn login_attempt(&self, user: &UserName) -> Result<LoginAttempt> {
        let now = millis(self.shared.clock.now());
        let known = self.shared.read().accounts.contains_key(user);
        Ok(self.shared.logins.attempt(user, known, now, self.shared.limits.login_counters))
    }

    async fn login_succeeded(&self, user: &UserName) -> Result<()> {
        self.shared.logins.forget(user);
        Ok(())
    }

    async fn use_refresh_token(&self, token_id: &str, expires_at: u64) -> Result<bool> {
        let token_id = token_id.to_owned();
        self.write(move |batch| {
            let key = Key::UsedRefresh(token_id.clone());
            if batch.has(&key)? {
                return Ok(false);
            }
            forget_expired(batch)?;
            let count = batch.memory.used_refresh.len() + batch.growth.used_refresh;
            batch.check_limit("used refresh tokens", count, batch.limits.used_refresh_tokens)?;
            batch.growth.used_refresh += 1;
            batch.put(key, &time(expires_at))?;
            batch.effect(Effect::UseRefresh(token_id, expires_at));
            Ok(true)
        })
        .await
    }

    async fn api_tokens(&self) -> Result<Vec<ApiToken>> {
        let mut tokens: Vec<ApiToken> = self.shared.read().api_tokens.values().cloned().collect();
        tokens.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        Ok(tokens)
    }

    async fn add_api_token(&self, token: &ApiToken) -> Result<()> {
        let token = token.clone();
        self.write(move |batch| {
            let count = batch.memory.api_tokens.len() + batch.growth.api_tokens;
            batch.check_limit("API tokens", count, batch.limits.api_tokens)?;
            batch.growth.api_tokens += 1;
            batch.put(Key::ApiToken(token.id.clone()), &row::api_token(&token))?;
            batch.effect(Effect::AddApiToken(token));
            Ok(())
        })
        .await
    }

    async fn remove_api_token(&self, id: &str) -> Result<bool> {
        let id = id.to_owned();
        self.write(move |batch| {
            let there = batch.delete(Key::ApiToken(id.clone()))?;
            if there {
                batch.effect(Effect::RemoveApiToken(id));
            }
            Ok(there)
        })
        .await
    }
}

fn put_account(batch: &mut Batch<'_>, user: UserName, account: Account) -> Result<()> {
    batch.put(Key::Account(user.clone()), &row::account(&account))?;
    batch.effect(Effect::SetAccount(user, account));
    Ok(())
}

/// Used refresh tokens need to be remembered only as long as they would be good.
fn forget_expired(batch: &mut Batch<'_>) -> Result<()> {
    let now = batch.unix;
    let expired = batch.memory.used_refresh.iter().filter(|(_, at)| **at < now).map(|(id, _)| id.clone());
    for id in expired.take(100).collect::<Vec<_>>() {
        batch.delete(Key::UsedRefresh(id.clone()))?;
        batch.effect(Effect::ForgetRefresh(id));
    }
    Ok(())
}

impl LoginCounters {
    fn forget(&self, user: &UserName) {
        lock(&self.known).remove(user);
        lock(&self.unknown).remove(user);
    }

    /// The first tries restart the freeze; those beyond do not, so it always ends (compat §2.18).
    fn attempt(&self, user: &UserName, known: bool, now: u64, limit: usize) -> LoginAttempt {
        let mut counters = lock(if known { &self.known } else { &self.unknown });
        if !known && counters.len() >= limit && !counters.contains_key(user) {
            let first =
                counters.iter().min_by_key(|(_, counter)| counter.until).map(|(user, _)| user.clone());
            first.and_then(|first| counters.remove(&first));
        }
        let counter = counters.entry(user.clone()).or_insert(Counter { tries: 0, until: 0 });
        if counter.until <= now {
            counter.tries = 0;
        }
        counter.tries = counter.tries.saturating_add(1);
        if counter.tries <= LOGIN_ATTEMPTS {
            counter.until = now + LOGIN_FREEZE_SECONDS * 1000;
            return LoginAttempt::Allowed(counter.tries);
        }
        LoginAttempt::Frozen { seconds: (counter.until - now).div_ceil(1000) }
    }
}

fn lock(counters: &Mutex<HashMap<UserName, Counter>>) -> MutexGuard<'_, HashMap<UserName, Counter>> {
    counters.lock().expect("no code under this lock panics")
}
