//! Beats, single and in batches: what keeps ephemeral instances alive (design §4).

use axum::extract::State;
use cosky_core::{
    Beat, BeatKey, Error, Life, Namespace, Result, engine,
    wire::{BeatAnswer, BeatBody, BeatsAnswer, ErrorBody},
};

use super::{
    Refused,
    place::{AtInstance, InNamespace, canonical},
};
use crate::{
    ApiError, ApiResult, AppState,
    extract::{Json, JsonBytes},
    metrics::Operation,
};

/// Beat for an instance
///
/// Renews it with its own TTL. A permanent instance is not changed by a beat.
#[utoipa::path(
    put, path = "/v1/namespaces/{namespace}/services/{serviceId}/instances/{instanceId}/beat", tag = "instances",
    operation_id = "beat",
    params(
        ("namespace" = String, Path, description = "The namespace"),
        ("serviceId" = String, Path, description = "The service; a `/` in it is sent as `%2F`"),
        ("instanceId" = String, Path, description = "`service@schema#host#port`; a `#` in it is sent as `%23`")
    ),
    responses(
        (status = 200, description = "How long it lives from now", body = BeatAnswer),
        (status = 404, description = "It is not there; register it again", body = ErrorBody),
        (status = 410, description = "Somebody deregistered it; stop", body = ErrorBody),
        Refused
    )
)]
pub(super) async fn beat(State(state): State<AppState>, at: AtInstance) -> ApiResult<Json<BeatAnswer>> {
    let keys = [BeatKey { service: at.service.as_str(), instance: &at.id }];
    let beats = state.store.beat(&at.namespace, &keys).await;
    let what = || format!("instance {}", at.id);
    match recorded(&state, beats)?.first() {
        // An engine that cannot tell the remaining life still renewed it: what it lives by is not known here, so the
        // answer says no more than a permanent instance's does.
        Some(Beat::Renewed(life)) => Ok(Json(BeatAnswer::renewed(life.unwrap_or(Life::Permanent)))),
        Some(Beat::Gone) => Err(Error::Gone { what: what() }.into()),
        Some(Beat::Unknown) | None => Err(Error::NotFound { what: what() }.into()),
    }
}

/// Beat for many instances
///
/// Renews up to 1,000, each with its own TTL. The ids in `unknown` are to be registered again, those in
/// `gone` are to stop: somebody deregistered them.
#[utoipa::path(
    post, path = "/v1/namespaces/{namespace}/beats", tag = "instances", operation_id = "beats",
    params(("namespace" = String, Path, description = "The namespace")),
    request_body = Vec<BeatBody<'static>>,
    responses(
        (status = 200, description = "How many were renewed, and the ids of the others", body = BeatsAnswer),
        (status = 415, description = "The body is not sent as application/json", body = ErrorBody),
        Refused
    )
)]
pub(super) async fn beats(
    State(state): State<AppState>,
    InNamespace(namespace): InNamespace,
    JsonBytes(body): JsonBytes,
) -> ApiResult<Json<BeatsAnswer>> {
    // The names stay where the request's bytes are: a batch costs one list and no text of its own.
    let bodies: Vec<BeatBody<'_>> =
        serde_json::from_slice(&body).map_err(|error| ApiError::invalid_body(error.to_string()))?;
    let beats = recorded(&state, renew(&state, &namespace, &bodies).await)?;
    Ok(Json(BeatsAnswer::new(bodies.iter().map(|body| &*body.instance_id), &beats)))
}

/// Beats, and beats once more under their stored form the few whose ids are not known as they were sent: an IPv6
/// address may be spelled in many ways.
async fn renew(state: &AppState, namespace: &Namespace, bodies: &[BeatBody<'_>]) -> Result<Vec<Beat>> {
    engine::check_batch(bodies.len())?;
    let keys: Vec<_> = bodies
        .iter()
        .map(|body| BeatKey { service: &body.service_id, instance: &body.instance_id })
        .collect();
    let mut beats = state.store.beat(namespace, &keys).await?;
    let mut respelled = Vec::new();
    for (at, _) in beats.iter().enumerate().filter(|(_, beat)| **beat == Beat::Unknown) {
        let sent = keys[at].instance;
        respelled.extend(canonical(sent).filter(|id| id != sent).map(|id| (at, id)));
    }
    if !respelled.is_empty() {
        let keys: Vec<_> =
            respelled.iter().map(|(at, id)| BeatKey { service: keys[*at].service, instance: id }).collect();
        for ((at, _), beat) in respelled.iter().zip(state.store.beat(namespace, &keys).await?) {
            beats[*at] = beat;
        }
    }
    Ok(beats)
}

/// Counts each beat by its answer, or the call when there are no answers.
fn recorded(state: &AppState, beats: Result<Vec<Beat>>) -> ApiResult<Vec<Beat>> {
    match &beats {
        Ok(beats) => state.metrics.record_beats(beats),
        Err(_) => state.metrics.record(Operation::Beat, &beats),
    }
    Ok(beats?)
}
