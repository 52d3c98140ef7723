//! What the engine asks of this family: weights that begin sessions, and the steps of a session with their buffers.

use super::batch::Hidden;
use super::batch_session::Batch;
use super::chunk::widest;
use super::{Chunk, Context, Expanded, Forms, Given, batch, prompt};
use crate::gpu::buffer::Range;
use crate::gpu::call::State;
use crate::gpu::machine::Machine;
use crate::gpu::memory::GpuWeight;
use crate::gpu::{Gpu, GpuError, Step, Target};
use crate::kernels::attention;
use crate::kernels::compose::{Composition, Pair};
use crate::models::mla::Weights;
use crate::models::{self, BatchSizes, Batches, FEW, Recipes, Sessions, Trials};

impl models::Weights for Weights {
    fn vectors(&self) -> &Range {
        &self.vectors
    }

    fn factors(&self, pair: Pair) -> Vec<(Composition, [&GpuWeight; 2])> {
        let composition = Composition::of(pair, &self.config);
        let layers = self.layers.iter();
        layers
            .map(|layer| (composition, pair.factors(layer)))
            .collect()
    }

    fn composed(&mut self, pair: Pair) -> &mut Vec<GpuWeight> {
        &mut self.composed[pair as usize]
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

    fn begin(
        &self,
        target: &Target,
        n_ctx: usize,
        chunk: u32,
    ) -> Result<Box<dyn Recipes>, GpuError> {
        let (weights, forms) = (self.weights.clone(), self.forms);
        Ok(Box::new(Session {
            context: Context::new(target, &weights.config, forms, n_ctx, chunk)?,
            chunk: Chunk::new(target.machine, &weights.config, forms, chunk),
            weights,
            tokens: chunk,
        }))
    }

    fn batch(&self, target: &Target, sizes: BatchSizes) -> Result<Box<dyn Batches>, GpuError> {
        let batch = Batch::new(target, self.weights.clone(), self.forms, sizes)?;
        Ok(Box::new(batch))
    }
}

/// The steps of one session.
struct Session {
    weights: Weights,
    context: Context,
    chunk: Chunk,
    /// Tokens of a prompt that are computed at a time, at most.
    tokens: u32,
}

impl Session {
    fn given<'a>(&'a self, target: &'a Target) -> Given<'a> {
        Given {
            target,
            weights: &self.weights,
            context: &self.context,
            composed: &[],
        }
    }
}

impl Recipes for Session {
    fn n_ctx(&self) -> u32 {
        self.context.rows
    }

    fn history(&self) -> &Range {
        &self.context.history
    }

    fn cache(&self) -> &[Range] {
        &self.context.cache
    }

    fn token(&self, target: &Target, composed: &[Pair], logits: &Range) -> Result<Step, GpuError> {
        let given = Given {
            composed,
            ..self.given(target)
        };
        super::token(given, logits)
    }

    fn prompt(&self, target: &Target, least: u32, most: u32) -> Result<Step, GpuError> {
        let (given, chunk) = (self.given(target), &self.chunk);
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
        prompt::last_logits(self.given(target), &self.chunk, self.tokens, logits)
    }

    fn logits_of_slices(
        &self,
        target: &Target,
        tokens: u32,
        slices: &[Range],
        logits: &Range,
    ) -> Step {
        prompt::logits_of_slices(self.given(target), &self.chunk, tokens, slices, logits)
    }

    fn state(&self, machine: Machine, pos: usize, tokens: usize) -> State {
        let context = &self.context;
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
