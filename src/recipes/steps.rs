//! What the engine asks of a model on a device: sessions whose kernels are chosen, and the steps of one sequence or several with their buffers.

use super::few::{self, Hidden};
use super::{Attention, BatchSizes, Chunk, ChunkSize, Context, FEW, Given, Weights, chunk, prompt};
use crate::gpu::buffer::Range;
use crate::gpu::call::State;
use crate::gpu::machine::Machine;
use crate::gpu::{GpuError, Step, Target};
use crate::kernels::attention::{Cut, Seen};
use crate::kernels::compose::Pair;
use crate::kernels::gemm::Form;
use crate::kernels::sequences::Sequences;
use std::sync::Arc;

/// A model on a device whose kernels are chosen: what makes sessions.
pub struct Sessions {
    pub(super) weights: Weights,
    pub(super) products: Form,
}

impl Sessions {
    /// Bytes of a position in the cache of a layer.
    pub fn cache_row_bytes(&self) -> u64 {
        self.weights.attention.cache_row() as u64 * 2
    }

    /// Bytes of the largest binding of a chunk of so many tokens.
    pub fn widest(&self, machine: Machine, tokens: u32) -> u64 {
        self.widest_of(machine, tokens, false)
    }

    /// Bytes of the largest binding of a step of so many tokens of several sequences.
    pub fn widest_of_batch(&self, machine: Machine, tokens: u32) -> u64 {
        self.widest_of(machine, tokens, true)
    }

    fn widest_of(&self, machine: Machine, tokens: u32, several: bool) -> u64 {
        let size = self.chunk_size(machine, tokens);
        let attention = &self.weights.attention;
        let common = chunk::widest(size, &self.weights.config, attention.values());
        common.max(attention.widest(size, several))
    }

    fn chunk_size(&self, machine: Machine, tokens: u32) -> ChunkSize {
        ChunkSize {
            machine,
            products: self.products,
            tokens,
        }
    }

    /// The steps of one sequence, or of several.
    ///
    /// # Errors
    /// [`GpuError::BindingTooLarge`] for a cache that no binding has room for.
    pub fn steps(&self, target: &Target, sizes: BatchSizes) -> Result<Steps, GpuError> {
        let Weights {
            config, attention, ..
        } = &self.weights;
        let rows = [config.block_count, attention.cache_row()];
        let context = Context::new(target, rows, self.products, sizes)?;
        let tokens = sizes.of_several().max(sizes.chunk);
        let chunk = self.chunk_size(target.machine, tokens);
        let few = target.machine.tuned.few_of_batch.min(sizes.tokens);
        let hidden = |tokens, one| Hidden::new(target, &self.weights, tokens, one);
        Ok(Steps {
            hidden: hidden(few.max(sizes.most_drawn()), false),
            last: hidden(1, true),
            chunk: Chunk::new(chunk, config, attention.values()),
            attention: attention.sized(target, chunk, sizes),
            alone: context.alone(),
            context,
            weights: self.weights.clone(),
            sizes,
        })
    }
}

/// The steps of one sequence or of several, for any device that takes their kernels, and the buffers that they share.
pub struct Steps {
    pub(crate) weights: Weights,
    pub(crate) attention: Arc<dyn Attention>,
    /// The context of steps whose tokens belong to any sequences.
    pub(crate) context: Context,
    /// The context of steps whose tokens belong to one sequence and follow each other.
    pub(crate) alone: Context,
    /// Where the last layer of few tokens leaves its output, prepared.
    hidden: Hidden,
    /// Where the last layer of one token leaves its output, in the tiers with subgroups.
    last: Hidden,
    /// The buffers of other steps, whose output is in f32. A device makes them if it records such a step.
    pub(crate) chunk: Chunk,
    sizes: BatchSizes,
}

impl Steps {
    /// The input of recipes for steps of up to `most` tokens of any sequences.
    fn given<'a>(&'a self, target: &'a Target, most: u32) -> Given<'a> {
        Given {
            context: match most {
                1 => &self.alone,
                _ => &self.context,
            },
            ..self.given_alone(target)
        }
    }

    /// The input of recipes for steps of one sequence.
    pub(crate) fn given_alone<'a>(&'a self, target: &'a Target) -> Given<'a> {
        Given {
            target,
            weights: &self.weights,
            context: &self.alone,
            attention: &*self.attention,
            composed: &[],
        }
    }

    /// The tables that tell where tokens stand, which the host writes before a step. `None` for a single sequence without pages.
    pub fn sequences(&self) -> Option<&Sequences> {
        self.context.sequences.as_ref()
    }

    /// Token ids, (sequences, n_ctx + 1) u32, which the host writes before a step reads them.
    pub fn history(&self) -> &Range {
        &self.context.history
    }

    /// The cache of each layer, the same number of bytes for each row.
    pub fn cache(&self) -> &[Range] {
        &self.context.cache
    }

    /// The step from up to `most` tokens of any sequences to their hidden states, by the products of `composed` where there are some. A
    /// step of one token reads where it stands from the words of its replay ([`State`]), all others from the table.
    ///
    /// # Errors
    /// [`GpuError::TierUnsupported`] where a kernel does not take the shapes.
    pub fn step(&self, target: &Target, most: u32, composed: &[Pair]) -> Result<Step, GpuError> {
        let given = Given {
            composed,
            ..self.given(target, most)
        };
        match is_few(target, most) {
            true => few::step(given, most, self.hidden_of(target, most), None),
            false => Ok(prompt::step(given, &self.chunk, 1, most)),
        }
    }

    /// The step from the hidden states of another step's first tokens to their logits, (tokens, vocab). The other step has up to `of`
    /// tokens, and up to `most` of them get logits. If `of` is 1, `most` must be 1. Else `most` must be greater.
    ///
    /// # Errors
    /// The errors of [`step`](Self::step).
    pub fn head(
        &self,
        target: &Target,
        of: u32,
        most: u32,
        logits: &Range,
    ) -> Result<Step, GpuError> {
        let (given, hidden) = (self.given(target, of), self.hidden_of(target, of));
        match is_few(target, of) {
            true => few::head(given, most, hidden, logits),
            false => few::head_of_floats(given, most, [&self.chunk.after_ffn, logits], hidden),
        }
    }

    /// The step from one token to its logits (vocab).
    ///
    /// # Errors
    /// The errors of [`step`](Self::step).
    pub fn token(
        &self,
        target: &Target,
        composed: &[Pair],
        logits: &Range,
    ) -> Result<Step, GpuError> {
        let step = self.step(target, 1, composed)?;
        Ok(step.then(&self.head(target, 1, 1, logits)?.calls))
    }

    /// The step from `least` to `most` tokens of one sequence, which follow each other, to their [hidden states](Self::hidden).
    ///
    /// # Errors
    /// The errors of [`step`](Self::step).
    pub fn prompt(&self, target: &Target, least: u32, most: u32) -> Result<Step, GpuError> {
        let (given, chunk) = (self.given_alone(target), &self.chunk);
        if most > FEW {
            return Ok(prompt::step(given, chunk, least, most));
        }
        let hidden = Hidden::new(target, &self.weights, most, false);
        few::step(given, most, &hidden, Some(&chunk.after_ffn))
    }

    /// The hidden states that [`prompt`](Self::prompt) leaves, (chunk, embedding_length).
    pub fn hidden(&self) -> &Range {
        &self.chunk.after_ffn
    }

    /// The step from hidden states to the logits (vocab) of the last token.
    ///
    /// # Errors
    /// The errors of [`step`](Self::step).
    pub fn last_logits(&self, target: &Target, logits: &Range) -> Result<Step, GpuError> {
        let given = self.given_alone(target);
        prompt::last_logits(given, &self.chunk, self.sizes.chunk, logits)
    }

    /// The step from one of several slices of the hidden states, of up to `tokens` tokens, to the logits (tokens, vocab); the state's slot
    /// names the slice.
    pub fn logits_of_slices(
        &self,
        target: &Target,
        tokens: u32,
        slices: &[Range],
        logits: &Range,
    ) -> Step {
        let given = self.given_alone(target);
        prompt::logits_of_slices(given, &self.chunk, tokens, slices, logits)
    }

    /// The slices that the attention of tokens of several sequences is cut into.
    pub fn cut(&self, machine: Machine, tokens: &[Seen]) -> Cut {
        self.attention.cut(machine, tokens)
    }

    /// The words of a replay over `tokens` tokens of the first sequence from `pos` on.
    pub fn state(&self, machine: Machine, pos: usize, tokens: usize) -> State {
        self.attention.state(&self.alone, machine, pos, tokens)
    }

    /// Where a step of up to `most` tokens leaves its hidden states prepared.
    fn hidden_of(&self, target: &Target, most: u32) -> &Hidden {
        match few::is_one(target, most) {
            true => &self.last,
            false => &self.hidden,
        }
    }
}

/// Whether a step of up to `most` tokens takes kernels for few of them.
fn is_few(target: &Target, most: u32) -> bool {
    most <= target.machine.tuned.few_of_batch
}
