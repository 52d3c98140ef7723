//! Which weights of a block with multi-head latent attention are composed: those with nothing between them.

use super::{Attention, Config, Model};
use crate::gpu::buffer::Range;
use crate::gpu::memory::GpuWeight;
use crate::kernels::compose::{Composition, Pair, kept_as};
use crate::recipes::{Factors, GpuBlock};

/// The left and the right factor of `pair` in an attention that is followed by `attn_output`.
fn factors_of<'a, W, V>(
    pair: Pair,
    attention: &'a Attention<W, V>,
    attn_output: &'a W,
) -> [&'a W; 2] {
    match pair {
        Pair::Qk => [&attention.attn_k_b, attention.query_heads()],
        Pair::Vo => [attn_output, &attention.attn_v_b],
    }
}

/// The factors of `pair` in each layer, and their composition.
pub fn factors<'a>(
    config: &Config,
    pair: Pair,
    layers: &'a [Attention<GpuWeight, Range>],
    blocks: &'a [GpuBlock],
) -> Vec<Factors<'a>> {
    let composition = Composition::of(pair, config);
    let layers = layers.iter().zip(blocks);
    layers
        .map(|(attention, block)| (composition, factors_of(pair, attention, &block.attn_output)))
        .collect()
}

/// Bytes that the products of `pair` in all layers take on a device.
pub fn bytes(pair: Pair, model: &Model) -> u64 {
    let composition = Composition::of(pair, &model.config);
    let layers = model.layers.iter();
    layers
        .map(|layer| {
            let [left, right] = factors_of(pair, &layer.attention, &layer.attn_output);
            composition.bytes(kept_as(left.ty, right.ty))
        })
        .sum()
}

impl Composition {
    /// The composition of `pair` in a model with these sizes.
    pub fn of(pair: Pair, config: &Config) -> Self {
        match pair {
            Pair::Qk => Self {
                pair,
                heads: config.head_count,
                rows: config.kv_lora_rank,
                depth: config.qk_nope_head_dim,
                cols: config.q_lora_rank.unwrap_or(config.embedding_length),
                kept: config.qk_rope_head_dim,
            },
            Pair::Vo => Self {
                pair,
                heads: config.head_count,
                rows: config.embedding_length,
                depth: config.v_head_dim,
                cols: config.kv_lora_rank,
                kept: 0,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::GgmlType;
    use crate::synth::{self, ModelName, Recipe, SynthOptions};
    use std::sync::Arc;

    #[test]
    fn products_of_the_models_have_the_sizes_of_their_formulas() {
        // Rows and columns of qk, then of vo.
        for (name, qk, vo) in [
            (ModelName::Glm47Flash, (20 * 576, 768), (2048, 20 * 512)),
            (
                ModelName::DeepseekV2Lite,
                (16 * 576, 2048),
                (2048, 16 * 512),
            ),
            (ModelName::YoutuLlm2b, (16 * 576, 1536), (2048, 16 * 512)),
        ] {
            let options = SynthOptions::default();
            let gguf = synth::without_matrices(name, Recipe::Q4_0, &options).unwrap();
            let model = Model::load(Arc::new(gguf)).unwrap();
            for (pair, (rows, cols)) in Pair::ALL.into_iter().zip([qk, vo]) {
                let c = Composition::of(pair, &model.config);
                assert_eq!((c.out_rows(), c.out_cols()), (rows, cols));
                for layer in &model.layers {
                    let [left, right] = factors_of(pair, &layer.attention, &layer.attn_output);
                    assert_eq!(kept_as(left.ty, right.ty), GgmlType::Q8_0);
                    assert_eq!(right.cols, c.cols);
                    assert_eq!(right.groups * right.rows, c.heads * c.right_row());
                    let last = c.heads - 1;
                    assert_eq!(left.cols, last * c.left_col() + c.depth);
                    assert_eq!(left.groups * left.rows, last * c.out_row() + c.rows);
                }
                let weights = model.layers.len() * rows * cols;
                assert_eq!(bytes(pair, &model), (weights / 32 * 34) as u64);
            }
        }
    }
}
