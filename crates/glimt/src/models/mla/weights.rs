//! The places of a model's weights on a device.

use super::{Config, Layer, Model};
use crate::gpu::buffer::Range;
use crate::gpu::memory::{GpuWeight, Loader};
use crate::gpu::{GpuError, Target};
use crate::kernels::router::MAX_EXPERTS;
use crate::kernels::sample::MAX_VOCAB;
use crate::model::Convert;
use crate::models::places::{Number, Places, Span};

/// Widest latent of the attention kernel: 8 values for each of its 256 threads.
const MAX_KV_LORA: usize = 2048;

/// One block on a device.
pub type GpuLayer = Layer<GpuWeight, Range>;

/// The weights of a model as steps bind them: their places, before a device has made them and after.
#[derive(Clone)]
pub struct Weights {
    pub(super) config: Config,
    pub(super) vectors: Range,
    pub(super) token_embd: GpuWeight,
    pub(crate) layers: Vec<GpuLayer>,
    /// Products by [`Pair`](crate::model::pairs::Pair) and layer; none of a pair that is not multiplied.
    pub(crate) products: [Vec<GpuWeight>; 2],
    pub(super) output_norm: Range,
    pub(super) output: GpuWeight,
}

impl Weights {
    /// Where the weights of `model` will lie on a device, what fills them, and the matrices in its order.
    ///
    /// # Errors
    /// [`GpuError::UnsupportedSize`], [`GpuError::BindingTooLarge`].
    pub(crate) fn plan<'a>(
        target: &Target,
        model: &'a Model,
    ) -> Result<(Self, Loader<'a>, Vec<GpuWeight>), GpuError> {
        check_sizes(&model.config)?;
        let mut places = Places::new(target);
        let token_embd = places.weight(&model.token_embd)?;
        let output = match model.tied {
            true => token_embd,
            false => places.weight(&model.output)?,
        };
        let layers = model.layers.iter().map(|layer| layer.convert(&mut places));
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        let output_norm = places.vectors.add(&model.output_norm);
        let (loader, mut made) = places.made();
        let placed_layer = |layer: &Layer<Number, Span>| {
            let Ok(layer) = layer.convert(&mut made);
            layer
        };
        let layers: Vec<_> = layers.iter().map(placed_layer).collect();
        let weights = Self {
            config: model.config.clone(),
            vectors: made.vectors(),
            token_embd: made.weights[token_embd].clone(),
            output: made.weights[output].clone(),
            output_norm: made.vectors_at(output_norm),
            products: Default::default(),
            layers,
        };
        Ok((weights, loader, made.weights))
    }
}

/// Refuses models of sizes that the kernels cannot index: their constructors assert what is checked here.
///
/// # Errors
/// [`GpuError::UnsupportedSize`].
fn check_sizes(config: &Config) -> Result<(), GpuError> {
    let refuse = |key, found, supported| {
        Err(GpuError::UnsupportedSize {
            key,
            found,
            supported,
        })
    };
    let experts = config.experts.as_ref().map_or(0, |e| e.count);
    for (key, found, limit) in [
        ("vocab_size", config.vocab_size, MAX_VOCAB),
        ("attention.kv_lora_rank", config.kv_lora_rank, MAX_KV_LORA),
        ("expert_count", experts, MAX_EXPERTS),
    ] {
        if found > limit {
            return refuse(key, found, format!("{limit} at most"));
        }
    }
    for (key, found) in [
        ("attention.kv_lora_rank", config.kv_lora_rank),
        ("rope.dimension_count", config.qk_rope_head_dim),
    ] {
        if !found.is_multiple_of(8) {
            return refuse(key, found, "multiples of 8".to_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::ModelSource;

    #[test]
    fn sizes_that_the_kernels_cannot_index_are_refused() {
        let gguf = ModelSource::Embedded
            .open()
            .expect("it is part of the program");
        let config = Config::from_gguf(&gguf).expect("it is supported");
        assert!(check_sizes(&config).is_ok());
        let refused = |key: &str, change: &dyn Fn(&mut Config)| {
            let mut config = config.clone();
            change(&mut config);
            let error = check_sizes(&config).expect_err(key).to_string();
            assert!(
                error.contains(key) && error.contains("--device cpu"),
                "{error}"
            );
        };
        refused("vocab_size", &|c| c.common.vocab_size = MAX_VOCAB + 1);
        refused("kv_lora_rank", &|c| c.kv_lora_rank = MAX_KV_LORA + 8);
        refused("kv_lora_rank", &|c| c.kv_lora_rank = 500);
        refused("rope.dimension_count", &|c| c.qk_rope_head_dim = 20);
        refused("expert_count", &|c| {
            c.common.experts.as_mut().expect("it has experts").count = MAX_EXPERTS + 1;
        });
    }
}
