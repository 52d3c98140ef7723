//! Waiting for a session, for native builds: what blocks on the futures of this module.

use std::ops::ControlFlow;
use std::thread;

use super::backend::{OnPrompt, OnRow, OnToken};
use super::chooser::Chooser;
use super::device::{self, Device};
use super::opened::{File, Opened};
use super::{
    Engine, EngineError, EngineOptions, GenerateStats, LoadProgress, ModelSource, Sampling, Session,
};
use crate::gpu::AdapterSummary;
use crate::gpu::wait::{complete, waits};

impl Opened {
    /// As [`new_async`](Self::new_async), and reads the file while the device opens.
    pub fn new(source: &ModelSource, options: &EngineOptions) -> Result<Self, EngineError> {
        let file = File::read(source, options)?;
        // A vocabulary of 150000 tokens and a GPU take some tenths of a second each.
        let (text, device) = thread::scope(|scope| {
            let text = scope.spawn(|| file.text());
            let device = complete(Device::open(options));
            match text.join() {
                Ok(text) => (text, device),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        });
        Self::of(file, text?, device?, options)
    }
}

waits! {
    pub fn adapter(options: &EngineOptions) -> Result<Option<AdapterSummary>, EngineError> =
        device::adapter_async(options);
}

impl Engine {
    waits! {
        pub fn load(opened: Opened, progress: &mut dyn FnMut(LoadProgress)) -> Result<Self, EngineError> =
            Self::load_async(opened, progress);

        pub fn session(&self) -> Result<Session<'_>, EngineError> = self.session_async();
    }
}

impl Session<'_> {
    /// As [`generate_watched`](Self::generate_watched), with nobody told of the prompt.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        sampling: &Sampling,
        limit: usize,
        on_token: &mut OnToken<'_>,
    ) -> Result<GenerateStats, EngineError> {
        let unwatched = &mut |_| ControlFlow::Continue(());
        self.generate_watched(prompt, sampling, limit, unwatched, on_token)
    }

    /// [`generate_async`](Self::generate_async), waited for.
    pub fn generate_watched(
        &mut self,
        prompt: &[u32],
        sampling: &Sampling,
        limit: usize,
        on_prompt: &mut OnPrompt<'_>,
        on_token: &mut OnToken<'_>,
    ) -> Result<GenerateStats, EngineError> {
        let mut answer = match complete(self.begin(prompt, limit, None, on_prompt))? {
            ControlFlow::Continue(answer) => answer,
            ControlFlow::Break(stats) => return Ok(stats),
        };
        self.decode(&mut answer, sampling, on_token)?;
        Ok(self.end(answer))
    }

    /// [`generate_chosen_async`](Self::generate_chosen_async), waited for.
    ///
    /// # Errors
    /// As for [`generate_chosen_async`](Self::generate_chosen_async).
    pub fn generate_chosen(
        &mut self,
        prompt: &[u32],
        chooser: &mut dyn Chooser,
        limit: usize,
        on_prompt: &mut OnPrompt<'_>,
        on_token: &mut OnToken<'_>,
    ) -> Result<GenerateStats, EngineError> {
        complete(self.generate_chosen_async(prompt, chooser, limit, on_prompt, on_token))
    }

    /// As [`logits_watched`](Self::logits_watched), with nobody told of the tokens that are evaluated.
    pub fn logits(
        &mut self,
        tokens: &[u32],
        from: usize,
        on_row: &mut OnRow<'_>,
    ) -> Result<(), EngineError> {
        let unwatched = &mut |_| ControlFlow::Continue(());
        self.logits_watched(tokens, from, unwatched, on_row)
            .map(drop)
    }

    waits! {
        pub fn logits_watched(
            &mut self, tokens: &[u32], from: usize, on_prompt: &mut OnPrompt<'_>, on_row: &mut OnRow<'_>,
        ) -> Result<usize, EngineError> =
            self.logits_async(tokens, from, on_prompt, on_row);
    }
}
