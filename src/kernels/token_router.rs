//! The product whose rows are the experts' logits, of one token: [`token_matvec`](super::token_matvec) in f32 throughout, for few
//! rows.

use super::token_matvec::token_matvec;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent, Flops, Word, accesses};
use crate::gpu::memory::{GpuWeight, Part};
use crate::gpu::pipeline::Spec;
use crate::gpu::shader::Variant;
use crate::model::Weight;
use crate::quant::GgmlType;

/// `w` (experts, d) times `x` (d), over the root mean square: `squares` are sums of squares of 16 values of the input before the
/// norm's weight.
pub fn token_router(w: &Weight, x: &[f32], squares: &[f32], eps: f32) -> Vec<f32> {
    token_matvec(w, x, 0, Some((squares, eps)), None)
}

/// [`token_router`] on the device.
pub struct GpuTokenRouter<'a> {
    /// W, (experts, d).
    pub weight: &'a GpuWeight,
    /// x, (d) f32.
    pub x: Range,
    /// The norm's weight, (d), where x is still to be multiplied by it.
    pub norm: Option<Range>,
    /// Sums of squares of 16 values before the norm's weight, (d / 16).
    pub squares: Range,
    /// The norm's epsilon.
    pub eps: f32,
    /// The logits, (experts) f32.
    pub y: Range,
}

/// Threads of a workgroup.
const WG: u32 = 256;
/// Columns that the threads of a workgroup load at once at most, 4 numbers each.
const MOST_COLUMNS: u32 = 16 * WG;

/// Whether the kernel is for weights of this type and width.
pub fn fits(ty: GgmlType, cols: u32) -> bool {
    ty == GgmlType::F32 && cols.is_multiple_of(16) && cols / 4 <= MOST_COLUMNS
}

/// The pipeline for `columns` groups of 4.
pub(super) fn spec(columns: u32, norm: bool) -> Spec {
    Spec {
        kernel: "token_router",
        source: include_str!("../../wgsl/token_router.wgsl"),
        variant: Variant::default()
            .number("WG", WG)
            .number("COLUMNS", columns)
            .number("LOADS", columns.div_ceil(WG))
            .number("SQUARES", (columns / 4).div_ceil(WG))
            .flag("NORM_IN", norm),
        access: accesses(if norm { "rrrrw" } else { "rrrw" }),
    }
}

impl GpuTokenRouter<'_> {
    /// The dispatches: one per part of the weight.
    ///
    /// # Panics
    /// If the weight is none that [`fits`], or a buffer is too small, which would let the kernel index beyond it.
    pub fn calls(&self) -> Vec<Call> {
        let w = self.weight;
        assert!(fits(w.ty, w.cols) && w.groups == 1, "{}", w.name);
        let bytes = u64::from(w.cols) * 4;
        assert!(
            self.x.size >= bytes
                && self.norm.iter().all(|norm| norm.size >= bytes)
                && self.squares.size >= bytes / 16
                && self.y.size >= u64::from(w.rows) * 4,
            "buffers of {}",
            w.name
        );
        let spec = spec(w.cols / 4, self.norm.is_some());
        let call = |part: &Part| {
            let mut bindings = vec![part.quants.clone(), self.x.clone()];
            bindings.extend(self.norm.clone());
            bindings.extend([self.squares.clone(), self.y.clone()]);
            let params = vec![Word::U(part.first_row), Word::F(self.eps)];
            let grid = [Extent::N(part.rows), Extent::N(1), Extent::N(1)];
            let weights = u64::from(part.rows) * u64::from(w.cols);
            Call::positional(spec.clone(), bindings, params, grid)
                .with_bytes(weights * 4)
                .with_shape(format!("{}x{}", w.rows, w.cols))
                .with_flops(Flops {
                    once: 2 * weights,
                    ..Flops::default()
                })
        };
        w.parts.iter().map(call).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::call::State;
    use crate::gpu::testing::{download, gpu_weight, output, run, token_gpus, upload};
    use crate::kernels::testing::{Rng, assert_close, random_weight};
    use crate::quant::activation::squares;

    #[test]
    fn the_gpu_agrees_with_and_without_a_norm() {
        for gpu in token_gpus() {
            let mut rng = Rng::fresh();
            for (rows, cols) in [(64, 2048), (8, 320), (256, 7168), (3, 32)] {
                let w = random_weight(&mut rng, GgmlType::F32, 1, rows, cols);
                let (x, norm) = (rng.normals(cols), rng.normals(cols));
                let weighted: Vec<f32> = x.iter().zip(&norm).map(|(x, g)| x * g).collect();
                let squares = squares(&x);
                let twin = token_router(&w, &weighted, &squares, 1e-5);
                let exact: Vec<f64> = twin.iter().map(|v| f64::from(*v)).collect();
                for inside in [true, false] {
                    let y = output(gpu, rows);
                    let call = GpuTokenRouter {
                        weight: &gpu_weight(gpu, &w),
                        x: Range::whole(&upload(gpu, if inside { &x } else { &weighted })),
                        norm: inside.then(|| Range::whole(&upload(gpu, &norm))),
                        squares: Range::whole(&upload(gpu, &squares)),
                        eps: 1e-5,
                        y: Range::whole(&y),
                    };
                    run(gpu, &call.calls(), &State::default());
                    let what = format!("{rows}x{cols}, norm inside: {inside}");
                    assert_close(&download(gpu, &y, rows), &exact, 1e-12, &what);
                }
            }
        }
    }
}
