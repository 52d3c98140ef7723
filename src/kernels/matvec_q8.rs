//! [`matvec`](super::matvec) of one token in the `int8` tier: activations come and go as bytes.

use super::q8::{Q8Input, Q8Output, TILE, divided, grid, weight};
use crate::gpu::Gpu;
use crate::gpu::memory::GpuWeight;
use crate::gpu::pipeline::Spec;
use crate::gpu::record::{Op, Range, Word, accesses};
use crate::gpu::shader::Variant;
use crate::kernels::matvec::{MatvecOptions, matvec};
use crate::model::Weight;
use crate::quant::activation::{Q8Unit, dequantize_activation};

/// `y` (groups * rows) = w . x / rms(x) (+ residual) for one token.
///
/// `x` are the records of the input, group g from unit g * x_units on. `rms` are the sums of squares of 16 values of what
/// was quantised, before the norm's weight, and the norm's epsilon.
pub fn matvec_q8(
    w: &Weight,
    x: &[Q8Unit],
    x_units: usize,
    rms: Option<(&[f32], f32)>,
    residual: Option<&[f32]>,
) -> Vec<f32> {
    let values = dequantize_activation(x);
    let mut y = vec![0.0; w.groups * w.rows];
    let options = MatvecOptions::per_group(values.len(), x_units * 32);
    matvec(w, &values, 1, options, &mut y);
    if let Some((squares, eps)) = rms {
        let scale = 1.0 / (squares.iter().sum::<f32>() / w.cols as f32 + eps).sqrt();
        y.iter_mut().for_each(|v| *v *= scale);
    }
    if let Some(residual) = residual {
        y.iter_mut().zip(residual).for_each(|(v, r)| *v += r);
    }
    y
}

/// What a product multiplies.
pub enum Input {
    /// Bytes; group g reads from unit g * the second field on.
    Q8(Q8Input, u32),
    /// f32 (cols), the weight of its norm (cols), its sums of squares (cols / 16) and epsilon.
    Float(Range, Range, Range, f32),
}

/// The product on the device.
pub struct GpuMatvecQ8<'a> {
    /// W, (groups, rows, cols).
    pub weight: &'a GpuWeight,
    /// The input.
    pub x: Input,
    /// Added to the output, (groups * rows).
    pub residual: Option<Range>,
    /// The output as f32, (groups * rows).
    pub y: Option<Range>,
    /// The output as bytes.
    pub q: Option<Q8Output>,
}

/// The pipeline of a product: weight type, group structure and flags.
pub(super) fn spec(
    gpu: &Gpu,
    w: &GpuWeight,
    x: &Input,
    residual: bool,
    y: bool,
    q: Option<&Q8Output>,
) -> Spec {
    let (rms, float) = match x {
        Input::Q8(x, _) => (x.rms.is_some(), false),
        Input::Float(..) => (true, true),
    };
    let units = w.cols / 32;
    let rows = if q.is_some() { TILE } else { 8 };
    let mut variant = Variant::default()
        .number("UNITS", units)
        .flag("X_FLOAT", float);
    variant = weight(variant, "WEIGHT", "FLOAT", w.ty);
    variant = divided(gpu, variant, rows, units)
        .flag("RMS", rms)
        .flag("RESIDUAL", residual)
        .flag("OUT_FLOAT", y)
        .flag("OUT_Q8", q.is_some())
        .flag("NORM_OUT", q.is_some_and(|q| q.norm.is_some()));
    if let (Input::Q8(_, x_units), true) = (x, w.groups > 1) {
        variant = variant
            .flag("GROUPS", true)
            .number("ROWS_PER_GROUP", w.rows)
            .number("X_UNITS", *x_units);
    }
    let mut access = String::from(if float { "rrrr" } else { "rrr" });
    access.extend(rms.then_some('r'));
    access.extend(residual.then_some('r'));
    access.extend(y.then_some('w'));
    access.push_str(q.map_or("", Q8Output::access));
    Spec {
        kernel: "matvec_q8",
        source: include_str!("../../wgsl/matvec_q8.wgsl"),
        variant,
        access: accesses(&access),
    }
}

impl GpuMatvecQ8<'_> {
    /// The dispatches: one per part of the weight.
    ///
    /// # Panics
    /// If a buffer is too small for the sizes, which would let the kernel index beyond it.
    pub fn ops(&self, gpu: &Gpu) -> Vec<Op> {
        let w = self.weight;
        let (out, cols) = (w.total_rows(), u64::from(w.cols));
        let fits = |range: &Range| range.size >= u64::from(out) * 4;
        assert!(
            self.y.iter().chain(&self.residual).all(fits),
            "output of {}",
            w.name
        );
        assert!(
            self.y.is_some() || self.q.is_some(),
            "{} goes nowhere",
            w.name
        );
        let mut inputs = vec![];
        let (squares, eps) = match &self.x {
            Input::Q8(x, x_units) => {
                let units = u64::from((w.groups - 1) * x_units) + cols / 32;
                assert!(
                    x.records.size >= units * super::q8::RECORD,
                    "input of {}",
                    w.name
                );
                inputs.push(x.records.clone());
                (
                    x.rms.as_ref().map(|(squares, _)| squares),
                    x.rms.as_ref().map_or(0.0, |(_, eps)| *eps),
                )
            }
            Input::Float(x, norm, squares, eps) => {
                assert!(
                    x.size.min(norm.size) >= cols * 4 && w.groups == 1,
                    "input of {}",
                    w.name
                );
                inputs.extend([x.clone(), norm.clone()]);
                (Some(squares), *eps)
            }
        };
        assert!(
            squares.is_none_or(|s| s.size >= cols / 4),
            "squares before {}",
            w.name
        );
        inputs.extend(squares.cloned());
        inputs.extend(self.residual.clone());
        inputs.extend(self.y.clone());
        if let Some(q) = &self.q {
            q.check(out, &w.name);
            inputs.extend(q.bindings());
        }
        let spec = spec(
            gpu,
            w,
            &self.x,
            self.residual.is_some(),
            self.y.is_some(),
            self.q.as_ref(),
        );
        let rows = if self.q.is_some() { TILE } else { 8 };
        w.parts
            .iter()
            .map(|part| {
                assert!(
                    self.q.is_none() || part.rows.is_multiple_of(TILE),
                    "rows of {} by {TILE}",
                    w.name
                );
                let (grid, width) = grid(part.rows.div_ceil(rows));
                let params = vec![
                    Word::U(part.rows),
                    Word::U(part.first_row),
                    Word::U(part.sub),
                    Word::U(width),
                    Word::F(eps),
                ];
                let bindings = [part.quants.clone(), part.scales.clone()]
                    .into_iter()
                    .chain(inputs.clone())
                    .collect();
                Op::new(spec.clone(), bindings, params, grid)
                    .with_bytes(part.quants.size + part.scales.size)
            })
            .collect()
    }
}
