//! [`moe_down`](Products::moe_down) of one token, with the shared expert in the same grid.

use super::MAX_GRID;
use super::products::Products;
use super::token::{
    Divided, TokenOutput, check_rows, divided, kernel, site, staged, tiles_of, weight,
};
use super::token_matvec::token_matvec;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Word};
use crate::gpu::geometry::{Geometry, RUN_LANES, Site, WHOLE_THREADS};
use crate::gpu::memory::GpuWeight;
use crate::gpu::{GpuError, Target};
use crate::model::Weight;
use crate::quant::activation::Activation;

/// residual + sum over slots of weights\[s\] * D\[ids\[s\]\] h\[s\] + S h_shared on the device.
pub struct GpuTokenMoeDown<'a> {
    /// D, (experts, rows, cols).
    pub down: &'a GpuWeight,
    /// S, (rows, its cols).
    pub shared: Option<&'a GpuWeight>,
    /// The form of prepared values.
    pub activation: Activation,
    /// The chosen experts' prepared outputs, then the shared one's.
    pub h: Range,
    /// The chosen experts, (tokens, used).
    pub ids: Range,
    /// The weights of the chosen experts, (tokens, used).
    pub weights: Range,
    /// Experts per token.
    pub used: u32,
    /// Added to the sum, (tokens, rows).
    pub residual: Range,
    /// The sum of the experts that the host multiplied, (tokens, rows), if it does so: their ids are those of no expert.
    pub share: Option<Range>,
    /// The output as f32, (tokens, rows).
    pub y: Range,
    /// The output prepared for the next layer, with its norm.
    pub prepared: TokenOutput,
    /// The most tokens of a step.
    pub tokens: u32,
}

/// The most threads of a token alone that a thread of several stands for.
const MOST_SHARES: u32 = 4;

/// See [`slot_factor`].
const SLOT_SHIFT: u32 = 27;

/// The number by which e becomes `e / units << SLOT_SHIFT` and something below for every e < used * units, where there is one: a
/// division costs an Apple GPU 12 cycles, a product and a shift 8.
fn slot_factor(used: u32, units: u32) -> Option<u32> {
    let factor = (1 << SLOT_SHIFT) / units + 1;
    // factor * units exceeds the power of two by `units` at most, and what that adds up to must stay below the power.
    let inputs = used.checked_mul(units)?;
    let exact = u64::from(inputs) * u64::from(units) < 1 << SLOT_SHIFT;
    (exact && inputs.checked_mul(factor).is_some()).then_some(factor)
}

impl Divided for GpuTokenMoeDown<'_> {
    fn site(&self) -> Site {
        let (d, used) = (self.down, self.used);
        let weights: Vec<_> = [d].into_iter().chain(self.shared).collect();
        let routed = format!("{used}x{}x{}", d.rows, d.cols);
        Site {
            shape: match self.shared {
                Some(shared) => format!("{routed}+{}", shared.shape()),
                None => routed,
            },
            rows: d.rows,
            // The threads of a row walk those of all its experts.
            units: used * d.cols / 32,
            prepared: true,
            two_runs: true,
            ..site("token_moe_down", &weights, self.activation)
        }
    }

    /// One call per piece of the experts or of the shared expert, whichever are more, each adding to the sum of the one before. The last
    /// leaves it prepared.
    fn pieces(&self, target: &Target, geometry: &Geometry) -> Result<Vec<Call>, GpuError> {
        let d = self.down;
        check_rows(target, d.rows, &d.name)?;
        assert!(
            self.shared
                .is_none_or(|s| s.rows == d.rows && s.groups == 1),
            "shared expert of {}",
            d.name
        );
        let of_shared = self.shared.map_or(0, |s| s.pieces.len());
        let count = of_shared.max(d.pieces.len());
        let mut residual = self.residual.clone();
        let mut calls = vec![];
        for i in 0..count {
            let last = i + 1 == count;
            let y = match last {
                true => self.y.clone(),
                false => Range::floats("expert sum", u64::from(self.tokens * d.rows)),
            };
            let call = self.piece(target, geometry, i);
            let share = self.share.as_ref().filter(|_| i == 0);
            let call = call
                .flag("ONE_PIECE", count == 1 && self.share.is_none())
                .bind("residual", &residual)
                .bind_some("share", share)
                .bind("y", &y);
            let prepared = last.then_some(&self.prepared);
            calls.push(TokenOutput::bind(prepared, call));
            residual = y;
        }
        Ok(calls)
    }
}

impl GpuTokenMoeDown<'_> {
    /// The threads of a token alone that a thread stands for.
    fn shares(&self, target: &Target, geometry: &Geometry) -> u32 {
        let most = match self.tokens {
            1 => 1,
            _ => geometry.lanes / target.machine.tuned.down_lanes_of_several,
        };
        // Workgroups are whole subgroups.
        let whole = geometry.threads() / WHOLE_THREADS;
        let most = most.min(whole).min(MOST_SHARES);
        let all = [4, 2].into_iter().filter(|shares| *shares <= most);
        let fits = |shares: &u32| (geometry.threads() / shares).is_multiple_of(WHOLE_THREADS);
        all.into_iter().find(fits).unwrap_or(1)
    }

    /// The call without any weights, and the geometry of its threads.
    fn divided(&self, target: &Target, geometry: &Geometry) -> (Call, Geometry) {
        let (d, used) = (self.down, self.used);
        let two_runs = geometry.lanes > RUN_LANES;
        let shares = self.shares(target, geometry);
        let own = Geometry {
            lanes: geometry.lanes / shares,
            ..*geometry
        };
        let row_runs = match two_runs && shares == 1 {
            true => geometry.threads() / 32,
            false => 1,
        };
        let call = kernel("token_moe_down", self.activation);
        let call = divided(call, geometry, used * d.cols / 32)
            .number("LANES", own.lanes)
            .number("WG", own.threads())
            .number("COLS", 1)
            .number("SHARES", shares)
            .flag("OF_TWO", shares == 2)
            .flag("OF_FOUR", shares == 4)
            .number("USED", used)
            .number("ROWS", d.rows)
            .number("UNITS", d.cols / 32)
            .number("ROW_RUNS", row_runs)
            .flag("SEVERAL", self.tokens > 1)
            .flag("TWO_RUNS", two_runs);
        let call = match self.tokens {
            1 => call,
            _ => call.word("tokens", Word::Tokens),
        };
        (call, own)
    }

    /// Piece i of the experts and piece i of the shared expert, of those that have a piece i.
    fn piece(&self, target: &Target, geometry: &Geometry, i: usize) -> Call {
        let (d, used, activation) = (self.down, self.used, self.activation);
        let units = d.cols / 32;
        // Where the experts have no more pieces, any of them with no expert in it.
        let piece = d.pieces.get(i).unwrap_or(&d.pieces[0]);
        let experts = d.pieces.get(i).map_or(0, |piece| piece.rows / d.rows);
        let shared = self.shared.and_then(|s| Some((s, s.pieces.get(i)?)));
        let (call, own) = self.divided(target, geometry);
        let mut call = weight(call, ["WEIGHT", "WEIGHT_TIMES"], d.ty, activation);
        if let Some(factor) = slot_factor(used, units) {
            call = call
                .flag("SLOT_FACTOR", true)
                .number("SLOT_FACTOR", factor)
                .number("SLOT_SHIFT", SLOT_SHIFT);
        }
        let h_units = used * units + self.shared.map_or(0, |s| s.cols / 32);
        let input = [self.tokens, h_units, 1];
        call = staged(target.machine, call, &own, activation, input, 0)
            .planes(["w_q", "w_s"], piece)
            .bind("h", &self.h)
            .bind("ids", &self.ids)
            .bind("weights", &self.weights)
            .word("first_expert", piece.first_row / d.rows)
            .word("experts", experts)
            .word("sub", piece.sub);
        // The chosen experts may lie in any piece: the first is told to read them all.
        let rows = if i == 0 { used * d.rows } else { 0 };
        let mut bytes = d.bytes_of_rows(u64::from(rows));
        let mut weights = u64::from(rows) * u64::from(d.cols);
        call = match shared {
            None => call
                .module("SHARED", "shared_none")
                .number("H_UNITS", h_units),
            Some((s, piece)) => {
                bytes += piece.quants.size + piece.scales.size;
                weights += u64::from(piece.rows) * u64::from(s.cols);
                let names = ["SHARED_WEIGHT", "SHARED_TIMES"];
                let units = s.cols / 32;
                let ahead = units
                    .div_ceil(geometry.lanes)
                    .min(target.machine.tuned.shared_units_ahead);
                weight(call, names, s.ty, activation)
                    .module("SHARED", "shared_down")
                    .number("SHARED_UNITS", units)
                    .number("SHARED_AHEAD", ahead)
                    .planes(["s_q", "s_s"], piece)
                    .word("shared_rows", piece.rows)
                    .word("shared_first", piece.first_row)
                    .word("shared_sub", piece.sub)
            }
        };
        let tiles = d.rows.div_ceil(geometry.tile);
        assert!(tiles <= MAX_GRID, "rows of {}", d.name);
        call.grid(tiles_of(self.tokens, tiles))
            .with_bytes(bytes)
            .with_flops(super::once(2 * weights))
    }
}

/// residual + sum over slots of weights\[s\] * down\[ids\[s\]\] h\[s\] + shared h_shared; `h` is what the prepared values of the
/// slots stand for, one after another, then those of the shared expert.
pub fn token_moe_down(
    down: &Weight,
    shared: Option<&Weight>,
    h: &[f32],
    ids: &[u32],
    weights: &[f32],
    residual: &[f32],
) -> Vec<f32> {
    let (routed, rest) = h.split_at(ids.len() * down.cols);
    let mut y = vec![0.0; down.rows];
    Products::Exact.moe_down(down, routed, (ids, weights), 1, residual, &mut y);
    match shared {
        Some(shared) => token_matvec(shared, rest, 0, None, Some(&y)),
        None => y,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::testing::{some_waves, token_gpus, token_gpus_with_binding};
    use crate::kernels::cases::token_moe_down::{Down, cases, of_several};
    use crate::kernels::testing::{
        Rng, agree, agree_everywhere, agree_long, assert_in_pieces, lab,
    };
    use crate::quant::GgmlType;

    #[test]
    fn the_gpu_agrees_for_every_type_and_shape_of_the_models() {
        agree(token_gpus(), |_| cases());
        agree_everywhere(token_gpus(), |_| of_several());
    }

    #[test]
    fn a_thread_stands_for_those_of_a_token_alone() {
        for mut gpu in token_gpus_with_binding(1 << 26) {
            for lanes in [2, 4] {
                gpu.target.machine.tuned.down_lanes_of_several = lanes;
                agree_everywhere([&gpu], |_| of_several());
            }
        }
    }

    #[test]
    #[ignore = "long: scripts/test --all"]
    fn other_geometries_give_the_same() {
        for gpu in token_gpus() {
            agree_long([gpu], |_| cases());
        }
        agree_long(token_gpus(), |_| of_several());
    }

    /// The sum of experts and, of one token, of a shared expert with its columns.
    fn down(ty: GgmlType, sizes: [usize; 4], shared: Option<(GgmlType, usize)>) -> Down {
        Down {
            ty,
            sizes,
            shared,
            several: shared.is_none(),
            of_host: false,
            many: false,
        }
    }

    #[test]
    fn the_gpu_agrees_in_larger_subgroups() {
        let (ty, sizes) = (GgmlType::Q4_0, [64, 4, 64, 1536]);
        let all = [
            (Some((ty, 1536)), false),
            (None, true),
            (Some((ty, 1536)), true),
        ];
        let all = all.map(|(shared, several)| Down {
            several,
            ..down(ty, sizes, shared)
        });
        agree_everywhere(&some_waves(), |_| all.map(Down::case).into());
    }

    #[test]
    fn weights_larger_than_a_binding_add_up_piece_by_piece() {
        let q8_0 = |cols| Some((GgmlType::Q8_0, cols));
        for gpu in &token_gpus_with_binding(40_000) {
            // Experts in more pieces, the shared expert in more, and several tokens.
            for (sizes, shared) in [
                ([8, 3, 96, 256], q8_0(256)),
                ([1, 1, 160, 256], q8_0(768)),
                ([8, 3, 96, 256], None),
            ] {
                let down = Down {
                    several: Rng::fresh().below(2) == 0,
                    ..down(GgmlType::Q4_K, sizes, shared)
                };
                let lab = lab(gpu, format!("{sizes:?}, {shared:?}"));
                let [experts, _, rows, cols] = sizes;
                if experts > 1 {
                    assert_in_pieces(gpu, &lab.weight(down.ty, [experts, rows, cols]));
                }
                down.compare(&lab).unwrap_or_else(|e| panic!("{e}"));
            }
        }
    }

    #[test]
    fn slots_are_quotients() {
        for used in [1, 2, 4, 6, 8, 16, 31, 32, 40] {
            for units in [1, 2, 3, 7, 8, 44, 48, 64, 192, 342, 1023, 2048] {
                let Some(factor) = slot_factor(used, units) else {
                    // None of the models that are known.
                    assert!(used > 31 || units > 1023, "{used} x {units}");
                    continue;
                };
                for e in 0..used * units {
                    assert_eq!(
                        (e * factor) >> SLOT_SHIFT,
                        e / units,
                        "{e} of {used} x {units}"
                    );
                }
            }
        }
        assert_eq!(slot_factor(u32::MAX, 2), None);
    }
}
