//! Each kernel alone against its twin: the cases that are marked for it, in the order in which a model uses the kernels. A device with one
//! wrong kernel is told its name.

use serde::Serialize;

use crate::gpu::Gpu;
use crate::kernels::cases::{Case, Compared, Lab, verified};

/// Stands between the names of kernels that were compared together.
const AND: &str = " + ";

/// One kernel and its twin.
#[derive(Debug, Clone, Serialize)]
pub struct KernelCheck {
    /// The tier.
    pub tier: &'static str,
    /// The kernel, by the name of its twin. Of several, the names are joined by ` + `.
    pub kernel: String,
    /// Types, shape and form.
    pub case: String,
    /// The error of what it wrote: squares of the differences over squares. Of several outputs it is the one that is nearest to its limit.
    pub nmse: Option<f64>,
    /// The error that the kernel may have.
    pub limit: f64,
    /// The error that the device reported instead of a result.
    pub error: Option<String>,
}

impl KernelCheck {
    /// Whether the kernel agrees with its twin.
    pub fn passed(&self) -> bool {
        self.nmse.is_some_and(|nmse| nmse <= self.limit)
    }

    /// The names of the kernels that ran.
    pub(super) fn kernels(&self) -> impl Iterator<Item = &str> + Clone {
        self.kernel.split(AND)
    }

    /// The check of a case. Its name is that of the kernels that ran.
    fn of(lab: &Lab<'_>, case: Case) -> Self {
        let by_share = |a: &Compared, b: &Compared| {
            let by_limit = a.limit.total_cmp(&b.limit);
            a.share().total_cmp(&b.share()).then(by_limit)
        };
        let (worst, error) = match case.compare(lab) {
            Ok(compared) => (compared.into_iter().max_by(by_share), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let kernels: Vec<_> = lab.kernels().into_iter().collect();
        Self {
            tier: lab.gpu.tier.name(),
            kernel: kernels.join(AND),
            case: case.name,
            nmse: worst.map(|worst| worst.nmse),
            limit: worst.map_or(0.0, |worst| worst.limit),
            error,
        }
    }
}

/// The checks of the kernels of the tier of `gpu`, one after the other. Their inputs follow from `seed`.
pub(super) fn checks(gpu: &Gpu, seed: u64) -> impl Iterator<Item = KernelCheck> {
    let lab = Lab::new(gpu, seed);
    checks_of(lab, verified(gpu))
}

/// The checks of `cases`, each of which runs when it is asked for.
fn checks_of(lab: Lab<'_>, cases: Vec<Case>) -> impl Iterator<Item = KernelCheck> {
    let check = move |case| KernelCheck::of(&lab, case);
    cases.into_iter().map(check)
}

#[cfg(test)]
mod tests;
