//! The attention of many tokens: over expanded keys and values, or absorbed as that of few.

use super::Mla;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, When};
use crate::kernels::expand_kv;
use crate::kernels::prompt_attention::{self, GpuPromptAttention};
use crate::kernels::rope_cache::{self, GpuRopeCache};
use crate::models::mla::Query;
use crate::quant::activation::Activation;
use crate::recipes::Given;
use crate::recipes::prompt::{PartialSums, Prompt, Rows};

impl Mla {
    /// Records the attention of layer `i` to the normed rows `x`.
    pub(super) fn attend_many(&self, step: &mut Prompt<'_>, i: usize, x: &Rows, least: u32) {
        let (layer, buffers) = (&self.weights.layers[i], &self.buffers);
        // Dispatches that do not wait for each other stand together: products of the same input and the expansion's weights; the cache's
        // rows and the query's latent; queries and what the context expands to.
        let q = match &layer.q {
            Query::Full { attn_q } => {
                PartialSums::whole(&step.product(&buffers.q, attn_q, x, 0, None))
            }
            Query::Lora { attn_q_a, .. } => step.split_product(&buffers.q_a, attn_q_a, x),
        };
        let kv_a = step.split_product(&buffers.kv_a, &layer.attn_kv_a_mqa, x);
        self.expansion(step, i);
        if self.expands(step.given.context).is_some() {
            let call = self.rope_cache(step.given, i, &kv_a, None);
            step.calls.push(call.only(When::Many));
        }
        let q = match &layer.q {
            Query::Full { .. } => q.range,
            Query::Lora {
                attn_q_a_norm,
                attn_q_b,
                ..
            } => {
                let norm = Some(attn_q_a_norm);
                let q_a = step.input(&buffers.normed_q_a, &q, attn_q_b.cols, 1, norm);
                step.product(&buffers.q, attn_q_b, &q_a, 0, None)
            }
        };
        self.attend(step, i, &kv_a, &q, least);
    }

    /// Records the rows of the cache of layer `i` for the normed rows `x`.
    pub(super) fn record_rows(&self, step: &mut Prompt<'_>, i: usize, x: &Rows) {
        let kv_a = &self.weights.layers[i].attn_kv_a_mqa;
        let kv_a = step.split_product(&self.buffers.kv_a, kv_a, x);
        let call = self.rope_cache(step.given, i, &kv_a, None);
        step.calls.push(call);
    }

    /// The weights by which the context is expanded, where it is.
    fn expansion(&self, step: &mut Prompt<'_>, i: usize) {
        if let Some(expanded) = self.expands(step.given.context) {
            let layer = &self.weights.layers[i];
            let (k_b, v_b) = (&layer.attn_k_b, &layer.attn_v_b);
            let (matrices, weights) = (expanded.form.is_matrix(), &expanded.scratch.weights);
            let kv = self.config().kv_dims();
            let calls = expand_kv::weights_calls(k_b, v_b, kv, matrices, weights);
            let many = calls.into_iter().map(|call| call.only(When::Many));
            step.calls.extend(many);
        }
    }

    /// The rows of the chunk in the cache, and the rotation of queries where they are given.
    fn rope_cache(
        &self,
        given: Given<'_>,
        i: usize,
        kv_a: &PartialSums,
        queries: Option<[Range; 2]>,
    ) -> Call {
        rope_cache::call(&GpuRopeCache {
            queries,
            partial_sums: kv_a.count,
            partial_tokens: kv_a.tokens,
            ..self.cache_rows(given, i, kv_a.range.clone())
        })
    }

    /// The values (max_tokens, heads, v) that the queries attend to: the one place that knows which attention a prompt takes.
    /// Where few tokens may take another than many, both are recorded, and a replay encodes one.
    fn attend(&self, step: &mut Prompt<'_>, i: usize, kv_a: &PartialSums, q: &Range, least: u32) {
        let given = step.given;
        let Some(expanded) = self.expands(given.context) else {
            return self.absorbed(step, i, kv_a, q);
        };
        let dims = self.config().kv_dims();
        let attention = GpuPromptAttention {
            form: expanded.form,
            q: q.clone(),
            rope_table: self.rope_table.clone(),
            cache: given.context.cache[i].clone(),
            sequences: given.context.sequences.clone(),
            dims,
            scale: self.config().softmax_scale(),
            max_tokens: step.max_tokens,
            scratch: &expanded.scratch,
            values: step.chunk.values.clone(),
        };
        let calls = attention.calls(given.target);
        step.calls.extend(calls.map(|call| call.only(When::Many)));
        let matrices = expanded.form.is_matrix();
        let most_few = prompt_attention::most_few(given.target.machine, dims, matrices);
        if least <= most_few {
            let few = step.max_tokens.min(most_few);
            let mut absorbed = Prompt::new(given, step.chunk, few);
            self.absorbed(&mut absorbed, i, kv_a, q);
            let most = given.context.most(few);
            let few = absorbed.calls.into_iter();
            step.calls
                .extend(few.map(|call| call.only(When::Few).at_most(most)));
        }
    }

    /// The attention in the latent space, as for a single token.
    fn absorbed(&self, step: &mut Prompt<'_>, i: usize, kv_a: &PartialSums, q: &Range) {
        let (layer, given, buffers) = (&self.weights.layers[i], step.given, &self.buffers);
        let dims = self.dims();
        let (heads, kv_lora, head) = (dims.heads as u32, dims.kv_lora as u32, dims.head() as u32);
        let queries = [q.clone(), buffers.q_pe.clone()];
        step.calls
            .push(self.rope_cache(given, i, kv_a, Some(queries)));
        let q_rows = step.plain_input(&buffers.absorbed, q, heads * head);
        let q_lat = step.product(&buffers.q_lat, &layer.attn_k_b, &q_rows, head, None);
        let queries = [q_lat, buffers.q_pe.clone()];
        let attention = self.attention(given, step.max_tokens, i, queries);
        step.calls.extend(attention.calls());
        let latent = &buffers.latent;
        step.calls
            .push(self.merge(given, latent, Activation::Floats, false));
        let latent = step.plain_input(&buffers.absorbed, latent, heads * kv_lora);
        let values = &step.chunk.values;
        step.product(values, &layer.attn_v_b, &latent, kv_lora, None);
    }
}

#[cfg(test)]
mod tests;
