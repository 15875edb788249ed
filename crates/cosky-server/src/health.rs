//! Health, from memory: no route here waits for the store.

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use cosky_core::{StoreState, wire::HealthBody};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::AppState;

/// Bytes that must be free on the store's disk: 64 MiB.
const DISK_FREE: u64 = 64 << 20;
/// The content type of Spring Boot's actuator, which CoSky answers with.
const ACTUATOR: HeaderValue = HeaderValue::from_static("application/vnd.spring-boot.actuator.v3+json");

/// The indicators that fail, by name.
const STORE: &str = "store";
const DISK: &str = "disk";
const DRAINING: &str = "draining";

/// The body of `/actuator/health`.
#[derive(Serialize)]
struct ActuatorBody {
    groups: [&'static str; 2],
    #[serde(flatten)]
    health: HealthBody,
}

/// The routes, open to everybody.
pub(crate) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(livez))
        .routes(routes!(readyz))
        .routes(routes!(health))
        .routes(routes!(chassis_readiness))
        .routes(routes!(v1_health))
        .routes(routes!(actuator_health))
        .routes(routes!(actuator_liveness))
        .routes(routes!(actuator_readiness))
}

/// Is the process alive?
#[utoipa::path(
    get,
    path = "/livez",
    tag = "health",
    security(()),
    responses((status = 200, description = "It is; says nothing of the store", body = HealthBody))
)]
async fn livez() -> Json<HealthBody> {
    Json(up())
}

/// Should traffic be sent here?
///
/// 200 also while the store refuses writes but reads can be answered: the status is then `DEGRADED`.
#[utoipa::path(
    get,
    path = "/readyz",
    tag = "health",
    security(()),
    responses(
        (status = 200, description = "`UP` or `DEGRADED`", body = HealthBody),
        (status = 503, description = "The server is draining", body = HealthBody),
    )
)]
async fn readyz(State(state): State<AppState>) -> (StatusCode, Json<HealthBody>) {
    let (status, body) = readiness(&state);
    (status, Json(body))
}

/// Is everything well?
///
/// Clients choose a server by this.
#[utoipa::path(
    get,
    path = "/health",
    tag = "health",
    security(()),
    responses(
        (status = 200, description = "`UP`", body = HealthBody),
        (status = 503, description = "`DOWN`, with the indicators that fail", body = HealthBody),
    )
)]
async fn health(State(state): State<AppState>) -> (StatusCode, Json<HealthBody>) {
    let (status, body) = full(&state);
    (status, Json(body))
}

/// Is everything well? (ServiceComb)
#[utoipa::path(
    get,
    path = "/v4/default/registry/health/readiness",
    tag = "health",
    security(()),
    responses(
        (status = 200, description = "`UP`", body = HealthBody),
        (status = 503, description = "`DOWN`, with the indicators that fail", body = HealthBody),
    )
)]
async fn chassis_readiness(State(state): State<AppState>) -> (StatusCode, Json<HealthBody>) {
    let (status, body) = full(&state);
    (status, Json(body))
}

/// Is everything well? (ServiceComb's configuration centre)
#[utoipa::path(
    get,
    path = "/v1/health",
    tag = "health",
    security(()),
    responses(
        (status = 200, description = "`UP`", body = HealthBody),
        (status = 503, description = "`DOWN`, with the indicators that fail", body = HealthBody),
    )
)]
async fn v1_health(State(state): State<AppState>) -> (StatusCode, Json<HealthBody>) {
    let (status, body) = full(&state);
    (status, Json(body))
}

/// Is everything well? (CoSky)
#[utoipa::path(
    get,
    path = "/actuator/health",
    tag = "health",
    security(()),
    responses(
        (status = 200, description = "`UP`", body = HealthBody,
            content_type = "application/vnd.spring-boot.actuator.v3+json"),
        (status = 503, description = "`DOWN`, with the indicators that fail", body = HealthBody,
            content_type = "application/vnd.spring-boot.actuator.v3+json"),
    )
)]
async fn actuator_health(State(state): State<AppState>) -> Response {
    let (status, health) = full(&state);
    actuator(status, ActuatorBody { groups: ["liveness", "readiness"], health })
}

/// Is the process alive? (CoSky)
#[utoipa::path(
    get,
    path = "/actuator/health/liveness",
    tag = "health",
    security(()),
    responses((status = 200, description = "It is; says nothing of the store", body = HealthBody,
        content_type = "application/vnd.spring-boot.actuator.v3+json"))
)]
async fn actuator_liveness() -> Response {
    actuator(StatusCode::OK, up())
}

/// Should traffic be sent here? (CoSky)
#[utoipa::path(
    get,
    path = "/actuator/health/readiness",
    tag = "health",
    security(()),
    responses(
        (status = 200, description = "`UP` or `DEGRADED`", body = HealthBody,
            content_type = "application/vnd.spring-boot.actuator.v3+json"),
        (status = 503, description = "The server is draining", body = HealthBody,
            content_type = "application/vnd.spring-boot.actuator.v3+json"),
    )
)]
async fn actuator_readiness(State(state): State<AppState>) -> Response {
    let (status, body) = readiness(&state);
    actuator(status, body)
}

/// 503 as soon as anything fails, naming it.
fn full(state: &AppState) -> (StatusCode, HealthBody) {
    let failed = failed(state);
    if failed.is_empty() {
        return (StatusCode::OK, up());
    }
    (StatusCode::SERVICE_UNAVAILABLE, HealthBody { status: "DOWN".into(), failed })
}

/// 503 only while draining: a server that can still answer reads is better than none.
fn readiness(state: &AppState) -> (StatusCode, HealthBody) {
    let failed = failed(state);
    if failed.is_empty() {
        (StatusCode::OK, up())
    } else if state.streams.draining().is_cancelled() {
        (StatusCode::SERVICE_UNAVAILABLE, HealthBody { status: "DOWN".into(), failed })
    } else {
        (StatusCode::OK, HealthBody { status: "DEGRADED".into(), failed })
    }
}

fn failed(state: &AppState) -> Vec<String> {
    let store = state.store.health();
    let indicators = [
        (STORE, store.refuses_writes.is_some() || store.state == StoreState::Stale),
        (DISK, store.disk_free.is_some_and(|free| free < DISK_FREE)),
        (DRAINING, state.streams.draining().is_cancelled()),
    ];
    indicators.into_iter().filter(|(_, fails)| *fails).map(|(name, _)| name.to_owned()).collect()
}

fn up() -> HealthBody {
    HealthBody { status: "UP".into(), failed: Vec::new() }
}

fn actuator(status: StatusCode, body: impl Serialize) -> Response {
    let mut response = (status, Json(body)).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, ACTUATOR);
    response
}
