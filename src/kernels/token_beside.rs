//! Two products of one token's prepared input in one grid, where every dispatch of a pass waits for the one before it
//! ([`Gpu::serial_passes`]): `attn_q_a` (or `attn_q`) with `attn_kv_a_mqa`.

use super::MAX_GRID;
use super::token::{
    TokenInput, TokenOutput, check_geometry, divided, geometry, staged, stages, variant, weight,
};
use super::token_matvec::token_matvec;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent, Flops, Word, accesses};
use crate::gpu::geometry::{Geometry, MAX_THREADS, PREPARED_ROWS, Site, WHOLE_THREADS};
use crate::gpu::memory::GpuWeight;
use crate::gpu::pipeline::Spec;
use crate::gpu::{GpuError, Target};
use crate::model::Weight;
use crate::quant::GgmlType;
use crate::quant::activation::Activation;

/// [`token_matvec`] of both weights: of `x` (cols) over its root mean square, where `rms` are sums of squares of 16 values of it
/// before the norm's weight, and the norm's epsilon.
pub fn token_beside(weights: [&Weight; 2], x: &[f32], rms: (&[f32], f32)) -> [Vec<f32>; 2] {
    weights.map(|w| token_matvec(w, x, 0, Some(rms), None))
}

/// What the pipeline depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Of both weights.
    pub types: [GgmlType; 2],
    /// Of both weights.
    pub rows: [u32; 2],
    /// Of 32 weights, per row.
    pub units: u32,
    /// What prepared values are.
    pub activation: Activation,
    /// Whether the first output is left as f32.
    pub y: bool,
    /// Whether the first output is left prepared, and if so whether with a norm.
    pub prepared: Option<bool>,
    /// Whether the input passes through workgroup memory.
    pub staged: bool,
}

impl Shape {
    /// What to choose a geometry for.
    pub(super) fn site(&self) -> Site {
        let cols = self.units * 32;
        let [first, other] = self.rows;
        Site {
            kernel: "token_beside",
            types: self.types.to_vec(),
            shape: format!("{first}x{cols}+{other}x{cols}"),
            rows: first + other,
            units: self.units,
            activation: self.activation,
            prepared: self.prepared.is_some(),
            pairs: false,
            whole: None,
            threads: [1, MAX_THREADS],
            one_block: false,
            at_once: 1,
            shares_work: None,
            split: false,
        }
    }
}

/// The pipeline with this geometry.
pub(super) fn spec(geometry: &Geometry, shape: &Shape) -> Spec {
    let activation = shape.activation;
    let variant = divided(variant(activation), geometry, shape.units);
    let variant = weight(
        variant,
        ["WEIGHT", "WEIGHT_TIMES"],
        shape.types[0],
        activation,
    );
    let variant = weight(
        variant,
        ["OTHER", "OTHER_TIMES"],
        shape.types[1],
        activation,
    );
    let mut variant = variant
        .number("UNITS", shape.units)
        .flag("OUT_PLAIN", shape.y)
        .flag("OUT_PREPARED", shape.prepared.is_some())
        .flag("NORM_OUT", shape.prepared == Some(true));
    if shape.staged {
        variant = staged(variant, geometry, activation, shape.units);
    }
    let mut access = String::from("rrrrrrw");
    access.extend(shape.y.then_some('w'));
    access.push_str(match shape.prepared {
        Some(true) => "rww",
        Some(false) => "w",
        None => "",
    });
    Spec {
        kernel: "token_beside",
        source: include_str!("../../wgsl/token_beside.wgsl"),
        variant,
        access: accesses(&access),
    }
}

/// Whether the kernel is for these weights; the output of the first leaves prepared or not.
pub fn fits(weights: [&GpuWeight; 2], prepared: bool) -> bool {
    let [first, other] = weights;
    // Rows of the smallest workgroup with the most threads to a row.
    let tiles = |w: &GpuWeight| w.rows.div_ceil(WHOLE_THREADS / 32);
    weights
        .iter()
        .all(|w| w.groups == 1 && w.parts.len() == 1 && w.rows > 0)
        && first.cols == other.cols
        && first.cols.is_multiple_of(32)
        && (!prepared || first.rows.is_multiple_of(PREPARED_ROWS))
        && tiles(first) + tiles(other) <= MAX_GRID
}

/// The products on the device.
pub struct GpuTokenBeside<'a> {
    /// W and V, (rows, cols) each.
    pub weights: [&'a GpuWeight; 2],
    /// What prepared values are.
    pub activation: Activation,
    /// The input, with a norm.
    pub x: TokenInput,
    /// W x as f32, (rows).
    pub y: Option<Range>,
    /// W x as the next product takes it.
    pub prepared: Option<TokenOutput>,
    /// V x as f32, (rows).
    pub z: Range,
}

impl GpuTokenBeside<'_> {
    fn shape(&self) -> Shape {
        Shape {
            types: self.weights.map(|w| w.ty),
            rows: self.weights.map(|w| w.rows),
            units: self.weights[0].cols / 32,
            activation: self.activation,
            y: self.y.is_some(),
            prepared: self.prepared.as_ref().map(|out| out.norm.is_some()),
            staged: false,
        }
    }

    /// What a geometry can be chosen for.
    pub fn site(&self) -> Site {
        self.shape().site()
    }

    /// The dispatch.
    ///
    /// # Errors
    /// [`GpuError::TierUnsupported`] where no geometry suits the shape on this device.
    ///
    /// # Panics
    /// As [`call_with`](Self::call_with).
    pub fn call(&self, target: &Target) -> Result<Call, GpuError> {
        Ok(self.call_with(target, &geometry(target, &self.site())?))
    }

    /// The dispatch, divided so.
    ///
    /// # Panics
    /// If the weights are none that [`fits`], the kernel or the device does not allow the geometry, or a buffer is too small for the
    /// sizes, which would let the kernel index beyond it.
    pub fn call_with(&self, target: &Target, geometry: &Geometry) -> Call {
        let mut shape = self.shape();
        check_geometry(target, &shape.site(), geometry);
        shape.staged = stages(target, shape.activation, shape.units, 0);
        let [w, v] = self.weights;
        assert!(
            fits(self.weights, self.prepared.is_some()),
            "{} beside {}",
            w.name,
            v.name
        );
        let (squares, eps) = self.x.rms.clone().expect("its input has a norm");
        assert!(
            self.x.values.size >= self.activation.bytes(u64::from(shape.units))
                && squares.size >= u64::from(w.cols) / 4,
            "input of {}",
            w.name
        );
        assert!(
            self.y
                .iter()
                .all(|range| range.size >= u64::from(w.rows) * 4)
                && self.z.size >= u64::from(v.rows) * 4
                && (self.y.is_some() || self.prepared.is_some()),
            "outputs of {} and {}",
            w.name,
            v.name
        );
        let parts = self.weights.map(|weight| &weight.parts[0]);
        let mut bindings: Vec<_> = parts
            .iter()
            .flat_map(|part| [part.quants.clone(), part.scales.clone()])
            .collect();
        bindings.extend([self.x.values.clone(), squares, self.z.clone()]);
        bindings.extend(self.y.clone());
        if let Some(prepared) = &self.prepared {
            prepared.check(w.rows, self.activation, &w.name);
            bindings.extend(prepared.bindings());
        }
        let tiles: u32 = shape.rows.map(|n| n.div_ceil(geometry.tile)).iter().sum();
        let mut params = shape.rows.map(Word::U).to_vec();
        params.extend(parts.map(|part| Word::U(part.sub)));
        params.push(Word::F(eps));
        let grid = [Extent::N(tiles), Extent::N(1), Extent::N(1)];
        let bytes = parts.iter().map(|p| p.quants.size + p.scales.size).sum();
        let weights = u64::from(w.rows + v.rows) * u64::from(w.cols);
        Call::positional(spec(geometry, &shape), bindings, params, grid)
            .with_bytes(bytes)
            .with_flops(Flops {
                once: 2 * weights,
                ..Flops::default()
            })
            .at_site(shape.site())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Gpu;
    use crate::gpu::call::State;

    use crate::gpu::testing::{download, gpu_weight, output, run, token_gpus};
    use crate::kernels::testing::{Rng, assert_close, random_weight};
    use crate::kernels::token::testing::{Given, activation, assert_prepared, room, sums_nmse};

    struct Case {
        types: [GgmlType; 2],
        rows: [usize; 2],
        cols: usize,
        /// Whether the first output is left as f32.
        y: bool,
        /// Whether the first output is left prepared, and if so whether with a norm.
        prepared: Option<bool>,
    }

    /// Against the twin, with the geometry that the device takes or with all.
    fn check(gpu: &Gpu, rng: &mut Rng, case: &Case, all: bool) {
        let [rows, other_rows] = case.rows;
        let w = random_weight(rng, case.types[0], 1, rows, case.cols);
        let v = random_weight(rng, case.types[1], 1, other_rows, case.cols);
        let given = Given::new(gpu, &rng.normals(case.cols), &rng.normals(case.cols));
        let twin = token_beside([&w, &v], &given.values, (&given.squares, 1e-5));
        let g = rng.normals(rows);
        let g = (case.prepared == Some(true)).then_some(&g[..]);
        let [w, v] = [&w, &v].map(|w| gpu_weight(gpu, w));
        let x = given.upload(gpu, 1e-5);
        let call = || GpuTokenBeside {
            weights: [&w, &v],
            activation: activation(gpu),
            x: x.clone(),
            y: case.y.then(|| Range::whole(&output(gpu, rows))),
            prepared: case.prepared.map(|_| room(gpu, rows, g)),
            z: Range::whole(&output(gpu, other_rows)),
        };
        let site = call().site();
        let geometries = match all {
            true => site.candidates(gpu.machine),
            false => vec![gpu.geometry(&site).expect("the device allows one")],
        };
        assert!(!geometries.is_empty());
        for geometry in geometries {
            let call = call();
            let state = State {
                tokens: 1,
                ..State::default()
            };
            run(gpu, &[call.call_with(gpu, &geometry)], &state);
            let what = format!("{}, {geometry:?}", site.key());
            let floats = [(call.y.as_ref(), &twin[0]), (Some(&call.z), &twin[1])];
            for (found, twin) in floats {
                let Some(found) = found else { continue };
                let exact: Vec<f64> = twin.iter().map(|v| f64::from(*v)).collect();
                let found = download(gpu, &found.buffer, twin.len());
                assert_close(&found, &exact, sums_nmse(activation(gpu)), &what);
            }
            if let Some(found) = &call.prepared {
                assert_prepared(gpu, found, g, &twin[0], &what);
            }
        }
    }

    #[test]
    fn both_products_agree_with_their_twins_at_shapes_of_models() {
        use GgmlType::{F16, IQ4_NL, Q4_0, Q4_K, Q5_0, Q6_K, Q8_0};
        for gpu in token_gpus() {
            let mut rng = Rng::fresh();
            for (types, rows, cols, y, prepared) in [
                // q_a and kv_a of GLM-4.7-Flash and Youtu-LLM-2B, attn_q and kv_a of DeepSeek-V2-Lite.
                ([Q4_0, Q4_0], [768, 576], 2048, false, Some(true)),
                ([Q4_K, Q8_0], [768, 576], 2048, false, Some(true)),
                ([Q5_0, Q6_K], [1536, 576], 2048, false, Some(true)),
                ([Q4_0, F16], [3072, 576], 2048, true, Some(false)),
                ([Q6_K, Q4_0], [3072, 576], 2048, true, None),
                // Rows and units that workgroups do not divide.
                ([IQ4_NL, Q8_0], [96, 35], 352, true, Some(true)),
            ] {
                let case = Case {
                    types,
                    rows,
                    cols,
                    y,
                    prepared,
                };
                check(gpu, &mut rng, &case, false);
            }
        }
    }

    #[test]
    fn every_geometry_gives_the_same() {
        for gpu in token_gpus() {
            let mut rng = Rng::fresh();
            let case = Case {
                types: [GgmlType::Q4_0, GgmlType::Q8_0],
                rows: [96, 83],
                cols: 1632,
                y: true,
                prepared: Some(true),
            };
            check(gpu, &mut rng, &case, true);
        }
    }

    #[test]
    fn weights_of_other_inputs_do_not_fit() {
        let gpu = token_gpus()[0];
        let mut rng = Rng::fresh();
        let mut weight = |groups: usize, rows: usize, cols: usize| {
            gpu_weight(
                gpu,
                &random_weight(&mut rng, GgmlType::Q8_0, groups, rows, cols),
            )
        };
        let (w, ragged, groups, wide) = (
            weight(1, 32, 64),
            weight(1, 35, 64),
            weight(2, 32, 64),
            weight(1, 32, 96),
        );
        assert!(fits([&w, &ragged], true) && fits([&ragged, &w], false));
        assert!(!fits([&ragged, &w], true), "rows leave by 16");
        assert!(!fits([&w, &groups], true) && !fits([&w, &wide], true));
    }
}
