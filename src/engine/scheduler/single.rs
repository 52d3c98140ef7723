//! One request at a time, in a session.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use web_time::{Duration, Instant};

use super::request::{Counts, Request, RequestId};
use crate::engine::backend::BackendError;
use crate::engine::{Engine, EngineError, Sampling, Session};

/// Tokens of the prompts that warm a session up: each takes another step.
const PROMPTS: [usize; 5] = [1, 8, 32, 128, 512];

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

    /// Answers prompts of tokens that mean nothing, longer and longer ones on a GPU, as far as there is time.
    pub(super) async fn warm_up(
        &mut self,
        most: Duration,
        told: &mut dyn FnMut(usize, usize),
    ) -> Result<(), EngineError> {
        let began = Instant::now();
        let engine = self.session.engine();
        let lengths = match engine.tier() {
            // The CPU compiles nothing. A token brings the weights that it uses into memory.
            None => &PROMPTS[..1],
            Some(_) => &PROMPTS[..],
        };
        for (done, &tokens) in lengths.iter().enumerate() {
            told(done, lengths.len());
            if tokens + 1 >= engine.n_ctx() || began.elapsed() >= most {
                break;
            }
            let (prompt, greedy) = (vec![0; tokens], Sampling::GREEDY);
            let on_prompt = &mut |_| ControlFlow::Continue(());
            let on_token = &mut |_| ControlFlow::Continue(());
            let (session, limit) = (&mut self.session, 2);
            let warmed = session.generate_async(&prompt, &greedy, limit, on_prompt, on_token);
            let warmed = warmed.await;
            self.session.reset();
            match warmed {
                // Requests will tell.
                Ok(_) | Err(EngineError::Backend(BackendError::NotFinite { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        told(lengths.len(), lengths.len());
        Ok(())
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
