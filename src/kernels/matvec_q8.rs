//! [`matvec`](super::matvec) of one token in the `int8` tier: activations come and go as bytes.

use super::MlaDims;
use super::attention::partial_bytes;
use super::q8::{
    Q8Input, Q8Output, check_geometry, check_rows, divided, geometry, grid, unsupported, weight,
};
use crate::gpu::geometry::{Geometry, MAX_THREADS, Site};
use crate::gpu::memory::GpuWeight;
use crate::gpu::pipeline::Spec;
use crate::gpu::record::{Op, Range, Word, accesses};
use crate::gpu::shader::Variant;
use crate::gpu::{Gpu, GpuError};
use crate::kernels::matvec::{MatvecOptions, matvec};
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
    /// The slices that [`GpuAttention`](super::attention::GpuAttention) left in the same step, joined as
    /// [`attention_merge`](super::attention_merge) does: W is `attn_v_b`, (heads, rows, kv_lora).
    Slices([Range; 2], MlaDims),
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
    /// Heads, or 1.
    pub groups: u32,
    /// Rows of a group.
    pub rows: u32,
    /// Of 32 weights, per row.
    pub units: u32,
    /// Units from one group's input to the next.
    pub x_units: u32,
    /// Where the input comes from.
    pub source: Source,
    /// Whether the input has a norm.
    pub rms: bool,
    /// Whether something is added.
    pub residual: bool,
    /// Whether the output is left as f32.
    pub y: bool,
    /// Whether it is left as bytes, and if so whether with a norm.
    pub q: Option<bool>,
}

/// Where the input of a product comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// Records.
    Bytes,
    /// f32.
    Floats,
    /// The attention's slices.
    Slices,
}

/// Threads of a workgroup that joins slices at most: what 16 KiB of workgroup memory hold of them.
const MERGE_THREADS: u32 = 512;
/// Rows of a workgroup that are worth joining slices for: GLM's heads have 256, so four workgroups repeat the joining.
const MERGE_ROWS: u32 = 64;

impl Shape {
    /// What to choose a geometry for.
    pub(super) fn site(&self) -> Site {
        let merge = self.source == Source::Slices;
        let cols = self.units * 32;
        Site {
            kernel: match self.source {
                Source::Bytes => "matvec_q8",
                Source::Floats => "matvec_q8+x_float",
                Source::Slices => "matvec_q8+merge",
            },
            types: vec![self.ty],
            shape: match self.groups {
                1 => format!("{}x{cols}", self.rows),
                groups => format!("{groups}x{}x{cols}", self.rows),
            },
            rows: self.groups * self.rows,
            units: self.units,
            bytes: self.q.is_some(),
            whole: merge.then_some(self.rows),
            threads: if merge {
                // A thread for every four columns.
                [cols / 4, MERGE_THREADS]
            } else {
                [1, MAX_THREADS]
            },
            // Its weights are on their way while the slices are joined.
            one_block: merge,
            at_once: 2,
            shares_work: merge.then_some(MERGE_ROWS),
        }
    }
}

/// The pipeline with this geometry.
pub(super) fn spec(geometry: &Geometry, shape: &Shape) -> Spec {
    let (floats, merge) = (
        shape.source == Source::Floats,
        shape.source == Source::Slices,
    );
    let variant = weight(Variant::default(), "WEIGHT", "FLOAT", shape.ty);
    let mut variant = divided(variant, geometry, shape.units)
        .number("UNITS", shape.units)
        .number("AT_ONCE", geometry.at_once)
        .flag("X_FLOAT", floats)
        .flag("MERGE", merge)
        .flag("RMS", shape.rms)
        .flag("RESIDUAL", shape.residual)
        .flag("OUT_FLOAT", shape.y)
        .flag("OUT_Q8", shape.q.is_some())
        .flag("NORM_OUT", shape.q == Some(true));
    if floats {
        // Dequantised, whatever the type is.
        variant = variant.flag("FLOAT", true);
    }
    if merge {
        variant = variant.number("ROWS_PER_GROUP", shape.rows);
    } else if shape.groups > 1 {
        variant = variant
            .flag("GROUPS", true)
            .number("ROWS_PER_GROUP", shape.rows)
            .number("X_UNITS", shape.x_units);
    }
    let mut access = String::from(match shape.source {
        Source::Bytes => "rrr",
        Source::Floats | Source::Slices => "rrrr",
    });
    access.extend(shape.rms.then_some('r'));
    access.extend(shape.residual.then_some('r'));
    access.extend(shape.y.then_some('w'));
    access.push_str(match shape.q {
        Some(true) => "rww",
        Some(false) => "w",
        None => "",
    });
    Spec {
        kernel: "matvec_q8",
        source: include_str!("../../wgsl/matvec_q8.wgsl"),
        variant,
        access: accesses(&access),
    }
}

impl GpuMatvecQ8<'_> {
    fn squares(&self) -> Option<(&Range, f32)> {
        match &self.x {
            Input::Q8(x, _) => x.rms.as_ref().map(|(squares, eps)| (squares, *eps)),
            Input::Float(_, _, squares, eps) => Some((squares, *eps)),
            Input::Slices(..) => None,
        }
    }

    fn shape(&self) -> Shape {
        let w = self.weight;
        let (source, x_units) = match &self.x {
            Input::Q8(_, x_units) => (Source::Bytes, *x_units),
            Input::Float(..) => (Source::Floats, 0),
            Input::Slices(..) => (Source::Slices, 0),
        };
        Shape {
            ty: w.ty,
            groups: w.groups,
            rows: w.rows,
            units: w.cols / 32,
            x_units,
            source,
            rms: self.squares().is_some(),
            residual: self.residual.is_some(),
            y: self.y.is_some(),
            q: self.q.as_ref().map(|q| q.norm.is_some()),
        }
    }

    /// What a geometry can be chosen for.
    pub fn site(&self) -> Site {
        self.shape().site()
    }

    /// The dispatches: one per part of the weight.
    ///
    /// # Errors
    /// [`GpuError::TierUnsupported`] where no geometry suits the shape on this device, or rows that leave as bytes are no
    /// multiple of 16.
    ///
    /// # Panics
    /// If a buffer is too small for the sizes, which would let the kernel index beyond it.
    pub fn ops(&self, gpu: &Gpu) -> Result<Vec<Op>, GpuError> {
        self.ops_with(gpu, &geometry(gpu, &self.site())?)
    }

    /// As [`ops`](Self::ops), divided so.
    ///
    /// # Errors
    /// As [`ops`](Self::ops).
    ///
    /// # Panics
    /// As [`ops`](Self::ops), or if the kernel or the device does not allow the geometry.
    pub fn ops_with(&self, gpu: &Gpu, geometry: &Geometry) -> Result<Vec<Op>, GpuError> {
        check_geometry(gpu, &self.site(), geometry);
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
        if !w.cols.is_multiple_of(32) {
            return Err(unsupported(
                gpu,
                &format!("a kernel for rows of {cols} in {}", w.name),
            ));
        }
        let mut inputs = self.inputs();
        assert!(
            self.squares().is_none_or(|(s, _)| s.size >= cols / 4),
            "squares before {}",
            w.name
        );
        inputs.extend(self.squares().map(|(squares, _)| squares.clone()));
        inputs.extend(self.residual.clone());
        inputs.extend(self.y.clone());
        if let Some(q) = &self.q {
            q.check(out, &w.name);
            inputs.extend(q.bindings());
        }
        let shape = self.shape();
        let spec = spec(geometry, &shape);
        let parts = w.parts.iter().map(|part| {
            if self.q.is_some() {
                check_rows(gpu, part.rows, &w.name)?;
            }
            let (grid, width) = grid(part.rows.div_ceil(geometry.tile));
            let mut params = vec![
                Word::U(part.rows),
                Word::U(part.first_row),
                Word::U(part.sub),
                Word::U(width),
            ];
            params.extend(self.squares().map(|(_, eps)| Word::F(eps)));
            params.extend((shape.source == Source::Slices).then_some(Word::Splits));
            let bindings = [part.quants.clone(), part.scales.clone()]
                .into_iter()
                .chain(inputs.clone())
                .collect();
            let op = Op::new(spec.clone(), bindings, params, grid)
                .with_bytes(part.quants.size + part.scales.size)
                .at_site(shape.site());
            Ok(op)
        });
        parts.collect()
    }

    /// The bindings of the input.
    fn inputs(&self) -> Vec<Range> {
        let w = self.weight;
        let cols = u64::from(w.cols);
        match &self.x {
            Input::Q8(x, x_units) => {
                let units = u64::from((w.groups - 1) * x_units) + cols / 32;
                assert!(
                    x.records.size >= units * super::q8::RECORD,
                    "input of {}",
                    w.name
                );
                vec![x.records.clone()]
            }
            Input::Float(x, norm, ..) => {
                assert!(
                    x.size.min(norm.size) >= cols * 4 && w.groups == 1,
                    "input of {}",
                    w.name
                );
                vec![x.clone(), norm.clone()]
            }
            Input::Slices(partials, dims) => {
                assert!(
                    (w.groups as usize, w.cols as usize) == (dims.heads, dims.kv_lora),
                    "{dims:?} for {}",
                    w.name
                );
                let sizes = partial_bytes(*dims, 1);
                assert!(
                    partials.iter().zip(sizes).all(|(p, bytes)| p.size >= bytes),
                    "slices before {}",
                    w.name
                );
                partials.to_vec()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::geometry::Machine;
    use crate::gpu::record::State;
    use crate::gpu::testing::{download, gpu_weight, int8_gpu, output, run, upload};
    use crate::gpu::{GpuOptions, Tier};
    use crate::kernels::attention::MAX_SLICES;
    use crate::kernels::attention_merge::attention_merge;
    use crate::kernels::q8::testing::{Given, assert_bytes, room};
    use crate::kernels::testing::{Rng, assert_close, random_weight};
    use crate::quant::activation::quantize_activation;

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
        check_with(gpu, rng, case, false);
    }

    /// Against the twin, with the geometry that the device takes or with all.
    fn check_with(gpu: &Gpu, rng: &mut Rng, case: &Case, all: bool) {
        let &Case {
            ty,
            groups,
            rows,
            cols,
            x_units,
            residual,
            out,
        } = case;
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
        let x = Input::Q8(input, x_units as u32);
        let residual = residual.then(|| Range::whole(&upload(gpu, &before)));
        let mut op = GpuMatvecQ8 {
            weight: &gpu_weight(gpu, &w),
            x,
            residual,
            y: (out != Out::Bytes).then(|| Range::whole(&output(gpu, n))),
            q: (out != Out::Float).then(|| room(gpu, n, Some(&g))),
        };
        for geometry in geometries(gpu, &op.site(), all) {
            op.y = op.y.map(|_| Range::whole(&output(gpu, n)));
            op.q = op.q.map(|_| room(gpu, n, Some(&g)));
            let ops = op.ops_with(gpu, &geometry);
            let state = State {
                tokens: 1,
                ..State::default()
            };
            run(gpu, &ops.unwrap_or_else(|e| panic!("{e}")), &state);
            let what = format!("{} {groups} x {rows} x {cols}, {geometry:?}", ty.name());
            if let Some(y) = &op.y {
                let exact: Vec<f64> = twin.iter().map(|v| f64::from(*v)).collect();
                assert_close(&download(gpu, &y.buffer, n), &exact, NMSE, &what);
            }
            if let Some(q) = &op.q {
                assert_bytes(gpu, q, Some(&g), &twin, &what);
            }
        }
    }

    fn geometries(gpu: &Gpu, site: &Site, all: bool) -> Vec<Geometry> {
        let found = if all {
            site.candidates(Machine::of(gpu))
        } else {
            vec![gpu.geometry(site).expect("the device allows one")]
        };
        assert!(!found.is_empty());
        found
    }

    #[test]
    fn every_geometry_gives_the_same() {
        let Some(gpu) = int8_gpu() else { return };
        let mut rng = Rng::fresh();
        // Ragged units and rows; groups that tiles cross; exact ones.
        for (ty, groups, rows, cols, x_units, out) in [
            (GgmlType::Q4_0, 1, 160, 1120, 0, Out::Both),
            (GgmlType::Q5_0, 5, 80, 192, 8, Out::Float),
            (GgmlType::Q8_0, 1, 67, 512, 0, Out::Float),
            (GgmlType::F16, 4, 48, 96, 3, Out::Bytes),
        ] {
            let case = Case {
                ty,
                groups,
                rows,
                cols,
                x_units,
                residual: groups == 1,
                out,
            };
            check_with(gpu, &mut rng, &case, true);
        }
    }

    /// attn_v_b over slices against its twin over what the twin of the merge makes of them.
    fn check_slices(gpu: &Gpu, rng: &mut Rng, w: &Weight, splits: usize, all: bool) {
        let (heads, rows, kv_lora) = (w.groups, w.rows, w.cols);
        let dims = MlaDims {
            heads,
            nope: 8,
            rope: 8,
            kv_lora,
        };
        let mut partial = rng.normals(heads * splits * kv_lora);
        let mut stats: Vec<[f32; 2]> = (0..heads * splits)
            .map(|_| [rng.normals(1)[0] * 4.0, 0.1 + rng.uniform()])
            .collect();
        if splits > 1 {
            // A slice without rows.
            stats[splits - 1] = [-1e30, 0.0];
            partial[(splits - 1) * kv_lora..splits * kv_lora].fill(0.0);
        }
        let mut latent = vec![0.0; heads * kv_lora];
        attention_merge(&partial, &stats, splits, kv_lora, &mut latent);
        let twin = matvec_q8(w, &quantize_activation(&latent), kv_lora / 32, None, None);
        let exact: Vec<f64> = twin.iter().map(|v| f64::from(*v)).collect();

        let [parts, pairs] = partial_bytes(dims, 1);
        let padded = |data: &[f32], bytes: u64| {
            let mut data = data.to_vec();
            data.resize(bytes as usize / 4, f32::NAN);
            Range::whole(&upload(gpu, &data))
        };
        let partials = [padded(&partial, parts), padded(stats.as_flattened(), pairs)];
        let n = heads * rows;
        let mut op = GpuMatvecQ8 {
            weight: &gpu_weight(gpu, w),
            x: Input::Slices(partials, dims),
            residual: None,
            y: None,
            q: None,
        };
        op.q = Some(room(gpu, n, None));
        for geometry in geometries(gpu, &op.site(), all) {
            let (y, q) = (output(gpu, n), room(gpu, n, None));
            op.y = Some(Range::whole(&y));
            op.q = Some(q.clone());
            let ops = op.ops_with(gpu, &geometry);
            let state = State {
                tokens: 1,
                splits: splits as u32,
                ..State::default()
            };
            run(gpu, &ops.unwrap_or_else(|e| panic!("{e}")), &state);
            let what = format!("{heads} x {rows} x {kv_lora}, {splits} slices, {geometry:?}");
            let found = download(gpu, &y, n);
            // A latent midway between two bytes may round the other way.
            assert_close(&found, &exact, 1e-6, &what);
            assert_bytes(gpu, &q, None, &found, &what);
        }
    }

    #[test]
    fn slices_are_joined_before_the_product() {
        let Some(gpu) = int8_gpu() else { return };
        let mut rng = Rng::fresh();
        for (ty, heads, rows, kv_lora, all_splits) in [
            (GgmlType::Q4_0, 20, 256, 512, &[1, 5, 52][..]),
            (GgmlType::Q8_0, 16, 128, 512, &[2, MAX_SLICES]),
            (GgmlType::F16, 4, 48, 96, &[1, 9]),
        ] {
            let w = random_weight(&mut rng, ty, heads, rows, kv_lora);
            for &splits in all_splits {
                check_slices(gpu, &mut rng, &w, splits, false);
            }
        }
        let w = random_weight(&mut rng, GgmlType::Q4_0, 2, 128, 288);
        check_slices(gpu, &mut rng, &w, 7, true);
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
                &op.ops(gpu).unwrap_or_else(|e| panic!("{e}")),
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
