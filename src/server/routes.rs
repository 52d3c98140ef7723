//! What is served where.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Extension, Router};
use serde_json::{Value, json};

use super::app::{App, Phase};
use super::around::around;
use super::body;
use super::error::{ApiError, json_response, json_text};
use super::log::Record;
use super::model::Model;
use super::{chat, completions, page, text};

type Shared = State<Arc<App>>;
type Answer = Result<Response, ApiError>;

/// All routes.
pub(super) fn router(app: Arc<App>) -> Router {
    let router = match app.settings.page {
        true => Router::new().route(page::PATH, get(chat_page)),
        false => Router::new(),
    };
    router
        .route("/v1/chat/completions", post(chat_completions))
        .route("/v1/completions", post(text_completions))
        .route("/v1/embeddings", post(embeddings))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/health", get(health))
        .route("/version", get(version))
        .route("/metrics", get(metrics))
        .fallback(nothing)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(Arc::clone(&app), around))
        .with_state(app)
}

/// Refuses a request for which there is no place before its body is read.
fn check_place(app: &App) -> Result<(), ApiError> {
    match app.served()?.desk.has_places(1) {
        true => Ok(()),
        false => {
            app.metrics.refused();
            Err(ApiError::busy())
        }
    }
}

async fn chat_completions(
    State(app): Shared,
    Extension(record): Extension<Record>,
    request: Request,
) -> Answer {
    check_place(&app)?;
    let body = body::json(&app, request).await?;
    chat::answer(&app, body, record).await
}

async fn text_completions(
    State(app): Shared,
    Extension(record): Extension<Record>,
    request: Request,
) -> Answer {
    check_place(&app)?;
    let body = body::json(&app, request).await?;
    completions::answer(&app, body, record).await
}

async fn embeddings() -> Answer {
    let message = "this server has no embeddings: its models generate text; ask a server of an embedding model";
    Err(ApiError::bad(message).with_code("unsupported"))
}

/// A number as it was written: the nearest in double precision to one in single precision has more digits.
fn decimal(number: f32) -> Value {
    number
        .to_string()
        .parse::<f64>()
        .map_or(Value::Null, Value::from)
}

/// What is told of the model.
fn described(model: &Model) -> Value {
    let sampling = &model.thinking.sampling;
    json!({
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "glimt",
        "root": model.engine.model().config().name,
        "parent": null,
        "max_model_len": model.engine.n_ctx(),
        "permission": [],
        "thinking_switch": model.may_switch_thinking(),
        "sampling": {
            "temperature": decimal(sampling.temperature),
            "top_p": decimal(sampling.top_p),
            "top_k": sampling.top_k,
            "min_p": decimal(sampling.min_p),
        },
    })
}

async fn models(State(app): Shared) -> Answer {
    let model = described(&app.served()?.model);
    let list = json!({"object": "list", "data": [model]});
    Ok(json_response(StatusCode::OK, &list))
}

async fn model(State(app): Shared, Path(id): Path<String>) -> Answer {
    let model = &app.served()?.model;
    match id == model.name {
        true => Ok(json_response(StatusCode::OK, &described(model))),
        false => Err(ApiError::no_model(&id, &model.name)),
    }
}

async fn tokenize(State(app): Shared, request: Request) -> Answer {
    with_model(app, request, text::tokenize).await
}

async fn detokenize(State(app): Shared, request: Request) -> Answer {
    with_model(app, request, text::detokenize).await
}

/// Answers with what `work` makes of a body.
async fn with_model(
    app: Arc<App>,
    request: Request,
    work: fn(&Value, &Model) -> Result<String, ApiError>,
) -> Answer {
    let model = Arc::clone(&app.served()?.model);
    let body = body::json(&app, request).await?;
    let found = body::away(move || work(&body, &model)).await?;
    Ok(json_text(StatusCode::OK, found))
}

async fn chat_page(headers: HeaderMap) -> Response {
    page::page(&headers)
}

async fn health(State(app): Shared) -> Response {
    let (status, text) = match *app.phase.borrow() {
        Phase::Ready => (StatusCode::OK, "ok"),
        Phase::Loading => (StatusCode::SERVICE_UNAVAILABLE, "loading"),
        Phase::Draining => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
    };
    json_response(status, &json!({ "status": text }))
}

async fn version() -> Response {
    let version = env!("CARGO_PKG_VERSION");
    json_response(StatusCode::OK, &json!({ "version": version }))
}

async fn metrics(State(app): Shared) -> Response {
    let mut response = Response::new(Body::from(app.metrics.text()));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

async fn nothing(method: Method, uri: Uri) -> ApiError {
    ApiError::no_route(method.as_str(), uri.path())
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    ApiError::wrong_method(method.as_str(), uri.path())
}
