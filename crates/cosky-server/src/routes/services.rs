//! A namespace's list of services (compat §4.7).

use axum::{extract::State, response::IntoResponse};
use cosky_core::wire::ServiceStatBody;

use super::{
    Refused, counted,
    place::{InNamespace, InService},
    read::Seen,
};
use crate::{ApiResult, AppState, extract::Json, metrics::Operation};

/// Services
///
/// Sorted, those without instances included.
#[utoipa::path(
    get, path = "/v1/namespaces/{namespace}/services", tag = "services", operation_id = "list_services",
    params(("namespace" = String, Path, description = "The namespace")),
    responses(
        (status = 200, description = "Service ids", body = Vec<String>, headers(
            ("X-Cosky-Index" = String, description = "The last change that is in the answer, opaque"),
            ("X-Cosky-Age" = u64, description = "Age of the answer in milliseconds, 0 when live"),
            ("X-Cosky-State" = String, description = "`live`, `stale` or `protected`"),
        )),
        Refused
    )
)]
pub(super) async fn list(
    State(state): State<AppState>,
    InNamespace(namespace): InNamespace,
) -> ApiResult<impl IntoResponse> {
    let read = counted(&state, Operation::Read, state.store.services(&namespace).await)?;
    Ok((Seen::from(&read), Json(read.value)))
}

/// Live instances of each service
///
/// Sorted by service, those without instances included.
#[utoipa::path(
    get, path = "/v1/namespaces/{namespace}/services/stats", tag = "services", operation_id = "service_stats",
    params(("namespace" = String, Path, description = "The namespace")),
    responses(
        (status = 200, description = "Numbers by service", body = Vec<ServiceStatBody>, headers(
            ("X-Cosky-Index" = String, description = "The last change that is in the answer, opaque"),
            ("X-Cosky-Age" = u64, description = "Age of the answer in milliseconds, 0 when live"),
            ("X-Cosky-State" = String, description = "`live`, `stale` or `protected`"),
        )),
        Refused
    )
)]
pub(super) async fn stats(
    State(state): State<AppState>,
    InNamespace(namespace): InNamespace,
) -> ApiResult<impl IntoResponse> {
    let read = counted(&state, Operation::Read, state.store.service_stats(&namespace).await)?;
    let seen = Seen::from(&read);
    Ok((seen, Json(read.value.into_iter().map(ServiceStatBody::from).collect::<Vec<_>>())))
}

/// List a service
///
/// With or without instances; a registration does it by itself.
#[utoipa::path(
    put, path = "/v1/namespaces/{namespace}/services/{serviceId}", tag = "services", operation_id = "set_service",
    params(
        ("namespace" = String, Path, description = "The namespace"),
        ("serviceId" = String, Path, description = "The service; a `/` in it is sent as `%2F`")
    ),
    responses((status = 200, description = "Whether it was new", body = bool), Refused)
)]
pub(super) async fn set(
    State(state): State<AppState>,
    InService(namespace, service): InService,
) -> ApiResult<Json<bool>> {
    counted(&state, Operation::SetService, state.store.set_service(&namespace, &service).await).map(Json)
}

/// Unlist a service
///
/// Refused by `false` while it has a live instance.
#[utoipa::path(
    delete, path = "/v1/namespaces/{namespace}/services/{serviceId}", tag = "services",
    operation_id = "remove_service",
    params(
        ("namespace" = String, Path, description = "The namespace"),
        ("serviceId" = String, Path, description = "The service; a `/` in it is sent as `%2F`")
    ),
    responses(
        (status = 200, description = "False when a live instance stands against it; true otherwise, also for a \
            service that was never there", body = bool),
        Refused
    )
)]
pub(super) async fn remove(
    State(state): State<AppState>,
    InService(namespace, service): InService,
) -> ApiResult<Json<bool>> {
    counted(&state, Operation::RemoveService, state.store.remove_service(&namespace, &service).await)
        .map(Json)
}
