//! Each kernel alone against its twin: random inputs, the call that recipes make, and what it left compared with what the CPU makes of the
//! same inputs. A device with one wrong kernel is told its name.

mod attention;
mod batch;
mod cache;
mod experts;
mod lab;
mod prepared;
mod prompt_attention;
mod prompts;
mod tokens;

use serde::Serialize;

use crate::gpu::Gpu;
use crate::kernels::MlaDims;
use crate::quant::GgmlType;
pub(super) use lab::Lab;

/// One kernel and its twin.
#[derive(Debug, Clone, Serialize)]
pub struct KernelCheck {
    /// The tier.
    pub tier: &'static str,
    /// The kernel, by the name of its twin.
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
}

/// The types that products are checked with: floats, each kind of codes, small blocks and large ones.
const TYPES: [GgmlType; 5] = [
    GgmlType::F16,
    GgmlType::Q4_0,
    GgmlType::Q4_K,
    GgmlType::Q6_K,
    GgmlType::Q8_0,
];

/// The epsilon of every norm.
const EPS: f32 = 1e-5;

/// The sizes of the attention: all kernels of it are for them.
const DIMS: MlaDims = MlaDims {
    heads: 16,
    nope: 64,
    rope: 64,
    kv_lora: 512,
};

/// Kernels that no case has, and why.
#[cfg(test)]
const WITHOUT: [(&str, &str); 3] = [
    ("mark", "every submission proves that it counts"),
    ("read", "it measures, and no model uses it"),
    (
        "small_halves",
        "it is a question to the device, not an operation",
    ),
];

/// A group of cases: it adds their rows to those of the lab.
type Group = fn(&mut Lab<'_>);

/// The groups of the tier of `gpu`, in the order in which a model uses the kernels.
pub(super) fn groups(gpu: &Gpu) -> Vec<Group> {
    let of_tier: &[Group] = match gpu.tier.has_subgroups() {
        false => &[],
        true => &[
            tokens::embed,
            tokens::products,
            tokens::beside,
            tokens::queries,
            tokens::values,
            tokens::router,
            experts::gate_up,
            experts::moe_down,
            tokens::queries_of_several,
            tokens::values_of_several,
            experts::gate_up_of_several,
            experts::moe_down_of_several,
        ],
    };
    let of_all: [Group; 15] = [
        batch::products,
        batch::choice,
        batch::experts,
        batch::combine,
        cache::embed,
        cache::rows,
        attention::slices,
        attention::sequences,
        attention::merge,
        prompts::products,
        prompts::experts,
        prompt_attention::all,
        experts::router,
        cache::choice,
        cache::copies,
    ];
    [of_tier, &of_all].concat()
}

#[cfg(test)]
mod tests;
