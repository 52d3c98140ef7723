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
    /// The output W x as f32, (rows).
    pub y: Option<Range>,
    /// The output W x prepared for the next product.
    pub prepared: Option<TokenOutput>,
    /// The output V x as f32, (rows).
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
        let call = staged(target.machine, call, geometry, activation, [1, units, 1], 0);
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
    use crate::gpu::testing::{token_gpus, unmade_weight};
    use crate::kernels::cases::token_beside::cases;
    use crate::kernels::testing::{agree, agree_long};
    use crate::quant::GgmlType;

    #[test]
    fn both_products_agree_with_their_twins_at_shapes_of_models() {
        agree(token_gpus(), |_| cases());
    }

    #[test]
    #[ignore = "long: scripts/test --all"]
    fn other_geometries_give_the_same() {
        for gpu in token_gpus() {
            agree_long([gpu], |_| cases());
        }
    }

    #[test]
    fn weights_of_other_inputs_do_not_fit() {
        let weight = |groups, rows, cols| unmade_weight(GgmlType::Q8_0, groups, rows, cols);
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
