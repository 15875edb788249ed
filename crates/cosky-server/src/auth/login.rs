//! Login, and refresh with rotation (compat §4.3).

use axum::extract::State;
use cosky_core::{
    Error, UserName,
    account::LoginAttempt,
    wire::{ErrorBody, LoginBody, TokenPair},
};
use http::StatusCode;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    jwt::{Claims, unix_now},
    password::Turn,
    spent::Taken,
};
use crate::{
    ApiError, ApiResult, AppState,
    extract::{Json, Path},
    metrics::LoginResult,
};

/// Why there are no tokens: for the metric and for the caller.
struct Refused {
    result: LoginResult,
    answer: ApiError,
}

/// The two routes, open to everybody.
pub(crate) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(login)).routes(routes!(refresh))
}

/// Log in
///
/// Answers a pair of tokens. The access token goes into `Authorization: Bearer …`; the refresh token buys one new
/// pair. After 10 failed tries the account is frozen for 15 minutes after the last of them; what is tried while it is
/// frozen does not make it longer.
#[utoipa::path(
    post,
    path = "/v1/authenticate/{username}/login",
    tag = "authenticate",
    security(()),
    params(("username" = String, Path, description = "The user's name")),
    request_body = LoginBody,
    responses(
        (status = 200, description = "A pair of tokens", body = TokenPair),
        (status = 400, description = "`login_failed`: wrong user or password; `account_frozen`: too many of them, \
            `Retry-After` says for how many seconds", body = ErrorBody),
        (status = 429, description = "`limit_reached`: too many logins at once; not counted as a try",
            body = ErrorBody),
    )
)]
async fn login(
    State(state): State<AppState>,
    Path(username): Path<String>,
    Json(body): Json<LoginBody>,
) -> ApiResult<Json<TokenPair>> {
    answer(&state, try_login(&state, &username, body.password).await)
}

/// Renew a pair of tokens
///
/// The access token may have expired, the refresh token not. Each refresh token buys one pair.
#[utoipa::path(
    post,
    path = "/v1/authenticate/{username}/refresh",
    tag = "authenticate",
    security(()),
    params(("username" = String, Path, description = "The user's name")),
    request_body = TokenPair,
    responses(
        (status = 200, description = "A new pair of tokens", body = TokenPair),
        (status = 400, description = "`refresh_failed`: the pair is not good (any more), or of another user",
            body = ErrorBody),
    )
)]
async fn refresh(
    State(state): State<AppState>,
    Path(username): Path<String>,
    Json(body): Json<TokenPair>,
) -> ApiResult<Json<TokenPair>> {
    answer(&state, try_refresh(&state, &username, &body).await)
}

/// First the turn, then the try: who waits is not counted yet, so that a fleet which logs in at once with the right
/// password freezes nobody, and who is turned away never is.
async fn try_login(state: &AppState, username: &str, password: String) -> Result<TokenPair, Refused> {
    let user = UserName::new(username)?;
    let turn = state.auth.passwords.turn().await?;
    // In a task of its own, because a client that goes away must not leave a try counted whose success was never told.
    let tried = tokio::spawn(check(turn, state.clone(), user, password));
    tried.await.map_err(|_| ApiError::internal())?
}

async fn check(turn: Turn, state: AppState, user: UserName, password: String) -> Result<TokenPair, Refused> {
    if let LoginAttempt::Frozen { seconds } = state.store.login_attempt(&user).await? {
        return Err(Refused { result: LoginResult::Frozen, answer: frozen(seconds) });
    }
    let account = state.store.account(&user).await?;
    let (hash, generation) = account.map(|account| (account.password_hash, account.generation)).unzip();
    let right = turn.verify(password, hash).await?;
    let Some(generation) = generation.filter(|_| right) else {
        return Err(login_failed("wrong user or password").into());
    };
    state.store.login_succeeded(&user).await?;
    Ok(state.auth.keys.issue(&user, generation))
}

async fn try_refresh(state: &AppState, username: &str, pair: &TokenPair) -> Result<TokenPair, Refused> {
    let user = UserName::new(username)?;
    let refused = |_| refresh_failed("the tokens are not good; log in again");
    let access = state.auth.keys.access_even_expired(&pair.access_token).map_err(refused)?;
    let refresh = state.auth.keys.refresh(&pair.refresh_token).map_err(refused)?;
    if refresh.sub != access.jti {
        return Err(refresh_failed("the two tokens do not belong together").into());
    }
    if access.sub != user.as_str() {
        return Err(refresh_failed("the tokens belong to another user than the path names").into());
    }
    let generation = state.auth.generation(&user).await?;
    if generation != Some(access.generation) || generation != Some(refresh.generation) {
        return Err(refresh_failed("the session has ended; log in again").into());
    }
    if !spend(state, &refresh).await? {
        return Err(refresh_failed("the refresh token was used before; log in again").into());
    }
    Ok(state.auth.keys.issue(&user, access.generation))
}

/// Uses a refresh token; false when it was used before. While the store refuses writes, this server alone remembers it.
/// A client that goes away meanwhile has used its token, as the store may carry out what it was told.
async fn spend(state: &AppState, refresh: &Claims) -> Result<bool, Error> {
    let spent = &state.auth.spent;
    // Before the store is asked: of two at once it may take the one and refuse the other.
    let taken = spent.take(&refresh.jti, refresh.exp, unix_now());
    if taken == Taken::Before {
        return Ok(false);
    }
    match state.store.use_refresh_token(&refresh.jti, refresh.exp).await {
        Err(Error::Unavailable { .. }) if taken == Taken::Now => Ok(true),
        answer => {
            if taken == Taken::Now {
                spent.give_back(&refresh.jti);
            }
            answer
        }
    }
}

fn answer(state: &AppState, tried: Result<TokenPair, Refused>) -> ApiResult<Json<TokenPair>> {
    state.metrics.login(tried.as_ref().map_or_else(|refused| refused.result, |_| LoginResult::Ok));
    tried.map(Json).map_err(|refused| refused.answer)
}

/// A word of its own, so that a client knows that another password would not help.
fn frozen(seconds: u64) -> ApiError {
    let minutes = seconds.div_ceil(60);
    let unit = if minutes == 1 { "minute" } else { "minutes" };
    let msg = format!("the account is frozen after too many failed logins; try again in {minutes} {unit}");
    ApiError::new(StatusCode::BAD_REQUEST, "account_frozen", msg).retry_after(seconds)
}

fn login_failed(msg: &'static str) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "login_failed", msg)
}

fn refresh_failed(msg: &'static str) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "refresh_failed", msg)
}

impl From<ApiError> for Refused {
    fn from(answer: ApiError) -> Self {
        let failed = answer.status().is_server_error();
        Self { result: if failed { LoginResult::Failed } else { LoginResult::Refused }, answer }
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        ApiError::from(error).into()
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use cosky_core::account::{LOGIN_ATTEMPTS, ROOT};
    use cosky_embedded::{Embedded, Options};

    use super::*;
    use crate::Config;

    #[tokio::test]
    async fn clients_that_do_not_wait_for_their_login_freeze_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Embedded::open(Options::new(dir.path())).await.unwrap());
        let config = Config { root_password: Some("eight888".into()), ..Config::default() };
        let (_, state) = crate::app(config, store).await.unwrap();
        for _ in 0..=LOGIN_ATTEMPTS {
            let login = try_login(&state, ROOT, "eight888".into());
            assert!(tokio::time::timeout(Duration::ZERO, login).await.is_err(), "its hash has just begun");
            // Both turns are free when what has begun is over.
            let passwords = &state.auth.passwords;
            let turns = tokio::join!(passwords.turn(), passwords.turn());
            assert!(turns.0.is_ok() && turns.1.is_ok());
        }
        assert!(try_login(&state, ROOT, "eight888".into()).await.is_ok());
    }
}
