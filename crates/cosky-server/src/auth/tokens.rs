//! API tokens, for machines (design §5).

use axum::extract::State;
use cosky_core::{
    account::ApiToken,
    wire::{ErrorBody, NewTokenBody, TokenBody},
};
use utoipa_axum::{router::OpenApiRouter, routes};
use uuid::Uuid;

use super::{jwt::unix_now, secret};
use crate::{
    ApiError, ApiResult, AppState, Caller,
    extract::{Json, Path},
};

/// Characters of the longest name.
const NAME_CHARS: usize = 128;
/// Seconds of the longest life that is not for ever: ten years.
const LIFE_SECONDS: u64 = 10 * 366 * 86_400;

/// The routes, for those who are logged in.
pub(crate) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(revoke))
}

/// List API tokens
///
/// Without their secrets; expired ones are in the list until they are revoked.
#[utoipa::path(
    get,
    path = "/v1/tokens",
    tag = "tokens",
    responses((status = 200, description = "The caller's tokens, oldest first", body = Vec<TokenBody>))
)]
async fn list(State(state): State<AppState>, caller: Caller) -> ApiResult<Json<Vec<TokenBody>>> {
    let tokens = state.store.api_tokens().await?;
    Ok(Json(
        tokens.into_iter().filter(|token| token.user == caller.user).map(|token| body(token, None)).collect(),
    ))
}

/// Make an API token
///
/// It acts for the caller. The secret is in this answer and nowhere else. A server without authentication makes none.
#[utoipa::path(
    post,
    path = "/v1/tokens",
    tag = "tokens",
    request_body = NewTokenBody,
    responses(
        (status = 200, description = "The token with its secret", body = TokenBody),
        (status = 400, description = "`invalid_argument` of `name` or `expiresInSeconds`", body = ErrorBody),
        (status = 429, description = "`limit_reached`: too many tokens; revoke some", body = ErrorBody),
    )
)]
async fn create(
    State(state): State<AppState>,
    caller: Caller,
    Json(new): Json<NewTokenBody>,
) -> ApiResult<Json<TokenBody>> {
    if !state.config.auth {
        return Err(ApiError::forbidden(
            "without authentication no API tokens are made, since they would be root's for ever: start the server \
             with authentication",
        ));
    }
    check_name(&new.name)?;
    if new.expires_in_seconds.is_some_and(|seconds| !(1..=LIFE_SECONDS).contains(&seconds)) {
        return Err(ApiError::invalid("expiresInSeconds", "must be from 1 to 316224000 (ten years)"));
    }
    let secret = secret::api_token();
    let now = unix_now();
    let token = ApiToken {
        id: Uuid::now_v7().to_string(),
        name: new.name,
        user: caller.user,
        digest: secret::digest(&secret),
        created_at: now,
        expires_at: new.expires_in_seconds.map(|seconds| now + seconds),
    };
    state.store.add_api_token(&token).await?;
    state.auth.tokens_changed(None).await;
    tracing::info!(user.name = %token.user, token.id = %token.id, "an API token was made");
    Ok(Json(body(token, Some(secret))))
}

/// Revoke an API token
///
/// Requests with it are refused at once by this server and within 5 seconds by others; streams that were opened with it
/// end within 15 and 20 seconds.
#[utoipa::path(
    delete,
    path = "/v1/tokens/{id}",
    tag = "tokens",
    params(("id" = String, Path, description = "The token's id, not its secret")),
    responses((status = 200, description = "`true`, or `false` when there is no such token", body = bool))
)]
async fn revoke(
    State(state): State<AppState>,
    caller: Caller,
    Path(id): Path<String>,
) -> ApiResult<Json<bool>> {
    let tokens = state.store.api_tokens().await?;
    if !tokens.iter().any(|token| token.id == id && token.user == caller.user) {
        return Ok(Json(false));
    }
    let revoked = state.store.remove_api_token(&id).await?;
    state.auth.tokens_changed(Some(&id)).await;
    tracing::info!(user.name = %caller.user, token.id = %id, "an API token was revoked");
    Ok(Json(revoked))
}

fn check_name(name: &str) -> ApiResult<()> {
    if name.trim().is_empty() {
        return Err(ApiError::invalid("name", "must not be blank"));
    }
    if name.chars().count() > NAME_CHARS {
        return Err(ApiError::invalid("name", "is longer than 128 characters"));
    }
    if name.chars().any(char::is_control) {
        return Err(ApiError::invalid("name", "must not contain control characters"));
    }
    Ok(())
}

fn body(token: ApiToken, secret: Option<String>) -> TokenBody {
    TokenBody {
        id: token.id,
        name: token.name,
        user: token.user.to_string(),
        created_at: token.created_at,
        expires_at: token.expires_at,
        token: secret,
    }
}
