//! The second half of a mixture of experts: each token's experts multiplied, weighted, summed, and added to the residual.

use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent};
use crate::gpu::memory::GpuWeight;
use crate::quant::repack::shader_module;

use super::gate_up::{by_expert, slots_by_expert};
use super::linear::{in_tasks, rows_dot};
use super::{LANES, WG};
use crate::model::Weight;

/// `out` (T, d) = residual (T, d) + sum over s of weights\[t\]\[s\] * down\[ids\[t\]\[s\]\] h\[t\]\[s\].
///
/// `h` is (T, used, ff); `ids` and `weights` are (T, used). The sum runs over the slots in order, then the residual is
/// added: a fixed order of additions, so a result does not depend on the batch.
///
/// # Panics
/// If a size does not fit the others or an id is not below the number of experts.
pub fn moe_down(
    down: &Weight,
    h: &[f32],
    ids: &[u32],
    weights: &[f32],
    n_tokens: usize,
    residual: &[f32],
    out: &mut [f32],
) {
    let (rows, cols) = (down.rows, down.cols);
    assert_eq!(
        ids.len(),
        weights.len(),
        "experts and weights of {}",
        down.name
    );
    assert_eq!(h.len(), ids.len() * cols, "input of {}", down.name);
    assert_eq!(
        (out.len(), residual.len()),
        (n_tokens * rows, n_tokens * rows),
        "output and residual of {}",
        down.name
    );
    if n_tokens == 0 {
        return;
    }
    let used = ids.len() / n_tokens;
    let (slots, sizes) = (slots_by_expert(ids, down.groups), [rows, cols]);
    let mut by_slot = vec![0.0f32; ids.len() * rows];
    let batches = by_expert(&slots, sizes, h, |slot| slot * cols);
    in_tasks(&batches, sizes, &mut by_slot, |batch, rows| {
        rows_dot(down, batch.group, rows, &batch.inputs)
    });
    out.fill(0.0);
    for (slot, (y, weight)) in by_slot.chunks_exact(rows).zip(weights).enumerate() {
        let out = &mut out[slot / used * rows..][..rows];
        out.iter_mut()
            .zip(y)
            .for_each(|(out, y)| *out += weight * y);
    }
    out.iter_mut().zip(residual).for_each(|(out, r)| *out += r);
}

/// [`moe_down`] on the device.
pub struct GpuMoeDown<'a> {
    /// D, (experts, rows, cols).
    pub down: &'a GpuWeight,
    /// Most tokens of a replay.
    pub max_tokens: u32,
    /// Experts per token.
    pub used: u32,
    /// The input, (max_tokens, used, cols).
    pub h: Range,
    /// The experts of each slot, (max_tokens, used).
    pub ids: Range,
    /// Their weights, (max_tokens, used).
    pub weights: Range,
    /// Added to the sum, (max_tokens, rows).
    pub residual: Range,
    /// The output, (max_tokens, rows).
    pub y: Range,
}

impl GpuMoeDown<'_> {
    /// The dispatches: one per piece of the weight, each adding its experts to the sum of the piece before.
    pub fn calls(&self) -> Vec<Call> {
        let d = self.down;
        let mut residual = self.residual.clone();
        let last = d.pieces.len() - 1;
        let mut calls = vec![];
        for (i, piece) in d.pieces.iter().enumerate() {
            let y = if i == last {
                self.y.clone()
            } else {
                let sums = u64::from(self.max_tokens) * u64::from(d.rows);
                Range::floats("expert sum", sums)
            };
            let grid = [
                Extent::N(d.rows.div_ceil(WG / LANES)),
                Extent::Tokens,
                Extent::N(1),
            ];
            let read = d.bytes_of_rows(u64::from(self.used * d.rows));
            // A piece has its share of the experts, and of those used on average.
            let products = 2 * u64::from(piece.rows) * u64::from(d.cols);
            calls.push(
                Call::new("moe_down")
                    .module("WEIGHT", shader_module(d.ty))
                    .number("WG", WG)
                    .number("LANES", LANES)
                    .number("USED", self.used)
                    .planes(["w_q", "w_s"], piece)
                    .bind("h", &self.h)
                    .bind("ids", &self.ids)
                    .bind("weights", &self.weights)
                    .bind("residual", &residual)
                    .bind("y", &y)
                    .word("rows", d.rows)
                    .word("first_expert", piece.first_row / d.rows)
                    .word("experts", piece.rows / d.rows)
                    .word("units", d.cols / 32)
                    .word("sub", piece.sub)
                    .grid(grid)
                    .with_bytes(read)
                    .with_flops(super::per_token(
                        products * u64::from(self.used) / u64::from(d.groups),
                    ))
                    .with_shape(d.shape_of(self.used)),
            );
            residual = y;
        }
        calls
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Gpu;
    use crate::gpu::call::State;
    use crate::gpu::testing::{assert_refused, unmade_weight};
    use crate::gpu::testing::{download, gpu_weight, gpus, output, padded, run, upload};
    use crate::gpu::{GpuOptions, Tier};
    use crate::kernels::testing::{Rng, assert_close, exact_rows, random_weight};
    use crate::quant::GgmlType;

    #[test]
    fn weighted_sum_of_the_chosen_experts() {
        let mut rng = Rng::fresh();
        for (ty, cols) in [(GgmlType::Q6_K, 256), (GgmlType::Q5_0, 352)] {
            let (experts, used, rows, n_tokens) = (8, 3, 90, 4);
            let down = random_weight(&mut rng, ty, experts, rows, cols);
            let h = rng.normals(n_tokens * used * cols);
            let ids: Vec<u32> = (0..n_tokens * used)
                .map(|_| rng.below(experts) as u32)
                .collect();
            let weights: Vec<f32> = (0..n_tokens * used).map(|_| rng.uniform()).collect();
            let residual = rng.normals(n_tokens * rows);
            let mut out = vec![f32::NAN; n_tokens * rows];
            moe_down(&down, &h, &ids, &weights, n_tokens, &residual, &mut out);

            let mut exact: Vec<f64> = residual.iter().map(|r| f64::from(*r)).collect();
            for (slot, (&id, &weight)) in ids.iter().zip(&weights).enumerate() {
                let y = exact_rows(&down, id as usize, &h[slot * cols..][..cols]);
                let sums = &mut exact[slot / used * rows..][..rows];
                sums.iter_mut()
                    .zip(y)
                    .for_each(|(sum, y)| *sum += f64::from(weight) * y);
            }
            assert_close(&out, &exact, 1e-12, ty.name());
        }
    }

    fn check(
        gpu: &Gpu,
        rng: &mut Rng,
        ty: GgmlType,
        [experts, used, rows, cols]: [usize; 4],
        n_tokens: usize,
    ) {
        let down = random_weight(rng, ty, experts, rows, cols);
        let slots = n_tokens * used;
        let (h, weights, residual) = (
            rng.normals(slots * cols),
            rng.normals(slots),
            rng.normals(n_tokens * rows),
        );
        let ids: Vec<u32> = (0..slots).map(|_| rng.below(experts) as u32).collect();
        let mut twin = vec![0.0; n_tokens * rows];
        moe_down(&down, &h, &ids, &weights, n_tokens, &residual, &mut twin);

        let max_tokens = n_tokens as u32 + 1;
        let weight = gpu_weight(gpu, &down);
        let y = output(gpu, max_tokens as usize * rows);
        let mut all_ids = ids.clone();
        all_ids.resize(used * max_tokens as usize, u32::MAX);
        let range =
            |data: &[f32], width| Range::whole(&upload(gpu, &padded(data, width, max_tokens)));
        let call = GpuMoeDown {
            down: &weight,
            max_tokens,
            used: used as u32,
            h: range(&h, used * cols),
            ids: Range::whole(&upload(gpu, &all_ids)),
            weights: range(&weights, used),
            residual: range(&residual, rows),
            y: Range::whole(&y),
        };
        let calls = call.calls();
        run(
            gpu,
            &calls,
            &State {
                tokens: n_tokens as u32,
                ..State::default()
            },
        );
        let found: Vec<f32> = download(gpu, &y, n_tokens * rows);
        let exact: Vec<f64> = twin.iter().map(|v| f64::from(*v)).collect();
        // f32 sums of up to 1536 products and 6 experts in another order.
        assert_close(
            &found,
            &exact,
            1e-11,
            &format!("{} {}", gpu.tier.name(), ty.name()),
        );
    }

    #[test]
    fn the_gpu_agrees_for_every_type_and_at_the_shapes_of_the_models() {
        let mut rng = Rng::fresh();
        for gpu in gpus() {
            for &ty in GgmlType::ALL {
                check(gpu, &mut rng, ty, [5, 3, 37, 256], 3);
            }
            check(gpu, &mut rng, GgmlType::Q4_0, [64, 4, 50, 1536], 1);
            check(gpu, &mut rng, GgmlType::Q5_0, [64, 6, 41, 1408], 2);
        }
    }

    #[test]
    fn experts_larger_than_a_binding_add_up_piece_by_piece() {
        let mut rng = Rng::fresh();
        for tier in Tier::ALL {
            let options = GpuOptions {
                tier: Some(tier),
                max_binding: Some(40_000),
                ..Default::default()
            };
            let Ok(gpu) = Gpu::open(&options) else {
                continue;
            };
            check(&gpu, &mut rng, GgmlType::Q4_K, [8, 3, 100, 256], 4);
        }
    }

    #[test]
    fn buffers_that_are_too_small_are_refused() {
        let weight = unmade_weight(GgmlType::Q4_0, 8, 32, 64);
        let _target = &gpus()[0];
        for (h, weights, y, binding) in [
            (12 * 64 - 4, 12, 4 * 32, "h"),
            (12 * 64, 8, 4 * 32, "weights"),
            (12 * 64, 12, 4 * 32 - 4, "y"),
        ] {
            let call = GpuMoeDown {
                down: &weight,
                max_tokens: 4,
                used: 3,
                h: Range::floats("h", h),
                ids: Range::words("ids", 12),
                weights: Range::floats("weights", weights),
                residual: Range::floats("residual", 4 * 32),
                y: Range::floats("y", y),
            };
            let calls = call.calls();
            assert_refused(&calls, 4, "moe_down", binding);
        }
    }
}
