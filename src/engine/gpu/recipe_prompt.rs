//! The layer recipe for many tokens: products as matrix products, experts grouped by their tokens.
//!
//! All layers share one set of buffers, the same as those of [`Recipe`](super::recipe::Recipe) for chunks where the names are.

use super::prompt_buffers::{ABSORBED, INNER, NORMED, Names, Q_A};
use super::recipe::{Context, Scratch, layers};
use super::weights::{GpuFfn, GpuLayer, GpuMlp, GpuModel, GpuMoe, GpuQuery};
use crate::gpu::memory::GpuWeight;
use crate::gpu::record::{Op, Range, When};
use crate::gpu::{Gpu, GpuError};
use crate::kernels::attention::{Form as AttentionForm, GpuAttention};
use crate::kernels::expert_rows::{GpuExpertRows, tile_count};
use crate::kernels::gemm::{Form, GpuExperts, GpuGemm, Input, Tile};
use crate::kernels::moe_combine::GpuMoeCombine;
use crate::kernels::prompt_attention::GpuPromptAttention;
use crate::kernels::rows_f16::GpuRowsF16;
use crate::kernels::{MlaDims, attention_merge, rope_cache, router};

/// Builds the dispatches of a step for `least_tokens` to `max_tokens` tokens.
pub(super) struct RecipePrompt<'a> {
    gpu: &'a Gpu,
    model: &'a GpuModel,
    context: &'a Context,
    scratch: &'a mut Scratch,
    /// What the step may be replayed for.
    least_tokens: u32,
    max_tokens: u32,
    form: Form,
    dims: MlaDims,
    eps: f32,
    /// What was recorded so far.
    pub ops: Vec<Op>,
}

/// Rows of a chunk as products take them.
struct Rows {
    input: Input,
    /// Values from one row to the next.
    stride: u32,
}

impl<'a> RecipePrompt<'a> {
    pub(super) fn new(
        model: &'a GpuModel,
        context: &'a Context,
        scratch: &'a mut Scratch,
        least_tokens: u32,
        max_tokens: u32,
    ) -> Self {
        let config = &model.model.config;
        Self {
            gpu: &model.gpu,
            model,
            context,
            least_tokens,
            max_tokens,
            form: context.products,
            dims: MlaDims::of(config),
            eps: config.rms_eps,
            scratch,
            ops: vec![],
        }
    }

    /// A buffer of (max_tokens, width) words of 4 bytes.
    fn activation(&mut self, name: &'static str, width: u32) -> Result<Range, GpuError> {
        self.words(name, u64::from(self.max_tokens) * u64::from(width))
    }

    fn words(&mut self, name: &'static str, words: u64) -> Result<Range, GpuError> {
        if let Some(range) = self.scratch.get(name).filter(|r| r.size >= words * 4) {
            return Ok(range.clone());
        }
        let range = Range::whole(&self.gpu.storage(name, words * 4)?);
        self.scratch.insert(name, range.clone());
        Ok(range)
    }

    /// `x` (max_tokens * used, cols) as the products of this form take it, normed first where a weight is given.
    fn rows(
        &mut self,
        [floats, halves, scales]: Names,
        x: &Range,
        cols: u32,
        used: u32,
        norm: Option<&Range>,
    ) -> Result<Rows, GpuError> {
        let input = match (self.form, norm) {
            (Form::Float { .. }, None) => Input::Floats(x.clone()),
            (Form::Float { .. }, Some(_)) => Input::Floats(self.activation(floats, used * cols)?),
            (Form::Matrix(_), _) => Input::Halves([
                self.activation(halves, used * cols / 2)?,
                self.activation(scales, used)?,
            ]),
        };
        let (halves, floats) = match &input {
            Input::Halves(halves) => (Some(halves.clone()), None),
            Input::Floats(floats) => (None, norm.is_some().then(|| floats.clone())),
        };
        if halves.is_some() || floats.is_some() {
            self.ops.push(
                GpuRowsF16 {
                    x: x.clone(),
                    cols,
                    norm: norm.map(|n| (n.clone(), self.eps)),
                    halves,
                    floats,
                    max_tokens: self.max_tokens,
                    used,
                }
                .op(),
            );
        }
        Ok(Rows {
            input,
            stride: cols,
        })
    }

    /// y = W x (+ residual); where W has heads they read `head` values each.
    fn product(
        &mut self,
        name: &'static str,
        weight: &GpuWeight,
        x: &Rows,
        head: u32,
        residual: Option<&Range>,
    ) -> Result<Range, GpuError> {
        let y = self.activation(name, weight.total_rows())?;
        let product = GpuGemm {
            form: self.form,
            weight,
            up: None,
            max_tokens: self.max_tokens,
            x: x.input.clone(),
            x_stride: x.stride,
            x_group_stride: head,
            experts: None,
            residual: residual.cloned(),
            y: y.clone(),
            tile: None,
        };
        self.ops.extend(product.ops());
        Ok(y)
    }

    /// silu(gate) * up, for all tokens or for those of each expert.
    fn gate_up(
        &mut self,
        name: &'static str,
        mlp: &GpuMlp,
        x: &Rows,
        experts: Option<GpuExperts>,
    ) -> Result<Range, GpuError> {
        let used = experts.as_ref().map_or(1, |e| e.used);
        let y = self.activation(name, used * mlp.gate.rows)?;
        let product = GpuGemm {
            form: self.form,
            weight: &mlp.gate,
            up: Some(&mlp.up),
            max_tokens: self.max_tokens,
            x: x.input.clone(),
            x_stride: x.stride,
            x_group_stride: 0,
            experts,
            residual: None,
            y: y.clone(),
            tile: None,
        };
        self.ops.extend(product.ops());
        Ok(y)
    }

    /// From token ids to the hidden state (max_tokens, d) after the last layer.
    pub(super) fn hidden(&mut self) -> Result<Range, GpuError> {
        let x = self.activation("embedding", self.model.token_embd.cols)?;
        let of = (self.model, self.context, self.max_tokens);
        layers(
            self,
            of,
            x,
            |r| &mut r.ops,
            Self::attention,
            Self::feed_forward,
        )
    }

    /// The logits (max_tokens, vocab) of hidden states, of which the step's slot chooses those that begin at one of `slices`.
    pub(super) fn head(&mut self, slices: &[Range], logits: &Range) -> Result<(), GpuError> {
        let model = self.model;
        let w = &model.output;
        let first = self.ops.len();
        let x = self.rows(NORMED, &slices[0], w.cols, 1, Some(&model.output_norm))?;
        let rows = self.ops.remove(first);
        self.ops.push(rows.with_alternatives(0, slices.to_vec()));
        let product = GpuGemm {
            form: self.form,
            weight: w,
            up: None,
            max_tokens: self.max_tokens,
            x: x.input,
            x_stride: x.stride,
            x_group_stride: 0,
            experts: None,
            residual: None,
            y: logits.clone(),
            tile: None,
        };
        self.ops.extend(product.ops());
        Ok(())
    }

    fn attention(&mut self, layer: &GpuLayer, cache: &Range, x: &Range) -> Result<Range, GpuError> {
        let dims = self.dims;
        let heads = dims.heads as u32;
        let kv_a = &layer.attn_kv_a_mqa;
        let input = self.rows(NORMED, x, kv_a.cols, 1, Some(&layer.attn_norm))?;
        // Products of the same input stand together: they do not wait for each other.
        let (q, kv_a) = match &layer.q {
            GpuQuery::Full { attn_q } => (
                self.product("q", attn_q, &input, 0, None)?,
                self.product("kv_a", kv_a, &input, 0, None)?,
            ),
            GpuQuery::Lora {
                attn_q_a,
                attn_q_a_norm,
                attn_q_b,
            } => {
                let q_a = self.product("q_a", attn_q_a, &input, 0, None)?;
                let kv_a = self.product("kv_a", kv_a, &input, 0, None)?;
                let q_a = self.rows(Q_A, &q_a, attn_q_b.cols, 1, Some(attn_q_a_norm))?;
                (self.product("q", attn_q_b, &q_a, 0, None)?, kv_a)
            }
        };
        let q_pe = self.activation("q_pe", heads * dims.rope as u32)?;
        self.ops.push(rope_cache::op(&rope_cache::GpuRopeCache {
            queries: Some(rope_cache::Queries {
                q: q.clone(),
                q_pe: q_pe.clone(),
            }),
            kv_a,
            kv_a_norm: layer.attn_kv_a_norm.clone(),
            eps: self.eps,
            rope_table: self.context.rope_table.clone(),
            dims,
            max_tokens: self.max_tokens,
            cache: cache.clone(),
        }));
        let values = self.attend(layer, &q, &q_pe, cache)?;
        let values = self.rows(INNER, &values, layer.attn_output.cols, 1, None)?;
        self.product("after attention", &layer.attn_output, &values, 0, Some(x))
    }

    /// The values (max_tokens, heads, v) that the queries attend to: the one place that knows which attention a prompt takes.
    /// Where few tokens may take another than many, both are recorded, and a replay encodes one.
    fn attend(
        &mut self,
        layer: &GpuLayer,
        q: &Range,
        q_pe: &Range,
        cache: &Range,
    ) -> Result<Range, GpuError> {
        let Some(expanded) = &self.context.expanded else {
            return self.absorbed(layer, q, q_pe, cache);
        };
        let values = self.activation("values", layer.attn_v_b.total_rows())?;
        let most_few = expanded.most_few();
        if self.least_tokens <= most_few {
            let (first, all) = (self.ops.len(), self.max_tokens);
            self.max_tokens = all.min(most_few);
            let absorbed = self.absorbed(layer, q, q_pe, cache);
            self.max_tokens = all;
            absorbed?;
            for op in &mut self.ops[first..] {
                op.when = When::Few;
            }
        }
        let attention = GpuPromptAttention {
            form: expanded.form,
            q: q.clone(),
            q_pe: q_pe.clone(),
            cache: cache.clone(),
            dims: expanded.dims,
            scale: self.model.model.config.softmax_scale(),
            max_tokens: self.max_tokens,
            scratch: &expanded.scratch,
            values: values.clone(),
        };
        let ops = attention.ops(&layer.attn_k_b, &layer.attn_v_b);
        self.ops
            .extend(ops.into_iter().map(|op| op.only(When::Many)));
        Ok(values)
    }

    /// The same in the latent space, as for a single token.
    fn absorbed(
        &mut self,
        layer: &GpuLayer,
        q: &Range,
        q_pe: &Range,
        cache: &Range,
    ) -> Result<Range, GpuError> {
        let dims = self.dims;
        let (heads, kv_lora, head) = (dims.heads as u32, dims.kv_lora as u32, dims.head() as u32);
        let q_rows = self.rows(ABSORBED, q, heads * head, 1, None)?;
        let q_lat = self.product("q_lat", &layer.attn_k_b, &q_rows, head, None)?;
        let attention = GpuAttention {
            form: AttentionForm::Vector,
            q_lat,
            q_pe: q_pe.clone(),
            cache: cache.clone(),
            dims,
            scale: self.model.model.config.softmax_scale(),
            max_tokens: self.max_tokens,
            partials: self.context.partials.clone(),
        };
        self.ops.extend(attention.ops());
        let latent = self.activation("latent", heads * kv_lora)?;
        self.ops.push(attention_merge::op(
            &self.context.partials,
            dims,
            self.max_tokens,
            &latent,
            attention_merge::Output::Floats,
        ));
        let latent = self.rows(ABSORBED, &latent, heads * kv_lora, 1, None)?;
        self.product("values", &layer.attn_v_b, &latent, kv_lora, None)
    }

    fn feed_forward(&mut self, layer: &GpuLayer, x: &Range) -> Result<Range, GpuError> {
        match &layer.ffn {
            GpuFfn::Dense(mlp) => {
                let norm = Some(&layer.ffn_norm);
                let input = self.rows(NORMED, x, mlp.gate.cols, 1, norm)?;
                self.dense(["h", "after ffn"], mlp, &input, x)
            }
            GpuFfn::Moe(moe) => self.mixture(moe, &layer.ffn_norm, x),
        }
    }

    /// A dense block or shared expert, and the residual.
    fn dense(
        &mut self,
        [h, y]: [&'static str; 2],
        mlp: &GpuMlp,
        input: &Rows,
        residual: &Range,
    ) -> Result<Range, GpuError> {
        let h = self.gate_up(h, mlp, input, None)?;
        let h = self.rows(INNER, &h, mlp.down.cols, 1, None)?;
        self.product(y, &mlp.down, &h, 0, Some(residual))
    }

    fn mixture(&mut self, moe: &GpuMoe, norm: &Range, x: &Range) -> Result<Range, GpuError> {
        let GpuMoe {
            ffn_gate_inp,
            exp_probs_b,
            experts,
            shared,
        } = moe;
        let config = self.model.experts();
        let (used, count, d) = (config.used as u32, config.count as u32, experts.down.rows);
        let (input, floats) = self.normed_twice(x, norm, ffn_gate_inp.cols)?;
        let logits = self.activation("router logits", ffn_gate_inp.rows)?;
        // In f32: rounding should not choose experts.
        let product = GpuGemm {
            form: Form::float(self.gpu),
            weight: ffn_gate_inp,
            up: None,
            max_tokens: self.max_tokens,
            x: Input::Floats(floats),
            x_stride: ffn_gate_inp.cols,
            x_group_stride: 0,
            experts: None,
            residual: None,
            y: logits.clone(),
            tile: None,
        };
        self.ops.extend(product.ops());
        let ids = self.activation("expert ids", used)?;
        let weights = self.activation("expert weights", used)?;
        self.ops.push(router::op(&router::GpuRouter {
            logits,
            bias: exp_probs_b.clone(),
            experts: config,
            max_tokens: self.max_tokens,
            ids: ids.clone(),
            weights: weights.clone(),
        }));
        let height = Tile::for_experts(self.form, (self.max_tokens * used).div_ceil(count));
        let tiles = u64::from(tile_count(self.max_tokens, used, height, count));
        let list = GpuExpertRows {
            ids,
            experts: count,
            used,
            height,
            max_tokens: self.max_tokens,
            slots: self.activation("expert slots", used)?,
            tiles: self.words("expert tiles", tiles * 4)?,
        };
        self.ops.push(list.op());
        let gather = GpuExperts {
            tiles: list.tiles,
            slots: list.slots,
            used,
            height,
            gather: true,
        };
        let residual = match shared {
            Some(mlp) => self.dense(["shared h", "after shared"], mlp, &input, x)?,
            None => x.clone(),
        };
        let h = self.gate_up("h", experts, &input, Some(gather.clone()))?;
        let h = self.rows(INNER, &h, experts.down.cols, used, None)?;
        let slots = self.activation("slots", used * d)?;
        let down = GpuGemm {
            form: self.form,
            weight: &experts.down,
            up: None,
            max_tokens: self.max_tokens,
            x: h.input,
            x_stride: h.stride,
            x_group_stride: 0,
            experts: Some(GpuExperts {
                gather: false,
                ..gather
            }),
            residual: None,
            y: slots.clone(),
            tile: None,
        };
        self.ops.extend(down.ops());
        let y = self.activation("after ffn", d)?;
        self.ops.push(
            GpuMoeCombine {
                slots,
                weights,
                residual,
                y: y.clone(),
                max_tokens: self.max_tokens,
                used,
                rows: d,
            }
            .op(),
        );
        Ok(y)
    }

    /// The normed rows as products of this form take them, and in f32.
    fn normed_twice(
        &mut self,
        x: &Range,
        norm: &Range,
        cols: u32,
    ) -> Result<(Rows, Range), GpuError> {
        let floats = self.activation(NORMED[0], cols)?;
        let halves = match self.form {
            Form::Float { .. } => None,
            Form::Matrix(_) => Some([
                self.activation(NORMED[1], cols / 2)?,
                self.activation(NORMED[2], 1)?,
            ]),
        };
        self.ops.push(
            GpuRowsF16 {
                x: x.clone(),
                cols,
                norm: Some((norm.clone(), self.eps)),
                halves: halves.clone(),
                floats: Some(floats.clone()),
                max_tokens: self.max_tokens,
                used: 1,
            }
            .op(),
        );
        let input = match halves {
            Some(halves) => Input::Halves(halves),
            None => Input::Floats(floats.clone()),
        };
        let rows = Rows {
            input,
            stride: cols,
        };
        Ok((rows, floats))
    }
}
