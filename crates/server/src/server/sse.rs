//! Bodies that are sent while they are made: server-sent events, or lines of JSON.

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

/// The most events that wait for a reader. More stay tokens, which are smaller.
const WAITING: usize = 16;

/// A reader that takes nothing for so long has gone away, whatever its connection says.
const STALLED: Duration = Duration::from_secs(600);

/// How the events of a stream are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// Server-sent events, with OpenAI's mark of the end.
    Marked,
    /// Server-sent events.
    Plain,
    /// Server-sent events that are named by the field `type` of their data.
    Named,
    /// Lines of JSON.
    Lines,
}

impl Framing {
    fn content_type(self) -> &'static str {
        match self {
            Self::Marked | Self::Plain | Self::Named => "text/event-stream; charset=utf-8",
            Self::Lines => "application/x-ndjson",
        }
    }

    fn written(self, event: &Value) -> String {
        match self {
            Self::Marked | Self::Plain => format!("data: {event}\n\n"),
            Self::Named => {
                let name = event["type"].as_str().unwrap_or("message");
                format!("event: {name}\ndata: {event}\n\n")
            }
            Self::Lines => format!("{event}\n"),
        }
    }
}

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
pub(super) struct Stream {
    sender: Sender<Bytes>,
    framing: Framing,
}

/// The reader has gone away.
pub(super) struct Gone;

/// A response that is a stream, and what sends its events.
pub(super) fn stream(framing: Framing) -> (Response, Stream) {
    let (sender, receiver) = channel(WAITING);
    let headers = [
        (header::CONTENT_TYPE, framing.content_type()),
        (header::CACHE_CONTROL, "no-cache"),
        // Routers like nginx pass every event on at once.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    let body = Body::new(Events(receiver));
    ((headers, body).into_response(), Stream { sender, framing })
}

impl Stream {
    async fn bytes(&self, bytes: Bytes) -> Result<(), Gone> {
        match tokio::time::timeout(STALLED, self.sender.send(bytes)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Gone),
        }
    }

    /// Sends events.
    pub(super) async fn send(&self, events: Vec<Value>) -> Result<(), Gone> {
        for event in events {
            self.bytes(Bytes::from(self.framing.written(&event)))
                .await?;
        }
        Ok(())
    }

    /// Sends what no reader minds, so that routers see that the stream lives. Lines of JSON have nothing of the kind.
    pub(super) async fn comment(&self) -> Result<(), Gone> {
        match self.framing {
            Framing::Lines => Ok(()),
            _ => self.bytes(Bytes::from_static(b": waiting\n\n")).await,
        }
    }

    /// Sends that this is all, where that has a mark.
    pub(super) async fn done(&self) -> Result<(), Gone> {
        match self.framing {
            Framing::Marked => self.bytes(Bytes::from_static(b"data: [DONE]\n\n")).await,
            _ => Ok(()),
        }
    }

    /// Waits until the reader has gone away.
    pub(super) async fn gone(&self) {
        self.sender.closed().await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_are_framed_as_each_api_has_them() {
        let event = json!({"type": "ping", "text": "a\nb"});
        for (framing, expected) in [
            (
                Framing::Plain,
                "data: {\"type\":\"ping\",\"text\":\"a\\nb\"}\n\n",
            ),
            (
                Framing::Named,
                "event: ping\ndata: {\"type\":\"ping\",\"text\":\"a\\nb\"}\n\n",
            ),
            (Framing::Lines, "{\"type\":\"ping\",\"text\":\"a\\nb\"}\n"),
        ] {
            assert_eq!(framing.written(&event), expected);
        }
    }
}
