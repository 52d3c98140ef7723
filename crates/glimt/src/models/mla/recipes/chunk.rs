//! The buffers that all layers of a chunk of tokens share: what the steps of prompts write to, and what bounds the chunk where bindings
//! are small.

use super::context::Forms;
use crate::gpu::buffer::{Buffer, Range, Role};
use crate::gpu::machine::Machine;
use crate::gpu::machine::tiles::{LARGEST, LOWEST};
use crate::kernels::expert_rows::tile_count;
use crate::kernels::gemm::{Form, Tile};
use crate::kernels::prompt_attention;
use crate::model::Experts;
use crate::models::MAX_CHUNK;
use crate::models::mla::Config;

/// Rows as the products of prompts take them: in f32, or as halves with a scale each.
#[derive(Clone)]
pub struct RowsBuffer {
    /// (tokens, cols) f32.
    pub floats: Range,
    /// (tokens, cols) f16.
    pub halves: Range,
    /// (tokens) f32.
    pub scales: Range,
}

impl RowsBuffer {
    /// A buffer for `tokens` rows of `cols`, each of which has `scales` scales.
    fn new(name: &str, tokens: u64, cols: u64, scales: u64) -> Self {
        let halves = Buffer::new(format!("{name} halves"), tokens * cols * 2, Role::Halves);
        Self {
            floats: Range::floats(format!("{name} rows"), tokens * cols),
            halves: Range::whole(&halves),
            scales: Range::floats(format!("{name} scales"), tokens * scales),
        }
    }
}

/// The buffers of chunks of up to so many tokens. Recipes use those that their forms need; a device makes no others.
#[derive(Clone)]
pub struct Chunk {
    /// (tokens, d) each, f32, as all that follow unless they say otherwise.
    pub embedding: Range,
    pub after_attention: Range,
    pub after_shared: Range,
    pub after_ffn: Range,
    /// Partial sums of `attn_output`, (split_k, tokens, d).
    pub output_sums: Range,
    /// (split_k, tokens, q_lora_rank).
    pub q_a: Range,
    /// (split_k, tokens, kv_lora + rope).
    pub kv_a: Range,
    /// (tokens, heads, nope + rope).
    pub q: Range,
    /// (tokens, heads, v).
    pub values: Range,
    /// Three buffers of absorbed tokens: (tokens, heads, rope), (tokens, heads, kv_lora), and the output of the attention.
    pub q_pe: Range,
    pub q_lat: Range,
    pub latent: Range,
    /// silu(gate) * up of a dense block or of the chosen experts, by low tiles and by tall ones, and of the shared expert.
    pub h: [Range; 2],
    pub shared_h: Range,
    /// The output of the chosen experts' `down`, (tokens, used, d), by low tiles and by tall ones.
    pub slots: [Range; 2],
    /// (split_k, tokens, experts).
    pub router_logits: Range,
    /// (tokens, used) u32.
    pub expert_ids: Range,
    /// (tokens, used).
    pub expert_weights: Range,
    /// (tokens * used) u32.
    pub expert_slots: Range,
    /// The tiles of the experts, low and tall ones: four u32 each.
    pub tiles: [Range; 2],
    /// Inputs of products: the normed stream, the normed latent of the query, what `down` and `attn_output` read, what `down` of the
    /// shared expert reads, and what the absorbed attention's products read.
    pub normed: RowsBuffer,
    pub normed_q_a: RowsBuffer,
    pub inner: RowsBuffer,
    pub shared_inner: RowsBuffer,
    pub absorbed: RowsBuffer,
}

impl Chunk {
    /// The buffers of up to `tokens` tokens, for these forms. The attention of up to `absorbed` of them is absorbed.
    pub fn new(
        machine: Machine,
        config: &Config,
        forms: Forms,
        tokens: u32,
        absorbed: u32,
    ) -> Self {
        let matrices = matches!(forms.products, Form::Matrix(_));
        let n = u64::from(tokens);
        let absorbed = n.min(u64::from(absorbed));
        let size = |n: usize| n as u64;
        let (d, heads) = (size(config.embedding_length), size(config.head_count));
        let (rope, kv_lora) = (size(config.qk_rope_head_dim), size(config.kv_lora_rank));
        let q = heads * (size(config.qk_nope_head_dim) + rope);
        let values = heads * size(config.v_head_dim);
        let q_lora = size(config.q_lora_rank.unwrap_or(0));
        let dense = match config.leading_dense_block_count {
            0 if config.experts.is_some() => 0,
            _ => size(config.feed_forward_length),
        };
        let experts = config.experts.as_ref();
        let of_experts = |f: &dyn Fn(&Experts) -> usize| experts.map_or(0, |e| size(f(e)));
        let used = of_experts(&|e| e.used);
        let shared = of_experts(&|e| e.shared_count * e.feed_forward_length);
        let routed = of_experts(&|e| e.used * e.feed_forward_length);
        let h = dense.max(routed);
        // Tokens for whose experts tiles of either height may be taken.
        let either = experts.map_or(0, |e| n.min(u64::from(most_in_either(e, forms.products))));
        let tiles = |tokens: u64| tile_words(tokens, [used, of_experts(&|e| e.count)]);
        let with_sums = |rows: u64, cols: u64| match matrices {
            true => {
                let most = n.min(u64::from(most_split(machine, rows as u32)));
                let ranges = u64::from(split_k(cols as u32, machine.tuned.product_split_k));
                rows * n.max(ranges * most)
            }
            false => rows * n,
        };
        let router_split_k = u64::from(router_split_k(machine, d as u32));
        let widest = q.max(heads * kv_lora);
        Self {
            embedding: Range::floats("embedding", n * d),
            after_attention: Range::floats("after attention", n * d),
            after_shared: Range::floats("after shared", n * d),
            after_ffn: Range::floats("after ffn", n * d),
            output_sums: Range::floats("attn_output sums", with_sums(d, values)),
            q_a: Range::floats("q_a", with_sums(q_lora, d)),
            kv_a: Range::floats("kv_a", with_sums(size(config.cache_row()), d)),
            q: Range::floats("q", n * q),
            values: Range::floats("values", n * values),
            q_pe: Range::floats("q_pe", absorbed * heads * rope),
            q_lat: Range::floats("q_lat", absorbed * heads * kv_lora),
            latent: Range::floats("latent", absorbed * heads * kv_lora),
            h: [
                Range::floats("h", n * h),
                Range::floats("tall h", either * routed),
            ],
            shared_h: Range::floats("shared h", n * shared),
            slots: [
                Range::floats("slots", n * used * d),
                Range::floats("tall slots", either * used * d),
            ],
            router_logits: Range::floats(
                "router logits",
                n * router_split_k * of_experts(&|e| e.count),
            ),
            expert_ids: Range::words("expert ids", n * used),
            expert_weights: Range::floats("expert weights", n * used),
            expert_slots: Range::words("expert slots", n * used),
            tiles: [
                Range::words("expert tiles", tiles(n)),
                Range::words("tall tiles", tiles(either)),
            ],
            normed: RowsBuffer::new("normed", n, d, 1),
            normed_q_a: RowsBuffer::new("normed q_a", n, q_lora, 1),
            inner: RowsBuffer::new("inner", n, values.max(h), used.max(1)),
            shared_inner: RowsBuffer::new("shared inner", n, shared, 1),
            absorbed: RowsBuffer::new("absorbed", absorbed, widest, 1),
        }
    }
}

/// Words of the list of the experts' tiles, for so many tokens that each use some of all the experts.
fn tile_words(tokens: u64, [used, count]: [u64; 2]) -> u64 {
    match count {
        0 => 0,
        _ => u64::from(tile_count(tokens as u32, used as u32, LOWEST, count as u32)) * 4,
    }
}

/// Bytes of the widest buffer that steps of up to `tokens` tokens use.
pub fn widest(machine: Machine, config: &Config, forms: Forms, tokens: u32) -> u64 {
    let matrices = matches!(forms.products, Form::Matrix(_));
    let absorbed = most_absorbed(machine, config, forms.expanded);
    let chunk = Chunk::new(machine, config, forms, tokens, absorbed);
    let rows = [
        &chunk.normed,
        &chunk.normed_q_a,
        &chunk.inner,
        &chunk.shared_inner,
        &chunk.absorbed,
    ];
    let read = |rows: &RowsBuffer| match matrices {
        true => rows.halves.size.max(rows.scales.size),
        false => rows.floats.size,
    };
    let [low_h, tall_h] = &chunk.h;
    let [low_slots, tall_slots] = &chunk.slots;
    let others = [
        &chunk.embedding,
        &chunk.output_sums,
        &chunk.q_a,
        &chunk.kv_a,
        &chunk.q,
        &chunk.values,
        &chunk.q_lat,
        low_h,
        tall_h,
        &chunk.shared_h,
        low_slots,
        tall_slots,
        &chunk.router_logits,
    ];
    let rows = rows.into_iter().map(read);
    let all = rows.chain(others.map(|range| range.size));
    all.max().unwrap_or(0)
}

/// A weight is narrow if it has fewer rows than this for each of the workgroups that fill the device. Its columns are cut for any
/// number of tokens, because even the longest chunk makes less than two rounds of workgroups.
const NARROW: u32 = 2 * LARGEST * LARGEST / MAX_CHUNK;

/// The ranges that the columns of a router's weight are cut into (split-K): its few rows would not fill a large GPU.
pub(super) fn router_split_k(machine: Machine, cols: u32) -> u32 {
    let wanted = machine.spread() / machine.tuned.router_workgroups;
    split_k(cols, wanted.clamp(1, machine.tuned.router_split_k))
}

/// Likewise those of a weight by which matrices multiply up to `tokens` tokens.
pub(super) fn product_split_k(
    machine: Machine,
    form: Form,
    rows: u32,
    cols: u32,
    tokens: u32,
) -> u32 {
    match form {
        Form::Matrix(_) if tokens <= most_split(machine, rows) => {
            split_k(cols, machine.tuned.product_split_k)
        }
        _ => 1,
    }
}

/// The most tokens that a weight of so many rows multiplies with its columns cut (split-K): where there are fewer of the largest tiles than
/// fill the device.
fn most_split(machine: Machine, rows: u32) -> u32 {
    let full = machine.spread();
    match rows {
        _ if machine.tuned.product_split_k == 1 => 0,
        _ if rows < NARROW * full => u32::MAX,
        _ => (full - 1) / rows.div_ceil(LARGEST) * LARGEST,
    }
}

/// The most ranges that divide the columns into equally many whole units of 32: a power of two up to `most`.
fn split_k(cols: u32, most: u32) -> u32 {
    1 << (cols / 32).trailing_zeros().min(most.ilog2())
}

/// The most tokens of a chunk whose attention is absorbed: all of them where the sizes do not suit the other.
pub(super) fn most_absorbed(
    machine: Machine,
    config: &Config,
    expanded: Option<prompt_attention::Form>,
) -> u32 {
    let most = |form: prompt_attention::Form| {
        prompt_attention::most_few(machine, config.kv_dims(), form.is_matrix())
    };
    expanded.map_or(u32::MAX, most)
}

/// The most tokens for whose experts tiles of either of two heights are chosen when the experts are.
fn most_in_either(experts: &Experts, form: Form) -> u32 {
    let [used, count] = [experts.used, experts.count].map(|n| n as u32);
    Tile::most_beside_taller(form) * count / used
}

#[cfg(test)]
mod tests;
