//! The speed that was expected of such a device: the formula of docs/expected.md, with what is known and measured of the one in hand.

use std::sync::Arc;

use super::made::{Generated, Made};
use super::subject::Subject;
use crate::bench::{Source, describe, rate};
use crate::cli::error::CliError;
use crate::engine::bandwidth::{dependent_dispatch, read_bandwidth};
use crate::engine::gpu::plan::Plan;
use crate::engine::gpu::plan::expected::Expected;
use crate::engine::{EngineError, Partly, Tier, check_gpu};
use crate::gpu::machine::memory_speed;
use crate::gpu::{Gpu, GpuError};
use crate::model::NextnSource;
use crate::models::Model;
use crate::recipes::Residence;
use crate::synth::{ModelName, Recipe};

/// The models of docs/expected.md, and the longest context that they are planned with.
const MODELS: [ModelName; 3] = [
    ModelName::Glm47Flash,
    ModelName::DeepseekV2Lite,
    ModelName::YoutuLlm2b,
];
const N_CTX: usize = 4096;

const HEAD: &str = "\
| model | tier | dispatches of a token | of these wait | GiB | tokens/s by the maker's speed | tokens/s by the plain read | measured |
|---|---|---|---|---|---|---|---|
";

/// The speeds of a device's memory in GB in a second.
#[derive(Clone, Copy)]
struct Speeds {
    /// The speed that its maker writes, where that is known.
    told: Option<f64>,
    /// The speed of a plain read.
    read: Option<f64>,
}

/// Tells what the models are expected to take, and what the one that was measured takes.
pub(super) fn tell(
    subject: &Subject,
    generated: &Generated,
    made: &mut Made,
) -> Result<(), CliError> {
    if subject.adapter.is_none() {
        made.leave_out("the formula is of GPUs, and the CPU reference is none");
        return Ok(());
    }
    let measured = subject
        .source
        .load_with(&NextnSource::None, subject.cache)?;
    let mut others = vec![];
    for source in MODELS.map(|name| Source::Synthetic(name, Recipe::Q4_0)) {
        if source != subject.source {
            others.push(source.load_with(&NextnSource::None, subject.cache)?);
        }
    }
    let mut speeds = None;
    for tier in &subject.tiers {
        let Some(gpu) = subject.open(*tier, made).map(Arc::new) else {
            continue;
        };
        let speeds = *speeds.get_or_insert_with(|| known(&gpu, made));
        let speed = generated.iter().find(|(name, _)| *name == tier.name());
        let speed = speed.map(|(_, speed)| *speed);
        made.text += &row(&gpu, *tier, &*measured, speeds, speed);
        for model in &others {
            made.text += &row(&gpu, *tier, &**model, speeds, None);
        }
    }
    Ok(())
}

/// Tells the formula and what it is computed from.
fn known(gpu: &Gpu, made: &mut Made) -> Speeds {
    let machine = gpu.machine;
    let gb_per_s = |speed: f64| format!("{} GB/s", rate(speed));
    let told = memory_speed(&gpu.info.name);
    let maker = match told {
        Some(speed) => format!("{} by the maker of a device of this name", gb_per_s(speed)),
        None => "what the maker tells is not known for this device".to_owned(),
    };
    let mut measured = |what: &str, result: Result<f64, GpuError>| match result {
        Ok(value) => Some(value),
        Err(error) => {
            made.failures.push(format!("{what}: {error}"));
            None
        }
    };
    let read = measured("a plain read", read_bandwidth(gpu)).map(|bytes| bytes / 1e9);
    let wait = measured("a dispatch that waits", dependent_dispatch(gpu));
    let or_unknown = |text: Option<String>| text.unwrap_or_else(|| "not measured".to_owned());
    made.text += &format!(
        "seconds = waits * (wait + fill) + max(bytes / memory speed, multiplications * steps / lane operations a second)\n\
         docs/expected.md explains it. It is fitted to an H200, for a token behind 64 others, and to no software.\n\n\
         wait: {} us assumed, {}\n\
         cores: {}, of {}\n\
         memory speed: {maker}; {}\n\n{HEAD}",
        f64::from(machine.wait_ns) / 1e3,
        or_unknown(wait.map(|seconds| format!("{:.2} us measured", seconds * 1e6))),
        machine.cores,
        machine.profile.name(),
        or_unknown(read.map(|speed| format!("{} by a plain read", gb_per_s(speed)))),
    );
    Speeds { told, read }
}

/// The row of a model in a tier.
fn row(
    gpu: &Arc<Gpu>,
    tier: Tier,
    model: &dyn Model,
    speeds: Speeds,
    speed: Option<f64>,
) -> String {
    let name = describe(model);
    let cell = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), rate);
    match planned(gpu, model) {
        Err(refused) => format!("| {name} | {tier} | refused: {refused} | | | | | |\n"),
        Ok(Planned::Partly(partly)) => {
            let measured = cell(speed);
            format!("| {name} | {tier} | {partly} | | | | | {measured} |\n")
        }
        Ok(Planned::Whole(expected, bytes)) => {
            let per_s = |speed: Option<f64>| speed.map(|speed| expected.tokens_per_s(speed));
            format!(
                "| {name} | {tier} | {} | {} | {:.2} | {} | {} | {} |\n",
                expected.dispatches,
                expected.waits,
                bytes as f64 / f64::from(1 << 30),
                cell(per_s(speeds.told)),
                cell(per_s(speeds.read)),
                cell(speed)
            )
        }
    }
}

/// The expected cost of a model on a device.
enum Planned {
    /// The cost of a token, and the bytes of the session.
    Whole(Expected, u64),
    /// The experts have no room on the device.
    Partly(Partly),
}

/// The expected cost of `model` on `gpu`.
///
/// # Errors
/// The error with which loading it would end.
fn planned(gpu: &Arc<Gpu>, model: &dyn Model) -> Result<Planned, EngineError> {
    let n_ctx = model.config().context_length.min(N_CTX);
    if let Some(partly) = check_gpu(gpu, model, n_ctx, None)? {
        return Ok(Planned::Partly(partly));
    }
    let plan = Plan::of_one(&gpu.target, model, Residence::Whole, n_ctx, None)?;
    let expected = Expected::of(&gpu.target, &plan)?;
    Ok(Planned::Whole(expected, plan.bytes.iter().sum()))
}
