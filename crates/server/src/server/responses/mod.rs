//! OpenAI's `/v1/responses`, on top of chats.

mod events;
mod items;
mod request;

use std::sync::Arc;

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::answers::Usage;
use super::ask::Ask;
use super::chat::{Chat, render};
use super::deliver::{self, Collected, Form, Head, Read};
use super::error::ApiError;
use super::fields::Fields;
use super::kept::{Answer, Kept};
use super::model::Model;
use super::reader::Reader;
use super::sse::Framing;
use super::translated;
use items::Shape;

/// A request for a response.
pub(super) struct Response {
    chat: Chat,
    /// The fields that the response repeats.
    repeated: Value,
    shape: Shape,
    /// The items of the request.
    input: Vec<Value>,
    previous: Option<String>,
    /// The store in which the response is kept, if it is.
    kept: Option<Arc<Kept>>,
}

impl Form for Response {
    const ID: &'static str = "resp_";
    const FRAMING: Framing = Framing::Named;

    fn read(fields: &Fields<'_>, model: &Model, kept: &Arc<Kept>) -> Read<Self> {
        let request = request::Request::read(fields, kept)?;
        let read = translated::read(fields, None, &request.chat, |chat| {
            Chat::read(chat, model, kept)
        });
        let (chat, orders) = read.map_err(|error| error.renamed(&request::NAMES))?;
        let response = Self {
            repeated: request::repeated(fields, &request),
            chat,
            shape: request.shape,
            input: request.input,
            previous: request.previous,
            kept: request.store.then(|| Arc::clone(kept)),
        };
        Ok((response, orders))
    }

    fn ask(&self) -> &Ask {
        self.chat.ask()
    }

    fn not_enforced(&self) -> Vec<String> {
        self.chat.not_enforced()
    }

    fn reader<'a>(&self, model: &'a Model) -> Reader<'a> {
        self.chat.reader(model)
    }

    fn whole(&self, head: &Head, answers: Vec<Collected>, usage: &Usage) -> Value {
        let answer = answers.into_iter().next().unwrap_or_default();
        let log_probs = self.shape.log_probs(&head.model, &answer.log_probs);
        let items = items::all(&self.shape, &answer.blocks, answer.reason, &log_probs);
        self.ended(head, items, answer.reason, usage)
    }

    fn events<'a>(&'a self, head: &'a Head) -> impl deliver::Events + 'a {
        events::Events::new(self, head)
    }
}

impl Response {
    /// The response with these items.
    fn around(&self, head: &Head, status: &str, output: Vec<Value>) -> Value {
        let mut response = json!({
            "id": head.id,
            "object": "response",
            "created_at": head.created,
            "status": status,
            "background": false,
            "error": null,
            "incomplete_details": null,
            "model": head.model.name,
            "output": output,
            "usage": null,
        });
        if let (Some(all), Some(repeated)) = (response.as_object_mut(), self.repeated.as_object()) {
            all.extend(repeated.clone());
        }
        response
    }

    /// The response at its end, which is kept if the request does not forbid it.
    fn ended(&self, head: &Head, output: Vec<Value>, reason: &str, usage: &Usage) -> Value {
        let status = items::status(reason);
        let mut response = self.around(head, status, output);
        if status == "incomplete" {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        } else {
            response["completed_at"] = jiff::Timestamp::now().as_second().into();
        }
        response["usage"] = json!({
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.cached},
            "output_tokens": usage.generated,
            "output_tokens_details": {"reasoning_tokens": usage.thoughts},
            "total_tokens": usage.prompt + usage.generated,
        });
        if let Some(kept) = &self.kept {
            let answer = Answer {
                previous: self.previous.clone(),
                input: self.input.clone(),
                body: response.clone(),
            };
            kept.put(&head.id, answer);
        }
        response
    }
}

/// The number of tokens in the input of a request.
///
/// # Errors
/// The fault, by its field.
pub(super) fn input_tokens(
    fields: &Fields<'_>,
    model: &Model,
    kept: &Kept,
) -> Result<String, ApiError> {
    let request = request::Request::read(fields, kept)?;
    let rendered = render(&Fields::of_body(&request.chat)?, model);
    let rendered = rendered.map_err(|error| error.renamed(&request::NAMES))?;
    let found = json!({"object": "response.input_tokens", "input_tokens": rendered.prompt.len()});
    Ok(found.to_string())
}

/// The error for a response that is not kept.
fn not_kept(id: &str) -> ApiError {
    let message = format!(
        "there is no response '{id}': the server keeps a limited number in memory, and none with store false"
    );
    ApiError::new(StatusCode::NOT_FOUND, message).with_code("not_found")
}

/// A response that is kept.
///
/// # Errors
/// If it is not, or if its events are asked for.
pub(super) fn get(kept: &Kept, id: &str, query: Option<&str>) -> Result<Value, ApiError> {
    let parts = query.unwrap_or_default().split('&');
    if parts
        .into_iter()
        .any(|part| part.eq_ignore_ascii_case("stream=true"))
    {
        let message =
            "'stream' must be false: the events of a response are not kept; retrieve it as a whole";
        return Err(ApiError::field("stream", message));
    }
    let answer = kept.get(id).ok_or_else(|| not_kept(id))?;
    Ok(answer.body.clone())
}

/// Forgets a response.
///
/// # Errors
/// If it is not kept.
pub(super) fn delete(kept: &Kept, id: &str) -> Result<Value, ApiError> {
    match kept.remove(id) {
        true => Ok(json!({"id": id, "object": "response", "deleted": true})),
        false => Err(not_kept(id)),
    }
}

/// The items of the request for a response that is kept.
///
/// # Errors
/// If it is not.
pub(super) fn input_items(kept: &Kept, id: &str) -> Result<Value, ApiError> {
    let answer = kept.get(id).ok_or_else(|| not_kept(id))?;
    // The newest first, as the API has it.
    let items: Vec<_> = answer.input.iter().rev().collect();
    let id = |item: Option<&&Value>| item.map_or(Value::Null, |item| item["id"].clone());
    Ok(json!({
        "object": "list",
        "data": items,
        "first_id": id(items.first()),
        "last_id": id(items.last()),
        "has_more": false,
    }))
}
