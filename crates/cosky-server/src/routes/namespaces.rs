//! The index of namespaces (compat §4.5).

use std::sync::PoisonError;

use axum::{extract::State, response::IntoResponse};
use cosky_core::{Error, Namespace, Store};
use http::StatusCode;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{Refused, counted, place::InNamespace, read::Seen};
use crate::{
    ApiResult, AppState,
    extract::{Json, Query},
    metrics::Operation,
};

/// How a namespace is removed.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Removal {
    /// Whether its data goes as well. Refused while it has a live instance. Without it the data stays, as in CoSky.
    #[serde(default)]
    purge: bool,
}

impl super::Shared {
    fn current(&self) -> Namespace {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_current(&self, namespace: Namespace) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = namespace;
    }

    /// Refuses to remove what the server itself needs.
    fn check_removable(&self, namespace: &Namespace) -> Result<(), Error> {
        let reason = if namespace.as_str() == Namespace::SYSTEM {
            format!("namespace: {namespace} keeps the server's own data and cannot be removed")
        } else if *namespace == self.current() {
            format!(
                "namespace: {namespace} is this server's current namespace; make another one current before \
                 (PUT /v1/namespaces/current/{{namespace}})"
            )
        } else {
            return Ok(());
        };
        Err(Error::Conflict { reason })
    }
}

/// Lists the system namespace, as CoSky's servers do within seconds of their start (compat §4.6). Nothing is written
/// when it is listed already, so that a store which refuses writes can still be read.
pub(crate) async fn list_system(store: &dyn Store) -> Result<(), Error> {
    let system = super::system();
    if !store.namespaces().await?.contains(&system) {
        store.add_namespace(&system).await?;
    }
    Ok(())
}

/// Namespaces
///
/// Sorted. A namespace may hold data without being listed. An index is of one namespace, so the answer has none.
#[utoipa::path(
    get, path = "/v1/namespaces", tag = "namespaces", operation_id = "list_namespaces",
    responses(
        (status = 200, description = "Names", body = Vec<String>, headers(
            ("X-Cosky-Age" = u64, description = "Age of the answer in milliseconds, 0 when live"),
            ("X-Cosky-State" = String, description = "`live`, `stale` or `protected`"),
        )),
        Refused
    )
)]
pub(super) async fn list(State(state): State<AppState>) -> ApiResult<impl IntoResponse> {
    let namespaces = counted(&state, Operation::Read, state.store.namespaces().await)?;
    Ok((Seen::now(&*state.store), Json(namespaces)))
}

/// The current namespace
///
/// Of this server process, as plain text.
#[utoipa::path(
    get, path = "/v1/namespaces/current", tag = "namespaces", operation_id = "current_namespace",
    responses((status = 200, description = "A name", body = String, content_type = "text/plain"), Refused)
)]
pub(super) async fn current(State(state): State<AppState>) -> String {
    state.metrics.record(Operation::Read, &Ok(()));
    state.shared.current().to_string()
}

/// Make a namespace the current one
///
/// Of this server process, until it stops; other servers keep theirs. The namespace is listed.
#[utoipa::path(
    put, path = "/v1/namespaces/current/{namespace}", tag = "namespaces", operation_id = "set_current_namespace",
    params(("namespace" = String, Path, description = "The namespace")),
    responses((status = 200, description = "Done; no body"), Refused)
)]
pub(super) async fn set_current(
    State(state): State<AppState>,
    InNamespace(namespace): InNamespace,
) -> ApiResult<StatusCode> {
    counted(&state, Operation::AddNamespace, state.store.add_namespace(&namespace).await)?;
    state.shared.set_current(namespace);
    Ok(StatusCode::OK)
}

/// List a namespace
#[utoipa::path(
    put, path = "/v1/namespaces/{namespace}", tag = "namespaces", operation_id = "add_namespace",
    params(("namespace" = String, Path, description = "The namespace; advised to hold a hash tag, as in `shop-{eu}`")),
    responses((status = 200, description = "Whether it was new", body = bool), Refused)
)]
pub(super) async fn add(
    State(state): State<AppState>,
    InNamespace(namespace): InNamespace,
) -> ApiResult<Json<bool>> {
    counted(&state, Operation::AddNamespace, state.store.add_namespace(&namespace).await).map(Json)
}

/// Unlist a namespace
///
/// Its data stays, unless `purge` is set.
#[utoipa::path(
    delete, path = "/v1/namespaces/{namespace}", tag = "namespaces", operation_id = "remove_namespace",
    params(("namespace" = String, Path, description = "The namespace"), Removal),
    responses(
        (status = 200, description = "Whether it was listed, or had data when it is purged", body = bool),
        (status = 409, description = "It is the system namespace, the current one, or `purge` is set and it has a \
            live instance; nothing was removed", body = cosky_core::wire::ErrorBody),
        Refused
    )
)]
pub(super) async fn remove(
    State(state): State<AppState>,
    InNamespace(namespace): InNamespace,
    Query(removal): Query<Removal>,
) -> ApiResult<Json<bool>> {
    let removed = match state.shared.check_removable(&namespace) {
        Err(error) => Err(error),
        Ok(()) if removal.purge => {
            let purged = state.store.purge_namespace(&namespace).await;
            state.shared.dependencies.forget_all();
            purged
        }
        Ok(()) => state.store.remove_namespace(&namespace).await,
    };
    counted(&state, Operation::RemoveNamespace, removed).map(Json)
}
