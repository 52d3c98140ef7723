//! `--precompose`: products of weights beside the weights of the file, how fast a token is with them, and how far its logits are off. Products
//! trade bytes for dispatches, so only steps by the kernels of a decoded token read them.

use super::memory::MemoryPlan;
use super::model::GpuModel;
use super::precomposed::PrecomposeChoice::{self, Auto, Both, Off, Qk, Vo};
use super::precomposed::{Precomposed, Trial, fastest, line};
use super::random;
use super::trial::TokenTrial;
use crate::gpu::memory::{GpuWeight, Loader};
use crate::gpu::{Gpu, GpuError};
use crate::model::pairs::Pair;
use crate::models::Model;
use crate::recipes::Residence;
use std::sync::Arc;

/// Rows of the trial's cache: the steps that are timed are those of its middle.
const ROWS: usize = 512;
/// Tokens whose logits are compared.
const TOKENS: usize = 16;

impl GpuModel {
    /// Loads like [`load`](Self::load), with experts where `residence` says and the products that `choice` asks for, for sessions of `n_ctx`
    /// tokens.
    ///
    /// # Errors
    /// The errors of [`load`](Self::load), and before anything is loaded [`GpuError::CannotPrecompose`]. `auto` leaves out what cannot be, and
    /// says so.
    pub async fn load_precomposed(
        gpu: Arc<Gpu>,
        model: Arc<dyn Model>,
        residence: Residence,
        choice: PrecomposeChoice,
        n_ctx: usize,
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Self, GpuError> {
        if choice == Off {
            return Self::load_for(gpu, model, residence, 1, progress).await;
        }
        let mut left_out = String::new();
        let pairs = possible(&gpu, &*model, residence, choice, n_ctx, &mut left_out)?;
        let (mut done, more) = (0, bytes(&*model, &pairs));
        let told = &mut |loaded, all| {
            done = all;
            progress(loaded, all + more);
        };
        let mut loaded = Self::load_for(gpu, model, residence, 1, told).await?;
        let all = done + more;
        let before = loaded.gpu.allocated();
        let mut products = <[Vec<GpuWeight>; 2]>::default();
        for pair in &pairs {
            let told = &mut |bytes| {
                done += bytes;
                progress(done, all);
            };
            products[*pair as usize] = loaded.multiply(*pair, told).await?;
        }
        // In the order of preference.
        let mut choices = vec![Off, Qk, Vo, Both];
        choices.retain(|c| c.pairs().iter().all(|pair| pairs.contains(pair)));
        choices.retain(|c| [Auto, *c].contains(&choice) || *c == Off);
        let trials = loaded.try_each(&choices, &products).await?;
        let kept = match choice {
            Auto => fastest(&trials),
            asked => asked,
        };
        loaded.read(kept, &products);
        let bytes = bytes(&*loaded.model, kept.pairs());
        // All else that was made is dropped here.
        loaded.gpu.count_dropped(before + bytes);
        let line = line(kept, bytes, &trials) + &left_out;
        loaded.precomposed = Some(Precomposed { kept, line });
        Ok(loaded)
    }

    /// The products of `pair` in every block, on the device. `told` hears the bytes of each.
    async fn multiply(
        &self,
        pair: Pair,
        told: &mut (dyn FnMut(u64) + Send),
    ) -> Result<Vec<GpuWeight>, GpuError> {
        let (gpu, mut products) = (&self.gpu, vec![]);
        for factors in self.model.factors(pair) {
            let product = factors.product().map_err(|e| GpuError::ReadWeights {
                reason: e.to_string(),
            })?;
            let mut loader = Loader::new(gpu);
            loader.add(&product)?;
            products.extend(loader.load(gpu, &mut |_| {}).await?);
            told(factors.bytes());
        }
        if !self.model.has_data() {
            random::fill_weights(gpu, &products, &mut |_| {}).await?;
        }
        Ok(products)
    }

    /// Has steps by the kernels of a decoded token read those of `products` that `choice` names.
    fn read(&mut self, choice: PrecomposeChoice, products: &[Vec<GpuWeight>; 2]) {
        let weights = Arc::get_mut(&mut self.weights).expect("no session has begun");
        *weights.products() = Pair::ALL.map(|pair| match choice.pairs().contains(&pair) {
            true => products[pair as usize].clone(),
            false => vec![],
        });
    }

    /// Tries `choices`, the first of which is `off`.
    async fn try_each(
        &mut self,
        choices: &[PrecomposeChoice],
        products: &[Vec<GpuWeight>; 2],
    ) -> Result<Vec<Trial>, GpuError> {
        let (gpu, mut steps, mut logits) = (Arc::clone(&self.gpu), vec![], vec![]);
        for choice in choices {
            self.read(*choice, products);
            let trial = TokenTrial::new(self, &gpu, ROWS).await?;
            let step = trial.record(&gpu).await?;
            let state = |pos| trial.recipes.state(gpu.machine, pos, 1);
            let (of, mut all) = (&trial.logits, vec![]);
            for pos in 0..TOKENS.min(trial.n_ctx) {
                step.submit(&gpu, &state(pos));
                all.extend(gpu.read::<f32>(&of.buffer, of.offset, of.size).await?);
            }
            logits.push(all);
            steps.push((step, state(trial.middle())));
        }
        let replays: Vec<_> = steps.iter().map(|(step, state)| (step, state)).collect();
        let times = self.time(&replays).await?;
        let known = self.model.has_data();
        let trials = choices.iter().zip(times).zip(&logits);
        let trials = trials.map(|((choice, us), found)| Trial {
            choice: *choice,
            ms: us / 1e3,
            nmse: known.then(|| nmse(found, &logits[0])),
        });
        Ok(trials.collect())
    }
}

/// Bytes of the products of `pairs`.
fn bytes(model: &dyn Model, pairs: &[Pair]) -> u64 {
    let factors = pairs.iter().flat_map(|pair| model.factors(*pair));
    factors.map(|factors| factors.bytes()).sum()
}

/// The pairs of `choice` that the model has and the device has room for together. Of `auto`, `left_out` tells which are not among them, and of
/// another choice that is an error.
fn possible(
    gpu: &Gpu,
    model: &dyn Model,
    residence: Residence,
    choice: PrecomposeChoice,
    n_ctx: usize,
    left_out: &mut String,
) -> Result<Vec<Pair>, GpuError> {
    let planned = MemoryPlan::new(gpu, model, residence, n_ctx, None)?.total();
    let mut tried = choice.pairs().to_vec();
    tried.sort_by_key(|pair| bytes(model, &[*pair]));
    let mut pairs = vec![];
    for pair in tried {
        let all = [&pairs[..], &[pair]].concat();
        let needed = planned + bytes(model, &all);
        let reason = if bytes(model, &[pair]) == 0 {
            format!("finds no weights for {pair:?} in this model")
        } else if let Some(memory) = gpu.memory.filter(|memory| needed > *memory) {
            format!("needs {needed} bytes with {all:?} in this context, the device has {memory}")
        } else {
            pairs = all;
            continue;
        };
        let choice = choice.name();
        let error = GpuError::CannotPrecompose { choice, reason };
        if choice != Auto.name() {
            return Err(error);
        }
        *left_out += &format!("; left out: {error}");
    }
    Ok(pairs)
}

/// The squared differences over the squares of what is expected.
pub(super) fn nmse(found: &[f32], expected: &[f32]) -> f64 {
    let both = found.iter().zip(expected);
    let error: f64 = both.map(|(a, b)| f64::from(a - b).powi(2)).sum();
    let size: f64 = expected.iter().map(|b| f64::from(*b).powi(2)).sum();
    if error == 0.0 { 0.0 } else { error / size }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::ModelSource;
    use crate::gpu::GpuOptions;
    use crate::gpu::wait::Wait;
    use crate::models;

    #[test]
    fn products_that_do_not_fit_are_refused_or_left_out() {
        let gguf = ModelSource::Embedded.open().unwrap();
        let model = models::load(Arc::new(gguf)).unwrap();
        let mut gpu = Gpu::open(&GpuOptions::default()).wait().unwrap();
        let planned = MemoryPlan::new(&gpu, &*model, Residence::Whole, 100, None)
            .unwrap()
            .total();
        let with = |choice: PrecomposeChoice| planned + bytes(&*model, choice.pairs());
        let smaller = with(Qk).min(with(Vo));
        for (choice, memory, expected) in [
            (Both, with(Both), Some(2)),
            (Both, with(Both) - 1, None),
            (Auto, with(Both), Some(2)),
            (Auto, smaller, Some(1)),
            (Auto, planned, Some(0)),
        ] {
            gpu.memory = Some(memory);
            let mut left_out = String::new();
            let pairs = possible(&gpu, &*model, Residence::Whole, choice, 100, &mut left_out);
            assert_eq!(pairs.as_ref().ok().map(Vec::len), expected);
            let told = pairs.map_or_else(|e| e.to_string(), |_| left_out);
            let refused = told.contains("use --precompose off");
            assert_eq!(refused, memory < with(Both), "{told}");
        }
    }
}
