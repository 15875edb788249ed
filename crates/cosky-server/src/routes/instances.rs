//! The instances of a service (compat §4.7, design §5).

use std::collections::BTreeMap;

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use cosky_core::{
    Error, Metadata, MetadataPatch, Owner, Result,
    wire::{self, ErrorBody, InstanceBody, RegisterBody},
};
use http::{HeaderName, HeaderValue, StatusCode};
use serde::Deserialize;
use serde_json::Value;
use utoipa::IntoParams;

use super::{
    Refused, consumer, counted,
    place::{AtInstance, InService},
    poll::{self, Polling},
    read::{JsonText, Seen, TtlMs},
};
use crate::{
    ApiResult, AppState, Caller,
    extract::{Json, Query},
    metrics::Operation,
};

/// Who asks.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Asking {
    /// Who asks, for the topology.
    pub(super) consumer: Option<String>,
}

/// Who deregisters.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Owned {
    /// The owner nonce that the registration answered. With it, the instance stays when somebody else has registered
    /// it since; without it, it goes in any case.
    owner: Option<String>,
}

/// Instances of a service
///
/// Those that live, sorted by id; `[]` when the service does not exist. With `wait` and `index` a long poll, answered
/// when something changed after `index`, or after `wait` with the same index and the same instances.
#[utoipa::path(
    get, path = "/v1/namespaces/{namespace}/services/{serviceId}/instances", tag = "instances",
    operation_id = "list_instances",
    params(
        ("namespace" = String, Path, description = "The namespace"),
        ("serviceId" = String, Path, description = "The service; a `/` in it is sent as `%2F`"),
        Polling
    ),
    responses(
        (status = 200, description = "Instances", body = Vec<InstanceBody>, headers(
            ("X-Cosky-Index" = String, description = "The last change that is in the answer, opaque; for `index`"),
            ("X-Cosky-Age" = u64, description = "Age of the answer in milliseconds, 0 when live"),
            ("X-Cosky-State" = String, description = "`live`, `stale` or `protected`"),
        )),
        Refused
    )
)]
pub(super) async fn list(
    State(state): State<AppState>,
    InService(namespace, service): InService,
    Query(polling): Query<Polling>,
    caller: Caller,
) -> ApiResult<Response> {
    let wait = polling.wait()?;
    let consumer = consumer::parse(polling.consumer.as_deref())?;
    let read = poll::instances(&state, &caller, &namespace, &service, wait).await?;
    consumer::note(&state, &namespace, consumer.as_ref(), [&service]);
    Ok((Seen::from(&read), JsonText(wire::instances(&read.value))).into_response())
}

/// An instance
#[utoipa::path(
    get, path = "/v1/namespaces/{namespace}/services/{serviceId}/instances/{instanceId}", tag = "instances",
    operation_id = "get_instance",
    params(
        ("namespace" = String, Path, description = "The namespace"),
        ("serviceId" = String, Path, description = "The service; a `/` in it is sent as `%2F`"),
        ("instanceId" = String, Path, description = "`service@schema#host#port`; a `#` in it is sent as `%23`"),
        Asking
    ),
    responses(
        (status = 200, description = "The instance; no body when the service has none of that id",
            body = InstanceBody, headers(
            ("X-Cosky-TTL-Ms" = u64, description = "Its remaining life in milliseconds; absent when it is permanent"),
            ("X-Cosky-Index" = String, description = "The last change that is in the answer, opaque"),
            ("X-Cosky-Age" = u64, description = "Age of the answer in milliseconds, 0 when live"),
            ("X-Cosky-State" = String, description = "`live`, `stale` or `protected`"),
        )),
        Refused
    )
)]
pub(super) async fn one(
    State(state): State<AppState>,
    at: AtInstance,
    Query(asking): Query<Asking>,
) -> ApiResult<Response> {
    let consumer = consumer::parse(asking.consumer.as_deref())?;
    let read = state.store.instance(&at.namespace, &at.service, &at.id).await;
    let read = counted(&state, Operation::ReadInstances, read)?;
    consumer::note(&state, &at.namespace, consumer.as_ref(), [&at.service]);
    let seen = Seen::from(&read);
    let Some(instance) = &read.value else { return Ok((seen, StatusCode::OK).into_response()) };
    let mut body = String::with_capacity(256);
    wire::write_instance(&mut body, instance);
    Ok((seen, TtlMs(instance.life()), JsonText(body)).into_response())
}

/// Register an instance
///
/// Or register it again, with everything replaced. Its id is made of its parts, and it lives as long as its beats come:
/// the server never beats for it.
#[utoipa::path(
    put, path = "/v1/namespaces/{namespace}/services/{serviceId}/instances", tag = "instances",
    operation_id = "register",
    params(
        ("namespace" = String, Path, description = "The namespace"),
        ("serviceId" = String, Path, description = "The service; a `/` in it is sent as `%2F`")
    ),
    request_body = RegisterBody,
    responses(
        (status = 200, description = "Always true", body = bool, headers(
            ("X-Cosky-TTL-Ms" = u64, description = "How long it lives without a beat, in milliseconds; absent when \
                it is permanent"),
            ("X-Cosky-Owner" = String, description = "Who owns it now: what `owner` of a deregistration has to name"),
        )),
        (status = 410, description = "This owner's registration was deregistered by somebody; stop", body = ErrorBody),
        (status = 415, description = "The body is not sent as application/json", body = ErrorBody),
        Refused
    )
)]
pub(super) async fn register(
    State(state): State<AppState>,
    InService(namespace, service): InService,
    Json(body): Json<RegisterBody>,
) -> ApiResult<Response> {
    let registered = match body.check(service) {
        Ok(new) => state.store.register(&namespace, &new).await,
        Err(error) => Err(error),
    };
    let registered = counted(&state, Operation::Register, registered)?;
    let owner =
        HeaderValue::from_str(registered.owner.as_str()).expect("an owner is letters, digits, - and _");
    let owner = [(HeaderName::from_static(wire::OWNER), owner)];
    Ok((TtlMs(registered.life), owner, Json(true)).into_response())
}

/// Deregister an instance
///
/// Beats of what was removed are answered 410 for two TTLs.
#[utoipa::path(
    delete, path = "/v1/namespaces/{namespace}/services/{serviceId}/instances/{instanceId}", tag = "instances",
    operation_id = "deregister",
    params(
        ("namespace" = String, Path, description = "The namespace"),
        ("serviceId" = String, Path, description = "The service; a `/` in it is sent as `%2F`"),
        ("instanceId" = String, Path, description = "`service@schema#host#port`; a `#` in it is sent as `%23`"),
        Owned
    ),
    responses(
        (status = 200, description = "Whether it was there, and the owner's when an owner is given", body = bool),
        Refused
    )
)]
pub(super) async fn deregister(
    State(state): State<AppState>,
    at: AtInstance,
    Query(owned): Query<Owned>,
) -> ApiResult<Json<bool>> {
    let removed = match owned.owner.as_deref().map(Owner::new).transpose() {
        Ok(owner) => state.store.deregister(&at.namespace, &at.service, &at.id, owner.as_ref()).await,
        Err(error) => Err(error),
    };
    counted(&state, Operation::Deregister, removed).map(Json)
}

/// Replace an instance's metadata
///
/// `{}` clears it. Its life does not change.
#[utoipa::path(
    put, path = "/v1/namespaces/{namespace}/services/{serviceId}/instances/{instanceId}/metadata",
    tag = "instances", operation_id = "set_metadata",
    params(
        ("namespace" = String, Path, description = "The namespace"),
        ("serviceId" = String, Path, description = "The service; a `/` in it is sent as `%2F`"),
        ("instanceId" = String, Path, description = "`service@schema#host#port`; a `#` in it is sent as `%23`")
    ),
    request_body(content = BTreeMap<String, String>, description = "Texts by key; a key does not begin with `_`"),
    responses(
        (status = 200, description = "Whether the instance is there", body = bool),
        (status = 415, description = "The body is not sent as application/json", body = ErrorBody),
        Refused
    )
)]
pub(super) async fn set_metadata(
    State(state): State<AppState>,
    at: AtInstance,
    Json(body): Json<BTreeMap<String, Value>>,
) -> ApiResult<Json<bool>> {
    let set = match texts(body).and_then(Metadata::new) {
        Ok(metadata) => state.store.set_metadata(&at.namespace, &at.service, &at.id, &metadata).await,
        Err(error) => Err(error),
    };
    counted(&state, Operation::SetMetadata, set).map(Json)
}

/// Change single entries of an instance's metadata
///
/// Sets those that have a text and removes those whose value is null, in one step.
#[utoipa::path(
    patch, path = "/v1/namespaces/{namespace}/services/{serviceId}/instances/{instanceId}/metadata",
    tag = "instances", operation_id = "patch_metadata",
    params(
        ("namespace" = String, Path, description = "The namespace"),
        ("serviceId" = String, Path, description = "The service; a `/` in it is sent as `%2F`"),
        ("instanceId" = String, Path, description = "`service@schema#host#port`; a `#` in it is sent as `%23`")
    ),
    request_body(
        content = BTreeMap<String, Option<String>>,
        description = "Texts to set and nulls to remove, by key; a key does not begin with `_`"
    ),
    responses(
        (status = 200, description = "Whether the instance is there", body = bool),
        (status = 415, description = "The body is not sent as application/json", body = ErrorBody),
        Refused
    )
)]
pub(super) async fn patch_metadata(
    State(state): State<AppState>,
    at: AtInstance,
    Json(body): Json<BTreeMap<String, Value>>,
) -> ApiResult<Json<bool>> {
    let patched = match texts_or_nulls(body).and_then(MetadataPatch::new) {
        Ok(patch) => state.store.patch_metadata(&at.namespace, &at.service, &at.id, &patch).await,
        Err(error) => Err(error),
    };
    counted(&state, Operation::SetMetadata, patched).map(Json)
}

/// CoSky stores a null as the text `null` and a number as its digits; here each is refused by the name of its key, so
/// that nobody reads back what was not sent.
fn texts(body: BTreeMap<String, Value>) -> Result<Vec<(String, String)>> {
    let text = |(key, value): (String, Value)| match value {
        Value::String(text) => Ok((key, text)),
        _ => Err(not_text(&key, "must be a string")),
    };
    body.into_iter().map(text).collect()
}

fn texts_or_nulls(body: BTreeMap<String, Value>) -> Result<Vec<(String, Option<String>)>> {
    let text = |(key, value): (String, Value)| match value {
        Value::String(text) => Ok((key, Some(text))),
        Value::Null => Ok((key, None)),
        _ => Err(not_text(&key, "must be a string, or null to remove it")),
    };
    body.into_iter().map(text).collect()
}

fn not_text(key: &str, reason: &'static str) -> Error {
    Error::invalid(format!("metadata.{}", key.chars().take(64).collect::<String>()), reason)
}
