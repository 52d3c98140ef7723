//! The products of few tokens: each takes the kernel of a decoded token or that for many of them.

use super::Few;
use super::feed_forward::RouterLogits;
use crate::gpu::GpuError;
use crate::gpu::buffer::Range;
use crate::gpu::memory::GpuWeight;
use crate::kernels::batch_matvec::{GpuBatchMatvec, Input};
use crate::kernels::rope_cache::Rotation;
use crate::kernels::token::{Divided, TokenInput, TokenOutput};
use crate::kernels::token_gate_up::{self, GpuTokenGateUp};
use crate::kernels::token_matvec::{
    self, GpuTokenMatvec, PartialLogits, ROUTER_ROWS, leaves_partial_logits,
};
use crate::model::{Mlp, Moe};

/// The product W x (+ residual) of each token, to be completed with where it goes.
pub struct Product<'w> {
    /// W, (groups, rows, cols). The groups are heads.
    pub weight: &'w GpuWeight,
    /// The input.
    pub x: Input,
    /// Units from one head's input to the next, where groups are heads.
    pub head: u32,
    /// Added to the output, of its shape.
    pub residual: Option<Range>,
    /// The output in f32, (tokens, groups * rows).
    pub y: Option<Range>,
    /// The output prepared for the next product.
    pub prepared: Option<TokenOutput>,
    /// The rotation of the output by the kernels of a decoded token, if it is queries.
    pub rotation: Option<Rotation>,
    /// The fewest and the most slices of the tokens that have the product, if there are several by these kernels.
    pub slices: Option<[u32; 2]>,
}

impl<'w> Product<'w> {
    /// The product of `weight` and `x`.
    pub fn of(weight: &'w GpuWeight, x: &TokenInput) -> Self {
        Self::by(weight, Input::Prepared(x.clone()))
    }

    /// The product of the heads of `weight`, whose inputs begin `head` values after each other.
    pub fn of_heads(weight: &'w GpuWeight, x: &TokenInput, head: usize) -> Self {
        Self {
            head: head as u32 / 32,
            ..Self::of(weight, x)
        }
    }

    pub(super) fn by(weight: &'w GpuWeight, x: Input) -> Self {
        Self {
            weight,
            x,
            head: 0,
            residual: None,
            y: None,
            prepared: None,
            rotation: None,
            slices: None,
        }
    }
}

impl Few<'_> {
    /// Records a product.
    ///
    /// # Errors
    /// [`GpuError::TierUnsupported`] where the tier has no kernel for its sizes.
    pub fn record(&mut self, product: &Product<'_>) -> Result<(), GpuError> {
        let target = self.given.target;
        let calls = match self.as_one {
            true => self.of_each(product).calls(target)?,
            false => self.of_several(product).calls(target)?,
        };
        self.calls.extend(calls);
        Ok(())
    }

    /// The product of one token, or of each of several as of one.
    fn of_each<'w>(&self, product: &Product<'w>) -> GpuTokenMatvec<'w> {
        let x = match product.x.clone() {
            Input::Prepared(x) => token_matvec::Input::Prepared(x, product.head),
            Input::Stream(x, norm, squares, eps) => {
                token_matvec::Input::Stream(x, norm, squares, eps)
            }
        };
        let new = GpuTokenMatvec::new(product.weight, self.activation, x)
            .bind("residual", product.residual.as_ref())
            .bind("y", product.y.as_ref())
            .prepared(product.prepared.clone());
        let sequences = self.given.context.sequences.as_ref();
        let new = GpuTokenMatvec {
            rotation: product.rotation.clone(),
            ..new
        };
        let new = new.of_tokens(self.given.target.machine, self.most, sequences);
        match product.slices {
            Some(slices) => new.of_slices(slices),
            None => new,
        }
    }

    /// The product of several tokens, whose weight is read once for some of them.
    fn of_several<'w>(&self, product: &Product<'w>) -> GpuBatchMatvec<'w> {
        let (weight, x) = (product.weight, product.x.clone());
        // Only the router reads the stream itself.
        let is_router = matches!(x, Input::Stream(..));
        let new = GpuBatchMatvec::new(self.given.target, weight, self.most, x);
        GpuBatchMatvec {
            x_stride: match product.head {
                0 => new.x_stride,
                head => weight.groups * head,
            },
            x_group: product.head,
            columns: match is_router && self.is_apart() {
                true => 1,
                false => new.columns,
            },
            residual: product.residual.clone(),
            y: product.y.clone(),
            prepared: product.prepared.clone(),
            ..new
        }
    }

    /// Records silu(gate x) * (up x) of a dense block or of the shared expert.
    pub(super) fn gate_up(
        &mut self,
        mlp: &Mlp<GpuWeight>,
        x: &TokenInput,
        h: &Range,
    ) -> Result<(), GpuError> {
        let target = self.given.target;
        let calls = match self.as_one {
            true => GpuTokenGateUp {
                tokens: self.most,
                activation: self.activation,
                experts: None,
                given: false,
                raw_logits: false,
                shared: Some([&mlp.gate, &mlp.up]),
                x: x.clone(),
                h: h.clone(),
            }
            .calls(target)?,
            false => GpuBatchMatvec {
                up: Some(&mlp.up),
                prepared: Some(TokenOutput::of(h.clone())),
                ..self.of_several(&Product::of(&mlp.gate, x))
            }
            .calls(target)?,
        };
        self.calls.extend(calls);
        Ok(())
    }

    /// Whether `attn_output` leaves partial sums of the experts' logits, though every workgroup of gate and up then adds them up.
    pub(super) fn leaves_router(&self, moe: &Moe<GpuWeight, Range>) -> bool {
        let shared = moe.shared.as_ref().map_or(0, |s| s.gate.rows);
        let rows = self.given.experts().used as u32 * moe.experts.gate.rows + shared;
        let target = self.given.target;
        let logits = [moe.ffn_gate_inp.rows, self.given.width() / ROUTER_ROWS];
        let more = token_gate_up::repeated(target.machine, self.activation, rows, logits);
        self.as_one && target.repeats_work(more)
    }

    /// Records a product that leaves the stream, and the logits of `router` beside it where the kernel can.
    pub(super) fn record_with_router(
        &mut self,
        product: &Product<'_>,
        router: &GpuWeight,
    ) -> Result<Option<RouterLogits>, GpuError> {
        let target = self.given.target;
        let mut call = self.of_each(product);
        let geometry = call.geometry(target)?;
        let mut logits = None;
        if leaves_partial_logits(target.machine, router, geometry.tile) {
            let partial_sums = product.weight.total_rows() / ROUTER_ROWS;
            let sums = self.floats("partial router logits", partial_sums * router.rows);
            call.router = Some(PartialLogits {
                weight: router,
                logits: sums.clone(),
            });
            logits = Some(RouterLogits {
                logits: sums,
                partial_sums,
                raw: true,
            });
        }
        self.calls.extend(call.calls_with(target, &geometry)?);
        Ok(logits)
    }
}
