//! The one place that knows status codes.

use std::{borrow::Cow, time::Duration};

use axum::response::{IntoResponse, Response};
use cosky_core::{Error, wire::ErrorBody};
use http::{HeaderValue, StatusCode, header};

/// The result of a handler.
pub type ApiResult<T> = Result<T, ApiError>;

/// Seconds after which a refused client may come again, where nothing better is known.
const RETRY_AFTER: u64 = 1;

/// An answer that refuses. Its body is `{"code","msg"}`; `code` is stable per kind, `msg` names the field when one is
/// wrong. 401 and 403 add CoSky's `authorized` and `reason`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    code: &'static str,
    msg: Cow<'static, str>,
    /// Seconds.
    retry_after: Option<u64>,
}

impl ApiError {
    /// Any refusal. `code` is a word that programs match, `msg` is for people.
    pub fn new(status: StatusCode, code: &'static str, msg: impl Into<Cow<'static, str>>) -> Self {
        Self { status, code, msg: msg.into(), retry_after: None }
    }

    /// 400 `invalid_argument`: `field` breaks a rule.
    pub fn invalid(field: &str, reason: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_argument", format!("{field}: {reason}"))
    }

    /// 400 `invalid_body`: the body is not what the route takes.
    pub fn invalid_body(msg: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_body", msg)
    }

    /// 401 `unauthorized`, with CoSky's `authorized` and `reason`.
    pub fn unauthorized(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", reason)
    }

    /// 403 `forbidden`, with CoSky's `authorized` and `reason`.
    pub fn forbidden(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", reason)
    }

    /// 404 `not_found`.
    pub fn not_found(msg: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", msg)
    }

    /// 408 `request_timeout`: the body did not come within `limit`, and nothing was written. Ends the connection, since
    /// the rest of the body would be taken for the next request.
    pub fn request_timeout(limit: Duration) -> Self {
        let msg = format!("the body did not arrive within {} s; nothing was written", limit.as_secs_f64());
        Self::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", msg)
    }

    /// 410 `gone`.
    pub fn gone(msg: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::GONE, "gone", msg)
    }

    /// 413 `too_large`.
    pub fn too_large(msg: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", msg)
    }

    /// 415 `unsupported_media_type`.
    pub fn unsupported_media_type(msg: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", msg)
    }

    /// 429 `limit_reached` with Retry-After.
    pub fn limit_reached(msg: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "limit_reached", msg).retry_after(RETRY_AFTER)
    }

    /// 503 `unavailable` with Retry-After: nothing was written.
    pub fn unavailable(msg: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", msg).retry_after(RETRY_AFTER)
    }

    /// 503 `outcome_unknown` with Retry-After: a write may have been applied all the same.
    pub fn outcome_unknown(msg: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "outcome_unknown", msg).retry_after(RETRY_AFTER)
    }

    /// 503 `shutting_down` with Retry-After.
    pub fn shutting_down() -> Self {
        let msg = "this server is shutting down; use another address";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "shutting_down", msg).retry_after(RETRY_AFTER)
    }

    /// 500 `internal`. What happened is for the log, not for the caller.
    pub fn internal() -> Self {
        let msg = "internal error; the server's log tells more under this CoSec-Request-Id";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", msg)
    }

    /// The same with a Retry-After of so many seconds.
    #[must_use]
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The stable word.
    pub fn code(&self) -> &'static str {
        self.code
    }

    /// The text for people.
    pub fn msg(&self) -> &str {
        &self.msg
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        let msg = error.to_string();
        match error {
            Error::InvalidArgument { .. } => Self::new(StatusCode::BAD_REQUEST, "invalid_argument", msg),
            Error::Unauthorized { reason } => Self::unauthorized(reason),
            Error::Forbidden { reason } => Self::forbidden(reason),
            Error::NotFound { .. } => Self::not_found(msg),
            Error::Conflict { .. } => Self::new(StatusCode::CONFLICT, "conflict", msg),
            Error::Gone { .. } => Self::gone(msg),
            Error::TooLarge { .. } => Self::too_large(msg),
            Error::Exhausted { .. } => Self::limit_reached(msg),
            Error::Unavailable { maybe_applied, source, .. } => {
                // Each write of an outage comes here, so no louder: the store says once that it begins, and that it ends.
                tracing::debug!(maybe_applied, source = source.map(tracing::field::display), "{msg}");
                if maybe_applied { Self::outcome_unknown(msg) } else { Self::unavailable(msg) }
            }
            Error::Lagged => Self::unavailable(msg),
            Error::Corrupt { reason } => {
                tracing::error!("stored data cannot be read: {reason}");
                Self::internal()
            }
            _ => {
                tracing::error!("an error that has no status of its own: {msg}");
                Self::internal()
            }
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let denied = matches!(self.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        let body = ErrorBody {
            code: self.code.to_owned(),
            authorized: denied.then_some(false),
            reason: denied.then(|| self.msg.clone().into_owned()),
            msg: self.msg.into_owned(),
        };
        let mut response = (self.status, axum::Json(body)).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::REQUEST_TIMEOUT {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http_body_util::BodyExt as _;
    use serde_json::Value;

    use super::*;

    /// An outage of the store refuses thousands of writes a second.
    #[test]
    fn refused_writes_do_not_flood_the_log() {
        let log = Arc::new(Mutex::new(Vec::new()));
        let counting = {
            let log = Arc::clone(&log);
            tracing_subscriber::fmt()
                .with_max_level(tracing::Level::INFO)
                .with_writer(move || Sink(log.clone()))
        };
        tracing::subscriber::with_default(counting.finish(), || {
            for _ in 0..1_000 {
                assert_eq!(ApiError::from(Error::unavailable("full")).status(), 503);
            }
            assert_eq!(log.lock().unwrap().as_slice(), b"");
            assert_eq!(ApiError::from(Error::Corrupt { reason: "row 7".into() }).status(), 500);
        });
        let text = String::from_utf8(log.lock().unwrap().clone()).unwrap();
        assert!(text.contains("row 7"), "what nobody else tells is told: {text:?}");
    }

    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    async fn answered(error: ApiError) -> (u16, Option<String>, Value) {
        let (parts, body) = error.into_response().into_parts();
        let retry = parts.headers.get("retry-after").map(|value| value.to_str().unwrap().to_owned());
        let body = body.collect().await.unwrap().to_bytes();
        (parts.status.as_u16(), retry, serde_json::from_slice(&body).unwrap())
    }

    #[tokio::test]
    async fn each_kind_of_error_has_its_status_and_code() {
        let what = || "instance a".to_owned();
        let reason = || "why".to_owned();
        for (error, status, code, msg) in [
            (Error::invalid("host", "is odd"), 400, "invalid_argument", "host: is odd"),
            (Error::Unauthorized { reason: reason() }, 401, "unauthorized", "why"),
            (Error::Forbidden { reason: reason() }, 403, "forbidden", "why"),
            (Error::NotFound { what: what() }, 404, "not_found", "instance a does not exist"),
            (Error::Conflict { reason: reason() }, 409, "conflict", "why"),
            (Error::Gone { what: what() }, 410, "gone", "instance a was deregistered"),
            (Error::TooLarge { field: "beats".into(), limit: 9 }, 413, "too_large", "beats is larger than 9"),
            (Error::Exhausted { what: "tokens", limit: 9 }, 429, "limit_reached", "limit of 9 tokens"),
            (Error::unavailable("full"), 503, "unavailable", "full"),
            (
                Error::Unavailable { reason: "cut".into(), maybe_applied: true, source: None },
                503,
                "outcome_unknown",
                "cut",
            ),
            (Error::Lagged, 503, "unavailable", "fell behind"),
            (Error::Corrupt { reason: "row 7".into() }, 500, "internal", "log"),
        ] {
            let (got, retry, body) = answered(error.into()).await;
            assert_eq!((got, body["code"].as_str()), (status, Some(code)), "{body}");
            assert!(body["msg"].as_str().unwrap().contains(msg), "{body}");
            assert!(!body.to_string().contains("row 7"), "what is wrong inside is for the log");
            assert_eq!(retry.is_some(), [429, 503].contains(&status), "{status}");
            let denied = [401, 403].contains(&status);
            assert_eq!(body.get("authorized"), denied.then_some(&Value::Bool(false)));
            assert_eq!(body.get("reason"), denied.then_some(&body["msg"]));
        }
        assert_eq!(answered(ApiError::shutting_down()).await.2["code"], "shutting_down");
    }
}
