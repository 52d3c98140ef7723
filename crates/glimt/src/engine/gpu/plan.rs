//! All that sequences will ask of a device, without one: their steps, and every buffer with its size.

#![expect(
    clippy::mutable_key_type,
    reason = "buffers are equal and hash by identity, whatever happens to them"
)]

use super::batch::{After, Chosen, classes, copies, drafting, head_classes, unknown};
use super::prompt;
use super::results::RESULT;
use crate::gpu::buffer::{Buffer, Range, Role};
use crate::gpu::call::State;
use crate::gpu::memory::GpuWeight;
use crate::gpu::{GpuError, Step, Target};
use crate::kernels::logit_bias;
use crate::kernels::sequences::CHOICE;
use crate::models::Model;
use crate::recipes::{BatchSizes, FEW, Placed, Residence, Rooms, Sessions, Steps, Weights};
use std::collections::HashSet;

/// The steps of one sequence or several that were planned.
pub struct Plan {
    /// Tokens of a chunk of a prompt.
    pub chunk: u32,
    /// One token with the choice of the next. Of prompts of one sequence: few tokens, a whole chunk, and its last logits. Of several sequences:
    /// copies of cache rows, tokens of every number that steps are made for, and the choices that follow them.
    pub steps: Vec<(&'static str, Step)>,
    /// Bytes of weights, of the cache, and of everything else, each buffer counted once. Slots of experts are weights, and the room for all
    /// experts of a layer is among everything else. Buffers in host memory are not counted here.
    pub bytes: [u64; 3],
    /// Bytes of the experts in host memory.
    pub host: u64,
    /// Bytes of the experts that stay in the file, as they would lie on the device.
    pub file: u64,
    recipes: Steps,
}

impl Plan {
    /// The plan of one sequence of `model` on `target`, with a context of `n_ctx` tokens and chunks as asked for.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn of_one(
        target: &Target,
        model: &dyn Model,
        residence: Residence,
        n_ctx: usize,
        chunk: Option<u32>,
    ) -> Result<Self, GpuError> {
        let placed = model.place(target, residence)?;
        let sessions = placed.weights.untried(target);
        let chunk = prompt::chunk(target, &sessions, n_ctx, chunk)?;
        let sizes = BatchSizes::of_one(n_ctx, chunk);
        Self::of(target, model, &placed, &sessions, sizes)
    }

    /// The plan of `model` on `target`.
    ///
    /// # Errors
    /// The errors of loading and recording: [`GpuError::UnsupportedSize`], [`GpuError::BindingTooLarge`],
    /// [`GpuError::TierUnsupported`].
    pub fn new(
        target: &Target,
        model: &dyn Model,
        residence: Residence,
        sizes: BatchSizes,
    ) -> Result<Self, GpuError> {
        let placed = model.place(target, residence)?;
        let sessions = placed.weights.untried(target);
        Self::of(target, model, &placed, &sessions, sizes)
    }

    /// The plan for weights that have their places, in the forms of `sessions`.
    fn of(
        target: &Target,
        model: &dyn Model,
        Placed {
            weights, matrices, ..
        }: &Placed<'_>,
        sessions: &Sessions,
        sizes: BatchSizes,
    ) -> Result<Self, GpuError> {
        let room = prompt::with_room(sizes).chunk;
        let recipes = sessions.steps(target, prompt::with_room(sizes))?;
        let vocab = model.config().vocab_size as u32;
        let drawn = u64::from(sizes.most_drawn());
        let logits = Range::floats("logits", drawn * u64::from(vocab));
        let choices = Range::words("choices", drawn * CHOICE as u64);
        let biases = Range::whole(&logit_bias::buffer(sizes.most_drawn()));
        let result = Range::whole(&Buffer::new("ids", RESULT * drawn, Role::Words));
        let chosen = Chosen {
            recipes: &recipes,
            vocab,
            logits: &logits,
            choices: &choices,
            biases: &biases,
            results: &[result],
        };
        let token = recipes.token(target, &logits)?;
        let mut steps = vec![("token", token.then(&chosen.calls(1, 1)))];
        if sizes.chunk > 0 && !recipes.is_one_by_one() {
            // Few tokens of one of several sequences take the steps of any.
            if sizes.pages == 0 {
                steps.push(("few tokens", recipes.prompt(target, 2, FEW)?));
                let most = recipes.as_one();
                if most > 1 {
                    let head = recipes.head(target, most, 1, &logits)?;
                    let step = recipes.step(target, most)?;
                    steps.push(("few as one", step.then(&head.calls)));
                }
            }
            if room > FEW {
                steps.push(("chunk", recipes.prompt(target, FEW + 1, room)?));
            }
            steps.push(("last logits", recipes.last_logits(target, &logits)?));
        }
        if sizes.pages > 0 {
            steps.push(("copies", copies::step(&recipes, sizes).0));
        }
        let mut kinds = HashSet::new();
        for class in classes(sizes, &recipes) {
            steps.push(("step", recipes.step(target, class)?));
            let of_layer = recipes.of_layer(target, class, true);
            steps.extend(of_layer.map(|step| ("rows of the prediction layer", step)));
            for most in head_classes(sizes) {
                if most <= class && kinds.insert((After::of(target, sizes, class), most)) {
                    let head = recipes.head(target, class, most, &logits)?;
                    steps.push(("head", head.then(&chosen.calls(class, most))));
                }
            }
        }
        steps.extend(drafts(target, &chosen, sizes)?);
        let used = steps.iter().map(|(_, step)| step);
        let all = matrices.iter().flat_map(GpuWeight::buffers).collect();
        Ok(Self {
            chunk: sizes.chunk,
            bytes: bytes(weights, matrices, recipes.cache(), used),
            host: of(&all, Buffer::is_host),
            file: of(&all, Buffer::is_file),
            steps,
            recipes,
        })
    }

    /// The words of a token at `pos`.
    pub(crate) fn state(&self, target: &Target, pos: usize) -> State {
        self.recipes.state(target.machine, pos, 1)
    }
}

/// The steps of the prediction layer, if it makes drafts.
fn drafts(
    target: &Target,
    chosen: &Chosen<'_>,
    sizes: BatchSizes,
) -> Result<Vec<(&'static str, Step)>, GpuError> {
    let recipes = chosen.recipes;
    let logits = drafting::logits(chosen.vocab, sizes);
    let mut steps = vec![];
    for number in 0..recipes.predicts() {
        let most = match number {
            0 => recipes.as_one(),
            _ => sizes.sequences.min(recipes.as_one()),
        };
        let of = [most, sizes.sequences.min(most)];
        let [step, head] = recipes.draft(target, number, of, &logits)?;
        let choose = drafting::choice(chosen, number, of, &logits, chosen.choices);
        steps.push(("draft", step));
        steps.push(("head of a draft", head.then(&choose)));
    }
    if sizes.pages == 0 {
        let step = unknown::planned(recipes, sizes, chosen.choices);
        steps.extend(step.map(|step| ("where a step with drafts begins", step)));
    }
    Ok(steps)
}

/// Bytes of weights, of the cache, and of everything else that steps need, each buffer counted once.
fn bytes<'a>(
    weights: &Weights,
    matrices: &[GpuWeight],
    cache: &[Range],
    steps: impl Iterator<Item = &'a Step>,
) -> [u64; 3] {
    let body = &weights.body;
    let slots = body.rooms.iter().flatten().flat_map(Rooms::slots);
    let mut weights: HashSet<_> = matrices
        .iter()
        .chain(slots)
        .flat_map(GpuWeight::buffers)
        .collect();
    let cache: HashSet<_> = cache.iter().map(|range| &range.buffer).collect();
    let used = steps.flat_map(Step::buffers);
    let (vectors, others): (HashSet<_>, HashSet<_>) = used
        .filter(|buffer| !weights.contains(buffer) && !cache.contains(buffer))
        .partition(|buffer| **buffer == body.vectors.buffer);
    weights.extend(vectors);
    [weights, cache, others].map(|buffers| of(&buffers, Buffer::is_of_device))
}

/// Bytes of those `buffers` that lie `there`.
fn of(buffers: &HashSet<&Buffer>, there: impl Fn(&Buffer) -> bool) -> u64 {
    let there = buffers.iter().filter(|buffer| there(buffer));
    there.map(|buffer| buffer.size()).sum()
}

pub mod expected;
#[cfg(test)]
mod tests;
