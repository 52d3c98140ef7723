//! Cases of the kernels: random inputs at a shape, the calls that recipes make, and their outputs beside those of the twins, with the error
//! that they may have.
//!
//! The test of a kernel runs all of its cases. `glimt verify` runs those that are marked for it, on the device of a user.

pub(crate) mod accept_drafts;
pub(crate) mod attention;
pub(crate) mod attention_merge;
pub(crate) mod batch_combine;
pub(crate) mod batch_experts;
pub(crate) mod batch_matvec;
pub(crate) mod copy_rows;
pub(crate) mod embed;
pub(crate) mod expand_kv;
pub(crate) mod expert_fill;
pub(crate) mod expert_part;
pub(crate) mod expert_places;
pub(crate) mod expert_rows;
pub(crate) mod expert_slots;
pub(crate) mod expert_sources;
pub(crate) mod gemm;
pub(crate) mod grouped_attention;
pub(crate) mod grouped_prompt_attention;
pub(crate) mod grouped_rows;
pub(crate) mod keep_states;
pub(crate) mod lab;
pub(crate) mod logit_bias;
pub(crate) mod moe_combine;
pub(crate) mod nextn_input;
pub(crate) mod places;
pub(crate) mod prepared;
pub(crate) mod prompt_attention;
pub(crate) mod random;
pub(crate) mod rope_cache;
pub mod router;
pub(crate) mod rows_f16;
pub(crate) mod sample;
pub(crate) mod token_absorb;
pub(crate) mod token_beside;
pub(crate) mod token_embed;
pub(crate) mod token_gate_up;
pub(crate) mod token_matvec;
pub(crate) mod token_moe_down;
pub(crate) mod token_queries;
pub(crate) mod token_router;

use crate::gpu::{Gpu, GpuError};
use crate::quant::GgmlType;
pub use lab::{Compared, Lab};

/// The types that `glimt verify` compares products with: floats, each kind of codes, small blocks and large ones.
const TYPES: [GgmlType; 5] = [
    GgmlType::F16,
    GgmlType::Q4_0,
    GgmlType::Q4_K,
    GgmlType::Q6_K,
    GgmlType::Q8_0,
];

/// The runs that a case is a part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runs {
    /// The test of its kernel and `glimt verify`.
    Verified,
    /// The test of its kernel.
    Tested,
    /// The long test of its kernel.
    Long,
}

/// The comparison of a case, on the device of a lab.
type Compare = dyn Fn(&Lab<'_>) -> Result<Vec<Compared>, GpuError>;

/// One comparison of kernels with their twins.
pub struct Case {
    /// Types, shape and form.
    pub name: String,
    /// The runs that it is a part of.
    pub runs: Runs,
    compare: Box<Compare>,
}

impl Case {
    /// A case of this name, which the test of its kernel runs.
    pub fn new(
        name: impl Into<String>,
        compare: impl Fn(&Lab<'_>) -> Result<Vec<Compared>, GpuError> + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            runs: Runs::Tested,
            compare: Box::new(compare),
        }
    }

    /// The case of kernels that a device could not even try.
    fn failed(kernel: &'static str, error: GpuError) -> Self {
        let case = Self::new("trial", move |lab| {
            lab.names(kernel);
            Err(error.clone())
        });
        case.verified()
    }

    pub(crate) fn verified(self) -> Self {
        self.verified_if(true)
    }

    pub(crate) fn verified_if(mut self, is_verified: bool) -> Self {
        if is_verified {
            self.runs = Runs::Verified;
        }
        self
    }

    pub(crate) fn long(mut self) -> Self {
        self.runs = Runs::Long;
        self
    }

    /// Each output of the kernels beside that of their twins.
    ///
    /// # Errors
    /// The error that the device reports instead.
    pub fn compare(&self, lab: &Lab<'_>) -> Result<Vec<Compared>, GpuError> {
        (self.compare)(lab)
    }
}

/// The cases that are marked for `glimt verify` in the tier of `gpu`, in the order in which a model uses the kernels.
pub fn verified(gpu: &Gpu) -> Vec<Case> {
    let of_tokens = match gpu.tier.has_subgroups() {
        false => vec![],
        true => vec![
            token_embed::cases(),
            token_matvec::cases(),
            token_matvec::everywhere(),
            token_beside::cases(),
            token_absorb::cases(),
            token_queries::cases(),
            token_matvec::of_slices(),
            token_router::cases(),
            token_gate_up::cases(),
            expert_slots::cases(),
            expert_places::cases(),
            expert_sources::cases(),
            expert_fill::cases(),
            expert_part::cases(),
            token_moe_down::cases(),
            token_moe_down::of_several(),
        ],
    };
    let of_all = vec![
        batch_matvec::cases(),
        batch_experts::cases(),
        batch_combine::cases(),
        embed::cases(),
        rope_cache::cases(),
        grouped_rows::cases(),
        attention::tried(gpu),
        grouped_attention::of_device(gpu),
        attention_merge::cases(),
        rows_f16::cases(),
        gemm::tried(gpu),
        expert_rows::cases(),
        moe_combine::cases(),
        expand_kv::weights(),
        prompt_attention::tried(gpu),
        grouped_prompt_attention::tried(gpu),
        router::cases(),
        logit_bias::cases(),
        sample::cases(),
        copy_rows::cases(),
        keep_states::cases(),
        nextn_input::cases(),
        accept_drafts::cases(),
    ];
    let all = of_tokens.into_iter().chain(of_all).flatten();
    all.filter(|case| case.runs == Runs::Verified).collect()
}
