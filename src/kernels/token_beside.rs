//! Two products of one token's prepared input in one dispatch: `attn_q_a` (or `attn_q`) and `attn_kv_a_mqa`. It serves devices with
//! [serial passes](crate::gpu::machine::Machine::serial_passes), where two dispatches would wait for each other.

use super::MAX_GRID;
use super::token::{
    Divided, TokenInput, TokenOutput, divided, kernel, site, staged, weight, with_rms,
};
use super::token_matvec::token_matvec;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent};
use crate::gpu::geometry::{Geometry, PREPARED_ROWS, Site, WHOLE_THREADS};
use crate::gpu::memory::GpuWeight;
use crate::gpu::{GpuError, Target};
use crate::model::Weight;
use crate::quant::activation::Activation;

/// Whether the kernel can take these weights. `prepared` says whether the first output is left prepared.
pub fn fits(weights: [&GpuWeight; 2], prepared: bool) -> bool {
    let [first, other] = weights;
    // The smallest tile that a geometry can have: the fewest threads of a workgroup, and the most of them for a row.
    let tiles = |w: &GpuWeight| w.rows.div_ceil(WHOLE_THREADS / 32);
    weights
        .iter()
        .all(|w| w.groups == 1 && w.pieces.len() == 1 && w.rows > 0)
        && first.cols == other.cols
        && first.cols.is_multiple_of(32)
        && (!prepared || first.rows.is_multiple_of(PREPARED_ROWS))
        && tiles(first) + tiles(other) <= MAX_GRID
}

/// The products on the device.
pub struct GpuTokenBeside<'a> {
    /// W and V, (rows, cols) each.
    pub weights: [&'a GpuWeight; 2],
    /// The format of prepared values.
    pub activation: Activation,
    /// The input, with a norm.
    pub x: TokenInput,
    /// Where W x goes as f32, (rows).
    pub y: Option<Range>,
    /// Where W x goes prepared for the next product.
    pub prepared: Option<TokenOutput>,
    /// Where V x goes as f32, (rows).
    pub z: Range,
}

impl Divided for GpuTokenBeside<'_> {
    fn site(&self) -> Site {
        Site {
            prepared: self.prepared.is_some(),
            ..site("token_beside", &self.weights, self.activation)
        }
    }

    fn pieces(&self, target: &Target, geometry: &Geometry) -> Result<Vec<Call>, GpuError> {
        let (activation, units) = (self.activation, self.weights[0].cols / 32);
        let [w, v] = self.weights;
        assert!(
            fits(self.weights, self.prepared.is_some()),
            "{} beside {}",
            w.name,
            v.name
        );
        let call = kernel("token_beside", activation).number("UNITS", units);
        let call = with_rms(target, divided(call, geometry, units), geometry, units);
        let call = weight(call, ["WEIGHT", "WEIGHT_TIMES"], w.ty, activation);
        let call = weight(call, ["OTHER", "OTHER_TIMES"], v.ty, activation);
        let call = staged(target, call, geometry, activation, [1, units], 0);
        let [w_piece, v_piece] = [&w.pieces[0], &v.pieces[0]];
        let weights = u64::from(w.rows + v.rows) * u64::from(w.cols);
        let tiles = [w, v].map(|w| w.rows.div_ceil(geometry.tile));
        let call = call
            .planes(["w_q", "w_s"], w_piece)
            .planes(["v_q", "v_s"], v_piece)
            .bind("z", &self.z)
            .bind_some("y", self.y.as_ref())
            .word("rows", w.rows)
            .word("other_rows", v.rows)
            .word("sub", w_piece.sub)
            .word("other_sub", v_piece.sub)
            .grid([Extent::N(tiles.iter().sum()), Extent::N(1), Extent::N(1)])
            .with_bytes(w.bytes() + v.bytes())
            .with_flops(super::once(2 * weights));
        let call = self.x.bind(call);
        Ok(vec![TokenOutput::bind(self.prepared.as_ref(), call)])
    }
}

/// [`token_matvec`] of both weights with `x` (cols), divided by the root mean square. `rms` are the sums of squares of every 16 values
/// before they were multiplied by the norm's weight, and the norm's epsilon.
pub fn token_beside(weights: [&Weight; 2], x: &[f32], rms: (&[f32], f32)) -> [Vec<f32>; 2] {
    weights.map(|w| token_matvec(w, x, 0, Some(rms), None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Gpu;
    use crate::gpu::call::State;
    use crate::quant::GgmlType;

    use crate::gpu::testing::{download, gpu_weight, output, run, token_gpus};
    use crate::kernels::testing::{Rng, assert_close, drawn_pairs, random_weight};
    use crate::kernels::token::testing::{
        Given, activation, assert_prepared, geometries, room, sums_nmse,
    };

    struct Case {
        types: [GgmlType; 2],
        rows: [usize; 2],
        cols: usize,
        /// Whether the first output is left as f32.
        y: bool,
        /// Whether the first output is left prepared, and if so whether with a norm.
        prepared: Option<bool>,
    }

    /// Compares the kernel with its twin, in the geometry that the device takes, or in all that it allows.
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
        let geometries = geometries(gpu, &site, all);
        for geometry in geometries {
            let call = call();
            let state = State {
                tokens: 1,
                ..State::default()
            };
            let calls = call.calls_with(gpu, &geometry);
            run(gpu, &calls.unwrap_or_else(|e| panic!("{e}")), &state);
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
        let mut rng = Rng::fresh();
        let cases = [
            // q_a and kv_a of GLM-4.7-Flash and Youtu-LLM-2B, attn_q and kv_a of DeepSeek-V2-Lite.
            ([Q4_0, Q4_0], [768, 576], 2048, false, Some(true)),
            ([Q4_K, Q8_0], [768, 576], 2048, false, Some(true)),
            ([Q5_0, Q6_K], [1536, 576], 2048, false, Some(true)),
            ([Q4_0, F16], [3072, 576], 2048, true, Some(false)),
            ([Q6_K, Q4_0], [3072, 576], 2048, true, None),
            // Rows and units that are no multiples of what a workgroup takes, more rows of the second product, and more units than a
            // thread takes at once.
            ([IQ4_NL, Q8_0], [96, 131], 352, true, Some(true)),
            ([Q4_0, Q8_0], [32, 20], 8480, true, Some(true)),
        ];
        for (gpu, &(types, rows, cols, y, prepared)) in drawn_pairs(&token_gpus(), &cases) {
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

    #[test]
    #[ignore = "long: scripts/test --all"]
    fn other_geometries_give_the_same() {
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
