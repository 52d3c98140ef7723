//! What running a model takes of a GPU's memory, told before anything is loaded.

use serde::Serialize;

use super::gpu::{buffers, capacity, default_chunk, most_absorbed, room, tile_words};
use crate::gguf::Gguf;
use crate::gpu::machine::Machine;
use crate::gpu::{AdapterSummary, Gpu};
use crate::kernels::expand_kv::KvDims;
use crate::kernels::{MlaDims, attention, prompt_attention, sample};
use crate::model::Config;

/// Bytes that a model and one session take on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MemoryPlan {
    /// Context length in tokens.
    pub ctx: usize,
    /// The tensors that decoding reads; repacking keeps their size to within 2%.
    pub weights: u64,
    /// Precomposed weights beside those of the file (`--precompose`).
    #[serde(skip_serializing_if = "is_zero")]
    pub precomposed: u64,
    /// The latent cache of all layers.
    pub cache: u64,
    /// The part of `cache` that one token takes.
    pub cache_per_token: u64,
    /// Tokens of a prompt that are computed at once.
    pub ubatch: u32,
    /// Activations of a token and of a chunk of the prompt, the rotation table, logits and
    /// what choosing a token takes.
    pub scratch: u64,
}

/// How prompts are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// Tokens at once.
    pub tokens: u32,
    /// Whether by cooperative matrices.
    pub matrices: bool,
    /// On what.
    pub machine: Machine,
}

impl Batch {
    /// On `adapter`, or on a large GPU where there is none, with `asked` tokens at once or the usual number.
    pub fn on(
        adapter: Option<&AdapterSummary>,
        config: &Config,
        n_ctx: usize,
        asked: Option<u32>,
    ) -> Self {
        let matrices = adapter.is_none_or(|a| !a.cooperative_matrices.is_empty());
        let software = adapter.is_some_and(|a| a.kind == "software");
        let machine = adapter.map_or(Machine::H200, |a| a.machine);
        let room = adapter.map_or(u32::MAX, |a| room(machine, config, matrices, a.max_binding));
        let tokens = asked.unwrap_or(default_chunk(software).min(room));
        let n_ctx = u32::try_from(n_ctx).unwrap_or(u32::MAX).max(1);
        Self {
            tokens: tokens.min(n_ctx),
            matrices,
            machine,
        }
    }
}

impl Batch {
    /// The usual number on an opened device.
    pub fn of(gpu: &Gpu, config: &Config, n_ctx: usize) -> Self {
        let matrices = gpu.coop.is_some();
        let software = gpu.info.device_type == wgpu::DeviceType::Cpu;
        let machine = gpu.machine;
        let room = room(machine, config, matrices, gpu.max_binding);
        let n_ctx = u32::try_from(n_ctx).unwrap_or(u32::MAX).max(1);
        Self {
            tokens: default_chunk(software).min(room).min(n_ctx),
            matrices,
            machine,
        }
    }
}

impl MemoryPlan {
    /// The plan for a session of `n_ctx` tokens.
    pub fn new(gguf: &Gguf, config: &Config, n_ctx: usize, batch: Batch) -> Self {
        let tensors = gguf
            .tensors()
            .iter()
            .filter(|tensor| is_read(&tensor.name, config));
        let cache_per_token = (config.block_count * config.cache_row() * 2) as u64;
        Self {
            ctx: n_ctx,
            weights: tensors.map(|tensor| tensor.byte_len()).sum(),
            precomposed: 0,
            cache: n_ctx as u64 * cache_per_token,
            cache_per_token,
            ubatch: batch.tokens,
            scratch: scratch(config, n_ctx, batch),
        }
    }

    /// The same with `bytes` of precomposed weights.
    pub fn with_precomposed(self, bytes: u64) -> Self {
        Self {
            precomposed: bytes,
            ..self
        }
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights + self.precomposed + self.cache + self.scratch
    }
}

fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

/// Whether decoding reads the tensor: those of the prediction blocks behind the others are skipped.
fn is_read(name: &str, config: &Config) -> bool {
    let block = name
        .strip_prefix("blk.")
        .and_then(|rest| rest.split('.').next()?.parse().ok());
    block.is_none_or(|block: usize| block < config.block_count)
}

/// Bytes of everything but weights and cache. For one token every layer has activations of its own, in a chunk the
/// layers share them.
fn scratch(config: &Config, n_ctx: usize, batch: Batch) -> u64 {
    let (d, heads, rope) = (
        config.embedding_length,
        config.head_count,
        config.qk_rope_head_dim,
    );
    let attention = config.q_lora_rank.unwrap_or(0)
        + config.cache_row()
        + heads * (config.qk_nope_head_dim + rope)
        + heads * (2 * config.kv_lora_rank + rope + config.v_head_dim)
        + d;
    let dense = config.feed_forward_length + d;
    // Router logits, ids and weights; the routed experts; the shared one.
    let moe = config.experts.as_ref().map_or(0, |experts| {
        let shared = experts.shared_count * experts.feed_forward_length;
        experts.count
            + experts.used * (2 + experts.feed_forward_length)
            + d
            + if shared > 0 { shared + d } else { 0 }
    });
    let dense_blocks = config.leading_dense_block_count;
    let token = d
        + config.block_count * attention
        + dense_blocks * dense
        + (config.block_count - dense_blocks) * moe;
    let tokens = capacity(batch.tokens) as usize;
    let absorbed = most_absorbed(config, batch.matrices);
    let chunk: usize = buffers(batch.machine, config, batch.matrices, tokens, absorbed)
        .into_iter()
        .chain(tile_words(config, batch.matrices, tokens))
        .map(|(_, words)| words)
        .sum();
    let kv = KvDims::of(config);
    let expanded: u64 = match prompt_attention::fits(kv) {
        true => {
            let blocks =
                prompt_attention::Scratch::blocks(kv, batch.matrices, tokens, n_ctx, u64::MAX);
            let bytes = prompt_attention::Scratch::bytes(kv, batch.matrices, tokens, blocks);
            bytes.into_iter().sum()
        }
        false => 0,
    };
    let absorbed = tokens.min(absorbed as usize);
    let [values, maxima] = attention::partial_bytes(MlaDims::of(config), absorbed);
    let words = token + chunk + n_ctx * (rope + 1) + config.vocab_size;
    let choice: u64 = sample::scratch_bytes(config.vocab_size).iter().sum();
    words as u64 * 4 + values + maxima + expanded + choice
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::gpu::{GpuBackend, GpuModel};
    use super::super::{EMBEDDED, ModelSource};
    use super::*;
    use crate::gpu::{Gpu, GpuError, GpuOptions};
    use crate::model::Model;

    #[test]
    fn the_plan_is_what_a_gpu_allocates() {
        let gpu = match Gpu::open(&GpuOptions::default()) {
            Ok(gpu) => Arc::new(gpu),
            Err(GpuError::NoAdapter) => {
                eprintln!("skipped: no GPU adapter");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let gguf = Arc::new(
            ModelSource::Embedded
                .open()
                .expect("it is part of the program"),
        );
        let model = Arc::new(Model::load(Arc::clone(&gguf)).expect("it is supported"));
        let batch = Batch {
            tokens: 100,
            matrices: gpu.coop.is_some(),
            machine: gpu.machine,
        };
        let plan = MemoryPlan::new(&gguf, &model.config, 1000, batch);
        let near = |what: &str, found: u64, planned: u64| {
            let ratio = found as f64 / planned as f64;
            assert!(
                (0.98..1.02).contains(&ratio),
                "{what}: {found} bytes, planned {planned}"
            );
        };
        let weights = GpuModel::load(Arc::clone(&gpu), model, &mut |_, _| {}).expect("it fits");
        let before = gpu.allocated();
        near("weights", before, plan.weights);
        let weights = Arc::new(weights);
        let _session = GpuBackend::with_chunk(weights, 1000, Some(100)).expect("it fits");
        near(
            "session",
            gpu.allocated() - before - plan.cache,
            plan.scratch,
        );
    }

    #[test]
    fn prediction_blocks_are_not_counted() {
        let gguf =
            Gguf::from_static(EMBEDDED, "built-in model").expect("it is part of the program");
        let config = Config::from_gguf(&gguf).expect("it is supported");
        assert!(is_read("output_norm.weight", &config));
        assert!(is_read("blk.5.ffn_norm.weight", &config));
        assert!(!is_read("blk.6.ffn_norm.weight", &config));
    }
}
