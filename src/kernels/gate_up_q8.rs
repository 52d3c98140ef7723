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

/// The pipeline: types, sizes and which of the two halves it has.
pub(super) fn spec(
    gpu: &Gpu,
    experts: Option<([&GpuWeight; 2], u32)>,
    shared: Option<[&GpuWeight; 2]>,
) -> Spec {
    let any = experts
        .map(|(pair, _)| pair)
        .or(shared)
        .expect("experts or a dense block");
    let units = any[0].cols / 32;
    let mut variant = divided(gpu, Variant::default(), TILE, units).number("UNITS", units);
    let mut access = String::new();
    if let Some(([g, u], used)) = experts {
        variant = weight(variant, "GATE", "GATE_FLOAT", g.ty);
        variant = weight(variant, "UP", "UP_FLOAT", u.ty);
        variant = variant
            .flag("EXPERTS", true)
            .number("USED", used)
            .number("ROWS", g.rows);
        access.push_str("rrrrr");
    }
    if let Some([g, u]) = shared {
        variant = weight(variant, "SHARED_GATE", "SHARED_GATE_FLOAT", g.ty);
        variant = weight(variant, "SHARED_UP", "SHARED_UP_FLOAT", u.ty);
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
        let experts = self.experts.as_ref().map(|(pair, _, used)| (*pair, *used));
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
        Op::new(spec(gpu, experts, shared), bindings, params, grid(tiles).0).with_bytes(bytes)
    }
}

fn planes(part: &Part) -> [Range; 2] {
    [part.quants.clone(), part.scales.clone()]
}
