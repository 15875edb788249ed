//! The user who may do everything. There is one from the first start on, and no password that anybody could know.

use std::sync::Arc;

use cosky_core::{
    Error, Store,
    account::{PASSWORD_CHARS, ROOT},
};

use super::{password, root_name, secret};

/// Makes the root account unless there is one: with `wanted` as its password, or with a random one of 20 characters,
/// which is returned to be shown once. Of two servers that start at once on one store, one makes it. Cancellation may
/// leave the account made and its password lost; [`reset_root`] makes a new one.
///
/// # Errors
/// [`Error::InvalidArgument`] of `root password` when `wanted` is shorter than [`PASSWORD_CHARS`]; what the store says.
pub async fn ensure_root(store: &Arc<dyn Store>, wanted: Option<&str>) -> Result<Option<String>, Error> {
    let root = root_name();
    if store.account(&root).await?.is_some() {
        return Ok(None);
    }
    let (password, generated) = match wanted {
        Some(password) if password.chars().count() < PASSWORD_CHARS => {
            return Err(Error::invalid(
                "root password",
                format!("needs at least {PASSWORD_CHARS} characters"),
            ));
        }
        Some(password) => (password.to_owned(), false),
        None => (secret::password(), true),
    };
    let added = store.add_account(&root, &password::hash(&password).await?).await?;
    if added {
        tracing::info!("the account of the user {ROOT} was made");
    }
    Ok(Some(password).filter(|_| added && generated))
}

/// Gives root a new random password of 20 characters and returns it to be shown once. Ends root's sessions and forgets
/// failed logins; API tokens stay.
///
/// # Errors
/// What the store says. After [`Error::Unavailable`] with `maybe_applied` the password may be one that nobody knows:
/// do it again.
pub async fn reset_root(store: &Arc<dyn Store>) -> Result<String, Error> {
    let root = root_name();
    let password = secret::password();
    let hash = password::hash(&password).await?;
    if !store.set_password(&root, &hash).await? && !store.add_account(&root, &hash).await? {
        let reason = "another process made the account of root at the same moment; try again".into();
        return Err(Error::Conflict { reason });
    }
    store.login_succeeded(&root).await?;
    Ok(password)
}
