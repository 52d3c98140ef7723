//! Kernels by cooperative matrices on devices that have none: the laboratory writes plain code in place of the matrices.

#[cfg(test)]
use crate::gpu::buffer::Range;
use crate::gpu::call::Call;
use crate::gpu::shader::expand;
use crate::gpu::testing::{laboratory, metal};
use crate::gpu::{Coop, Gpu, Tier, interface};

/// The matrices of NVIDIA's GPUs.
pub const NVIDIA: Coop = Coop::NVIDIA;
/// The matrices of Apple's GPUs.
pub const APPLE: Coop = Coop::APPLE;

/// Whether emulated kernels run there.
pub fn emulates(gpu: &Gpu) -> bool {
    let runs = gpu.tier == Tier::Subgroup && gpu.features.contains(wgpu::Features::SHADER_F16);
    // Matrices and subgroups that are both emulated say nothing about either.
    let runs = runs && gpu.waves.is_none();
    if !runs {
        eprintln!("skipped: tier {} (no f16 or subgroups)", gpu.tier.name());
    }
    runs && laboratory::is_there("emulated matrices")
}

/// Whether kernels by these matrices run there, emulated or as they are: for a Mac only its own.
pub fn has_matrices(coop: Coop) -> bool {
    coop == APPLE || metal::wanted().is_none()
}

/// `call` with plain code in place of its matrices, which are those of `coop`; with its threads numbered backwards where asked for. It stays as it
/// is where Metal's own matrices are run.
pub fn emulated_call(call: &Call, coop: Coop, backwards: bool) -> Call {
    if coop == APPLE && metal::wanted().is_some() {
        return call.clone();
    }
    let spec = interface::spec(call).unwrap_or_else(|e| panic!("{e}"));
    // A subgroup of the matrices may be several of the adapter: what it does on its own, all do together.
    let variant = spec.variant.clone().flag("TOGETHER", true);
    let text = expand(spec.kernel, spec.source, &variant, Tier::Subgroup);
    let text = text.unwrap_or_else(|e| panic!("{e}")).text;
    let [size, lanes] = [coop.size, coop.lanes].map(|n| n.to_string());
    let order = if backwards { "backwards" } else { "forwards" };
    let text = laboratory::rewritten(&["matrices", &size, &lanes, order], &text);
    Call {
        compiled: Some(Box::leak(text.into_boxed_str())),
        ..call.clone()
    }
}

/// The NMSE of a trial whose first dispatch by matrices is emulated with those of NVIDIA, and is told this factor of scores.
#[cfg(test)]
pub(in crate::kernels) fn emulated_error(
    gpu: &Gpu,
    trial: &crate::kernels::coop::Trial<impl Fn(bool, &Range) -> Vec<Call>>,
    scale: f32,
) -> f64 {
    use crate::gpu::wait::complete;
    use crate::kernels::coop::Trial;
    let calls = |matrices: bool, values: &Range| {
        let mut calls = (trial.calls)(matrices, values);
        for call in calls.iter_mut().take(usize::from(matrices)) {
            *call = emulated_call(call, NVIDIA, false);
            let words = call.words.iter_mut();
            let scales = words.filter(|(name, _)| *name == "scale");
            scales.for_each(|(_, word)| *word = scale.into());
        }
        calls
    };
    let trial = Trial {
        state: trial.state,
        values: trial.values,
        calls,
    };
    complete(trial.nmse(gpu)).unwrap_or_else(|e| panic!("{e}"))
}
