//! The product whose rows are the experts' logits, of one token: [`token_matvec`](super::token_matvec) in f32 throughout, for few
//! rows.

use super::token_matvec::token_matvec;
use crate::gpu::memory::{GpuWeight, Part};
use crate::gpu::op::{Extent, Flops, Op, Range, Word, accesses};
use crate::gpu::pipeline::Spec;
use crate::gpu::shader::Variant;
use crate::model::Weight;
use crate::quant::GgmlType;
use crate::quant::activation::Activation;

/// `w` (experts, d) times `x` (d), over the root mean square: `squares` are sums of squares of 16 values of the input before the
/// norm's weight.
pub fn token_router(w: &Weight, x: &[f32], squares: &[f32], eps: f32) -> Vec<f32> {
    token_matvec(w, x, 0, Some((squares, eps)), None)
}

/// The same times the root mean square, where the stream is x + O v: `w` times `x`, which has the norm's weight, and `through`,
/// (experts, n), which is W norm O, times `values`, (n), those v.
pub fn token_router_through(w: &Weight, x: &[f32], through: &Weight, values: &[f32]) -> Vec<f32> {
    let own = token_matvec(w, x, 0, None, None);
    token_matvec(through, values, 0, None, Some(&own))
}

/// [`token_router`] on the device, or [`token_router_through`].
pub struct GpuTokenRouter<'a> {
    /// W, (experts, d).
    pub weight: &'a GpuWeight,
    /// x, (d) f32.
    pub x: Range,
    /// The norm's weight, (d), where x is still to be multiplied by it.
    pub norm: Option<Range>,
    /// What becomes of the sum.
    pub scaling: Scaling<'a>,
    /// The logits, (experts) f32.
    pub y: Range,
}

/// What becomes of W x.
pub enum Scaling<'a> {
    /// It is divided by the root mean square of the input: sums of squares of 16 values before the norm's weight, (d / 16), and
    /// the norm's epsilon.
    Rms(Range, f32),
    /// Another product is added, of the values that `attn_output` adds to `x` at the same time; who reads the sum divides it by
    /// the root mean square.
    Through(Through<'a>),
}

/// The part of the logits that comes through `attn_output` (`--precompose ro`).
pub struct Through<'a> {
    /// T = W norm O, (experts, n) f32.
    pub weight: &'a GpuWeight,
    /// The input of `attn_output`, (n / 32) units.
    pub values: Range,
    /// What prepared values are.
    pub activation: Activation,
}

/// Threads of a workgroup.
const WG: u32 = 256;
/// Columns that the threads of a workgroup load at once at most, 4 numbers each.
const MOST_COLUMNS: u32 = 16 * WG;

/// Whether the kernel is for weights of this type and width.
pub fn fits(ty: GgmlType, cols: u32) -> bool {
    ty == GgmlType::F32 && cols.is_multiple_of(16) && cols / 4 <= MOST_COLUMNS
}

/// The pipeline for `columns` groups of 4; with `through`, so many of the other product and what its values are.
pub(super) fn spec(columns: u32, norm: bool, through: Option<(u32, Activation)>) -> Spec {
    let mut variant = Variant::default()
        .number("WG", WG)
        .number("COLUMNS", columns)
        .number("LOADS", columns.div_ceil(WG))
        .flag("NORM_IN", norm);
    variant = match through {
        Some((columns, activation)) => variant
            .number("THROUGH_COLUMNS", columns)
            .number("THROUGH_LOADS", columns.div_ceil(WG))
            .flag("THROUGH", true)
            .flag("BYTES", activation == Activation::Bytes)
            .flag("HALVES", activation.is_halves()),
        None => variant.number("SQUARES", (columns / 4).div_ceil(WG)),
    };
    let access = [
        "rr",
        if norm { "r" } else { "" },
        if through.is_some() { "rr" } else { "r" },
        "w",
    ];
    Spec {
        kernel: "token_router",
        source: include_str!("../../wgsl/token_router.wgsl"),
        variant,
        access: accesses(&access.concat()),
    }
}

impl GpuTokenRouter<'_> {
    /// The dispatches: one per part of the weight.
    ///
    /// # Panics
    /// If the weight is none that [`fits`], or a buffer is too small, which would let the kernel index beyond it.
    pub fn ops(&self) -> Vec<Op> {
        let w = self.weight;
        assert!(fits(w.ty, w.cols) && w.groups == 1, "{}", w.name);
        let bytes = u64::from(w.cols) * 4;
        assert!(
            self.x.size >= bytes
                && self.norm.iter().all(|norm| norm.size >= bytes)
                && self.y.size >= u64::from(w.rows) * 4,
            "buffers of {}",
            w.name
        );
        let mut columns = w.cols;
        let through = match &self.scaling {
            Scaling::Rms(squares, _) => {
                assert!(squares.size >= bytes / 16, "squares before {}", w.name);
                None
            }
            Scaling::Through(Through {
                weight,
                values,
                activation,
            }) => {
                let units = u64::from(weight.cols) / 32;
                assert!(
                    fits(weight.ty, weight.cols)
                        && weight.cols.is_multiple_of(32)
                        && values.size >= activation.bytes(units)
                        && weight.groups == 1
                        && weight.rows == w.rows
                        && [w, *weight].iter().all(|w| w.parts.len() == 1),
                    "{} beside {}",
                    weight.name,
                    w.name
                );
                columns += weight.cols;
                Some((weight.cols / 4, *activation))
            }
        };
        let spec = spec(w.cols / 4, self.norm.is_some(), through);
        let op = |part: &Part| {
            let mut bindings = vec![part.quants.clone(), self.x.clone()];
            bindings.extend(self.norm.clone());
            let mut params = vec![Word::U(part.first_row)];
            match &self.scaling {
                Scaling::Rms(squares, eps) => {
                    bindings.push(squares.clone());
                    params.push(Word::F(*eps));
                }
                Scaling::Through(through) => {
                    let weights = through.weight.parts[0].quants.clone();
                    bindings.extend([weights, through.values.clone()]);
                }
            }
            bindings.push(self.y.clone());
            let grid = [Extent::N(part.rows), Extent::N(1), Extent::N(1)];
            let weights = u64::from(part.rows) * u64::from(columns);
            Op::new(spec.clone(), bindings, params, grid)
                .with_bytes(weights * 4)
                .with_shape(format!("{}x{columns}", w.rows))
                .with_flops(Flops {
                    once: 2 * weights,
                    ..Flops::default()
                })
        };
        w.parts.iter().map(op).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::op::State;
    use crate::gpu::testing::{download, gpu_weight, output, run, token_gpus, upload};
    use crate::kernels::testing::{Rng, assert_close, random_weight};
    use crate::kernels::token::testing::{activation, stand_for, upload_values};
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
                    let op = GpuTokenRouter {
                        weight: &gpu_weight(gpu, &w),
                        x: Range::whole(&upload(gpu, if inside { &x } else { &weighted })),
                        norm: inside.then(|| Range::whole(&upload(gpu, &norm))),
                        scaling: Scaling::Rms(Range::whole(&upload(gpu, &squares)), 1e-5),
                        y: Range::whole(&y),
                    };
                    run(gpu, &op.ops(), &State::default());
                    let what = format!("{rows}x{cols}, norm inside: {inside}");
                    assert_close(&download(gpu, &y, rows), &exact, 1e-12, &what);
                }
            }
        }
    }
    #[test]
    fn the_gpu_agrees_through_attn_output() {
        for gpu in token_gpus() {
            let mut rng = Rng::fresh();
            // GLM-4.7-Flash, DeepSeek-V2-Lite, widths that leave threads without a part.
            for (rows, cols, width) in [(64, 2048, 5120), (64, 2048, 2048), (7, 320, 96)] {
                let w = random_weight(&mut rng, GgmlType::F32, 1, rows, cols);
                let through = random_weight(&mut rng, GgmlType::F32, 1, rows, width);
                let (x, norm, v) = (rng.normals(cols), rng.normals(cols), rng.normals(width));
                let weighted: Vec<f32> = x.iter().zip(&norm).map(|(x, g)| x * g).collect();
                let values = stand_for(activation(gpu), &v);
                let twin = token_router_through(&w, &weighted, &through, &values);
                let exact: Vec<f64> = twin.iter().map(|v| f64::from(*v)).collect();
                let y = output(gpu, rows);
                let op = GpuTokenRouter {
                    weight: &gpu_weight(gpu, &w),
                    x: Range::whole(&upload(gpu, &x)),
                    norm: Some(Range::whole(&upload(gpu, &norm))),
                    scaling: Scaling::Through(Through {
                        weight: &gpu_weight(gpu, &through),
                        values: upload_values(gpu, &v),
                        activation: activation(gpu),
                    }),
                    y: Range::whole(&y),
                };
                run(gpu, &op.ops(), &State::default());
                let what = format!("{rows}x{cols}, then {width}");
                assert_close(&download(gpu, &y, rows), &exact, 1e-11, &what);
            }
        }
    }
}
