//! The steps around every request: its id, its key, who may ask from web pages, and its line in the log.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::app::{App, number};
use super::error::ApiError;
use super::keys::given;
use super::log::{IGNORED, NOT_ENFORCED, Record};
use super::peer::Peer;
use super::{anthropic, ollama, page};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// A header of Anthropic's clients, which ask for models where OpenAI's do.
const ANTHROPIC_VERSION: HeaderName = HeaderName::from_static("anthropic-version");
/// Routes that are asked again and again.
pub(super) const OF_ROUTERS: [&str; 3] = ["/health", "/v1/health", "/metrics"];
/// The most characters of a request's id, and of a route in the log.
const MOST: usize = 128;

/// Handles a request.
pub(super) async fn around(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> Response {
    let id = id(request.headers());
    let path: String = request.uri().path().chars().take(MOST).collect();
    let quiet = OF_ROUTERS.contains(&path.as_str());
    // A browser that opens the page has no key yet.
    let is_open = quiet || path == page::PATH;
    let record = Record::new(
        Arc::clone(&app.log),
        &id,
        request.method().as_str(),
        &path,
        quiet,
    );
    let peer = Peer::of_request(request.headers(), request.extensions(), &app.settings);
    let record = Arc::new(record.of(peer));
    if request.method() == Method::POST {
        record.reading(Arc::downgrade(&app.arriving));
    }
    let is_anthropics =
        path.starts_with(anthropic::PATH) || request.headers().contains_key(ANTHROPIC_VERSION);
    let origin = origin(&app, request.headers());
    let mut response = if origin.is_some() && is_preflight(&request) {
        preflight(request.headers())
    } else if let Err(error) = check_key(&app, request.headers(), is_open) {
        error.into_response()
    } else {
        request.extensions_mut().insert(Arc::clone(&record));
        next.run(request).await
    };
    let headers = response.headers_mut();
    for (name, value) in record.notes() {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(name, value);
        }
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert(REQUEST_ID, id);
    }
    if let Some(origin) = origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::VARY, HeaderValue::from_static("origin"));
        let exposed = format!("x-request-id, {IGNORED}, {NOT_ENFORCED}");
        if let Ok(exposed) = HeaderValue::from_str(&exposed) {
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
        }
    }
    record.status(response.status().as_u16());
    let failed = response.extensions_mut().remove::<ApiError>();
    if let Some(error) = failed {
        record.failed(error.code());
        if let Some(body) = in_own_form(&path, is_anthropics, &error, &id) {
            *response.body_mut() = Body::from(body.to_string());
        }
    }
    response
}

/// The body that tells of an error, where the API of a route has a form of its own.
fn in_own_form(path: &str, is_anthropics: bool, error: &ApiError, id: &str) -> Option<Value> {
    if is_anthropics {
        let mut body = anthropic::error(error);
        body["request_id"] = id.into();
        return Some(body);
    }
    let is_ollamas = path.starts_with(ollama::PATH);
    is_ollamas.then(|| ollama::error(error))
}

/// The id that a request brings, or a new one.
fn id(headers: &HeaderMap) -> String {
    let given = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
    let is_plain =
        |id: &&str| !id.is_empty() && id.len() <= MOST && id.chars().all(|c| c.is_ascii_graphic());
    match given.filter(is_plain) {
        Some(id) => id.to_owned(),
        None => format!("{:016x}{:016x}", number(), number()),
    }
}

fn check_key(app: &App, headers: &HeaderMap, is_open: bool) -> Result<(), ApiError> {
    let settings = &app.settings;
    if settings.keys.is_empty() || is_open && !settings.guard_all {
        return Ok(());
    }
    match given(headers) {
        Some(key) if settings.keys.find(key).is_some() => Ok(()),
        given => {
            let message = match given {
                Some(_) => "the API key is not one of this server's",
                None => "this server wants an API key: Authorization: Bearer KEY",
            };
            let error = ApiError::new(StatusCode::UNAUTHORIZED, message);
            Err(error.with_code("invalid_api_key"))
        }
    }
}

/// The origin of the web page that asks, if it may.
fn origin(app: &App, headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    let allowed = app.settings.cors.iter();
    let is_allowed = |allowed: &String| allowed == "*" || allowed.as_bytes() == origin.as_bytes();
    allowed.into_iter().any(is_allowed).then(|| origin.clone())
}

/// Whether a browser asks for leave.
fn is_preflight(request: &Request) -> bool {
    let asks = header::ACCESS_CONTROL_REQUEST_METHOD;
    request.method() == Method::OPTIONS && request.headers().contains_key(asks)
}

fn preflight(headers: &HeaderMap) -> Response {
    let methods = [(
        header::ACCESS_CONTROL_ALLOW_METHODS,
        "GET, POST, DELETE, OPTIONS",
    )];
    let wanted = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let wanted = wanted.map(|wanted| [(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted)]);
    let age = [(header::ACCESS_CONTROL_MAX_AGE, "600")];
    (StatusCode::NO_CONTENT, methods, wanted, age, ()).into_response()
}
