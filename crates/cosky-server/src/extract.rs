//! axum's extractors with refusals in the one error form.

use axum::{
    extract::{
        FromRequest, FromRequestParts, Request,
        rejection::{JsonRejection, PathRejection, QueryRejection},
    },
    response::{IntoResponse, Response},
};
use http::{StatusCode, request::Parts};
use percent_encoding::percent_decode_str;
use serde::{Serialize, de::DeserializeOwned};

use crate::{ApiError, Caller};

/// A JSON body, in both directions.
#[derive(Debug, Clone, Copy)]
pub struct Json<T>(pub T);

/// The path's parameters, percent-decoded.
#[derive(Debug, Clone, Copy)]
pub struct Path<T>(pub T);

/// The query's parameters.
#[derive(Debug, Clone, Copy)]
pub struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        match axum::Json::from_request(request, state).await {
            Ok(axum::Json(body)) => Ok(Self(body)),
            Err(rejection) => Err(body_refused(&rejection)),
        }
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

fn body_refused(rejection: &JsonRejection) -> ApiError {
    match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => ApiError::too_large("the body is larger than the server takes"),
        StatusCode::UNSUPPORTED_MEDIA_TYPE => {
            ApiError::unsupported_media_type("the body must come with Content-Type: application/json")
        }
        _ => ApiError::invalid_body(rejection.body_text()),
    }
}

fn path_refused(rejection: &PathRejection) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "invalid_argument", format!("path: {}", rejection.body_text()))
}

fn query_refused(rejection: &QueryRejection) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "invalid_argument", format!("query: {}", rejection.body_text()))
}
