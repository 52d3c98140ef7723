//! The family's side of the engine's interfaces: weights whose forms are chosen on a device, and the steps of one sequence or several with
//! their buffers.

use super::batch::{self, Hidden};
use super::chunk::{most_absorbed, widest};
use super::{BeforeNorm, Chunk, Context, Expanded, Forms, Given, prompt, token};
use crate::gpu::buffer::Range;
use crate::gpu::call::State;
use crate::gpu::machine::Machine;
use crate::gpu::memory::GpuWeight;
use crate::gpu::{Gpu, GpuError, Step, Target};
use crate::kernels::attention::{self, Cut, Seen, cut_sequences};
use crate::kernels::sequences::Sequences;
use crate::models::mla::Weights;
use crate::models::{self, BatchSizes, FEW, Sessions, Trials};

impl models::Weights for Weights {
    fn vectors(&self) -> &Range {
        &self.vectors
    }

    fn products(&mut self) -> &mut [Vec<GpuWeight>; 2] {
        &mut self.products
    }

    fn tried<'a>(&'a self, gpu: &'a Gpu) -> Trials<'a> {
        Box::pin(async {
            let forms = Forms::tried(gpu, &self.config).await?;
            let weights = self.clone();
            let chosen: Box<dyn Sessions> = Box::new(Chosen { weights, forms });
            Ok(chosen)
        })
    }

    fn untried(&self, target: &Target) -> Box<dyn Sessions> {
        let forms = Forms::untried(target, &self.config);
        let weights = self.clone();
        Box::new(Chosen { weights, forms })
    }
}

/// A model on a device whose forms are chosen.
struct Chosen {
    weights: Weights,
    forms: Forms,
}

impl Sessions for Chosen {
    fn cache_row_bytes(&self) -> u64 {
        self.weights.config.cache_row() as u64 * 2
    }

    fn widest(&self, machine: Machine, tokens: u32) -> u64 {
        widest(machine, &self.weights.config, self.forms, tokens)
    }

    fn widest_of_batch(&self, machine: Machine, tokens: u32) -> u64 {
        let config = &self.weights.config;
        let slices = attention::MAX_SLICES + tokens as usize;
        let partials = attention::partial_bytes(config.dims(), slices);
        let forms = self.forms.of_batch();
        widest(machine, config, forms, tokens).max(partials[0])
    }

    fn steps(
        &self,
        target: &Target,
        sizes: BatchSizes,
    ) -> Result<Box<dyn models::Steps>, GpuError> {
        let steps = Steps::new(target, self.weights.clone(), self.forms, sizes)?;
        Ok(Box::new(steps))
    }
}

/// The steps of one sequence or several.
pub(super) struct Steps {
    weights: Weights,
    /// The context of steps whose tokens belong to any sequences.
    context: Context,
    /// The context of steps whose tokens belong to one sequence and follow each other.
    alone: Context,
    /// Where the last layer of few tokens leaves its output, prepared.
    hidden: Hidden,
    /// Where the last layer of one token leaves its output, in the tiers with subgroups.
    last: BeforeNorm,
    /// The buffers of other steps, whose output is in f32. A device makes them if it records such a step.
    chunk: Chunk,
    sizes: BatchSizes,
}

impl Steps {
    pub(super) fn new(
        target: &Target,
        weights: Weights,
        forms: Forms,
        sizes: BatchSizes,
    ) -> Result<Self, GpuError> {
        let context = Context::new(target, &weights.config, forms, sizes)?;
        let given = Given {
            target,
            weights: &weights,
            context: &context,
        };
        let few = target.machine.tuned.few_of_batch.min(sizes.tokens);
        let hidden = Hidden::new(given, few.max(sizes.most_drawn()));
        let last = token::last_stream(given);
        let of_any = match sizes.pages {
            0 => 0,
            _ => sizes.tokens,
        };
        let (machine, tokens) = (target.machine, of_any.max(sizes.chunk));
        let absorbed = most_absorbed(machine, &weights.config, forms.expanded).max(of_any);
        Ok(Self {
            chunk: Chunk::new(machine, &weights.config, forms, tokens, absorbed),
            alone: context.alone(),
            weights,
            context,
            hidden,
            last,
            sizes,
        })
    }

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
    fn given_alone<'a>(&'a self, target: &'a Target) -> Given<'a> {
        Given {
            target,
            weights: &self.weights,
            context: &self.alone,
        }
    }
}

impl models::Steps for Steps {
    fn sequences(&self) -> Option<&Sequences> {
        self.context.sequences.as_ref()
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

    fn prompt(&self, target: &Target, least: u32, most: u32) -> Result<Step, GpuError> {
        let (given, chunk) = (self.given_alone(target), &self.chunk);
        if most > FEW {
            return Ok(prompt::step(given, chunk, least, most));
        }
        let hidden = Hidden::new(given, most);
        batch::step(given, most, &hidden, Some(&chunk.after_ffn))
    }

    fn hidden(&self) -> &Range {
        &self.chunk.after_ffn
    }

    fn last_logits(&self, target: &Target, logits: &Range) -> Result<Step, GpuError> {
        let given = self.given_alone(target);
        prompt::last_logits(given, &self.chunk, self.sizes.chunk, logits)
    }

    fn logits_of_slices(
        &self,
        target: &Target,
        tokens: u32,
        slices: &[Range],
        logits: &Range,
    ) -> Step {
        let given = self.given_alone(target);
        prompt::logits_of_slices(given, &self.chunk, tokens, slices, logits)
    }

    fn cut(&self, machine: Machine, tokens: &[Seen]) -> Cut {
        let heads = self.weights.config.head_count;
        cut_sequences(self.context.forms.token, machine, tokens, heads)
    }

    fn state(&self, machine: Machine, pos: usize, tokens: usize) -> State {
        let context = &self.alone;
        let heads = self.weights.config.head_count;
        let (slices, slice_rows) = context.cut(machine, heads, pos, tokens);
        let few = |e: &Expanded| e.few(pos, tokens);
        State {
            pos: pos as u32,
            tokens: tokens as u32,
            slices,
            slice_rows,
            few: context.expanded.as_ref().is_none_or(few),
            ..State::default()
        }
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
