//! The one door. It is laid around the whole protected router, its 404s and 405s included, so a route cannot be
//! forgotten and no path is compared.

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use cosky_core::account::ROOT;
use http::{HeaderMap, header};

use crate::{ApiError, AppState};

/// Lets a request with a good credential through, with its [`crate::Caller`] in the extensions. Only the
/// `Authorization` header counts: a token in a query string or a cookie ends up in logs, or is sent by a browser on
/// behalf of a stranger's page.
pub(crate) async fn authenticate(
    State(state): State<AppState>,
    mut request: Request,
    next: Next,
) -> Response {
    let credential = match credential(request.headers()) {
        Ok(credential) => credential,
        Err(refusal) => return refusal.into_response(),
    };
    match state.auth.caller(credential).await {
        Ok(caller) if caller.user.as_str() == ROOT => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Ok(_) => ApiError::forbidden("the user has no right to this").into_response(),
        Err(refusal) => refusal.into_response(),
    }
}

/// The token of the `Authorization` header, with or without `Bearer `, as CoSky takes it.
fn credential(headers: &HeaderMap) -> Result<Option<&str>, ApiError> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(ApiError::unauthorized("more than one Authorization header was sent"));
    }
    let Ok(value) = value.to_str() else { return Err(super::invalid()) };
    let token = match value.split_at_checked("Bearer ".len()) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("Bearer ") => token,
        _ => value,
    };
    Ok(Some(token.trim()).filter(|token| !token.is_empty()))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn of(values: &[&'static str]) -> Result<Option<String>, ApiError> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::AUTHORIZATION, HeaderValue::from_static(value));
        }
        credential(&headers).map(|token| token.map(str::to_owned))
    }

    #[test]
    fn the_scheme_may_be_left_out() {
        assert_eq!(of(&[]).unwrap(), None);
        assert_eq!(of(&[""]).unwrap(), None);
        assert_eq!(of(&["Bearer "]).unwrap(), None);
        for value in ["a.b.c", "Bearer a.b.c", "bearer  a.b.c", "BEARER a.b.c "] {
            assert_eq!(of(&[value]).unwrap().as_deref(), Some("a.b.c"), "{value:?}");
        }
        assert_eq!(of(&["Basic YTpi"]).unwrap().as_deref(), Some("Basic YTpi"), "which is no token of ours");
    }

    #[test]
    fn two_headers_are_one_too_many() {
        assert_eq!(of(&["a.b.c", "a.b.c"]).unwrap_err().status(), 401);
    }
}
