//! What answers have in common: the headers of reads, and bodies that are JSON already.

use std::{convert::Infallible, time::Duration};

use axum::{
    body::Body,
    response::{IntoResponse, IntoResponseParts, Response, ResponseParts},
};
use bytes::Bytes;
use cosky_core::{Index, Life, Read, Store, StoreState, wire};
use http::{HeaderName, HeaderValue, header};

const INDEX: HeaderName = HeaderName::from_static(wire::INDEX);
const AGE: HeaderName = HeaderName::from_static(wire::AGE);
const STATE: HeaderName = HeaderName::from_static(wire::STATE);
const TTL_MS: HeaderName = HeaderName::from_static(wire::TTL_MS);

/// How far an answer can be trusted, in its headers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// Of the namespace; none in an answer about several, or about what has no index.
    index: Option<Index>,
    age: Duration,
    state: StoreState,
}

/// Remaining life, in a header; none for a permanent instance.
#[derive(Debug, Clone, Copy)]
pub(super) struct TtlMs(pub(super) Life);

/// A body that is JSON already.
pub(super) struct JsonText(pub(super) String);

impl<T> From<&Read<T>> for Seen {
    fn from(read: &Read<T>) -> Self {
        Self { index: Some(read.index), age: read.age, state: read.state }
    }
}

impl Seen {
    /// Of what was read from the store itself just now.
    pub(super) fn now(store: &dyn Store) -> Self {
        Self { index: None, age: Duration::ZERO, state: store.health().state }
    }
}

impl IntoResponseParts for Seen {
    type Error = Infallible;

    fn into_response_parts(self, mut parts: ResponseParts) -> Result<ResponseParts, Infallible> {
        let headers = parts.headers_mut();
        if let Some(index) = self.index {
            let index = HeaderValue::from_maybe_shared(Bytes::from(index.to_string()))
                .expect("an index is hexadecimal digits, a colon and decimal digits");
            headers.insert(INDEX, index);
        }
        headers.insert(AGE, HeaderValue::from(wire::millis(self.age)));
        headers.insert(STATE, HeaderValue::from_static(self.state.as_str()));
        Ok(parts)
    }
}

impl IntoResponseParts for TtlMs {
    type Error = Infallible;

    fn into_response_parts(self, mut parts: ResponseParts) -> Result<ResponseParts, Infallible> {
        if let Some(remaining) = self.0.remaining() {
            parts.headers_mut().insert(TTL_MS, HeaderValue::from(wire::millis(remaining)));
        }
        Ok(parts)
    }
}

impl IntoResponse for JsonText {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.0));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}
