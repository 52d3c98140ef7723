//! The server and the model in the terms of llama.cpp's API.

use serde_json::{Value, json};

use crate::engine::chooser::ChainSettings;
use crate::server::app::{App, Served};
use crate::server::ask::Ask;
use crate::server::chat::render;
use crate::server::error::ApiError;
use crate::server::fields::{Fields, decimal};
use crate::server::model::Model;

/// How tokens are chosen, for a request or where requests leave it open.
pub(super) fn settings(model: &Model, chain: &ChainSettings, ask: Option<&Ask>) -> Value {
    let sampling = &chain.sampling;
    let [temperature, top_p, min_p] =
        [sampling.temperature, sampling.top_p, sampling.min_p].map(decimal);
    let limit = ask.map_or(model.limit, |ask| Some(ask.limit));
    // No limit is -1.
    let limit = limit.and_then(|limit| i64::try_from(limit).ok());
    json!({
        "n_predict": limit.filter(|limit| *limit < i64::MAX).unwrap_or(-1),
        "seed": sampling.seed,
        "temperature": temperature,
        "top_k": sampling.top_k,
        "top_p": top_p,
        "min_p": min_p,
        "typical_p": decimal(chain.typical_p),
        "repeat_last_n": sampling.repeat_last_n,
        "repeat_penalty": decimal(sampling.repeat_penalty),
        "presence_penalty": decimal(sampling.presence_penalty),
        "frequency_penalty": decimal(sampling.frequency_penalty),
        "stream": ask.is_some_and(|ask| ask.stream),
        "stop": ask.map_or(&[][..], |ask| &ask.stops),
    })
}

/// The number of requests that are answered at once.
fn places(app: &App, served: &Served) -> usize {
    served
        .desk
        .capacity()
        .saturating_sub(app.settings.queue)
        .max(1)
}

/// The properties of the server and the model.
pub(in crate::server) fn props(app: &App, served: &Served) -> Value {
    let model = &served.model;
    let gguf = model.engine.model().gguf();
    let tokenizer = model.engine.tokenizer();
    let piece = |id: Option<u32>| id.map_or_else(String::new, |id| tokenizer.piece(id));
    json!({
        "default_generation_settings": {
            "n_ctx": model.engine.n_ctx(),
            "params": settings(model, &model.thinking, None),
        },
        "total_slots": places(app, served),
        "model_alias": model.name,
        "model_path": gguf.path().display().to_string(),
        "modalities": {"vision": false, "audio": false},
        "endpoint_slots": true,
        "endpoint_props": false,
        "endpoint_metrics": true,
        "chat_template": model.engine.chat_template().map_or("", |template| template.source()),
        "bos_token": piece(tokenizer.bos()),
        "eos_token": piece(tokenizer.stop_tokens().first().copied()),
        "build_info": concat!("glimt-", env!("CARGO_PKG_VERSION")),
        "is_sleeping": false,
    })
}

/// The places for requests, as many of them busy as requests are answered. Which request has which place means nothing here.
pub(in crate::server) fn slots(app: &App, served: &Served) -> Value {
    let running = app.metrics.figures().running;
    let slot = |id: usize| {
        json!({
            "id": id,
            "n_ctx": served.model.engine.n_ctx(),
            "speculative": false,
            "is_processing": id < running,
        })
    };
    (0..places(app, served)).map(slot).collect()
}

/// The text of a conversation in the model's template.
///
/// # Errors
/// The fault, by its field.
pub(in crate::server) fn apply_template(
    fields: &Fields<'_>,
    model: &Model,
) -> Result<String, ApiError> {
    Ok(json!({"prompt": render(fields, model)?.text}).to_string())
}
