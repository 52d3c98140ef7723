//! The buffers that all layers of a chunk of many tokens share: what a session makes at its start, what the memory plan counts,
//! and what bounds the chunk where bindings are small.

use super::prompt::MAX_CHUNK;
use super::recipe::{Scratch, role_of};
use super::weights::GpuModel;
use crate::gpu::GpuError;
use crate::gpu::buffer::{Buffer, Range};
use crate::gpu::machine::{Machine, Profile};
use crate::kernels::expand_kv::KvDims;
use crate::kernels::expert_rows::tile_count;
use crate::kernels::gemm::Form;
use crate::kernels::prompt_attention;
use crate::model::{Config, Experts};

/// The buffers of normed or rounded rows: floats, halves and their scales.
pub(super) type Names = [&'static str; 3];
pub(super) const NORMED: Names = ["normed", "normed halves", "normed scales"];
pub(super) const Q_A: Names = ["normed q_a", "q_a halves", "q_a scales"];
pub(super) const INNER: Names = ["inner", "inner halves", "inner scales"];
/// Of the shared expert, which is computed beside the others.
pub(super) const SHARED: Names = ["shared inner", "shared halves", "shared scales"];
pub(super) const ABSORBED: Names = ["absorbed", "absorbed halves", "absorbed scales"];

/// What `attn_output` leaves in parts.
pub(super) const OUTPUT_PARTS: &str = "attn_output parts";

/// Parts of the columns of a router's weight at most, and of other weights.
const ROUTER_PARTS: u32 = 8;
const PRODUCT_PARTS: u32 = 4;
/// Workgroups that a part of a router's weight is taken to have.
const ROUTER_WORKGROUPS: u32 = 16;
/// Tokens and rows of a workgroup, of which products with fewer than fill the device are cut into parts.
const WORKGROUP: u32 = 128;
/// Weights with fewer rows than so many for each of the workgroups that fill the device are cut into parts whatever the tokens: the
/// longest chunk makes less than two rounds of them.
const NARROW: u32 = 2 * WORKGROUP * WORKGROUP / MAX_CHUNK;

/// The parts that the columns of a router's weight are cut into: its few rows would not fill a large GPU.
pub(super) fn router_parts(machine: Machine, cols: u32) -> u32 {
    let wanted = machine.spread() / ROUTER_WORKGROUPS;
    parts(cols, wanted.clamp(1, ROUTER_PARTS))
}

/// Likewise those of a weight by which matrices multiply up to `tokens` tokens.
pub(super) fn product_parts(
    machine: Machine,
    form: Form,
    rows: u32,
    cols: u32,
    tokens: u32,
) -> u32 {
    match form {
        Form::Matrix(_) if tokens <= most_in_parts(machine, rows) => parts(cols, PRODUCT_PARTS),
        _ => 1,
    }
}

/// The most tokens that a weight of so many rows multiplies in parts.
fn most_in_parts(machine: Machine, rows: u32) -> u32 {
    let full = machine.spread();
    match rows {
        // A few workgroups fill it.
        _ if machine.profile == Profile::Software => 0,
        _ if rows < NARROW * full => u32::MAX,
        _ => (full - 1) / rows.div_ceil(WORKGROUP) * WORKGROUP,
    }
}

/// As many parts of whole units of 32 columns as divide them, a power of two up to `most`.
fn parts(cols: u32, most: u32) -> u32 {
    1 << (cols / 32).trailing_zeros().min(most.ilog2())
}

/// The most tokens of a chunk whose attention is absorbed: all of them where the sizes do not suit the other.
pub(crate) fn most_absorbed(config: &Config, matrices: bool) -> u32 {
    let dims = KvDims::of(config);
    match prompt_attention::fits(dims) {
        true => prompt_attention::most_few(dims, matrices),
        false => u32::MAX,
    }
}

/// The buffers of chunks of up to `tokens` tokens by name, with their words of 4 bytes: for products in f32 or by matrices,
/// and up to `absorbed` tokens whose attention is absorbed.
pub(crate) fn buffers(
    machine: Machine,
    config: &Config,
    matrices: bool,
    tokens: usize,
    absorbed: u32,
) -> Vec<(&'static str, usize)> {
    let absorbed = tokens.min(absorbed as usize);
    let (d, heads) = (config.embedding_length, config.head_count);
    let (rope, kv_lora) = (config.qk_rope_head_dim, config.kv_lora_rank);
    let q = heads * (config.qk_nope_head_dim + rope);
    let values = heads * config.v_head_dim;
    let dense = match config.leading_dense_block_count {
        0 => 0,
        _ => config.feed_forward_length,
    };
    let experts = config.experts.as_ref();
    let shared = experts.map_or(0, |e| e.shared_count * e.feed_forward_length);
    let routed = experts.map_or(0, |e| e.used * e.feed_forward_length);
    let h = dense.max(routed);
    let mut all = vec![
        ("embedding", d),
        ("q", q),
        ("values", values),
        ("after attention", d),
        ("h", h),
        ("after ffn", d),
    ];
    if let Some(q_lora) = config.q_lora_rank {
        all.extend(match matrices {
            true => vec![(Q_A[1], q_lora / 2), (Q_A[2], 1)],
            false => vec![(Q_A[0], q_lora)],
        });
    }
    if let Some(experts) = experts {
        all.extend([
            (
                "router logits",
                router_parts(machine, d as u32) as usize * experts.count,
            ),
            ("expert ids", experts.used),
            ("expert weights", experts.used),
            ("expert slots", experts.used),
            ("slots", experts.used * d),
        ]);
    }
    if shared > 0 {
        all.extend([("shared h", shared), ("after shared", d)]);
    }
    // The router reads f32.
    if !matrices || experts.is_some() {
        all.push((NORMED[0], d));
    }
    if matrices {
        let inner = values.max(h);
        all.extend([
            (NORMED[1], d / 2),
            (NORMED[2], 1),
            (INNER[1], inner / 2),
            (INNER[2], experts.map_or(1, |e| e.used)),
        ]);
    }
    if matrices && shared > 0 {
        all.extend([(SHARED[1], shared / 2), (SHARED[2], 1)]);
    }
    for (_, words) in &mut all {
        *words *= tokens;
    }
    if let Some(experts) = experts {
        let tokens = tokens.min(most_in_either(experts, matrices) as usize);
        all.extend([
            ("tall h", tokens * routed),
            ("tall slots", tokens * experts.used * d),
        ]);
    }
    let in_parts = |rows: usize, cols: usize| match matrices {
        true => {
            let most = tokens.min(most_in_parts(machine, rows as u32) as usize);
            let parts = parts(cols as u32, PRODUCT_PARTS) as usize;
            rows * tokens.max(parts * most)
        }
        false => rows * tokens,
    };
    all.push(("kv_a", in_parts(config.cache_row(), d)));
    all.extend(config.q_lora_rank.map(|rank| ("q_a", in_parts(rank, d))));
    if matrices {
        all.push((OUTPUT_PARTS, in_parts(d, values)));
    }
    all.extend([
        ("q_pe", absorbed * heads * rope),
        ("q_lat", absorbed * heads * kv_lora),
        ("latent", absorbed * heads * kv_lora),
    ]);
    if matrices {
        let widest = q.max(heads * kv_lora);
        all.extend([
            (ABSORBED[1], absorbed * widest / 2),
            (ABSORBED[2], absorbed),
        ]);
    }
    all
}

/// The most tokens for whose experts tiles of either of two heights are chosen when the experts are.
fn most_in_either(experts: &Experts, matrices: bool) -> u32 {
    let [used, count] = [experts.used, experts.count].map(|n| n as u32);
    // What `Tile::for_experts` gives the second highest tile of any form.
    let second = if matrices { 64 } else { 32 };
    second * 4 / 5 * count / used
}

/// Words of the buffers that do not grow by whole tokens, of each height: the tiles of the experts, for chunks of up to `tokens`.
pub(crate) fn tile_words(
    config: &Config,
    matrices: bool,
    tokens: usize,
) -> Vec<(&'static str, usize)> {
    let words = |e: &Experts| {
        let [all, used, count] = [tokens, e.used, e.count].map(|n| n as u32);
        let tall = all.min(most_in_either(e, matrices));
        let lists = [("expert tiles", all), ("tall tiles", tall)];
        lists.map(|(name, n)| (name, tile_count(n, used, LOWEST_TILE, count) as usize * 4))
    };
    config.experts.iter().flat_map(words).collect()
}

/// Tokens of the lowest tile of any form.
const LOWEST_TILE: u32 = 16;

/// Makes all buffers of chunks of up to `tokens` tokens, of which up to `absorbed` attend absorbed.
///
/// # Errors
/// [`GpuError::OutOfMemory`], or what the device reports.
pub(super) fn reserve(
    model: &GpuModel,
    form: Form,
    scratch: &mut Scratch,
    tokens: u32,
    absorbed: u32,
) -> Result<(), GpuError> {
    let config = &model.model.config;
    let mut make = |name, words: usize| {
        let range = Range::whole(&Buffer::new(name, words as u64 * 4, role_of(name)));
        scratch.insert(name, range);
        Ok(())
    };
    let matrices = matches!(form, Form::Matrix(_));
    let machine = model.gpu.machine;
    for (name, words) in buffers(machine, config, matrices, tokens as usize, absorbed) {
        make(name, words)?;
    }
    for (name, words) in tile_words(config, matrices, tokens as usize) {
        make(name, words)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
