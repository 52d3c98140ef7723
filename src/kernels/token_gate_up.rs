//! [`gate_up`](super::gate_up) of one token: the choice of experts, they and the shared one in one grid, prepared values in and
//! out.

use super::MAX_GRID;
use super::router::{self, GpuRouter};
use super::token::{
    self, TokenInput, check_geometry, check_rows, divided, geometry, grid, staged, stages, weight,
};
use crate::gpu::geometry::{Geometry, MAX_THREADS, Site};
use crate::gpu::memory::GpuWeight;
use crate::gpu::pipeline::Spec;
use crate::gpu::record::{Flops, Op, Range, Word, accesses};
use crate::gpu::{Gpu, GpuError};
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
    /// G and U of the experts, cut alike, and how they are chosen: what the router's op would do for one token.
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

/// Rows of a workgroup that are worth adding up the parts of the logits.
const PARTS_ROWS: u32 = 32;

/// Experts of a lane at most where one subgroup makes the choice.
const CHUNKS: u32 = 8;

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
            shares_work: (self.parts > 1).then_some(PARTS_ROWS),
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
        true => staged(variant, geometry, shape.units),
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
                check_rows(gpu, rows, &g.name)?;
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
        let mut shape = self.shape(gpu.lanes(), false);
        // Each thread's share of the logits' sums.
        let beside = match shape.parts {
            1 => 0,
            _ => 16 * u64::from(geometry.threads()),
        };
        shape.staged = stages(gpu, shape.activation, shape.units, beside);
        for [g, _] in pairs.into_iter().flatten() {
            assert_eq!(g.cols, shape.units * 32, "input of {}", g.name);
        }
        let (squares, _) = self.x.rms.as_ref().expect(NORM);
        assert!(
            self.x.values.size >= u64::from(shape.units) * shape.activation.unit_bytes()
                && squares.size >= u64::from(shape.units) * 8,
            "input of {values}"
        );
        assert!(
            self.h.size >= u64::from(values.div_ceil(32)) * shape.activation.unit_bytes(),
            "output of {values}"
        );
        Ok((0..count).map(|i| self.op(geometry, &shape, i)).collect())
    }

    /// Part i of the experts and part i of the shared expert, where they have so many.
    fn op(&self, geometry: &Geometry, all: &Shape<'_>, i: usize) -> Op {
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
        Op::new(spec(geometry, &shape), bindings, params, grid(tiles).0)
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
mod tests {
    use super::*;
    use crate::gpu::geometry::Machine;
    use crate::gpu::record::State;
    use crate::gpu::testing::{
        download, gpu_weights, output, run, token_gpus, token_gpus_with_binding, upload,
    };
    use crate::kernels::testing::{Rng, assert_close, random_weight};
    use crate::kernels::token::testing::{Given, activation, assert_prepared, room};
    use crate::model::Gating;

    /// Types of the experts' weights and their number, chosen ones and rows; types and rows of the shared expert.
    type Case = (
        Option<([GgmlType; 2], [usize; 3])>,
        Option<([GgmlType; 2], usize)>,
    );

    /// Logits or biases no two of which, nor their probabilities, are near each other.
    fn distinct(rng: &mut Rng, count: usize) -> Vec<f32> {
        let mut values: Vec<f32> = (0..count)
            .map(|i| (i as f32 + 0.5 * rng.uniform()) * 6.0 / count as f32 - 3.0)
            .collect();
        for i in (1..count).rev() {
            values.swap(i, rng.below(i + 1));
        }
        values
    }

    /// How the experts' logits come.
    #[derive(Clone, Copy, PartialEq)]
    enum Logits {
        /// Divided by the root mean square of the input.
        Whole,
        /// Not yet.
        Raw,
        /// Nor added up, as `attn_output` leaves them; of a number of experts that is no multiple of 4 as `Raw`.
        InParts,
    }

    const LOGITS: [Logits; 3] = [Logits::Whole, Logits::Raw, Logits::InParts];

    fn check(gpu: &Gpu, rng: &mut Rng, cols: usize, case: Case, all: bool) {
        let logits = LOGITS[rng.below(LOGITS.len())];
        check_logits(gpu, rng, cols, case, all, logits);
    }

    /// Every geometry in question against the twin, with the choice of each gating and norm.
    fn check_logits(
        gpu: &Gpu,
        rng: &mut Rng,
        cols: usize,
        (experts, shared): Case,
        all: bool,
        come: Logits,
    ) {
        let given = Given::new(gpu, &rng.normals(cols), &rng.normals(cols));
        let flags = rng.below(8);
        let raw_logits = come != Logits::Whole;
        let experts = experts.map(|(types, [count, used, rows])| {
            let config = Experts {
                count,
                used,
                shared_count: 1,
                feed_forward_length: rows,
                gating: [Gating::Sigmoid, Gating::Softmax][flags & 1],
                weights_norm: flags & 2 != 0,
                weights_scale: 1.8,
            };
            let logits = distinct(rng, count);
            // A bias that moves whole ranks, and not towards ties.
            let bias: Option<Vec<f32>> =
                (flags & 4 != 0).then(|| logits.iter().map(|v| -2.0 * v).collect());
            let (mut ids, mut weights) = (vec![0; used], vec![0.0; used]);
            router::router(&logits, bias.as_deref(), &config, 1, &mut ids, &mut weights);
            let pair = types.map(|ty| random_weight(rng, ty, count, rows, cols));
            (pair, config, [Some(logits), bias], ids, weights)
        });
        let shared =
            shared.map(|(types, rows)| types.map(|ty| random_weight(rng, ty, 1, rows, cols)));
        let twin = token_gate_up(
            experts
                .as_ref()
                .map(|(pair, .., ids, _)| (pair.each_ref(), ids.as_slice())),
            shared.as_ref().map(|pair| pair.each_ref()),
            &given.values,
            (&given.squares, 1e-6),
        );
        let on_gpu = |pair: &[Weight; 2]| gpu_weights(gpu, &[&pair[0], &pair[1]]);
        let experts_gpu = experts.as_ref().map(|(pair, ..)| on_gpu(pair));
        let shared_gpu = shared.as_ref().map(on_gpu);
        let h = room(gpu, twin.len(), None);
        let mut op = GpuTokenGateUp {
            experts: experts.as_ref().zip(experts_gpu.as_ref()).map(|(e, w)| {
                let (_, config, [logits, bias], ids, _) = e;
                let rms = (given.squares.iter().sum::<f32>() / cols as f32 + 1e-6).sqrt();
                let factor = if raw_logits { rms } else { 1.0 };
                let logits = logits.as_ref().expect("there are logits").iter();
                let mut logits: Vec<f32> = logits.map(|logit| logit * factor).collect();
                let mut parts = 1;
                if come == Logits::InParts && config.count.is_multiple_of(4) {
                    parts = 2 + rng.below(140);
                    // What they add up to is all in the last one, but for what cancels.
                    let mut all = vec![0.0; (parts - 1) * config.count];
                    all.extend(logits);
                    let half = rng.normals(config.count);
                    let (first, last) = (0, (parts - 1) * config.count);
                    for (i, v) in half.iter().enumerate() {
                        all[first + i] += v;
                        all[last + i] -= v;
                    }
                    logits = all;
                }
                let range = |data: &Vec<f32>| Range::whole(&upload(gpu, data));
                let router = GpuRouter {
                    logits: range(&logits),
                    parts: parts as u32,
                    bias: bias.as_ref().map(range),
                    experts: config,
                    max_tokens: 1,
                    ids: Range::whole(&output(gpu, ids.len())),
                    weights: Range::whole(&output(gpu, ids.len())),
                };
                ([&w[0], &w[1]], router)
            }),
            raw_logits,
            shared: shared_gpu.as_ref().map(|w| [&w[0], &w[1]]),
            activation: activation(gpu),
            x: given.upload(gpu, 1e-6),
            h: h.values.clone(),
        };
        let site = op.site();
        let geometries = if all {
            site.candidates(Machine::of(gpu))
        } else {
            vec![gpu.geometry(&site).expect("the device allows one")]
        };
        assert!(!geometries.is_empty());
        for geometry in geometries {
            let what = format!("{cols} columns, choice {flags}, {geometry:?}");
            let h = room(gpu, twin.len(), None);
            op.h = h.values.clone();
            let ops = op
                .ops_with(gpu, &geometry)
                .unwrap_or_else(|e| panic!("{e}"));
            let state = State {
                tokens: 1,
                ..State::default()
            };
            run(gpu, &ops, &state);
            assert_prepared(gpu, &h, None, &twin, &what);
            if let Some((_, router)) = &op.experts {
                let (.., ids, weights) = experts.as_ref().expect("they were there");
                let found: Vec<u32> = download(gpu, &router.ids.buffer, ids.len());
                assert_eq!(&found, ids, "{what}");
                let found: Vec<f32> = download(gpu, &router.weights.buffer, ids.len());
                let exact: Vec<f64> = weights.iter().map(|w| f64::from(*w)).collect();
                // As in the test of the router.
                assert_close(&found, &exact, 1e-11, &what);
            }
        }
    }

    #[test]
    fn the_gpu_agrees_for_every_type() {
        for gpu in token_gpus() {
            let mut rng = Rng::fresh();
            for (i, &ty) in GgmlType::ALL.iter().enumerate() {
                let other = GgmlType::ALL[(i + 1) % GgmlType::ALL.len()];
                let case = (Some(([ty, other], [5, 2, 32])), Some(([other, ty], 64)));
                check(gpu, &mut rng, 256, case, false);
            }
        }
    }

    #[test]
    fn the_gpu_agrees_at_the_shapes_of_the_models() {
        for gpu in token_gpus() {
            let mut rng = Rng::fresh();
            let (q4_0, q4_k) = ([GgmlType::Q4_0; 2], [GgmlType::Q4_K; 2]);
            for case in [
                (Some((q4_0, [64, 4, 1536])), Some((q4_0, 1536))),
                (Some((q4_k, [7, 6, 1408])), Some((q4_k, 2816))),
                (None, Some((q4_k, 6144))),
                (Some((q4_0, [4, 1, 96])), None),
                (Some((q4_0, [256, 8, 32])), Some((q4_0, 48))),
            ] {
                for come in LOGITS {
                    if case.0.is_some() || come == Logits::Whole {
                        check_logits(gpu, &mut rng, 2048, case, false, come);
                    }
                }
            }
        }
    }

    #[test]
    fn every_geometry_gives_the_same() {
        for gpu in token_gpus() {
            let mut rng = Rng::fresh();
            // 36 units leave some lanes without, 48 rows some tiles unfilled.
            let pair = [GgmlType::Q4_0, GgmlType::Q8_0];
            let case = (Some((pair, [68, 3, 48])), Some((pair, 80)));
            check(gpu, &mut rng, 1152, case, true);
            check(gpu, &mut rng, 64, (None, Some((pair, 48))), true);
        }
    }

    #[test]
    fn weights_larger_than_a_binding_are_cut() {
        for gpu in token_gpus_with_binding(40_000) {
            let mut rng = Rng::fresh();
            let types = [GgmlType::Q4_0, GgmlType::Q8_0];
            for case in [
                // Experts in more parts, the shared expert in more, a dense block.
                (Some((types, [8, 3, 64])), Some((types, 96))),
                (Some((types, [2, 2, 64])), Some((types, 736))),
                (None, Some((types, 736))),
            ] {
                check(&gpu, &mut rng, 256, case, false);
            }
        }
    }
}
