//! The page at `/`: a chat in one file of HTML, with its style and its script inside. It loads nothing else and asks this server alone.

#[cfg(test)]
mod tests;

use std::sync::LazyLock;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest, Sha256};

const HTML: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
/// The script, in the order of what uses what.
const SCRIPT: &str = concat!(
    "\"use strict\";\n",
    include_str!("markdown.js"),
    include_str!("api.js"),
    include_str!("settings.js"),
    include_str!("chat.js"),
);

/// The path at which it is served.
pub(super) const PATH: &str = "/";

/// The page as it is sent.
struct Page {
    html: String,
    headers: HeaderMap,
}

static PAGE: LazyLock<Page> = LazyLock::new(|| {
    let html = HTML
        .replacen("{{style}}", STYLE, 1)
        .replacen("{{script}}", SCRIPT, 1);
    // It changes with the page.
    let tag = format!(
        "\"{}\"",
        BASE64_STANDARD.encode(&Sha256::digest(&html)[..12])
    );
    let mut headers = HeaderMap::new();
    for (name, value) in [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        // It is asked for each time, and sent only if it has changed.
        (header::CACHE_CONTROL, "no-cache"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CONTENT_SECURITY_POLICY, &policy()),
        (header::ETAG, &tag),
    ] {
        // All values are ASCII, so none is refused.
        headers.extend(HeaderValue::from_str(value).map(|value| (name, value)));
    }
    Page { html, headers }
});

/// The rules that a browser enforces on the page: it may run its own script, use its own style and ask its own server. Reading a text as
/// HTML fails.
fn policy() -> String {
    let own = |text: &str| format!("'sha256-{}'", BASE64_STANDARD.encode(Sha256::digest(text)));
    let (script, style) = (own(SCRIPT), own(STYLE));
    format!(
        "default-src 'none'; script-src {script}; style-src {style}; img-src data:; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
}

/// The page, or word that the browser has it.
pub(super) fn page(asked: &HeaderMap) -> Response {
    let Page { html, headers } = &*PAGE;
    let known = asked
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .filter_map(|tags| tags.to_str().ok())
        .flat_map(|tags| tags.split(','))
        .any(|tag| headers[header::ETAG] == *tag.trim().trim_start_matches("W/"));
    let (status, body) = match known {
        true => (StatusCode::NOT_MODIFIED, Body::empty()),
        false => (StatusCode::OK, Body::from(html.as_str())),
    };
    let mut response = (status, headers.clone(), body).into_response();
    if known {
        response.headers_mut().remove(header::CONTENT_TYPE);
    }
    response
}
