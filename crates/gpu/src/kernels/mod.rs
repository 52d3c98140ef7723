//! Every operation of the models as a pair: a WGSL kernel and its CPU twin of the same name.
//!
//! The twins are plain f32 Rust on all threads: the oracle of every kernel test, and of `glimt verify` on a user's device. The
//! reference of a family of models composes some of them to the whole forward pass, which `--device cpu` runs, there with quick
//! [`products`]. The twins of kernels that measure or count are in their tests. A result does not depend on how many tokens one call
//! holds: each output is the same sequence of additions in any batch.

pub mod accept_drafts;
pub mod attention;
mod attention_coop;
mod attention_heads;
pub mod attention_merge;
pub mod attention_short;
pub mod batch_combine;
pub mod batch_experts;
pub mod batch_matvec;
mod cache_rows;
pub mod cache_type;
#[cfg(not(target_arch = "wasm32"))]
pub mod cases;
#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod choices;
mod coop;
pub mod copy_rows;
mod dims;
pub mod embed;
pub mod expand_kv;
mod expand_kv_coop;
pub mod expert_fill;
pub mod expert_part;
pub mod expert_places;
pub mod expert_rows;
pub mod expert_slots;
pub mod expert_sources;
pub mod gemm;
pub mod grouped_attention;
mod grouped_attention_coop;
pub mod grouped_prompt_attention;
pub mod grouped_rows;
pub mod keep_states;
pub mod linear;
pub mod logit_bias;
pub mod mark;
pub mod moe_combine;
pub mod nextn_input;
pub mod products;
pub mod prompt_attention;
mod prompt_attention_coop;
mod quick_attention;
pub mod read;
pub mod rope_cache;
pub mod router;
pub mod rows_f16;
pub mod sample;
pub mod sampling;
pub mod sequences;
pub mod token;
pub mod token_absorb;
pub mod token_beside;
pub mod token_embed;
pub mod token_gate_up;
pub mod token_matvec;
pub mod token_moe_down;
pub mod token_queries;
pub mod token_router;

use crate::gpu::call::{Call, Flops};
use crate::gpu::memory::{GpuWeight, Piece};
pub use cache_rows::Rows;
pub use cache_type::CacheType;
pub use dims::{GroupedDims, KvDims, MlaDims, Pairing};

#[cfg(any(test, feature = "testing"))]
pub mod testing;

/// The most workgroups along one dimension, on every backend.
pub(crate) const MAX_GRID: u32 = 65535;

/// Floating-point operations that every replay has.
fn once(flops: u64) -> Flops {
    Flops {
        once: flops,
        ..Flops::default()
    }
}

/// Operations that a replay has for each token.
fn per_token(flops: u64) -> Flops {
    Flops {
        per_token: flops,
        ..Flops::default()
    }
}

/// The rows of each group, the first group and the number of groups in a piece of `w`. A piece of one group is any run of rows; pieces
/// of several hold whole groups.
fn groups_of(w: &GpuWeight, piece: &Piece) -> [u32; 3] {
    match w.groups {
        1 => [piece.rows, 0, 1],
        _ => [w.rows, piece.first_row / w.rows, piece.rows / w.rows],
    }
}

/// `call` with numbers of its template.
fn with_numbers<const N: usize>(call: Call, numbers: [(&'static str, usize); N]) -> Call {
    let numbers = numbers.into_iter();
    numbers.fold(call, |call, (name, n)| call.number(name, n as u32))
}
