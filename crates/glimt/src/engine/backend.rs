//! The interface of a device that a session uses; the CPU and the GPU implement it.

use std::ops::{ControlFlow, Range};
use std::pin::Pin;
use web_time::Duration;

use super::draft::{DraftMeans, Drafter};
use crate::gpu::GpuError;
use crate::kernels::logit_bias::Biases;
use crate::kernels::sample::all_finite;
use crate::kernels::sampling::Sampling;
use crate::plural::count;

/// A model on a device with the cache of one context.
///
/// The cache is addressed by position; a call that starts at `pos` keeps the rows before `pos` and overwrites those from
/// it on, so starting over is only a matter of `pos = 0` and no reset exists.
///
/// Decoding is one call for a whole answer, not one per token: between two tokens a GPU backend must not wait for the
/// host. It keeps one or two tokens in flight, chooses on the device, feeds the choice to the next step there, and hands
/// the ids to `on_token` as they come back; what it computed past the end of the answer is discarded.
///
/// A call that computes on a device is a future that never blocks: it goes on whenever it is polled, and a browser can await it. A backend
/// that computes on the host does it on a thread of its own, or at once if the caller [waits](crate::gpu::wait::Wait) for it. A future that is dropped before its end leaves the session where a call from an earlier position can begin.
pub trait Backend: Send + Sync {
    /// Rows in the cache: no token can have a position at or beyond it.
    fn n_ctx(&self) -> usize;

    /// A function that touches all that a token needs on the device, if a device that is not used forgets it.
    fn warm(&self) -> Option<Touch> {
        None
    }

    /// The time that compiling for the device took so far, which says nothing about its speed.
    fn compile_time(&self) -> Duration {
        Duration::ZERO
    }

    /// Fills the first `rows` rows of the cache with random values of sane size, in place of computing tokens:
    /// for measuring at a depth.
    ///
    /// # Errors
    /// [`BackendError::ContextOverflow`], or the device failed.
    fn fill_cache(&mut self, rows: usize) -> Answer<'_, ()>;

    /// The cache rows of `positions`, exactly as they are: layer after layer, and of each layer the rows in order.
    ///
    /// The answer and a staging buffer on the device hold all that is asked for, so a long range is read in pieces.
    ///
    /// # Errors
    /// [`BackendError::ContextOverflow`], or the device failed.
    fn read_rows(&mut self, positions: Range<usize>) -> Answer<'_, Vec<u8>>;

    /// Writes the cache rows of the positions from `first` on, as [`read_rows`](Backend::read_rows) gave them. What was
    /// computed before from those positions is no longer valid, and neither are the kept logits.
    ///
    /// # Errors
    /// [`BackendError::ContextOverflow`], [`BackendError::PartOfARow`], or the device failed.
    fn write_rows<'a>(&'a mut self, first: usize, rows: &'a [u8]) -> Answer<'a, ()>;

    /// A backend of the same model on the same device, whose cache begins with copies of the first `rows` rows of this one. On a GPU
    /// they do not leave the device. It keeps no logits.
    ///
    /// # Errors
    /// [`BackendError::ContextOverflow`], or where a second cache does not fit.
    fn branch(&self, rows: usize) -> Answer<'_, Box<dyn Backend>>;

    /// Computes the cache rows of `tokens` at positions from `pos` on, and keeps the logits of the last for
    /// [`decode`](Backend::decode).
    ///
    /// It tells `on_prompt` between two submissions to the device how many of `tokens` are as good as computed: parts of a chunk count
    /// in proportion to their work. `Break` ends it, unless all is submitted. Returned is the number of tokens that have their rows,
    /// which an interrupted chunk adds nothing to; if it is not all, no logits are kept.
    ///
    /// # Errors
    /// [`BackendError`]: no tokens, a token outside the vocabulary, positions beyond the cache, or the device failed.
    fn prefill_watched<'a>(
        &'a mut self,
        tokens: &'a [u32],
        pos: usize,
        on_prompt: &'a mut OnPrompt<'_>,
    ) -> Answer<'a, usize>;

    /// Computes like [`prefill_watched`](Backend::prefill_watched), and hands the logits (vocab) of each position to `on_row` with the
    /// index into `tokens`, in order. `Break` ends it; the cache is then defined up to that row.
    ///
    /// `on_prompt` may be told of more tokens than rows were handed out. Returned is the number of these rows, and the cache is defined up
    /// to the last of them. Where `on_prompt` broke, no logits are kept.
    fn logits_watched<'a>(
        &'a mut self,
        tokens: &'a [u32],
        pos: usize,
        on_prompt: &'a mut OnPrompt<'_>,
        on_row: &'a mut OnRow<'_>,
    ) -> Answer<'a, usize>;

    /// Sets the biases that are added to the logits of all tokens which [`decode`](Backend::decode) chooses from now on.
    fn set_biases(&mut self, biases: Biases);

    /// Chooses up to `limit` tokens that continue `context` and hands each to `on_token`, until that breaks.
    ///
    /// `context` are all tokens so far, `context[i]` at position i; the call before must have been a
    /// [`prefill_watched`](Backend::prefill_watched) or [`logits_watched`](Backend::logits_watched) that ended at its last. The token of
    /// position p is drawn with step p. Afterwards the cache holds the rows of all delivered tokens but the last: whoever goes on
    /// must begin with that one.
    ///
    /// # Errors
    /// [`BackendError::NotPrefilled`] if the kept logits are not those of the end of `context`,
    /// [`BackendError::ContextOverflow`] if `context` and `limit` together exceed the cache, or the device failed.
    fn decode<'a>(
        &'a mut self,
        context: &'a [u32],
        sampling: &'a Sampling,
        limit: usize,
        on_token: &'a mut OnToken<'_>,
    ) -> Answer<'a, ()>;

    /// The means that the device has for drafts. They also hold for the rows of a call of [`logits_watched`](Backend::logits_watched).
    fn draft_means(&self) -> DraftMeans {
        DraftMeans::default()
    }

    /// The most drafts of a step that begins at once: steps of more are still being compiled.
    fn ready_drafts(&self) -> usize {
        self.draft_means().most
    }

    /// Decodes like [`decode`](Backend::decode), with the drafts that `drafter` proposes for each step. The tokens are the same, and so is what the
    /// session is left with.
    ///
    /// # Errors
    /// The errors of [`decode`](Backend::decode).
    fn decode_drafted<'a>(
        &'a mut self,
        context: &'a [u32],
        sampling: &'a Sampling,
        limit: usize,
        drafter: &'a mut dyn Drafter,
        on_token: &'a mut OnToken<'_>,
    ) -> Answer<'a, ()> {
        let _ = drafter;
        self.decode(context, sampling, limit, on_token)
    }

    /// Up to `number` drafts of the prediction layer for the tokens behind `context`, of whose last token no row is computed yet. Without such a
    /// layer there are none.
    ///
    /// # Errors
    /// The device failed.
    fn predict<'a>(&'a mut self, context: &'a [u32], number: usize) -> Answer<'a, Vec<u32>> {
        let _ = (context, number);
        Box::pin(async { Ok(vec![]) })
    }

    /// Computes like [`prefill_watched`](Backend::prefill_watched), without telling of progress.
    fn prefill<'a>(&'a mut self, tokens: &'a [u32], pos: usize) -> Answer<'a, ()> {
        Box::pin(async move {
            let unwatched = &mut |_| ControlFlow::Continue(());
            self.prefill_watched(tokens, pos, unwatched).await.map(drop)
        })
    }

    /// Hands out logits as [`logits_watched`](Backend::logits_watched) does, without telling how many tokens are computed.
    fn logits<'a>(
        &'a mut self,
        tokens: &'a [u32],
        pos: usize,
        on_row: &'a mut OnRow<'_>,
    ) -> Answer<'a, ()> {
        Box::pin(async move {
            let unwatched = &mut |_| ControlFlow::Continue(());
            self.logits_watched(tokens, pos, unwatched, on_row)
                .await
                .map(drop)
        })
    }
}

/// The future result of a call of a [`Backend`].
pub type Answer<'a, T> = BoxedFuture<'a, Result<T, BackendError>>;

/// A future of any kind.
pub type BoxedFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Has a device use something, and waits for nothing.
pub type Touch = Box<dyn Fn() + Send>;

/// Receives the logits of one position with its index into the tokens given.
pub type OnRow<'a> = dyn FnMut(usize, &[f32]) -> ControlFlow<()> + Send + 'a;

/// Receives how many tokens of a prompt are as good as computed.
pub type OnPrompt<'a> = dyn FnMut(usize) -> ControlFlow<()> + Send + 'a;

/// Receives one chosen token.
pub type OnToken<'a> = dyn FnMut(u32) -> ControlFlow<()> + Send + 'a;

/// The error of a call of a [`Backend`].
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// A token id the model has no embedding for.
    #[error("token {token} is not in the vocabulary: ids go from 0 to {}", vocab_size - 1)]
    TokenOutOfRange {
        /// The id given.
        token: u32,
        /// The number of tokens the model knows.
        vocab_size: usize,
    },
    /// More positions than the cache has rows.
    #[error(
        "{needed} positions are needed, the context holds {n_ctx}: shorten the prompt or choose a larger context"
    )]
    ContextOverflow {
        /// The position after the last one asked for.
        needed: usize,
        /// Rows in the cache.
        n_ctx: usize,
    },
    /// Bytes that are no whole number of cache rows.
    #[error(
        "{bytes} bytes were given as rows of the cache, but a row of all layers has {row}: give whole rows of the same model"
    )]
    PartOfARow {
        /// Bytes given.
        bytes: usize,
        /// Bytes of a row of all layers.
        row: usize,
    },
    /// A prompt without tokens has no logits to continue from.
    #[error("there is no token to compute: a prompt needs at least one")]
    NoTokens,
    /// Decoding must follow the computation of the context's last token.
    #[error(
        "decoding from position {position} needs the logits of the token before it; compute the prompt first"
    )]
    NotPrefilled {
        /// The position the first new token would take.
        position: usize,
    },
    /// The cache does not fit into memory.
    #[error(
        "no memory for a context of {} ({}): choose a smaller context (-c)",
        count(*n_ctx, "position"),
        count(*bytes, "byte")
    )]
    OutOfMemory {
        /// Rows asked for.
        n_ctx: usize,
        /// The bytes of these rows.
        bytes: usize,
    },
    /// The system gives no thread to compute on.
    #[error("no thread to compute on: {reason}; end other programs, or raise the limit of threads")]
    NoThread {
        /// The system's own words.
        reason: String,
    },
    /// The model computed infinity or NaN.
    #[error(
        "the logits at position {position} are not finite: the model's file is damaged, or the driver computes wrongly; \
         compare with --device cpu"
    )]
    NotFinite {
        /// The position that they were computed at.
        position: usize,
    },
    /// The GPU failed.
    #[error(transparent)]
    Gpu(Box<GpuError>),
}

impl From<GpuError> for BackendError {
    fn from(error: GpuError) -> Self {
        Self::Gpu(Box::new(error))
    }
}

/// Checks that a cache of `n_ctx` rows has room for `needed`.
pub(super) fn check_rows(needed: usize, n_ctx: usize) -> Result<(), BackendError> {
    match needed > n_ctx {
        true => Err(BackendError::ContextOverflow { needed, n_ctx }),
        false => Ok(()),
    }
}

/// Checks that `bytes` are whole rows of `row` bytes that a cache of `n_ctx` rows has room for from row `first` on; returns how many.
pub(super) fn check_written(
    bytes: usize,
    row: usize,
    first: usize,
    n_ctx: usize,
) -> Result<usize, BackendError> {
    if row == 0 || !bytes.is_multiple_of(row) {
        return Err(BackendError::PartOfARow { bytes, row });
    }
    check_rows(first.saturating_add(bytes / row), n_ctx)?;
    Ok(bytes / row)
}

/// Checks what every backend refuses to decode from: a `context` that does not end where the kept logits do (`next` is the
/// position they predict, 0 where there are none), and more tokens than the cache has rows.
pub(super) fn check_context(
    context: &[u32],
    next: usize,
    limit: usize,
    n_ctx: usize,
) -> Result<(), BackendError> {
    if context.is_empty() || context.len() != next {
        return Err(BackendError::NotPrefilled {
            position: context.len(),
        });
    }
    check_rows(context.len().saturating_add(limit), n_ctx)
}

/// Checks that the logits at `position` mean something.
pub(super) fn check_finite(logits: &[f32], position: usize) -> Result<(), BackendError> {
    match all_finite(logits) {
        true => Ok(()),
        false => Err(BackendError::NotFinite { position }),
    }
}

/// Checks what every backend refuses: no tokens, positions beyond the cache, ids outside the vocabulary.
pub(super) fn check_tokens(
    tokens: &[u32],
    pos: usize,
    n_ctx: usize,
    vocab_size: usize,
) -> Result<(), BackendError> {
    if tokens.is_empty() {
        return Err(BackendError::NoTokens);
    }
    check_rows(pos.saturating_add(tokens.len()), n_ctx)?;
    match tokens.iter().find(|token| **token as usize >= vocab_size) {
        Some(&token) => Err(BackendError::TokenOutOfRange { token, vocab_size }),
        None => Ok(()),
    }
}
