//! The answer to a client that asks for a route that does not exist: the route that it may have meant.

use axum::http::{Method, StatusCode};

use super::error::ApiError;

/// The routes that clients may mean, with their methods.
const ROUTES: [(&str, &str); 28] = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/responses/input_tokens"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("GET", "/v1/models"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/apply-template"),
    ("POST", "/completion"),
    ("GET", "/props"),
    ("GET", "/slots"),
    ("GET", "/health"),
    ("GET", "/v1/health"),
    ("GET", "/metrics"),
    ("GET", "/version"),
    ("POST", "/api/chat"),
    ("POST", "/api/generate"),
    ("POST", "/api/show"),
    ("GET", "/api/tags"),
    ("GET", "/api/ps"),
    ("GET", "/api/version"),
    ("POST", "/chat/completions"),
    ("POST", "/completions"),
    ("POST", "/responses"),
    ("GET", "/models"),
    ("GET", "/"),
];

/// The beginning of all of ollama's routes.
const OLLAMAS: &str = "/api/";
/// The reason why models are not changed.
const ONE_MODEL: &str = "this server has the one model that it was started with; get others with the command glimt pull";
/// The reason why vectors are not answered with.
const NO_EMBEDDINGS: &str =
    "this server has no embeddings: its models generate text; ask a server of an embedding model";

/// The reason why texts are not put into classes.
const NO_CLASSES: &str = "this server puts no texts into classes: its models generate text";
/// The reason why adapters are not listed or changed.
const NO_ADAPTERS: &str = "this server has no adapters: a model is served as its file has it";

/// Beginnings of routes of other servers, and what is said of them.
const OTHERS: [(&str, &str); 34] = [
    ("/models/load", ONE_MODEL),
    ("/models/unload", ONE_MODEL),
    ("/lora-adapters", NO_ADAPTERS),
    ("/v1/load_lora_adapter", NO_ADAPTERS),
    ("/v1/unload_lora_adapter", NO_ADAPTERS),
    ("/pooling", NO_EMBEDDINGS),
    ("/classify", NO_CLASSES),
    ("/v1/moderations", NO_CLASSES),
    ("/ping", "use GET /health"),
    ("/invocations", "use POST /v1/chat/completions"),
    ("/v1/complete", "use POST /v1/messages"),
    ("/v1/engines", "use POST /v1/completions"),
    ("/v1/chat", "use POST /v1/chat/completions"),
    ("/v1/generate", "use POST /v1/completions"),
    (
        "/generate",
        "use POST /v1/completions, or /completion as in llama.cpp",
    ),
    (
        "/infill",
        "this server continues texts and fills no gaps; use POST /completion",
    ),
    (
        "/v1/rerank",
        "this server ranks nothing: its models generate text",
    ),
    (
        "/v1/score",
        "this server ranks nothing: its models generate text",
    ),
    (
        "/rerank",
        "this server ranks nothing: its models generate text",
    ),
    ("/embed", NO_EMBEDDINGS),
    ("/v1/embed", NO_EMBEDDINGS),
    (
        "/v1/responses/compact",
        "nothing is compacted here: let the client shorten the conversation, by POST /v1/responses",
    ),
    (
        "/v1/responses",
        "use POST /v1/responses; a response is generated while its client waits, and ends when the client goes away",
    ),
    (
        "/v1/messages/batches",
        "answer files of requests with the command glimt batch",
    ),
    (
        "/v1/audio",
        "this server knows only text; use POST /v1/chat/completions",
    ),
    (
        "/v1/images",
        "this server knows only text; use POST /v1/chat/completions",
    ),
    ("/v1/assistants", "use POST /v1/responses"),
    (
        "/v1/threads",
        "use POST /v1/responses with previous_response_id",
    ),
    (
        "/v1/conversations",
        "use POST /v1/responses with previous_response_id",
    ),
    (
        "/v1/batches",
        "answer files of requests with the command glimt batch",
    ),
    (
        "/v1/files",
        "answer files of requests with the command glimt batch",
    ),
    ("/api/embed", NO_EMBEDDINGS),
    ("/api/push", ONE_MODEL),
    (OLLAMAS, ONE_MODEL),
];

/// How far two texts may be apart to be taken for each other.
const FAR: f64 = 0.75;

/// A route without what clients add by mistake: doubled parts, a slash at the end.
fn tidied(path: &str) -> String {
    let mut parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    parts.dedup();
    format!("/{}", parts.join("/")).to_lowercase()
}

/// The route that a client may have meant.
fn meant(path: &str) -> Option<(&'static str, &'static str)> {
    let tidy = tidied(path);
    let exact = |path: &str| ROUTES.iter().find(|(_, route)| *route == path).copied();
    let inner = tidy.find("/v1/").and_then(|at| exact(&tidy[at..]));
    let with_version = || exact(&format!("/v1{tidy}"));
    exact(&tidy).or(inner).or_else(with_version)
}

/// The route whose name is nearest, if one is near.
fn near(path: &str) -> Option<(&'static str, &'static str)> {
    let tidy = tidied(path);
    let closeness = |route: &str| {
        let plain = strsim::normalized_levenshtein(&tidy, route);
        plain.max(strsim::normalized_levenshtein(&format!("/v1{tidy}"), route))
    };
    let rated = ROUTES.iter().map(|route| (closeness(route.1), *route));
    let best = rated.max_by(|(one, _), (other, _)| one.total_cmp(other));
    best.filter(|(closeness, _)| *closeness >= FAR)
        .map(|(_, route)| route)
}

/// The advice for a client that asks for a route that does not exist.
fn hint(path: &str) -> String {
    if let Some((method, route)) = meant(path) {
        let base = match path.contains("/v1/v1") {
            true => " (the client adds /v1 itself: leave it out of the address)",
            false => "",
        };
        return format!("use {method} {route}{base}");
    }
    let tidy = tidied(path);
    let begins = |(begin, _): &&(&str, &str)| tidy.starts_with(begin);
    let others = || {
        OTHERS
            .iter()
            .filter(begins)
            .max_by_key(|(begin, _)| begin.len())
    };
    let is_known = others().is_some_and(|(begin, _)| *begin != OLLAMAS);
    if let Some((method, route)) = near(path).filter(|_| !is_known) {
        return format!("use {method} {route}");
    }
    let other = others().map(|(_, hint)| (*hint).to_owned());
    other.unwrap_or_else(|| "docs/serving.md lists what is served".to_owned())
}

/// The error for a route that does not exist.
pub(super) fn no_route(method: &Method, path: &str) -> ApiError {
    let message = format!("there is no {method} {path}; {}", hint(path));
    ApiError::new(StatusCode::NOT_FOUND, message).with_code("not_found")
}

/// The error for a method that a route does not take.
pub(super) fn wrong_method(method: &Method, path: &str) -> ApiError {
    // One with a name in it is known for other methods.
    let Some((right, _)) = ROUTES.iter().find(|(_, route)| *route == path) else {
        return no_route(method, path);
    };
    let message = format!("{path} does not take {method}; use {right} {path}");
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message).with_code("method_not_allowed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_route_is_named_that_a_client_may_mean() {
        for (asked, expected) in [
            ("/v1/chat/completion", "use POST /v1/chat/completions"),
            ("/v1/chat/completions/", "use POST /v1/chat/completions"),
            (
                "/v1/v1/messages",
                "use POST /v1/messages (the client adds /v1 itself",
            ),
            ("//v1/responses", "use POST /v1/responses"),
            ("/openai/v1/models", "use GET /v1/models"),
            ("/api/v1/chat/completions", "use POST /v1/chat/completions"),
            ("/messages", "use POST /v1/messages"),
            ("/v1/response", "use POST /v1/responses"),
            ("/v1/model", "use GET /v1/models"),
            ("/api/tag", "use GET /api/tags"),
            ("/api/embedding", "this server has no embeddings"),
            ("/v1/embeddings", "this server has no embeddings"),
            ("/v1/responses/compact", "nothing is compacted here"),
            ("/v1/responses/resp_1/cancel", "use POST /v1/responses; a"),
            ("/v1/messages/batches/x", "answer files of requests with"),
            ("/api/push", "this server has the one model"),
            ("/api/pull", "this server has the one model"),
            ("/v1/chat", "use POST /v1/chat/completions"),
            ("/v1/audio/speech", "this server knows only text"),
            ("/models/load", "this server has the one model"),
            ("/lora-adapters", "this server has no adapters"),
            ("/classify", "this server puts no texts"),
            ("/ping", "use GET /health"),
            ("/v1/nothing/of/the/kind", "docs/serving.md"),
        ] {
            assert!(
                hint(asked).starts_with(expected),
                "{asked}: {}",
                hint(asked)
            );
        }
        let error = wrong_method(&Method::POST, "/v1/responses/compact");
        assert_eq!(error.status, StatusCode::NOT_FOUND);
        let error = wrong_method(&Method::GET, "/v1/messages");
        assert_eq!(error.status, StatusCode::METHOD_NOT_ALLOWED);
    }
}
