//! Models with grouped-query attention (Ainslie et al. 2023, arXiv 2305.13245), with or without a mixture of experts: Qwen3-30B-A3B, Qwen3,
//! Qwen2.5, Llama 3, SmolLM2.
//!
//! [`Config`] reads the sizes, [`Model`] finds the weights, and [`Reference`] computes on the CPU. There are no steps for devices yet.

mod config;
mod layer;
mod load;
mod reference;
#[cfg(test)]
mod testing;

pub use config::Config;
pub use layer::{Attention, Layer, Projection};
pub use load::Model;
pub use reference::Reference;

use super::{Family, OutOfMemory};
use crate::gguf::Gguf;
use crate::gpu::{GpuError, Target};
use crate::kernels::Pairing;
use crate::kernels::products::Products;
use crate::model;
use crate::model::pairs::{Factors, Pair};
use crate::recipes::{Placed, Residence};
use std::sync::Arc;

/// The family.
pub const FAMILY: Family = Family {
    architectures: &["qwen3moe", "qwen3", "qwen2", "llama"],
    models: "Qwen3-30B-A3B, Qwen3, Qwen2.5, Llama 3, SmolLM2 and models of their shape, on the CPU alone so far",
    load: |gguf, nextn| Ok(Arc::new(Model::with_nextn(gguf, nextn)?)),
};

impl super::Model for Model {
    fn config(&self) -> &model::Config {
        &self.config
    }

    fn sizes(&self) -> Vec<(&'static str, Option<usize>)> {
        let dims = self.config.dims;
        vec![
            ("head_count_kv", Some(dims.kv_heads)),
            ("key_length", Some(dims.key)),
            ("value_length", Some(dims.value)),
            ("rope_dimension_count", Some(dims.rope)),
        ]
    }

    fn attention(&self) -> String {
        let dims = self.config.dims;
        let pairing = match dims.pairing {
            Pairing::Adjacent => "adjacent values",
            Pairing::Halves => "values of both halves",
        };
        format!(
            "{} key heads for {} query heads; per head key {}, value {}, of which {} are rotated as pairs of {pairing}",
            dims.kv_heads, dims.heads, dims.key, dims.value, dims.rope
        )
    }

    fn gguf(&self) -> &Arc<Gguf> {
        &self.gguf
    }

    fn has_data(&self) -> bool {
        self.token_embd.has_data()
    }

    fn nextn(&self) -> bool {
        false
    }

    fn nextn_bytes(&self) -> u64 {
        0
    }

    fn cache_bytes_per_token(&self) -> u64 {
        // A position is one row of f16 in each layer.
        (self.layers.len() * self.config.dims.cache_row() * size_of::<half::f16>()) as u64
    }

    fn factors(&self, _: Pair) -> Vec<Factors<'_>> {
        vec![]
    }

    fn reference(
        self: Arc<Self>,
        products: Products,
        n_ctx: usize,
        rows: usize,
    ) -> Result<Box<dyn super::Reference>, OutOfMemory> {
        Ok(Box::new(Reference::new(self, products, n_ctx, rows)?))
    }

    fn place(&self, _: &Target, _: Residence) -> Result<Placed<'_>, GpuError> {
        Err(GpuError::UnsupportedArchitecture {
            architecture: self.config.architecture.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::Model as _;

    #[test]
    fn devices_are_refused_by_name() {
        let model = testing::Draft::of("qwen3moe").load().expect("it is whole");
        let placed = model.place(&Target::h200(), Residence::Whole);
        let error = placed.err().expect("no kernel computes it").to_string();
        for expected in ["\"qwen3moe\"", "--device cpu"] {
            assert!(error.contains(expected), "{error}");
        }
    }
}
