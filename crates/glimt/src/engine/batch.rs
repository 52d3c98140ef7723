//! The interface of a device that computes for several sequences at once; the GPU and the CPU implement it.

use std::ops::Range;
use web_time::Duration;

use super::backend::{Answer, OnPrompt, Touch};
use crate::kernels::logit_bias::Biases;
use crate::kernels::sampling::Sampling;
use crate::recipes::BatchSizes;

/// A token of a step: the id at this position of the sequence, which the host or an earlier step wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BatchToken {
    /// The number of the sequence, below [`BatchSizes::sequences`].
    pub sequence: u32,
    /// The position in the sequence, below [`BatchSizes::n_ctx`].
    pub position: u32,
}

/// The work of one step.
#[derive(Debug, Clone, Copy)]
pub struct BatchStep<'a> {
    /// The tokens of the step. The first ones are those after which a token is chosen.
    pub tokens: &'a [BatchToken],
    /// How a token is chosen after each of them. The draw is that of the position behind it.
    pub choices: &'a [Sampling],
    /// The biases of each of these tokens, which are added to the logits first. Tokens behind the end of the list have no biases.
    pub biases: &'a [Biases],
    /// Indices of the chosen tokens of which the host wants the logits, with their biases.
    pub logits: &'a [usize],
    /// The drafts that the prediction layer makes before anything else, at most one entry for a sequence.
    pub predictions: &'a [Prediction],
}

/// The drafts that the prediction layer makes for a sequence at the beginning of a step. They become its ids behind `position`, where tokens of
/// the same step may compute them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prediction {
    /// The number of the sequence.
    pub sequence: u32,
    /// The position of its last token, which the host or an earlier step wrote.
    pub position: u32,
    /// The rows of the layer's cache that are missing or were made for drafts, up to that of `position`. The device has the hidden states of the
    /// tokens before them from earlier steps.
    pub behind: u32,
    /// The drafts to make.
    pub drafts: u32,
}

/// The results of a step.
#[derive(Debug, Default)]
pub struct BatchLanding {
    /// The chosen tokens, which the device has written to their sequences' ids.
    pub ids: Vec<u32>,
    /// Whether a logit was infinite or not a number, for each of them. Then the id means nothing.
    pub broken: Vec<bool>,
    /// The logits that were asked for, (rows, vocab). Their memory can be given back.
    pub logits: Vec<f32>,
    /// The drafts of all predictions of the step, in their order.
    pub drafts: Vec<u32>,
    /// Whether the step has made the rows of the prediction layer's cache for its tokens. Their states are kept in any case.
    pub layer_rows: bool,
}

/// A model on a device with the caches of several sequences, in pages of [`PAGE`](crate::kernels::sequences::PAGE) rows.
///
/// Whoever uses it says which pages hold the rows of a sequence and which ids it has, and submits steps. All that is written holds for steps
/// that are submitted from then on.
pub(super) trait Batch: Send + Sync {
    /// The sizes that it was made for.
    fn sizes(&self) -> BatchSizes;

    /// The most steps that may be on their way. Where it is one, a step computes while the host waits for it, and can be broken off.
    fn in_flight(&self) -> usize;

    /// The most tokens of a step of any sequences in which each gets what it gets in a step of its own, to the bit.
    fn as_one(&self) -> usize;

    /// The most tokens of one prompt that a step takes alone, where there are such steps.
    fn longest_run(&self) -> Option<usize>;

    /// The most drafts of a [prediction](BatchStep::predictions); 0 where no prediction layer is loaded.
    fn predicts(&self) -> usize {
        0
    }

    /// Writes ids of a sequence from `position` on.
    fn write_ids(&mut self, sequence: u32, position: usize, ids: &[u32]);

    /// Tells which pages hold the rows of a sequence, from its page number `first` on.
    fn write_pages(&mut self, sequence: u32, first: usize, pages: &[u32]);

    /// Has the first `rows` rows of page `from` copied to page `to` in all layers.
    fn copy_rows(&mut self, from: u32, to: u32, rows: u32);

    /// Compiles all steps, where a device compiles.
    fn prepare_all(&mut self) -> Answer<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Runs its steps once, until it is through or has taken `most`. `told` hears how many ran, and of how many. The cache must be empty.
    fn warm_up<'a>(
        &'a mut self,
        most: Duration,
        told: &'a mut (dyn FnMut(usize, usize) + Send),
    ) -> Answer<'a, ()>;

    /// A function that touches all that a step needs on the device, if a device that is not used forgets it.
    fn warm(&self) -> Option<Touch> {
        None
    }

    /// Submits a step.
    fn submit<'a>(&'a mut self, step: BatchStep<'a>) -> Answer<'a, ()>;

    /// Has the next step encoded meanwhile, where that helps: one like the last, with about these `tokens`, after each of which one is chosen, and so
    /// many drafts of the prediction layer. Any other may follow.
    fn encode_ahead(&mut self, _tokens: &[BatchToken], _drafts: usize, _biased: bool) {}

    /// Waits for the oldest step on its way. A step of one prompt that can be broken off tells `on_prompt` meanwhile how many of its tokens are as good as
    /// computed. `None` is the landing of one that was broken off, as it also is where an earlier future of this was dropped: it has to be submitted again.
    fn land<'a>(&'a mut self, on_prompt: &'a mut OnPrompt<'_>) -> Answer<'a, Option<BatchLanding>>;

    /// Takes rows of a landing back whose values nobody needs any more.
    fn take_back(&mut self, _logits: Vec<f32>) {}

    /// The cache rows of positions of a sequence, as [`Backend::read_rows`](super::backend::Backend::read_rows) gives them.
    fn rows(&mut self, sequence: u32, positions: Range<usize>) -> Answer<'_, Vec<u8>>;

    /// Writes cache rows of a sequence from position `first` on.
    ///
    /// # Errors
    /// The errors of [`Backend::write_rows`](super::backend::Backend::write_rows).
    fn put_rows<'a>(&'a mut self, sequence: u32, first: usize, rows: &'a [u8]) -> Answer<'a, ()>;
}
