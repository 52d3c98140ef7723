//! The steps of a model as plain functions: from its configuration, the places of its weights, the target, the context and, for prompts, the
//! buffers of a chunk to a [`Step`]. No device is needed: [`Recording`](crate::gpu::record::Recording) makes a step real.

mod batch;
mod chunk;
mod context;
mod experts;
mod prompt;
mod query;
mod steps;
#[cfg(test)]
mod tests;
mod token;

pub use chunk::Chunk;
use context::TokenLayer;
pub use context::{Context, Expanded, Forms};

use super::{Config, Weights};
use crate::gpu::buffer::Range;
use crate::gpu::call::Call;
use crate::gpu::{GpuError, Target};
use crate::kernels::MlaDims;
use crate::kernels::attention::{Form, GpuAttention};
use crate::kernels::attention_merge;
use crate::kernels::rope_cache::GpuRopeCache;
use crate::kernels::token::{TokenInput, TokenOutput, unsupported};
use crate::model::Experts;
use crate::model::pairs::Pair;
use crate::quant::activation::Activation;

/// The device, weights and context that every recipe is given.
#[derive(Clone, Copy)]
pub struct Given<'a> {
    /// The device.
    pub target: &'a Target,
    /// Where the model's weights lie, and its sizes.
    pub weights: &'a Weights,
    /// The cache and what all steps of a session share.
    pub context: &'a Context,
}

impl<'a> Given<'a> {
    /// The model's sizes.
    fn config(self) -> &'a Config {
        &self.weights.config
    }

    fn dims(self) -> MlaDims {
        self.config().dims()
    }

    /// Refuses sizes that are no whole units.
    fn check_units(self) -> Result<(), GpuError> {
        for (what, width) in [
            ("query heads", self.dims().head()),
            ("latents", self.dims().kv_lora),
            ("hidden states", self.config().embedding_length),
        ] {
            if !width.is_multiple_of(32) {
                let missing = format!("a kernel for {what} of {width}, no multiple of 32");
                return Err(unsupported(self.target, &missing));
            }
        }
        Ok(())
    }

    /// How the experts of a layer that has some are chosen: the loader refuses such a layer where the file does not say.
    fn experts(self) -> &'a Experts {
        let experts = self.config().experts.as_ref();
        experts.expect("a MoE layer has experts in its config")
    }

    /// The layers of a step of up to `tokens` tokens. None but steps of one token read products of weights.
    fn layers(self, tokens: u32) -> impl Iterator<Item = TokenLayer<'a>> {
        let products = &self.weights.products;
        let product = move |pair: Pair, i| products[pair as usize].get(i).filter(|_| tokens == 1);
        let layers = self.weights.layers.iter().zip(&self.context.cache);
        let layers = layers.enumerate();
        layers.map(move |(i, (layer, cache))| TokenLayer {
            layer,
            cache,
            qk: product(Pair::Qk, i),
            vo: product(Pair::Vo, i),
        })
    }

    /// The attention of one form to the cache of a layer.
    fn attention(self, form: Form, [q_lat, q_pe]: [Range; 2], cache: &Range) -> GpuAttention {
        GpuAttention {
            form,
            q_lat,
            q_pe,
            cache: cache.clone(),
            dims: self.dims(),
            scale: self.config().softmax_scale(),
            partials: self.context.partials.clone(),
            sequences: self.context.sequences.clone(),
        }
    }

    /// The dispatch that joins its slices in `latent`.
    fn merge(self, latent: &Range, output: Activation) -> Call {
        let sequences = self.context.sequences.as_ref();
        attention_merge::call(
            sequences,
            &self.context.partials,
            self.dims(),
            latent,
            output,
        )
    }

    /// The rows of the cache, and nothing else, from `kv_a` of the layer.
    fn cache_rows(self, of: TokenLayer<'a>, kv_a: Range) -> GpuRopeCache {
        let row = of.row(kv_a, self.config().rms_eps);
        GpuRopeCache {
            sequences: self.context.sequences.clone(),
            ..GpuRopeCache::of(row, &self.context.rope_table, self.dims())
        }
    }

    /// The absorbed queries and the others in the output `y` of a product `qk`.
    fn queries_in(self, y: &Range) -> [Range; 2] {
        let dims = self.dims();
        let [absorbed, others] = [dims.kv_lora, dims.rope].map(|n| (dims.heads * n * 4) as u64);
        [(0, absorbed), (absorbed, others)].map(|(offset, size)| Range {
            offset,
            size,
            ..y.clone()
        })
    }
}

/// Values before a norm, as one product leaves them for the next.
#[derive(Clone)]
struct BeforeNorm {
    /// Times the weight of the norm, prepared.
    values: Range,
    /// The sums of the squares of every 16 values.
    squares: Range,
}

impl BeforeNorm {
    /// New buffers of these names for `n` values.
    fn new([values, squares]: [&str; 2], activation: Activation, n: u32) -> Self {
        Self {
            values: Range::prepared(values, activation, n),
            squares: Range::floats(squares, u64::from(n / 16)),
        }
    }

    /// The output of the first product, if the norm has this weight.
    fn output(&self, norm: &Range) -> TokenOutput {
        TokenOutput {
            values: self.values.clone(),
            norm: Some((norm.clone(), self.squares.clone())),
        }
    }

    /// The input of the next product.
    fn input(&self, eps: f32) -> TokenInput {
        TokenInput {
            values: self.values.clone(),
            rms: Some((self.squares.clone(), eps)),
        }
    }
}

/// The output of a product that no norm follows.
fn without_norm(values: &Range) -> TokenOutput {
    TokenOutput {
        values: values.clone(),
        norm: None,
    }
}
