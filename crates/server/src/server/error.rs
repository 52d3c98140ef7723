//! The errors that a request is refused with, in the form of OpenAI's API, and those that end a server.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::effort::Stopped;
use crate::engine::EngineError;

/// Why a server could not begin, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be bound.
    #[error("cannot listen on {address}: {source}; name another with --host and --port")]
    Bind {
        /// The address asked for.
        address: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// The system gives no threads, or no sockets.
    #[error("cannot serve: {0}")]
    System(#[from] io::Error),
    /// Nothing can be computed any more, or not from the start.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The thread that computes has ended by a bug.
    #[error("the thread that computes has ended by a bug; start the server again")]
    Panicked,
}

/// A request for more than it may ask for. It is counted before anything is made for its answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum TooMany {
    #[error(
        "'n' asks for {n} answers to each of {prompts} prompts, {} in all, but a request may ask for {most} at most; send several requests",
        n.saturating_mul(*prompts)
    )]
    Answers {
        n: usize,
        prompts: usize,
        most: usize,
    },
    #[error(
        "'n' asks for {answers} answers, but this server has {places} places (--queue); send several requests"
    )]
    Places { answers: usize, places: usize },
}

impl TooMany {
    /// The refusal of the request.
    pub(super) fn refused(self) -> ApiError {
        ApiError::field("n", self.to_string())
    }
}

/// A request that is refused. A response that tells of it has it as an extension.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    message: String,
    /// The field of the request that is wrong.
    param: Option<String>,
    code: Option<&'static str>,
    /// Tokens of a prompt that is too long, and how many there is room for.
    too_many: Option<[usize; 2]>,
    /// Whether asking again can help, where clients would assume otherwise.
    no_retry: bool,
    /// The time after which asking again can help.
    after: Option<Duration>,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            param: None,
            code: None,
            too_many: None,
            no_retry: false,
            after: None,
        }
    }

    /// An error about one field.
    pub(super) fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            param: Some(param.into()),
            ..Self::bad(message)
        }
    }

    /// An error about a request as a whole.
    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(super) fn with_code(self, code: &'static str) -> Self {
        Self {
            code: Some(code),
            ..self
        }
    }

    /// This error, about a prompt of `tokens` tokens where there is room for fewer.
    pub(super) fn too_many(self, tokens: usize, room: usize) -> Self {
        Self {
            too_many: Some([tokens, room]),
            ..self.with_code("context_length_exceeded")
        }
    }

    /// The error with the names that its fields have in another API. Each is a name from the left, or from the right where it begins
    /// with a point.
    pub(super) fn renamed(mut self, names: &[(&str, &str)]) -> Self {
        let Some(param) = self.param.take() else {
            return self;
        };
        let mut named = param.clone();
        for (here, there) in names {
            let inner = named.strip_suffix(here).filter(|_| here.starts_with('.'));
            let outer = named.strip_prefix(here);
            let outer = outer.filter(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
            if let Some(before) = inner {
                named = format!("{before}{there}");
            } else if let Some(rest) = outer {
                named = format!("{there}{rest}");
            }
        }
        let quoted = |name: &str| format!("'{name}'");
        self.message = self.message.replace(&quoted(&param), &quoted(&named));
        self.param = Some(named);
        self
    }

    pub(super) fn message(&self) -> &str {
        &self.message
    }

    /// Tokens of a prompt that is too long, and how many there is room for.
    pub(super) fn sizes(&self) -> Option<[usize; 2]> {
        self.too_many
    }

    /// The code that the log has for this error.
    pub(super) fn code(&self) -> &'static str {
        self.code.unwrap_or(self.kind())
    }

    pub(super) fn no_model(asked: &str, served: &str) -> Self {
        let message = format!("the model '{asked}' does not exist; this server has '{served}'");
        Self {
            status: StatusCode::NOT_FOUND,
            ..Self::field("model", message).with_code("model_not_found")
        }
    }

    /// The queue has no place, and may have one after some time.
    pub(super) fn busy(after: Duration) -> Self {
        let message = "all places of the queue are taken; ask again later";
        Self::new(StatusCode::TOO_MANY_REQUESTS, message)
            .with_code("queue_full")
            .after(after)
    }

    /// The server has not begun, or is about to end.
    pub(super) fn unavailable(why: &'static str) -> Self {
        let message = format!("the server is {why}; ask again later");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message).with_code("unavailable")
    }

    /// Too much is being read.
    pub(super) fn overloaded() -> Self {
        let message = "too many large requests are being read; ask again later";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message).with_code("overloaded")
    }

    /// The work on a request was stopped before its answer.
    pub(super) fn stopped(why: Stopped) -> Self {
        Self::bad(format!("the request was not read to its end: {why}")).with_code("too_complex")
    }

    /// Asking again can help after some time.
    pub(super) fn after(self, after: Duration) -> Self {
        Self {
            after: Some(after),
            ..self
        }
    }

    /// An error of the server, and not of the request.
    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// Nothing can be computed any more.
    pub(super) fn device(error: &str) -> Self {
        Self::internal(format!("the device failed: {error}")).with_code("device_failed")
    }

    /// Whether the error is about all requests and not about this one: the device failed, or the server is about to end.
    pub(super) fn is_of_all(&self) -> bool {
        self.status == StatusCode::SERVICE_UNAVAILABLE || self.code == Some("device_failed")
    }

    /// Asking again does not help.
    pub(super) fn for_good(self) -> Self {
        Self {
            no_retry: true,
            ..self
        }
    }

    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::GATEWAY_TIMEOUT => "timeout_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The body.
    pub(super) fn json(&self) -> Value {
        json!({"error": {
            "message": self.message,
            "type": self.kind(),
            "param": self.param,
            "code": self.code,
        }})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = json_response(self.status, self.json().to_string());
        let headers = response.headers_mut();
        let mut put = |name, value| headers.insert(name, HeaderValue::from_static(value));
        if self.status == StatusCode::UNAUTHORIZED {
            put(header::WWW_AUTHENTICATE, "Bearer");
        }
        if self.no_retry {
            // OpenAI's clients go by it.
            put(HeaderName::from_static("x-should-retry"), "false");
        }
        let waits = [
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::SERVICE_UNAVAILABLE,
        ];
        if self.after.is_some() || waits.contains(&self.status) {
            // Whole seconds, at least one.
            let after = self.after.unwrap_or_default();
            let seconds = after.as_millis().div_ceil(1000).max(1) as u64;
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// A response of JSON.
pub(super) fn json_response(status: StatusCode, body: String) -> Response {
    let json = [(header::CONTENT_TYPE, "application/json")];
    (status, json, body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_openais_form() {
        let error = ApiError::field("messages[0].role", "no such role").with_code("wrong");
        let expected = json!({"error": {
            "message": "no such role",
            "type": "invalid_request_error",
            "param": "messages[0].role",
            "code": "wrong",
        }});
        assert_eq!(error.json(), expected);
        assert_eq!(error.into_response().status(), StatusCode::BAD_REQUEST);
        for (millis, expected) in [(0, "1"), (900, "1"), (1000, "1"), (7300, "8")] {
            let busy = ApiError::busy(Duration::from_millis(millis)).into_response();
            assert_eq!(busy.headers()[header::RETRY_AFTER], expected);
        }
        let many = TooMany::Answers {
            n: 128,
            prompts: 100,
            most: 1024,
        };
        let many = many.refused();
        assert_eq!(many.param.as_deref(), Some("n"));
        for number in ["128", "100", "12800", "1024"] {
            assert!(many.message().contains(number), "{}", many.message());
        }
        let late = ApiError::new(StatusCode::GATEWAY_TIMEOUT, "late").for_good();
        assert_eq!(late.json()["error"]["type"], "timeout_error");
        assert_eq!(late.json()["error"]["param"], Value::Null);
        assert_eq!(late.into_response().headers()["x-should-retry"], "false");
    }

    #[test]
    fn fields_are_told_by_the_names_of_the_api() {
        let names = [("stop", "stop_sequences"), (".function.name", ".name")];
        for (field, expected) in [
            ("stop", "stop_sequences"),
            ("stop[1]", "stop_sequences[1]"),
            ("stops", "stops"),
            ("tools[0].function.name", "tools[0].name"),
        ] {
            let error = ApiError::field(field, format!("'{field}' is wrong")).renamed(&names);
            let told = format!("'{expected}' is wrong");
            assert_eq!(
                (error.param.as_deref(), error.message()),
                (Some(expected), told.as_str())
            );
        }
    }
}
