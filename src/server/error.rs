//! What a request is refused with, in the form of OpenAI's API, and what ends a server.

use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::engine::EngineError;

/// Why a server could not begin, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be bound.
    #[error("cannot listen on {address}: {source}; name another with --host and --port")]
    Bind {
        /// The address asked for.
        address: SocketAddr,
        /// What the system said.
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

/// What the log says of a request that was refused.
#[derive(Clone)]
pub(super) struct Code(pub(super) String);

/// A request that is refused.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ApiError {
    status: StatusCode,
    message: String,
    kind: &'static str,
    /// The field of the request that is wrong.
    param: Option<String>,
    code: Option<Cow<'static, str>>,
    /// Seconds after which it is worth asking again.
    retry_after: Option<u64>,
    /// Whether asking again can help, where clients would assume otherwise.
    no_retry: bool,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            kind,
            param: None,
            code: None,
            retry_after: None,
            no_retry: false,
        }
    }

    /// What is wrong with a field.
    pub(super) fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            param: Some(param.into()),
            ..Self::bad(message)
        }
    }

    /// What is wrong with a request as a whole.
    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    pub(super) fn with_code(self, code: &'static str) -> Self {
        Self {
            code: Some(Cow::Borrowed(code)),
            ..self
        }
    }

    pub(super) fn unauthorized(given: bool) -> Self {
        let message = match given {
            true => "the API key is not one of this server's",
            false => "this server wants an API key: Authorization: Bearer KEY",
        };
        let kind = "invalid_request_error";
        Self::new(StatusCode::UNAUTHORIZED, kind, message).with_code("invalid_api_key")
    }

    pub(super) fn no_route(method: &str, path: &str) -> Self {
        let message = format!("there is no {method} {path}; docs/serving.md lists what is served");
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message).with_code("not_found")
    }

    pub(super) fn wrong_method(method: &str, path: &str) -> Self {
        let message = format!("{path} does not take {method}");
        let status = StatusCode::METHOD_NOT_ALLOWED;
        Self::new(status, "invalid_request_error", message).with_code("method_not_allowed")
    }

    pub(super) fn no_model(asked: &str, served: &str) -> Self {
        let message = format!("the model '{asked}' does not exist; this server has '{served}'");
        let error = Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message);
        Self {
            param: Some("model".to_owned()),
            ..error.with_code("model_not_found")
        }
    }

    pub(super) fn not_json() -> Self {
        let message = "the body must be JSON, with the header Content-Type: application/json";
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        Self::new(status, "invalid_request_error", message).with_code("unsupported_media_type")
    }

    pub(super) fn too_large(most: usize) -> Self {
        let message = format!("the body has more than {most} bytes (--max-body)");
        let status = StatusCode::PAYLOAD_TOO_LARGE;
        Self::new(status, "invalid_request_error", message).with_code("request_too_large")
    }

    pub(super) fn too_slow() -> Self {
        let message = "the body did not come in time";
        let status = StatusCode::REQUEST_TIMEOUT;
        Self::new(status, "invalid_request_error", message).with_code("request_timeout")
    }

    /// The queue has no place.
    pub(super) fn busy() -> Self {
        let message = "all places of the queue are taken; ask again later";
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        Self {
            retry_after: Some(1),
            ..error.with_code("queue_full")
        }
    }

    /// The server has not begun, or is about to end.
    pub(super) fn unavailable(why: &'static str) -> Self {
        let message = format!("the server is {why}; ask again later");
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message);
        Self {
            retry_after: Some(5),
            ..error.with_code("unavailable")
        }
    }

    /// The answer took longer than it may.
    pub(super) fn out_of_time(seconds: u64) -> Self {
        let message = format!("the answer was not ready within {seconds} seconds (--timeout)");
        let error = Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout_error", message);
        Self {
            no_retry: true,
            ..error.with_code("timeout")
        }
    }

    /// What went wrong here.
    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// Nothing can be computed any more.
    pub(super) fn device(error: &str) -> Self {
        Self::internal(format!("the device failed: {error}")).with_code("device_failed")
    }

    /// Whether it is about all requests and not about this one: the device failed, or all is about to end.
    pub(super) fn is_of_all(&self) -> bool {
        self.status == StatusCode::SERVICE_UNAVAILABLE
            || self.code.as_deref() == Some("device_failed")
    }

    /// Asking again does not help.
    pub(super) fn for_good(self) -> Self {
        Self {
            no_retry: true,
            ..self
        }
    }

    /// The body.
    pub(super) fn json(&self) -> Value {
        json!({"error": {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }})
    }

    /// The HTTP status.
    pub(super) fn status(&self) -> StatusCode {
        self.status
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = json_response(self.status, &self.json());
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.no_retry {
            // OpenAI's clients go by it.
            headers.insert("x-should-retry", HeaderValue::from_static("false"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            headers.insert(header::WWW_AUTHENTICATE, scheme);
        }
        let code = self.code.unwrap_or(Cow::Borrowed(self.kind));
        response.extensions_mut().insert(Code(code.into_owned()));
        response
    }
}

/// A response of JSON.
pub(super) fn json_response(status: StatusCode, body: &Value) -> Response {
    json_text(status, body.to_string())
}

/// A response of JSON that is written already.
pub(super) fn json_text(status: StatusCode, body: String) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
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
        let busy = ApiError::busy().into_response();
        assert_eq!(busy.headers()[header::RETRY_AFTER], "1");
        let late = ApiError::out_of_time(3);
        assert_eq!(late.json()["error"]["param"], Value::Null);
        assert_eq!(late.into_response().headers()["x-should-retry"], "false");
    }
}
