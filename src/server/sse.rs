//! Bodies that are sent while they are made: server-sent events.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;
use serde_json::Value;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Events that wait for a reader. More stay tokens, which are smaller.
const WAITING: usize = 16;

/// A reader that takes nothing for so long has gone away, whatever its connection says.
const STALLED: Duration = Duration::from_secs(600);

/// The body of a stream.
struct Events(Receiver<Bytes>);

impl hyper::body::Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.0.poll_recv(context);
        next.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// Sends events.
pub(super) struct Stream(Sender<Bytes>);

/// The reader has gone away.
pub(super) struct Gone;

/// A response that is a stream, and what sends its events.
pub(super) fn stream() -> (Response, Stream) {
    let (sender, receiver) = channel(WAITING);
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
        // Routers like nginx pass every event on at once.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    let body = Body::new(Events(receiver));
    ((headers, body).into_response(), Stream(sender))
}

impl Stream {
    async fn bytes(&self, bytes: Bytes) -> Result<(), Gone> {
        match tokio::time::timeout(STALLED, self.0.send(bytes)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Gone),
        }
    }

    /// Sends an event.
    pub(super) async fn send(&self, event: &Value) -> Result<(), Gone> {
        self.bytes(Bytes::from(format!("data: {event}\n\n"))).await
    }

    /// Sends what no reader minds, so that routers see that the stream lives.
    pub(super) async fn comment(&self) -> Result<(), Gone> {
        self.bytes(Bytes::from_static(b": waiting\n\n")).await
    }

    /// Sends that this is all.
    pub(super) async fn done(&self) -> Result<(), Gone> {
        self.bytes(Bytes::from_static(b"data: [DONE]\n\n")).await
    }

    /// Waits until the reader has gone away.
    pub(super) async fn gone(&self) {
        self.0.closed().await;
    }
}
