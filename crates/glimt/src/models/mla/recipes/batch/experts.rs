//! The feed-forward network of a layer of a batch: dense, or experts in tiles of tokens or of each token.

use super::buffers::{Buffers, Stream};
use super::{Recipe, combine};
use crate::gpu::GpuError;
use crate::gpu::buffer::{Buffer, Range};
use crate::gpu::memory::GpuWeight;
use crate::kernels::batch_combine::GpuBatchCombine;
use crate::kernels::batch_experts::{self, GpuBatchExperts};
use crate::kernels::batch_matvec::{GpuBatchMatvec, Input, Tiles};
use crate::kernels::router::GpuRouter;
use crate::kernels::token::{self, Divided, TokenInput};
use crate::kernels::token_gate_up::GpuTokenGateUp;
use crate::kernels::token_moe_down::GpuTokenMoeDown;
use crate::model::{Ffn, Mlp, Moe};
use crate::models::mla::GpuLayer;
use crate::models::mla::recipes::without_norm;

impl Recipe<'_> {
    /// silu(gate) * up of a dense block or of the shared expert.
    fn gate_up(&mut self, mlp: &Mlp<GpuWeight>, x: &TokenInput, h: &Range) -> Result<(), GpuError> {
        self.record(&GpuBatchMatvec {
            up: Some(&mlp.up),
            prepared: Some(without_norm(h)),
            ..self.product(&mlp.gate, x)
        })
    }

    pub(super) fn feed_forward(
        &mut self,
        layer: &GpuLayer,
        stream: &Stream,
        next: &Range,
        b: &Buffers,
        is_last: bool,
    ) -> Result<Stream, GpuError> {
        let values = match &layer.ffn {
            Ffn::Dense(mlp) => {
                self.gate_up(mlp, &stream.values, &b.h)?;
                self.record(&GpuBatchMatvec {
                    residual: Some(stream.x.clone()),
                    y: Some(b.after.clone()),
                    prepared: Some(b.next.output(next)),
                    ..self.product(&mlp.down, &TokenInput::of(b.h.clone()))
                })?;
                b.next.input(self.eps())
            }
            Ffn::Moe(moe) => {
                // Dispatches that wait for the attention alone stand side by side.
                self.router_logits(moe, &layer.ffn_norm, stream, b)?;
                if let Some(mlp) = &moe.shared {
                    self.gate_up(mlp, &stream.values, &b.shared_h)?;
                }
                // The last layer leaves its output in one form for all steps, because they share their heads.
                match self.is_apart() && !is_last {
                    true => self.experts_apart(moe, stream, next, b)?,
                    false => self.experts_in_tiles(moe, stream, next, b)?,
                }
            }
        };
        Ok(Stream {
            x: b.after.clone(),
            values,
        })
    }

    /// The experts of each token in workgroups of its own, which also choose them and add up what they give.
    fn experts_apart(
        &mut self,
        moe: &Moe<GpuWeight, Range>,
        stream: &Stream,
        next: &Range,
        b: &Buffers,
    ) -> Result<TokenInput, GpuError> {
        let (experts, config) = (&moe.experts, self.given.experts());
        let gate_up = GpuTokenGateUp {
            tokens: self.most,
            experts: Some(([&experts.gate, &experts.up], self.router(moe, b))),
            raw_logits: false,
            shared: None,
            activation: self.activation,
            x: stream.values.clone(),
            h: b.h.clone(),
        };
        self.calls.extend(gate_up.calls(self.target())?);
        let residual = self.shared_down(moe, stream, b)?;
        let down = GpuTokenMoeDown {
            tokens: self.most,
            down: &experts.down,
            shared: None,
            activation: self.activation,
            h: b.h.clone(),
            ids: b.ids.clone(),
            weights: b.weights.clone(),
            used: config.used as u32,
            residual,
            y: b.after.clone(),
            prepared: b.next.output(next),
        };
        self.calls.extend(down.calls(self.target())?);
        Ok(b.next.input(self.eps()))
    }

    /// Where the stream is after the shared expert.
    fn shared_down(
        &mut self,
        moe: &Moe<GpuWeight, Range>,
        stream: &Stream,
        b: &Buffers,
    ) -> Result<Range, GpuError> {
        let Some(mlp) = &moe.shared else {
            return Ok(stream.x.clone());
        };
        self.record(&GpuBatchMatvec {
            residual: Some(stream.x.clone()),
            y: Some(b.after_shared.clone()),
            ..self.product(&mlp.down, &TokenInput::of(b.shared_h.clone()))
        })?;
        Ok(b.after_shared.clone())
    }

    /// The experts in tiles of their tokens, then the sum of what they give each token.
    fn experts_in_tiles(
        &mut self,
        moe: &Moe<GpuWeight, Range>,
        stream: &Stream,
        next: &Range,
        b: &Buffers,
    ) -> Result<TokenInput, GpuError> {
        let experts = &moe.experts;
        let used = self.given.experts().used as u32;
        let [by_token, by_slot] = self.choice(moe, b)?;
        self.record(&GpuBatchMatvec {
            up: Some(&experts.up),
            experts: Some(by_token),
            prepared: Some(without_norm(&b.h)),
            ..self.product(&experts.gate, &stream.values)
        })?;
        let residual = self.shared_down(moe, stream, b)?;
        self.record(&GpuBatchMatvec {
            experts: Some(by_slot),
            y: Some(b.slot_sums.clone()),
            ..self.product(&experts.down, &TokenInput::of(b.h.clone()))
        })?;
        let values = &b.next.values;
        let sum = GpuBatchCombine {
            slots: Some([b.slot_sums.clone(), b.weights.clone()]),
            used,
            x: Some(b.after.clone()),
            ..combine(self.given, &residual, next, values)
        };
        self.calls.push(sum.call());
        Ok(TokenInput::of(values.clone()))
    }

    /// The experts' logits, in f32: rounding should not choose experts.
    fn router_logits(
        &mut self,
        moe: &Moe<GpuWeight, Range>,
        norm: &Range,
        stream: &Stream,
        b: &Buffers,
    ) -> Result<(), GpuError> {
        let rms = stream.values.rms.as_ref();
        let (squares, eps) = rms.expect("the attention leaves sums of squares").clone();
        let x = Input::Stream(stream.x.clone(), norm.clone(), squares, eps);
        let product = GpuBatchMatvec::new(self.target(), &moe.ffn_gate_inp, self.most, x);
        self.record(&GpuBatchMatvec {
            y: Some(b.logits.clone()),
            columns: match self.is_apart() {
                true => 1,
                false => product.columns,
            },
            ..product
        })
    }

    /// How experts are chosen.
    fn router<'w>(&'w self, moe: &'w Moe<GpuWeight, Range>, b: &Buffers) -> GpuRouter<'w> {
        GpuRouter {
            logits: b.logits.clone(),
            partial_sums: 1,
            bias: moe.exp_probs_b.clone(),
            experts: self.given.experts(),
            max_tokens: self.most,
            ids: b.ids.clone(),
            weights: b.weights.clone(),
        }
    }

    /// The chosen experts with their slots in tiles, as gate and up take them, and as down does.
    fn choice(&mut self, moe: &Moe<GpuWeight, Range>, b: &Buffers) -> Result<[Tiles; 2], GpuError> {
        let config = self.given.experts();
        let tiles = Tiles {
            list: b.tiles.clone(),
            places: batch_experts::places(self.target().machine, self.most),
            used: config.used as u32,
            most: self.most,
            by_token: true,
            counts: None,
        };
        // The first grid is that of gate and up, the second that of down.
        let grids = self.across(moe, &tiles)?.map(|across| [across, 0, 1]);
        let counts = Range::whole(&Buffer::counts("workgroups of experts", &grids));
        let choice = GpuBatchExperts {
            logits: b.logits.clone(),
            bias: moe.exp_probs_b.clone(),
            experts: config,
            max_tokens: self.most,
            places: tiles.places,
            weights: b.weights.clone(),
            tiles: b.tiles.clone(),
            counts: counts.clone(),
        };
        self.calls.push(choice.call(self.target().machine));
        Ok([true, false].map(|by_token| Tiles {
            by_token,
            counts: Some(Range {
                offset: counts.offset + if by_token { 0 } else { 12 },
                ..counts.clone()
            }),
            ..tiles.clone()
        }))
    }

    /// Workgroups along the rows of gate and up, and of down.
    fn across(&self, moe: &Moe<GpuWeight, Range>, tiles: &Tiles) -> Result<[u32; 2], GpuError> {
        let values = TokenInput::of(Range::words("none", 1));
        let gate = GpuBatchMatvec {
            up: Some(&moe.experts.up),
            experts: Some(tiles.clone()),
            prepared: Some(without_norm(&values.values)),
            ..self.product(&moe.experts.gate, &values)
        };
        let down = GpuBatchMatvec {
            experts: Some(tiles.clone()),
            ..self.product(&moe.experts.down, &values)
        };
        let across = |product: &GpuBatchMatvec<'_>| {
            let geometry = token::geometry(self.target(), &product.site())?;
            Ok(product.weight.rows.div_ceil(geometry.tile))
        };
        Ok([across(&gate)?, across(&down)?])
    }
}
