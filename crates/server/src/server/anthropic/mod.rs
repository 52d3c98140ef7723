//! Anthropic's API: `/v1/messages` and `/v1/messages/count_tokens`, on top of chats.

mod events;
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
use super::kept::Kept;
use super::model::Model;
use super::reader::Reader;
use super::sse::Framing;
use super::translated;

/// The beginning of all its routes.
pub(super) const PATH: &str = "/v1/messages";

/// A request for the next message of a conversation.
pub(super) struct Message(Chat);

impl Form for Message {
    const ID: &'static str = "msg_";
    const FRAMING: Framing = Framing::Named;

    fn read(fields: &Fields<'_>, model: &Model, kept: &Arc<Kept>) -> Read<Self> {
        let body = request::chat(fields, model)?;
        let read = translated::read(fields, None, &body, |chat| Chat::read(chat, model, kept));
        let (chat, orders) = read.map_err(|error| error.renamed(&request::NAMES))?;
        Ok((Self(chat), orders))
    }

    fn ask(&self) -> &Ask {
        self.0.ask()
    }

    fn reader<'a>(&self, model: &'a Model) -> Reader<'a> {
        self.0.reader(model)
    }

    fn whole(&self, head: &Head, answers: Vec<Collected>, usage: &Usage) -> Value {
        let answer = answers.into_iter().next().unwrap_or_default();
        events::message(head, &answer, usage)
    }

    fn events<'a>(&'a self, head: &'a Head) -> impl deliver::Events + 'a {
        events::Events::new(head)
    }
}

/// The number of tokens in the messages of a request.
///
/// # Errors
/// The fault, by its field.
pub(super) fn count_tokens(fields: &Fields<'_>, model: &Model) -> Result<String, ApiError> {
    let body = request::chat(fields, model)?;
    let rendered = render(&Fields::of_body(&body)?, model);
    let rendered = rendered.map_err(|error| error.renamed(&request::NAMES))?;
    Ok(json!({"input_tokens": rendered.prompt.len()}).to_string())
}

/// An error in the form of the API.
pub(super) fn error(error: &ApiError) -> Value {
    let kind = match error.status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::GATEWAY_TIMEOUT => "timeout_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    };
    let message = match error.sizes() {
        // Agents look for these words, and shorten the conversation.
        Some([tokens, room]) => {
            let why = error.message();
            format!("prompt is too long: {tokens} tokens > {room} maximum; {why}")
        }
        None => error.message().to_owned(),
    };
    json!({"type": "error", "error": {"type": kind, "message": message}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_anthropics_form() {
        let found = error(&ApiError::busy(std::time::Duration::ZERO));
        assert_eq!(found["type"], "error");
        assert_eq!(found["error"]["type"], "rate_limit_error");
        let found = error(&ApiError::field("messages", "too long").too_many(70, 64));
        assert_eq!(found["error"]["type"], "invalid_request_error");
        let message = found["error"]["message"].as_str().expect("a text");
        assert!(message.starts_with("prompt is too long: 70 tokens > 64 maximum"));
    }
}
