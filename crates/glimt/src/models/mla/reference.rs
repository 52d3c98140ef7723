//! The CPU twins of the kernels composed into the whole forward pass, in f32.

use std::sync::Arc;

use half::f16;

use super::{Attention, Layer, Model, Query};
use crate::kernels::MlaDims;
use crate::kernels::attention::attend;
use crate::kernels::embed::embed;
use crate::kernels::linear::rms_norm_rows;
use crate::kernels::products::{MatvecOptions, Products, Projection};
use crate::kernels::rope_cache::rope_cache;
use crate::kernels::router::router;
use crate::model::{Nextn, Weight, rope_table};
use crate::models::{self, OnBlock, OutOfMemory, Part, body};

/// A model on the CPU: the reference that every other forward pass is held against.
///
/// With exact products all arithmetic is f32 on exactly dequantised weights; only the cache is f16 or has codes, as on the GPU. Results do not depend
/// on how tokens are split into calls or work among threads, bit for bit, whatever the products.
pub struct Reference {
    model: Arc<Model>,
    products: Products,
    dims: MlaDims,
    /// Cosine and sine, (n_ctx, rope / 2).
    rope_table: Vec<[f32; 2]>,
    /// One cache per layer, that of the prediction layer behind the others: (rows) rows of words of 16 bits, as `dims` say.
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
        let dims = model.config.dims();
        let cache = body::caches(model.cached_layers(), rows, dims.cache_row())?;
        let rope_table = rope_table(&model.config.rope, dims.rope, n_ctx);
        Ok(Self {
            model,
            products,
            dims,
            rope_table,
            cache,
        })
    }

    /// One product into a fresh buffer.
    fn product(
        &self,
        w: &Weight,
        x: &[f32],
        n_tokens: usize,
        options: MatvecOptions<'_>,
    ) -> Vec<f32> {
        body::product(self.products, w, x, n_tokens, options)
    }

    /// x + feed-forward(norm(x)), (T, d).
    fn ffn_block(&self, layer: &Layer, x: &[f32]) -> Vec<f32> {
        let config = &self.model.config;
        body::feed_forward(
            self.products,
            config,
            &layer.ffn_norm,
            &layer.ffn,
            x,
            router,
        )
    }

    /// What the block of the prediction layer starts from, (T, d): eh_proj of the embeddings and the hidden states, both normed.
    fn paired(&self, layer: &Nextn<Attention>, tokens: &[u32], hidden: &[f32]) -> Vec<f32> {
        let (width, eps) = (
            self.model.config.embedding_length,
            self.model.config.rms_eps,
        );
        let table = layer.embed_tokens.as_ref();
        let mut x = vec![0.0; tokens.len() * width];
        embed(table.unwrap_or(&self.model.token_embd), tokens, &mut x);
        let x = rms_norm_rows(&x, &layer.enorm, eps);
        let hidden = rms_norm_rows(hidden, &layer.hnorm, eps);
        let both = x.chunks_exact(width).zip(hidden.chunks_exact(width));
        let both: Vec<f32> = both.flat_map(|(x, h)| [x, h]).flatten().copied().collect();
        let options = MatvecOptions::contiguous(2 * width);
        self.product(&layer.eh_proj, &both, tokens.len(), options)
    }

    /// x + attn_output(v_b(attention)), (T, d).
    fn attention_block(
        &mut self,
        il: usize,
        layer: &Layer,
        x: &[f32],
        parts: &[Part<'_>],
    ) -> Vec<f32> {
        let n_tokens = parts.iter().map(|part| part.tokens).sum();
        let config = &self.model.config;
        let (dims, eps) = (self.dims, config.rms_eps);
        let MlaDims {
            heads,
            nope: _,
            rope,
            kv_lora,
            cache: _,
        } = dims;
        let normed = |w: &Weight, x: &[f32], norm: &[f32]| {
            let options = MatvecOptions::contiguous(w.cols).with_norm(norm, eps);
            self.product(w, x, n_tokens, options)
        };
        let attention = &layer.attention;
        let plain = |w| Projection::Plain(w);
        let first = match &attention.q {
            Query::Full { attn_q: w } | Query::Lora { attn_q_a: w, .. } => w,
        };
        let both = [plain(first), plain(&attention.attn_kv_a_mqa)];
        let norm = Some((&layer.attn_norm[..], eps));
        let [mut q, kv_a] = self.products.project(both, x, n_tokens, norm);
        if let Query::Lora {
            attn_q_a_norm,
            attn_q_b,
            ..
        } = &attention.q
        {
            q = normed(attn_q_b, &q, attn_q_a_norm);
        }
        let per_head = MatvecOptions::per_group(heads * dims.head(), dims.head());
        let q_lat = self.product(&attention.attn_k_b, &q, n_tokens, per_head);
        let mut latents = vec![0.0; n_tokens * heads * kv_lora];
        let mut first = 0;
        for part in parts {
            let Part { tokens, pos, .. } = *part;
            let own = |values: usize| first * values..(first + tokens) * values;
            let mut q_pe = vec![0.0; tokens * heads * rope];
            part.in_order(&mut self.cache[il], dims.cache_row(), |cache| {
                rope_cache(
                    &q[own(heads * dims.head())],
                    &kv_a[own(dims.cache_values())],
                    &attention.attn_kv_a_norm,
                    eps,
                    &self.rope_table,
                    pos,
                    dims,
                    &mut q_pe,
                    cache,
                );
                attend(
                    self.products,
                    &q_lat[own(heads * kv_lora)],
                    &q_pe,
                    cache,
                    pos,
                    tokens,
                    dims,
                    config.softmax_scale(),
                    &mut latents[own(heads * kv_lora)],
                );
            });
            first += tokens;
        }
        let per_head = MatvecOptions::per_group(heads * kv_lora, kv_lora);
        let values = self.product(&attention.attn_v_b, &latents, n_tokens, per_head);
        let output = &layer.attn_output;
        let options = MatvecOptions::contiguous(output.cols).with_residual(x);
        self.product(output, &values, n_tokens, options)
    }
}

/// The prediction layer of a model that has it loaded.
fn prediction(model: &Model) -> &Nextn<Attention> {
    let layer = model.nextn.as_ref();
    layer.expect("drafts are made where the layer is loaded")
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

    fn predict(&mut self, tokens: &[u32], hidden: &[f32], parts: &[Part<'_>]) -> Vec<f32> {
        let model = Arc::clone(&self.model);
        let (layer, il) = (prediction(&model), model.layers.len());
        let x = self.paired(layer, tokens, hidden);
        let x = self.attention_block(il, &layer.block, &x, parts);
        let x = self.ffn_block(&layer.block, &x);
        rms_norm_rows(&x, &layer.shared_head_norm, model.config.rms_eps)
    }

    fn predict_rows(&mut self, tokens: &[u32], hidden: &[f32], parts: &[Part<'_>]) {
        let model = Arc::clone(&self.model);
        let (layer, eps) = (prediction(&model), model.config.rms_eps);
        let (block, dims) = (&layer.block, self.dims);
        let x = self.paired(layer, tokens, hidden);
        let kv_a = Projection::Plain(&block.attention.attn_kv_a_mqa);
        let norm = Some((&block.attn_norm[..], eps));
        let [kv_a] = self.products.project([kv_a], &x, tokens.len(), norm);
        let il = model.layers.len();
        let mut kv_a = &kv_a[..];
        for part in parts {
            let own = kv_a
                .split_off(..part.tokens * dims.cache_values())
                .unwrap_or_default();
            let norm = &block.attention.attn_kv_a_norm;
            // There are no queries.
            let dims = MlaDims { heads: 0, ..dims };
            part.in_order(&mut self.cache[il], dims.cache_row(), |cache| {
                let table = &self.rope_table;
                rope_cache(&[], own, norm, eps, table, part.pos, dims, &mut [], cache);
            });
        }
    }

    fn predicted_head(&self, states: &[f32]) -> Vec<f32> {
        let layer = prediction(&self.model);
        let head = layer.shared_head_head.as_ref();
        let head = head.unwrap_or(&self.model.output);
        let options = MatvecOptions::contiguous(head.cols);
        self.product(head, states, states.len() / head.cols, options)
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
