//! The layer recipe of one token in the tiers with subgroups: every product leaves its output prepared for the next, as bytes
//! or floats, with the sums of squares that a norm in between needs, so that no kernel begins with a norm of its own.

use super::context::TokenLayer;
use super::{BeforeNorm, Given, without_norm};
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Sublayer, When, belong};
use crate::gpu::memory::GpuWeight;
use crate::gpu::{GpuError, Step};
use crate::kernels::attention::MAX_SLICES;
use crate::kernels::router::GpuRouter;
use crate::kernels::token::{self, Divided, TokenInput, TokenOutput};
use crate::kernels::token_embed;
use crate::kernels::token_gate_up::{self, GpuTokenGateUp};
use crate::kernels::token_matvec::{
    GpuTokenMatvec, Input, PartialLogits, ROUTER_ROWS, leaves_partial_logits,
};
use crate::kernels::token_moe_down::GpuTokenMoeDown;
use crate::kernels::token_router::{self, GpuTokenRouter};
use crate::model::{Ffn, Moe};
use crate::models::mla::GpuLayer;
use crate::quant::activation::Activation;

/// The residual stream between two halves of a layer.
pub(super) struct Stream {
    /// (d) f32.
    pub(super) x: Range,
    /// The stream, prepared for the norm that comes next.
    pub(super) prepared: BeforeNorm,
    /// The weight of that norm.
    norm: Range,
}

impl Stream {
    /// The output of a product that leaves the stream in `prepared`.
    fn output(&self) -> TokenOutput {
        self.prepared.output(&self.norm)
    }
}

/// The experts' logits times the root mean square of the stream.
pub(super) struct RawLogits {
    /// (partial_sums, experts) f32, to be added up.
    pub(super) logits: Range,
    pub(super) partial_sums: u32,
}

/// Room for the residual stream behind the last layer, prepared for the output head.
pub fn last_stream(given: Given<'_>) -> BeforeNorm {
    let names = ["last stream", "last stream squares"];
    let d = given.config().embedding_length as u32;
    BeforeNorm::new(names, given.target.activation(), d)
}

/// The step from the id of one token to the stream behind the last layer.
///
/// # Errors
/// [`GpuError::TierUnsupported`] where the tier has no kernel for a size.
pub fn layers(given: Given<'_>, last: &BeforeNorm) -> Result<Step, GpuError> {
    let recipe = TokenRecipe {
        given,
        activation: given.target.activation(),
        calls: vec![],
    };
    Ok(Step::of(given.context.most(1), recipe.layers(last)?))
}

/// The step from that stream to the `logits`.
///
/// # Errors
/// The errors of [`layers`].
pub fn head(given: Given<'_>, last: &BeforeNorm, logits: &Range) -> Result<Step, GpuError> {
    let x = Input::Prepared(last.input(given.config().rms_eps), 0);
    let activation = given.target.activation();
    let product = GpuTokenMatvec::new(&given.weights.output, activation, x).bind("y", logits);
    let calls = product.calls(given.target)?;
    Ok(Step::of(given.context.most(1), calls))
}

/// Builds the dispatches of a decoded token.
pub(super) struct TokenRecipe<'a> {
    pub given: Given<'a>,
    pub activation: Activation,
    /// The dispatches that were recorded so far.
    pub calls: Vec<Call>,
}

impl TokenRecipe<'_> {
    /// The dispatches from token id to the stream behind the last layer.
    fn layers(mut self, last: &BeforeNorm) -> Result<Vec<Call>, GpuError> {
        self.given.check_units()?;
        let weights = self.given.weights;
        let norms = weights.layers.iter().map(|l| &l.attn_norm);
        let norms: Vec<&Range> = norms.chain([&weights.output_norm]).collect();
        let width = weights.token_embd.cols;
        let mut stream = self.stream(width, norms[0]);
        self.calls.extend(token_embed::calls(
            self.given.context.sequences.as_ref(),
            &weights.token_embd,
            &self.given.context.history,
            &stream.x,
            &stream.output(),
            self.activation,
        ));
        for (i, of) in self.given.layers(1).enumerate() {
            let begin = self.calls.len();
            let (after, logits) = self.attention(of, &stream)?;
            let middle = self.calls.len();
            let mut next = self.stream(width, norms[i + 1]);
            if i + 1 == weights.layers.len() {
                next.prepared = last.clone();
            }
            self.feed_forward(of.layer, &after, logits, &next)?;
            stream = next;
            belong(&mut self.calls[begin..middle], Sublayer::Attention(i));
            belong(&mut self.calls[middle..], Sublayer::FeedForward(i));
        }
        Ok(self.calls)
    }

    pub(super) fn eps(&self) -> f32 {
        self.given.config().rms_eps
    }

    pub(super) fn floats(&self, name: &'static str, n: u32) -> Range {
        Range::floats(name, u64::from(n))
    }

    /// `n` prepared values.
    pub(super) fn values(&self, name: &'static str, n: u32) -> Range {
        Range::prepared(name, self.activation, n)
    }

    /// Buffers for the residual stream, prepared for the norm `norm`.
    fn stream(&self, width: u32, norm: &Range) -> Stream {
        let names = ["prepared residual stream", "residual stream squares"];
        Stream {
            x: self.floats("residual stream", width),
            prepared: BeforeNorm::new(names, self.activation, width),
            norm: norm.clone(),
        }
    }

    /// y = W x as f32.
    pub(super) fn product(
        &mut self,
        name: &'static str,
        weight: &GpuWeight,
        x: Input,
    ) -> Result<Range, GpuError> {
        let y = self.floats(name, weight.total_rows());
        let call = GpuTokenMatvec::new(weight, self.activation, x).bind("y", &y);
        self.calls.extend(call.calls(self.given.target)?);
        Ok(y)
    }

    /// The stream after the attention, and the experts' logits where they are made beside it.
    fn attention(
        &mut self,
        of: TokenLayer<'_>,
        stream: &Stream,
    ) -> Result<(Stream, Option<RawLogits>), GpuError> {
        let layer = of.layer;
        let dims = self.given.dims();
        let router = match &layer.ffn {
            Ffn::Moe(moe) => Some(&moe.ffn_gate_inp).filter(|_| self.leaves_router(layer, moe)),
            Ffn::Dense(_) => None,
        };
        let (heads, kv_lora) = (dims.heads as u32, dims.kv_lora as u32);
        let queries = self.queries(of, stream)?;
        let form = self.given.context.form(1);
        let attention = self.given.attention(form, queries, of.cache);
        let short = self.given.context.short;
        if short > 0 {
            let call = attention.short_call(self.given.target);
            self.calls.push(call.only(When::Rows(0, short)));
        }
        self.calls.extend(attention.calls_above(short));
        let (weight, values) = match of.vo {
            Some(vo) => {
                let latents = self.values("latents", heads * kv_lora);
                let merge = self.given.merge(&latents, self.activation);
                self.calls.push(merge);
                (vo, latents)
            }
            None => (&layer.attn_output, self.head_values(&layer.attn_v_b)?),
        };
        let after = self.stream(weight.total_rows(), &layer.ffn_norm);
        let x = TokenInput::of(values);
        let logits = self.residual_product(weight, x, stream, &after, router)?;
        Ok((after, logits))
    }

    /// Whether `attn_output` leaves partial sums of the experts' logits, though every workgroup of gate and up then adds them up.
    fn leaves_router(&self, layer: &GpuLayer, moe: &Moe<GpuWeight, Range>) -> bool {
        let shared = moe.shared.as_ref().map_or(0, |s| s.gate.rows);
        let rows = self.given.experts().used as u32 * moe.experts.gate.rows + shared;
        let partial_sums = layer.attn_output.total_rows() / ROUTER_ROWS;
        let machine = self.given.target.machine;
        let logits = [moe.ffn_gate_inp.rows, partial_sums];
        let more = token_gate_up::repeated(machine, self.activation, rows, logits);
        self.given.target.repeats_work(more)
    }

    /// The heads' values, prepared, from the slices of the attention: joined by the product itself where they are few, else
    /// by a dispatch before it.
    fn head_values(&mut self, attn_v_b: &GpuWeight) -> Result<Range, GpuError> {
        let (target, dims, partials) = (
            self.given.target,
            self.given.dims(),
            &self.given.context.partials,
        );
        let values = self.values("values", attn_v_b.total_rows());
        let activation = self.activation;
        let product =
            |x: Input| GpuTokenMatvec::new(attn_v_b, activation, x).prepared(without_norm(&values));
        let joining = product(Input::Slices(partials.clone(), dims));
        let most = match target.geometry(&joining.site()) {
            Some(_) => target.merge_up_to(activation),
            None => 0,
        };
        if most > 0 {
            let calls = joining.calls(target)?;
            let few = calls
                .into_iter()
                .map(|call| call.only(When::SlicesUpTo(most)));
            self.calls.extend(few);
        }
        if (most as usize) < MAX_SLICES {
            let latents = self.values("latents", (dims.heads * dims.kv_lora) as u32);
            let merge = self.given.merge(&latents, activation);
            let latents = TokenInput::of(latents);
            let calls =
                product(Input::Prepared(latents, dims.kv_lora as u32 / 32)).calls(target)?;
            let calls = [merge].into_iter().chain(calls);
            let many = calls.map(|call| call.only(When::SlicesAbove(most)));
            self.calls.extend(many);
        }
        Ok(values)
    }

    /// Leaves the stream and W x in `after`. The logits of `router`, where the product can leave them.
    fn residual_product(
        &mut self,
        weight: &GpuWeight,
        x: TokenInput,
        stream: &Stream,
        after: &Stream,
        router: Option<&GpuWeight>,
    ) -> Result<Option<RawLogits>, GpuError> {
        let mut call = GpuTokenMatvec::new(weight, self.activation, Input::Prepared(x, 0))
            .bind("residual", &stream.x)
            .bind("y", &after.x)
            .prepared(after.output());
        let geometry = token::geometry(self.given.target, &call.site())?;
        let mut logits = None;
        let leaves =
            |w: &&GpuWeight| leaves_partial_logits(self.given.target.machine, w, geometry.tile);
        if let Some(router) = router.filter(leaves) {
            let partial_sums = weight.total_rows() / ROUTER_ROWS;
            let buffer = self.floats("partial router logits", partial_sums * router.rows);
            call.router = Some(PartialLogits {
                weight: router,
                logits: buffer.clone(),
            });
            logits = Some(RawLogits {
                logits: buffer,
                partial_sums,
            });
        }
        self.calls
            .extend(call.calls_with(self.given.target, &geometry)?);
        Ok(logits)
    }

    /// Leaves the stream after the feed-forward network in `after`.
    fn feed_forward(
        &mut self,
        layer: &GpuLayer,
        stream: &Stream,
        logits: Option<RawLogits>,
        after: &Stream,
    ) -> Result<(), GpuError> {
        match &layer.ffn {
            Ffn::Dense(mlp) => {
                let h = self.values("h", mlp.gate.rows);
                let gate_up = GpuTokenGateUp {
                    tokens: 1,
                    activation: self.activation,
                    experts: None,
                    raw_logits: false,
                    shared: Some([&mlp.gate, &mlp.up]),
                    x: stream.prepared.input(self.eps()),
                    h: h.clone(),
                };
                self.calls.extend(gate_up.calls(self.given.target)?);
                let x = TokenInput::of(h);
                self.residual_product(&mlp.down, x, stream, after, None)?;
                Ok(())
            }
            Ffn::Moe(moe) => self.experts(moe, stream, logits, after),
        }
    }

    /// The experts' logits.
    fn router_logits(&mut self, weight: &GpuWeight, stream: &Stream) -> Result<Range, GpuError> {
        // Rounding should not choose experts.
        let exact = self.activation.rounds();
        if token_router::fits(weight.ty, weight.cols) {
            let y = self.floats("router logits", weight.rows);
            let router = GpuTokenRouter {
                weight,
                x: if exact {
                    &stream.x
                } else {
                    &stream.prepared.values
                }
                .clone(),
                norm: exact.then(|| stream.norm.clone()),
                squares: stream.prepared.squares.clone(),
                eps: self.eps(),
                y: y.clone(),
            };
            self.calls.extend(router.calls());
            return Ok(y);
        }
        let x = if exact {
            let (x, norm) = (stream.x.clone(), stream.norm.clone());
            Input::Stream(x, norm, stream.prepared.squares.clone(), self.eps())
        } else {
            Input::Prepared(stream.prepared.input(self.eps()), 0)
        };
        self.product("router logits", weight, x)
    }

    fn experts(
        &mut self,
        moe: &Moe<GpuWeight, Range>,
        stream: &Stream,
        raw: Option<RawLogits>,
        after: &Stream,
    ) -> Result<(), GpuError> {
        let Moe {
            ffn_gate_inp,
            exp_probs_b,
            experts,
            shared,
        } = moe;
        let config = self.given.experts();
        let used = config.used as u32;
        let raw_logits = raw.is_some();
        let RawLogits {
            logits,
            partial_sums,
        } = match raw {
            Some(raw) => raw,
            None => RawLogits {
                logits: self.router_logits(ffn_gate_inp, stream)?,
                partial_sums: 1,
            },
        };
        let ids = Range::words("expert ids", u64::from(used));
        let weights = self.floats("expert weights", used);
        let router = GpuRouter {
            logits,
            partial_sums,
            bias: exp_probs_b.clone(),
            experts: config,
            max_tokens: 1,
            ids: ids.clone(),
            weights: weights.clone(),
        };
        let h = self.values(
            "h",
            used * experts.gate.rows + shared.as_ref().map_or(0, |s| s.gate.rows),
        );
        let gate_up = GpuTokenGateUp {
            tokens: 1,
            activation: self.activation,
            experts: Some(([&experts.gate, &experts.up], router)),
            raw_logits,
            shared: shared.as_ref().map(|s| [&s.gate, &s.up]),
            x: stream.prepared.input(self.eps()),
            h: h.clone(),
        };
        self.calls.extend(gate_up.calls(self.given.target)?);
        let down = GpuTokenMoeDown {
            tokens: 1,
            activation: self.activation,
            down: &experts.down,
            shared: shared.as_ref().map(|s| &s.down),
            h,
            ids,
            weights,
            used,
            residual: stream.x.clone(),
            y: after.x.clone(),
            prepared: after.output(),
        };
        self.calls.extend(down.calls(self.given.target)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
