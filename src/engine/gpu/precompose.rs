//! `--precompose`: which weights are composed on this device, what that costs and how far it is off.

use super::trial::{self, Trial};
use super::weights::{Composed, GpuLayer, GpuModel};
use crate::engine::MemoryPlan;
use crate::gpu::buffer::{Range, Role};
use crate::gpu::call::State;
use crate::gpu::memory::{GpuWeight, Part};
use crate::gpu::record::Recording;
use crate::gpu::{Gpu, GpuError};
use crate::gpu::{Most, Step};
use crate::kernels::MlaDims;
use crate::kernels::compose::GpuCompose;
use crate::model::Model;
use crate::model::precompose::{Composition, Pairs, PrecomposeChoice};
use crate::quant::{GgmlType, repack};
use std::fmt;
use std::sync::Arc;

/// `auto` keeps no composition whose logits are further off than this: one token that takes another expert gives 1e-3.
const MAX_NMSE: f64 = 5e-3;
/// Nor one that is not faster by this than what takes less memory: repeated measurements stray as much.
const LEAST_GAIN: f64 = 0.01;
/// What `auto` compares.
const CANDIDATES: [Pairs; 4] = [Pairs::NONE, Pairs::QK, Pairs::VO, Pairs::BOTH];

/// What became of `--precompose`.
#[derive(Debug, Clone)]
pub struct Precomposed {
    /// What was asked for.
    pub choice: PrecomposeChoice,
    /// What decoding reads composed.
    pub pairs: Pairs,
    /// Bytes that it takes beside the weights of the file.
    pub bytes: u64,
    /// What was tried: of `auto` every candidate with its time, else the one asked for.
    pub trials: Vec<Trial>,
    /// Of `auto`: what could not be tried, and why.
    pub left_out: Vec<String>,
}

impl Precomposed {
    /// Error of the logits relative to those without composition, over a few tokens of this model.
    pub fn nmse(&self) -> f64 {
        let kept = self.trials.iter().find(|trial| trial.pairs == self.pairs);
        kept.map_or(0.0, |trial| trial.nmse)
    }
}

impl fmt::Display for Precomposed {
    /// One line: the choice, its memory, its error, and of `auto` the times of all candidates.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = match self.nmse() {
            0.0 => "0".to_owned(),
            nmse => format!("{nmse:.1e}"),
        };
        write!(
            f,
            "precompose: {}, {:.1} MiB more, NMSE of the logits {error}",
            self.pairs.name(),
            self.bytes as f64 / f64::from(1 << 20),
        )?;
        let timed = self.trials.iter().filter_map(|t| Some((t, t.ms?)));
        let times: Vec<_> = timed
            .map(|(trial, ms)| {
                let off = if trial.nmse <= MAX_NMSE {
                    String::new()
                } else {
                    format!(" (not kept: NMSE {:.1e})", trial.nmse)
                };
                format!("{} {ms:.3}{off}", trial.pairs.name())
            })
            .collect();
        if !times.is_empty() {
            write!(f, "; ms per token: {}", times.join(", "))?;
        }
        for reason in &self.left_out {
            write!(f, "; left out: {reason}")?;
        }
        Ok(())
    }
}

impl GpuModel {
    /// As [`load_async`](Self::load_async), with weights composed as `choice` says, for sessions of `n_ctx` tokens.
    ///
    /// # Errors
    /// Those of [`load_async`](Self::load_async); [`GpuError::PrecomposeTooLarge`], before anything is loaded, where the device tells its
    /// memory and it is less than all takes; [`GpuError::CannotPrecompose`]. `auto` leaves out what does not fit or cannot be
    /// composed, and says so.
    pub async fn load_precomposed_async(
        gpu: Arc<Gpu>,
        model: Arc<Model>,
        choice: PrecomposeChoice,
        n_ctx: usize,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(Self, Option<Precomposed>), GpuError> {
        if choice == PrecomposeChoice::Off {
            return Ok((Self::load_async(gpu, model, progress).await?, None));
        }
        let mut asked = match choice.pairs() {
            Some(pairs) => vec![pairs],
            None => CANDIDATES.to_vec(),
        };
        asked.sort_by_key(|pairs| pairs.bytes(&model));
        let (mut left_out, mut fitting) = (vec![], vec![]);
        for pairs in asked {
            match check_memory(&gpu, &model, pairs, n_ctx) {
                Ok(()) => fitting.push(pairs),
                Err(error) if choice == PrecomposeChoice::Auto => left_out.push(error.to_string()),
                Err(error) => return Err(error),
            }
        }
        // All are tried side by side.
        let every = fitting
            .iter()
            .fold(Pairs::NONE, |all, pairs| all.with(*pairs));
        if choice == PrecomposeChoice::Auto && check_memory(&gpu, &model, every, n_ctx).is_err() {
            for pairs in fitting.drain(2.min(fitting.len())..) {
                left_out.push(format!("{} fits only alone", pairs.name()));
            }
        }
        let mut loaded = Self::load_async(gpu, model, progress).await?;
        let mut candidates = vec![];
        for pairs in fitting {
            match loaded.compose(pairs).await {
                Ok(()) => candidates.push(pairs),
                Err(error @ GpuError::CannotPrecompose { .. })
                    if choice == PrecomposeChoice::Auto =>
                {
                    // `both` is left out for the reason of one of its pairs.
                    let reason = error.to_string();
                    if !left_out.contains(&reason) {
                        left_out.push(reason);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        let timed = choice == PrecomposeChoice::Auto;
        let trials = trial::run(&loaded, &candidates, timed).await?;
        loaded.weights.pairs = match choice.pairs() {
            Some(pairs) => pairs,
            None => fastest(&trials),
        };
        let bytes = loaded.release_all_but(loaded.weights.pairs);
        let precomposed = Precomposed {
            choice,
            pairs: loaded.weights.pairs,
            bytes,
            trials,
            left_out,
        };
        Ok((loaded, Some(precomposed)))
    }

    /// Composes `pairs` in every layer, where that is not done.
    async fn compose(&mut self, pairs: Pairs) -> Result<(), GpuError> {
        let gpu = Arc::clone(&self.gpu);
        let model = Arc::clone(&self.model);
        for of in [Pairs::QK, Pairs::VO] {
            let wanted = pairs.contains(of);
            let done = self
                .weights
                .composed
                .iter()
                .any(|c| c.product(of).is_some());
            if !wanted || done {
                continue;
            }
            let mut compositions = of.compositions(&model.config);
            let composition = compositions.next().expect("one for each pair");
            check_alignment(&gpu, &composition, of, MlaDims::of(&model.config))?;
            // Into a list first: nothing is half composed where a layer is refused.
            let before = gpu.allocated();
            let mut products = vec![];
            for (on_device, layer) in self.weights.layers.iter().zip(&model.layers) {
                let ty = composition.kept_as(layer);
                let product = product(&gpu, &composition, on_device, ty).await;
                products.push(product.inspect_err(|_| gpu.count_dropped(before))?);
            }
            for (layer, product) in self.weights.composed.iter_mut().zip(products) {
                *layer.product_mut(of) = Some(product);
            }
        }
        Ok(())
    }

    /// Frees the products that `pairs` does not read; the bytes of the others.
    fn release_all_but(&mut self, pairs: Pairs) -> u64 {
        let mut bytes = 0;
        for layer in &mut self.weights.composed {
            for of in [Pairs::QK, Pairs::VO] {
                let kept = pairs.contains(of);
                let product = layer.product_mut(of);
                if kept {
                    bytes += product.as_ref().map_or(0, GpuWeight::bytes);
                } else if let Some(weight) = product.take() {
                    // A product has a buffer of its own for each plane.
                    for part in &weight.parts {
                        self.gpu.release(&part.quants.buffer);
                        self.gpu.release(&part.scales.buffer);
                    }
                }
            }
        }
        bytes
    }
}

impl Composed {
    /// The product of one pair.
    fn product(&self, of: Pairs) -> &Option<GpuWeight> {
        if of.qk { &self.qk } else { &self.vo }
    }

    fn product_mut(&mut self, of: Pairs) -> &mut Option<GpuWeight> {
        if of.qk { &mut self.qk } else { &mut self.vo }
    }
}

/// Refuses `pairs` where the device tells that model, session and products do not fit its memory.
fn check_memory(gpu: &Gpu, model: &Model, pairs: Pairs, n_ctx: usize) -> Result<(), GpuError> {
    let plan = MemoryPlan::new(gpu, model, n_ctx, None)?;
    let extra = pairs.bytes(model);
    match gpu.memory {
        Some(memory) if extra > 0 && plan.with_precomposed(extra).total() > memory => {
            Err(GpuError::PrecomposeTooLarge {
                choice: pairs.name(),
                extra,
                planned: plan.total(),
                adapter: gpu.info.name.clone(),
                memory,
            })
        }
        _ => Ok(()),
    }
}

/// The rotated queries are bound behind the others.
fn check_alignment(
    gpu: &Gpu,
    composition: &Composition,
    of: Pairs,
    dims: MlaDims,
) -> Result<(), GpuError> {
    let absorbed = (dims.heads * dims.kv_lora * 4) as u64;
    let alignment = gpu.offset_alignment;
    if of.qk && !absorbed.is_multiple_of(alignment) {
        return Err(GpuError::CannotPrecompose {
            what: composition.name,
            reason: format!(
                "{absorbed} bytes of queries are no multiple of the {alignment} that bindings begin at"
            ),
        });
    }
    Ok(())
}

/// Composes one pair of one layer.
async fn product(
    gpu: &Gpu,
    composition: &Composition,
    on_device: &GpuLayer,
    ty: GgmlType,
) -> Result<GpuWeight, GpuError> {
    let [left, right] = composition.factors(on_device);
    let (rows, cols) = (composition.out_rows(), composition.out_cols());
    let (quants, scales) = repack::plane_bytes(ty, rows, cols);
    if quants as u64 > gpu.max_binding {
        return Err(GpuError::CannotPrecompose {
            what: composition.name,
            reason: format!(
                "the product takes {quants} bytes in one binding, {} allows {}",
                gpu.info.name, gpu.max_binding
            ),
        });
    }
    let plane = async |bytes: usize, role| {
        let buffer = gpu.storage_async("precomposed weights", bytes as u64, role);
        Ok::<_, GpuError>(Range::whole(&buffer.await?))
    };
    let out = GpuWeight {
        name: format!("{} (precomposed)", left.name),
        ty,
        groups: 1,
        rows: rows as u32,
        cols: cols as u32,
        parts: vec![Part {
            first_row: 0,
            rows: rows as u32,
            quants: plane(quants, Role::Codes(ty)).await?,
            scales: plane(scales, Role::Scales(ty)).await?,
            sub: 0,
        }],
    };
    let compose = GpuCompose {
        composition: *composition,
        left,
        right,
        out: &out,
    };
    let before = gpu.allocated();
    let step = Step::of(Most::token(1), compose.calls()?);
    let recording = Recording::new_async(gpu, &step).await?;
    recording.submit(gpu, &State::default());
    gpu.done_async().await?;
    gpu.count_dropped(before);
    Ok(out)
}

/// The pairs that `auto` keeps: the fastest of those near enough, unless less memory is as fast.
fn fastest(trials: &[Trial]) -> Pairs {
    let mut best: Option<(Pairs, f64)> = None;
    for trial in trials.iter().filter(|trial| trial.nmse <= MAX_NMSE) {
        let Some(ms) = trial.ms else { continue };
        if best.is_none_or(|(_, so_far)| ms < so_far * (1.0 - LEAST_GAIN)) {
            best = Some((trial.pairs, ms));
        }
    }
    best.map_or(Pairs::NONE, |(pairs, _)| pairs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::ModelSource;
    use crate::gpu::GpuOptions;

    fn trial(pairs: Pairs, ms: f64, nmse: f64) -> Trial {
        Trial {
            pairs,
            ms: Some(ms),
            nmse,
        }
    }

    #[test]
    fn the_fastest_is_kept_where_it_is_worth_its_memory_and_right() {
        let times = |ms: [f64; 4], nmse: [f64; 4]| {
            let trials: Vec<_> = (0..ms.len())
                .map(|i| trial(CANDIDATES[i], ms[i], nmse[i]))
                .collect();
            fastest(&trials)
        };
        let near = [0.0, 1e-5, 1e-5, 1e-5];
        assert_eq!(times([2.0, 1.8, 1.9, 1.7], near), Pairs::BOTH);
        assert_eq!(times([2.0, 1.99, 1.99, 1.985], near), Pairs::NONE);
        assert_eq!(times([2.0, 1.8, 1.79, 1.85], near), Pairs::QK);
        assert_eq!(
            times([2.0, 1.8, 1.5, 1.4], [0.0, 1e-5, 6e-3, f64::NAN]),
            Pairs::QK
        );
        assert_eq!(fastest(&[]), Pairs::NONE);
    }

    #[test]
    fn the_line_tells_the_choice_its_memory_error_and_times() {
        let told = Precomposed {
            choice: PrecomposeChoice::Auto,
            pairs: Pairs::QK,
            bytes: 3 << 19,
            trials: vec![
                trial(Pairs::NONE, 1.25, 0.0),
                trial(Pairs::QK, 1.1, 2.3e-5),
                trial(Pairs::VO, 0.9, 0.02),
            ],
            left_out: vec!["too large".to_owned()],
        };
        assert_eq!(
            told.to_string(),
            "precompose: qk, 1.5 MiB more, NMSE of the logits 2.3e-5; ms per token: off 1.250, qk 1.100, \
             vo 0.900 (not kept: NMSE 2.0e-2); left out: too large"
        );
    }

    #[test]
    fn products_that_do_not_fit_are_refused_before_loading() {
        let gguf = Arc::new(ModelSource::Embedded.open().unwrap());
        let model = Arc::new(Model::load(Arc::clone(&gguf)).unwrap());
        let Ok(gpu) = Gpu::open(&GpuOptions::default()) else {
            return;
        };
        let plan = MemoryPlan::new(&gpu, &model, 100, None).unwrap();
        let with = |pairs: Pairs| plan.with_precomposed(pairs.bytes(&model)).total();
        assert_eq!(with(Pairs::NONE), plan.total());
        let load = |choice, memory| {
            let options = GpuOptions {
                max_memory: Some(memory),
                ..Default::default()
            };
            let gpu = Arc::new(Gpu::open(&options).unwrap());
            let mut uploaded = 0;
            let told = &mut |done, _| uploaded = done;
            let result =
                GpuModel::load_precomposed(Arc::clone(&gpu), Arc::clone(&model), choice, 100, told);
            (result, uploaded, gpu)
        };
        let (refused, uploaded, _) = load(PrecomposeChoice::Both, with(Pairs::BOTH) - 1);
        let error = refused.map(|_| ()).unwrap_err();
        assert!(matches!(
            error,
            GpuError::PrecomposeTooLarge { choice: "both", .. }
        ));
        assert!(error.to_string().contains("--precompose off"), "{error}");
        assert_eq!(uploaded, 0);
        let (loaded, _, gpu) = load(PrecomposeChoice::Both, with(Pairs::BOTH));
        let told = loaded.unwrap().1.unwrap();
        assert_eq!(told.bytes, Pairs::BOTH.bytes(&model));
        let near = gpu.allocated() as f64 / (plan.weights + told.bytes) as f64;
        assert!((0.98..1.02).contains(&near), "{near}");
        // `auto` takes what fits, and frees what it does not keep.
        let smaller = with(Pairs::QK).min(with(Pairs::VO));
        let (loaded, _, gpu) = load(PrecomposeChoice::Auto, smaller);
        let told = loaded.unwrap().1.unwrap();
        assert!(
            told.left_out.iter().any(|reason| reason.contains("both")),
            "{told}"
        );
        assert_eq!(
            told.trials.len() + told.left_out.len(),
            CANDIDATES.len(),
            "{told}"
        );
        let near = gpu.allocated() as f64 / (plan.weights + told.bytes) as f64;
        assert!((0.98..1.02).contains(&near), "{near}");
    }
}
