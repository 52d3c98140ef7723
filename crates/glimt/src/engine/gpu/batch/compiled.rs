//! Steps of several rows that are compiled beside an answer: it takes drafts of as many rows as are compiled, and waits for none.

use super::GpuBatch;
use crate::gpu::pipeline::Spec;
use crate::gpu::{Gpu, GpuError, Most, Step};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The most drafts of the steps that are compiled, which grows meanwhile. Clones tell of the same steps.
#[derive(Clone)]
pub(in crate::engine::gpu) struct ReadyDrafts {
    most: Arc<AtomicUsize>,
    /// The work that goes on whenever somebody asks, where there are no threads.
    #[cfg(target_arch = "wasm32")]
    work: Arc<std::sync::Mutex<Option<crate::engine::backend::BoxedFuture<'static, ()>>>>,
}

impl ReadyDrafts {
    /// All of up to `most` drafts: those whose steps are not compiled yet are compiled when a step first needs them.
    pub(super) fn all(most: u32) -> Self {
        Self {
            most: Arc::new(AtomicUsize::new(most as usize)),
            #[cfg(target_arch = "wasm32")]
            work: Arc::default(),
        }
    }

    /// The most drafts of a step that is compiled.
    pub(in crate::engine::gpu) fn most(&self) -> usize {
        #[cfg(target_arch = "wasm32")]
        self.go_on();
        self.most.load(Ordering::Acquire)
    }

    #[cfg(target_arch = "wasm32")]
    fn go_on(&self) {
        let mut work = self.work.lock().unwrap_or_else(|e| e.into_inner());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let polled = work.as_mut().map(|work| work.as_mut().poll(&mut context));
        if polled.is_some_and(|polled| polled.is_ready()) {
            *work = None;
        }
    }
}

/// The work of compiling, which ends early if nobody needs it any more.
pub(super) struct Compiling {
    stop: Arc<AtomicBool>,
    #[cfg(not(target_arch = "wasm32"))]
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Compiling {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A driver that still compiles when the process ends may crash.
        #[cfg(not(target_arch = "wasm32"))]
        if let Some(thread) = self.thread.take() {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// The steps of one class: rows from ids to hidden states, and from these to the choices.
struct Rows {
    drafts: usize,
    steps: [Step; 2],
}

/// Compiles these steps in turn, and tells after each how many drafts are ready.
async fn compile(gpu: Arc<Gpu>, all: Vec<Rows>, ready: Arc<AtomicUsize>, stop: Arc<AtomicBool>) {
    for Rows { drafts, steps } in all {
        for step in &steps {
            match compile_step(&gpu, step, &stop).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    // Whoever takes such a step next is told why it cannot be had.
                    log::debug!("steps of {drafts} drafts are not compiled: {error}");
                    ready.fetch_max(drafts, Ordering::Release);
                    return;
                }
            }
        }
        log::debug!("steps of {drafts} drafts are compiled");
        ready.fetch_max(drafts, Ordering::Release);
    }
}

/// Compiles what a step lacks. Whether that was not stopped.
async fn compile_step(gpu: &Gpu, step: &Step, stop: &AtomicBool) -> Result<bool, GpuError> {
    let resolved = step.resolve()?;
    let specs: Vec<&Spec> = resolved.iter().map(|call| &call.spec).collect();
    gpu.compile_beside(&specs, stop).await
}

impl GpuBatch {
    /// The classes of steps with drafts, by their most rows.
    fn classes_with_drafts(&self) -> Vec<u32> {
        let rows = 2..=1 + self.sizes.drafts as usize;
        let mut classes: Vec<u32> = rows.map(|rows| self.class(rows)).collect();
        classes.dedup();
        classes
    }

    /// Compiles all steps with drafts that are given as ids, which would hold up an answer otherwise.
    pub(in crate::engine::gpu) async fn prepare_given(&mut self) -> Result<(), GpuError> {
        for rows in self.classes_with_drafts() {
            self.prepare(rows as usize, rows as usize).await?;
        }
        Ok(())
    }

    /// Begins to compile these steps beside what the device computes. Until then a step has `ready` drafts at most.
    ///
    /// # Errors
    /// The errors of [`prepare`](Self::prepare) that are known before anything is compiled.
    pub(in crate::engine::gpu) fn compile_given(&mut self, ready: usize) -> Result<(), GpuError> {
        let mut all = vec![];
        for rows in self.classes_with_drafts() {
            let drafts = (rows as usize - 1).min(self.sizes.drafts as usize);
            let head = self.head_step(rows, self.head_of(rows as usize, rows as usize).1)?;
            let steps = [self.recipes.step(self.gpu(), rows)?, head];
            all.push(Rows { drafts, steps });
        }
        let stop = Arc::new(AtomicBool::new(false));
        self.ready.most.store(ready, Ordering::Release);
        let (gpu, most) = (Arc::clone(&self.model.gpu), Arc::clone(&self.ready.most));
        let work = compile(gpu, all, most, Arc::clone(&stop));
        #[cfg(target_arch = "wasm32")]
        {
            let boxed: crate::engine::backend::BoxedFuture<'static, ()> = Box::pin(work);
            let mut kept = self.ready.work.lock().unwrap_or_else(|e| e.into_inner());
            *kept = Some(boxed);
            drop(kept);
            self.compiling = Some(Compiling { stop });
        }
        #[cfg(not(target_arch = "wasm32"))]
        {
            use crate::gpu::wait::Wait;
            let thread = std::thread::Builder::new().name("compile".to_owned());
            let thread = thread.spawn(move || work.wait());
            // Without a thread they are compiled when a step first needs them.
            if thread.is_err() {
                self.ready = ReadyDrafts::all(self.sizes.drafts);
            }
            let thread = thread.ok();
            self.compiling = Some(Compiling { stop, thread });
        }
        Ok(())
    }

    /// Whether steps with drafts are compiled beside answers.
    pub(in crate::engine::gpu) fn compiles_beside(&self) -> bool {
        self.compiling.is_some()
    }

    /// The step from hidden states of a step of up to `of` tokens to the choices after up to `most` of them.
    pub(super) fn head_step(&self, of: u32, most: u32) -> Result<Step, GpuError> {
        let head = self.recipes.head(self.gpu(), of, most, &self.logits)?;
        let choose = self.chosen().calls(of, most);
        let most_tokens = Most {
            tokens: most,
            context: self.sizes.n_ctx as u32,
        };
        Ok(Step::of(most_tokens, head.calls.into_iter().chain(choose)))
    }
}
