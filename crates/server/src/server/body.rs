//! The body of a request, and what is made of it away from the threads that serve others.
//!
//! The bytes of all bodies that are in memory at the same time are bounded. Small bodies are not counted, and those of middle size have
//! bytes of their own, so a few large ones keep out only other large ones.

use std::future::poll_fn;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body as Stream;
use axum::http::{HeaderMap, Request, StatusCode, header};
use hyper::body::Body as _;
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use super::app::App;
use super::error::ApiError;
use super::memory;
use super::names::asks_for_form;
use super::peer::Peer;
use super::pool::Sender;
use super::reading::{MIDDLE, SMALL};
use super::tree::{self, TreeError};
use crate::effort::Effort;

/// A body has to be there within this time.
const TIME: Duration = Duration::from_secs(60);
/// A body that is counted may take this time, and more for its bytes at this rate, in bytes per second.
const COUNTED: (Duration, usize) = (Duration::from_secs(10), 32 << 10);
/// How long a form may take to be read.
const FORM_TIME: Duration = Duration::from_secs(3);
/// How long others may take to be read, small ones and large ones.
const READ_TIMES: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(30)];

enum Content {
    /// The text as it came.
    Text(Vec<u8>),
    /// Made elsewhere.
    Value(Value),
}

/// A body that is in memory.
pub(super) struct Body {
    content: Content,
    /// The bytes that this body holds of those that all bodies may have in memory.
    taken: Option<OwnedSemaphorePermit>,
    sender: Sender,
}

impl From<Value> for Body {
    fn from(value: Value) -> Self {
        Self {
            content: Content::Value(value),
            taken: None,
            sender: None,
        }
    }
}

impl Body {
    fn length(&self) -> usize {
        match &self.content {
            Content::Text(text) => text.len(),
            Content::Value(_) => 0,
        }
    }

    fn value(&mut self) -> Result<Value, ApiError> {
        match &mut self.content {
            Content::Value(value) => Ok(value.take()),
            Content::Text(text) => parsed(&std::mem::take(text)),
        }
    }
}

/// Parses JSON. Fields at the top that no API reads are left out.
///
/// # Errors
/// It is not JSON, is too large in memory, or nobody waits for it any more.
pub(super) fn parsed(text: &[u8]) -> Result<Value, ApiError> {
    tree::body(text).map_err(|error| match error {
        TreeError::Syntax(error) => ApiError::bad(format!("the body is not JSON: {error}")),
        TreeError::Large { .. } => too_large(format!("the body is too large: {error}")),
        TreeError::Stopped(stopped) => ApiError::stopped(stopped),
        TreeError::Twice { field, .. } => ApiError::field(field, format!("'{field}' {error}")),
    })
}

/// The most tokens of a text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Texts {
    /// The limit is little more than a context has. What is behind is not even counted.
    Answered,
    /// The limit is that of a client that asks how many tokens there are.
    Counted,
}

/// Tokens behind the end of the context that are still counted, so that a client knows how much to leave out.
const BEHIND: usize = 1 << 16;
/// Tokens that are counted for a client that asks how many there are.
const COUNTED_TOKENS: usize = 1 << 20;

/// Has what `work` makes of a body made by a thread that others do not wait for. It ends early if nobody waits for it any more.
///
/// # Errors
/// An error of `work`, or the problem with the body.
pub(super) async fn read<T: Send + 'static>(
    app: &App,
    mut body: Body,
    texts: Texts,
    work: impl FnOnce(&Value) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let n_ctx = app.served()?.model.engine.n_ctx();
    let tokens = match texts {
        Texts::Answered => n_ctx.saturating_add(BEHIND),
        Texts::Counted => n_ctx.max(COUNTED_TOKENS),
    };
    let limited = move |time| move |effort: Effort| effort.within(time).of_tokens(tokens);
    app.tidy.used();
    let (sender, length) = (body.sender, body.length());
    let [small, large] = READ_TIMES;
    let (pool, time) = match length {
        ..=SMALL => (&app.reading.small_ones, small),
        _ => (&app.reading.large_ones, large),
    };
    let tidy = move || {
        if length > SMALL {
            memory::give_back();
        }
    };
    let first = pool.run(sender, limited(time), move || {
        let value = match body.value() {
            Ok(value) => value,
            Err(error) => {
                tidy();
                return Err(error);
            }
        };
        // A request that asks for a form waits for others that do.
        if asks_for_form(&value) {
            return Ok(Err((value, body.taken.take(), work)));
        }
        let done = work(&value);
        drop((value, body));
        tidy();
        done.map(Ok)
    });
    let (value, taken, work) = match first.await? {
        Ok(done) => return Ok(done),
        Err(left) => left,
    };
    let forms = &app.reading.forms;
    let model = Arc::clone(&app.served()?.model);
    let limited_form = move |effort| {
        // The first form waits for the model's vocabulary, which takes as long whatever the form is. An error comes again where the form is made.
        let _ = model.engine.prepare_grammars();
        limited(FORM_TIME)(effort)
    };
    let last = forms.run(sender, limited_form, move || {
        let done = work(&value);
        drop((value, taken));
        tidy();
        done
    });
    last.await
}

fn too_large(message: String) -> ApiError {
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message).with_code("request_too_large")
}

/// Takes the body of a request into memory.
///
/// # Errors
/// A body that is no JSON as it says, is too long, or does not come in time.
pub(super) async fn take(app: &App, request: Request<Stream>) -> Result<Body, ApiError> {
    // Web pages of others cannot send JSON that is said to be so without being asked for leave first. A program sends no origin.
    if is_of_a_page(request.headers()) && !is_said_to_be_json(request.headers()) {
        let message = "a web page must send JSON with the header Content-Type: application/json";
        let error = ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message);
        return Err(error.with_code("unsupported_media_type"));
    }
    let sender = sender(app, &request);
    let most = app.settings.max_body;
    let declared = request.headers().get(header::CONTENT_LENGTH);
    let declared = declared.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let declared = declared.map(|length| usize::try_from(length).unwrap_or(usize::MAX));
    let over = || too_large(format!("the body has more than {most} bytes (--max-body)"));
    if declared.is_some_and(|length| length > most) {
        return Err(over());
    }
    let mut taken = app.reading.take(declared.unwrap_or(0)).await?;
    let mut counted = declared.unwrap_or(SMALL);
    let mut stream = request.into_body();
    let (mut began, mut text) = (Instant::now(), vec![]);
    loop {
        let next = poll_fn(|context| Pin::new(&mut stream).poll_frame(context));
        let until = began + time(text.len(), taken.is_some());
        let Ok(next) = timeout_at(until, next).await else {
            let message = "the body did not come in time";
            let error = ApiError::new(StatusCode::REQUEST_TIMEOUT, message);
            return Err(error.with_code("request_timeout"));
        };
        let Some(frame) = next else {
            break;
        };
        let unread = |error| ApiError::bad(format!("the body cannot be read: {error}"));
        let Ok(data) = frame.map_err(unread)?.into_data() else {
            continue;
        };
        let length = text.len() + data.len();
        if length > most {
            return Err(over());
        }
        // A body that does not tell its length may have all that is left.
        if length > counted {
            counted = if length <= MIDDLE[0] { MIDDLE[0] } else { most };
            drop(taken);
            let waits = Instant::now();
            taken = app.reading.take(counted.min(most)).await?;
            began += waits.elapsed();
        }
        text.extend_from_slice(&data);
    }
    Ok(Body {
        content: Content::Text(text),
        taken,
        sender,
    })
}

/// The time that a body may take of which `bytes` bytes are there.
fn time(bytes: usize, is_counted: bool) -> Duration {
    let (begin, rate) = COUNTED;
    match is_counted {
        true => TIME.min(begin + Duration::from_secs_f64(bytes as f64 / rate as f64)),
        false => TIME,
    }
}

/// The sender of a request.
fn sender(app: &App, request: &Request<Stream>) -> Sender {
    let peer = Peer::of_request(request.headers(), request.extensions(), &app.settings);
    match peer {
        // They may be many.
        Peer::Anybody => None,
        peer => Some(BuildHasherDefault::<DefaultHasher>::default().hash_one(peer)),
    }
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
