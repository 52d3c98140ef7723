//! The layer recipe: a step of the model as a list of dispatches, for prompts and, in the `plain` tier, for one token.
//!
//! For one token every dispatch writes a buffer of its own (SSA), so that Vulkan and DX12 put barriers on true
//! dependencies only and independent work overlaps. For chunks of tokens, where kernels fill the device anyway, the
//! layers share one set of buffers.

use super::weights::{Composed, GpuFfn, GpuLayer, GpuMlp, GpuModel, GpuMoe, GpuQuery};
use crate::gpu::Most;
use crate::gpu::buffer::{Buffer, Range, Role};
use crate::gpu::call::{Call, Part, Word, belong};
use crate::gpu::memory::GpuWeight;
use crate::gpu::{Gpu, GpuError};
use crate::kernels::attention::{Form, GpuAttention};
use crate::kernels::expand_kv::KvDims;
use crate::kernels::gate_up::GpuGateUp;
use crate::kernels::matvec::GpuMatvec;
use crate::kernels::moe_down::GpuMoeDown;
use crate::kernels::{MlaDims, attention_merge, embed, gemm, prompt_attention, rope_cache, router};
use crate::model::precompose::Pairs;
use std::collections::HashMap;

/// The buffers of a session that every step shares.
pub(super) struct Context {
    /// Rows of each cache.
    pub rows: u32,
    /// Token ids by position, (n_ctx + 1) u32.
    pub history: Range,
    /// Per layer (n_ctx, 576) packed f16.
    pub cache: Vec<Range>,
    /// (n_ctx, rope / 2) cosine and sine.
    pub rope_table: Range,
    /// Partial sums of the attention: values, then maxima and sums.
    pub partials: [Range; 2],
    /// The attention of steps of one token.
    pub form: Form,
    /// Cores of the device, for which the attention is cut.
    pub cores: usize,
    /// Rows of a context up to which the attention of one token takes [`attention_short`], or 0.
    pub short: u32,
    /// The pairs of weights that steps of one token read composed.
    pub pairs: Pairs,
    /// The products of prompts.
    pub products: gemm::Form,
    /// The attention of prompts over expanded keys and values, where the sizes suit it.
    pub expanded: Option<Expanded>,
}

/// The attention of prompts over expanded keys and values.
pub(super) struct Expanded {
    pub form: prompt_attention::Form,
    pub dims: KvDims,
    pub scratch: prompt_attention::Scratch,
}

impl Expanded {
    /// The most tokens of a step that the absorbed attention takes instead.
    pub(super) fn most_few(&self) -> u32 {
        prompt_attention::most_few(self.dims, self.form.is_matrix())
    }
}

impl Context {
    /// The largest replay of steps of one token.
    pub(super) fn token(&self) -> Most {
        Most::token(self.rows)
    }

    /// The largest replay of steps of up to `tokens` tokens, whose buffers may hold more than the context does.
    pub(super) fn most(&self, tokens: u32) -> Most {
        Most {
            tokens,
            context: self.rows,
        }
    }

    /// The attention of steps of up to `tokens` tokens.
    pub(super) fn form(&self, tokens: usize) -> Form {
        match tokens {
            1 => self.form,
            _ => Form::Vector,
        }
    }

    /// The composed weights of a layer that steps of up to `tokens` tokens read, `qk` and `vo`: none but those of one token.
    pub(super) fn composed<'a>(
        &self,
        layer: &'a GpuLayer,
        tokens: u32,
    ) -> [Option<&'a GpuWeight>; 2] {
        let Composed { qk, vo, .. } = &layer.composed;
        let used = |pair: bool| pair && tokens == 1;
        [
            qk.as_ref().filter(|_| used(self.pairs.qk)),
            vo.as_ref().filter(|_| used(self.pairs.vo)),
        ]
    }
}

/// What is in the buffer of a chunk of this name.
pub(super) fn role_of(name: &str) -> Role {
    match name {
        "expert ids" | "expert slots" | "expert tiles" | "tall tiles" => Role::Words,
        _ if name.ends_with("halves") => Role::Halves,
        _ => Role::Floats,
    }
}

/// The buffers that the layers of a chunk of tokens share, by name.
pub(super) type Scratch = HashMap<&'static str, Range>;

/// A part of a layer in a recipe: from the layer, its cache where it is the attention, and rows (max_tokens, d) to such rows.
type Attend<R> = fn(&mut R, &GpuLayer, &Range, &Range) -> Result<Range, GpuError>;
type Feed<R> = fn(&mut R, &GpuLayer, &Range) -> Result<Range, GpuError>;

/// What recipes of several tokens have in common: the embedding into `x`, then every layer, each dispatch told where it belongs.
pub(super) fn layers<R>(
    recipe: &mut R,
    (model, context): (&GpuModel, &Context),
    mut x: Range,
    calls: fn(&mut R) -> &mut Vec<Call>,
    attention: Attend<R>,
    feed_forward: Feed<R>,
) -> Result<Range, GpuError> {
    let embedding = embed::calls(&model.token_embd, &context.history, &x);
    calls(recipe).extend(embedding);
    for (i, (layer, cache)) in model.layers.iter().zip(&context.cache).enumerate() {
        let begin = calls(recipe).len();
        let after = attention(recipe, layer, cache, &x)?;
        let middle = calls(recipe).len();
        x = feed_forward(recipe, layer, &after)?;
        belong(&mut calls(recipe)[begin..middle], Part::Attention(i));
        belong(&mut calls(recipe)[middle..], Part::FeedForward(i));
    }
    Ok(x)
}

/// Builds the dispatches of a step for up to `max_tokens` tokens.
pub(super) struct Recipe<'a> {
    gpu: &'a Gpu,
    model: &'a GpuModel,
    pub(super) context: &'a Context,
    max_tokens: u32,
    pub(super) dims: MlaDims,
    pub(super) eps: f32,
    scratch: &'a mut Scratch,
    /// What was recorded so far.
    pub calls: Vec<Call>,
}

impl<'a> Recipe<'a> {
    pub(super) fn new(
        model: &'a GpuModel,
        context: &'a Context,
        scratch: &'a mut Scratch,
        max_tokens: u32,
    ) -> Self {
        let config = &model.model.config;
        Self {
            gpu: &model.gpu,
            model,
            context,
            max_tokens,
            dims: MlaDims::of(config),
            eps: config.rms_eps,
            scratch,
            calls: vec![],
        }
    }

    /// A buffer of (max_tokens, width) words of 4 bytes.
    pub(super) fn activation(&mut self, name: &'static str, width: u32) -> Result<Range, GpuError> {
        let bytes = u64::from(self.max_tokens) * u64::from(width) * 4;
        if self.max_tokens == 1 {
            return Ok(Range::whole(&Buffer::new(name, bytes, role_of(name))));
        }
        if let Some(range) = self.scratch.get(name).filter(|r| r.size >= bytes) {
            return Ok(range.clone());
        }
        let range = Range::whole(&Buffer::new(name, bytes, role_of(name)));
        self.scratch.insert(name, range.clone());
        Ok(range)
    }

    /// y = W norm(x) (+ residual), x contiguous; `name` is the output's.
    pub(super) fn product(
        &mut self,
        name: &'static str,
        weight: &GpuWeight,
        x: &Range,
        norm: Option<&Range>,
        residual: Option<&Range>,
    ) -> Result<Range, GpuError> {
        let y = self.activation(name, weight.total_rows())?;
        let matvec = GpuMatvec {
            weight,
            max_tokens: self.max_tokens,
            x: x.clone(),
            x_offset: Word::U(0),
            x_stride: weight.cols,
            x_group_stride: 0,
            norm: norm.map(|n| (n.clone(), self.eps)),
            residual: residual.cloned(),
            y: y.clone(),
            tokens: Word::Tokens,
        };
        self.calls.extend(matvec.calls());
        Ok(y)
    }

    /// y\[h\] = W\[h\] x\[h\] for every head, with heads `head` floats apart in x.
    fn per_head(
        &mut self,
        name: &'static str,
        weight: &GpuWeight,
        x: &Range,
        head: u32,
    ) -> Result<Range, GpuError> {
        let y = self.activation(name, weight.total_rows())?;
        let matvec = GpuMatvec {
            weight,
            max_tokens: self.max_tokens,
            x: x.clone(),
            x_offset: Word::U(0),
            x_stride: weight.groups * head,
            x_group_stride: head,
            norm: None,
            residual: None,
            y: y.clone(),
            tokens: Word::Tokens,
        };
        self.calls.extend(matvec.calls());
        Ok(y)
    }

    /// From token ids to the hidden state (max_tokens, d) after the last layer.
    pub(super) fn hidden(&mut self) -> Result<Range, GpuError> {
        let x = self.activation("embedding", self.model.token_embd.cols)?;
        let of = (self.model, self.context);
        layers(
            self,
            of,
            x,
            |r| &mut r.calls,
            Self::attention,
            Self::feed_forward,
        )
    }

    /// The logits (vocab) of the last token.
    pub(super) fn head(&mut self, x: &Range, logits: &Range) {
        let w = &self.model.output;
        let matvec = GpuMatvec {
            weight: w,
            max_tokens: 1,
            x: x.clone(),
            x_offset: Word::LastTokenTimes(w.cols),
            x_stride: w.cols,
            x_group_stride: 0,
            norm: Some((self.model.output_norm.clone(), self.eps)),
            residual: None,
            y: logits.clone(),
            tokens: Word::U(1),
        };
        self.calls.extend(matvec.calls());
    }

    /// The absorbed and the rotated queries; the new row goes to the cache.
    fn query(
        &mut self,
        layer: &GpuLayer,
        cache: &Range,
        x: &Range,
    ) -> Result<[Range; 2], GpuError> {
        let dims = self.dims;
        // Products of the same input stand together: they do not wait for each other.
        let norm = Some(&layer.attn_norm);
        let (q, kv_a) = match &layer.q {
            GpuQuery::Full { attn_q } => {
                let q = self.product("q", attn_q, x, norm, None)?;
                let kv_a = self.product("kv_a", &layer.attn_kv_a_mqa, x, norm, None)?;
                (q, kv_a)
            }
            GpuQuery::Lora {
                attn_q_a,
                attn_q_a_norm,
                attn_q_b,
            } => {
                let q_a = self.product("q_a", attn_q_a, x, norm, None)?;
                let kv_a = self.product("kv_a", &layer.attn_kv_a_mqa, x, norm, None)?;
                let q = self.product("q", attn_q_b, &q_a, Some(attn_q_a_norm), None)?;
                (q, kv_a)
            }
        };
        let q_lat = self.per_head("q_lat", &layer.attn_k_b, &q, dims.head() as u32)?;
        let q_pe = self.activation("q_pe", (dims.heads * dims.rope) as u32)?;
        self.calls.push(rope_cache::call(&rope_cache::GpuRopeCache {
            queries: Some(rope_cache::Queries {
                q: q.clone(),
                q_pe: q_pe.clone(),
            }),
            kv_a,
            parts: 1,
            part_tokens: self.max_tokens,
            kv_a_norm: layer.attn_kv_a_norm.clone(),
            eps: self.eps,
            rope_table: self.context.rope_table.clone(),
            dims,
            cache: cache.clone(),
        }));
        Ok([q_lat, q_pe])
    }

    fn attention(&mut self, layer: &GpuLayer, cache: &Range, x: &Range) -> Result<Range, GpuError> {
        let dims = self.dims;
        let (heads, kv_lora) = (dims.heads as u32, dims.kv_lora as u32);
        let [qk, vo] = self.context.composed(layer, self.max_tokens);
        let [q_lat, q_pe] = match qk {
            Some(qk) => self.composed_query(layer, qk, cache, x)?,
            None => self.query(layer, cache, x)?,
        };
        let attention = GpuAttention {
            form: self.context.form(self.max_tokens as usize),
            q_lat,
            q_pe,
            cache: cache.clone(),
            dims,
            scale: self.model.model.config.softmax_scale(),
            partials: self.context.partials.clone(),
        };
        self.calls.extend(attention.calls());
        let latent = self.activation("latent", heads * kv_lora)?;
        self.calls.push(attention_merge::call(
            &self.context.partials,
            dims,
            &latent,
            attention_merge::Output::Floats,
        ));
        if let Some(vo) = vo {
            return self.product("after attention", vo, &latent, None, Some(x));
        }
        let values = self.per_head("values", &layer.attn_v_b, &latent, kv_lora)?;
        self.product(
            "after attention",
            &layer.attn_output,
            &values,
            None,
            Some(x),
        )
    }

    /// silu(gate) * up of a dense block; the output is named `name`.
    fn gate_up(
        &mut self,
        name: &'static str,
        mlp: &GpuMlp,
        norm: &Range,
        x: &Range,
        ids: Option<(Range, u32)>,
    ) -> Result<Range, GpuError> {
        let used = ids.as_ref().map_or(1, |(_, used)| *used);
        let h = self.activation(name, used * mlp.gate.rows)?;
        let call = GpuGateUp {
            gate: &mlp.gate,
            up: &mlp.up,
            max_tokens: self.max_tokens,
            x: x.clone(),
            norm: (norm.clone(), self.eps),
            ids,
            h: h.clone(),
        };
        self.calls.extend(call.calls());
        Ok(h)
    }

    fn feed_forward(&mut self, layer: &GpuLayer, x: &Range) -> Result<Range, GpuError> {
        let norm = &layer.ffn_norm;
        match &layer.ffn {
            GpuFfn::Dense(mlp) => {
                let h = self.gate_up("h", mlp, norm, x, None)?;
                self.product("after ffn", &mlp.down, &h, None, Some(x))
            }
            GpuFfn::Moe(moe) => {
                let GpuMoe {
                    ffn_gate_inp,
                    exp_probs_b,
                    experts,
                    shared,
                } = &**moe;
                let config = self.model.experts();
                let used = config.used as u32;
                // Each line of two does not depend on the other: shared expert beside router.
                let logits = self.product("router logits", ffn_gate_inp, x, Some(norm), None)?;
                let shared_h = match shared {
                    Some(mlp) => Some(self.gate_up("shared h", mlp, norm, x, None)?),
                    None => None,
                };
                let ids = self.activation("expert ids", used)?;
                let weights = self.activation("expert weights", used)?;
                self.calls.push(router::call(&router::GpuRouter {
                    logits,
                    parts: 1,
                    bias: exp_probs_b.clone(),
                    experts: config,
                    max_tokens: self.max_tokens,
                    ids: ids.clone(),
                    weights: weights.clone(),
                }));
                let residual = match (shared, shared_h) {
                    (Some(mlp), Some(h)) => {
                        self.product("after shared", &mlp.down, &h, None, Some(x))?
                    }
                    _ => x.clone(),
                };
                let h = self.gate_up("h", experts, norm, x, Some((ids.clone(), used)))?;
                let y = self.activation("after ffn", experts.down.rows)?;
                let down = GpuMoeDown {
                    down: &experts.down,
                    max_tokens: self.max_tokens,
                    used,
                    h,
                    ids,
                    weights,
                    residual,
                    y: y.clone(),
                };
                self.calls.extend(down.calls(self.gpu)?);
                Ok(y)
            }
        }
    }
}
