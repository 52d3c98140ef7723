//! What the engine asks of this family for a batch: the steps of several sequences, with their buffers.

use super::batch::{self, Hidden};
use super::{BeforeNorm, Chunk, Context, Forms, Given, prompt, token};
use crate::gpu::buffer::Range;
use crate::gpu::machine::Machine;
use crate::gpu::{GpuError, Step, Target};
use crate::kernels::attention::{Cut, Seen, cut_sequences};
use crate::kernels::sequences::Sequences;
use crate::models::mla::Weights;
use crate::models::{BatchSizes, Batches};

/// The steps of several sequences.
pub struct Batch {
    weights: Weights,
    context: Context,
    /// For steps of one token.
    alone: Context,
    /// Where the last layer of few tokens leaves its output, prepared.
    hidden: Hidden,
    /// Where that of one token leaves it, in the tiers with subgroups.
    last: BeforeNorm,
    /// The buffers of other steps, which leave it in f32. A device makes them if it records such a step.
    chunk: Chunk,
}

impl Batch {
    /// For a device.
    ///
    /// # Errors
    /// Those of [`Context::of_batch`].
    pub fn new(
        target: &Target,
        weights: Weights,
        forms: Forms,
        sizes: BatchSizes,
    ) -> Result<Self, GpuError> {
        let context = Context::of_batch(target, &weights.config, forms.of_batch(), sizes)?;
        let given = Given {
            target,
            weights: &weights,
            context: &context,
            composed: &[],
        };
        let few = target.machine.tuned.few_of_batch.min(sizes.tokens);
        let most = few.max(sizes.most_drawn());
        let hidden = Hidden::new(given, most);
        let last = token::last_stream(given);
        let (machine, forms) = (target.machine, context.forms);
        let chunk = Chunk::new(machine, &weights.config, forms, sizes.tokens);
        Ok(Self {
            weights,
            alone: context.alone(),
            context,
            hidden,
            last,
            chunk,
        })
    }

    /// For steps of up to `most` tokens.
    fn given<'a>(&'a self, target: &'a Target, most: u32) -> Given<'a> {
        Given {
            target,
            weights: &self.weights,
            context: if most == 1 {
                &self.alone
            } else {
                &self.context
            },
            composed: &[],
        }
    }
}

impl Batches for Batch {
    fn sequences(&self) -> &Sequences {
        let sequences = self.context.sequences.as_ref();
        sequences.expect("the context of a batch has some")
    }

    fn history(&self) -> &Range {
        &self.context.history
    }

    fn cache(&self) -> &[Range] {
        &self.context.cache
    }

    fn step(&self, target: &Target, most: u32) -> Result<Step, GpuError> {
        let given = self.given(target, most);
        if is_alone(target, most) {
            return token::layers(given, &self.last);
        }
        match is_few(target, most) {
            true => batch::step(given, most, &self.hidden, None),
            false => Ok(prompt::step(given, &self.chunk, 1, most)),
        }
    }

    fn head(&self, target: &Target, of: u32, most: u32, logits: &Range) -> Result<Step, GpuError> {
        let (given, hidden) = (self.given(target, of), &self.hidden);
        if is_alone(target, of) {
            return token::head(given, &self.last, logits);
        }
        match is_few(target, of) {
            true => batch::head(given, most, hidden, logits),
            false => batch::head_of_floats(given, most, [&self.chunk.after_ffn, logits], hidden),
        }
    }

    fn cut(&self, machine: Machine, tokens: &[Seen]) -> Cut {
        let heads = self.weights.config.head_count;
        let context = &self.context;
        cut_sequences(context.forms.token, machine, tokens, heads)
    }

    fn cut_alone(&self, machine: Machine, position: u32) -> (u32, u32) {
        let heads = self.weights.config.head_count;
        self.alone.cut(machine, heads, position as usize, 1)
    }
}

/// Whether a step of up to `most` tokens takes the kernels of a decoded token.
fn is_alone(target: &Target, most: u32) -> bool {
    most == 1 && target.tier.has_subgroups()
}

/// Whether a step of up to `most` tokens takes kernels for few of them.
fn is_few(target: &Target, most: u32) -> bool {
    most <= target.machine.tuned.few_of_batch
}
