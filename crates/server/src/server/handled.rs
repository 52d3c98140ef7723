//! The work on every request of a connection before it is routed.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Request, Response, StatusCode};
use axum::response::IntoResponse;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;

use super::around::OF_ROUTERS;
use super::connections::Open;
use super::error::ApiError;
use super::line::Line;

/// Serves the requests of a connection.
pub(super) struct Handled {
    inner: TowerToHyperService<Router>,
    open: Arc<Open>,
}

impl Handled {
    pub(super) fn new(inner: TowerToHyperService<Router>, open: Arc<Open>) -> Self {
        Self { inner, open }
    }
}

/// A request that is being answered.
struct Answering(Arc<Line>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.waits();
    }
}

/// The body of a request while it comes.
struct Arriving {
    body: Incoming,
    line: Arc<Line>,
}

impl Drop for Arriving {
    fn drop(&mut self) {
        self.line.wants_body(false);
    }
}

impl hyper::body::Body for Arriving {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let next = Pin::new(&mut self.body).poll_frame(context);
        self.line.wants_body(next.is_pending());
        next
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer, dropped when it was handed to the connection.
struct Answer {
    body: Body,
    _answering: Answering,
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn no_place() -> Response<Body> {
    let message = "all connections are taken; close those that you do not use, or ask again later";
    let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message);
    error.with_code("too_many_connections").into_response()
}

impl Service<Request<Incoming>> for Handled {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let line = &self.open.line;
        line.answers();
        let answering = Answering(Arc::clone(line));
        let mut request = request.map(|body| Arriving {
            body,
            line: Arc::clone(line),
        });
        request.extensions_mut().insert(self.open.peer);
        // Routers ask how the server is.
        let needs_place = !OF_ROUTERS.contains(&request.uri().path());
        let (inner, open) = (self.inner.clone(), Arc::clone(&self.open));
        Box::pin(async move {
            if needs_place && !open.place().await {
                return Ok(no_place());
            }
            let answer = inner.call(request).await?;
            Ok(answer.map(|body| {
                Body::new(Answer {
                    body,
                    _answering: answering,
                })
            }))
        })
    }
}
