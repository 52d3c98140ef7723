//! The product whose rows are the experts' logits, of each token: [`token_matvec`](super::token_matvec) in f32 throughout, for few
//! rows.

use super::token::tiles_of;
use super::token_matvec::token_matvec;
use crate::gpu::buffer::Range;
use crate::gpu::call::Call;
use crate::gpu::machine::workgroups::TOKEN_ROUTER as WG;
use crate::gpu::memory::{GpuWeight, Piece};
use crate::model::Weight;
use crate::quant::GgmlType;
use crate::quant::repack::shader_module;

/// The product on the device.
pub struct GpuTokenRouter<'a> {
    /// W, (experts, d).
    pub weight: &'a GpuWeight,
    /// x, (tokens, d) f32.
    pub x: Range,
    /// The norm's weight, (d), where x is still to be multiplied by it.
    pub norm: Option<Range>,
    /// Sums of squares of 16 values before the norm's weight, (tokens, d / 16).
    pub squares: Range,
    /// The norm's epsilon.
    pub eps: f32,
    /// The logits, (tokens, stride) f32, of which all experts are.
    pub y: Range,
    /// Values from the logits of one token to those of the next.
    pub stride: u32,
    /// The most tokens of a step.
    pub tokens: u32,
}

/// The most columns that the threads of a workgroup load at once, 4 numbers each.
const MOST_COLUMNS: u32 = 16 * WG;

/// Whether the kernel is for weights of this type and width.
pub fn fits(ty: GgmlType, cols: u32) -> bool {
    ty == GgmlType::F32 && cols.is_multiple_of(16) && cols / 4 <= MOST_COLUMNS
}

impl GpuTokenRouter<'_> {
    /// The dispatches: one per piece of the weight.
    ///
    /// # Panics
    /// If the weight is none that [`fits`].
    pub fn calls(&self) -> Vec<Call> {
        let w = self.weight;
        assert!(fits(w.ty, w.cols) && w.groups == 1, "{}", w.name);
        let columns = w.cols / 4;
        let call = |piece: &Piece| {
            let weights = u64::from(piece.rows) * u64::from(w.cols);
            Call::new("token_router")
                .module("WEIGHT", shader_module(w.ty))
                .number("WG", WG)
                .number("COLUMNS", columns)
                .number("LOADS", columns.div_ceil(WG))
                .number("SQUARES", (columns / 4).div_ceil(WG))
                .number("STRIDE", self.stride)
                .bind("w", &piece.quants)
                .bind("x", &self.x)
                .bind_some("norm", self.norm.as_ref())
                .bind("squares", &self.squares)
                .bind("y", &self.y)
                .word("first_row", piece.first_row)
                .word("eps", self.eps)
                .flag("SEVERAL", self.tokens > 1)
                .grid(tiles_of(self.tokens, piece.rows))
                .with_bytes(weights * 4)
                .with_shape(format!("{}x{}", w.rows, w.cols))
                .with_flops(super::once(2 * weights))
        };
        w.pieces.iter().map(call).collect()
    }
}

/// `w` (experts, d) times `x` (d), over the root mean square: `squares` are sums of squares of 16 values of the input before the
/// norm's weight.
pub fn token_router(w: &Weight, x: &[f32], squares: &[f32], eps: f32) -> Vec<f32> {
    token_matvec(w, x, 0, Some((squares, eps)), None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::testing::{assert_refused, token_gpus, unmade_weight};
    use crate::kernels::cases::token_router::cases;
    use crate::kernels::testing::agree_everywhere;

    #[test]
    fn the_gpu_agrees_with_and_without_a_norm() {
        agree_everywhere(token_gpus(), |_| cases());
    }

    #[test]
    fn buffers_that_are_too_small_are_refused() {
        let weight = unmade_weight(GgmlType::F32, 1, 64, 256);
        for (squares, y, binding) in [(12, 64, "squares"), (16, 60, "y")] {
            let call = GpuTokenRouter {
                weight: &weight,
                x: Range::floats("x", 256),
                norm: None,
                squares: Range::floats("squares", squares),
                eps: 1e-5,
                y: Range::floats("y", y),
                stride: 64,
                tokens: 1,
            };
            assert_refused(&call.calls(), 1, "token_router", binding);
        }
    }
}
