//! The registry's routes: paths, bodies and bare booleans as CoSky has them (compat §4.5–4.7), and what design §5 adds.

mod beats;
mod choose;
mod consumer;
mod digest;
mod instances;
mod namespaces;
mod place;
mod poll;
mod read;
mod services;
mod stat;
mod stream;
mod watch;

use std::sync::RwLock;

use cosky_core::{Error, Namespace, wire::ErrorBody};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{ApiResult, AppState, metrics::Operation};

pub(crate) use namespaces::list_system;

/// What the routes of one server remember.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The process-wide current namespace, as CoSky has it.
    current: RwLock<Namespace>,
    dependencies: consumer::Dependencies,
}

/// Refusals that every route may answer.
#[derive(utoipa::IntoResponses)]
#[expect(dead_code, reason = "describes answers; ApiError makes them")]
enum Refused {
    /// A name, parameter or body breaks a rule; `msg` names the field and nothing was written.
    #[response(status = 400)]
    Invalid(ErrorBody),
    /// No credential came, or one that is not good any more.
    #[response(status = 401)]
    Unauthorized(ErrorBody),
    /// The credential is good, the right is missing.
    #[response(status = 403)]
    Forbidden(ErrorBody),
    /// A body, list or value is larger than its limit; nothing was written.
    #[response(status = 413)]
    TooLarge(ErrorBody),
    /// A limit of the server or store is reached; `Retry-After` says when to come again.
    #[response(status = 429)]
    LimitReached(ErrorBody),
    /// The store cannot serve this now, or the server is shutting down; `Retry-After` says when to come again.
    #[response(status = 503)]
    Unavailable(ErrorBody),
}

/// All of them.
pub fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(namespaces::list))
        .routes(routes!(namespaces::current))
        .routes(routes!(namespaces::set_current))
        .routes(routes!(namespaces::add, namespaces::remove))
        .routes(routes!(stat::stat))
        .routes(routes!(stat::topology))
        .routes(routes!(services::list))
        .routes(routes!(services::stats))
        .routes(routes!(services::set, services::remove))
        .routes(routes!(instances::list, instances::register))
        .routes(routes!(instances::one, instances::deregister))
        .routes(routes!(instances::set_metadata, instances::patch_metadata))
        .routes(routes!(choose::choose))
        .routes(routes!(beats::beat))
        .routes(routes!(beats::beats))
        .routes(routes!(digest::digest))
        .routes(routes!(watch::watch))
}

impl Default for Shared {
    fn default() -> Self {
        Self { current: RwLock::new(system()), dependencies: consumer::Dependencies::default() }
    }
}

fn system() -> Namespace {
    Namespace::new(Namespace::SYSTEM).expect("the system namespace follows the rules of names")
}

/// Counts an operation by how it went.
fn counted<T>(state: &AppState, operation: Operation, result: Result<T, Error>) -> ApiResult<T> {
    state.metrics.record(operation, &result);
    Ok(result?)
}
