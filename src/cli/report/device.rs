//! The adapters of the machine, and the device that is reported on.

use super::made::Made;
use super::subject::Subject;
use crate::cli::devices;
use crate::engine::Tier;
use crate::gpu::geometry::Made as Chosen;
use crate::gpu::wait::Wait;
use crate::gpu::{self, Gpu, GpuError};

/// Parts of the names of limits that no kernel meets.
const OF_DRAWING: [&str; 12] = [
    "texture",
    "sampl",
    "vertex",
    "color",
    "stage_shader_variables",
    "task",
    "mesh",
    "blas",
    "tlas",
    "max_ray",
    "acceleration",
    "multiview",
];

/// Tells all adapters, as `glimt devices` does.
pub(super) fn list(made: &mut Made) {
    let adapters = gpu::adapters().wait();
    if adapters.is_empty() {
        made.text += &format!("{}\n", GpuError::NoAdapter.of_gpus_alone());
    }
    made.text += &devices::page(&adapters);
}

/// Tells what the device is, which tiers it runs, and with which limits and features it is opened.
pub(super) fn tell(subject: &Subject, made: &mut Made) {
    let Some(adapter) = &subject.adapter else {
        made.text += &devices::cpu();
        return;
    };
    devices::describe(&mut made.text, adapter);
    made.text += "\n";
    let mut opened = None;
    for tier in &subject.tiers {
        if let Some(gpu) = subject.open(*tier, made) {
            made.text += &runs(*tier, &gpu);
            opened = Some(gpu);
        }
    }
    for (tier, missing) in &subject.lacking {
        made.text += &format!("tier {tier}: the device lacks {missing}\n");
    }
    if let Some(gpu) = opened {
        made.text += &limits(&gpu);
    }
}

/// The activations, the matrices and the tuning that a tier has on the device.
fn runs(tier: Tier, gpu: &Gpu) -> String {
    let matrices = match gpu.coop {
        Some(coop) => format!("{0}x{0} for subgroups of {1}", coop.size, coop.lanes),
        None => "none".to_owned(),
    };
    let activations = gpu.activation().name();
    let tuned = match gpu.choices.made() == Chosen::default() {
        true => "no",
        false => "yes",
    };
    format!(
        "tier {tier}: it runs; activations {activations}; matrices {matrices}; tuned: {tuned}\n"
    )
}

/// The features and the limits that the device was opened with.
fn limits(gpu: &Gpu) -> String {
    let features: Vec<_> = gpu.features.iter_names().map(|(name, _)| name).collect();
    let mut text = format!(
        "\nopened in tier {} with these features:\n    {}\nand these limits of kernels:\n",
        gpu.tier,
        features.join(", ")
    );
    let limits = format!("{:#?}", gpu.limits);
    let of_drawing = |line: &str| OF_DRAWING.iter().any(|part| line.contains(part));
    let told = |line: &&str| line.contains(':') && !of_drawing(line);
    for line in limits.lines().filter(told) {
        text += &format!("    {}\n", line.trim().trim_end_matches(','));
    }
    text
}
