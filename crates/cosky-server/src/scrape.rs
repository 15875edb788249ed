//! `GET /metrics`.

use axum::{
    Router,
    extract::State,
    response::{IntoResponse, Response},
    routing::get,
};
use cosky_core::wire::ErrorBody;
use http::{HeaderValue, header};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{ApiError, AppState};

const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// The route among the protected ones.
pub(crate) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(scrape))
}

/// All that the metrics' own address serves, to everybody.
pub(crate) fn alone(state: AppState) -> Router {
    Router::new()
        .route("/metrics", get(scrape))
        .fallback(|| async { ApiError::not_found("only /metrics is served here") })
        .with_state(state)
}

/// Metrics
///
/// In the OpenMetrics text format. With `--metrics-listen` they are served at that address instead, without a
/// credential.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "metrics",
    responses(
        (status = 200, description = "OpenMetrics text", body = String,
            content_type = "application/openmetrics-text"),
        (status = 404, description = "`not_found`: they are served at an address of their own", body = ErrorBody),
    )
)]
async fn scrape(State(state): State<AppState>) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &state.registry) {
        Ok(()) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => {
            tracing::error!("the metrics cannot be written: {error}");
            ApiError::internal().into_response()
        }
    }
}
