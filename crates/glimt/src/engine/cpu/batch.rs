//! The steps of several sequences on the CPU. One is on its way at a time, and is computed while the host waits for it.

mod drafting;
mod states;

use std::ops::{ControlFlow, Range};
use std::sync::{Arc, Mutex};
use web_time::Duration;

use half::f16;

use super::{CHUNK, computed, lock};
use crate::engine::apart::Heard;
use crate::engine::backend::{Answer, BackendError, OnPrompt, check_written};
use crate::engine::batch::{Batch, BatchLanding, BatchStep, BatchToken, Prediction};
use crate::kernels::logit_bias::{Biases, logit_bias};
use crate::kernels::products::Products;
use crate::kernels::sample::{all_finite, sample};
use crate::kernels::sampling::Sampling;
use crate::kernels::sequences::PAGE;
use crate::models::{Model, OutOfMemory, Part, Reference};
use crate::recipes::BatchSizes;
use states::States;

/// A model on the CPU with the caches of several sequences. Each weight is read once for all tokens of a step, and the results are those of
/// each token alone, bit for bit.
pub(in crate::engine) struct CpuBatch {
    work: Arc<Mutex<Work>>,
    sizes: BatchSizes,
    /// The step on its way.
    step: Option<Step>,
}

/// All that a step is computed with.
struct Work {
    reference: Box<dyn Reference>,
    blocks: usize,
    /// Values of a cache row of one layer.
    row: usize,
    /// The ids of each sequence by position, with room for one behind the last.
    ids: Vec<Vec<u32>>,
    /// The pages of each sequence.
    pages: Vec<Vec<u32>>,
    /// What the prediction layer takes of the last tokens, if it is loaded.
    states: Option<States>,
}

/// A [`BatchStep`] that is submitted.
struct Step {
    tokens: Vec<BatchToken>,
    choices: Vec<Sampling>,
    biases: Vec<Biases>,
    logits: Vec<usize>,
    predictions: Vec<Prediction>,
}

impl CpuBatch {
    /// A batch of these sizes with an empty cache.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`] if the cache cannot be allocated.
    pub(in crate::engine) fn new(
        model: Arc<dyn Model>,
        products: Products,
        sizes: BatchSizes,
    ) -> Result<Self, BackendError> {
        let (n_ctx, rows) = (sizes.n_ctx, sizes.rows());
        let reference = Arc::clone(&model).reference(products, n_ctx, rows);
        let reference = reference
            .map_err(|OutOfMemory { bytes }| BackendError::OutOfMemory { n_ctx: rows, bytes })?;
        let (sequences, of_one) = (sizes.sequences as usize, n_ctx.div_ceil(PAGE as usize));
        let cache = reference.cached().first();
        let work = Work {
            blocks: model.config().block_count,
            row: cache.map_or(0, |cache| cache.len() / rows.max(1)),
            ids: vec![vec![0; n_ctx + 1]; sequences],
            pages: vec![vec![0; of_one]; sequences],
            states: model
                .nextn()
                .then(|| States::new(sequences, model.config().embedding_length)),
            reference,
        };
        Ok(Self {
            work: Arc::new(Mutex::new(work)),
            sizes,
            step: None,
        })
    }
}

impl Work {
    /// Computes a step. `tell` hears how many tokens of a prompt that has the step for itself are as good as computed, else 0.
    fn compute(&mut self, step: &Step, tell: &mut Heard<'_, usize>) -> Option<BatchLanding> {
        // Tokens of the step may be these drafts.
        let drafts = self.predict(step);
        // Tokens of a sequence stand together, and in their order.
        let mut order: Vec<usize> = (0..step.tokens.len()).collect();
        order.sort_by_key(|index| step.tokens[*index]);
        let sorted: Vec<BatchToken> = order.iter().map(|index| step.tokens[*index]).collect();
        let follows = |a: &BatchToken, b: &BatchToken| {
            (a.sequence, a.position + 1) == (b.sequence, b.position)
        };
        let part = |tokens: &[BatchToken]| Part {
            tokens: tokens.len(),
            pos: tokens[0].position as usize,
            pages: &self.pages[tokens[0].sequence as usize],
        };
        let parts: Vec<Part<'_>> = sorted.chunk_by(follows).map(part).collect();
        let id = |token: &BatchToken| self.ids[token.sequence as usize][token.position as usize];
        let ids: Vec<u32> = sorted.iter().map(id).collect();
        let watched = if parts.len() == 1 { ids.len() } else { 0 };
        let on_block = &mut |done| tell(watched * done / self.blocks);
        let x = self.reference.forward(&ids, &parts, on_block)?;
        if let Some(states) = &mut self.states {
            let sequences: Vec<u32> = sorted.iter().map(|token| token.sequence).collect();
            states.keep(&mut *self.reference, (&ids, &sequences), &parts, &x);
        }
        if step.choices.is_empty() {
            return Some(BatchLanding {
                drafts,
                layer_rows: true,
                ..BatchLanding::default()
            });
        }
        let width = x.len() / ids.len().max(1);
        let hidden = |drawn: usize| {
            let place = order.iter().position(|index| *index == drawn);
            place.map_or(&[][..], |place| &x[place * width..][..width])
        };
        let hidden: Vec<f32> = (0..step.choices.len()).flat_map(hidden).copied().collect();
        Some(BatchLanding {
            drafts,
            layer_rows: true,
            ..self.choose(step, self.reference.head(&hidden))
        })
    }

    /// Chooses tokens by their logits, and keeps their ids.
    fn choose(&mut self, step: &Step, mut logits: Vec<f32>) -> BatchLanding {
        let vocab = logits.len() / step.choices.len();
        let mut landing = BatchLanding::default();
        for (index, row) in logits.chunks_exact_mut(vocab).enumerate() {
            let id = self.draw(step, index, step.tokens[index], row);
            landing.ids.push(id);
            landing.broken.push(!all_finite(row));
        }
        let asked = step
            .logits
            .iter()
            .map(|row| &logits[row * vocab..][..vocab]);
        landing.logits = asked.flatten().copied().collect();
        landing
    }

    /// Chooses the token behind `token` by its logits, as choice number `index` of the step says, and keeps its id.
    fn draw(&mut self, step: &Step, index: usize, token: BatchToken, row: &mut [f32]) -> u32 {
        let (sampling, next) = (&step.choices[index], token.position as usize + 1);
        if let Some(biases) = step.biases.get(index).filter(|biases| !biases.is_empty()) {
            logit_bias(row, &biases.row());
        }
        let ids = &mut self.ids[token.sequence as usize];
        let id = sample(row, sampling.recent(&ids[..next]), sampling, next as u64);
        ids[next] = id;
        id
    }

    /// The values of each layer's cache that belong to a position of a sequence.
    fn place(&self, sequence: u32, position: usize) -> Range<usize> {
        let page = PAGE as usize;
        let number = self.pages[sequence as usize][position / page] as usize;
        let row = number * page + position % page;
        row * self.row..(row + 1) * self.row
    }
}

impl Batch for CpuBatch {
    fn sizes(&self) -> BatchSizes {
        self.sizes
    }

    fn in_flight(&self) -> usize {
        1
    }

    fn predicts(&self) -> usize {
        match lock(&self.work).states {
            Some(_) => self.sizes.drafts as usize,
            None => 0,
        }
    }

    fn as_one(&self) -> usize {
        self.sizes.tokens as usize
    }

    fn longest_run(&self) -> Option<usize> {
        Some(CHUNK)
    }

    fn write_ids(&mut self, sequence: u32, position: usize, ids: &[u32]) {
        let work = &mut *lock(&self.work);
        work.ids[sequence as usize][position..][..ids.len()].copy_from_slice(ids);
        if let Some(states) = &mut work.states {
            states.forget(sequence, position);
        }
    }

    fn write_pages(&mut self, sequence: u32, first: usize, pages: &[u32]) {
        lock(&self.work).pages[sequence as usize][first..][..pages.len()].copy_from_slice(pages);
    }

    fn copy_rows(&mut self, from: u32, to: u32, rows: u32) {
        let work = &mut *lock(&self.work);
        let first = |page: u32| (page * PAGE) as usize * work.row;
        let values = first(from)..first(from) + rows as usize * work.row;
        for cache in work.reference.cache() {
            cache.copy_within(values.clone(), first(to));
        }
    }

    fn warm_up<'a>(
        &'a mut self,
        _: Duration,
        told: &'a mut (dyn FnMut(usize, usize) + Send),
    ) -> Answer<'a, ()> {
        Box::pin(async move {
            // Nothing is compiled. A token brings the weights that it uses into memory.
            told(0, 1);
            self.write_ids(0, 0, &[0]);
            self.write_pages(0, 0, &[0]);
            let step = BatchStep {
                tokens: &[BatchToken {
                    sequence: 0,
                    position: 0,
                }],
                choices: &[Sampling::GREEDY],
                biases: &[],
                logits: &[],
                predictions: &[],
            };
            self.submit(step).await?;
            self.land(&mut |_| ControlFlow::Continue(())).await?;
            told(1, 1);
            Ok(())
        })
    }

    fn submit<'a>(&'a mut self, step: BatchStep<'a>) -> Answer<'a, ()> {
        self.step = Some(Step {
            tokens: step.tokens.to_vec(),
            choices: step.choices.to_vec(),
            biases: step.biases.to_vec(),
            logits: step.logits.to_vec(),
            predictions: step.predictions.to_vec(),
        });
        Box::pin(async { Ok(()) })
    }

    fn land<'a>(&'a mut self, on_prompt: &'a mut OnPrompt<'_>) -> Answer<'a, Option<BatchLanding>> {
        Box::pin(async move {
            // The one who waited for it before has gone, and its thread has been told to break off.
            let Some(step) = self.step.take() else {
                return Ok(None);
            };
            let compute =
                move |work: &mut Work, tell: &mut Heard<'_, usize>| Ok(work.compute(&step, tell));
            computed(&self.work, compute, on_prompt).await
        })
    }

    fn rows(&mut self, sequence: u32, positions: Range<usize>) -> Answer<'_, Vec<u8>> {
        Box::pin(async move {
            let work = lock(&self.work);
            let mut rows: Vec<f16> = vec![];
            for cache in work.reference.cached() {
                for position in positions.clone() {
                    rows.extend_from_slice(&cache[work.place(sequence, position)]);
                }
            }
            Ok(bytemuck::cast_slice(&rows).to_vec())
        })
    }

    fn put_rows<'a>(&'a mut self, sequence: u32, first: usize, rows: &'a [u8]) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut work = lock(&self.work);
            let row = work.row * size_of::<f16>();
            let layers = work.reference.cached().len();
            let count = check_written(rows.len(), row * layers, first, self.sizes.n_ctx)?;
            let places = (first..first + count).map(|position| work.place(sequence, position));
            let places: Vec<_> = places.collect();
            let of_layers = rows.chunks_exact((row * count).max(1));
            for (cache, rows) in work.reference.cache().iter_mut().zip(of_layers) {
                for (place, row) in places.iter().zip(rows.chunks_exact(row.max(1))) {
                    bytemuck::cast_slice_mut(&mut cache[place.clone()]).copy_from_slice(row);
                }
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests;
