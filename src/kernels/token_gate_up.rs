//! [`gate_up`](super::gate_up) of one token: the choice of experts, they and the shared one in one grid, prepared values in and
//! out.

use super::MAX_GRID;
use super::router::{self, GpuRouter};
use super::token::{
    self, TokenInput, check_geometry, check_rows, divided, geometry, grid, staged, stages, weight,
};
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Flops, Word, accesses};
use crate::gpu::geometry::{Geometry, MAX_THREADS, Site};
use crate::gpu::machine::{Machine, Repeated};
use crate::gpu::memory::GpuWeight;
use crate::gpu::pipeline::Spec;
use crate::gpu::{GpuError, Target};
use crate::kernels::gate_up::gate_up;
use crate::model::{Experts, Weight};
use crate::quant::GgmlType;
use crate::quant::activation::Activation;

/// `h` = silu(g x) * (u x) with x divided by its root mean square: of the experts `ids` one after another, then of the
/// shared one; x is what the prepared input stands for and `rms` the sums of squares of 16 values and the epsilon.
pub fn token_gate_up(
    experts: Option<([&Weight; 2], &[u32])>,
    shared: Option<[&Weight; 2]>,
    x: &[f32],
    rms: (&[f32], f32),
) -> Vec<f32> {
    let scale = 1.0 / (rms.0.iter().sum::<f32>() / x.len() as f32 + rms.1).sqrt();
    let values: Vec<f32> = x.iter().map(|v| v * scale).collect();
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

/// [`token_gate_up`] on the device, and the [`router`] before it.
pub struct GpuTokenGateUp<'a> {
    /// G and U of the experts, cut alike, and how they are chosen: what the router's call would do for one token.
    pub experts: Option<([&'a GpuWeight; 2], GpuRouter<'a>)>,
    /// Whether the logits are still to be divided by the root mean square of the input. In several parts, of
    /// [`RouterParts`](super::token_matvec::RouterParts), they always are.
    pub raw_logits: bool,
    /// G and U of the shared expert, or of a dense block, cut alike.
    pub shared: Option<[&'a GpuWeight; 2]>,
    /// What prepared values are.
    pub activation: Activation,
    /// The input, with a norm.
    pub x: TokenInput,
    /// The output, (used * rows + shared rows) values.
    pub h: Range,
}

/// Threads of a workgroup that chooses experts at most: sums over workgroups hold 64 subgroups, which have 8 lanes or more.
const CHOICE_THREADS: u32 = 512;

/// Rows of a workgroup that are worth adding up the parts of the logits. Of halves fewer, since gate and up hold many registers.
const fn parts_rows(activation: Activation) -> u32 {
    if activation.is_halves() { 16 } else { 32 }
}

/// Experts of a lane at most where one subgroup makes the choice.
const CHUNKS: u32 = 8;

/// What the workgroups do more where each adds up the logits of `experts` in `parts` than where they come added up: `rows` are those
/// of G of the chosen experts and the shared one.
pub fn repeated(
    machine: Machine,
    activation: Activation,
    rows: u32,
    [experts, parts]: [u32; 2],
) -> Repeated {
    let workgroups = rows
        .div_ceil(parts_rows(activation))
        .div_ceil(machine.cores.max(1));
    let weights = u64::from(workgroups) * u64::from(experts) * u64::from(parts);
    Repeated {
        weights,
        bytes: 4 * weights,
    }
}

/// What the pipeline depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape<'a> {
    /// What prepared values are.
    pub activation: Activation,
    /// Of 32 weights, per row.
    pub units: u32,
    /// Types of G and U of the experts and their rows; how they are chosen, and whether there is a bias for the choice.
    pub experts: Option<([GgmlType; 2], u32, &'a Experts, bool)>,
    /// Types of G and U of the shared expert, and its rows.
    pub shared: Option<([GgmlType; 2], u32)>,
    /// Whether their logits are still to be divided by the root mean square of the input.
    pub raw_logits: bool,
    /// Parts of the logits.
    pub parts: u32,
    /// Whether the choice is left for the product that follows.
    pub choice: bool,
    /// Lanes of a subgroup at least.
    pub lanes: u32,
    /// Whether the input passes through workgroup memory.
    pub staged: bool,
}

impl Shape<'_> {
    /// What to choose a geometry for.
    pub(super) fn site(&self) -> Site {
        let cols = self.units * 32;
        let mut types = vec![];
        let mut shapes = vec![];
        let mut rows = 0;
        let mut threads = [1, MAX_THREADS];
        if let Some((pair, expert_rows, experts, _)) = self.experts {
            types.extend(pair);
            shapes.push(format!("{}x{expert_rows}x{cols}", experts.used));
            rows += experts.used as u32 * expert_rows;
            // A thread per expert makes the choice.
            threads = [experts.count as u32, CHOICE_THREADS];
        }
        if let Some((pair, shared_rows)) = self.shared {
            types.extend(pair);
            shapes.push(format!("{shared_rows}x{cols}"));
            rows += shared_rows;
        }
        Site {
            kernel: "token_gate_up",
            types,
            shape: shapes.join("+"),
            rows,
            units: self.units,
            activation: self.activation,
            prepared: true,
            pairs: false,
            whole: None,
            threads,
            one_block: false,
            at_once: 1,
            // Adding up the logits.
            shares_work: (self.parts > 1).then_some(parts_rows(self.activation)),
            split: false,
        }
    }
}

/// The pipeline with this geometry.
pub(super) fn spec(geometry: &Geometry, shape: &Shape<'_>) -> Spec {
    let variant = divided(token::variant(shape.activation), geometry, shape.units)
        .number("UNITS", shape.units)
        .number("SQUARES", (2 * shape.units).div_ceil(geometry.threads()))
        .number("RUN", shape.lanes)
        .number(
            "SQUARE_RUNS",
            (2 * shape.units)
                .min(geometry.threads())
                .div_ceil(shape.lanes),
        )
        .flag("PAIRS", true);
    let mut variant = match shape.staged {
        true => staged(variant, geometry, shape.activation, shape.units),
        false => variant,
    };
    let mut access = String::new();
    if let Some(([g, u], rows, experts, bias)) = shape.experts {
        variant = weight(variant, ["GATE", "GATE_TIMES"], g, shape.activation);
        variant = weight(variant, ["UP", "UP_TIMES"], u, shape.activation);
        let chunks = (experts.count as u32).div_ceil(shape.lanes);
        variant = router::choice(variant, experts, bias)
            .flag(
                "CHOICE_BY_LANES",
                chunks <= CHUNKS && experts.used as u32 <= shape.lanes,
            )
            .number("CHUNKS", chunks)
            .flag("ROUTED", true)
            .flag("CHOICE_OUT", shape.choice)
            .flag("RAW_LOGITS", shape.raw_logits)
            .flag("LOGITS_IN_PARTS", shape.parts > 1)
            .number("ROWS", rows);
        if shape.parts > 1 {
            let columns = experts.count as u32 / 4;
            let phases = geometry.threads() / columns;
            // Threads of a subgroup that share a column.
            let even = phases * columns == geometry.threads();
            let shared = if columns.is_power_of_two() && even {
                (shape.lanes / columns).clamp(1, phases)
            } else {
                1
            };
            variant = variant
                .number("PARTS", shape.parts)
                .number("LOGIT_PHASES", phases)
                .number("LOGIT_FOLDS", shared.ilog2())
                .number("LOGIT_SUMMED", phases / shared)
                .number("PART_LOADS", shape.parts.div_ceil(phases))
                .flag("RAGGED_PARTS", !even || !shape.parts.is_multiple_of(phases));
        }
        access.push_str("rrrrr");
        access.extend(bias.then_some('r'));
        access.push_str(if shape.choice { "ww" } else { "" });
    }
    if let Some(([g, u], _)) = shape.shared {
        let names = ["SHARED_GATE", "SHARED_GATE_TIMES"];
        variant = weight(variant, names, g, shape.activation);
        variant = weight(
            variant,
            ["SHARED_UP", "SHARED_UP_TIMES"],
            u,
            shape.activation,
        );
        variant = variant.flag("SHARED", true);
        access.push_str("rrrr");
    }
    access.push_str("rrw");
    Spec {
        kernel: "token_gate_up",
        source: include_str!("../../wgsl/token_gate_up.wgsl"),
        variant,
        access: accesses(&access),
    }
}

impl GpuTokenGateUp<'_> {
    fn shape(&self, lanes: u32, staged: bool) -> Shape<'_> {
        let pair = |pair: &[&GpuWeight; 2]| (pair.map(|w| w.ty), pair[0].rows);
        let any = self.experts.as_ref().map(|(pair, _)| *pair).or(self.shared);
        Shape {
            activation: self.activation,
            units: any.expect("experts or a dense block")[0].cols / 32,
            experts: self.experts.as_ref().map(|(weights, router)| {
                let (types, rows) = pair(weights);
                (types, rows, router.experts, router.bias.is_some())
            }),
            shared: self.shared.as_ref().map(pair),
            raw_logits: self.raw_logits,
            parts: self.experts.as_ref().map_or(1, |(_, router)| router.parts),
            choice: true,
            lanes,
            staged,
        }
    }

    /// What a geometry can be chosen for.
    pub fn site(&self) -> Site {
        // Which lanes choose and how the input comes makes no difference to it.
        self.shape(1, false).site()
    }

    /// The dispatches: one per part of the experts or of the shared expert, whichever are more.
    ///
    /// # Errors
    /// [`GpuError::TierUnsupported`] where no geometry suits the shape on this device, or rows are no multiple of 16.
    ///
    /// # Panics
    /// If sizes disagree or a buffer is too small, which would let the kernel index beyond it.
    pub fn calls(&self, target: &Target) -> Result<Vec<Call>, GpuError> {
        self.calls_with(target, &geometry(target, &self.site())?)
    }

    /// As [`calls`](Self::calls), divided so.
    ///
    /// # Errors
    /// As [`calls`](Self::calls).
    ///
    /// # Panics
    /// As [`calls`](Self::calls), or if the kernel or the device does not allow the geometry.
    pub fn calls_with(&self, target: &Target, geometry: &Geometry) -> Result<Vec<Call>, GpuError> {
        check_geometry(target, &self.site(), geometry);
        let (mut values, mut count) = (0, 0);
        let pairs = [self.experts.as_ref().map(|(pair, _)| *pair), self.shared];
        for [g, u] in pairs.into_iter().flatten() {
            assert_eq!(
                (g.groups, g.rows, g.cols),
                (u.groups, u.rows, u.cols),
                "{} and {}",
                g.name,
                u.name
            );
            let cuts = |w: &GpuWeight| -> Vec<_> {
                w.parts.iter().map(|p| (p.first_row, p.rows)).collect()
            };
            assert_eq!(cuts(g), cuts(u), "parts of {} and {}", g.name, u.name);
            for part in &g.parts {
                // Experts are cut between them.
                let rows = if g.groups > 1 { g.rows } else { part.rows };
                check_rows(target, rows, &g.name)?;
            }
            count = count.max(g.parts.len());
        }
        if let Some(([g, _], router)) = &self.experts {
            router.check();
            assert!(
                router.parts == 1 || self.raw_logits && router.experts.count.is_multiple_of(4),
                "parts of the logits of {} experts",
                router.experts.count
            );
            assert_eq!(
                (router.max_tokens, router.experts.count),
                (1, g.groups as usize),
                "experts of {}",
                g.name
            );
            values += router.experts.used as u32 * g.rows;
        }
        if let Some([g, _]) = self.shared {
            assert_eq!(g.groups, 1, "the shared expert {}", g.name);
            values += g.rows;
        }
        let mut shape = self.shape(target.lanes(), false);
        // Each thread's share of the logits' sums.
        let beside = match shape.parts {
            1 => 0,
            _ => 16 * u64::from(geometry.threads()),
        };
        shape.staged = stages(target, shape.activation, shape.units, beside);
        for [g, _] in pairs.into_iter().flatten() {
            assert_eq!(g.cols, shape.units * 32, "input of {}", g.name);
        }
        let (squares, _) = self.x.rms.as_ref().expect(NORM);
        assert!(
            self.x.values.size >= shape.activation.bytes(u64::from(shape.units))
                && squares.size >= u64::from(shape.units) * 8,
            "input of {values}"
        );
        assert!(
            self.h.size >= shape.activation.bytes(u64::from(values.div_ceil(32))),
            "output of {values}"
        );
        Ok((0..count).map(|i| self.call(geometry, &shape, i)).collect())
    }

    /// Part i of the experts and part i of the shared expert, where they have so many.
    fn call(&self, geometry: &Geometry, all: &Shape<'_>, i: usize) -> Call {
        let planes = |pair: &[&GpuWeight; 2]| {
            let parts = pair.map(|w| &w.parts[i]);
            parts.map(|part| [part.quants.clone(), part.scales.clone()])
        };
        let has = |pair: &[&GpuWeight; 2]| i < pair[0].parts.len();
        let experts = self.experts.as_ref().filter(|(pair, _)| has(pair));
        let shared = self.shared.filter(has);
        let mut bindings = vec![];
        let mut params = vec![];
        let (mut tiles, mut bytes, mut weights) = (0, 0, 0);
        if let Some((pair, router)) = experts {
            let [g, u] = pair.map(|w| &w.parts[i]);
            let (rows, used) = (pair[0].rows, router.experts.used as u32);
            bindings.extend(planes(pair).into_iter().flatten());
            bindings.push(router.logits.clone());
            bindings.extend(router.bias.clone());
            params.extend([g.first_row / rows, g.rows / rows, g.sub, u.sub].map(Word::U));
            if i == 0 {
                bindings.extend([router.ids.clone(), router.weights.clone()]);
                params.push(Word::F(router.experts.weights_scale));
                // The chosen experts may lie in any part: the first is told to read them all.
                bytes += pair
                    .map(|w| w.bytes_of_rows(u64::from(used * rows)))
                    .iter()
                    .sum::<u64>();
                weights += 2 * u64::from(used * rows) * u64::from(pair[0].cols);
            }
            tiles += used * rows.div_ceil(geometry.tile);
        }
        if let Some(pair) = &shared {
            let [g, u] = pair.map(|w| &w.parts[i]);
            bindings.extend(planes(pair).into_iter().flatten());
            let before = self
                .experts
                .as_ref()
                .map_or(0, |(pair, r)| r.experts.used as u32 * pair[0].rows);
            params.extend([before + g.first_row, g.rows, g.sub, u.sub].map(Word::U));
            bytes += [g, u]
                .map(|p| p.quants.size + p.scales.size)
                .iter()
                .sum::<u64>();
            weights += 2 * u64::from(g.rows) * u64::from(pair[0].cols);
            tiles += g.rows.div_ceil(geometry.tile);
        }
        let (squares, eps) = self.x.rms.clone().expect(NORM);
        bindings.extend([self.x.values.clone(), squares, self.h.clone()]);
        params.push(Word::F(eps));
        assert!(tiles <= MAX_GRID, "{tiles} workgroups");
        let shape = Shape {
            experts: all.experts.filter(|_| experts.is_some()),
            shared: all.shared.filter(|_| shared.is_some()),
            choice: i == 0,
            ..*all
        };
        Call::positional(spec(geometry, &shape), bindings, params, grid(tiles).0)
            .with_bytes(bytes)
            .with_flops(Flops {
                once: 2 * weights,
                ..Flops::default()
            })
            .at_site(all.site())
    }
}

/// Why an input without sums of squares is a mistake of the caller.
const NORM: &str = "a feed-forward block begins with a norm";

#[cfg(test)]
mod tests;
