//! The body of a request, and what is made of it away from the threads that serve others.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode, header};
use serde_json::Value;

use super::app::App;
use super::error::ApiError;

/// A body has to be there within this time.
const TIME: Duration = Duration::from_secs(60);

/// Reads a body of JSON.
///
/// # Errors
/// A body that is none, is too long, or does not come in time.
pub(super) async fn json(app: &App, request: Request<Body>) -> Result<Value, ApiError> {
    // Web pages of others cannot send JSON that is said to be so without being asked for leave first. A program sends no origin.
    if is_of_a_page(request.headers()) && !is_said_to_be_json(request.headers()) {
        let message = "a web page must send JSON with the header Content-Type: application/json";
        let error = ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message);
        return Err(error.with_code("unsupported_media_type"));
    }
    let most = app.settings.max_body;
    let too_large = || {
        let message = format!("the body has more than {most} bytes (--max-body)");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message).with_code("request_too_large")
    };
    let too_slow = || {
        let message = "the body did not come in time";
        ApiError::new(StatusCode::REQUEST_TIMEOUT, message).with_code("request_timeout")
    };
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > most as u64) {
        return Err(too_large());
    }
    let read = tokio::time::timeout(TIME, to_bytes(request.into_body(), most)).await;
    let bytes = read
        .map_err(|_| too_slow())?
        .map_err(|error| match is_too_long(&error) {
            true => too_large(),
            false => ApiError::bad(format!("the body cannot be read: {error}")),
        })?;
    away(move || {
        serde_json::from_slice(&bytes)
            .map_err(|error| ApiError::bad(format!("the body is not JSON: {error}")))
    })
    .await
}

/// Whether a browser sends a request for a page.
fn is_of_a_page(headers: &HeaderMap) -> bool {
    headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site")
}

fn is_said_to_be_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json")
}

fn is_too_long(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.any(|cause| cause.to_string().contains("length limit exceeded"))
}

/// What `work` returns, on a thread of its own. If it panics, the request is refused and others go on.
///
/// # Errors
/// Those of `work`.
pub(super) async fn away<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| {
        let message = "this request met a bug of the program; others are still served";
        Err(ApiError::internal(message).for_good())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_refuses_its_request_alone() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.expect("the system gives a runtime");
        let failed = runtime.block_on(away::<()>(|| panic!("as a test wants it")));
        let error = failed.expect_err("it panicked");
        assert_eq!(error.status.as_u16(), 500);
        assert_eq!(error.json()["error"]["type"], "server_error");
        assert_eq!(runtime.block_on(away(|| Ok(7))), Ok(7));
    }
}
