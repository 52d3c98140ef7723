//! The CPU backend: the reference of a model's family as `--device cpu`.

mod batch;
mod drafted;

use std::borrow::Cow;
use std::ops::{ControlFlow, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use half::f16;

use super::apart::{Heard, apart};
use super::backend::{
    Answer, Backend, BackendError, OnPrompt, OnRow, OnToken, check_context, check_finite,
    check_rows, check_tokens, check_written,
};
use super::draft::{DraftMeans, Drafter};
use super::random::cache_values;
use crate::gpu::pending::may_block;
use crate::kernels::logit_bias::{Biases, logit_bias};
use crate::kernels::products::Products;
use crate::kernels::sample::sample;
use crate::kernels::sampling::Sampling;
use crate::models::{Model, OutOfMemory, Part, Reference};
pub(super) use batch::CpuBatch;
use drafted::States;

/// Tokens computed together: enough that dequantising a row costs little per token, few enough that scratch stays small.
pub(super) const CHUNK: usize = 256;

/// Rows of logits computed together: a row is the whole vocabulary, 0.6 MB for GLM-4.7-Flash.
const HEAD_CHUNK: usize = 32;

/// A model on the CPU: with exact products, what every other backend is held against.
///
/// Results do not depend on how tokens are split into calls or chunks, bit for bit. Where an event loop polls a call, a thread of its own
/// computes, and ends before the next token or block of layers if the call is dropped.
pub struct CpuBackend {
    model: Arc<dyn Model>,
    products: Products,
    work: Arc<Mutex<Work>>,
    n_ctx: usize,
    biases: Biases,
}

/// All that a call computes with.
struct Work {
    model: Arc<dyn Model>,
    reference: Box<dyn Reference>,
    n_ctx: usize,
    vocab_size: usize,
    embedding_length: usize,
    /// Logits of the last computed position.
    last_logits: Vec<f32>,
    /// The position `last_logits` predicts: one past the last computed token, 0 before any.
    next: usize,
    /// The hidden states of the tokens of the last chunk, if the prediction layer is loaded.
    states: States,
}

/// The news of a call that gives logits.
enum News {
    /// The number of tokens that are as good as computed.
    Computed(usize),
    /// The logits behind a token.
    Row(usize, Vec<f32>),
}

impl CpuBackend {
    /// A backend with an empty cache of `n_ctx` rows.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`] if the cache cannot be allocated.
    pub fn new(
        model: Arc<dyn Model>,
        products: Products,
        n_ctx: usize,
    ) -> Result<Self, BackendError> {
        let config = model.config();
        let (vocab_size, embedding_length) = (config.vocab_size, config.embedding_length);
        let reference = Arc::clone(&model)
            .reference(products, n_ctx, n_ctx)
            .map_err(|OutOfMemory { bytes }| BackendError::OutOfMemory { n_ctx, bytes })?;
        Ok(CpuBackend {
            work: Arc::new(Mutex::new(Work {
                model: Arc::clone(&model),
                reference,
                n_ctx,
                vocab_size,
                embedding_length,
                last_logits: Vec::new(),
                next: 0,
                states: States::default(),
            })),
            model,
            products,
            n_ctx,
            biases: Biases::default(),
        })
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        lock(&self.work)
    }

    async fn computed<N: Send + 'static, T: Send + 'static>(
        &self,
        compute: impl FnOnce(&mut Work, &mut Heard<'_, N>) -> Result<T, BackendError> + Send + 'static,
        heard: &mut Heard<'_, N>,
    ) -> Result<T, BackendError> {
        computed(&self.work, compute, heard).await
    }
}

/// The token that continues `context`, of whose last token these are the logits.
fn chosen(
    logits: &[f32],
    context: &[u32],
    (sampling, biases): (&Sampling, &Biases),
) -> Result<u32, BackendError> {
    check_finite(logits, context.len() - 1)?;
    let mut logits = Cow::Borrowed(logits);
    if !biases.is_empty() {
        logit_bias(logits.to_mut(), &biases.row());
    }
    let step = context.len() as u64;
    Ok(sample(&logits, sampling.recent(context), sampling, step))
}

/// The result of `compute`: at once where the caller may block, else of a thread of its own.
async fn computed<W: Send + 'static, N: Send + 'static, T: Send + 'static>(
    work: &Arc<Mutex<W>>,
    compute: impl FnOnce(&mut W, &mut Heard<'_, N>) -> Result<T, BackendError> + Send + 'static,
    heard: &mut Heard<'_, N>,
) -> Result<T, BackendError> {
    if may_block() || cfg!(target_arch = "wasm32") {
        return compute(&mut lock(work), heard);
    }
    let work = Arc::clone(work);
    let apart = apart(move |tell| compute(&mut lock(&work), tell), heard).await;
    apart.map_err(|error| BackendError::NoThread {
        reason: error.to_string(),
    })?
}

fn lock<W>(work: &Mutex<W>) -> MutexGuard<'_, W> {
    work.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Work {
    fn check(&self, tokens: &[u32], pos: usize) -> Result<(), BackendError> {
        check_tokens(tokens, pos, self.n_ctx, self.vocab_size)
    }

    /// The hidden states of a chunk that begins `first` tokens behind the beginning of a call, at `pos` for the whole call; `None` where
    /// `on_prompt` breaks. A chunk of a large model takes a minute, so its blocks are told as shares of its tokens.
    fn chunk(
        &mut self,
        chunk: &[u32],
        first: usize,
        pos: usize,
        on_prompt: &mut OnPrompt<'_>,
    ) -> Option<Vec<f32>> {
        if first > 0 && on_prompt(first).is_break() {
            return None;
        }
        let blocks = self.model.config().block_count;
        let on_block = &mut |done| on_prompt(first + chunk.len() * done / blocks);
        let part = Part {
            tokens: chunk.len(),
            pos: pos + first,
            pages: &[],
        };
        let x = self.reference.forward(chunk, &[part], on_block)?;
        self.keep(chunk, pos + first, &x);
        Some(x)
    }

    /// [`Backend::prefill_watched`].
    fn prefill(
        &mut self,
        tokens: &[u32],
        pos: usize,
        on_prompt: &mut OnPrompt<'_>,
    ) -> Result<usize, BackendError> {
        self.check(tokens, pos)?;
        self.next = 0;
        let mut x = Vec::new();
        for (i, chunk) in tokens.chunks(CHUNK).enumerate() {
            let Some(hidden) = self.chunk(chunk, i * CHUNK, pos, on_prompt) else {
                return Ok(i * CHUNK);
            };
            x = hidden;
        }
        self.last_logits = self.reference.head(&x[x.len() - self.embedding_length..]);
        self.next = pos + tokens.len();
        Ok(tokens.len())
    }

    /// The token that continues `context`, to which it is appended.
    fn choose(
        &mut self,
        context: &mut Vec<u32>,
        sampling: &Sampling,
        biases: &Biases,
    ) -> Result<u32, BackendError> {
        if context.len() > self.next {
            let unwatched = &mut |_| ControlFlow::Continue(());
            self.prefill(&[context[self.next]], self.next, unwatched)?;
        }
        let token = chosen(&self.last_logits, context, (sampling, biases))?;
        context.push(token);
        Ok(token)
    }

    /// [`Backend::logits_watched`].
    fn logits(
        &mut self,
        tokens: &[u32],
        pos: usize,
        tell: &mut Heard<'_, News>,
    ) -> Result<usize, BackendError> {
        self.check(tokens, pos)?;
        for (i, chunk) in tokens.chunks(CHUNK).enumerate() {
            let first = i * CHUNK;
            let on_prompt = &mut |done| tell(News::Computed(done));
            let Some(x) = self.chunk(chunk, first, pos, on_prompt) else {
                self.next = 0;
                return Ok(first);
            };
            for (j, x) in x.chunks(HEAD_CHUNK * self.embedding_length).enumerate() {
                let logits = self.reference.head(x);
                for (t, row) in logits.chunks_exact(self.vocab_size).enumerate() {
                    let index = first + j * HEAD_CHUNK + t;
                    self.next = pos + index + 1;
                    self.last_logits = row.to_vec();
                    if tell(News::Row(index, row.to_vec())).is_break() {
                        return Ok(index + 1);
                    }
                }
            }
        }
        Ok(tokens.len())
    }

    /// [`Backend::decode`].
    fn decode(
        &mut self,
        mut context: Vec<u32>,
        (sampling, biases): (&Sampling, &Biases),
        limit: usize,
        on_token: &mut OnToken<'_>,
    ) -> Result<(), BackendError> {
        check_context(&context, self.next, limit, self.n_ctx)?;
        for _ in 0..limit {
            if on_token(self.choose(&mut context, sampling, biases)?).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Values of a cache row of one layer.
    fn row(&self) -> usize {
        let caches = self.reference.cached();
        caches.first().map_or(0, |cache| cache.len() / self.n_ctx)
    }
}

impl Backend for CpuBackend {
    fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    fn fill_cache(&mut self, rows: usize) -> Answer<'_, ()> {
        Box::pin(async move {
            check_rows(rows, self.n_ctx)?;
            let mut work = self.work();
            let values = work.model.cache_rows(rows, cache_values);
            for cache in work.reference.cache() {
                cache[..values.len()].copy_from_slice(&values);
            }
            Ok(())
        })
    }

    fn read_rows(&mut self, positions: Range<usize>) -> Answer<'_, Vec<u8>> {
        Box::pin(async move {
            check_rows(positions.end, self.n_ctx)?;
            if positions.is_empty() {
                return Ok(vec![]);
            }
            let work = self.work();
            let row = work.row();
            let values = row * positions.start..row * positions.end;
            let layers = work.reference.cached().iter();
            let rows =
                layers.flat_map(|cache| bytemuck::cast_slice::<f16, u8>(&cache[values.clone()]));
            Ok(rows.copied().collect())
        })
    }

    fn write_rows<'a>(&'a mut self, first: usize, rows: &'a [u8]) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut work = self.work();
            let row = work.row();
            let of_all = row * size_of::<f16>() * work.reference.cached().len();
            let count = check_written(rows.len(), of_all, first, self.n_ctx)?;
            work.next = 0;
            work.states = States::default();
            let of_layer = (count * row * size_of::<f16>()).max(1);
            let caches = work.reference.cache().iter_mut();
            for (cache, rows) in caches.zip(rows.chunks_exact(of_layer)) {
                let cache = &mut cache[first * row..(first + count) * row];
                bytemuck::cast_slice_mut(cache).copy_from_slice(rows);
            }
            Ok(())
        })
    }

    fn branch(&self, rows: usize) -> Answer<'_, Box<dyn Backend>> {
        Box::pin(async move {
            check_rows(rows, self.n_ctx)?;
            let branch = Self::new(Arc::clone(&self.model), self.products, self.n_ctx)?;
            let (mut to, from) = (branch.work(), self.work());
            let values = rows * from.row();
            let pairs = to.reference.cache().iter_mut();
            for (to, from) in pairs.zip(from.reference.cached()) {
                to[..values].copy_from_slice(&from[..values]);
            }
            to.states = from.states.clone();
            drop(to);
            Ok(Box::new(branch) as Box<dyn Backend>)
        })
    }

    fn prefill_watched<'a>(
        &'a mut self,
        tokens: &'a [u32],
        pos: usize,
        on_prompt: &'a mut OnPrompt<'_>,
    ) -> Answer<'a, usize> {
        let tokens = tokens.to_vec();
        let compute =
            move |work: &mut Work, tell: &mut Heard<'_, usize>| work.prefill(&tokens, pos, tell);
        Box::pin(self.computed(compute, on_prompt))
    }

    fn logits_watched<'a>(
        &'a mut self,
        tokens: &'a [u32],
        pos: usize,
        on_prompt: &'a mut OnPrompt<'_>,
        on_row: &'a mut OnRow<'_>,
    ) -> Answer<'a, usize> {
        Box::pin(async move {
            let tokens = tokens.to_vec();
            let compute =
                move |work: &mut Work, tell: &mut Heard<'_, News>| work.logits(&tokens, pos, tell);
            let heard = &mut |news| match news {
                News::Computed(done) => on_prompt(done),
                News::Row(index, row) => on_row(index, &row),
            };
            self.computed(compute, heard).await
        })
    }

    fn set_biases(&mut self, biases: Biases) {
        self.biases = biases;
    }

    fn decode<'a>(
        &'a mut self,
        context: &'a [u32],
        sampling: &'a Sampling,
        limit: usize,
        on_token: &'a mut OnToken<'_>,
    ) -> Answer<'a, ()> {
        let (context, sampling, biases) = (context.to_vec(), *sampling, self.biases.clone());
        let compute = move |work: &mut Work, tell: &mut Heard<'_, u32>| {
            work.decode(context, (&sampling, &biases), limit, tell)
        };
        Box::pin(self.computed(compute, on_token))
    }

    fn draft_means(&self) -> DraftMeans {
        DraftMeans {
            most: drafted::MOST,
            predicts: self.model.nextn(),
            one_by_one: false,
            brings_experts: false,
        }
    }

    fn decode_drafted<'a>(
        &'a mut self,
        context: &'a [u32],
        sampling: &'a Sampling,
        limit: usize,
        drafter: &'a mut dyn Drafter,
        on_token: &'a mut OnToken<'_>,
    ) -> Answer<'a, ()> {
        Box::pin(self.decode_with(context, sampling, limit, drafter, on_token))
    }

    fn predict<'a>(&'a mut self, context: &'a [u32], number: usize) -> Answer<'a, Vec<u32>> {
        let known = context.to_vec();
        let compute = move |work: &mut Work, _: &mut Heard<'_, ()>| {
            Ok(work.predict(&known, number, (&Sampling::GREEDY, &Biases::default())))
        };
        Box::pin(async move {
            let unheard = &mut |()| ControlFlow::Continue(());
            self.computed(compute, unheard).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::testing::small_model;
    use crate::gpu::wait::Wait;
    use crate::models;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Waker};
    use std::thread;

    #[test]
    fn a_prompt_is_told_block_by_block_and_ends_between_two_blocks() {
        let model = models::load(Arc::new(small_model())).expect("it is supported");
        let mut backend = CpuBackend::new(model, Products::Quick, 600).expect("there is memory");
        let tokens: Vec<u32> = (3..303).collect();
        let mut told = vec![];
        let all = &mut |done| {
            told.push(done);
            ControlFlow::Continue(())
        };
        let done = backend
            .prefill_watched(&tokens, 0, all)
            .wait()
            .expect("it fits");
        // Of 256 and of 44 tokens, three blocks each.
        assert_eq!(told, [85, 170, 256, 270, 285]);
        assert_eq!(done, 300);
        let whole = backend.work().last_logits.clone();
        for (end, expected) in [(170, 0), (256, 256), (285, 256)] {
            let some = &mut |done| match done < end {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            };
            let done = backend
                .prefill_watched(&tokens, 0, some)
                .wait()
                .expect("it fits");
            assert_eq!(done, expected, "{end}");
            assert_eq!(backend.work().next, 0, "no logits are kept");
            let on_row = &mut |_: usize, _: &[f32]| ControlFlow::Continue(());
            let done = backend.logits_watched(&tokens, 0, some, on_row).wait();
            assert_eq!(done.expect("it fits"), expected, "{end}");
        }
        backend.prefill(&tokens, 0).wait().expect("it fits");
        assert_eq!(backend.work().last_logits, whole);
    }

    #[test]
    fn an_event_loop_goes_on_while_a_thread_computes() {
        let model = models::load(Arc::new(small_model())).expect("it is supported");
        let backend = || {
            let model = Arc::clone(&model);
            CpuBackend::new(model, Products::Quick, 600).expect("there is memory")
        };
        let (mut waited, mut polled) = (backend(), backend());
        let tokens: Vec<u32> = (3..60).collect();
        let decoded = |backend: &mut CpuBackend, wait: &dyn Fn(Answer<'_, ()>), limit| {
            let mut answer = vec![];
            let on_token = &mut |token| {
                answer.push(token);
                ControlFlow::Continue(())
            };
            wait(backend.decode(&tokens, &Sampling::GREEDY, limit, on_token));
            answer
        };
        waited.prefill(&tokens, 0).wait().expect("it fits");
        let at_once = |answer: Answer<'_, ()>| answer.wait().expect("it fits");
        let expected = decoded(&mut waited, &at_once, 9);

        let polls = AtomicUsize::new(0);
        let in_a_loop = |mut answer: Answer<'_, ()>| {
            let mut context = Context::from_waker(Waker::noop());
            while answer.as_mut().poll(&mut context).is_pending() {
                polls.fetch_add(1, Ordering::Relaxed);
                thread::yield_now();
            }
        };
        in_a_loop(polled.prefill(&tokens, 0));
        assert!(polls.load(Ordering::Relaxed) > 0, "no poll computes");
        let dropped = |mut answer: Answer<'_, ()>| {
            let polled = answer
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending());
        };
        decoded(&mut polled, &dropped, 100);
        in_a_loop(polled.prefill(&tokens, 0));
        assert_eq!(decoded(&mut polled, &in_a_loop, 9), expected);
    }
}
