//! The CPU twins of the kernels composed into the whole forward pass, in f32.

use std::sync::Arc;

use half::f16;

use super::{Layer, Model};
use crate::kernels::grouped_attention::attend;
use crate::kernels::grouped_rows::{HeadVectors, grouped_rows};
use crate::kernels::products::{MatvecOptions, Products, Projection};
use crate::model::rope_table_by;
use crate::models::{self, OnBlock, OutOfMemory, Part, body};

/// A model on the CPU: the reference that every other forward pass is held against.
///
/// With exact products all arithmetic is f32 on exactly dequantised weights; only the cache is f16. Results do not depend on how tokens are split
/// into calls or work among threads, bit for bit, whatever the products.
pub struct Reference {
    model: Arc<Model>,
    products: Products,
    /// Cosine and sine, (n_ctx, rope / 2).
    rope_table: Vec<[f32; 2]>,
    /// One cache of rows of keys and values per layer.
    cache: Vec<Vec<f16>>,
}

impl Reference {
    /// The reference for contexts of `n_ctx` tokens, with an empty cache of `rows` rows.
    ///
    /// # Errors
    /// [`OutOfMemory`] where the cache cannot be allocated.
    pub fn new(
        model: Arc<Model>,
        products: Products,
        n_ctx: usize,
        rows: usize,
    ) -> Result<Self, OutOfMemory> {
        let dims = model.config.dims;
        let factors = model.frequency_factors.as_deref();
        Ok(Self {
            products,
            rope_table: rope_table_by(&model.config.rope, dims.rope, factors, n_ctx),
            cache: body::caches(model.layers.len(), rows, dims.cache_row())?,
            model,
        })
    }

    /// x + attn_output(attention), (T, d).
    fn attention_block(
        &mut self,
        il: usize,
        layer: &Layer,
        x: &[f32],
        parts: &[Part<'_>],
    ) -> Vec<f32> {
        let n_tokens = parts.iter().map(|part| part.tokens).sum();
        let config = &self.model.config;
        let (dims, eps) = (config.dims, config.rms_eps);
        let attention = &layer.attention;
        let all = [&attention.attn_q, &attention.attn_k, &attention.attn_v];
        let norm = Some((&layer.attn_norm[..], eps));
        let projections = all.map(|projection| Projection::Plain(&projection.weight));
        let [mut q, k, v] = self.products.project(projections, x, n_tokens, norm);
        let [q_bias, k_bias, v_bias] = all.map(|projection| projection.bias.as_deref());
        let vectors = HeadVectors {
            q_bias,
            k_bias,
            v_bias,
            q_norm: attention.attn_q_norm.as_deref(),
            k_norm: attention.attn_k_norm.as_deref(),
            eps,
        };
        let [query, key, value] = [
            dims.heads * dims.key,
            dims.kv_heads * dims.key,
            dims.kv_heads * dims.value,
        ];
        let output = &layer.attn_output;
        let mut values = vec![0.0; n_tokens * output.cols];
        let mut first = 0;
        for part in parts {
            let Part { tokens, pos, .. } = *part;
            let own = |values: usize| first * values..(first + tokens) * values;
            let q = &mut q[own(query)];
            part.in_order(&mut self.cache[il], dims.cache_row(), |cache| {
                let (k, v) = (&k[own(key)], &v[own(value)]);
                grouped_rows(q, k, v, vectors, &self.rope_table, pos, dims, cache);
                attend(
                    self.products,
                    q,
                    cache,
                    pos,
                    tokens,
                    dims,
                    config.softmax_scale(),
                    &mut values[own(output.cols)],
                );
            });
            first += tokens;
        }
        let options = MatvecOptions::contiguous(output.cols).with_residual(x);
        body::product(self.products, output, &values, n_tokens, options)
    }
}

/// Panics: models of the family have no prediction layer, and say so.
fn no_prediction_layer() -> ! {
    panic!("drafts are made where the layer is loaded")
}

impl models::Reference for Reference {
    fn forward(
        &mut self,
        tokens: &[u32],
        parts: &[Part<'_>],
        on_block: &mut OnBlock<'_>,
    ) -> Option<Vec<f32>> {
        let model = Arc::clone(&self.model);
        let (products, config, weights) = (self.products, &model.config, &model.weights);
        body::forward(
            products,
            config,
            weights,
            tokens,
            on_block,
            |il, layer, x| self.attention_block(il, layer, x, parts),
        )
    }

    fn head(&self, x: &[f32]) -> Vec<f32> {
        let model = &self.model;
        body::head(self.products, &model.config, &model.weights, x)
    }

    fn normed(&self, x: &[f32]) -> Vec<f32> {
        body::normed(&self.model.config, &self.model.weights, x)
    }

    fn predict(&mut self, _: &[u32], _: &[f32], _: &[Part<'_>]) -> Vec<f32> {
        no_prediction_layer()
    }

    fn predict_rows(&mut self, _: &[u32], _: &[f32], _: &[Part<'_>]) {
        no_prediction_layer()
    }

    fn predicted_head(&self, _: &[f32]) -> Vec<f32> {
        no_prediction_layer()
    }

    fn cache(&mut self) -> &mut [Vec<f16>] {
        &mut self.cache
    }

    fn cached(&self) -> &[Vec<f16>] {
        &self.cache
    }
}

#[cfg(test)]
mod tests;
