//! Waiting for a session, for native builds: what blocks on the futures of this module.

use std::io;
use std::ops::{ControlFlow, Range};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use web_time::{Duration, Instant};

use super::backend::{Backend, BackendError, OnPrompt, OnRow, OnToken, Touch};
use super::chooser::Chooser;
use super::device::{self, Device};
use super::opened::{File, Opened};
use super::{
    Engine, EngineError, EngineOptions, GenerateStats, LoadProgress, ModelSource, Sampling,
    Session, SessionFile, SessionFileError,
};
use crate::gpu::AdapterSummary;
use crate::gpu::wait::{complete, waits};

/// What a [`Backend`] computes, waited for.
pub trait BackendWait: Backend {
    /// As [`prefill_watched`](Self::prefill_watched), with nobody told of the tokens that are computed.
    fn prefill(&mut self, tokens: &[u32], pos: usize) -> Result<(), BackendError> {
        let unwatched = &mut |_| ControlFlow::Continue(());
        self.prefill_watched(tokens, pos, unwatched).map(drop)
    }

    /// As [`logits_watched`](Self::logits_watched), with nobody told of the tokens that are computed.
    fn logits(
        &mut self,
        tokens: &[u32],
        pos: usize,
        on_row: &mut OnRow<'_>,
    ) -> Result<(), BackendError> {
        let unwatched = &mut |_| ControlFlow::Continue(());
        self.logits_watched(tokens, pos, unwatched, on_row)
            .map(drop)
    }

    waits! {
        fn prefill_watched(
            &mut self, tokens: &[u32], pos: usize, on_prompt: &mut OnPrompt<'_>,
        ) -> Result<usize, BackendError> =
            self.prefill_async(tokens, pos, on_prompt);

        fn logits_watched(
            &mut self, tokens: &[u32], pos: usize, on_prompt: &mut OnPrompt<'_>, on_row: &mut OnRow<'_>,
        ) -> Result<usize, BackendError> =
            self.logits_async(tokens, pos, on_prompt, on_row);
    }
}

impl<B: Backend + ?Sized> BackendWait for B {}

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
    /// Loads a model with the usual options: a file by its path, or [`ModelSource::Embedded`]. [`Opened::new`] and [`load`](Self::load)
    /// do the same step by step.
    ///
    /// # Errors
    /// As for [`Opened::new_async`] and [`load_async`](Self::load_async).
    pub fn open(source: impl Into<ModelSource>) -> Result<Self, EngineError> {
        let opened = Opened::new(&source.into(), &EngineOptions::default())?;
        Self::load(opened, &mut |_| {})
    }

    waits! {
        pub fn load(opened: Opened, progress: &mut dyn FnMut(LoadProgress)) -> Result<Self, EngineError> =
            Self::load_async(opened, progress);

        pub fn session(&self) -> Result<Session<'_>, EngineError> = self.session_async();
    }
}

impl<'a> Session<'a> {
    waits! {
        pub fn branch(&self) -> Result<Session<'a>, EngineError> = self.branch_async();
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
        pub fn generate_chosen(
            &mut self, prompt: &[u32], chooser: &mut dyn Chooser, limit: usize,
            on_prompt: &mut OnPrompt<'_>, on_token: &mut OnToken<'_>,
        ) -> Result<GenerateStats, EngineError> =
            self.generate_chosen_async(prompt, chooser, limit, on_prompt, on_token);

        pub fn read_rows(&mut self, positions: Range<usize>) -> Result<Vec<u8>, EngineError> =
            self.read_rows_async(positions);

        pub fn push_rows(&mut self, rows: &[u8]) -> Result<(), EngineError> = self.push_rows_async(rows);

        pub fn logits_watched(
            &mut self, tokens: &[u32], from: usize, on_prompt: &mut OnPrompt<'_>, on_row: &mut OnRow<'_>,
        ) -> Result<usize, EngineError> =
            self.logits_async(tokens, from, on_prompt, on_row);
    }
}

impl SessionFile {
    waits! {
        pub fn restore(&mut self, session: &mut Session<'_>) -> Result<(), SessionFileError> =
            self.restore_async(session);

        pub fn save(&mut self, session: &mut Session<'_>, data: &[u8]) -> Result<(), SessionFileError> =
            self.save_async(session, data);
    }
}

/// An idle session is touched so often: Metal forgets after about a second (llama.cpp, issue 10119).
const TOUCHED_EVERY: Duration = Duration::from_millis(500);
/// A session that is idle for longer is left alone: who has gone away should not pay for it in power.
const IDLE: Duration = Duration::from_secs(180);

/// Keeps what a session needs in the memory of its device, from a thread of its own, until it is dropped or some minutes are over.
pub struct KeepWarm {
    /// Ends the thread when it is dropped.
    on: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl KeepWarm {
    /// Begins with it.
    ///
    /// # Errors
    /// What the system says where it gives no thread.
    pub fn new(touch: Touch) -> io::Result<Self> {
        Self::lasting(touch, TOUCHED_EVERY, IDLE)
    }

    fn lasting(touch: Touch, every: Duration, idle: Duration) -> io::Result<Self> {
        let (on, off) = channel();
        let thread = thread::Builder::new()
            .name("keep warm".to_owned())
            .spawn(move || {
                let began = Instant::now();
                while began.elapsed() < idle
                    && off.recv_timeout(every) == Err(RecvTimeoutError::Timeout)
                {
                    touch();
                }
            })?;
        Ok(Self {
            on: Some(on),
            thread: Some(thread),
        })
    }
}

impl Drop for KeepWarm {
    /// Waits for the thread: it may be the last to hold the device, and a process must not end while that is taken down.
    fn drop(&mut self) {
        self.on = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_session_is_kept_warm_until_it_is_used_or_long_idle() {
        let touched = Arc::new(AtomicUsize::new(0));
        let count = || touched.load(Ordering::SeqCst);
        let touch = || {
            let touched = Arc::clone(&touched);
            Box::new(move || {
                touched.fetch_add(1, Ordering::SeqCst);
            })
        };
        let every = Duration::from_millis(1);
        let warm = KeepWarm::lasting(touch(), every, Duration::from_secs(600));
        let warm = warm.expect("there are threads");
        while count() < 3 {
            thread::sleep(every);
        }
        drop(warm);
        // The thread has ended, and holds the closure no more.
        assert_eq!(Arc::strong_count(&touched), 1);
        let before = count();
        let warm = KeepWarm::lasting(touch(), every, Duration::from_millis(20));
        while Arc::strong_count(&touched) > 1 {
            thread::sleep(every);
        }
        assert!(count() > before);
        drop(warm);
    }
}
