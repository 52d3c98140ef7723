//! The step of many tokens: products as matrix products, experts grouped by their tokens. All layers share the buffers of a chunk.

use super::Given;
use super::chunk::{Chunk, RowsBuffer, product_split_k};
use super::context::TokenLayer;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Sublayer, When, belong};
use crate::gpu::memory::GpuWeight;
use crate::gpu::{GpuError, Step};
use crate::kernels::batch_matvec::{self, GpuBatchMatvec};
use crate::kernels::expand_kv;
use crate::kernels::expert_rows::Other;
use crate::kernels::gemm::{Form, GpuGemm, Input};
use crate::kernels::prompt_attention::GpuPromptAttention;
use crate::kernels::rows_f16::GpuRowsF16;
use crate::kernels::token::{Divided, TokenInput};
use crate::kernels::token_matvec::{self, GpuTokenMatvec};
use crate::kernels::{embed, rope_cache};
use crate::models::mla::Query;
use crate::quant::activation::Activation;

/// The step over `least` to `most_tokens` tokens, which leaves hidden states in the chunk's `after_ffn`.
pub fn step(given: Given<'_>, chunk: &Chunk, least: u32, most_tokens: u32) -> Step {
    let mut recipe = PromptRecipe::new(given, chunk, most_tokens);
    let weights = given.weights;
    let mut x = chunk.embedding.clone();
    recipe.calls.extend(embed::calls(
        given.context.sequences.as_ref(),
        &weights.token_embd,
        &given.context.history,
        &x,
    ));
    for (i, of) in given.layers(most_tokens).enumerate() {
        let begin = recipe.calls.len();
        let after = recipe.attention(of, &x, least);
        let middle = recipe.calls.len();
        x = recipe.feed_forward(of.layer, after);
        belong(&mut recipe.calls[begin..middle], Sublayer::Attention(i));
        belong(&mut recipe.calls[middle..], Sublayer::FeedForward(i));
    }
    recipe.done()
}

/// The step from the hidden states of up to `tokens` tokens, those of the chunk, to the logits (vocab) of the last: by the kernel of
/// decoding in the tiers that have one, on floats, as exact as the rest of a prompt.
///
/// # Errors
/// [`GpuError::TierUnsupported`] where the tier has no kernel for a size.
pub fn last_logits(
    given: Given<'_>,
    chunk: &Chunk,
    tokens: u32,
    logits: &Range,
) -> Result<Step, GpuError> {
    let most = given.context.most(tokens);
    let hidden = &chunk.after_ffn;
    let (w, norm) = (&given.weights.output, &given.weights.output_norm);
    let row = Range::floats("last row", u64::from(w.cols));
    let rows = GpuRowsF16 {
        norm: Some((norm.clone(), given.config().rms_eps)),
        floats: Some(row.clone()),
        last: true,
        ..GpuRowsF16::of(hidden, w.cols, tokens)
    };
    let x = TokenInput::of(row);
    let calls = match given.target.tier.has_subgroups() {
        true => {
            let x = token_matvec::Input::Prepared(x, 0);
            let product = GpuTokenMatvec::new(w, Activation::Floats, x).bind("y", logits);
            product.calls(given.target)?
        }
        false => {
            let x = batch_matvec::Input::Prepared(x);
            let product = GpuBatchMatvec {
                single: true,
                y: Some(logits.clone()),
                ..GpuBatchMatvec::new(given.target, w, 1, x)
            };
            product.calls(given.target)?
        }
    };
    Ok(Step::of(most, [rows.call()]).then(&calls))
}

/// The logits (tokens, vocab) of hidden states, of which the step's slot chooses those that begin at one of `slices`.
pub fn logits_of_slices(
    given: Given<'_>,
    chunk: &Chunk,
    tokens: u32,
    slices: &[Range],
    logits: &Range,
) -> Step {
    let mut recipe = PromptRecipe::new(given, chunk, tokens);
    let w = &given.weights.output;
    let norm = Some(&given.weights.output_norm);
    let (x, rows) = recipe.rows(
        &chunk.normed,
        &PartialSums::whole(&slices[0]),
        w.cols,
        1,
        norm,
    );
    let rows = rows.call().with_alternatives("x", slices.to_vec());
    recipe.calls.push(rows);
    let product = recipe.gemm(w, &x, logits);
    recipe.multiply(&product);
    recipe.done()
}

/// Builds the dispatches of a step for up to `max_tokens` tokens.
pub(super) struct PromptRecipe<'a> {
    pub given: Given<'a>,
    pub chunk: &'a Chunk,
    pub max_tokens: u32,
    pub form: Form,
    /// The dispatches that were recorded so far.
    pub calls: Vec<Call>,
}

/// Rows of a chunk as products take them.
#[derive(Clone)]
pub(super) struct Rows {
    pub input: Input,
    /// Values from one row to the next.
    pub stride: u32,
}

/// The output of a product: partial sums (count, tokens, rows), which the next kernel adds up.
#[derive(Clone)]
pub(super) struct PartialSums {
    pub range: Range,
    pub count: u32,
    /// Tokens of the product, also for an attention that has fewer; 0 where there is nothing to be added up.
    pub tokens: u32,
    /// The rows that are read instead where there are tall tiles, if products by tiles of two heights stand beside each other.
    pub other: Option<Other>,
}

impl PartialSums {
    /// A product without partial sums.
    pub fn whole(range: &Range) -> Self {
        Self {
            range: range.clone(),
            count: 1,
            tokens: 0,
            other: None,
        }
    }
}

/// The residual stream between the two sublayers of a layer. If `unsummed` holds partial sums and a residual, the next norm adds them up
/// and writes the result to `x`. Otherwise `x` has the rows already.
pub(super) struct Between {
    pub x: Range,
    pub unsummed: Option<(PartialSums, Range)>,
}

impl<'a> PromptRecipe<'a> {
    fn new(given: Given<'a>, chunk: &'a Chunk, max_tokens: u32) -> Self {
        Self {
            given,
            chunk,
            max_tokens,
            form: given.context.forms.products,
            calls: vec![],
        }
    }

    fn done(self) -> Step {
        Step::of(self.given.context.most(self.max_tokens), self.calls)
    }

    /// `x` (max_tokens * used, cols) as the products of this form take it, normed first where a weight is given, and what makes it so: it
    /// leaves nothing where it is so already.
    pub fn rows(
        &self,
        to: &RowsBuffer,
        x: &PartialSums,
        cols: u32,
        used: u32,
        norm: Option<&Range>,
    ) -> (Rows, GpuRowsF16) {
        let halves = [to.halves.clone(), to.scales.clone()];
        let (input, halves, floats) = match (self.form, norm) {
            (Form::Float { .. }, None) if x.count == 1 => {
                (Input::Floats(x.range.clone()), None, None)
            }
            (Form::Float { .. }, _) => {
                let floats = to.floats.clone();
                (Input::Floats(floats.clone()), None, Some(floats))
            }
            (Form::Matrix(_), _) => (Input::Halves(halves.clone()), Some(halves), None),
        };
        let rows = GpuRowsF16 {
            other: x.other.clone(),
            partial_sums: x.count,
            norm: norm.map(|norm| (norm.clone(), self.given.config().rms_eps)),
            halves,
            floats,
            used,
            ..GpuRowsF16::of(&x.range, cols, self.max_tokens)
        };
        let stride = cols;
        (Rows { input, stride }, rows)
    }

    /// [`rows`](Self::rows), recorded.
    pub fn input(
        &mut self,
        to: &RowsBuffer,
        x: &PartialSums,
        cols: u32,
        used: u32,
        norm: Option<&Range>,
    ) -> Rows {
        let (rows, made) = self.rows(to, x, cols, used, norm);
        if made.halves.is_some() || made.floats.is_some() {
            self.calls.push(made.call());
        }
        rows
    }

    /// Rows of `x` (max_tokens, cols) that are whole and not normed, as [`input`](Self::input) makes them.
    pub fn plain_input(&mut self, to: &RowsBuffer, x: &Range, cols: u32) -> Rows {
        self.input(to, &PartialSums::whole(x), cols, 1, None)
    }

    /// The product W x alone, to be completed.
    pub fn gemm<'w>(&self, weight: &'w GpuWeight, x: &Rows, y: &Range) -> GpuGemm<'w> {
        GpuGemm {
            x_stride: x.stride,
            ..GpuGemm::of(self.form, weight, x.input.clone(), self.max_tokens, y)
        }
    }

    /// Records a product.
    pub fn multiply(&mut self, product: &GpuGemm<'_>) {
        self.calls.extend(product.calls(self.given.target));
    }

    /// y = W x (+ residual); where W has heads they read `head` values each.
    pub fn product(
        &mut self,
        y: &Range,
        weight: &GpuWeight,
        x: &Rows,
        head: u32,
        residual: Option<&Range>,
    ) -> Range {
        let product = GpuGemm {
            x_group_stride: head,
            residual: residual.cloned(),
            ..self.gemm(weight, x, y)
        };
        self.multiply(&product);
        y.clone()
    }

    /// The ranges of columns (split-K) that suit a weight's shape.
    fn product_split_k(&self, weight: &GpuWeight) -> u32 {
        let of = self.given.target.machine;
        product_split_k(of, self.form, weight.rows, weight.cols, self.max_tokens)
    }

    /// W x, as partial sums where they suit its shape.
    fn split_product(&mut self, y: &Range, weight: &GpuWeight, x: &Rows) -> PartialSums {
        let count = self.product_split_k(weight);
        let product = GpuGemm {
            split_k: count,
            ..self.gemm(weight, x, y)
        };
        self.multiply(&product);
        PartialSums {
            range: y.clone(),
            count,
            tokens: self.max_tokens,
            other: None,
        }
    }

    fn attention(&mut self, of: TokenLayer<'_>, x: &Range, least: u32) -> Between {
        let (layer, chunk) = (of.layer, self.chunk);
        let kv_a = &layer.attn_kv_a_mqa;
        let norm = Some(&layer.attn_norm);
        let input = self.input(&chunk.normed, &PartialSums::whole(x), kv_a.cols, 1, norm);
        // Dispatches that do not wait for each other stand together: products of the same input and the expansion's weights; the cache's
        // rows and the query's latent; queries and what the context expands to.
        let q = match &layer.q {
            Query::Full { attn_q } => {
                PartialSums::whole(&self.product(&chunk.q, attn_q, &input, 0, None))
            }
            Query::Lora { attn_q_a, .. } => self.split_product(&chunk.q_a, attn_q_a, &input),
        };
        let kv_a = self.split_product(&chunk.kv_a, kv_a, &input);
        self.expansion(of);
        if self.given.context.expands().is_some() {
            let call = self.rope_cache(of, &kv_a, None).only(When::Many);
            self.calls.push(call);
        }
        let q = match &layer.q {
            Query::Full { .. } => q.range,
            Query::Lora {
                attn_q_a_norm,
                attn_q_b,
                ..
            } => {
                let norm = Some(attn_q_a_norm);
                let q_a = self.input(&chunk.normed_q_a, &q, attn_q_b.cols, 1, norm);
                self.product(&chunk.q, attn_q_b, &q_a, 0, None)
            }
        };
        self.attend(of, &kv_a, &q, least);
        let w = &layer.attn_output;
        let values = self.plain_input(&chunk.inner, &chunk.values, w.cols);
        let after = &chunk.after_attention;
        if self.product_split_k(w) == 1 {
            return Between {
                x: self.product(after, w, &values, 0, Some(x)),
                unsummed: None,
            };
        }
        let sums = self.split_product(&chunk.output_sums, w, &values);
        Between {
            x: after.clone(),
            unsummed: Some((sums, x.clone())),
        }
    }

    /// The weights by which the context is expanded, where it is.
    fn expansion(&mut self, of: TokenLayer<'_>) {
        if let Some(expanded) = self.given.context.expands() {
            let (k_b, v_b) = (&of.layer.attn_k_b, &of.layer.attn_v_b);
            let (matrices, weights) = (expanded.form.is_matrix(), &expanded.scratch.weights);
            let calls = expand_kv::weights_calls(k_b, v_b, expanded.dims, matrices, weights);
            let many = calls.into_iter().map(|call| call.only(When::Many));
            self.calls.extend(many);
        }
    }

    /// The rows of the chunk in the cache, and the rotation of queries where they are given.
    fn rope_cache(
        &self,
        of: TokenLayer<'_>,
        kv_a: &PartialSums,
        queries: Option<[Range; 2]>,
    ) -> Call {
        rope_cache::call(&rope_cache::GpuRopeCache {
            queries,
            partial_sums: kv_a.count,
            partial_tokens: kv_a.tokens,
            ..self.given.cache_rows(of, kv_a.range.clone())
        })
    }

    /// The values (max_tokens, heads, v) that the queries attend to: the one place that knows which attention a prompt takes.
    /// Where few tokens may take another than many, both are recorded, and a replay encodes one.
    fn attend(&mut self, of: TokenLayer<'_>, kv_a: &PartialSums, q: &Range, least: u32) {
        let Some(expanded) = self.given.context.expands() else {
            return self.absorbed(of, kv_a, q);
        };
        let attention = GpuPromptAttention {
            form: expanded.form,
            q: q.clone(),
            rope_table: self.given.context.rope_table.clone(),
            cache: of.cache.clone(),
            sequences: self.given.context.sequences.clone(),
            dims: expanded.dims,
            scale: self.given.config().softmax_scale(),
            max_tokens: self.max_tokens,
            scratch: &expanded.scratch,
            values: self.chunk.values.clone(),
        };
        let calls = attention.calls(self.given.target);
        self.calls.extend(calls.map(|call| call.only(When::Many)));
        let most_few = expanded.most_few();
        if least <= most_few {
            let few = self.max_tokens.min(most_few);
            let mut absorbed = PromptRecipe::new(self.given, self.chunk, few);
            absorbed.absorbed(of, kv_a, q);
            let most = self.given.context.most(few);
            let few = absorbed.calls.into_iter();
            self.calls
                .extend(few.map(|call| call.only(When::Few).at_most(most)));
        }
    }

    /// The attention in the latent space, as for a single token.
    fn absorbed(&mut self, of: TokenLayer<'_>, kv_a: &PartialSums, q: &Range) {
        let (layer, dims, chunk) = (of.layer, self.given.dims(), self.chunk);
        let (heads, kv_lora, head) = (dims.heads as u32, dims.kv_lora as u32, dims.head() as u32);
        let queries = [q.clone(), chunk.q_pe.clone()];
        let rope_cache = self.rope_cache(of, kv_a, Some(queries));
        self.calls.push(rope_cache);
        let q_rows = self.plain_input(&chunk.absorbed, q, heads * head);
        let q_lat = self.product(&chunk.q_lat, &layer.attn_k_b, &q_rows, head, None);
        let queries = [q_lat, chunk.q_pe.clone()];
        let form = self.given.context.form(self.max_tokens as usize);
        let attention = self.given.attention(form, queries, of.cache);
        self.calls.extend(attention.calls());
        let latent = &chunk.latent;
        self.calls
            .push(self.given.merge(latent, Activation::Floats));
        let latent = self.plain_input(&chunk.absorbed, latent, heads * kv_lora);
        self.product(&chunk.values, &layer.attn_v_b, &latent, kv_lora, None);
    }
}

#[cfg(test)]
mod tests;
