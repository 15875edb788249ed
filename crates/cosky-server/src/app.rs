//! All routes and layers put together, without sockets.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, middleware::from_fn_with_state};
use cosky_core::{Accounts, Error, Store, wire::NO_SUCH_PATH};
use prometheus_client::registry::Registry;
use utoipa_axum::router::OpenApiRouter;

use crate::{
    ApiError, AppState, Config, Metrics, Streams,
    auth::{self, Auth, root::ensure_root},
    health, middleware, openapi, routes, scrape,
};

/// Why a server cannot be started, or cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The store refused what every server needs (the root account, the signing key, the list of tokens), or root's
    /// password is too short.
    #[error("cannot start: {0}")]
    Store(#[from] Error),
    /// The address for metrics cannot be used.
    #[error("cannot listen on {address} for metrics: {source}")]
    MetricsListen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// Without authentication everybody who reaches the address may do everything.
    #[error("without authentication the address must be a loopback one, and {address} is not")]
    OpenToAll {
        /// The address.
        address: SocketAddr,
    },
    /// Tokens would be over before they are used.
    #[error("access and refresh tokens must be good for at least one second")]
    TokenTtl,
    /// The listener cannot be used.
    #[error("the listener cannot be used: {0}")]
    Listener(std::io::Error),
}

/// The server without sockets, for tests and for [`crate::serve`]. Makes the root account and the signing key at the
/// first start.
///
/// # Errors
/// [`ServeError::Store`] and [`ServeError::TokenTtl`].
pub async fn app(config: Config, store: Arc<dyn Store>) -> Result<(Router, AppState), ServeError> {
    app_with(config, store, Router::new()).await
}

/// As [`app`], with further routes that pass the same layers and need a credential like all others.
///
/// # Errors
/// [`ServeError::Store`] and [`ServeError::TokenTtl`].
///
/// # Panics
/// When a further route has the path and method of one of ours.
pub async fn app_with(
    config: Config,
    store: Arc<dyn Store>,
    further: Router<AppState>,
) -> Result<(Router, AppState), ServeError> {
    if config.access_token_ttl.min(config.refresh_token_ttl) < Duration::from_secs(1) {
        return Err(ServeError::TokenTtl);
    }
    if config.auth
        && let Some(password) = ensure_root(&store, config.root_password.as_deref()).await?
    {
        (config.announce)(&password);
    }
    routes::list_system(&*store).await?;
    let mut registry = Registry::default();
    let metrics = Arc::new(Metrics::register(&mut registry));
    Metrics::register_store(&mut registry, Arc::clone(&store));
    let state = AppState {
        auth: Arc::new(Auth::open(Arc::clone(&store) as Arc<dyn Accounts>, &config).await?),
        streams: Streams::new(config.stream_age, &config.limits),
        registry: Arc::new(registry),
        shared: Arc::default(),
        config: Arc::new(config),
        metrics,
        store,
    };
    Ok((router(&state, further), state))
}

/// Open routes beside closed ones. The door stands around the closed ones and around everything that matches nothing,
/// so a route is closed unless it was put among the open ones.
fn router(state: &AppState, further: Router<AppState>) -> Router {
    let open =
        OpenApiRouter::with_openapi(openapi::base()).merge(health::router()).merge(auth::login::router());
    let mut closed = OpenApiRouter::new().merge(routes::router()).merge(auth::tokens::router());
    if state.config.metrics_listen.is_none() {
        closed = closed.merge(scrape::router());
    }
    let (open, mut document) = open.split_for_parts();
    let (closed, described) = closed.split_for_parts();
    document.merge(described);
    openapi::complete(&mut document);

    let open = open.merge(openapi::router(&document)).method_not_allowed_fallback(method_not_allowed);
    let closed = closed
        .merge(further)
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(unknown_path)
        .layer(from_fn_with_state(state.clone(), auth::layer::authenticate));
    let all = open.merge(closed);
    let all = middleware::around(all, Arc::clone(&state.metrics), Arc::clone(&state.config));
    all.with_state(state.clone())
}

async fn unknown_path() -> ApiError {
    ApiError::not_found(format!("{NO_SUCH_PATH}; /swagger-ui/ shows those that there are"))
}

async fn method_not_allowed() -> ApiError {
    let msg = "the path does not take this method; the Allow header names those that it takes";
    ApiError::new(http::StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", msg)
}
