//! Models with multi-head latent attention (DeepSeek-V2 paper, section 2.1) and, mostly, a mixture of experts: GLM-4.7-Flash,
//! DeepSeek-V2-Lite, Youtu-LLM.
//!
//! [`Config`] reads the sizes, [`Model`] finds the weights, [`Reference`] computes on the CPU, [`Weights`] has their places on a device,
//! and `recipes` are the steps there.

mod config;
mod layer;
mod load;
mod pairs;
mod recipes;
mod reference;
#[cfg(test)]
pub(crate) mod testing;
mod weights;

pub use config::Config;
pub use layer::{Layer, Query};
pub use load::Model;
pub use reference::Reference;
pub use weights::{GpuLayer, Weights};

use super::{Family, OutOfMemory, Placed};
use crate::gguf::Gguf;
use crate::gpu::{GpuError, Target};
use crate::model;
use crate::model::pairs::{Factors, Pair};
use std::sync::Arc;

/// The family.
pub const FAMILY: Family = Family {
    // Older converters of ollama wrote "glm4moelite" for GLM-4.7-Flash. The keys and tensors are the same.
    architectures: &["deepseek2", "glm4moelite"],
    models: "GLM-4.7-Flash, DeepSeek-V2-Lite, Youtu-LLM-2B and models of their shape",
    load: |gguf| Ok(Arc::new(Model::load(gguf)?)),
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

    fn cache_bytes_per_token(&self) -> u64 {
        // A position is one row of f16 in each layer.
        (self.layers.len() * self.config.cache_row() * size_of::<half::f16>()) as u64
    }

    fn factors(&self, pair: Pair) -> Vec<Factors<'_>> {
        self.factors_of(pair)
    }

    fn reference(self: Arc<Self>, n_ctx: usize) -> Result<Box<dyn super::Reference>, OutOfMemory> {
        Ok(Box::new(Reference::new(self, n_ctx)?))
    }

    fn place(&self, target: &Target) -> Result<Placed<'_>, GpuError> {
        let (weights, loader, matrices) = Weights::plan(target, self)?;
        Ok(Placed {
            weights: Box::new(weights),
            loader,
            matrices,
        })
    }
}
