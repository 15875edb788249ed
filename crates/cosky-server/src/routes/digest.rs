//! Whether a client holds what the store holds, without sending either.

use axum::{extract::State, response::IntoResponse};
use cosky_core::{Result, Scope, ServiceId, wire::DigestBody};

use super::{Refused, counted, place::InNamespace, read::Seen};
use crate::{
    ApiResult, AppState,
    extract::{Json, Query},
    metrics::Operation,
};

/// The services that a query names, or all.
pub(super) fn scope(services: Vec<ServiceId>) -> Result<Scope> {
    if services.is_empty() { Ok(Scope::All) } else { Scope::services(services) }
}

/// Digest of a namespace's instances
///
/// Equal to the digest of what a client holds when it holds the same, in whatever order. It covers what was registered (id,
/// schema, host, port, weight, ephemeral, metadata), not how long an instance still lives. It is the sum, modulo 2⁶⁴, of a
/// number per instance, 0 without instances. The number is the XXH3 (64 bits, seed 0) of these bytes. First numbers of 4
/// bytes each, little endian: the lengths in bytes of id, schema and host; the port; the weight; 1 for ephemeral or 0 for
/// permanent; the number of metadata entries; and the lengths of the key and the value of each, sorted by the bytes of the
/// key. Then the texts of which these are the lengths, in the same order, in UTF-8.
#[utoipa::path(
    get, path = "/v1/namespaces/{namespace}/digest", tag = "instances", operation_id = "digest",
    params(
        ("namespace" = String, Path, description = "The namespace"),
        ("service" = Option<Vec<String>>, Query, description = "The services that it covers, whether they exist or not: up \
            to 1,000, as far as the address may be long; the whole namespace without")
    ),
    responses(
        (status = 200, description = "The digest", body = DigestBody, headers(
            ("X-Cosky-Index" = String, description = "The last change that is in the answer, opaque"),
            ("X-Cosky-Age" = u64, description = "Age of the answer in milliseconds, 0 when live"),
            ("X-Cosky-State" = String, description = "`live`, `stale` or `protected`"),
        )),
        Refused
    )
)]
pub(super) async fn digest(
    State(state): State<AppState>,
    InNamespace(namespace): InNamespace,
    Query(query): Query<Vec<(String, String)>>,
) -> ApiResult<impl IntoResponse> {
    let services = query.iter().filter(|(name, _)| name == "service").map(|(_, value)| ServiceId::new(value));
    let scope = scope(services.collect::<Result<_>>()?)?;
    let read = counted(&state, Operation::Read, state.store.digest(&namespace, &scope).await)?;
    Ok((Seen::from(&read), Json(DigestBody { digest: read.value })))
}
