//! A namespace in numbers, and who looks for whom (compat §4.6).

use axum::{extract::State, response::IntoResponse};
use cosky_core::wire::StatBody;

use super::{Refused, counted, place::InNamespace, read::Seen};
use crate::{ApiResult, AppState, extract::Json, metrics::Operation};

/// A namespace in numbers
///
/// Only live instances count, and only services with one are healthy.
#[utoipa::path(
    get, path = "/v1/namespaces/{namespace}/stat", tag = "stat", operation_id = "stat",
    params(("namespace" = String, Path, description = "The namespace")),
    responses(
        (status = 200, description = "Numbers", body = StatBody, headers(
            ("X-Cosky-Index" = String, description = "The last change that is in the answer, opaque"),
            ("X-Cosky-Age" = u64, description = "Age of the answer in milliseconds, 0 when live"),
            ("X-Cosky-State" = String, description = "`live`, `stale` or `protected`"),
        )),
        Refused
    )
)]
pub(super) async fn stat(
    State(state): State<AppState>,
    InNamespace(namespace): InNamespace,
) -> ApiResult<impl IntoResponse> {
    let read = counted(&state, Operation::Read, state.store.stat(&namespace).await)?;
    Ok((Seen::from(&read), Json(StatBody::from(read.value))))
}

/// Who looks for whom
///
/// Producers by consumer, sorted, as reads with `?consumer=NAME` have told since the namespace exists. No change of it is
/// told by a watch, so the answer has no index.
#[utoipa::path(
    get, path = "/v1/namespaces/{namespace}/stat/topology", tag = "stat", operation_id = "topology",
    params(("namespace" = String, Path, description = "The namespace")),
    responses(
        (status = 200, description = "Producers by consumer", body = std::collections::BTreeMap<String, Vec<String>>, headers(
            ("X-Cosky-Age" = u64, description = "Age of the answer in milliseconds, 0 when live"),
            ("X-Cosky-State" = String, description = "`live`, `stale` or `protected`"),
        )),
        Refused
    )
)]
pub(super) async fn topology(
    State(state): State<AppState>,
    InNamespace(namespace): InNamespace,
) -> ApiResult<impl IntoResponse> {
    let topology = counted(&state, Operation::Read, state.store.topology(&namespace).await)?;
    Ok((Seen::now(&*state.store), Json(topology)))
}
