//! The work of a scheduler, for native builds: a step waits for the device.

use std::cell::RefCell;
use std::ops::ControlFlow;

use super::single::Single;
use super::{Choice, Event, Request, Scheduler, Told, Work};
use crate::engine::backend::BackendError;
use crate::engine::chooser::{Chain, ChainSettings};
use crate::engine::{Engine, EngineError, StopReason};
use crate::gpu::wait::{complete, waits};

impl<'a> Scheduler<'a> {
    waits! {
        pub fn new(engine: &'a Engine) -> Result<Self, EngineError> = Self::new_async(engine);

        pub fn warm_up(&mut self, told: &mut dyn FnMut(usize, usize)) -> Result<(), EngineError> =
            self.warm_up_async(told);
    }

    /// Does the next piece of work and tells what came of it; without requests nothing. A break for a request cancels it: nothing more
    /// is told of it.
    ///
    /// # Errors
    /// What the device reports where it can compute nothing any more. No request is answered then, and none was told.
    pub fn step(&mut self, told: &mut Told<'_>) -> Result<(), EngineError> {
        match &mut self.work {
            Work::Single(single) => single.step(told),
            Work::Many(many) => complete(many.step(told)),
        }
    }
}

impl Single<'_> {
    /// Answers the next request.
    fn step(&mut self, told: &mut Told<'_>) -> Result<(), EngineError> {
        let Some((id, request)) = self.waiting.pop_front() else {
            return Ok(());
        };
        let Request {
            prompt,
            choice,
            limit,
        } = request;
        let cached = self.session.keep_common(&prompt);
        self.prefix_asked += prompt.len() as u64;
        self.prefix_found += cached as u64;
        let told = RefCell::new(told);
        let tell = |event| (told.borrow_mut())(id, event);
        let on_prompt = &mut |done: usize| {
            let done = cached + done;
            tell(Event::Prompt { done, cached })
        };
        if on_prompt(0).is_break() {
            return Ok(());
        }
        let on_token = &mut |token| tell(Event::Token(token));
        let (session, rest) = (&mut self.session, &prompt[cached..]);
        let ended = match choice {
            Choice::Device(sampling, biases) if biases.is_empty() => {
                session.generate_watched(rest, &sampling, limit, on_prompt, on_token)
            }
            Choice::Device(sampling, biases) => {
                // A session adds no biases on the device.
                let mut chain = Chain::new(ChainSettings {
                    logit_bias: biases.all().to_vec(),
                    ..ChainSettings::new(sampling)
                });
                session.generate_chosen(rest, &mut chain, limit, on_prompt, on_token)
            }
            Choice::Host(mut chooser) => {
                session.generate_chosen(rest, chooser.as_mut(), limit, on_prompt, on_token)
            }
        };
        let last = match ended {
            Ok(stats) if stats.stop == StopReason::Caller => return Ok(()),
            Ok(stats) => Event::Ended(stats),
            Err(error) if is_fatal(&error) => return Err(error),
            Err(error) => Event::Failed(error),
        };
        let (ControlFlow::Continue(()) | ControlFlow::Break(())) = tell(last);
        Ok(())
    }
}

/// Whether no other request can be answered either.
fn is_fatal(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::Gpu(_) | EngineError::Backend(BackendError::Gpu(_))
    )
}
