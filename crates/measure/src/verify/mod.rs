//! Whether a device computes what it should: each kernel against its twin, and models of each family, in each tier, against the CPU
//! reference and against golden values.
//!
//! The CPU reference is composed of the kernels' twins. So wherever a kernel is wrong on a device, the logits of a model that uses it
//! differ from the reference's by more than rounding, and the kernel's own row tells which it is. Each model is computed in the ways
//! that have kernels of their own. Steps with drafts are compared with steps of one token, to the bit, and the prediction layer with its twin.

mod drafts;
mod golden;
mod kernels;
mod models;
mod rows;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use serde::Serialize;

use crate::bench::BenchError;
use crate::engine::Products;
use crate::engine::Tier;
use crate::engine::cpu::CpuBackend;
use crate::engine::gpu::{GpuBackend, GpuModel};
use crate::engine::residence;
use crate::gpu::wait::Wait;
use crate::gpu::{Gpu, GpuError, GpuOptions};
use crate::kernels::CacheType;
use crate::models::Model;
use crate::recipes::Residence;
use golden::Golden;
pub use kernels::KernelCheck;
use models::Subject;
use rows::{Difference, logits};

/// How the tokens of a text are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// One token after the other, as in an answer.
    Tokens,
    /// A few at once, as the end of a prompt may be.
    Few,
    /// All at once, as a prompt is.
    Chunk,
    /// In steps of several tokens, as drafts are verified.
    Drafted,
    /// By the prediction layer, which proposes tokens behind the beginning of the text.
    Predicted,
}

impl Way {
    /// The ways whose logits are compared with the reference's.
    const ALL: [Self; 3] = [Self::Tokens, Self::Few, Self::Chunk];

    const fn name(self) -> &'static str {
        match self {
            Self::Tokens => "token by token",
            Self::Few => "a few at once",
            Self::Chunk => "all at once",
            Self::Drafted => "in steps with drafts",
            Self::Predicted => "drafts of the layer",
        }
    }

    /// Tokens of each call.
    const fn at_once(self) -> usize {
        match self {
            Self::Tokens => 1,
            Self::Few => 5,
            _ => usize::MAX,
        }
    }
}

/// One comparison.
#[derive(Debug, Clone, Serialize)]
pub struct Check {
    /// The tier; `None` for the CPU reference itself.
    pub tier: Option<&'static str>,
    /// The model, as `glimt bench --synthetic` names it.
    pub model: String,
    /// How its tokens were computed.
    pub way: &'static str,
    /// Slots of each layer, where its experts lay in host memory.
    pub expert_slots: Option<u32>,
    /// The reference that the logits were compared with.
    pub against: &'static str,
    /// The error of the logits of the median position: squares of the differences over squares around the mean.
    pub nmse: Option<f64>,
    /// The error that the median position may have in this tier.
    pub limit: f64,
    /// The error of the worst position. Where two experts are as good as equal, rounding may choose the other, and then a position differs by
    /// more than the limit.
    pub worst: Option<f64>,
    /// The error that the worst position may have; `None` where any is right, as in a comparison of a cache of codes with golden values of f16.
    pub worst_limit: Option<f64>,
    /// The error that the device reported instead of a result.
    pub error: Option<String>,
}

/// The error that the worst position may have.
const WORST: f64 = 0.2;

impl Check {
    /// Whether the device computes what it should.
    pub fn passed(&self) -> bool {
        let within = |error: Option<f64>, limit: f64| error.is_some_and(|error| error <= limit);
        let worst_limit = self.worst_limit.unwrap_or(f64::INFINITY);
        within(self.nmse, self.limit) && within(self.worst, worst_limit)
    }
}

/// A tier that the device does not run.
#[derive(Debug, Clone, Serialize)]
pub struct Lacking {
    /// The tier.
    pub tier: &'static str,
    /// The features that the device lacks for the tier.
    pub missing: String,
}

/// A model that is left out, because it cannot have the cache that is asked for.
#[derive(Debug, Clone, Serialize)]
pub struct Without {
    /// The model.
    pub model: String,
    /// Why it cannot.
    pub reason: String,
}

/// The results of a verification.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Found {
    /// The device's name and backend; `None` for the CPU reference.
    pub device: Option<String>,
    /// The seed of the kernels' inputs.
    pub seed: u64,
    /// The type of the models' caches. Kernels are compared with caches of both types.
    pub cache_type: &'static str,
    /// Kernels beside their twins.
    pub kernels: Vec<KernelCheck>,
    /// Models beside the reference and the golden values.
    pub checks: Vec<Check>,
    /// Tiers that were left out.
    pub lacking: Vec<Lacking>,
    /// Models that were left out.
    pub without: Vec<Without>,
}

impl Found {
    /// Comparisons that failed.
    pub fn failed(&self) -> usize {
        let kernels = self.kernels.iter().filter(|kernel| !kernel.passed());
        let models = self.checks.iter().filter(|check| !check.passed());
        kernels.count() + models.count()
    }

    /// The kernels that differ from their twins, each with its tier. Several kernels that were compared together are named together,
    /// unless one of them also differs alone.
    pub fn wrong_kernels(&self) -> BTreeSet<String> {
        let wrong = || self.kernels.iter().filter(|check| !check.passed());
        let named = wrong().filter(|check| {
            let is_of_it = |other: &KernelCheck| {
                let is_other = other.tier == check.tier && other.kernel != check.kernel;
                is_other && check.kernels().any(|kernel| kernel == other.kernel)
            };
            !wrong().any(is_of_it)
        });
        let name = |check: &KernelCheck| format!("{} ({})", check.kernel, check.tier);
        named.map(name).collect()
    }

    /// All comparisons.
    pub fn all(&self) -> usize {
        self.kernels.len() + self.checks.len()
    }

    /// Adds comparisons of models.
    fn add(
        &mut self,
        checks: Vec<Check>,
        on_row: &mut dyn FnMut(Row<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        for check in checks {
            let flow = on_row(Row::Model(&check));
            self.checks.push(check);
            flow?;
        }
        ControlFlow::Continue(())
    }

    /// Compares the kernels of a tier with their twins.
    fn add_kernels(
        &mut self,
        gpu: &Gpu,
        on_row: &mut dyn FnMut(Row<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        for kernel in kernels::checks(gpu, self.seed) {
            let flow = on_row(Row::Kernel(&kernel));
            self.kernels.push(kernel);
            flow?;
        }
        ControlFlow::Continue(())
    }
}

/// A comparison as it is made.
pub enum Row<'a> {
    /// The comparison of a kernel with its twin.
    Kernel(&'a KernelCheck),
    /// The check of a model.
    Model(&'a Check),
}

/// Compares the CPU reference with the golden values. Then it compares, in each of the `tiers` that the device runs, every kernel with its
/// twin, and models with both. `options` tell how to open the device; without them there is only the CPU reference. The inputs of kernels
/// follow from `seed`, and models have a cache of this type on both sides; the golden values are those of f16. `on_row` is told of each comparison; a break ends it.
///
/// # Errors
/// Where nothing can be compared. What a device reports for a kernel or a model is a failed comparison instead.
pub fn verify(
    options: Option<&GpuOptions>,
    tiers: &[Tier],
    (seed, cache): (u64, CacheType),
    on_row: &mut dyn FnMut(Row<'_>) -> ControlFlow<()>,
) -> Result<Found, BenchError> {
    let (subjects, without) = models::all(cache)?;
    let golden = Golden::read();
    let mut found = Found {
        seed,
        cache_type: cache.name(),
        without,
        ..Found::default()
    };
    let checks = golden.checks_of_reference(&subjects)?;
    if found.add(checks, on_row).is_break() {
        return Ok(found);
    }
    let Some(options) = options else {
        return Ok(found);
    };
    for tier in tiers {
        let asked = GpuOptions {
            tier: Some(*tier),
            ..options.clone()
        };
        let gpu = match Gpu::open(&asked).wait() {
            Ok(gpu) => Arc::new(gpu),
            Err(GpuError::TierUnsupported { missing, .. }) => {
                let tier = tier.name();
                found.lacking.push(Lacking { tier, missing });
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let info = &gpu.info;
        found.device = Some(format!("{} ({})", info.name, info.backend));
        if found.add_kernels(&gpu, on_row).is_break() {
            return Ok(found);
        }
        for subject in &subjects {
            let checks = checks_of(&gpu, subject, &golden);
            if found.add(checks, on_row).is_break() {
                return Ok(found);
            }
        }
    }
    Ok(found)
}

/// The comparisons of a model on a device.
fn checks_of(gpu: &Arc<Gpu>, subject: &Subject, golden: &Golden) -> Vec<Check> {
    let cache = subject.model.cache_type();
    let check =
        |way: Way, residence: Residence, against, result: Result<Difference, BenchError>| {
            let (difference, error) = match result {
                Ok(difference) => (Some(difference), None),
                Err(error) => (None, Some(error.to_string())),
            };
            Check {
                tier: Some(gpu.tier.name()),
                model: subject.name.clone(),
                way: way.name(),
                expert_slots: residence.slots(),
                against,
                nmse: difference.map(|d| d.median),
                limit: limit(gpu, way, cache),
                worst: difference.map(|d| d.worst),
                worst_limit: Some(WORST),
                error,
            }
        };
    let reference = "CPU reference";
    let mut checks = vec![];
    let residences = match residences(gpu, subject) {
        Ok(residences) => residences,
        Err(error) => return vec![check(Way::Tokens, Residence::Whole, reference, Err(error))],
    };
    for residence in residences {
        let (residence, chunk) = residence;
        let (gpu, model) = (Arc::clone(gpu), Arc::clone(&subject.model));
        let loaded = GpuModel::load_for(gpu, model, residence, 1, &mut |_, _| {}).wait();
        let loaded = match loaded {
            Ok(model) => Arc::new(model),
            Err(error) => {
                checks.push(check(Way::Tokens, residence, reference, Err(error.into())));
                continue;
            }
        };
        for way in Way::ALL {
            let rows = on_gpu(&loaded, &subject.tokens, (way, chunk));
            if subject.is_built_in && way == Way::Chunk {
                let against = on_gpu(&loaded, &golden.tokens, (way, chunk));
                let difference = against.map(|rows| golden.difference(&rows));
                let mut check = check(way, residence, "llama.cpp", difference);
                let (median, worst) = golden::limits(cache);
                (check.limit, check.worst_limit) = (check.limit.max(median), worst);
                checks.push(check);
            }
            let difference = rows.map(|rows| Difference::of(&rows, &subject.rows));
            checks.push(check(way, residence, reference, difference));
        }
        let (rows, layer) = (drafts::of_rows, drafts::of_layer);
        let alone = "each token alone";
        let of_drafts = [
            (Way::Drafted, alone, rows(&loaded, &subject.tokens)),
            (Way::Predicted, reference, layer(&loaded, &subject.tokens)),
        ];
        for (way, against, found) in of_drafts {
            let found = found.transpose();
            checks.extend(found.map(|found| check(way, residence, against, found)));
        }
    }
    checks
}

/// Where the experts of a model lie in its comparisons: where there is room for them, and those of one model besides in host memory with slots for
/// half of them, as those of a model lie that is too large for the device. Behind each is the number of tokens of a chunk; `None` is the usual one.
///
/// # Errors
/// The error with which loading it would end.
fn residences(gpu: &Gpu, subject: &Subject) -> Result<Vec<(Residence, Option<u32>)>, BenchError> {
    let (model, n_ctx) = (&*subject.model, subject.tokens.len());
    let mut all = vec![residence(gpu, model, (n_ctx, None), false, &mut |_| {})?];
    if let Some(experts) = &model.config().experts
        && subject.is_also_partly
        && gpu.check_reads_host().is_ok()
    {
        all.push((Residence::Slots(experts.count as u32 / 2), None));
        all.dedup();
    }
    Ok(all)
}

fn on_gpu(
    model: &Arc<GpuModel>,
    tokens: &[u32],
    (way, chunk): (Way, Option<u32>),
) -> Result<Vec<Vec<f32>>, BenchError> {
    let mut backend = GpuBackend::with_chunk(Arc::clone(model), tokens.len(), chunk).wait()?;
    Ok(logits(&mut backend, tokens, way.at_once())?)
}

fn on_cpu(model: &Arc<dyn Model>, tokens: &[u32]) -> Result<Vec<Vec<f32>>, BenchError> {
    let mut backend = CpuBackend::new(Arc::clone(model), Products::Exact, tokens.len())?;
    Ok(logits(&mut backend, tokens, usize::MAX)?)
}

/// The error that rounding may cause in the logits, by how this device computes them: with f32, halves, halves in pairs, or bytes. Prompts
/// are computed by cooperative matrices of halves where the device has them. The limits are at least twice the errors that were seen with
/// the models of the tests. A value that rounding moves to the other side of half a step of a cache of codes is another code.
fn limit(gpu: &Gpu, way: Way, cache: CacheType) -> f64 {
    let by_matrices = matches!(way, Way::Chunk | Way::Predicted) && gpu.coop.is_some();
    let has_codes = cache != CacheType::F16;
    match gpu.tier {
        _ if way == Way::Drafted => 0.0,
        Tier::Int8 => 2e-3,
        _ if by_matrices => 2e-3,
        Tier::Subgroup if has_codes || gpu.packed_halves => 2e-5,
        Tier::Subgroup => 2e-6,
        Tier::Plain if has_codes => 2e-6,
        Tier::Plain => 2e-7,
    }
}

#[cfg(test)]
mod tests;
