//! What every request passes, in one ordered list.

use std::{any::Any, sync::Arc, time::Instant};

use axum::{
    RequestExt, Router,
    extract::{DefaultBodyLimit, MatchedPath, RawPathParams, Request, State},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use cosky_core::wire::VERSION;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version, header};
use tower::ServiceBuilder;
use tower_http::{
    catch_panic::CatchPanicLayer,
    cors::{AllowHeaders, Any as AnyOrigin, CorsLayer},
};
use uuid::Uuid;

use crate::{ApiError, Config, Limits, Metrics, gzip, local};

/// CoSky's name for the header that marks a request.
const REQUEST_ID: HeaderName = HeaderName::from_static("cosec-request-id");
/// Bytes of the longest request id that is taken over from a client.
const REQUEST_ID_BYTES: usize = 128;
/// Bytes of the longest path and query.
pub(crate) const URI_BYTES: usize = 32 << 10;
/// How long a browser may remember what CORS allows, in seconds (compat §4.1).
const CORS_MAX_AGE: u64 = 1_800;

/// What [`frame`] needs.
#[derive(Clone)]
struct Frame {
    metrics: Arc<Metrics>,
    config: Arc<Config>,
}

/// Lays the list around `router`. The first in the list sees a request first and its answer last. It is laid inside the
/// router, so that the matched route is known.
pub(crate) fn around<S>(router: Router<S>, metrics: Arc<Metrics>, config: Arc<Config>) -> Router<S>
where
    S: Clone + Send + Sync + 'static,
{
    let body_bytes = config.limits.body_bytes;
    let cors = config.auth.then(cors);
    let frame_state = Frame { metrics, config };
    router.layer(
        ServiceBuilder::new()
            .layer(middleware::from_fn_with_state(frame_state, frame))
            .option_layer(cors)
            .layer(CatchPanicLayer::custom(panicked))
            .layer(DefaultBodyLimit::max(body_bytes)),
    )
}

/// Marks the request, bounds it, and tells of it: one line at debug (of beats at trace) and the metrics. Neither bodies
/// nor credentials nor query strings are logged.
async fn frame(State(state): State<Frame>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = request_id(request.headers());
    let method = method_label(request.method());
    let long_poll = asks_to_wait(&request);
    let route = request.extensions().get::<MatchedPath>().map(|path| Arc::<str>::from(path.as_str()));
    let logged =
        if tracing::enabled!(tracing::Level::DEBUG) { Some(named(&mut request).await) } else { None };

    let gzip = gzip::is_asked(request.headers());
    let counted = state.metrics.request();
    let mut response = match check(&request, &state.config) {
        Err(refusal) => refusal.into_response(),
        Ok(()) if long_poll => next.run(request).await,
        Ok(()) => match tokio::time::timeout(state.config.limits.request, next.run(request)).await {
            Ok(response) => response,
            Err(_) => too_slow(&state.config.limits).into_response(),
        },
    };
    if gzip {
        response = gzip::compress(response).await;
    }
    drop(counted);

    let duration = started.elapsed();
    let status = response.status();
    if let Some((namespace, service)) = logged {
        let route = route.as_deref().unwrap_or("-");
        let request_id = id.to_str().unwrap_or_default();
        let duration_ms = duration.as_secs_f64() * 1_000.0;
        if route.ends_with("/beat") || route.ends_with("/beats") {
            tracing::trace!(
                request_id,
                status = status.as_u16(),
                duration_ms,
                namespace,
                service.id = service,
                "{method} {route}"
            );
        } else {
            tracing::debug!(
                request_id,
                status = status.as_u16(),
                duration_ms,
                namespace,
                service.id = service,
                "{method} {route}"
            );
        }
    }
    if let Some(route) = route.filter(|_| !long_poll) {
        state.metrics.duration(method, route, duration);
    }
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, id);
    headers.insert(VERSION, HeaderValue::from_static(env!("CARGO_PKG_VERSION")));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // Answers change from one moment to the next, and some hold tokens.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Every origin, every header, every method, and never a cookie: a page of a stranger gets nothing that it could not
/// ask for by itself. Without authentication there is no CORS, because then a page could.
fn cors() -> CorsLayer {
    CorsLayer::new()
        .allow_origin(AnyOrigin)
        .allow_methods(AnyOrigin)
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(AnyOrigin)
        .max_age(std::time::Duration::from_secs(CORS_MAX_AGE))
}

fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
    tracing::error!("a handler panicked: {text}");
    ApiError::internal().into_response()
}

/// The request's own id when it can be printed and is short, else a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let sane = |id: &&HeaderValue| {
        (1..=REQUEST_ID_BYTES).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    headers.get(REQUEST_ID).filter(sane).cloned().unwrap_or_else(|| {
        HeaderValue::from_str(&Uuid::now_v7().to_string())
            .expect("hexadecimal digits and dashes are a header value")
    })
}

/// What is refused whatever the route is.
fn check(request: &Request, config: &Config) -> Result<(), ApiError> {
    check_size(request, &config.limits)?;
    check_host(request)?;
    if config.auth { Ok(()) } else { local::check(request.headers()) }
}

fn check_size(request: &Request, limits: &Limits) -> Result<(), ApiError> {
    let uri = request.uri().path_and_query().map_or(0, |uri| uri.as_str().len());
    if uri > URI_BYTES {
        let msg = format!("the path and query are longer than {URI_BYTES} bytes");
        return Err(ApiError::new(StatusCode::URI_TOO_LONG, "too_large", msg));
    }
    let fields = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4);
    if uri + fields.sum::<usize>() > limits.header_bytes || request.headers().len() > limits.header_fields {
        let msg = format!(
            "the headers are larger than {} bytes or more than {}",
            limits.header_bytes, limits.header_fields
        );
        return Err(ApiError::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "too_large", msg));
    }
    Ok(())
}

/// Whoever speaks HTTP/1.1 names the host, once (RFC 9112, section 3.2).
fn check_host(request: &Request) -> Result<(), ApiError> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (None, _) if request.version() >= Version::HTTP_11 => {
            Err(ApiError::invalid("Host", "must be sent with HTTP/1.1"))
        }
        (_, Some(_)) => Err(ApiError::invalid("Host", "must not be sent more than once")),
        _ => Ok(()),
    }
}

fn too_slow(limits: &Limits) -> ApiError {
    ApiError::outcome_unknown(format!("the request took longer than {} s", limits.request.as_secs_f64()))
}

/// Whether a request is a long poll. Its route bounds it; nothing is read from a GET's body meanwhile.
pub(crate) fn asks_to_wait<B>(request: &Request<B>) -> bool {
    let asks = |query: &str| query.split('&').any(|pair| pair.starts_with("wait="));
    request.method() == Method::GET && request.uri().query().is_some_and(asks)
}

/// The namespace and the service that the path names, decoded.
async fn named(request: &mut Request) -> (Option<String>, Option<String>) {
    let Ok(params) = request.extract_parts::<RawPathParams>().await else { return (None, None) };
    let get = |names: [&str; 2]| {
        params
            .iter()
            .find(|(name, _)| names.contains(name))
            .map(|(_, value)| value.escape_debug().to_string())
    };
    (get(["namespace", "ns"]), get(["service", "serviceId"]))
}

/// From a closed set, since a client may send any word as a method.
fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::PUT => "PUT",
        Method::POST => "POST",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}
