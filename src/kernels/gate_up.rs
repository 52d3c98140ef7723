//! The first half of a feed-forward block: `silu(gate x) * (up x)`, dense or for the experts each token chose.

use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent, Word};
use crate::gpu::memory::GpuWeight;
use crate::quant::repack::shader_module;

use super::linear::{Batch, in_tasks, rms_norm_rows, rows_dot};
use super::{LANES, WG, tokens_at_once};
use crate::model::Weight;

/// The products of a batch by expert, so that an expert's rows are read once: slot (token * used + rank) of the (T, used) choices reads
/// `cols` values of `x` from `input(slot)` on, and has `rows` values of the output.
pub(super) fn by_expert<'a>(
    slots: &[Vec<usize>],
    [rows, cols]: [usize; 2],
    x: &'a [f32],
    input: impl Fn(usize) -> usize,
) -> Vec<Batch<'a>> {
    let chosen = slots
        .iter()
        .enumerate()
        .filter(|(_, slots)| !slots.is_empty());
    let batch = |(group, slots): (usize, &Vec<usize>)| Batch {
        group,
        inputs: slots
            .iter()
            .map(|slot| &x[input(*slot)..][..cols])
            .collect(),
        places: slots.iter().map(|slot| slot * rows).collect(),
    };
    chosen.map(batch).collect()
}

/// The slots of each expert, ascending.
pub(super) fn slots_by_expert(ids: &[u32], n_experts: usize) -> Vec<Vec<usize>> {
    let mut slots = vec![Vec::new(); n_experts];
    for (slot, &expert) in ids.iter().enumerate() {
        slots[expert as usize].push(slot);
    }
    slots
}

/// `x * sigmoid(x)`, finite for any finite x.
fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

/// `out` (T, used, ff) = silu(gate\[e\] norm(x\[t\])) * (up\[e\] norm(x\[t\])), with e = ids\[t\]\[s\].
///
/// `x` is (T, cols), `norm` the weight and epsilon of the RMS norm before. `ids` (T, used) names the expert of each slot;
/// without it there is one group and used is 1.
///
/// # Panics
/// If a size does not fit the others or an id is not below the number of experts.
pub fn gate_up(
    gate: &Weight,
    up: &Weight,
    x: &[f32],
    n_tokens: usize,
    norm: Option<(&[f32], f32)>,
    ids: Option<&[u32]>,
    out: &mut [f32],
) {
    assert_eq!(
        (gate.groups, gate.rows, gate.cols),
        (up.groups, up.rows, up.cols),
        "{} and {}",
        gate.name,
        up.name
    );
    if n_tokens == 0 {
        return;
    }
    let (rows, cols) = (gate.rows, gate.cols);
    let x = &x[..n_tokens * cols];
    let normed;
    let x = match norm {
        None => x,
        Some((weight, eps)) => {
            assert_eq!(weight.len(), cols, "norm before {}", gate.name);
            normed = rms_norm_rows(x, weight, eps);
            normed.as_slice()
        }
    };
    let slots = match ids {
        Some(ids) => slots_by_expert(ids, gate.groups),
        None => vec![(0..n_tokens).collect()],
    };
    let used = ids.map_or(1, |ids| ids.len() / n_tokens);
    assert_eq!(
        out.len(),
        n_tokens * used * rows,
        "output of {} for {n_tokens} tokens",
        gate.name
    );

    let sizes = [rows, cols];
    let batches = by_expert(&slots, sizes, x, |slot| slot / used * cols);
    in_tasks(&batches, sizes, out, |batch, rows| {
        let [mut gates, ups] =
            [gate, up].map(|w| rows_dot(w, batch.group, rows.clone(), &batch.inputs));
        let pairs = gates.iter_mut().zip(ups);
        pairs.for_each(|(g, u)| *g = silu(*g) * u);
        gates
    });
}

/// [`gate_up`] on the device.
pub struct GpuGateUp<'a> {
    /// G, (experts, rows, cols).
    pub gate: &'a GpuWeight,
    /// U, of the same shape, cut into the same pieces.
    pub up: &'a GpuWeight,
    /// Most tokens of a replay.
    pub max_tokens: u32,
    /// The input, (max_tokens, cols).
    pub x: Range,
    /// RMS norm before: its weight (cols) and epsilon.
    pub norm: (Range, f32),
    /// The experts of each slot, (max_tokens, used), and used; none for a dense block.
    pub ids: Option<(Range, u32)>,
    /// The output, (max_tokens, used, rows).
    pub h: Range,
}

impl GpuGateUp<'_> {
    /// The dispatches: one per piece of the weights.
    ///
    /// # Panics
    /// If the weights differ in shape, or are cut into different pieces.
    pub fn calls(&self) -> Vec<Call> {
        let (g, u) = (self.gate, self.up);
        assert_eq!(
            (g.groups, g.rows, g.cols),
            (u.groups, u.rows, u.cols),
            "{} and {}",
            g.name,
            u.name
        );
        let used = self.ids.as_ref().map_or(1, |(_, used)| *used);
        // Slots of one token have experts of their own; only a dense block shares rows between tokens.
        let cols_at_once = if self.ids.is_some() {
            1
        } else {
            tokens_at_once(self.max_tokens)
        };
        g.pieces
            .iter()
            .zip(&u.pieces)
            .map(|(gp, up)| {
                assert_eq!(
                    (gp.first_row, gp.rows),
                    (up.first_row, up.rows),
                    "pieces of {} and {}",
                    g.name,
                    u.name
                );
                let expert = self.ids.is_some();
                let rows = if expert { g.rows } else { gp.rows };
                let grid = [
                    Extent::N(rows.div_ceil(WG / LANES)),
                    Extent::N(used),
                    Extent::TokensBy(cols_at_once),
                ];
                let read = g.bytes_of_rows(u64::from(used * g.rows))
                    + u.bytes_of_rows(u64::from(used * g.rows));
                // A piece has its share of the experts, and of those used on average.
                let products = 4 * u64::from(gp.rows) * u64::from(g.cols);
                Call::new("gate_up")
                    .module("GATE", shader_module(g.ty))
                    .module("UP", shader_module(u.ty))
                    .number("WG", WG)
                    .number("LANES", LANES)
                    .number("COLS", cols_at_once)
                    .planes(["g_q", "g_s"], gp)
                    .planes(["u_q", "u_s"], up)
                    .bind("x", &self.x)
                    .bind("norm", &self.norm.0)
                    .bind("h", &self.h)
                    .bind_some("ids", self.ids.as_ref().map(|(ids, _)| ids))
                    .word("rows", rows)
                    .word("first_row", if expert { 0 } else { gp.first_row })
                    .word("experts", gp.rows.div_ceil(g.rows))
                    .word_some("first_expert", expert.then_some(gp.first_row / g.rows))
                    .word("units", g.cols / 32)
                    .word("g_sub", gp.sub)
                    .word("u_sub", up.sub)
                    .word("tokens", Word::Tokens)
                    .word("used", used)
                    .word("h_stride", g.rows)
                    .word("eps", self.norm.1)
                    .grid(grid)
                    .with_bytes(read)
                    .with_flops(super::per_token(
                        products * u64::from(used) / u64::from(g.groups),
                    ))
                    .with_shape(g.shape_of(used))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::call::State;
    use crate::gpu::testing::{assert_refused, unmade_weight};
    use crate::gpu::testing::{download, gpu_weights, gpus, output, padded, run, upload};
    use crate::gpu::{Gpu, GpuOptions, Tier};
    use crate::kernels::linear::rms_norm;
    use crate::kernels::testing::{Rng, assert_close, exact_rows, exact_silu, random_weight};
    use crate::quant::GgmlType;

    fn exact(gate: &Weight, up: &Weight, expert: usize, x: &[f32]) -> Vec<f64> {
        let gates = exact_rows(gate, expert, x);
        gates
            .iter()
            .zip(exact_rows(up, expert, x))
            .map(|(g, u)| exact_silu(*g) * u)
            .collect()
    }

    #[test]
    fn dense_with_norm() {
        let mut rng = Rng::fresh();
        let (rows, cols, n_tokens) = (150, 256, 3);
        let gate = random_weight(&mut rng, GgmlType::Q4_K, 1, rows, cols);
        let up = random_weight(&mut rng, GgmlType::Q6_K, 1, rows, cols);
        let (x, norm) = (rng.normals(n_tokens * cols), rng.normals(cols));
        let mut out = vec![f32::NAN; n_tokens * rows];
        gate_up(
            &gate,
            &up,
            &x,
            n_tokens,
            Some((&norm, 1e-5)),
            None,
            &mut out,
        );
        for t in 0..n_tokens {
            let input = rms_norm(&x[t * cols..][..cols], &norm, 1e-5);
            assert_close(
                &out[t * rows..][..rows],
                &exact(&gate, &up, 0, &input),
                1e-12,
                "token",
            );
        }
    }

    #[test]
    fn each_slot_uses_its_expert() {
        let mut rng = Rng::fresh();
        let (experts, used, rows, cols, n_tokens) = (8, 3, 70, 96, 5);
        let gate = random_weight(&mut rng, GgmlType::Q4_0, experts, rows, cols);
        let up = random_weight(&mut rng, GgmlType::Q4_0, experts, rows, cols);
        let x = rng.normals(n_tokens * cols);
        let ids: Vec<u32> = (0..n_tokens * used)
            .map(|_| rng.below(experts) as u32)
            .collect();
        let mut out = vec![f32::NAN; n_tokens * used * rows];
        gate_up(&gate, &up, &x, n_tokens, None, Some(&ids), &mut out);
        for (slot, &id) in ids.iter().enumerate() {
            let expected = exact(&gate, &up, id as usize, &x[slot / used * cols..][..cols]);
            assert_close(&out[slot * rows..][..rows], &expected, 1e-12, "slot");
        }
    }

    #[test]
    fn silu_is_finite_at_the_ends() {
        assert_eq!(silu(-200.0), 0.0);
        assert_eq!(silu(200.0), 200.0);
    }

    /// One block of random weights, and how many tokens choose how many of its experts.
    struct Case {
        types: [GgmlType; 2],
        experts: usize,
        used: usize,
        rows: usize,
        cols: usize,
        n_tokens: usize,
        max_tokens: u32,
    }

    fn check(gpu: &Gpu, rng: &mut Rng, case: &Case) {
        let &Case {
            types,
            experts,
            used,
            rows,
            cols,
            n_tokens,
            max_tokens,
        } = case;
        let gate = random_weight(rng, types[0], experts, rows, cols);
        let up = random_weight(rng, types[1], experts, rows, cols);
        let (x, norm) = (rng.normals(n_tokens * cols), rng.normals(cols));
        let ids: Vec<u32> = (0..n_tokens * used)
            .map(|_| rng.below(experts) as u32)
            .collect();
        let chosen = (experts > 1).then_some(ids.as_slice());
        let mut twin = vec![0.0; n_tokens * used * rows];
        gate_up(
            &gate,
            &up,
            &x,
            n_tokens,
            Some((&norm, 1e-5)),
            chosen,
            &mut twin,
        );

        let weights = gpu_weights(gpu, &[&gate, &up]);
        let h = output(gpu, max_tokens as usize * used * rows);
        let mut all_ids = ids.clone();
        all_ids.resize(used * max_tokens as usize, u32::MAX);
        let call = GpuGateUp {
            gate: &weights[0],
            up: &weights[1],
            max_tokens,
            x: Range::whole(&upload(gpu, &padded(&x, cols, max_tokens))),
            norm: (Range::whole(&upload(gpu, &norm)), 1e-5),
            ids: chosen.map(|_| (Range::whole(&upload(gpu, &all_ids)), used as u32)),
            h: Range::whole(&h),
        };
        run(
            gpu,
            &call.calls(),
            &State {
                tokens: n_tokens as u32,
                ..State::default()
            },
        );
        let found: Vec<f32> = download(gpu, &h, n_tokens * used * rows);
        let exact: Vec<f64> = twin.iter().map(|v| f64::from(*v)).collect();
        // f32 sums of 2048 products in another order, then one exp of relative error 1e-6 or so.
        assert_close(
            &found,
            &exact,
            1e-10,
            &format!(
                "{} {} {}",
                gpu.tier.name(),
                types[0].name(),
                types[1].name()
            ),
        );
    }

    #[test]
    fn the_gpu_agrees_for_every_type() {
        let mut rng = Rng::fresh();
        for gpu in gpus() {
            for (i, &ty) in GgmlType::ALL.iter().enumerate() {
                let other = GgmlType::ALL[(i + 1) % GgmlType::ALL.len()];
                let (experts, used) = if i % 2 == 0 { (5, 2) } else { (1, 1) };
                let case = Case {
                    types: [ty, other],
                    experts,
                    used,
                    rows: 33,
                    cols: 256,
                    n_tokens: 3,
                    max_tokens: 8,
                };
                check(gpu, &mut rng, &case);
            }
        }
    }

    #[test]
    fn the_gpu_agrees_at_the_shapes_of_the_models() {
        let mut rng = Rng::fresh();
        for gpu in gpus() {
            for (ty, experts, used, rows, n_tokens) in [
                (GgmlType::Q4_0, 64, 4, 70, 1),
                (GgmlType::Q4_K, 64, 6, 44, 3),
                (GgmlType::Q4_0, 1, 1, 1536, 1),
            ] {
                let max_tokens = if n_tokens == 1 { 1 } else { 64 };
                check(
                    gpu,
                    &mut rng,
                    &Case {
                        types: [ty, ty],
                        experts,
                        used,
                        rows,
                        cols: 2048,
                        n_tokens,
                        max_tokens,
                    },
                );
            }
        }
    }

    #[test]
    fn experts_larger_than_a_binding_are_cut_between_experts() {
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
            let types = [GgmlType::Q4_0, GgmlType::Q8_0];
            let case = Case {
                types,
                experts: 8,
                used: 3,
                rows: 64,
                cols: 256,
                n_tokens: 4,
                max_tokens: 8,
            };
            check(&gpu, &mut rng, &case);
            check(
                &gpu,
                &mut rng,
                &Case {
                    experts: 1,
                    used: 1,
                    rows: 500,
                    ..case
                },
            );
        }
    }

    #[test]
    fn buffers_that_do_not_fit_are_refused() {
        let weight = unmade_weight(GgmlType::Q4_0, 8, 32, 64);
        let call = |ids: Range, h| GpuGateUp {
            gate: &weight,
            up: &weight,
            max_tokens: 4,
            x: Range::floats("x", 4 * 64),
            norm: (Range::floats("norm", 64), 1e-5),
            ids: Some((ids, 3)),
            h: Range::floats("h", h),
        };
        let (ids, h) = (Range::words("ids", 12), 12 * 32);
        let refused = |call: GpuGateUp<'_>, binding| {
            assert_refused(&call.calls(), 4, "gate_up", binding);
        };
        refused(call(ids.clone(), h - 4), "h");
        refused(call(Range::words("ids", 8), h), "ids");
        refused(call(Range::floats("ids", 12), h), "ids");
        // One token more than there is room for.
        assert_refused(&call(ids, h).calls(), 5, "gate_up", "x");
    }
}
