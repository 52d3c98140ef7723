//! [`moe_down`](super::moe_down) of one token in the `int8` tier, with the shared expert in the same grid.

use super::q8::{Q8Output, RECORD, TILE, divided, grid, weight};
use crate::gpu::memory::GpuWeight;
use crate::gpu::pipeline::Spec;
use crate::gpu::record::{Op, Range, Word, accesses};
use crate::gpu::shader::Variant;
use crate::gpu::{Gpu, GpuError};
use crate::kernels::matvec::{MatvecOptions, matvec};
use crate::kernels::moe_down::moe_down;
use crate::model::Weight;
use crate::quant::activation::{Q8Unit, dequantize_activation};

/// residual + sum over slots of weights\[s\] * down\[ids\[s\]\] h\[s\] + shared h_shared; `h` are the records of the slots one
/// after another, then those of the shared expert.
pub fn moe_down_q8(
    down: &Weight,
    shared: Option<&Weight>,
    h: &[Q8Unit],
    ids: &[u32],
    weights: &[f32],
    residual: &[f32],
) -> Vec<f32> {
    let values = dequantize_activation(h);
    let (routed, rest) = values.split_at(ids.len() * down.cols);
    let mut y = vec![0.0; down.rows];
    moe_down(down, routed, ids, weights, 1, residual, &mut y);
    if let Some(shared) = shared {
        let before = y.clone();
        matvec(
            shared,
            rest,
            1,
            MatvecOptions::contiguous(shared.cols).with_residual(&before),
            &mut y,
        );
    }
    y
}

/// [`moe_down_q8`] on the device.
pub struct GpuMoeDownQ8<'a> {
    /// D, (experts, rows, cols).
    pub down: &'a GpuWeight,
    /// S, (rows, its cols).
    pub shared: Option<&'a GpuWeight>,
    /// Records of the chosen experts' outputs, then of the shared one's.
    pub h: Range,
    /// The chosen experts, and their weights, (used).
    pub ids: Range,
    /// Their weights, (used).
    pub weights: Range,
    /// Experts per token.
    pub used: u32,
    /// Added to the sum, (rows).
    pub residual: Range,
    /// The output as f32, (rows).
    pub y: Range,
    /// The output as bytes, with the next norm.
    pub q: Q8Output,
}

/// The pipeline: types, sizes, whether it has the shared expert and whether it ends the sum.
pub(super) fn spec(
    gpu: &Gpu,
    down: &GpuWeight,
    shared: Option<&GpuWeight>,
    used: u32,
    last: bool,
) -> Spec {
    let units = down.cols / 32;
    let mut variant = divided(gpu, Variant::default(), TILE, used * units)
        .number("USED", used)
        .number("ROWS", down.rows)
        .number("UNITS", units)
        .flag("OUT_Q8", last)
        .flag("NORM_OUT", last);
    variant = weight(variant, "WEIGHT", "FLOAT", down.ty);
    if let Some(s) = shared {
        variant = weight(variant, "SHARED_WEIGHT", "SHARED_FLOAT", s.ty);
        variant = variant
            .flag("SHARED", true)
            .number("SHARED_UNITS", s.cols / 32);
    }
    let access = [
        "rr",
        if shared.is_some() { "rr" } else { "" },
        "rrrrw",
        if last { "rww" } else { "" },
    ]
    .concat();
    Spec {
        kernel: "moe_down_q8",
        source: include_str!("../../wgsl/moe_down_q8.wgsl"),
        variant,
        access: accesses(&access),
    }
}

impl GpuMoeDownQ8<'_> {
    /// The dispatches: one per part of the experts, each adding to the sum of the part before; the first adds the shared
    /// expert, the last leaves the bytes.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`] where several parts need buffers between them.
    ///
    /// # Panics
    /// If sizes disagree or a buffer is too small, which would let the kernel index beyond it.
    pub fn ops(&self, gpu: &Gpu) -> Result<Vec<Op>, GpuError> {
        let d = self.down;
        let units = self.used * d.cols / 32 + self.shared.map_or(0, |s| s.cols / 32);
        assert!(
            self.h.size >= u64::from(units) * RECORD,
            "input of {}",
            d.name
        );
        assert!(
            self.ids.size.min(self.weights.size) >= u64::from(self.used) * 4,
            "experts of {}",
            d.name
        );
        assert!(
            self.y.size.min(self.residual.size) >= u64::from(d.rows) * 4,
            "output of {}",
            d.name
        );
        assert!(d.rows.is_multiple_of(TILE), "rows of {} by {TILE}", d.name);
        assert!(
            self.shared
                .is_none_or(|s| s.parts.len() == 1 && s.rows == d.rows),
            "shared expert of {}",
            d.name
        );
        self.q.check(d.rows, &d.name);
        let mut residual = self.residual.clone();
        let end = d.parts.len() - 1;
        let mut ops = vec![];
        for (i, part) in d.parts.iter().enumerate() {
            let last = i == end;
            let y = if last {
                self.y.clone()
            } else {
                Range::whole(&gpu.storage("expert sum", u64::from(d.rows) * 4)?)
            };
            let shared = if i == 0 { self.shared } else { None };
            let mut bindings = vec![part.quants.clone(), part.scales.clone()];
            bindings.extend(
                shared
                    .iter()
                    .flat_map(|s| [s.parts[0].quants.clone(), s.parts[0].scales.clone()]),
            );
            bindings.extend([
                self.h.clone(),
                self.ids.clone(),
                self.weights.clone(),
                residual,
                y.clone(),
            ]);
            if last {
                bindings.extend(self.q.bindings());
            }
            let params = vec![
                Word::U(part.first_row / d.rows),
                Word::U(part.rows / d.rows),
                Word::U(part.sub),
                Word::U(shared.map_or(0, |s| s.parts[0].sub)),
            ];
            let read =
                d.bytes_of_rows(u64::from(self.used * d.rows)) + shared.map_or(0, GpuWeight::bytes);
            let spec = spec(gpu, d, shared, self.used, last);
            ops.push(Op::new(spec, bindings, params, grid(d.rows / TILE).0).with_bytes(read));
            residual = y;
        }
        Ok(ops)
    }
}
