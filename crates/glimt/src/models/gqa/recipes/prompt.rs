//! The attention of many tokens: of a chunk of one sequence to the cache as it lies there, or of each token to slices of its context.

use super::Grouped;
use crate::gpu::call::When;
use crate::kernels::grouped_prompt_attention::GpuGroupedPromptAttention;
use crate::kernels::grouped_rows::{self, GpuGroupedRows};
use crate::quant::activation::Activation;
use crate::recipes::prompt::{PartialSums, Prompt, Rows};

impl Grouped {
    /// Records the attention of layer `i` to the normed rows `x`, in a step of `least` tokens or more.
    pub(super) fn attend_many(&self, step: &mut Prompt<'_>, i: usize, x: &Rows, least: u32) {
        let (layer, buffers) = (&self.weights.layers[i], &self.buffers);
        let q = step.split_product(&buffers.q, &layer.attn_q.weight, x);
        let rows = self.summed_rows(step, i, x);
        let [_, k, v] = rows.partial_sums;
        let rows = GpuGroupedRows {
            queries: Some([q.range, buffers.queries.clone()]),
            partial_sums: [q.count, k, v],
            ..rows
        };
        step.calls
            .extend(grouped_rows::calls(&rows, step.given.target));
        self.attend(step, i, least);
    }

    /// Records the rows of the cache of layer `i` for the normed rows `x`.
    pub(super) fn record_rows(&self, step: &mut Prompt<'_>, i: usize, x: &Rows) {
        let rows = self.summed_rows(step, i, x);
        step.calls
            .extend(grouped_rows::calls(&rows, step.given.target));
    }

    /// The rows of the cache of layer `i`, from products that are recorded here.
    fn summed_rows(&self, step: &mut Prompt<'_>, i: usize, x: &Rows) -> GpuGroupedRows {
        let layer = &self.weights.layers[i];
        let of_cache = [
            (&self.buffers.k, &layer.attn_k.weight),
            (&self.buffers.v, &layer.attn_v.weight),
        ];
        let [k, v] = of_cache.map(|(y, weight)| step.split_product(y, weight, x));
        let PartialSums { count, tokens, .. } = v;
        GpuGroupedRows {
            partial_sums: [1, k.count, count],
            partial_tokens: tokens,
            ..self.rows_of(step.given, i, [k.range, v.range])
        }
    }

    /// The values (max_tokens, heads, value) that the queries attend to: the one place that knows which attention a prompt takes. Where few
    /// tokens may take another than many, both are recorded, and a replay encodes one.
    fn attend(&self, step: &mut Prompt<'_>, i: usize, least: u32) {
        let (given, queries) = (step.given, &self.buffers.queries);
        let values = &step.chunk.values;
        let merge = self.merge(given, (values, Activation::Floats), false);
        let by_slices = [self.attention(given, i, queries).call(), merge];
        if given.context.has_several() {
            step.calls.extend(by_slices);
            return;
        }
        let attention = GpuGroupedPromptAttention {
            form: self.weights.prompts,
            q: queries.clone(),
            cache: given.context.cache[i].clone(),
            sequences: given.context.sequences.clone(),
            dims: self.dims(),
            scale: self.weights.config.softmax_scale(),
            values: values.clone(),
        };
        step.calls.push(attention.call().only(When::Many));
        let most = self.weights.most_few(given.target.machine);
        if least as usize <= most {
            let most = given.context.most(step.max_tokens.min(most as u32));
            let few = by_slices.map(|call| call.only(When::Few).at_most(most));
            step.calls.extend(few);
        }
    }
}
