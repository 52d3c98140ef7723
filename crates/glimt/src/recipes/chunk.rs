//! The buffers that all layers of a chunk of tokens share: what the steps of prompts write to, and what bounds the chunk where bindings
//! are small.

use super::MAX_CHUNK;
use crate::gpu::buffer::{Buffer, Range, Role};
use crate::gpu::machine::Machine;
use crate::gpu::machine::tiles::{LARGEST, LOWEST};
use crate::kernels::expert_rows::tile_count;
use crate::kernels::gemm::{Form, Tile};
use crate::model::{Config, Experts};

/// The size of a chunk: its most tokens, on a device.
#[derive(Debug, Clone, Copy)]
pub struct ChunkSize {
    /// The device.
    pub machine: Machine,
    /// The form in which its products are multiplied.
    pub products: Form,
    /// The most tokens.
    pub tokens: u32,
}

impl ChunkSize {
    /// Values of the output of a product with `rows` rows and `cols` columns for all tokens, or of the partial sums of fewer.
    pub fn sums(self, rows: usize, cols: usize) -> u64 {
        let (rows, n) = (rows as u64, u64::from(self.tokens));
        match self.products {
            Form::Matrix(_) => {
                let most = n.min(u64::from(most_split(self.machine, rows as u32)));
                let most_ranges = self.machine.tuned.product_split_k;
                let ranges = u64::from(split_k(cols as u32, most_ranges));
                rows * n.max(ranges * most)
            }
            Form::Float { .. } => rows * n,
        }
    }

    /// The ranges that the columns of a weight are cut into (split-K), by which matrices multiply the tokens.
    pub fn split_k(self, rows: u32, cols: u32) -> u32 {
        match self.products {
            Form::Matrix(_) if self.tokens <= most_split(self.machine, rows) => {
                split_k(cols, self.machine.tuned.product_split_k)
            }
            _ => 1,
        }
    }
}

/// Rows as the products of prompts take them: in f32, or as halves with a scale each.
#[derive(Clone)]
pub struct RowsBuffer {
    /// The rows as f32, (tokens, cols).
    pub floats: Range,
    /// The rows as f16, (tokens, cols).
    pub halves: Range,
    /// The scales of the halves as f32, for each token.
    pub scales: Range,
}

impl RowsBuffer {
    /// A buffer for `tokens` rows of `cols`, each of which has `scales` scales.
    pub fn new(name: &str, tokens: u64, cols: u64, scales: u64) -> Self {
        let halves = Buffer::new(format!("{name} halves"), tokens * cols * 2, Role::Halves);
        Self {
            floats: Range::floats(format!("{name} rows"), tokens * cols),
            halves: Range::whole(&halves),
            scales: Range::floats(format!("{name} scales"), tokens * scales),
        }
    }
}

/// The buffers of chunks of one size. Recipes use those that their forms need; a device makes no others.
#[derive(Clone)]
pub struct Chunk {
    /// The residual stream after each part, (tokens, d). All buffers are f32 unless they say otherwise.
    pub(super) embedding: Range,
    pub(super) after_attention: Range,
    pub(super) after_shared: Range,
    pub(super) after_ffn: Range,
    /// Partial sums of `attn_output`, (split_k, tokens, d).
    pub(super) output_sums: Range,
    /// The values of all heads, (tokens, values).
    pub values: Range,
    /// silu(gate) * up of a dense block or of the chosen experts, by low tiles and by tall ones, and of the shared expert.
    pub(super) h: [Range; 2],
    pub(super) shared_h: Range,
    /// The output of the chosen experts' `down`, (tokens, used, d), by low tiles and by tall ones.
    pub(super) slots: [Range; 2],
    /// Partial sums of the router's logits, (split_k, tokens, experts).
    pub(super) router_logits: Range,
    /// The chosen experts, (tokens, used) u32.
    pub(super) expert_ids: Range,
    /// The weights of the chosen experts, (tokens, used).
    pub(super) expert_weights: Range,
    /// The slots sorted by expert, (tokens * used) u32.
    pub(super) expert_slots: Range,
    /// The tiles of the experts, low and tall ones: four u32 each.
    pub(super) tiles: [Range; 2],
    /// Inputs of products: the normed stream, what `down` and `attn_output` read, and what `down` of the shared expert reads.
    pub(super) normed: RowsBuffer,
    pub(super) inner: RowsBuffer,
    pub(super) shared_inner: RowsBuffer,
}

impl Chunk {
    /// The buffers of a chunk of this size, whose heads have `values` values together.
    pub(super) fn new(of: ChunkSize, config: &Config, values: usize) -> Self {
        let ChunkSize {
            machine,
            products,
            tokens,
        } = of;
        let n = u64::from(tokens);
        let size = |n: usize| n as u64;
        let d = size(config.embedding_length);
        let dense = match config.leading_dense_block_count {
            0 if config.experts.is_some() => 0,
            _ => size(config.feed_forward_length),
        };
        let experts = config.experts.as_ref();
        let of_experts = |f: &dyn Fn(&Experts) -> usize| experts.map_or(0, |e| size(f(e)));
        let used = of_experts(&|e| e.used);
        let shared = size(config.shared_feed_forward_length());
        let routed = of_experts(&|e| e.used * e.feed_forward_length);
        let h = dense.max(routed);
        // Tokens for whose experts tiles of either height may be taken.
        let either = experts.map_or(0, |e| n.min(u64::from(most_in_either(e, products))));
        let tiles = |tokens: u64| tile_words(tokens, [used, of_experts(&|e| e.count)]);
        let router_split_k = u64::from(router_split_k(machine, d as u32));
        Self {
            embedding: Range::floats("embedding", n * d),
            after_attention: Range::floats("after attention", n * d),
            after_shared: Range::floats("after shared", n * d),
            after_ffn: Range::floats("after ffn", n * d),
            output_sums: Range::floats("attn_output sums", of.sums(d as usize, values)),
            values: Range::floats("values", n * size(values)),
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
            inner: RowsBuffer::new("inner", n, size(values).max(h), used.max(1)),
            shared_inner: RowsBuffer::new("shared inner", n, shared, 1),
        }
    }
}

/// Words of the list of the experts' tiles, for `tokens` tokens that each use some of all the experts.
fn tile_words(tokens: u64, [used, count]: [u64; 2]) -> u64 {
    match count {
        0 => 0,
        _ => u64::from(tile_count(tokens as u32, used as u32, LOWEST, count as u32)) * 4,
    }
}

/// Bytes of the widest buffer that chunks of this size use beside those of the attention, whose heads have `values` values together. What
/// products read as halves is never wider than what it is made of.
pub(crate) fn widest(of: ChunkSize, config: &Config, values: usize) -> u64 {
    let chunk = Chunk::new(of, config, values);
    let others = [
        &chunk.embedding,
        &chunk.output_sums,
        &chunk.values,
        &chunk.shared_h,
        &chunk.router_logits,
    ];
    let of_experts = chunk.h.iter().chain(&chunk.slots);
    let sizes = others.into_iter().chain(of_experts).map(|range| range.size);
    sizes.max().unwrap_or(0)
}

/// A weight is narrow if it has fewer rows than this for each of the workgroups that fill the device. Its columns are cut for any
/// number of tokens, because even the longest chunk makes less than two rounds of workgroups.
const NARROW: u32 = 2 * LARGEST * LARGEST / MAX_CHUNK;

/// The number of ranges that a router's columns are cut into (split-K), because its few rows would not fill a large GPU.
pub(crate) fn router_split_k(machine: Machine, cols: u32) -> u32 {
    let wanted = machine.spread() / machine.tuned.router_workgroups;
    split_k(cols, wanted.clamp(1, machine.tuned.router_split_k))
}

/// The most tokens that a weight of `rows` rows multiplies with its columns cut (split-K): where there are fewer of the largest tiles than
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

/// The most tokens for whose experts tiles of either of two heights are chosen when the experts are.
fn most_in_either(experts: &Experts, form: Form) -> u32 {
    let [used, count] = [experts.used, experts.count].map(|n| n as u32);
    Tile::most_beside_taller(form) * count / used
}
