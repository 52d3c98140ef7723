//! The places of a model's weights on a device.

use super::places::{Made, Number, Places, Span};
use super::{AttentionWeights, Factors, Sessions};
use crate::gpu::buffer::Range;
use crate::gpu::memory::{GpuWeight, Loader};
use crate::gpu::{Gpu, GpuError, Target};
use crate::kernels::compose::Pair;
use crate::kernels::gemm::Form;
use crate::kernels::router::MAX_EXPERTS;
use crate::kernels::sample::MAX_VOCAB;
use crate::model::{Block, Config, Convert, Transformer};
use std::convert::Infallible;
use std::sync::Arc;

/// What all families have of a block on a device.
pub type GpuBlock = Block<(), GpuWeight, Range>;

/// The weights of a model as steps bind them: their places, before a device has made them and after.
#[derive(Clone)]
pub struct Weights {
    pub(crate) config: Config,
    /// All norms and biases.
    pub vectors: Range,
    pub(super) token_embd: GpuWeight,
    /// The blocks without their attention.
    pub layers: Vec<GpuBlock>,
    /// The attention of all blocks.
    pub(crate) attention: Arc<dyn AttentionWeights>,
    /// Precomposed weights by [`Pair`] and layer; none of a pair that is not composed.
    pub(crate) composed: [Vec<GpuWeight>; 2],
    pub(super) output_norm: Range,
    pub(super) output: GpuWeight,
}

/// The places of a model's weights on a device, and what fills them.
pub struct Placed<'a> {
    /// The weights as steps bind them.
    pub weights: Weights,
    /// The loader that fills the matrices.
    pub loader: Loader<'a>,
    /// The matrices, in the loader's order.
    pub matrices: Vec<GpuWeight>,
}

impl<'a> Placed<'a> {
    /// Where the weights of `model` will lie on a device. A family says how its tensors get `places` and are `made` of these, and what its
    /// `attention` is.
    ///
    /// # Errors
    /// [`GpuError::UnsupportedSize`], [`GpuError::BindingTooLarge`].
    pub fn new<A, P, G>(
        target: &Target,
        config: &Config,
        model: &'a Transformer<A>,
        places: impl Fn(&'a A, &mut Places<'a>) -> Result<P, GpuError>,
        made: impl Fn(&P, &mut Made) -> Result<G, Infallible>,
        attention: impl FnOnce(Vec<G>) -> Arc<dyn AttentionWeights>,
    ) -> Result<Self, GpuError> {
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
        let mut of_layers = vec![];
        let layers = layers.iter().map(|layer| {
            let Ok(layer) = layer.convert(&mut all, |own, all| {
                of_layers.push(made(own, all)?);
                Ok(())
            });
            layer
        });
        let layers = layers.collect();
        let weights = Weights {
            config: config.clone(),
            vectors: all.vectors(),
            token_embd: all.weights[token_embd].clone(),
            layers,
            attention: attention(of_layers),
            composed: Default::default(),
            output_norm: all.vectors_at(output_norm),
            output: all.weights[output].clone(),
        };
        Ok(Self {
            weights,
            loader,
            matrices: all.weights,
        })
    }
}

impl Weights {
    /// The two weights that `pair` multiplies in each block, and their composition; nothing where blocks have no such weights.
    pub fn factors(&self, pair: Pair) -> Vec<Factors<'_>> {
        self.attention.factors(&self.layers, pair)
    }

    /// The products of `pair`, of each block or of none.
    pub fn composed(&mut self, pair: Pair) -> &mut Vec<GpuWeight> {
        &mut self.composed[pair as usize]
    }

    /// Sessions whose kernels trials on the device choose.
    ///
    /// # Errors
    /// The error that the device reports in a trial.
    pub async fn tried(&self, gpu: &Gpu) -> Result<Sessions, GpuError> {
        let before = gpu.allocated();
        let products = Form::for_prompts(gpu).await?;
        let attention = self.attention.tried(gpu).await?;
        // The buffers of the trials are gone.
        gpu.count_dropped(before);
        Ok(self.with(products, attention))
    }

    /// Sessions as they are if all that a device has is right and fast.
    pub fn untried(&self, target: &Target) -> Sessions {
        self.with(Form::best(target), self.attention.untried(target))
    }

    fn with(&self, products: Form, attention: Arc<dyn AttentionWeights>) -> Sessions {
        let weights = Self {
            attention,
            ..self.clone()
        };
        Sessions { weights, products }
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
