//! The layer recipe for many tokens: products as matrix products, experts grouped by their tokens.
//!
//! All layers share one set of buffers, the same as those of [`Recipe`](super::recipe::Recipe) for chunks where the names are.

use super::prompt_buffers::{ABSORBED, INNER, NORMED, Names, OUTPUT_PARTS, Q_A, product_parts};
use super::recipe::{Context, Scratch, layers, role_of};
use super::weights::{GpuLayer, GpuModel, GpuQuery};
use crate::gpu::buffer::{Buffer, Range, Role};
use crate::gpu::call::{Call, When};
use crate::gpu::memory::GpuWeight;
use crate::gpu::{Gpu, GpuError};
use crate::kernels::attention::{Form as AttentionForm, GpuAttention};
use crate::kernels::expand_kv;
use crate::kernels::expert_rows::Other;
use crate::kernels::gemm::{Form, GpuGemm, Input};
use crate::kernels::prompt_attention::GpuPromptAttention;
use crate::kernels::rows_f16::GpuRowsF16;
use crate::kernels::token::TokenInput;
use crate::kernels::token_matvec::{self, GpuTokenMatvec};
use crate::kernels::{MlaDims, attention_merge, rope_cache};
use crate::quant::activation::Activation;

/// Builds the dispatches of a step for `least_tokens` to `max_tokens` tokens.
pub(super) struct RecipePrompt<'a> {
    pub(super) gpu: &'a Gpu,
    pub(super) model: &'a GpuModel,
    context: &'a Context,
    scratch: &'a mut Scratch,
    /// What the step may be replayed for.
    least_tokens: u32,
    pub(super) max_tokens: u32,
    pub(super) form: Form,
    dims: MlaDims,
    pub(super) eps: f32,
    /// What `attn_output` left in parts and the residual: the norm that follows adds them up.
    pub(super) unsummed: Option<(Parts, Range)>,
    /// What was recorded so far.
    pub calls: Vec<Call>,
}

/// Rows of a chunk as products take them.
#[derive(Clone)]
pub(super) struct Rows {
    pub input: Input,
    /// Values from one row to the next.
    pub stride: u32,
}

/// What a product leaves, (count, tokens, rows), to be added up.
pub(super) struct Parts {
    pub range: Range,
    pub count: u32,
    /// Those of the product, also for an attention that has fewer; 0 where there is nothing to be added up.
    pub tokens: u32,
    /// What may be read instead, where products by tiles of two heights stand beside each other.
    pub other: Option<Other>,
}

impl Parts {
    /// Nothing to be added up.
    pub(super) fn whole(range: &Range) -> Self {
        let range = range.clone();
        Self {
            range,
            count: 1,
            tokens: 0,
            other: None,
        }
    }
}

/// What the rows of a layer's cache are made of.
struct CacheRows<'a> {
    layer: &'a GpuLayer,
    /// (parts, tokens, kv_lora + rope).
    kv_a: &'a Parts,
    cache: &'a Range,
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
            unsummed: None,
            calls: vec![],
        }
    }

    /// A buffer of (max_tokens, width) words of 4 bytes.
    pub(super) fn activation(&mut self, name: &'static str, width: u32) -> Result<Range, GpuError> {
        self.words(name, u64::from(self.max_tokens) * u64::from(width))
    }

    pub(super) fn words(&mut self, name: &'static str, words: u64) -> Result<Range, GpuError> {
        if let Some(range) = self.scratch.get(name).filter(|r| r.size >= words * 4) {
            return Ok(range.clone());
        }
        let range = Range::whole(&Buffer::new(name, words * 4, role_of(name)));
        self.scratch.insert(name, range.clone());
        Ok(range)
    }

    /// `x` (max_tokens * used, cols) as the products of this form take it, normed first where a weight is given.
    pub(super) fn rows(
        &mut self,
        names: Names,
        x: &Range,
        cols: u32,
        used: u32,
        norm: Option<&Range>,
    ) -> Result<Rows, GpuError> {
        self.rows_of(names, &Parts::whole(x), cols, used, norm)
    }

    pub(super) fn rows_of(
        &mut self,
        [floats, halves, scales]: Names,
        x: &Parts,
        cols: u32,
        used: u32,
        norm: Option<&Range>,
    ) -> Result<Rows, GpuError> {
        let input = match (self.form, norm) {
            (Form::Float { .. }, None) if x.count == 1 => Input::Floats(x.range.clone()),
            (Form::Float { .. }, _) => Input::Floats(self.activation(floats, used * cols)?),
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
            self.calls.push(
                GpuRowsF16 {
                    x: x.range.clone(),
                    other: x.other.clone(),
                    parts: x.count,
                    cols,
                    norm: norm.map(|n| (n.clone(), self.eps)),
                    halves,
                    floats,
                    max_tokens: self.max_tokens,
                    used,
                    sum: None,
                    last: false,
                }
                .call(),
            );
        }
        Ok(Rows {
            input,
            stride: cols,
        })
    }

    /// The product W x alone, to be completed.
    pub(super) fn gemm<'w>(&self, weight: &'w GpuWeight, x: &Rows, y: &Range) -> GpuGemm<'w> {
        GpuGemm {
            form: self.form,
            weight,
            up: None,
            max_tokens: self.max_tokens,
            x: x.input.clone(),
            x_stride: x.stride,
            x_group_stride: 0,
            experts: None,
            residual: None,
            parts: 1,
            y: y.clone(),
            tile: None,
        }
    }

    /// y = W x (+ residual); where W has heads they read `head` values each.
    pub(super) fn product(
        &mut self,
        name: &'static str,
        weight: &GpuWeight,
        x: &Rows,
        head: u32,
        residual: Option<&Range>,
    ) -> Result<Range, GpuError> {
        let y = self.activation(name, weight.total_rows())?;
        let product = GpuGemm {
            x_group_stride: head,
            residual: residual.cloned(),
            ..self.gemm(weight, x, &y)
        };
        self.calls.extend(product.calls(self.gpu));
        Ok(y)
    }

    /// The parts that suit a weight's shape.
    fn product_parts(&self, weight: &GpuWeight) -> u32 {
        let of = self.gpu.machine;
        product_parts(of, self.form, weight.rows, weight.cols, self.max_tokens)
    }

    /// W x in as many parts as suit its shape.
    fn in_parts(
        &mut self,
        name: &'static str,
        weight: &GpuWeight,
        x: &Rows,
    ) -> Result<Parts, GpuError> {
        let count = self.product_parts(weight);
        let range = self.activation(name, count * weight.total_rows())?;
        let product = GpuGemm {
            parts: count,
            ..self.gemm(weight, x, &range)
        };
        self.calls.extend(product.calls(self.gpu));
        Ok(Parts {
            range,
            count,
            tokens: self.max_tokens,
            other: None,
        })
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

    /// The logits (max_tokens, vocab) of hidden states, of which the step's slot chooses those that begin at one of `slices`.
    pub(super) fn head(&mut self, slices: &[Range], logits: &Range) -> Result<(), GpuError> {
        let model = self.model;
        let w = &model.output;
        let first = self.calls.len();
        let x = self.rows(NORMED, &slices[0], w.cols, 1, Some(&model.output_norm))?;
        let rows = self.calls.remove(first);
        self.calls
            .push(rows.with_alternatives("0", slices.to_vec()));
        self.calls.extend(self.gemm(w, &x, logits).calls(self.gpu));
        Ok(())
    }

    /// The logits (vocab) of the last token, from hidden states (max_tokens, d), by the kernel of decoding in the tiers that have
    /// one: on floats, as exact as the rest of a prompt.
    pub(super) fn last_head(&mut self, hidden: &Range, logits: &Range) -> Result<(), GpuError> {
        let (w, norm) = (&self.model.output, &self.model.output_norm);
        let row = Range::whole(&Buffer::new(
            "last row",
            u64::from(w.cols) * 4,
            Role::Floats,
        ));
        let rows = GpuRowsF16 {
            x: hidden.clone(),
            other: None,
            parts: 1,
            cols: w.cols,
            norm: Some((norm.clone(), self.eps)),
            halves: None,
            floats: Some(row.clone()),
            max_tokens: self.max_tokens,
            used: 1,
            sum: None,
            last: true,
        };
        self.calls.push(rows.call());
        let x = TokenInput {
            values: row,
            rms: None,
        };
        let product =
            GpuTokenMatvec::new(w, Activation::Floats, token_matvec::Input::Prepared(x, 0))
                .bind("y", logits);
        self.calls.extend(product.calls(self.gpu)?);
        Ok(())
    }

    fn attention(&mut self, layer: &GpuLayer, cache: &Range, x: &Range) -> Result<Range, GpuError> {
        let kv_a = &layer.attn_kv_a_mqa;
        let input = self.rows(NORMED, x, kv_a.cols, 1, Some(&layer.attn_norm))?;
        // What does not wait for each other stands together: products of the same input and the expansion's weights; the cache's
        // rows and the query's latent; queries and what the context expands to.
        let (q, kv_a) = match &layer.q {
            GpuQuery::Full { attn_q } => {
                let range = self.product("q", attn_q, &input, 0, None)?;
                let kv_a = self.in_parts("kv_a", kv_a, &input)?;
                (Parts::whole(&range), kv_a)
            }
            GpuQuery::Lora { attn_q_a, .. } => (
                self.in_parts("q_a", attn_q_a, &input)?,
                self.in_parts("kv_a", kv_a, &input)?,
            ),
        };
        self.expansion(layer);
        let rows = CacheRows {
            layer,
            kv_a: &kv_a,
            cache,
        };
        if self.context.expanded.is_some() {
            let call = self.rope_cache(&rows, None).only(When::Many);
            self.calls.push(call);
        }
        let q = match &layer.q {
            GpuQuery::Full { .. } => q.range,
            GpuQuery::Lora {
                attn_q_a_norm,
                attn_q_b,
                ..
            } => {
                let q_a = self.rows_of(Q_A, &q, attn_q_b.cols, 1, Some(attn_q_a_norm))?;
                self.product("q", attn_q_b, &q_a, 0, None)?
            }
        };
        let values = self.attend(&rows, &q)?;
        let values = self.rows(INNER, &values, layer.attn_output.cols, 1, None)?;
        let w = &layer.attn_output;
        if self.product_parts(w) == 1 {
            return self.product("after attention", w, &values, 0, Some(x));
        }
        let parts = self.in_parts(OUTPUT_PARTS, w, &values)?;
        self.unsummed = Some((parts, x.clone()));
        self.activation("after attention", w.rows)
    }

    /// The weights by which the context is expanded, where it is.
    fn expansion(&mut self, layer: &GpuLayer) {
        if let Some(expanded) = &self.context.expanded {
            let (k_b, v_b) = (&layer.attn_k_b, &layer.attn_v_b);
            let (matrices, weights) = (expanded.form.is_matrix(), &expanded.scratch.weights);
            let calls = expand_kv::weights_calls(k_b, v_b, expanded.dims, matrices, weights);
            self.calls
                .extend(calls.into_iter().map(|call| call.only(When::Many)));
        }
    }

    /// The rows of the chunk in the cache, and the rotation of queries where they are given.
    fn rope_cache(&self, rows: &CacheRows<'_>, queries: Option<rope_cache::Queries>) -> Call {
        rope_cache::call(&rope_cache::GpuRopeCache {
            queries,
            kv_a: rows.kv_a.range.clone(),
            parts: rows.kv_a.count,
            part_tokens: rows.kv_a.tokens,
            kv_a_norm: rows.layer.attn_kv_a_norm.clone(),
            eps: self.eps,
            rope_table: self.context.rope_table.clone(),
            dims: self.dims,
            cache: rows.cache.clone(),
        })
    }

    /// The values (max_tokens, heads, v) that the queries attend to: the one place that knows which attention a prompt takes.
    /// Where few tokens may take another than many, both are recorded, and a replay encodes one.
    fn attend(&mut self, rows: &CacheRows<'_>, q: &Range) -> Result<Range, GpuError> {
        let Some(expanded) = &self.context.expanded else {
            return self.absorbed(rows, q);
        };
        let values = self.activation("values", rows.layer.attn_v_b.total_rows())?;
        let attention = GpuPromptAttention {
            form: expanded.form,
            q: q.clone(),
            rope_table: self.context.rope_table.clone(),
            cache: rows.cache.clone(),
            dims: expanded.dims,
            scale: self.model.model.config.softmax_scale(),
            max_tokens: self.max_tokens,
            scratch: &expanded.scratch,
            values: values.clone(),
        };
        let calls = attention.calls(self.gpu).map(|call| call.only(When::Many));
        self.calls.extend(calls);
        let most_few = expanded.most_few();
        if self.least_tokens <= most_few {
            let (first, all) = (self.calls.len(), self.max_tokens);
            self.max_tokens = all.min(most_few);
            let most = self.context.most(self.max_tokens);
            let absorbed = self.absorbed(rows, q);
            self.max_tokens = all;
            absorbed?;
            for call in &mut self.calls[first..] {
                call.when = When::Few;
                call.most = Some(most);
            }
        }
        Ok(values)
    }

    /// The same in the latent space, as for a single token.
    fn absorbed(&mut self, rows: &CacheRows<'_>, q: &Range) -> Result<Range, GpuError> {
        let (layer, dims) = (rows.layer, self.dims);
        let (heads, kv_lora, head) = (dims.heads as u32, dims.kv_lora as u32, dims.head() as u32);
        let q_pe = self.activation("q_pe", heads * dims.rope as u32)?;
        let queries = rope_cache::Queries {
            q: q.clone(),
            q_pe: q_pe.clone(),
        };
        let rope_cache = self.rope_cache(rows, Some(queries));
        self.calls.push(rope_cache);
        let q_rows = self.rows(ABSORBED, q, heads * head, 1, None)?;
        let q_lat = self.product("q_lat", &layer.attn_k_b, &q_rows, head, None)?;
        let attention = GpuAttention {
            form: AttentionForm::Vector,
            q_lat,
            q_pe,
            cache: rows.cache.clone(),
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
        let latent = self.rows(ABSORBED, &latent, heads * kv_lora, 1, None)?;
        self.product("values", &layer.attn_v_b, &latent, kv_lora, None)
    }
}
