//! The weights of a block with multi-head latent attention that have nothing between them.

use super::Model;
use crate::model::pairs::{Factors, Pair};

impl Model {
    /// The factors of `pair` in each block. There are none if the rotated queries behind a product could not be bound.
    pub(super) fn factors_of(&self, pair: Pair) -> Vec<Factors<'_>> {
        let c = &self.config;
        let heads = c.head_count;
        if pair == Pair::Qk && !(heads * c.kv_lora_rank).is_multiple_of(64) {
            return vec![];
        }
        let layers = self.layers.iter().map(|layer| match pair {
            Pair::Qk => Factors {
                left: &layer.attn_k_b,
                right: layer.query_heads(),
                heads,
                kept: c.qk_rope_head_dim,
            },
            Pair::Vo => Factors {
                left: &layer.attn_output,
                right: &layer.attn_v_b,
                heads,
                kept: 0,
            },
        });
        layers.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::GgmlType::Q8_0;
    use crate::synth::{self, ModelName, Recipe, SynthOptions};

    #[test]
    fn products_of_a_model_have_the_sizes_of_their_formulas() {
        let options = SynthOptions::default();
        let gguf = synth::without_matrices(ModelName::Glm47Flash, Recipe::Q4_0, &options).unwrap();
        let model = Model::load(gguf.into()).unwrap();
        let shapes = |pair| model.factors_of(pair).into_iter().map(|f| f.shape());
        assert!(shapes(Pair::Qk).eq(vec![(Q8_0, 20 * 576, 768); 47]));
        assert!(shapes(Pair::Vo).eq(vec![(Q8_0, 2048, 20 * 512); 47]));
    }
}
