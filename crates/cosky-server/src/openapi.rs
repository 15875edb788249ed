//! The API's own description, its user interface, and a page that leads there. Made once at the start.

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    response::{Html, IntoResponse, Redirect, Response},
    routing::get,
};
use bytes::Bytes;
use http::{HeaderValue, header};
use utoipa::openapi::{
    InfoBuilder, OpenApi, OpenApiBuilder, Ref, RefOr, ResponseBuilder,
    content::ContentBuilder,
    path::{Operation, PathItem},
    security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
    tag::TagBuilder,
};

use crate::{ApiError, AppState, extract::Path};

/// Where the document is.
const DOCUMENT: &str = "/v3/api-docs";
/// The name of the security scheme.
const BEARER: &str = "bearer";
/// What a stranger sees at `/`.
const LANDING: &str = concat!(
    "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">",
    "<meta name=\"viewport\" content=\"width=device-width\"><title>cosky</title>",
    "<h1>cosky ",
    env!("CARGO_PKG_VERSION"),
    "</h1><p>Service discovery. This server is running.<ul>",
    "<li><a href=\"/swagger-ui/\">The HTTP API, to read and to try</a>",
    "<li><a href=\"/v3/api-docs\">The same as OpenAPI 3.1</a>",
    "<li><a href=\"/health\">Health</a></ul></html>\n",
);

/// What the pages serve.
struct Pages {
    document: Bytes,
    ui: Arc<utoipa_swagger_ui::Config<'static>>,
}

/// A document without routes: what the API is, and how one authenticates.
pub(crate) fn base() -> OpenApi {
    let info = InfoBuilder::new()
        .title("cosky REST API")
        .version(env!("CARGO_PKG_VERSION"))
        .license(Some(utoipa::openapi::License::new("Apache-2.0")))
        .description(Some(
            "Service discovery. Refusals have a JSON body with a stable `code` and a `msg` for people. Path segments \
             are percent-encoded: `#` as `%23`, `/` in a name as `%2F`.",
        ));
    let tags = [
        ("authenticate", "Logins"),
        ("tokens", "API tokens for machines"),
        ("namespaces", "Namespaces"),
        ("services", "Services"),
        ("instances", "Instances and their beats"),
        ("stat", "Numbers and the topology"),
        ("watch", "Being told of changes"),
        ("health", "Health of this server"),
        ("metrics", "Metrics of this server"),
    ];
    let scheme = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("An access token from a login, or an API token"))
        .build();
    let mut document = OpenApiBuilder::new()
        .info(info)
        .tags(Some(tags.map(|(name, text)| TagBuilder::new().name(name).description(Some(text)).build())))
        .security(Some([SecurityRequirement::new(BEARER, Vec::<String>::new())]))
        .build();
    document.components.get_or_insert_default().add_security_scheme(BEARER, SecurityScheme::Http(scheme));
    document
}

/// Adds to each operation the refusals that the layers around the routes answer, where its route does not describe
/// them itself.
pub(crate) fn complete(document: &mut OpenApi) {
    for operation in document.paths.paths.values_mut().flat_map(operations) {
        let open = operation.security.is_some();
        let body = operation.request_body.is_some();
        let refusals = [
            ("401", !open, "`unauthorized`: no credential came, or one that is not good any more"),
            ("403", !open, "`forbidden`: the credential is good, the right is missing"),
            ("408", body, "`request_timeout`: the body did not arrive in time; nothing was written"),
            ("413", body, "`too_large`: the body or a value is larger than its limit"),
            ("415", body, "`unsupported_media_type`: the body is not sent as `application/json`"),
            ("500", true, "`internal`: a fault of the server; its log tells more"),
            ("503", true, "`unavailable` or `shutting_down`; `Retry-After` says when to come again"),
        ];
        for (status, _, text) in refusals.into_iter().filter(|(_, applies, _)| *applies) {
            let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("ErrorBody"))).build();
            let answer = ResponseBuilder::new().description(text).content("application/json", content);
            let answers = &mut operation.responses.responses;
            answers.entry(status.to_owned()).or_insert_with(|| RefOr::T(answer.build()));
        }
    }
}

/// The routes, open to everybody.
pub(crate) fn router(document: &OpenApi) -> Router<AppState> {
    let document = serde_json::to_vec(document).expect("a document of text and maps of text has a JSON form");
    let ui = Arc::new(utoipa_swagger_ui::Config::from(DOCUMENT).try_it_out_enabled(true));
    let pages = Arc::new(Pages { document: document.into(), ui });
    let redirect = || get(|| async { Redirect::permanent("/swagger-ui/") });
    let index = |State(pages): State<Arc<Pages>>| async move { ui_file(&pages, "") };
    let file =
        |State(pages): State<Arc<Pages>>, Path(file): Path<String>| async move { ui_file(&pages, &file) };
    Router::new()
        .route("/", get(|| async { Html(LANDING) }))
        .route(DOCUMENT, get(api_docs))
        .route("/swagger-ui", redirect())
        .route("/swagger-ui.html", redirect())
        .route("/swagger-ui/", get(index))
        .route("/swagger-ui/{*file}", get(file))
        .with_state(pages)
}

async fn api_docs(State(pages): State<Arc<Pages>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], pages.document.clone())
}

fn ui_file(pages: &Pages, name: &str) -> Response {
    match utoipa_swagger_ui::serve(name, Arc::clone(&pages.ui)) {
        Ok(Some(file)) => {
            let kind = HeaderValue::from_str(&file.content_type)
                .unwrap_or(HeaderValue::from_static("application/octet-stream"));
            let mut response = ([(header::CONTENT_TYPE, kind)], file.bytes.into_owned()).into_response();
            if file.gzpipped {
                response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            }
            response
        }
        Ok(None) => ApiError::not_found("the user interface has no such file").into_response(),
        Err(error) => {
            tracing::error!("a file of the user interface: {error}");
            ApiError::internal().into_response()
        }
    }
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let PathItem { get, put, post, delete, patch, .. } = item;
    [get, put, post, delete, patch].into_iter().filter_map(Option::as_mut)
}
