//! The layer recipe of one token in the tiers with subgroups: every product leaves its output prepared for the next, as bytes
//! or floats, with the sums of squares that a norm in between needs, so that no kernel begins with a norm of its own.

use super::recipe::Context;
use super::weights::{GpuFfn, GpuLayer, GpuModel, GpuMoe, GpuQuery};
use crate::gpu::memory::GpuWeight;
use crate::gpu::record::{Op, Part, Range, When, belong};
use crate::gpu::{Gpu, GpuError};
use crate::kernels::attention::{GpuAttention, MAX_SLICES};
use crate::kernels::router::GpuRouter;
use crate::kernels::token::{TokenInput, TokenOutput, unsupported};
use crate::kernels::token_gate_up::GpuTokenGateUp;
use crate::kernels::token_matvec::{GpuTokenMatvec, Input};
use crate::kernels::token_moe_down::GpuTokenMoeDown;
use crate::kernels::token_router::{self, GpuTokenRouter, Scaling};
use crate::kernels::{MlaDims, attention_merge, rope_cache, token_embed};
use crate::quant::activation::Activation;

/// The residual stream between two halves of a layer.
pub(super) struct Stream {
    /// (d) f32.
    pub(super) x: Range,
    /// x times the weight of the norm that comes next, prepared.
    values: Range,
    /// Sums of squares of 16 values of x.
    squares: Range,
    /// The weight of that norm.
    norm: Range,
}

/// Builds the dispatches of a decoded token.
pub(super) struct TokenRecipe<'a> {
    pub(super) gpu: &'a Gpu,
    model: &'a GpuModel,
    pub(super) context: &'a Context,
    pub(super) activation: Activation,
    pub(super) dims: MlaDims,
    pub(super) eps: f32,
    /// What was recorded so far.
    pub ops: Vec<Op>,
}

impl<'a> TokenRecipe<'a> {
    pub(super) fn new(model: &'a GpuModel, context: &'a Context, activation: Activation) -> Self {
        let config = &model.model.config;
        Self {
            gpu: &model.gpu,
            model,
            context,
            activation,
            dims: MlaDims::of(config),
            eps: config.rms_eps,
            ops: vec![],
        }
    }

    /// The dispatches from token id to `logits`.
    pub(super) fn step(mut self, logits: &Range) -> Result<Vec<Op>, GpuError> {
        let model = self.model;
        for (what, width) in [
            ("query heads", self.dims.head()),
            ("latents", self.dims.kv_lora),
        ] {
            if !width.is_multiple_of(32) {
                let missing = format!("a kernel for {what} of {width}, no multiple of 32");
                return Err(unsupported(self.gpu, &missing));
            }
        }
        let norms: Vec<&Range> = model
            .layers
            .iter()
            .map(|l| &l.attn_norm)
            .chain([&model.output_norm])
            .collect();
        let mut stream = self.stream(model.token_embd.cols, norms[0])?;
        let embedding = self.stream_output(&stream);
        self.ops.extend(token_embed::ops(
            &model.token_embd,
            &self.context.history,
            &stream.x,
            &embedding,
            self.activation,
        ));
        for (i, layer) in model.layers.iter().enumerate() {
            let begin = self.ops.len();
            let (after, logits) = self.attention(layer, &self.context.cache[i], &stream)?;
            let middle = self.ops.len();
            stream = self.feed_forward(layer, &after, logits, norms[i + 1])?;
            belong(&mut self.ops[begin..middle], Part::Attention(i));
            belong(&mut self.ops[middle..], Part::FeedForward(i));
        }
        let head = GpuTokenMatvec {
            weight: &model.output,
            activation: self.activation,
            x: Input::Prepared(self.normed(&stream), 0),
            residual: None,
            y: Some(logits.clone()),
            prepared: None,
        };
        self.ops.extend(head.ops(self.gpu)?);
        Ok(self.ops)
    }

    fn buffer(&self, name: &'static str, bytes: u32) -> Result<Range, GpuError> {
        Ok(Range::whole(&self.gpu.storage(name, u64::from(bytes))?))
    }

    pub(super) fn floats(&self, name: &'static str, n: u32) -> Result<Range, GpuError> {
        self.buffer(name, n * 4)
    }

    /// `n` prepared values.
    fn values(&self, name: &'static str, n: u32) -> Result<Range, GpuError> {
        self.buffer(name, n.div_ceil(32) * self.activation.unit_bytes() as u32)
    }

    /// Buffers for the residual stream, prepared for the norm `norm`.
    fn stream(&self, width: u32, norm: &Range) -> Result<Stream, GpuError> {
        Ok(Stream {
            x: self.floats("residual stream", width)?,
            values: self.values("prepared residual stream", width)?,
            squares: self.floats("residual stream squares", width / 16)?,
            norm: norm.clone(),
        })
    }

    fn stream_output(&self, stream: &Stream) -> TokenOutput {
        TokenOutput {
            values: stream.values.clone(),
            norm: Some((stream.norm.clone(), stream.squares.clone())),
        }
    }

    /// The stream divided by its root mean square.
    pub(super) fn normed(&self, stream: &Stream) -> TokenInput {
        TokenInput {
            values: stream.values.clone(),
            rms: Some((stream.squares.clone(), self.eps)),
        }
    }

    /// y = W x as f32.
    pub(super) fn product(
        &mut self,
        name: &'static str,
        weight: &GpuWeight,
        x: Input,
    ) -> Result<Range, GpuError> {
        let y = self.floats(name, weight.total_rows())?;
        let op = GpuTokenMatvec {
            weight,
            activation: self.activation,
            x,
            residual: None,
            y: Some(y.clone()),
            prepared: None,
        };
        self.ops.extend(op.ops(self.gpu)?);
        Ok(y)
    }

    /// The query heads as f32, and prepared: without a norm in between the same where these are floats.
    fn query(&mut self, weight: &GpuWeight, x: TokenInput) -> Result<(Range, Range), GpuError> {
        let y = self.floats("q", weight.total_rows())?;
        let values = match self.activation {
            Activation::Bytes => Some(self.values("prepared q", weight.total_rows())?),
            Activation::Floats => None,
        };
        let prepared = values
            .clone()
            .map(|values| TokenOutput { values, norm: None });
        let op = GpuTokenMatvec {
            weight,
            activation: self.activation,
            x: Input::Prepared(x, 0),
            residual: None,
            y: Some(y.clone()),
            prepared,
        };
        self.ops.extend(op.ops(self.gpu)?);
        let values = values.unwrap_or_else(|| y.clone());
        Ok((y, values))
    }

    /// The latent of the query, prepared, before its norm.
    pub(super) fn query_latent(
        &mut self,
        attn_q_a: &GpuWeight,
        norm: &Range,
        x: TokenInput,
    ) -> Result<TokenInput, GpuError> {
        let rank = attn_q_a.rows;
        let values = self.values("prepared q_a", rank)?;
        let squares = self.floats("q_a squares", rank / 16)?;
        let q_a = GpuTokenMatvec {
            weight: attn_q_a,
            activation: self.activation,
            x: Input::Prepared(x, 0),
            residual: None,
            y: None,
            prepared: Some(TokenOutput {
                values: values.clone(),
                norm: Some((norm.clone(), squares.clone())),
            }),
        };
        self.ops.extend(q_a.ops(self.gpu)?);
        Ok(TokenInput {
            values,
            rms: Some((squares, self.eps)),
        })
    }

    /// The absorbed and the rotated queries; the new row goes to the cache.
    fn absorbed_query(
        &mut self,
        layer: &GpuLayer,
        cache: &Range,
        stream: &Stream,
    ) -> Result<[Range; 2], GpuError> {
        let dims = self.dims;
        let (heads, head) = (dims.heads as u32, dims.head() as u32);
        let x = self.normed(stream);
        let (q, heads_input, kv_a) = match &layer.q {
            GpuQuery::Full { attn_q } => {
                let (q, values) = self.query(attn_q, x.clone())?;
                (
                    q,
                    values,
                    self.product("kv_a", &layer.attn_kv_a_mqa, Input::Prepared(x, 0))?,
                )
            }
            GpuQuery::Lora {
                attn_q_a,
                attn_q_a_norm,
                attn_q_b,
            } => {
                let q_a = self.query_latent(attn_q_a, attn_q_a_norm, x.clone())?;
                // Beside q_a: it does not wait.
                let kv_a = self.product("kv_a", &layer.attn_kv_a_mqa, Input::Prepared(x, 0))?;
                let (q, values) = self.query(attn_q_b, q_a)?;
                (q, values, kv_a)
            }
        };
        let heads_input = TokenInput {
            values: heads_input,
            rms: None,
        };
        let q_lat = self.product(
            "q_lat",
            &layer.attn_k_b,
            Input::Prepared(heads_input, head / 32),
        )?;
        let q_pe = self.floats("q_pe", heads * dims.rope as u32)?;
        self.ops.push(rope_cache::op(&rope_cache::GpuRopeCache {
            queries: Some(rope_cache::Queries {
                q,
                q_pe: q_pe.clone(),
            }),
            kv_a,
            parts: 1,
            kv_a_norm: layer.attn_kv_a_norm.clone(),
            eps: self.eps,
            rope_table: self.context.rope_table.clone(),
            dims,
            max_tokens: 1,
            cache: cache.clone(),
        }));
        Ok([q_lat, q_pe])
    }

    /// The stream after the attention, and with a composed router the experts' logits times its root mean square.
    fn attention(
        &mut self,
        layer: &GpuLayer,
        cache: &Range,
        stream: &Stream,
    ) -> Result<(Stream, Option<Range>), GpuError> {
        let dims = self.dims;
        let (heads, kv_lora) = (dims.heads as u32, dims.kv_lora as u32);
        let [qk, vo] = self.context.composed(layer, 1);
        let [q_lat, q_pe] = match qk {
            Some(qk) => self.composed_query(layer, qk, cache, stream)?,
            None => self.absorbed_query(layer, cache, stream)?,
        };
        let attention = GpuAttention {
            form: self.context.form(1),
            q_lat,
            q_pe,
            cache: cache.clone(),
            dims,
            scale: self.model.model.config.softmax_scale(),
            max_tokens: 1,
            partials: self.context.partials.clone(),
        };
        let short = self.context.short;
        if short > 0 {
            let op = attention.short_op(self.gpu);
            self.ops.push(op.only(When::Rows(0, short)));
        }
        self.ops.extend(attention.ops_above(short));
        if let Some(vo) = vo {
            let latents = self.values("latents", heads * kv_lora)?;
            self.ops.push(self.merge(&latents));
            let x = TokenInput {
                values: latents,
                rms: None,
            };
            let after = self.residual_product(vo, x, stream, &layer.ffn_norm)?;
            return Ok((after, None));
        }
        let values = self.head_values(&layer.attn_v_b)?;
        let input = TokenInput {
            values: values.clone(),
            rms: None,
        };
        let after = self.residual_product(&layer.attn_output, input, stream, &layer.ffn_norm)?;
        let logits = self.composed_logits(layer, values, stream)?;
        Ok((after, logits))
    }

    /// The dispatch that joins the attention's slices.
    fn merge(&self, latents: &Range) -> Op {
        let output = match self.activation {
            Activation::Bytes => attention_merge::Output::Bytes,
            Activation::Floats => attention_merge::Output::Floats,
        };
        attention_merge::op(&self.context.partials, self.dims, 1, latents, output)
    }

    /// The heads' values, prepared, from the slices of the attention: joined by the product itself where they are few, else
    /// by a dispatch before it.
    fn head_values(&mut self, attn_v_b: &GpuWeight) -> Result<Range, GpuError> {
        let (gpu, dims, partials) = (self.gpu, self.dims, &self.context.partials);
        let values = self.values("values", attn_v_b.total_rows())?;
        let activation = self.activation;
        let product = |x: Input| GpuTokenMatvec {
            weight: attn_v_b,
            activation,
            x,
            residual: None,
            y: None,
            prepared: Some(TokenOutput {
                values: values.clone(),
                norm: None,
            }),
        };
        let joining = product(Input::Slices(partials.clone(), dims));
        let most = match gpu.geometry(&joining.site()) {
            Some(_) => gpu.choices.merge_up_to(activation),
            None => 0,
        };
        if most > 0 {
            let ops = joining.ops(gpu)?;
            let few = ops.into_iter().map(|op| op.only(When::SplitsUpTo(most)));
            self.ops.extend(few);
        }
        if (most as usize) < MAX_SLICES {
            let latents = self.values("latents", (dims.heads * dims.kv_lora) as u32)?;
            let merge = self.merge(&latents);
            let latents = TokenInput {
                values: latents,
                rms: None,
            };
            let ops = product(Input::Prepared(latents, dims.kv_lora as u32 / 32)).ops(gpu)?;
            let ops = [merge].into_iter().chain(ops);
            let many = ops.map(|op| op.only(When::SplitsAbove(most)));
            self.ops.extend(many);
        }
        Ok(values)
    }

    /// The stream after adding W x, prepared for the norm `norm`.
    fn residual_product(
        &mut self,
        weight: &GpuWeight,
        x: TokenInput,
        stream: &Stream,
        norm: &Range,
    ) -> Result<Stream, GpuError> {
        let after = self.stream(weight.total_rows(), norm)?;
        let op = GpuTokenMatvec {
            weight,
            activation: self.activation,
            x: Input::Prepared(x, 0),
            residual: Some(stream.x.clone()),
            y: Some(after.x.clone()),
            prepared: Some(self.stream_output(&after)),
        };
        self.ops.extend(op.ops(self.gpu)?);
        Ok(after)
    }

    fn feed_forward(
        &mut self,
        layer: &GpuLayer,
        stream: &Stream,
        logits: Option<Range>,
        next: &Range,
    ) -> Result<Stream, GpuError> {
        match &layer.ffn {
            GpuFfn::Dense(mlp) => {
                let h = self.values("h", mlp.gate.rows)?;
                let gate_up = GpuTokenGateUp {
                    activation: self.activation,
                    experts: None,
                    raw_logits: false,
                    shared: Some([&mlp.gate, &mlp.up]),
                    x: self.normed(stream),
                    h: h.clone(),
                };
                self.ops.extend(gate_up.ops(self.gpu)?);
                self.residual_product(
                    &mlp.down,
                    TokenInput {
                        values: h,
                        rms: None,
                    },
                    stream,
                    next,
                )
            }
            GpuFfn::Moe(moe) => self.experts(moe, stream, logits, next),
        }
    }

    /// The experts' logits.
    fn router_logits(&mut self, weight: &GpuWeight, stream: &Stream) -> Result<Range, GpuError> {
        // The rounding of a byte should not choose experts.
        let exact = self.activation == Activation::Bytes;
        if token_router::fits(weight.ty, weight.cols) {
            let y = self.floats("router logits", weight.rows)?;
            let router = GpuTokenRouter {
                weight,
                x: if exact { &stream.x } else { &stream.values }.clone(),
                norm: exact.then(|| stream.norm.clone()),
                scaling: Scaling::Rms(stream.squares.clone(), self.eps),
                y: y.clone(),
            };
            self.ops.extend(router.ops());
            return Ok(y);
        }
        let x = if exact {
            let (x, norm) = (stream.x.clone(), stream.norm.clone());
            Input::Stream(x, norm, stream.squares.clone(), self.eps)
        } else {
            Input::Prepared(self.normed(stream), 0)
        };
        self.product("router logits", weight, x)
    }

    fn experts(
        &mut self,
        moe: &GpuMoe,
        stream: &Stream,
        composed: Option<Range>,
        next: &Range,
    ) -> Result<Stream, GpuError> {
        let GpuMoe {
            ffn_gate_inp,
            exp_probs_b,
            experts,
            shared,
        } = moe;
        let config = self.model.experts();
        let used = config.used as u32;
        let raw_logits = composed.is_some();
        let logits = match composed {
            Some(logits) => logits,
            None => self.router_logits(ffn_gate_inp, stream)?,
        };
        let ids = self.floats("expert ids", used)?;
        let weights = self.floats("expert weights", used)?;
        let router = GpuRouter {
            logits,
            parts: 1,
            bias: exp_probs_b.clone(),
            experts: config,
            max_tokens: 1,
            ids: ids.clone(),
            weights: weights.clone(),
        };
        let h = self.values(
            "h",
            used * experts.gate.rows + shared.as_ref().map_or(0, |s| s.gate.rows),
        )?;
        let gate_up = GpuTokenGateUp {
            activation: self.activation,
            experts: Some(([&experts.gate, &experts.up], router)),
            raw_logits,
            shared: shared.as_ref().map(|s| [&s.gate, &s.up]),
            x: self.normed(stream),
            h: h.clone(),
        };
        self.ops.extend(gate_up.ops(self.gpu)?);
        let after = self.stream(experts.down.rows, next)?;
        let down = GpuTokenMoeDown {
            activation: self.activation,
            down: &experts.down,
            shared: shared.as_ref().map(|s| &s.down),
            h,
            ids,
            weights,
            used,
            residual: stream.x.clone(),
            y: after.x.clone(),
            prepared: self.stream_output(&after),
        };
        self.ops.extend(down.ops(self.gpu)?);
        Ok(after)
    }
}

#[cfg(test)]
mod tests {
    use super::super::context;
    use super::*;
    use crate::engine::ModelSource;
    use crate::gpu::pipeline::Access;
    use crate::gpu::record::State;
    use crate::gpu::{GpuOptions, Tier};
    use crate::kernels::gemm;
    use crate::model::Model;
    use std::sync::Arc;

    /// How many dispatches each of `ops` waits for one after another, itself included: those that wrote what it binds.
    fn levels<'a>(ops: &[&'a Op]) -> Vec<usize> {
        let mut written: Vec<(&wgpu::Buffer, usize)> = vec![];
        let level = |op: &&'a Op| {
            let bound = |buffer: &wgpu::Buffer| op.bindings.iter().any(|b| b.buffer == *buffer);
            let before = written.iter().filter(|(buffer, _)| bound(buffer));
            let level = 1 + before.map(|(_, level)| *level).max().unwrap_or(0);
            for (binding, access) in op.bindings.iter().zip(&op.spec.access) {
                if *access == Access::Write {
                    written.push((&binding.buffer, level));
                }
            }
            level
        };
        ops.iter().map(level).collect()
    }

    #[test]
    fn a_layer_with_experts_is_nine_dependent_dispatches() {
        for tier in [Tier::Subgroup, Tier::Int8] {
            let options = GpuOptions {
                tier: Some(tier),
                ..Default::default()
            };
            if let Ok(gpu) = Gpu::open(&options) {
                check_layers(gpu);
            }
        }
    }

    fn check_layers(gpu: Gpu) {
        let activation = gpu.tier.activation().expect("a tier with subgroups");
        let gguf = ModelSource::Embedded.open().expect("it is in the program");
        let model = Model::load(Arc::new(gguf)).expect("it is supported");
        let model = GpuModel::load(Arc::new(gpu), Arc::new(model), &mut |_, _| {});
        let model = model.expect("it is small");
        let context = context(&model.gpu, &model, 16, 1, gemm::Form::float(&model.gpu))
            .expect("a small cache");
        let vocab = model.model.config.vocab_size as u64;
        let logits = model.gpu.storage("logits", vocab * 4).expect("small");
        let ops = TokenRecipe::new(&model, &context, activation).step(&Range::whole(&logits));
        let ops = ops.expect("its shapes suit");
        // With few slices v_b joins them itself, with many a dispatch before it.
        for (splits, dispatches, dense, experts) in [(1, 11, 8, 9), (200, 12, 9, 10)] {
            let state = State {
                splits,
                ..State::default()
            };
            let ops: Vec<_> = ops.iter().filter(|op| op.when.holds(&state)).collect();
            let levels = levels(&ops);
            let last = |layer: usize| {
                let of_layer =
                    (ops.iter().zip(&levels)).filter(|(op, _)| op.part.layer() == Some(layer));
                of_layer
                    .map(|(_, level)| *level)
                    .max()
                    .expect("it has some")
            };
            assert_eq!(last(0), 1 + dense, "after the embedding");
            for layer in 1..model.layers.len() {
                assert_eq!(last(layer) - last(layer - 1), experts, "layer {layer}");
                let count = ops.iter().filter(|op| op.part.layer() == Some(layer));
                // kv_a beside q_a, the cache's row beside k_b.
                assert_eq!(count.count(), dispatches, "layer {layer}");
            }
        }
    }
}
