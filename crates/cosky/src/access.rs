//! What a server hands out to prove who asks: logins and API tokens.

use std::{fmt, time::Duration};

use cosky_core::{
    Error as CoreError, UserName,
    wire::{self, LoginBody, NewTokenBody, TokenBody, TokenPair},
};
use reqwest::{Method, StatusCode};

use crate::{
    Result, decode,
    transport::{Call, Transport},
};

/// How long a login may take over all addresses: a server checks few passwords at once, and lets the others wait.
const LOGIN: Duration = Duration::from_secs(10);

/// Logins and API tokens of one server, over the client's addresses. Made by [`crate::Cosky::access`]; cheap to clone.
///
/// Clients that hold a user and password ([`crate::Connect::login`]) log in by themselves. This is for programs that
/// keep a login for others, and for those that manage API tokens.
#[derive(Clone)]
pub struct Access {
    transport: Transport,
}

/// A login or refresh that gave no tokens.
pub(crate) struct Denied {
    pub(crate) why: Why,
    pub(crate) error: CoreError,
    /// How long the server asked to stay away.
    pub(crate) retry_after: Option<Duration>,
}

/// What a login or refresh that gave no tokens means for the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// The password is wrong, or the pair buys nothing (any more).
    Refused,
    /// Too many wrong passwords were tried; nobody looked at this one.
    Frozen,
    /// No server carried it out, so the same may be sent again.
    NotDone,
    /// Whether it was carried out is not known.
    Unknown,
}

impl Access {
    pub(crate) fn new(transport: Transport) -> Self {
        Self { transport }
    }

    /// Buys a pair of tokens for a password. The client's own credential is neither sent nor changed.
    ///
    /// # Errors
    /// [`cosky_core::Error::Unauthorized`] with the server's words when the password is wrong or the account is frozen after
    /// too many wrong ones; [`cosky_core::Error::Exhausted`] when the server has too many logins to check at the moment;
    /// [`cosky_core::Error::Unavailable`] when no server answers within 10 s. A pair of a call that is cancelled is lost, and
    /// worth nothing to anybody else.
    pub async fn log_in(&self, user: &UserName, password: &str) -> Result<TokenPair> {
        Ok(log_in(&self.transport, user, password).await.map_err(|denied| denied.error)?)
    }

    /// Buys a new pair for an old one, whose access token may have expired. A pair buys one other: keep the new one
    /// before anything else is done with it.
    ///
    /// # Errors
    /// [`cosky_core::Error::Unauthorized`] when the pair buys nothing (any more), so that a password is needed;
    /// [`cosky_core::Error::Unavailable`] when no server answers: with `maybe_applied` the pair may be spent, as
    /// it may be when the call is cancelled; without, it may be sent again.
    pub async fn refresh(&self, user: &UserName, pair: &TokenPair) -> Result<TokenPair> {
        Ok(refresh(&self.transport, user, pair).await.map_err(|denied| denied.error)?)
    }

    /// All API tokens of the caller, oldest first, without their secrets.
    ///
    /// # Errors
    /// [`cosky_core::Error::Unauthorized`], [`cosky_core::Error::Forbidden`], [`cosky_core::Error::Unavailable`].
    pub async fn tokens(&self) -> Result<Vec<TokenBody>> {
        let answer = self.transport.call(&Call::new(Method::GET, "/v1/tokens".into())).await?;
        Ok(decode::json(&answer)?)
    }

    /// Makes an API token that acts for the caller: for ever, or for `good` in whole seconds. Its secret is in the
    /// answer, this once.
    ///
    /// # Errors
    /// As [`Access::tokens`]; [`cosky_core::Error::InvalidArgument`] of `name` or `expiresInSeconds`;
    /// [`cosky_core::Error::Exhausted`] when there are too many. After `Unavailable` with `maybe_applied`, or when the call is
    /// cancelled, a token that nobody knows may be in the list.
    pub async fn create_token(&self, name: &str, good: Option<Duration>) -> Result<TokenBody> {
        let body =
            NewTokenBody { name: name.to_owned(), expires_in_seconds: good.map(|good| good.as_secs()) };
        let call = Call::new(Method::POST, "/v1/tokens".into()).body(&body);
        Ok(decode::json(&self.transport.call(&call).await?)?)
    }

    /// Revokes an API token by its id; false when the caller has none of that id. Counts at once on the server that
    /// answers, and within 5 s on others.
    ///
    /// # Errors
    /// As [`Access::tokens`]. After `Unavailable` with `maybe_applied`, or when the call is cancelled, look at the list.
    pub async fn revoke_token(&self, id: &str) -> Result<bool> {
        let mut path = "/v1/tokens/".to_owned();
        wire::encode_segment(&mut path, id);
        Ok(decode::json(&self.transport.call(&Call::new(Method::DELETE, path)).await?)?)
    }
}

/// As [`Access::log_in`].
pub(crate) async fn log_in(
    transport: &Transport,
    user: &UserName,
    password: &str,
) -> Result<TokenPair, Denied> {
    let body = LoginBody { password: password.to_owned() };
    ask(transport, user, "login", |call| call.body(&body).within(LOGIN)).await
}

/// As [`Access::refresh`].
pub(crate) async fn refresh(
    transport: &Transport,
    user: &UserName,
    pair: &TokenPair,
) -> Result<TokenPair, Denied> {
    ask(transport, user, "refresh", |call| call.body(pair)).await
}

async fn ask(
    transport: &Transport,
    user: &UserName,
    action: &str,
    fill: impl FnOnce(Call) -> Call,
) -> Result<TokenPair, Denied> {
    let mut path = "/v1/authenticate/".to_owned();
    wire::encode_segment(&mut path, user.as_str());
    path.push('/');
    path.push_str(action);
    // A write like any other: one whose answer was lost is not sent again, since a pair buys one other.
    let call = fill(Call::new(Method::POST, path));
    let answer = transport.send(&call, None).await.map_err(|failure| Denied {
        why: match failure.error {
            CoreError::Unavailable { maybe_applied: false, .. } => Why::NotDone,
            _ => Why::Unknown,
        },
        error: failure.error,
        retry_after: failure.retry_after,
    })?;
    if answer.status == StatusCode::OK {
        let read = decode::json(&answer);
        return read.map_err(|error| Denied { why: Why::Unknown, error, retry_after: None });
    }
    let body = decode::error_body(&answer);
    let (why, error) = match body.code.as_str() {
        "login_failed" | "refresh_failed" => (Why::Refused, CoreError::Unauthorized { reason: body.msg }),
        "account_frozen" => (Why::Frozen, CoreError::Unauthorized { reason: body.msg }),
        _ if answer.status == StatusCode::TOO_MANY_REQUESTS => (Why::NotDone, decode::refusal(&answer)),
        _ => (Why::Unknown, decode::refusal(&answer)),
    };
    Err(Denied { why, error, retry_after: decode::retry_after(&answer.headers) })
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Access").field(&self.transport).finish()
    }
}
