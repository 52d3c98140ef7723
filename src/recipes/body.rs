//! The weights that models of all families have, on a device.

use super::places::{Made, Number, Places, Span};
use crate::gpu::buffer::Range;
use crate::gpu::memory::{GpuWeight, Loader};
use crate::gpu::{GpuError, Target};
use crate::kernels::router::MAX_EXPERTS;
use crate::kernels::sample::MAX_VOCAB;
use crate::model::{Block, Config, Convert, Transformer};
use std::convert::Infallible;

/// A block without its attention.
pub type GpuBlock = Block<(), GpuWeight, Range>;

/// The weights of a model but for those of its attention, as steps bind them: their places, before a device has made them and after.
#[derive(Clone)]
pub struct Body {
    /// The model's sizes.
    pub config: Config,
    /// All norms and biases.
    pub vectors: Range,
    pub(super) token_embd: GpuWeight,
    /// The blocks without their attention.
    pub layers: Vec<GpuBlock>,
    /// Precomposed weights by [`Pair`](crate::kernels::compose::Pair) and layer; none of a pair that is not composed.
    pub(super) composed: [Vec<GpuWeight>; 2],
    pub(super) output_norm: Range,
    pub(super) output: GpuWeight,
}

impl Body {
    /// Where the weights of `model` will lie on a device, what fills them, and the matrices in its order. The attention of each layer gets
    /// `places` and is then `made` of these.
    ///
    /// # Errors
    /// [`GpuError::UnsupportedSize`], [`GpuError::BindingTooLarge`].
    pub(super) fn place<'a, A, P>(
        target: &Target,
        config: &Config,
        model: &'a Transformer<A>,
        places: impl Fn(&'a A, &mut Places<'a>) -> Result<P, GpuError>,
        mut made: impl FnMut(&P, &mut Made),
    ) -> Result<(Self, Loader<'a>, Vec<GpuWeight>), GpuError> {
        check_sizes(config)?;
        let mut all = Places::new(target);
        let token_embd = all.weight(&model.token_embd)?;
        let output = match model.tied {
            true => token_embd,
            false => all.weight(&model.output)?,
        };
        let layers = model.layers.iter();
        let layers = layers.map(|layer| layer.convert(&mut all, &places));
        let layers: Vec<Block<P, Number, Span>> = layers.collect::<Result<_, _>>()?;
        let output_norm = all.vectors.add(&model.output_norm);
        let (loader, mut all) = all.made();
        let layers = layers.iter().map(|layer| {
            let made = |own: &P, all: &mut Made| Ok::<_, Infallible>(made(own, all));
            let Ok(layer) = layer.convert(&mut all, made);
            layer
        });
        let body = Self {
            config: config.clone(),
            layers: layers.collect(),
            vectors: all.vectors(),
            token_embd: all.weights[token_embd].clone(),
            composed: Default::default(),
            output_norm: all.vectors_at(output_norm),
            output: all.weights[output].clone(),
        };
        Ok((body, loader, all.weights))
    }
}

/// Refuses models of sizes that the kernels cannot index: their constructors assert what is checked here.
///
/// # Errors
/// [`GpuError::UnsupportedSize`].
fn check_sizes(config: &Config) -> Result<(), GpuError> {
    let experts = config.experts.as_ref().map_or(0, |e| e.count);
    for (key, found, limit) in [
        ("vocab_size", config.vocab_size, MAX_VOCAB),
        ("expert_count", experts, MAX_EXPERTS),
    ] {
        if found > limit {
            return Err(GpuError::UnsupportedSize {
                key,
                found,
                supported: format!("{limit} at most"),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::ModelSource;
    use crate::model::Gating;
    use crate::model::keys::Keys;

    #[test]
    fn sizes_that_the_kernels_cannot_index_are_refused() {
        let gguf = ModelSource::Embedded
            .open()
            .expect("it is part of the program");
        let keys = Keys::of(&gguf).expect("it names its architecture");
        let config = Config::read(&gguf, &keys, |_, _| Gating::Softmax).expect("it is supported");
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
        refused("expert_count", &|c| {
            c.experts.as_mut().expect("it has experts").count = MAX_EXPERTS + 1;
        });
    }
}
