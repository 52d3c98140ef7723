//! The steps of two to eight tokens, which read a weight once for all of them; in the `plain` tier also the step of one token.
//!
//! For one token every dispatch writes a buffer of its own, so that barriers fall on true dependencies and independent work overlaps. For
//! more, where kernels fill the device anyway, the layers share the buffers of a chunk.

use super::context::TokenLayer;
use super::{Chunk, Given, most};
use crate::gpu::Step;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Sublayer, Word, belong};
use crate::gpu::memory::GpuWeight;
use crate::kernels::attention_merge::Output;
use crate::kernels::gate_up::GpuGateUp;
use crate::kernels::matvec::GpuMatvec;
use crate::kernels::moe_down::GpuMoeDown;
use crate::kernels::{embed, rope_cache, router};
use crate::model::{Ffn, Mlp, Moe};
use crate::models::mla::GpuLayer;
use crate::models::mla::Query;

/// The step over up to `max_tokens` tokens, which leaves hidden states in the chunk's `after_ffn`.
pub fn step(given: Given<'_>, chunk: &Chunk, max_tokens: u32) -> Step {
    let mut recipe = Recipe {
        given,
        max_tokens,
        calls: vec![],
    };
    recipe.layers(|| chunk.clone());
    Step::of(most(given.context, max_tokens), recipe.calls)
}

/// The step over one token, with its logits; its layers have buffers of their own.
pub fn token(given: Given<'_>, logits: &Range) -> Step {
    let mut recipe = Recipe {
        given,
        max_tokens: 1,
        calls: vec![],
    };
    let (machine, forms) = (given.target.machine, given.context.forms);
    let x = recipe.layers(|| Chunk::new(machine, given.config(), forms, 1));
    let mut calls = recipe.calls;
    calls.extend(head(given, &x, logits));
    Step::of(given.context.token(), calls)
}

/// From hidden states (tokens, d) to the logits (vocab) of the last token.
pub fn head(given: Given<'_>, hidden: &Range, logits: &Range) -> Vec<Call> {
    let w = &given.weights.output;
    let matvec = GpuMatvec {
        weight: w,
        max_tokens: 1,
        x: hidden.clone(),
        x_offset: Word::LastTokenTimes(w.cols),
        x_stride: w.cols,
        x_group_stride: 0,
        norm: Some((given.weights.output_norm.clone(), given.config().rms_eps)),
        residual: None,
        y: logits.clone(),
        tokens: Word::U(1),
    };
    matvec.calls()
}

/// From the hidden states of up to `most` tokens, those of the chunk, to the logits (tokens, vocab) of each.
pub fn all_logits(given: Given<'_>, chunk: &Chunk, most_tokens: u32, logits: &Range) -> Step {
    let w = &given.weights.output;
    let matvec = GpuMatvec {
        weight: w,
        max_tokens: most_tokens,
        x: chunk.after_ffn.clone(),
        x_offset: Word::U(0),
        x_stride: w.cols,
        x_group_stride: 0,
        norm: Some((given.weights.output_norm.clone(), given.config().rms_eps)),
        residual: None,
        y: logits.clone(),
        tokens: Word::Tokens,
    };
    Step::of(most(given.context, most_tokens), matvec.calls())
}

/// Builds the dispatches of a step for up to `max_tokens` tokens.
pub(super) struct Recipe<'a> {
    pub given: Given<'a>,
    pub max_tokens: u32,
    /// What was recorded so far.
    pub calls: Vec<Call>,
}

impl<'a> Recipe<'a> {
    /// From token ids to the hidden state (max_tokens, d) after the last layer.
    fn layers(&mut self, mut buffers: impl FnMut() -> Chunk) -> Range {
        let Given {
            weights, context, ..
        } = self.given;
        let mut x = buffers().embedding;
        self.calls.extend(embed::calls_of(
            context.sequences.as_ref(),
            &weights.token_embd,
            &context.history,
            &x,
        ));
        for (i, of) in self.given.layers(self.max_tokens).enumerate() {
            let (chunk, begin) = (buffers(), self.calls.len());
            let after = self.attention(of, &chunk, &x);
            let middle = self.calls.len();
            x = self.feed_forward(of.layer, &chunk, &after);
            belong(&mut self.calls[begin..middle], Sublayer::Attention(i));
            belong(&mut self.calls[middle..], Sublayer::FeedForward(i));
        }
        x
    }

    /// The norm `norm` with the model's epsilon.
    pub fn norm(&self, norm: &Range) -> Option<(Range, f32)> {
        Some((norm.clone(), self.given.config().rms_eps))
    }

    /// y = W norm(x) (+ residual), x contiguous.
    pub fn product(
        &mut self,
        y: &Range,
        weight: &GpuWeight,
        x: &Range,
        norm: Option<&Range>,
        residual: Option<&Range>,
    ) -> Range {
        let matvec = self.matvec(weight, x, weight.cols, y);
        let matvec = GpuMatvec {
            norm: norm.and_then(|norm| self.norm(norm)),
            residual: residual.cloned(),
            ..matvec
        };
        self.calls.extend(matvec.calls());
        y.clone()
    }

    /// y\[h\] = W\[h\] x\[h\] for every head, with heads `head` floats apart in x.
    fn per_head(&mut self, y: &Range, weight: &GpuWeight, x: &Range, head: u32) -> Range {
        let matvec = GpuMatvec {
            x_group_stride: head,
            ..self.matvec(weight, x, weight.groups * head, y)
        };
        self.calls.extend(matvec.calls());
        y.clone()
    }

    pub fn matvec<'w>(
        &self,
        weight: &'w GpuWeight,
        x: &Range,
        x_stride: u32,
        y: &Range,
    ) -> GpuMatvec<'w> {
        GpuMatvec {
            weight,
            max_tokens: self.max_tokens,
            x: x.clone(),
            x_offset: Word::U(0),
            x_stride,
            x_group_stride: 0,
            norm: None,
            residual: None,
            y: y.clone(),
            tokens: Word::Tokens,
        }
    }

    /// The absorbed and the rotated queries; the new rows go to the cache.
    fn query(&mut self, of: TokenLayer<'_>, chunk: &Chunk, x: &Range) -> [Range; 2] {
        let (layer, dims) = (of.layer, self.given.dims());
        // Products of the same input stand together: they do not wait for each other.
        let norm = Some(&layer.attn_norm);
        let first = match &layer.q {
            Query::Full { attn_q } => self.product(&chunk.q, attn_q, x, norm, None),
            Query::Lora { attn_q_a, .. } => self.product(&chunk.q_a, attn_q_a, x, norm, None),
        };
        let kv_a = self.product(&chunk.kv_a, &layer.attn_kv_a_mqa, x, norm, None);
        let q = match &layer.q {
            Query::Full { .. } => first,
            Query::Lora {
                attn_q_a_norm,
                attn_q_b,
                ..
            } => self.product(&chunk.q, attn_q_b, &first, Some(attn_q_a_norm), None),
        };
        let head = dims.head() as u32;
        let q_lat = self.per_head(&chunk.q_lat, &layer.attn_k_b, &q, head);
        let q_pe = chunk.q_pe.clone();
        let queries = rope_cache::Queries {
            q,
            q_pe: q_pe.clone(),
        };
        self.calls.push(rope_cache::call(&rope_cache::GpuRopeCache {
            queries: Some(queries),
            ..self.given.cache_rows(of, kv_a)
        }));
        [q_lat, q_pe]
    }

    /// As `query` for one token, with the composed weight `qk`: one product leaves all of the queries, rotated.
    fn composed_query(
        &mut self,
        of: TokenLayer<'_>,
        qk: &GpuWeight,
        chunk: &Chunk,
        x: &Range,
    ) -> [Range; 2] {
        let layer = of.layer;
        let norm = Some(&layer.attn_norm);
        let (input, input_norm) = match &layer.q {
            Query::Full { .. } => (x.clone(), &layer.attn_norm),
            Query::Lora {
                attn_q_a,
                attn_q_a_norm,
                ..
            } => {
                let q_a = self.product(&chunk.q_a, attn_q_a, x, norm, None);
                (q_a, attn_q_a_norm)
            }
        };
        let kv_a = self.product(&chunk.kv_a, &layer.attn_kv_a_mqa, x, norm, None);
        let y = Range::floats("q", u64::from(qk.total_rows()));
        let product = GpuMatvec {
            norm: self.norm(input_norm),
            ..self.matvec(qk, &input, qk.cols, &y)
        };
        let rotated = product.rotated_calls(&self.given.rotation());
        self.calls.extend(rotated);
        let row = self.given.cache_rows(of, kv_a);
        self.calls.push(rope_cache::call(&row));
        self.given.queries_in(&y)
    }

    fn attention(&mut self, of: TokenLayer<'_>, chunk: &Chunk, x: &Range) -> Range {
        let (layer, dims, context) = (of.layer, self.given.dims(), self.given.context);
        let queries = match of.qk {
            Some(qk) => self.composed_query(of, qk, chunk, x),
            None => self.query(of, chunk, x),
        };
        let form = context.form(self.max_tokens as usize);
        let attention = self.given.attention(form, queries, of.cache);
        self.calls.extend(attention.calls());
        let latent = &chunk.latent;
        self.calls.push(self.given.merge(latent, Output::Floats));
        let after = &chunk.after_attention;
        if let Some(vo) = of.vo {
            return self.product(after, vo, latent, None, Some(x));
        }
        let kv_lora = dims.kv_lora as u32;
        let values = self.per_head(&chunk.values, &layer.attn_v_b, latent, kv_lora);
        self.product(after, &layer.attn_output, &values, None, Some(x))
    }

    /// silu(gate) * up of a dense block, or of the experts `ids`, of which a token has so many.
    fn gate_up(
        &mut self,
        h: &Range,
        mlp: &Mlp<GpuWeight>,
        norm: &Range,
        x: &Range,
        ids: Option<(Range, u32)>,
    ) {
        let call = GpuGateUp {
            gate: &mlp.gate,
            up: &mlp.up,
            max_tokens: self.max_tokens,
            x: x.clone(),
            norm: (norm.clone(), self.given.config().rms_eps),
            ids,
            h: h.clone(),
        };
        self.calls.extend(call.calls());
    }

    fn feed_forward(&mut self, layer: &GpuLayer, chunk: &Chunk, x: &Range) -> Range {
        let norm = &layer.ffn_norm;
        let h = &chunk.h[0];
        match &layer.ffn {
            Ffn::Dense(mlp) => {
                self.gate_up(h, mlp, norm, x, None);
                self.product(&chunk.after_ffn, &mlp.down, h, None, Some(x))
            }
            Ffn::Moe(moe) => {
                let Moe {
                    ffn_gate_inp,
                    exp_probs_b,
                    experts,
                    shared,
                } = &**moe;
                let config = self.given.experts();
                let used = config.used as u32;
                // Each line of two does not depend on the other: shared expert beside router.
                let logits = self.product(&chunk.router_logits, ffn_gate_inp, x, Some(norm), None);
                if let Some(mlp) = shared {
                    self.gate_up(&chunk.shared_h, mlp, norm, x, None);
                }
                let (ids, weights) = (&chunk.expert_ids, &chunk.expert_weights);
                self.calls.push(router::call(&router::GpuRouter {
                    logits,
                    partial_sums: 1,
                    bias: exp_probs_b.clone(),
                    experts: config,
                    max_tokens: self.max_tokens,
                    ids: ids.clone(),
                    weights: weights.clone(),
                }));
                let residual = match shared {
                    Some(mlp) => {
                        let (y, h) = (&chunk.after_shared, &chunk.shared_h);
                        self.product(y, &mlp.down, h, None, Some(x))
                    }
                    None => x.clone(),
                };
                self.gate_up(h, experts, norm, x, Some((ids.clone(), used)));
                let down = GpuMoeDown {
                    down: &experts.down,
                    max_tokens: self.max_tokens,
                    used,
                    h: h.clone(),
                    ids: ids.clone(),
                    weights: weights.clone(),
                    residual,
                    y: chunk.after_ffn.clone(),
                };
                self.calls.extend(down.calls());
                chunk.after_ffn.clone()
            }
        }
    }
}
