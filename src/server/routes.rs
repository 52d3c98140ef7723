//! What is served where.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Extension, Router};
use serde_json::{Value, json};

use super::app::{App, Phase};
use super::around::around;
use super::chat::Chat;
use super::completions::Completion;
use super::deliver::Form;
use super::error::{ApiError, json_response};
use super::log::Record;
use super::model::Model;
use super::{body, deliver, page, text};

type Shared = State<Arc<App>>;
type Answer = Result<Response, ApiError>;

/// All routes.
pub(super) fn router(app: Arc<App>) -> Router {
    let router = match app.settings.page {
        true => Router::new().route(page::PATH, get(chat_page)),
        false => Router::new(),
    };
    router
        .route("/v1/chat/completions", post(answers::<Chat>))
        .route("/v1/completions", post(answers::<Completion>))
        .route("/v1/embeddings", post(embeddings))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/tokenize", post_to(text::tokenize))
        .route("/detokenize", post_to(text::detokenize))
        .route("/health", get(health))
        .route("/version", get(version))
        .route("/metrics", get(metrics))
        .fallback(nothing)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(Arc::clone(&app), around))
        .with_state(app)
}

/// Answers a request. If there is no place for it, it is refused before its body is read.
async fn answers<F: Form>(
    State(app): Shared,
    Extension(record): Extension<Arc<Record>>,
    request: Request,
) -> Answer {
    if !app.served()?.desk.has_place() {
        return Err(app.busy());
    }
    let body = body::json(&app, request).await?;
    deliver::answer::<F>(&app, body, record).await
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
        "name": model.title,
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
    Ok(json_response(StatusCode::OK, list.to_string()))
}

async fn model(State(app): Shared, Path(id): Path<String>) -> Answer {
    let model = &app.served()?.model;
    match id == model.name {
        true => Ok(json_response(StatusCode::OK, described(model).to_string())),
        false => Err(ApiError::no_model(&id, &model.name)),
    }
}

/// A route that answers with what `work` makes of the body.
fn post_to(work: fn(&Value, &Model) -> Result<String, ApiError>) -> MethodRouter<Arc<App>> {
    post(
        async move |State(app): Shared, request: Request| -> Answer {
            let model = Arc::clone(&app.served()?.model);
            let body = body::json(&app, request).await?;
            let found = body::away(move || work(&body, &model)).await?;
            Ok(json_response(StatusCode::OK, found))
        },
    )
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
    json_response(status, json!({ "status": text }).to_string())
}

async fn version() -> Response {
    let version = env!("CARGO_PKG_VERSION");
    json_response(StatusCode::OK, json!({ "version": version }).to_string())
}

async fn metrics(State(app): Shared) -> impl IntoResponse {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], app.metrics.figures().text())
}

async fn nothing(method: Method, uri: Uri) -> ApiError {
    let path = uri.path();
    let message = format!("there is no {method} {path}; docs/serving.md lists what is served");
    ApiError::new(StatusCode::NOT_FOUND, message).with_code("not_found")
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("{} does not take {method}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message).with_code("method_not_allowed")
}
