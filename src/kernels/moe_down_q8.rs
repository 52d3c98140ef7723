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
use crate::quant::GgmlType;
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

/// What the pipeline depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Of D.
    pub ty: GgmlType,
    /// Experts per token.
    pub used: u32,
    /// Output rows.
    pub rows: u32,
    /// Of 32 weights, per row of D.
    pub units: u32,
    /// Type and units of S.
    pub shared: Option<(GgmlType, u32)>,
    /// Whether it ends the sum and leaves the bytes.
    pub last: bool,
}

/// The pipeline for subgroups of `lanes` threads or more.
pub(super) fn spec(lanes: u32, shape: &Shape) -> Spec {
    let variant = divided(lanes, Variant::default(), TILE, shape.used * shape.units)
        .number("USED", shape.used)
        .number("ROWS", shape.rows)
        .number("UNITS", shape.units)
        .flag("OUT_Q8", shape.last)
        .flag("NORM_OUT", shape.last);
    let mut variant = weight(variant, "WEIGHT", "FLOAT", shape.ty);
    if let Some((ty, units)) = shape.shared {
        variant = weight(variant, "SHARED_WEIGHT", "SHARED_FLOAT", ty);
        variant = variant.flag("SHARED", true).number("SHARED_UNITS", units);
    }
    let shared = if shape.shared.is_some() { "rr" } else { "" };
    let access = ["rr", shared, "rrrrw", if shape.last { "rww" } else { "" }].concat();
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
            let shape = Shape {
                ty: d.ty,
                used: self.used,
                rows: d.rows,
                units: d.cols / 32,
                shared: shared.map(|s| (s.ty, s.cols / 32)),
                last,
            };
            let spec = spec(gpu.lanes(), &shape);
            ops.push(Op::new(spec, bindings, params, grid(d.rows / TILE).0).with_bytes(read));
            residual = y;
        }
        Ok(ops)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::record::State;
    use crate::gpu::testing::{download, gpu_weight, int8_gpu, output, run, upload};
    use crate::gpu::{GpuOptions, Tier};
    use crate::kernels::q8::testing::{assert_bytes, room};
    use crate::kernels::testing::{Rng, assert_close, random_weight};
    use crate::quant::activation::quantize_activation;

    fn check(
        gpu: &Gpu,
        rng: &mut Rng,
        ty: GgmlType,
        sizes: [usize; 4],
        shared: Option<(GgmlType, usize)>,
    ) {
        let [experts, used, rows, cols] = sizes;
        let down = random_weight(rng, ty, experts, rows, cols);
        let shared = shared.map(|(ty, cols)| random_weight(rng, ty, 1, rows, cols));
        let values = used * cols + shared.as_ref().map_or(0, |s| s.cols);
        let h = quantize_activation(&rng.normals(values));
        let ids: Vec<u32> = (0..used).map(|_| rng.below(experts) as u32).collect();
        let (weights, residual, g) = (rng.normals(used), rng.normals(rows), rng.normals(rows));
        let twin = moe_down_q8(&down, shared.as_ref(), &h, &ids, &weights, &residual);

        let shared_gpu = shared.as_ref().map(|s| gpu_weight(gpu, s));
        let (y, q) = (output(gpu, rows), room(gpu, rows, Some(&g)));
        let op = GpuMoeDownQ8 {
            down: &gpu_weight(gpu, &down),
            shared: shared_gpu.as_ref(),
            h: Range::whole(&upload(gpu, &h)),
            ids: Range::whole(&upload(gpu, &ids)),
            weights: Range::whole(&upload(gpu, &weights)),
            used: used as u32,
            residual: Range::whole(&upload(gpu, &residual)),
            y: Range::whole(&y),
            q: q.clone(),
        };
        let ops = op.ops(gpu).unwrap_or_else(|e| panic!("{e}"));
        run(
            gpu,
            &ops,
            &State {
                tokens: 1,
                ..State::default()
            },
        );
        let exact: Vec<f64> = twin.iter().map(|v| f64::from(*v)).collect();
        // Integer sums are exact; the rest are f32 sums of a few hundred half units in another order.
        assert_close(&download(gpu, &y, rows), &exact, 1e-11, ty.name());
        assert_bytes(gpu, &q, Some(&g), &twin, ty.name());
    }

    #[test]
    fn the_gpu_agrees_for_every_type_and_at_the_shapes_of_the_models() {
        let Some(gpu) = int8_gpu() else { return };
        let mut rng = Rng::fresh();
        for (i, &ty) in GgmlType::ALL.iter().enumerate() {
            let other = GgmlType::ALL[(i + 1) % GgmlType::ALL.len()];
            check(gpu, &mut rng, ty, [5, 3, 64, 256], Some((other, 512)));
        }
        check(
            gpu,
            &mut rng,
            GgmlType::Q4_0,
            [64, 4, 64, 1536],
            Some((GgmlType::Q4_0, 1536)),
        );
        check(
            gpu,
            &mut rng,
            GgmlType::Q5_0,
            [64, 6, 32, 1408],
            Some((GgmlType::Q6_K, 2816)),
        );
        check(gpu, &mut rng, GgmlType::Q4_0, [4, 2, 64, 96], None);
    }

    #[test]
    fn experts_larger_than_a_binding_add_up_part_by_part() {
        let options = GpuOptions {
            tier: Some(Tier::Int8),
            max_binding: Some(40_000),
            ..Default::default()
        };
        let Ok(gpu) = Gpu::open(&options) else { return };
        let mut rng = Rng::fresh();
        check(
            &gpu,
            &mut rng,
            GgmlType::Q4_K,
            [8, 3, 96, 256],
            Some((GgmlType::Q8_0, 256)),
        );
    }
}
