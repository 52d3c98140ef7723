//! Models with grouped-query attention (Ainslie et al. 2023, arXiv 2305.13245), with or without a mixture of experts: Qwen3-30B-A3B, Qwen3,
//! Qwen2.5, Llama 3, SmolLM2.
//!
//! [`Config`] reads the sizes, [`Model`] finds the weights, [`Reference`] computes on the CPU, and `recipes` is the attention in the steps of a
//! device.

mod config;
mod layer;
mod load;
mod recipes;
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
use crate::kernels::cache_type::BLOCK;
use crate::kernels::grouped_attention::WIDEST;
use crate::kernels::products::Products;
use crate::kernels::{CacheType, GroupedDims, Pairing, Rows};
use crate::model::pairs::{Factors, Pair};
use crate::model::{self, ModelError};
use crate::recipes::{Placed, Residence};
use std::sync::Arc;

/// The family.
pub const FAMILY: Family = Family {
    architectures: &["qwen3moe", "qwen3", "qwen2", "llama"],
    models: "Qwen3-30B-A3B, Qwen3, Qwen2.5, Llama 3, SmolLM2 and models of their shape",
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

    fn cache_row(&self) -> Rows {
        self.config.dims.rows()
    }

    fn set_cache_type(&mut self, cache: CacheType) -> Result<(), ModelError> {
        let dims = self.config.dims.with_cache(cache);
        if !dims.has_whole_blocks() {
            return Err(ModelError::CacheType {
                cache: cache.name(),
                why: format!(
                    "its key heads have {} values and its value heads {}, which are no multiples of {}",
                    dims.key,
                    dims.value,
                    2 * BLOCK
                ),
            });
        }
        self.config.dims = dims;
        Ok(())
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

    fn place(&self, target: &Target, residence: Residence) -> Result<Placed<'_>, GpuError> {
        check_sizes(self.config.dims)?;
        Placed::new(
            target,
            residence,
            &self.config,
            &self.weights,
            |attention, places| attention.convert(places),
            |attention, made| attention.convert(made),
            |layers| Arc::new(recipes::Weights::new(self, layers)),
        )
    }
}

/// Refuses models of sizes that the kernels of the attention cannot index.
///
/// # Errors
/// [`GpuError::UnsupportedSize`].
fn check_sizes(dims: GroupedDims) -> Result<(), GpuError> {
    let halves = match dims.pairing {
        Pairing::Adjacent => 2,
        Pairing::Halves => 4,
    };
    let (key, value) = ("attention.key_length", "attention.value_length");
    crate::recipes::check_sizes([(key, dims.key, WIDEST), (value, dims.value, WIDEST)])?;
    for (key, found, of) in [
        (key, dims.key, 8),
        (value, dims.value, 8),
        ("rope.dimension_count", dims.rope, halves),
    ] {
        if !found.is_multiple_of(of) {
            return Err(GpuError::UnsupportedSize {
                key,
                found,
                supported: format!("multiples of {of}"),
            });
        }
    }
    let (heads, value) = (dims.heads, dims.value);
    match (heads * value).is_multiple_of(32) {
        true => Ok(()),
        false => Err(GpuError::UnsupportedSize {
            key: "attention.head_count",
            found: heads,
            supported: format!("heads of {value} values that make a multiple of 32 together"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::router::MAX_EXPERTS;
    use crate::models::Model as _;

    #[test]
    fn a_cache_of_8_bits_needs_heads_of_multiples_of_64_values() {
        for (head, fits) in [(64, true), (192, true), (32, false), (96, false)] {
            let sizes = testing::Sizes {
                heads: 2,
                kv_heads: 1,
                head,
                fused: false,
            };
            let draft = testing::Draft::sized("qwen3", sizes);
            let mut model = draft.load().expect("it is whole");
            let set = model.set_cache_type(CacheType::Q8_0);
            match set.map_err(|e| e.to_string()) {
                Ok(()) => assert!(fits && model.cache_type() == CacheType::Q8_0, "{head}"),
                Err(error) => {
                    let all = ["q8_0", &head.to_string(), "multiples of 64"];
                    assert!(!fits && all.iter().all(|of| error.contains(of)), "{error}");
                    assert_eq!(model.cache_type(), CacheType::F16);
                }
            }
        }
    }

    #[test]
    fn sizes_that_the_kernels_cannot_index_are_refused() {
        let refused = |key: &str, change: &dyn Fn(&mut Config)| {
            let mut model = testing::Draft::of("qwen3moe").load().expect("it is whole");
            let placed = model.place(&Target::h200(), Residence::Whole).map(|_| ());
            placed.expect("its own sizes are supported");
            change(&mut model.config);
            let placed = model.place(&Target::h200(), Residence::Whole);
            let error = placed.err().expect(key).to_string();
            for expected in [key, "--device cpu"] {
                assert!(error.contains(expected), "{error}");
            }
        };
        refused("key_length", &|c| c.dims.key = 36);
        refused("key_length", &|c| c.dims.key = WIDEST + 8);
        refused("value_length", &|c| c.dims.value = 20);
        refused("rope.dimension_count", &|c| c.dims.rope = 30);
        refused("head_count", &|c| (c.dims.heads, c.dims.value) = (3, 24));
        refused("expert_count", &|c| {
            c.common.experts.as_mut().expect("it has experts").count = MAX_EXPERTS + 1;
        });
    }
}
