//! What the engine asks of this family for a batch: the steps of several sequences, with their buffers.

use super::batch::{self, Hidden};
use super::{Chunk, Context, Forms, Given, several};
use crate::gpu::buffer::Range;
use crate::gpu::machine::Machine;
use crate::gpu::{GpuError, Step, Target};
use crate::kernels::attention::{Cut, cut_sequences};
use crate::kernels::sequences::Sequences;
use crate::models::mla::Weights;
use crate::models::{BatchSizes, Batches};

/// The steps of several sequences.
pub struct Batch {
    weights: Weights,
    context: Context,
    hidden: Left,
}

/// Where the last layer leaves its output: prepared in the tiers with subgroups, in f32 in the others.
enum Left {
    Prepared(Hidden),
    Floats(Box<Chunk>),
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
        let hidden = match target.activation() {
            Some(activation) => Left::Prepared(Hidden::new(given, activation, sizes.tokens)),
            None => {
                let (machine, forms) = (target.machine, context.forms);
                let chunk = Chunk::new(machine, &weights.config, forms, sizes.tokens);
                Left::Floats(Box::new(chunk))
            }
        };
        Ok(Self {
            weights,
            context,
            hidden,
        })
    }

    fn given<'a>(&'a self, target: &'a Target) -> Given<'a> {
        Given {
            target,
            weights: &self.weights,
            context: &self.context,
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
        let given = self.given(target);
        match (&self.hidden, target.activation()) {
            (Left::Prepared(hidden), Some(activation)) => {
                batch::step(given, activation, most, hidden)
            }
            (Left::Floats(chunk), _) => Ok(several::step(given, chunk, most)),
            (Left::Prepared(_), None) => unreachable!("a batch stays in its tier"),
        }
    }

    fn head(&self, target: &Target, most: u32, logits: &Range) -> Result<Step, GpuError> {
        let given = self.given(target);
        match (&self.hidden, target.activation()) {
            (Left::Prepared(hidden), Some(activation)) => {
                batch::head(given, activation, most, hidden, logits)
            }
            (Left::Floats(chunk), _) => Ok(several::all_logits(given, chunk, most, logits)),
            (Left::Prepared(_), None) => unreachable!("a batch stays in its tier"),
        }
    }

    fn cut(&self, machine: Machine, positions: &[u32]) -> Cut {
        let heads = self.weights.config.head_count;
        let context = &self.context;
        cut_sequences(context.forms.token, machine, positions, heads)
    }
}
