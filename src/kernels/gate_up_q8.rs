//! [`gate_up`](super::gate_up) of one token in the `int8` tier: the chosen experts and the shared one in one grid, bytes in and
//! out.

use super::q8::{Q8Input, RECORD, TILE, divided, grid, weight};
use crate::gpu::Gpu;
use crate::gpu::memory::{GpuWeight, Part};
use crate::gpu::pipeline::Spec;
use crate::gpu::record::{Op, Range, Word, accesses};
use crate::gpu::shader::Variant;
use crate::kernels::gate_up::gate_up;
use crate::model::Weight;
use crate::quant::GgmlType;
use crate::quant::activation::{Q8Unit, dequantize_activation};

/// `h` = silu(g x) * (u x) with x divided by its root mean square: of the experts `ids` one after another, then of the
/// shared one; x are records and `rms` the sums of squares of 16 values and the epsilon.
pub fn gate_up_q8(
    experts: Option<([&Weight; 2], &[u32])>,
    shared: Option<[&Weight; 2]>,
    x: &[Q8Unit],
    rms: (&[f32], f32),
) -> Vec<f32> {
    let mut values = dequantize_activation(x);
    let scale = 1.0 / (rms.0.iter().sum::<f32>() / values.len() as f32 + rms.1).sqrt();
    values.iter_mut().for_each(|v| *v *= scale);
    let mut all = vec![];
    let mut add = |[gate, up]: [&Weight; 2], ids: Option<&[u32]>| {
        let mut h = vec![0.0; ids.map_or(1, <[u32]>::len) * gate.rows];
        gate_up(gate, up, &values, 1, None, ids, &mut h);
        all.extend(h);
    };
    if let Some((weights, ids)) = experts {
        add(weights, Some(ids));
    }
    if let Some(weights) = shared {
        add(weights, None);
    }
    all
}

/// [`gate_up_q8`] on the device.
pub struct GpuGateUpQ8<'a> {
    /// G and U of the experts, cut alike, and the ids of the chosen ones (used).
    pub experts: Option<([&'a GpuWeight; 2], Range, u32)>,
    /// G and U of the shared expert, or of a dense block.
    pub shared: Option<[&'a GpuWeight; 2]>,
    /// The input, with a norm.
    pub x: Q8Input,
    /// The output, (used * rows + shared rows) values.
    pub h: Range,
}

/// The pipeline for subgroups of `lanes` threads or more and rows of `units` units: types of G and U, number of slots and
/// rows of the experts; types of the shared expert's.
pub(super) fn spec(
    lanes: u32,
    units: u32,
    experts: Option<([GgmlType; 2], u32, u32)>,
    shared: Option<[GgmlType; 2]>,
) -> Spec {
    let mut variant = divided(lanes, Variant::default(), TILE, units).number("UNITS", units);
    let mut access = String::new();
    if let Some(([g, u], used, rows)) = experts {
        variant = weight(variant, "GATE", "GATE_FLOAT", g);
        variant = weight(variant, "UP", "UP_FLOAT", u);
        variant = variant
            .flag("EXPERTS", true)
            .number("USED", used)
            .number("ROWS", rows);
        access.push_str("rrrrr");
    }
    if let Some([g, u]) = shared {
        variant = weight(variant, "SHARED_GATE", "SHARED_GATE_FLOAT", g);
        variant = weight(variant, "SHARED_UP", "SHARED_UP_FLOAT", u);
        variant = variant.flag("SHARED", true);
        access.push_str("rrrr");
    }
    access.push_str("rrw");
    Spec {
        kernel: "gate_up_q8",
        source: include_str!("../../wgsl/gate_up_q8.wgsl"),
        variant,
        access: accesses(&access),
    }
}

impl GpuGateUpQ8<'_> {
    /// The dispatches: one per part of the experts, the first with the shared expert.
    ///
    /// # Panics
    /// If sizes disagree or a buffer is too small, which would let the kernel index beyond it.
    pub fn ops(&self, gpu: &Gpu) -> Vec<Op> {
        let mut values = 0;
        if let Some(([g, u], ids, used)) = &self.experts {
            assert_eq!(
                (g.groups, g.rows, g.cols),
                (u.groups, u.rows, u.cols),
                "{} and {}",
                g.name,
                u.name
            );
            assert!(
                ids.size >= u64::from(*used) * 4 && g.rows.is_multiple_of(TILE),
                "experts of {}",
                g.name
            );
            values += used * g.rows;
        }
        if let Some([g, u]) = self.shared {
            assert_eq!(
                (g.rows, g.cols),
                (u.rows, u.cols),
                "{} and {}",
                g.name,
                u.name
            );
            assert!(
                g.parts.len() == 1 && u.parts.len() == 1 && g.rows.is_multiple_of(TILE),
                "{} in one part",
                g.name
            );
            values += g.rows;
        }
        assert!(
            self.h.size >= u64::from(values / 32) * RECORD,
            "output of {values}"
        );
        let parts = self
            .experts
            .as_ref()
            .map_or(1, |(pair, ..)| pair[0].parts.len());
        (0..parts).map(|i| self.op(gpu, i)).collect()
    }

    fn op(&self, gpu: &Gpu, i: usize) -> Op {
        let shared = if i == 0 { self.shared } else { None };
        let types = |pair: &[&GpuWeight; 2]| pair.map(|w| w.ty);
        let any = self
            .experts
            .as_ref()
            .map(|(pair, ..)| pair[0])
            .or(self.shared.map(|pair| pair[0]));
        let units = any.expect("experts or a dense block").cols / 32;
        let experts = self
            .experts
            .as_ref()
            .map(|(pair, _, used)| (types(pair), *used, pair[0].rows));
        let mut bindings = vec![];
        let mut tiles = 0;
        let (mut first, mut count, mut subs) = (0, 0, [0; 4]);
        let mut bytes = 0;
        if let Some(([g, u], ids, used)) = &self.experts {
            let (gp, up) = (&g.parts[i], &u.parts[i]);
            assert_eq!(
                (gp.first_row, gp.rows),
                (up.first_row, up.rows),
                "parts of {} and {}",
                g.name,
                u.name
            );
            bindings.extend(
                planes(gp)
                    .into_iter()
                    .chain(planes(up))
                    .chain([ids.clone()]),
            );
            tiles += used * g.rows / TILE;
            (first, count) = (gp.first_row / g.rows, gp.rows / g.rows);
            (subs[0], subs[1]) = (gp.sub, up.sub);
            bytes += g.bytes_of_rows(u64::from(used * g.rows))
                + u.bytes_of_rows(u64::from(used * g.rows));
        }
        if let Some([g, u]) = shared {
            bindings.extend(planes(&g.parts[0]).into_iter().chain(planes(&u.parts[0])));
            tiles += g.rows / TILE;
            (subs[2], subs[3]) = (g.parts[0].sub, u.parts[0].sub);
            bytes += g.bytes() + u.bytes();
        }
        let (squares, eps) = self
            .x
            .rms
            .clone()
            .expect("a feed-forward block begins with a norm");
        bindings.extend([self.x.records.clone(), squares, self.h.clone()]);
        let mut params = vec![Word::U(first), Word::U(count)];
        params.extend(subs.map(Word::U));
        params.push(Word::F(eps));
        let spec = spec(gpu.lanes(), units, experts, shared.as_ref().map(types));
        Op::new(spec, bindings, params, grid(tiles).0).with_bytes(bytes)
    }
}

fn planes(part: &Part) -> [Range; 2] {
    [part.quants.clone(), part.scales.clone()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::record::State;
    use crate::gpu::testing::{gpu_weights, int8_gpu, run, upload};
    use crate::gpu::{GpuOptions, Tier};
    use crate::kernels::q8::testing::{Given, assert_bytes, room};
    use crate::kernels::testing::{Rng, random_weight};

    /// Types of the experts' weights and their number, chosen ones and rows; types and rows of the shared expert.
    type Case = (
        Option<([GgmlType; 2], [usize; 3])>,
        Option<([GgmlType; 2], usize)>,
    );

    fn check(gpu: &Gpu, rng: &mut Rng, cols: usize, (experts, shared): Case) {
        let given = Given::new(&rng.normals(cols), &rng.normals(cols));
        let experts = experts.map(|(types, [count, used, rows])| {
            let ids: Vec<u32> = (0..used).map(|_| rng.below(count) as u32).collect();
            (
                types.map(|ty| random_weight(rng, ty, count, rows, cols)),
                ids,
            )
        });
        let shared =
            shared.map(|(types, rows)| types.map(|ty| random_weight(rng, ty, 1, rows, cols)));
        let twin = gate_up_q8(
            experts
                .as_ref()
                .map(|(pair, ids)| (pair.each_ref(), ids.as_slice())),
            shared.as_ref().map(|pair| pair.each_ref()),
            &given.records,
            (&given.squares, 1e-6),
        );
        let on_gpu = |pair: &[Weight; 2]| gpu_weights(gpu, &[&pair[0], &pair[1]]);
        let experts_gpu = experts.as_ref().map(|(pair, ids)| (on_gpu(pair), ids));
        let shared_gpu = shared.as_ref().map(on_gpu);
        let h = room(gpu, twin.len(), None);
        let op = GpuGateUpQ8 {
            experts: experts_gpu.as_ref().map(|(w, ids)| {
                (
                    [&w[0], &w[1]],
                    Range::whole(&upload(gpu, ids)),
                    ids.len() as u32,
                )
            }),
            shared: shared_gpu.as_ref().map(|w| [&w[0], &w[1]]),
            x: given.upload(gpu, 1e-6),
            h: h.records.clone(),
        };
        run(
            gpu,
            &op.ops(gpu),
            &State {
                tokens: 1,
                ..State::default()
            },
        );
        assert_bytes(gpu, &h, None, &twin, &format!("{cols} columns"));
    }

    #[test]
    fn the_gpu_agrees_for_every_type() {
        let Some(gpu) = int8_gpu() else { return };
        let mut rng = Rng::fresh();
        for (i, &ty) in GgmlType::ALL.iter().enumerate() {
            let other = GgmlType::ALL[(i + 1) % GgmlType::ALL.len()];
            check(
                gpu,
                &mut rng,
                256,
                (Some(([ty, other], [5, 2, 32])), Some(([other, ty], 64))),
            );
        }
    }

    #[test]
    fn the_gpu_agrees_at_the_shapes_of_the_models() {
        let Some(gpu) = int8_gpu() else { return };
        let mut rng = Rng::fresh();
        let (q4_0, q4_k) = ([GgmlType::Q4_0; 2], [GgmlType::Q4_K; 2]);
        check(
            gpu,
            &mut rng,
            2048,
            (Some((q4_0, [8, 4, 1536])), Some((q4_0, 1536))),
        );
        check(
            gpu,
            &mut rng,
            2048,
            (Some((q4_k, [7, 6, 1408])), Some((q4_k, 2816))),
        );
        check(gpu, &mut rng, 2048, (None, Some((q4_k, 6144))));
        check(gpu, &mut rng, 2048, (Some((q4_0, [3, 1, 96])), None));
    }

    #[test]
    fn experts_larger_than_a_binding_are_cut_between_experts() {
        let options = GpuOptions {
            tier: Some(Tier::Int8),
            max_binding: Some(40_000),
            ..Default::default()
        };
        let Ok(gpu) = Gpu::open(&options) else { return };
        let mut rng = Rng::fresh();
        let types = [GgmlType::Q4_0, GgmlType::Q8_0];
        check(
            &gpu,
            &mut rng,
            256,
            (Some((types, [8, 3, 64])), Some((types, 96))),
        );
    }
}
