//! One request at a time, in a session.

use std::collections::VecDeque;

use super::request::{Counts, Request, RequestId};
use crate::engine::{Engine, EngineError, Session};

/// Requests that a session answers one after the other.
pub(super) struct Single<'a> {
    pub(super) session: Session<'a>,
    pub(super) waiting: VecDeque<(RequestId, Request)>,
    pub(super) prefix_asked: u64,
    pub(super) prefix_found: u64,
}

impl<'a> Single<'a> {
    /// Without requests.
    pub(super) async fn new(engine: &'a Engine) -> Result<Self, EngineError> {
        Ok(Self {
            session: engine.session_async().await?,
            waiting: VecDeque::new(),
            prefix_asked: 0,
            prefix_found: 0,
        })
    }

    pub(super) fn cancel(&mut self, id: RequestId) {
        self.waiting.retain(|(waiting, _)| *waiting != id);
    }

    pub(super) fn counts(&self) -> Counts {
        Counts {
            running: 0,
            waiting: self.waiting.len(),
            // Between two steps no request is answered.
            rows: 0,
            rows_in_all: self.session.engine().n_ctx(),
            prefix_asked: self.prefix_asked,
            prefix_found: self.prefix_found,
        }
    }
}
