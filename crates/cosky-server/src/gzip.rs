//! Compressed answers, as CoSky gives them. Who does not ask pays for the look at one header; event streams are never
//! compressed, since each event must go out at once.

use std::convert::Infallible;

use axum::{body::Body, extract::Request, response::Response};
use http::{HeaderMap, HeaderValue, header};
use http_body::Body as _;
use tower::{ServiceExt as _, service_fn};
use tower_http::{CompressionLevel, compression::Compression};

/// Bytes of the shortest body that is worth it.
const WORTH: u64 = 1024;

/// Whether a client asks for gzip by its name.
pub(crate) fn is_asked(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        let refused = |part: &str| {
            part.strip_prefix(['q', 'Q']).and_then(|part| part.strip_prefix('=')?.parse().ok())
                == Some(0.0_f32)
        };
        named && !parts.any(refused)
    })
}

/// The same answer compressed, when its body is of a known length that is worth it. A stream's is of none.
pub(crate) async fn compress(response: Response) -> Response {
    if response.body().size_hint().exact().is_none_or(|length| length < WORTH) {
        return response;
    }
    // Not laid around the routes as a layer: that would wrap the bodies of streams and of those who do not ask as well,
    // and answer 406 to some requests that were carried out.
    let mut response = Some(response);
    let answer = service_fn(|_| {
        let response = response.take().expect("asked once");
        async { Ok::<_, Infallible>(response) }
    });
    let mut request = Request::new(Body::empty());
    request.headers_mut().insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
    let Ok(compressed) = Compression::new(answer).quality(CompressionLevel::Fastest).oneshot(request).await;
    compressed.map(Body::new)
}
