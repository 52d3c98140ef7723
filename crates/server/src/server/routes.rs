//! The routes of the server.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Extension, Router};
use hyper::body::Body as _;
use serde_json::{Value, json};

use super::app::{App, Phase, Served};
use super::around::around;
use super::ask::check_model;
use super::body::Texts;
use super::chat::Chat;
use super::completions::Completion;
use super::deliver::Form;
use super::error::{ApiError, json_response};
use super::fields::{Fields, decimal};
use super::kept::Kept;
use super::log::Record;
use super::model::Model;
use super::{anthropic, body, deliver, host, llama, missing, ollama, page, responses, text};

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
        // llama.cpp's clients leave the version out.
        .route("/chat/completions", post(answers::<Chat>))
        .route("/v1/models", get(models))
        .route("/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/tokenize", post_to(text::tokenize))
        .route("/detokenize", post_to(text::detokenize))
        .route("/health", get(health))
        .route("/v1/health", get(health))
        .route("/version", get(version))
        .route("/metrics", get(metrics))
        .merge(of_responses())
        .merge(of_others())
        .fallback(nothing)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(Arc::clone(&app), host::check))
        .layer(from_fn_with_state(Arc::clone(&app), around))
        .with_state(app)
}

/// Answers a request. If there is no place for it, it is refused before its body is read.
async fn answers<F: Form>(
    State(app): Shared,
    Extension(record): Extension<Arc<Record>>,
    request: Request,
) -> Answer {
    if !app.served()?.desk.has_place(record.peer) {
        return Err(app.busy());
    }
    let body = body::take(&app, request).await?;
    deliver::answer::<F>(&app, body, record).await
}

/// The routes of OpenAI's responses.
fn of_responses() -> Router<Arc<App>> {
    let one = get(
        async |State(app): Shared, Path(id): Path<String>, uri: Uri| {
            kept(&app, |kept| responses::get(kept, &id, uri.query()))
        },
    );
    let one = one.delete(async |State(app): Shared, Path(id): Path<String>| {
        kept(&app, |kept| responses::delete(kept, &id))
    });
    let input = get(async |State(app): Shared, Path(id): Path<String>| {
        kept(&app, |kept| responses::input_items(kept, &id))
    });
    let count = async |State(app): Shared,
                       Extension(record): Extension<Arc<Record>>,
                       request: Request|
           -> Answer {
        let (model, kept) = (Arc::clone(&app.served()?.model), Arc::clone(&app.kept));
        let body = body::take(&app, request).await?;
        let work = move |body: &Value| {
            let fields = Fields::of_body(body)?;
            check_model(&fields, &model)?;
            let found = responses::input_tokens(&fields, &model, &kept)?;
            record.disregarded(fields.unread(), vec![]);
            Ok(found)
        };
        let found = body::read(&app, body, Texts::Counted, work).await?;
        Ok(json_response(StatusCode::OK, found))
    };
    Router::new()
        .route("/v1/responses", post(answers::<responses::Response>))
        .route("/responses", post(answers::<responses::Response>))
        .route("/v1/responses/input_tokens", post(count))
        .route("/v1/responses/{id}", one)
        .route("/v1/responses/{id}/input_items", input)
}

/// The routes of Anthropic's, llama.cpp's and ollama's APIs.
fn of_others() -> Router<Arc<App>> {
    Router::new()
        .route(anthropic::PATH, post(answers::<anthropic::Message>))
        .route(
            "/v1/messages/count_tokens",
            post_to(anthropic::count_tokens),
        )
        .route("/completion", post(answers::<llama::Continued>))
        .route("/completions", post(answers::<llama::Continued>))
        .route("/props", get_from(llama::props))
        .route("/slots", get_from(llama::slots))
        .route("/slots/{id}", post(slot))
        .route("/apply-template", post_to(llama::apply_template))
        .route("/api/chat", post(answers::<ollama::Talk>))
        .route("/api/generate", post(answers::<ollama::Generate>))
        .route("/api/show", post_to(ollama::show))
        .route(
            "/api/tags",
            get_from(|_, served| ollama::tags(&served.model)),
        )
        .route(
            "/api/ps",
            get_from(|_, served| ollama::running(&served.model)),
        )
        .route("/api/version", get_from(|_, _| ollama::version()))
}

/// Answers with what is kept.
fn kept(app: &App, found: impl FnOnce(&Kept) -> Result<Value, ApiError>) -> Answer {
    Ok(json_response(StatusCode::OK, found(&app.kept)?.to_string()))
}

/// A route that tells what `told` makes of the server.
fn get_from(told: fn(&App, &Served) -> Value) -> MethodRouter<Arc<App>> {
    get(async move |State(app): Shared| -> Answer {
        let told = told(&app, app.served()?);
        Ok(json_response(StatusCode::OK, told.to_string()))
    })
}

/// The description of the model.
fn described(model: &Model) -> Value {
    let sampling = &model.thinking.sampling;
    json!({
        "id": model.name,
        "name": model.title,
        "object": "model",
        // As Anthropic's API has it.
        "type": "model",
        "display_name": model.name,
        "created_at": jiff::Timestamp::from_second(model.created).unwrap_or_default().to_string(),
        "created": model.created,
        "owned_by": "glimt",
        "root": model.engine.model().config().name,
        "parent": null,
        "max_model_len": model.engine.n_ctx(),
        "max_input_tokens": model.engine.n_ctx(),
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
    let list = json!({
        "object": "list",
        "first_id": model["id"],
        "last_id": model["id"],
        "has_more": false,
        "data": [model],
    });
    Ok(json_response(StatusCode::OK, list.to_string()))
}

async fn model(State(app): Shared, Path(id): Path<String>) -> Answer {
    let model = &app.served()?.model;
    match id == model.name {
        true => Ok(json_response(StatusCode::OK, described(model).to_string())),
        false => Err(ApiError::no_model(&id, &model.name)),
    }
}

/// A route that answers with what `work` makes of the fields of the body. Those that it does not look at are told as ignored.
fn post_to(work: fn(&Fields<'_>, &Model) -> Result<String, ApiError>) -> MethodRouter<Arc<App>> {
    post(
        async move |State(app): Shared,
                    Extension(record): Extension<Arc<Record>>,
                    request: Request|
                    -> Answer {
            let model = Arc::clone(&app.served()?.model);
            let body = body::take(&app, request).await?;
            let answer = move |body: &Value| {
                let fields = Fields::of_body(body)?;
                check_model(&fields, &model)?;
                let found = work(&fields, &model)?;
                record.disregarded(fields.unread(), vec![]);
                Ok(found)
            };
            let found = body::read(&app, body, Texts::Counted, answer).await?;
            Ok(json_response(StatusCode::OK, found))
        },
    )
}

/// Saves, restores or erases a slot. An action without a file needs no body.
async fn slot(State(app): Shared, Path(id): Path<String>, request: Request) -> Answer {
    app.served()?;
    let query = request.uri().query().map(str::to_owned);
    let folder = app.settings.slots.clone();
    let has_body = !request.body().is_end_stream();
    let asked = match has_body {
        true => {
            let body = body::take(&app, request).await?;
            let read = move |body: &Value| {
                let fields = Fields::of_body(body)?;
                llama::Asked::read(&id, query.as_deref(), Some(&fields), folder.as_deref())
            };
            body::read(&app, body, Texts::Counted, read).await?
        }
        false => llama::Asked::read(&id, query.as_deref(), None, folder.as_deref())?,
    };
    let done = asked.answer(&app).await?;
    Ok(json_response(StatusCode::OK, done.to_string()))
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
    missing::no_route(&method, uri.path())
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    missing::wrong_method(&method, uri.path())
}
