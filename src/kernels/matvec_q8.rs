//! [`matvec`](super::matvec) of one token in the `int8` tier: activations come and go as bytes.

use super::q8::{Q8Input, Q8Output, TILE, divided, grid, weight};
use crate::gpu::Gpu;
use crate::gpu::memory::GpuWeight;
use crate::gpu::pipeline::Spec;
use crate::gpu::record::{Op, Range, Word, accesses};
use crate::gpu::shader::Variant;
use crate::kernels::matvec::{MatvecOptions, matvec};
use crate::kernels::rope_cache::{Rotation, RotationShape};
use crate::model::Weight;
use crate::quant::GgmlType;
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

/// What the pipeline of a product depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Of the weight.
    pub ty: GgmlType,
    /// Of 32 weights, per row.
    pub units: u32,
    /// Rows of a group and units from one group's input to the next, where there are several.
    pub groups: Option<(u32, u32)>,
    /// Whether the input is f32 and not bytes.
    pub float: bool,
    /// Whether the input has a norm.
    pub rms: bool,
    /// Whether something is added.
    pub residual: bool,
    /// Whether the output is left as f32.
    pub y: bool,
    /// Whether it is left as bytes, and if so whether with a norm.
    pub q: Option<bool>,
    /// The rotation of queries last.
    pub rotate: Option<RotationShape>,
}

impl Shape {
    /// Rows of a workgroup.
    fn tile(&self) -> u32 {
        if self.q.is_some() { TILE } else { 8 }
    }
}

/// The pipeline for subgroups of `lanes` threads or more.
pub(super) fn spec(lanes: u32, shape: &Shape) -> Spec {
    let variant = Variant::default()
        .number("UNITS", shape.units)
        .flag("X_FLOAT", shape.float);
    let variant = weight(variant, "WEIGHT", "FLOAT", shape.ty);
    let mut variant = divided(lanes, variant, shape.tile(), shape.units)
        .flag("RMS", shape.rms)
        .flag("RESIDUAL", shape.residual)
        .flag("OUT_FLOAT", shape.y)
        .flag("OUT_Q8", shape.q.is_some())
        .flag("NORM_OUT", shape.q == Some(true));
    if let Some((rows, x_units)) = shape.groups {
        variant = variant
            .flag("GROUPS", true)
            .number("ROWS_PER_GROUP", rows)
            .number("X_UNITS", x_units);
    }
    if let Some(rotation) = shape.rotate {
        variant = rotation.variant(variant);
    }
    let mut access = String::from(if shape.float { "rrrr" } else { "rrr" });
    access.extend(shape.rms.then_some('r'));
    access.extend(shape.residual.then_some('r'));
    access.extend(shape.y.then_some('w'));
    access.push_str(match shape.q {
        Some(true) => "rww",
        Some(false) => "w",
        None => "",
    });
    access.push_str(if shape.rotate.is_some() { "rr" } else { "" });
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
        self.with_rotation(gpu, None)
    }

    /// The dispatches of a product whose output, as f32 alone, is rotated.
    ///
    /// # Panics
    /// As [`GpuMatvecQ8::ops`], or if the rows to rotate are not whole heads. A replay's position must be in the table.
    pub fn rotated_ops(&self, gpu: &Gpu, rotation: &Rotation) -> Vec<Op> {
        rotation.check(self.weight.total_rows(), &self.weight.name);
        assert!(
            self.q.is_none() && self.weight.groups == 1,
            "{}: rotated queries leave as floats",
            self.weight.name
        );
        self.with_rotation(gpu, Some(rotation))
    }

    fn with_rotation(&self, gpu: &Gpu, rotation: Option<&Rotation>) -> Vec<Op> {
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
        inputs.extend(rotation.into_iter().flat_map(Rotation::bindings));
        let shape = Shape {
            ty: w.ty,
            units: w.cols / 32,
            groups: match &self.x {
                Input::Q8(_, x_units) if w.groups > 1 => Some((w.rows, *x_units)),
                _ => None,
            },
            float: matches!(self.x, Input::Float(..)),
            rms: squares.is_some(),
            residual: self.residual.is_some(),
            y: self.y.is_some(),
            q: self.q.as_ref().map(|q| q.norm.is_some()),
            rotate: rotation.map(Rotation::shape),
        };
        let spec = spec(gpu.lanes(), &shape);
        let rows = shape.tile();
        w.parts
            .iter()
            .map(|part| {
                assert!(
                    self.q.is_none() || part.rows.is_multiple_of(TILE),
                    "rows of {} by {TILE}",
                    w.name
                );
                let (grid, width) = grid(part.rows.div_ceil(rows));
                let mut params = vec![
                    Word::U(part.rows),
                    Word::U(part.first_row),
                    Word::U(part.sub),
                    Word::U(width),
                    Word::F(eps),
                ];
                if rotation.is_some() {
                    assert!(part.first_row.is_multiple_of(2), "pairs of {}", w.name);
                    params.push(Word::Pos);
                }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::record::State;
    use crate::gpu::testing::{download, gpu_weight, int8_gpu, output, run, upload};
    use crate::gpu::{GpuOptions, Tier};
    use crate::kernels::q8::testing::{Given, assert_bytes, room};
    use crate::kernels::rope_cache::rotate_rows;
    use crate::kernels::testing::{Rng, assert_close, random_weight};

    /// Integer sums are exact; the rest are f32 sums of up to 684 half units in another order.
    const NMSE: f64 = 1e-11;

    /// What a case leaves.
    #[derive(Clone, Copy, PartialEq)]
    enum Out {
        Float,
        Bytes,
        Both,
    }

    struct Case {
        ty: GgmlType,
        groups: usize,
        rows: usize,
        cols: usize,
        /// Units from one group's input to the next.
        x_units: usize,
        residual: bool,
        out: Out,
    }

    fn check(gpu: &Gpu, rng: &mut Rng, case: &Case) {
        let &Case {
            ty,
            groups,
            rows,
            cols,
            x_units,
            residual,
            out,
        } = case;
        let what = format!("{} {groups} x {rows} x {cols}", ty.name());
        let w = random_weight(rng, ty, groups, rows, cols);
        let n = groups * rows;
        let values = cols.max(groups * x_units * 32);
        let (x, norm) = (rng.normals(values), rng.normals(values));
        let given = Given::new(&x, &norm);
        let before = rng.normals(n);
        let g = rng.normals(n);
        let rms = (groups == 1).then_some((given.squares.as_slice(), 1e-5));
        let twin = matvec_q8(
            &w,
            &given.records,
            x_units,
            rms,
            residual.then_some(&before[..]),
        );

        let mut input = given.upload(gpu, 1e-5);
        if groups > 1 {
            input.rms = None;
        }
        let y = output(gpu, n);
        let q = room(gpu, n, Some(&g));
        let op = GpuMatvecQ8 {
            weight: &gpu_weight(gpu, &w),
            x: Input::Q8(input, x_units as u32),
            residual: residual.then(|| Range::whole(&upload(gpu, &before))),
            y: (out != Out::Bytes).then(|| Range::whole(&y)),
            q: (out != Out::Float).then(|| q.clone()),
        };
        run(
            gpu,
            &op.ops(gpu),
            &State {
                tokens: 1,
                ..State::default()
            },
        );
        if out != Out::Bytes {
            let exact: Vec<f64> = twin.iter().map(|v| f64::from(*v)).collect();
            assert_close(&download(gpu, &y, n), &exact, NMSE, &what);
        }
        if out != Out::Float {
            assert_bytes(gpu, &q, Some(&g), &twin, &what);
        }
    }

    #[test]
    fn the_gpu_agrees_for_every_type() {
        let Some(gpu) = int8_gpu() else { return };
        let mut rng = Rng::fresh();
        for &ty in GgmlType::ALL {
            let case = Case {
                ty,
                groups: 1,
                rows: 160,
                cols: 768,
                x_units: 0,
                residual: true,
                out: Out::Both,
            };
            check(gpu, &mut rng, &case);
        }
    }

    #[test]
    fn the_gpu_agrees_at_the_shapes_of_the_models() {
        let Some(gpu) = int8_gpu() else { return };
        let mut rng = Rng::fresh();
        // GLM-4.7-Flash, DeepSeek-V2-Lite, Youtu-LLM-2B: q_a, kv_a, q_b, k_b, v_b, output, dense down, head.
        for (ty, groups, rows, cols, x_units, residual, out) in [
            (GgmlType::Q4_0, 1, 768, 2048, 0, false, Out::Bytes),
            (GgmlType::Q4_K, 1, 576, 2048, 0, false, Out::Float),
            (GgmlType::Q4_0, 1, 5120, 768, 0, false, Out::Both),
            (GgmlType::Q5_0, 20, 512, 192, 8, false, Out::Float),
            (GgmlType::Q8_0, 16, 512, 128, 6, false, Out::Float),
            (GgmlType::Q4_0, 20, 256, 512, 16, false, Out::Bytes),
            (GgmlType::Q4_0, 1, 64, 5120, 0, true, Out::Both),
            (GgmlType::Q5_0, 1, 32, 10944, 0, true, Out::Both),
            (GgmlType::Q6_K, 1, 1003, 2048, 0, false, Out::Float),
        ] {
            check(
                gpu,
                &mut rng,
                &Case {
                    ty,
                    groups,
                    rows,
                    cols,
                    x_units,
                    residual,
                    out,
                },
            );
        }
    }

    #[test]
    fn queries_leave_rotated() {
        let Some(gpu) = int8_gpu() else { return };
        let mut rng = Rng::fresh();
        for (ty, first_row, rope, rows, cols) in [
            (GgmlType::Q8_0, 3 * 512, 64, 3 * 576, 768),
            (GgmlType::F16, 96, 20, 176, 2048),
        ] {
            let w = random_weight(&mut rng, ty, 1, rows, cols);
            let given = Given::new(&rng.normals(cols), &rng.normals(cols));
            let (pos, n_ctx) = (rng.below(7), 7);
            let table = rng.normals(n_ctx * rope);
            let rms = Some((given.squares.as_slice(), 1e-5));
            let mut twin = matvec_q8(&w, &given.records, 0, rms, None);
            let (angles, _) = table[pos * rope..][..rope].as_chunks();
            rotate_rows(&mut twin, first_row, rope, angles);
            let y = output(gpu, rows);
            let op = GpuMatvecQ8 {
                weight: &gpu_weight(gpu, &w),
                x: Input::Q8(given.upload(gpu, 1e-5), 0),
                residual: None,
                y: Some(Range::whole(&y)),
                q: None,
            };
            let rotation = Rotation {
                table: Range::whole(&upload(gpu, &table)),
                first_row: first_row as u32,
                rope: rope as u32,
                kv_a: None,
            };
            let state = State {
                pos: pos as u32,
                tokens: 1,
                ..State::default()
            };
            run(gpu, &op.rotated_ops(gpu, &rotation), &state);
            let exact: Vec<f64> = twin.iter().map(|v| f64::from(*v)).collect();
            let what = format!("{} {rows} x {cols}", ty.name());
            assert_close(&download(gpu, &y, rows), &exact, NMSE, &what);
        }
    }

    #[test]
    fn a_weight_larger_than_a_binding_is_cut_into_rows() {
        let options = GpuOptions {
            tier: Some(Tier::Int8),
            max_binding: Some(100_000),
            ..Default::default()
        };
        let Ok(gpu) = Gpu::open(&options) else { return };
        let mut rng = Rng::fresh();
        let case = Case {
            ty: GgmlType::Q6_K,
            groups: 1,
            rows: 1024,
            cols: 512,
            x_units: 0,
            residual: true,
            out: Out::Both,
        };
        check(&gpu, &mut rng, &case);
    }

    #[test]
    fn the_router_reads_floats() {
        let Some(gpu) = int8_gpu() else { return };
        let mut rng = Rng::fresh();
        for ty in [GgmlType::F32, GgmlType::Q8_0] {
            let (rows, cols) = (64, 2048);
            let w = random_weight(&mut rng, ty, 1, rows, cols);
            let (x, norm) = (rng.normals(cols), rng.normals(cols));
            let mut twin = vec![0.0; rows];
            matvec(
                &w,
                &x,
                1,
                MatvecOptions::contiguous(cols).with_norm(&norm, 1e-5),
                &mut twin,
            );
            let y = output(gpu, rows);
            let range = |data: &[f32]| Range::whole(&upload(gpu, data));
            let squares = crate::quant::activation::squares(&x);
            let op = GpuMatvecQ8 {
                weight: &gpu_weight(gpu, &w),
                x: Input::Float(range(&x), range(&norm), range(&squares), 1e-5),
                residual: None,
                y: Some(Range::whole(&y)),
                q: None,
            };
            run(
                gpu,
                &op.ops(gpu),
                &State {
                    tokens: 1,
                    ..State::default()
                },
            );
            let exact: Vec<f64> = twin.iter().map(|v| f64::from(*v)).collect();
            assert_close(&download(gpu, &y, rows), &exact, NMSE, ty.name());
        }
    }
}
