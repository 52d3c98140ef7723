//! Which weights of a block with multi-head latent attention are composed: those with nothing between them.

use super::{Config, Layer, Model};
use crate::kernels::compose::{Composition, Pair, kept_as};

/// The left and the right factor of `pair` in `layer`.
pub fn factors<W, V>(pair: Pair, layer: &Layer<W, V>) -> [&W; 2] {
    match pair {
        Pair::Qk => [&layer.attn_k_b, layer.query_heads()],
        Pair::Vo => [&layer.attn_output, &layer.attn_v_b],
    }
}

/// Bytes that the products of all layers take on a device.
pub fn bytes(pair: Pair, model: &Model) -> u64 {
    let composition = composition(pair, &model.config);
    let layers = model.layers.iter();
    layers
        .map(|layer| {
            let [left, right] = factors(pair, layer);
            composition.bytes(kept_as(left.ty, right.ty))
        })
        .sum()
}

/// The composition of `pair` in a model with these sizes.
pub fn composition(pair: Pair, config: &Config) -> Composition {
    match pair {
        Pair::Qk => Composition {
            pair,
            heads: config.head_count,
            rows: config.kv_lora_rank,
            depth: config.qk_nope_head_dim,
            cols: config.q_lora_rank.unwrap_or(config.embedding_length),
            kept: config.qk_rope_head_dim,
        },
        Pair::Vo => Composition {
            pair,
            heads: config.head_count,
            rows: config.embedding_length,
            depth: config.v_head_dim,
            cols: config.kv_lora_rank,
            kept: 0,
        },
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
                let c = composition(pair, &model.config);
                assert_eq!((c.out_rows(), c.out_cols()), (rows, cols));
                for layer in &model.layers {
                    let [left, right] = factors(pair, layer);
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
