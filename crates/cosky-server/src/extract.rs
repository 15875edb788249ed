//! axum's extractors with refusals in the one error form.

use axum::{
    extract::{
        FromRequest, FromRequestParts, Request,
        rejection::{PathRejection, QueryRejection},
    },
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header, request::Parts};
use percent_encoding::percent_decode_str;
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::timeout;

use crate::{ApiError, AppState, Caller};

/// A JSON body, in both directions.
#[derive(Debug, Clone, Copy)]
pub struct Json<T>(pub T);

/// The bytes of a JSON body, to be read where they are.
#[derive(Debug, Clone)]
pub struct JsonBytes(pub Bytes);

/// The path's parameters, percent-decoded.
#[derive(Debug, Clone, Copy)]
pub struct Path<T>(pub T);

/// The query's parameters.
#[derive(Debug, Clone, Copy)]
pub struct Query<T>(pub T);

impl FromRequest<AppState> for JsonBytes {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        if !is_json(request.headers()) {
            let msg = "the body must come with Content-Type: application/json";
            return Err(ApiError::unsupported_media_type(msg));
        }
        // No handler runs before its body is here, so whoever is too slow can be told that nothing was written.
        let limit = state.config.limits.body;
        let body = timeout(limit, Bytes::from_request(request, state)).await;
        let body = body.map_err(|_| ApiError::request_timeout(limit))?;
        body.map(Self).map_err(|rejection| match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => ApiError::too_large("the body is larger than the server takes"),
            _ => ApiError::invalid_body(rejection.body_text()),
        })
    }
}

impl<T: DeserializeOwned> FromRequest<AppState> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let JsonBytes(bytes) = JsonBytes::from_request(request, state).await?;
        let axum::Json(body) = axum::Json::from_bytes(&bytes)
            .map_err(|rejection| ApiError::invalid_body(rejection.body_text()))?;
        Ok(Self(body))
    }
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        axum::Json(self.0).into_response()
    }
}

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match axum::extract::Path::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(path)) => Ok(Self(path)),
            Err(rejection) => Err(path_refused(&rejection)),
        }
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        // axum would put U+FFFD in place of what is no UTF-8, and two names would fall together.
        if percent_decode_str(parts.uri.query().unwrap_or_default()).decode_utf8().is_err() {
            return Err(ApiError::invalid("query", "is not UTF-8 when it is percent-decoded"));
        }
        match axum::extract::Query::from_request_parts(parts, state).await {
            Ok(axum::extract::Query(query)) => Ok(Self(query)),
            Err(rejection) => Err(query_refused(&rejection)),
        }
    }
}

/// Every handler behind the auth layer finds one.
impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parts
            .extensions
            .get::<Self>()
            .cloned()
            .ok_or_else(|| ApiError::unauthorized("no credential was sent"))
    }
}

/// Whether the body is called JSON, with or without a suffix and parameters: `application/json; charset=utf-8`,
/// `application/merge-patch+json`.
fn is_json(headers: &HeaderMap) -> bool {
    let named = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = named.and_then(|value| value.split(';').next()).unwrap_or_default().trim();
    let Some((kind, subtype)) = essence.split_once('/') else { return false };
    let subtype = subtype.rsplit_once('+').map_or(subtype, |(_, suffix)| suffix);
    kind.eq_ignore_ascii_case("application") && subtype.eq_ignore_ascii_case("json")
}

fn path_refused(rejection: &PathRejection) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "invalid_argument", format!("path: {}", rejection.body_text()))
}

fn query_refused(rejection: &QueryRejection) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "invalid_argument", format!("query: {}", rejection.body_text()))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn json_has_many_names() {
        let is_json =
            |kind| is_json(&HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(kind))]));
        for kind in [
            "application/json",
            "Application/JSON",
            "application/json; charset=utf-8",
            " application/json ;x",
            "application/merge-patch+json",
        ] {
            assert!(is_json(kind), "{kind}");
        }
        for kind in [
            "",
            "json",
            "text/plain",
            "text/json",
            "application/jsonp",
            "application/json+x",
            "a; application/json",
        ] {
            assert!(!is_json(kind), "{kind}");
        }
    }
}
