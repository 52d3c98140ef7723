//! The places of a model's weights on a device.

use crate::gpu::buffer::{Buffer, Range, Role};
use crate::gpu::memory::{GpuWeight, Loader};
use crate::gpu::{GpuError, Target};
use crate::kernels::router::MAX_EXPERTS;
use crate::kernels::sample::MAX_VOCAB;
use crate::model::{Config, Convert, Layer, Model, Weight};
use std::convert::Infallible;

/// The buffer of all norms and biases.
pub(super) const VECTORS: &str = "norms and biases";
/// Widest latent of the attention kernel: 8 values for each of its 256 threads.
const MAX_KV_LORA: usize = 2048;

/// One block on a device.
pub(super) type GpuLayer = Layer<GpuWeight, Range>;

/// The weights of a model as steps bind them: their places, before a device has made them and after.
#[derive(Clone)]
pub struct Weights {
    pub(super) token_embd: GpuWeight,
    pub(super) layers: Vec<GpuLayer>,
    /// Precomposed weights by [`Pair`](crate::kernels::compose::Pair) and layer; none of a pair that is not composed.
    pub(super) composed: [Vec<GpuWeight>; 2],
    pub(super) output_norm: Range,
    pub(super) output: GpuWeight,
}

impl Weights {
    /// Where the weights of `model` will lie on a device, what fills them, and the matrices in its order.
    ///
    /// # Errors
    /// [`GpuError::UnsupportedSize`], [`GpuError::BindingTooLarge`].
    pub(super) fn plan<'a>(
        target: &Target,
        model: &'a Model,
    ) -> Result<(Self, Loader<'a>, Vec<GpuWeight>), GpuError> {
        check_sizes(&model.config)?;
        let mut places = Places {
            loader: Loader::new(target),
            vectors: Vectors::new(target),
        };
        let token_embd = places.weight(&model.token_embd)?;
        let output = match model.tied {
            true => token_embd,
            false => places.weight(&model.output)?,
        };
        let layers = model.layers.iter().map(|layer| layer.convert(&mut places));
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        let output_norm = places.vectors.add(&model.output_norm);
        let Places { loader, vectors } = places;
        let mut placed = Placed {
            weights: loader.places(),
            vectors: Buffer::with(VECTORS, &vectors.values),
        };
        let placed_layer = |layer: &Layer<Number, Span>| {
            let Ok(layer) = layer.convert(&mut placed);
            layer
        };
        let layers: Vec<_> = layers.iter().map(placed_layer).collect();
        let weights = Self {
            token_embd: placed.weights[token_embd].clone(),
            output: placed.weights[output].clone(),
            output_norm: placed.vectors_at(output_norm),
            composed: Default::default(),
            layers,
        };
        Ok((weights, loader, placed.weights))
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

/// What gives tensors their places.
struct Places<'a> {
    loader: Loader<'a>,
    vectors: Vectors,
}

/// The number of a matrix in its loader.
type Number = usize;

impl<'a> Convert<'a, Weight, Vec<f32>> for Places<'a> {
    type Weight = Number;
    type Vector = Span;
    type Error = GpuError;

    fn weight(&mut self, weight: &'a Weight) -> Result<Number, GpuError> {
        self.loader.add(weight)
    }

    fn pair(&mut self, pair: [&'a Weight; 2]) -> Result<[Number; 2], GpuError> {
        let numbers = self.loader.add_alike(&pair)?;
        Ok([numbers[0], numbers[1]])
    }

    fn vector(&mut self, vector: &'a Vec<f32>) -> Result<Span, GpuError> {
        Ok(self.vectors.add(vector))
    }
}

/// The places.
struct Placed {
    weights: Vec<GpuWeight>,
    vectors: Buffer,
}

impl Placed {
    fn vectors_at(&self, (offset, size): Span) -> Range {
        Range {
            buffer: self.vectors.clone(),
            offset,
            size,
            role: Role::Floats,
        }
    }
}

impl<'a> Convert<'a, Number, Span> for Placed {
    type Weight = GpuWeight;
    type Vector = Range;
    type Error = Infallible;

    fn weight(&mut self, number: &'a Number) -> Result<GpuWeight, Infallible> {
        Ok(self.weights[*number].clone())
    }

    fn vector(&mut self, span: &'a Span) -> Result<Range, Infallible> {
        Ok(self.vectors_at(*span))
    }
}

/// Byte offset and length in the buffer of all vectors.
type Span = (u64, u64);

/// The f32 vectors of a model (norms, selection biases) in one buffer, each at a bindable offset.
struct Vectors {
    alignment: usize,
    values: Vec<f32>,
}

impl Vectors {
    fn new(target: &Target) -> Self {
        Self {
            alignment: target.offset_alignment as usize / 4,
            values: vec![],
        }
    }

    fn add(&mut self, values: &[f32]) -> Span {
        let start = self.values.len().next_multiple_of(self.alignment);
        self.values.resize(start, 0.0);
        self.values.extend_from_slice(values);
        // Kernels bind vectors as vec4.
        let end = self.values.len().next_multiple_of(4);
        self.values.resize(end, 0.0);
        (4 * start as u64, 4 * (end - start) as u64)
    }
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
        refused("vocab_size", &|c| c.vocab_size = MAX_VOCAB + 1);
        refused("kv_lora_rank", &|c| c.kv_lora_rank = MAX_KV_LORA + 8);
        refused("kv_lora_rank", &|c| c.kv_lora_rank = 500);
        refused("rope.dimension_count", &|c| c.qk_rope_head_dim = 20);
        refused("expert_count", &|c| {
            c.experts.as_mut().expect("it has experts").count = MAX_EXPERTS + 1;
        });
    }
}
