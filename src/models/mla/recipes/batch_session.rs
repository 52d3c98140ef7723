//! What the engine asks of this family for a batch: the steps of several sequences, with their buffers.

use super::batch::{self, Hidden};
use super::token::{self, LastStream};
use super::{Chunk, Context, Forms, Given, prompt, several};
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
    /// Where the last layer of few tokens, and of one, leaves its output in the tiers with subgroups, prepared.
    hidden: Option<(Hidden, LastStream)>,
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
        let context = Context::of_batch(target, &weights.config, forms, sizes)?;
        let given = Given {
            target,
            weights: &weights,
            context: &context,
            composed: &[],
        };
        let few = target.machine.tuned.few_of_batch.min(sizes.tokens);
        let most = few.max(sizes.most_drawn());
        let hidden = target.activation().map(|activation| {
            let hidden = Hidden::new(given, activation, most);
            (hidden, LastStream::new(given, activation))
        });
        let (machine, forms) = (target.machine, context.forms);
        let chunk = Chunk::new(machine, &weights.config, forms, sizes.tokens);
        Ok(Self {
            weights,
            alone: context.alone(),
            context,
            hidden,
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
        let (given, chunk) = (self.given(target, most), &self.chunk);
        match (&self.hidden, target.activation()) {
            _ if !is_few(target, most) => Ok(prompt::step(given, chunk, 1, most)),
            (Some((_, last)), Some(activation)) if most == 1 => {
                token::layers(given, activation, last)
            }
            (Some((hidden, _)), Some(activation)) => batch::step(given, activation, most, hidden),
            _ => Ok(several::step(given, chunk, most)),
        }
    }

    fn head(&self, target: &Target, of: u32, most: u32, logits: &Range) -> Result<Step, GpuError> {
        let (given, chunk) = (self.given(target, of), &self.chunk);
        match (&self.hidden, target.activation()) {
            (Some((_, last)), Some(activation)) if of == 1 => {
                token::head(given, activation, last, logits)
            }
            (Some((hidden, _)), Some(activation)) if is_few(target, of) => {
                batch::head(given, activation, most, hidden, logits)
            }
            (Some((hidden, _)), Some(activation)) => {
                let ranges = [&chunk.after_ffn, logits];
                batch::head_of_floats(given, activation, most, ranges, hidden)
            }
            _ => Ok(several::all_logits(given, chunk, most, logits)),
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

/// Whether a step of up to `most` tokens takes kernels for few of them.
fn is_few(target: &Target, most: u32) -> bool {
    most <= target.machine.tuned.few_of_batch
}
