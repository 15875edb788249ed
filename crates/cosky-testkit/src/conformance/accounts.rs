//! Accounts, logins and tokens, of the engines that are stores.

use std::sync::Arc;

use cosky_core::{
    Error, UserName,
    account::{ApiToken, LOGIN_ATTEMPTS, LOGIN_FREEZE_SECONDS, LoginAttempt},
};

use super::world::{World, together};

/// More API tokens than any store keeps.
const TOKENS: usize = 100_000;

/// An account is added once and then not changed by adding it again.
pub async fn an_account_is_added_once(world: Arc<dyn World>) {
    let accounts = world.accounts();
    assert_eq!(accounts.account(&user("ana")).await.unwrap(), None);
    assert!(accounts.add_account(&user("ana"), "$argon2id$one").await.unwrap());
    let first = accounts.account(&user("ana")).await.unwrap().unwrap();
    assert_eq!(first.password_hash, "$argon2id$one");
    assert!(!accounts.add_account(&user("ana"), "$argon2id$two").await.unwrap());
    assert_eq!(accounts.account(&user("ana")).await.unwrap(), Some(first));
    assert_eq!(accounts.account(&user("Ana")).await.unwrap(), None, "names are taken as they are");
}

/// A new password raises the generation, which ends every session; nobody gets an account that way.
pub async fn a_new_password_raises_the_generation(world: Arc<dyn World>) {
    let accounts = world.accounts();
    assert!(!accounts.set_password(&user("ana"), "$argon2id$one").await.unwrap());
    assert_eq!(accounts.account(&user("ana")).await.unwrap(), None);
    accounts.add_account(&user("ana"), "$argon2id$one").await.unwrap();
    accounts.add_account(&user("bob"), "$argon2id$bob").await.unwrap();
    let bob = accounts.account(&user("bob")).await.unwrap();
    let mut generation = accounts.account(&user("ana")).await.unwrap().unwrap().generation;
    for hash in ["$argon2id$two", "$argon2id$two", "$argon2id$three"] {
        assert!(accounts.set_password(&user("ana"), hash).await.unwrap());
        let account = accounts.account(&user("ana")).await.unwrap().unwrap();
        assert_eq!(account.password_hash, hash);
        assert!(account.generation > generation, "also when the hash is the same");
        generation = account.generation;
    }
    assert_eq!(accounts.account(&user("bob")).await.unwrap(), bob);
}

/// Of many that add one account at once one did it, and its password is the one that counts.
pub async fn one_of_many_adds_an_account(world: Arc<dyn World>) {
    let accounts = world.accounts();
    let add = |n: usize| {
        let accounts = Arc::clone(&accounts);
        async move { accounts.add_account(&user("ana"), &n.to_string()).await.unwrap() }
    };
    let added = together(8, add).await;
    assert_eq!(added.iter().filter(|added| **added).count(), 1);
    let winner = added.iter().position(|added| *added).unwrap();
    assert_eq!(accounts.account(&user("ana")).await.unwrap().unwrap().password_hash, winner.to_string());
}

/// The first candidate becomes the signing key, and everybody gets that one from then on.
pub async fn there_is_one_signing_key(world: Arc<dyn World>) {
    let accounts = world.accounts();
    let propose = |n: usize| {
        let accounts = Arc::clone(&accounts);
        async move { accounts.signing_key(&[u8::try_from(n).unwrap(); 32]).await.unwrap() }
    };
    let keys = together(8, propose).await;
    assert!(keys.iter().all(|key| *key == keys[0] && key.len() == 32), "{keys:?}");
    assert_eq!(accounts.signing_key(&[99; 32]).await.unwrap(), keys[0]);
}

/// Ten tries are counted, more are frozen; success forgets them; users, known or not, are counted apart.
pub async fn tries_are_counted_and_frozen(world: Arc<dyn World>) {
    let accounts = world.accounts();
    accounts.add_account(&user("ana"), "$argon2id$one").await.unwrap();
    for known in ["ana", "nobody"] {
        for n in 1..=LOGIN_ATTEMPTS {
            let attempt = accounts.login_attempt(&user(known)).await.unwrap();
            assert_eq!(attempt, LoginAttempt::Allowed(n), "{known}");
        }
        for _ in 0..3 {
            match accounts.login_attempt(&user(known)).await.unwrap() {
                LoginAttempt::Frozen { seconds } => {
                    assert!((1..=LOGIN_FREEZE_SECONDS).contains(&seconds), "{seconds}")
                }
                allowed @ LoginAttempt::Allowed(_) => panic!("{known}: {allowed:?}"),
            }
        }
    }
    accounts.login_succeeded(&user("ana")).await.unwrap();
    assert_eq!(accounts.login_attempt(&user("ana")).await.unwrap(), LoginAttempt::Allowed(1));
    let frozen = accounts.login_attempt(&user("nobody")).await.unwrap();
    assert!(matches!(frozen, LoginAttempt::Frozen { .. }), "another's success forgives nothing: {frozen:?}");
}

/// Of more tries at once than are allowed, exactly ten are, each with its own number.
pub async fn tries_at_once_are_all_counted(world: Arc<dyn World>) {
    let accounts = world.accounts();
    let attempt = |_| {
        let accounts = Arc::clone(&accounts);
        async move { accounts.login_attempt(&user("ana")).await.unwrap() }
    };
    let mut numbers: Vec<_> = together(24, attempt)
        .await
        .into_iter()
        .filter_map(|attempt| match attempt {
            LoginAttempt::Allowed(n) => Some(n),
            LoginAttempt::Frozen { .. } => None,
        })
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, Vec::from_iter(1..=LOGIN_ATTEMPTS));
}

/// A refresh token buys once, whoever comes with it and how many at once.
pub async fn a_refresh_token_buys_once(world: Arc<dyn World>) {
    let accounts = world.accounts();
    // Further ahead than any store's wall clock, so that it does not run out meanwhile.
    let expires_at = 4_000_000_000;
    for token in ["one", "two"] {
        let spend = |_| {
            let accounts = Arc::clone(&accounts);
            async move { accounts.use_refresh_token(token, expires_at).await.unwrap() }
        };
        assert_eq!(together(8, spend).await.into_iter().filter(|bought| *bought).count(), 1);
        assert!(!accounts.use_refresh_token(token, expires_at).await.unwrap());
    }
}

/// API tokens are listed by creation, expired ones too, until they are revoked.
pub async fn api_tokens_are_listed_and_revoked(world: Arc<dyn World>) {
    let accounts = world.accounts();
    assert_eq!(accounts.api_tokens().await.unwrap(), []);
    assert!(!accounts.remove_api_token("a").await.unwrap());
    let tokens = [("c", 10, Some(20)), ("a", 30, None), ("b", 40, Some(u64::MAX))].map(token);
    for token in [&tokens[1], &tokens[2], &tokens[0]] {
        accounts.add_api_token(token).await.unwrap();
    }
    assert_eq!(accounts.api_tokens().await.unwrap(), tokens);
    assert!(accounts.remove_api_token("a").await.unwrap());
    assert!(!accounts.remove_api_token("a").await.unwrap());
    assert_eq!(accounts.api_tokens().await.unwrap(), [tokens[0].clone(), tokens[2].clone()]);
}

/// There is a limit of API tokens; at it nothing is added, and revoking one makes room.
pub async fn api_tokens_are_bounded(world: Arc<dyn World>) {
    let accounts = world.accounts();
    let mut count = 0;
    let refused = loop {
        match accounts.add_api_token(&token((&count.to_string(), 1, None))).await {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
        assert!(count < TOKENS, "the list of tokens has no limit");
    };
    assert!(matches!(refused, Error::Exhausted { limit, .. } if limit == count), "{refused:?} at {count}");
    assert_eq!(accounts.api_tokens().await.unwrap().len(), count);
    assert!(accounts.remove_api_token("0").await.unwrap());
    accounts.add_api_token(&token(("again", 1, None))).await.unwrap();
}

pub(super) fn user(name: &str) -> UserName {
    UserName::new(name).unwrap()
}

fn token((id, created_at, expires_at): (&str, u64, Option<u64>)) -> ApiToken {
    let mut digest = [0; 32];
    for (to, from) in digest.iter_mut().zip(id.bytes()) {
        *to = from;
    }
    ApiToken { id: id.into(), name: format!("token {id}"), user: user("ana"), digest, created_at, expires_at }
}
