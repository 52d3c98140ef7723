//! Models with multi-head latent attention (DeepSeek-V2 paper, section 2.1) and, mostly, a mixture of experts: GLM-4.7-Flash,
//! DeepSeek-V2-Lite, Youtu-LLM.
//!
//! [`Config`] reads the sizes, [`Model`] finds the weights, [`Reference`] computes on the CPU, and `recipes` is the attention in the steps of a
//! device.

mod config;
mod layer;
mod load;
mod pairs;
mod recipes;
mod reference;
#[cfg(test)]
pub(crate) mod testing;

pub use config::Config;
pub use layer::{Attention, Layer, Query};
pub use load::Model;
pub use reference::Reference;

use super::{Family, OutOfMemory};
use crate::gguf::Gguf;
use crate::gpu::{GpuError, Target};
use crate::kernels::cache_type::BLOCK;
use crate::kernels::products::Products;
use crate::kernels::{CacheType, Rows};
use crate::model::pairs::{Factors, Pair};
use crate::model::{self, ModelError};
use crate::recipes::{Placed, Residence};
use std::sync::Arc;

/// The family.
pub const FAMILY: Family = Family {
    // Older converters of ollama wrote "glm4moelite" for GLM-4.7-Flash. The keys and tensors are the same.
    architectures: &["deepseek2", "glm4moelite"],
    models: "GLM-4.7-Flash, DeepSeek-V2-Lite, Youtu-LLM-2B and models of their shape",
    load: |gguf, nextn| Ok(Arc::new(Model::with_nextn(gguf, nextn)?)),
};

impl super::Model for Model {
    fn config(&self) -> &model::Config {
        &self.config
    }

    fn sizes(&self) -> Vec<(&'static str, Option<usize>)> {
        let c = &self.config;
        vec![
            ("q_lora_rank", c.q_lora_rank),
            ("kv_lora_rank", Some(c.kv_lora_rank)),
            ("qk_nope_head_dim", Some(c.qk_nope_head_dim)),
            ("qk_rope_head_dim", Some(c.qk_rope_head_dim)),
            ("v_head_dim", Some(c.v_head_dim)),
        ]
    }

    fn attention(&self) -> String {
        let c = &self.config;
        let rank = |rank: usize| rank.to_string();
        format!(
            "q_lora {}, kv_lora {}; per head nope {}, rope {}, v {}",
            c.q_lora_rank.map_or_else(|| "none".to_owned(), rank),
            c.kv_lora_rank,
            c.qk_nope_head_dim,
            c.qk_rope_head_dim,
            c.v_head_dim
        )
    }

    fn gguf(&self) -> &Arc<Gguf> {
        &self.gguf
    }

    fn has_data(&self) -> bool {
        self.token_embd.has_data()
    }

    fn nextn(&self) -> bool {
        self.weights.nextn.is_some()
    }

    fn nextn_weights(&self) -> Vec<&model::Weight> {
        let mut matrices = model::Matrices::default();
        if let Some(layer) = &self.weights.nextn {
            let Ok(_) = layer.convert(&mut matrices, |attention, by| attention.convert(by));
        }
        matrices.0
    }

    fn cache_row(&self) -> Rows {
        self.config.dims().rows()
    }

    fn set_cache_type(&mut self, cache: CacheType) -> Result<(), ModelError> {
        let dims = self.config.dims().with_cache(cache);
        if !dims.has_whole_blocks() {
            return Err(ModelError::CacheType {
                cache: cache.name(),
                why: format!(
                    "its latents have {} values, which are no whole blocks of {BLOCK}",
                    dims.kv_lora
                ),
            });
        }
        self.config.cache = cache;
        Ok(())
    }

    fn factors(&self, pair: Pair) -> Vec<Factors<'_>> {
        self.factors_of(pair)
    }

    fn reference(
        self: Arc<Self>,
        products: Products,
        n_ctx: usize,
        rows: usize,
    ) -> Result<Box<dyn super::Reference>, OutOfMemory> {
        Ok(Box::new(Reference::new(self, products, n_ctx, rows)?))
    }

    fn place(&self, target: &Target, residence: Residence) -> Result<Placed<'_>, GpuError> {
        check_sizes(&self.config)?;
        Placed::new(
            target,
            residence,
            &self.config,
            &self.weights,
            |attention, places| attention.convert(places),
            |attention, made| attention.convert(made),
            |layers| Arc::new(recipes::Weights::new(&self.config, layers)),
        )
    }
}

/// Widest latent of the attention kernel: 8 values for each of its 256 threads.
const MAX_KV_LORA: usize = 2048;

/// Refuses models of sizes that the kernels of the attention cannot index.
///
/// # Errors
/// [`GpuError::UnsupportedSize`].
fn check_sizes(config: &Config) -> Result<(), GpuError> {
    let latent = ("attention.kv_lora_rank", config.kv_lora_rank);
    let rope = ("rope.dimension_count", config.qk_rope_head_dim);
    crate::recipes::check_sizes([(latent.0, latent.1, MAX_KV_LORA)])?;
    for (key, found) in [latent, rope] {
        if !found.is_multiple_of(8) {
            return Err(GpuError::UnsupportedSize {
                key,
                found,
                supported: "multiples of 8".to_owned(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::ModelSource;
    use crate::kernels::router::MAX_EXPERTS;
    use crate::kernels::sample::MAX_VOCAB;
    use crate::models;

    #[test]
    fn sizes_that_the_kernels_cannot_index_are_refused() {
        let gguf = ModelSource::Embedded
            .open()
            .expect("it is part of the program");
        let gguf = Arc::new(gguf);
        let refused = |key: &str, change: &dyn Fn(&mut Config)| {
            let mut model = Model::load(Arc::clone(&gguf)).expect("it is supported");
            change(&mut model.config);
            let placed = models::Model::place(&model, &Target::h200(), Residence::Whole);
            let error = placed.err().expect(key).to_string();
            assert!(
                error.contains(key) && error.contains("--device cpu"),
                "{error}"
            );
        };
        refused("vocab_size", &|c| c.common.vocab_size = MAX_VOCAB + 1);
        refused("expert_count", &|c| {
            c.common.experts.as_mut().expect("it has experts").count = MAX_EXPERTS + 1;
        });
        refused("kv_lora_rank", &|c| c.kv_lora_rank = MAX_KV_LORA + 8);
        refused("kv_lora_rank", &|c| c.kv_lora_rank = 500);
        refused("rope.dimension_count", &|c| c.qk_rope_head_dim = 20);
    }
}
