//! One instance for a caller that does not balance by itself (compat §4.7).

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use cosky_core::{
    Weighted,
    wire::{self, InstanceBody},
};
use http::StatusCode;

use super::{
    Refused, consumer, counted,
    instances::Asking,
    place::InService,
    read::{JsonText, Seen, TtlMs},
};
use crate::{ApiResult, AppState, extract::Query, metrics::Operation};

/// Choose an instance
///
/// At random among those in service, each as likely as its weight. One of weight 0, or whose metadata says another
/// `instance_status` than `UP`, is never chosen.
#[utoipa::path(
    get, path = "/v1/namespaces/{namespace}/services/{serviceId}/lb", tag = "instances", operation_id = "choose",
    params(
        ("namespace" = String, Path, description = "The namespace"),
        ("serviceId" = String, Path, description = "The service; a `/` in it is sent as `%2F`"),
        Asking
    ),
    responses(
        (status = 200, description = "An instance; no body when none may be chosen", body = InstanceBody, headers(
            ("X-Cosky-TTL-Ms" = u64, description = "Its remaining life in milliseconds; absent when it is permanent"),
            ("X-Cosky-Index" = String, description = "The last change that is in the answer, opaque"),
            ("X-Cosky-Age" = u64, description = "Age of the answer in milliseconds, 0 when live"),
            ("X-Cosky-State" = String, description = "`live`, `stale` or `protected`"),
        )),
        Refused
    )
)]
pub(super) async fn choose(
    State(state): State<AppState>,
    InService(namespace, service): InService,
    Query(asking): Query<Asking>,
) -> ApiResult<Response> {
    let consumer = consumer::parse(asking.consumer.as_deref())?;
    let read = counted(&state, Operation::Choose, state.store.instances(&namespace, &service).await)?;
    consumer::note(&state, &namespace, consumer.as_ref(), [&service]);
    let seen = Seen::from(&read);
    let Some(at) = Weighted::new(&read.value).pick() else {
        return Ok((seen, StatusCode::OK).into_response());
    };
    let chosen = &read.value[at];
    let mut body = String::with_capacity(256);
    wire::write_instance(&mut body, chosen);
    Ok((seen, TtlMs(chosen.life()), JsonText(body)).into_response())
}
