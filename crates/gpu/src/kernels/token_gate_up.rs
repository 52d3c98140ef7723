//! [`gate_up`](Products::gate_up) of one token: the choice of experts, they and the shared one in one grid, prepared values in and
//! out.

use super::MAX_GRID;
use super::products::Products;
use super::router::{self, GpuRouter};
use super::token::{
    self, Divided, TokenInput, check_rows, divided, kernel, site, staged, tiles_by, weight,
};
use super::token_matvec::inverse_rms;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Word};
use crate::gpu::geometry::{Geometry, SharedWork, Site};
use crate::gpu::machine::geometries::TOKENS_AT_ONCE;
use crate::gpu::machine::{MAX_THREADS, Machine, Repeated};
use crate::gpu::memory::GpuWeight;
use crate::gpu::{GpuError, Target};
use crate::model::{Experts, Weight};
use crate::quant::activation::Activation;

/// silu(G x) * (U x) with x divided by its root mean square: of the chosen experts one after another, then of the shared one. And the
/// [`router`] before it.
pub struct GpuTokenGateUp<'a> {
    /// G and U of the experts, cut alike, and how they are chosen: what the router's call would do for one token.
    pub experts: Option<([&'a GpuWeight; 2], GpuRouter<'a>)>,
    /// Whether a dispatch before makes the choice ([`expert_slots`](super::expert_slots)): then the router's ids are read, and number the groups
    /// of G and U.
    pub given: bool,
    /// Whether the logits are still to be divided by the root mean square of the input. Partial sums, as
    /// [`PartialLogits`](super::token_matvec::PartialLogits) leaves them, always are.
    pub raw_logits: bool,
    /// G and U of the shared expert, or of a dense block, cut alike.
    pub shared: Option<[&'a GpuWeight; 2]>,
    /// The form of prepared values.
    pub activation: Activation,
    /// The input, with a norm.
    pub x: TokenInput,
    /// The output, (tokens, used * rows + shared rows) values.
    pub h: Range,
    /// The most tokens of a step.
    pub tokens: u32,
}

/// The most threads of a workgroup that chooses experts: sums over workgroups hold 64 subgroups, which have 8 lanes or more.
const CHOICE_THREADS: u32 = 512;

/// The additional work if each workgroup adds up the logits of `experts` from `partial_sums`, against logits that come added up. `rows` are
/// those of G of the chosen experts and the shared one.
pub fn repeated(
    machine: Machine,
    activation: Activation,
    rows: u32,
    [experts, partial_sums]: [u32; 2],
) -> Repeated {
    let workgroups = rows
        .div_ceil(SharedWork::RouterSums.rows(machine, activation))
        .div_ceil(machine.cores.max(1));
    let weights = u64::from(workgroups) * u64::from(experts) * u64::from(partial_sums);
    Repeated {
        weights,
        bytes: 4 * weights,
    }
}

impl GpuTokenGateUp<'_> {
    /// G and U of experts and of the shared expert, whichever there are.
    fn pairs(&self) -> impl Iterator<Item = [&GpuWeight; 2]> {
        let experts = self.experts.as_ref().map(|(pair, _)| *pair);
        experts.into_iter().chain(self.shared)
    }

    /// Units of 32 values of the input.
    fn units(&self) -> u32 {
        self.pairs().next().expect("experts or a dense block")[0].cols / 32
    }

    /// Rows of G of the chosen experts.
    fn routed_rows(&self) -> u32 {
        let routed = |(pair, router): &([&GpuWeight; 2], GpuRouter<'_>)| {
            router.experts.used as u32 * pair[0].rows
        };
        self.experts.as_ref().map_or(0, routed)
    }

    /// Values of a token of the output.
    fn rows(&self) -> u32 {
        self.routed_rows() + self.shared.map_or(0, |[g, _]| g.rows)
    }

    /// Partial sums that each logit comes as.
    fn partial_sums(&self) -> u32 {
        self.experts
            .as_ref()
            .map_or(1, |(_, router)| router.partial_sums)
    }
}

impl Divided for GpuTokenGateUp<'_> {
    fn site(&self) -> Site {
        let cols = self.units() * 32;
        let mut shapes = vec![];
        let mut threads = [1, MAX_THREADS];
        if let Some(([g, _], router)) = &self.experts {
            shapes.push(format!("{}x{}x{cols}", router.experts.used, g.rows));
            // A thread per expert makes the choice.
            threads = [router.experts.count as u32, CHOICE_THREADS];
        }
        shapes.extend(self.shared.map(|[g, _]| format!("{}x{cols}", g.rows)));
        let weights: Vec<_> = self.pairs().flatten().collect();
        Site {
            shape: shapes.join("+"),
            rows: self.rows(),
            prepared: true,
            pair: true,
            threads,
            shares_work: (self.partial_sums() > 1).then_some(SharedWork::RouterSums),
            ..site("token_gate_up", &weights, self.activation)
        }
    }

    /// One call per piece of the experts or of the shared expert, whichever are more; where experts are chosen apart, one per piece of the shared
    /// expert, and then one per piece of the experts.
    fn pieces(&self, target: &Target, geometry: &Geometry) -> Result<Vec<Call>, GpuError> {
        let both = (self.experts.as_ref(), self.shared);
        let parts = match both {
            (Some(_), Some(_)) if chooses_apart(target, self.tokens) => {
                vec![(None, both.1), (both.0, None)]
            }
            _ => vec![both],
        };
        let calls = parts
            .into_iter()
            .map(|part| self.pieces_of(target, geometry, part));
        Ok(calls.collect::<Result<Vec<_>, _>>()?.concat())
    }
}

/// G and U of experts with their choice, and of the shared expert or a dense block: what a call multiplies.
type Part<'p, 'a> = (
    Option<&'p ([&'a GpuWeight; 2], GpuRouter<'a>)>,
    Option<[&'a GpuWeight; 2]>,
);

impl<'a> GpuTokenGateUp<'a> {
    /// The dispatches of [`calls`](Divided::calls), with those of the shared expert before the ones of the experts. Every value is that of the
    /// dispatches of both, since the geometry is theirs.
    ///
    /// # Errors
    /// The errors of [`calls`](Divided::calls).
    ///
    /// # Panics
    /// If the product makes the choice of its experts itself, for which the first workgroup of the shared expert would be missing.
    pub fn calls_apart(&self, target: &Target) -> Result<[Vec<Call>; 2], GpuError> {
        assert!(self.given, "experts apart that nobody chose");
        let (site, geometry) = (self.site(), self.geometry(target)?);
        let of = |part| {
            let calls = self.pieces_of(target, &geometry, part)?.into_iter();
            Ok(calls.map(|call| call.at_site(site.clone())).collect())
        };
        Ok([of((None, self.shared))?, of((self.experts.as_ref(), None))?])
    }

    /// A call per piece of the experts or of the shared expert of this part, whichever are more.
    fn pieces_of(
        &self,
        target: &Target,
        geometry: &Geometry,
        (experts, shared): Part<'_, 'a>,
    ) -> Result<Vec<Call>, GpuError> {
        let mut count = 0;
        for [g, u] in experts.map(|(pair, _)| *pair).into_iter().chain(shared) {
            let form = |w: &GpuWeight| {
                let cuts = w.pieces.iter().map(|p| (p.first_row, p.rows));
                ((w.groups, w.rows, w.cols), cuts.collect::<Vec<_>>())
            };
            assert_eq!(form(g), form(u), "{} and {}", g.name, u.name);
            for piece in &g.pieces {
                // Experts are cut between them.
                let rows = if g.groups > 1 { g.rows } else { piece.rows };
                check_rows(target, rows, &g.name)?;
            }
            count = count.max(g.pieces.len());
        }
        if let Some((_, router)) = experts {
            router::check(router.experts);
            assert!(
                router.partial_sums == 1
                    || self.raw_logits && router.experts.count.is_multiple_of(4),
                "partial sums of the logits of {} experts",
                router.experts.count
            );
        }
        let columns = self.columns(target, (experts, shared));
        let whole = self.whole(target, geometry, columns);
        let piece = |i: usize| {
            let experts = experts.filter(|(pair, _)| i < pair[0].pieces.len());
            let shared = shared.filter(|pair| i < pair[0].pieces.len());
            self.piece(target, geometry, &whole, (i, columns), (experts, shared))
        };
        Ok((0..count).map(piece).collect())
    }

    /// Tokens of a workgroup, which reads the weights of the shared expert once for these where it has a grid of its own. They complete their rows
    /// one after the other, so more than two are slower.
    fn columns(&self, target: &Target, part: Part<'_, 'a>) -> u32 {
        match (part, &self.experts) {
            ((None, Some([g, _])), Some(_)) => {
                token::columns(target.machine, g.rows, self.tokens).min(TOKENS_AT_ONCE[0])
            }
            _ => 1,
        }
    }

    /// The call without any weights.
    fn whole(&self, target: &Target, geometry: &Geometry, columns: u32) -> Call {
        let units = self.units();
        let call = kernel("token_gate_up", self.activation);
        let geometry = &Geometry {
            // Registers hold the sums of each token, so a thread requests less ahead.
            unroll: geometry.unroll.min(if columns > 1 { 2 } else { u32::MAX }),
            ..*geometry
        };
        let call = divided(call, geometry, units)
            .flag("SEVERAL", self.tokens > 1)
            .number("COLS", columns)
            .number("UNITS", units);
        let call = match self.tokens {
            1 => call,
            _ => call.word("tokens", Word::Tokens),
        };
        let call = with_rms_in_runs(call, target, geometry.threads(), units);
        // Each thread's share of the logits' sums.
        let beside = match self.partial_sums() {
            _ if self.given => 0,
            1 => 0,
            _ => 16 * u64::from(geometry.threads()),
        };
        let input = [self.tokens, units, columns];
        let call = staged(
            target.machine,
            call,
            geometry,
            self.activation,
            input,
            beside,
        );
        self.x.bind(call).bind("prepared", &self.h)
    }

    /// Piece i of the experts and of the shared expert, of those that are given, for so many tokens of a workgroup.
    fn piece(
        &self,
        target: &Target,
        geometry: &Geometry,
        whole: &Call,
        (i, columns): (usize, u32),
        (experts, shared): Part<'_, 'a>,
    ) -> Call {
        let mut call = whole.clone();
        let (mut tiles, mut bytes, mut weights) = (0, 0, 0);
        let weights_of = |call: Call, names: [[&'static str; 2]; 2], pair: &[&GpuWeight; 2]| {
            let call = weight(call, names[0], pair[0].ty, self.activation);
            weight(call, names[1], pair[1].ty, self.activation)
        };
        if let Some((pair, router)) = experts {
            let [g, u] = pair.map(|w| &w.pieces[i]);
            let (rows, used) = (pair[0].rows, router.experts.used as u32);
            call = match self.given {
                true => given(call, router),
                false => of_logits(call, target, geometry.threads(), router, self.raw_logits),
            };
            call = weights_of(call, [["GATE", "GATE_TIMES"], ["UP", "UP_TIMES"]], pair)
                .number("ROWS", rows)
                .planes(["eg_q", "eg_s"], g)
                .planes(["eu_q", "eu_s"], u)
                .word("experts", g.rows / rows)
                .word("first_expert", g.first_row / rows)
                .word("g_sub", g.sub)
                .word("u_sub", u.sub);
            if i == 0 && !self.given {
                call = call
                    .bind("ids", &router.ids)
                    .bind("weights", &router.weights)
                    .word("scale", router.experts.weights_scale);
            }
            if i == 0 {
                // The chosen experts may lie in any piece: the first is told to read them all.
                let read = pair.map(|w| w.bytes_of_rows(u64::from(used * rows)));
                bytes += read.iter().sum::<u64>();
                weights += 2 * u64::from(used * rows) * u64::from(pair[0].cols);
            }
            tiles += used * rows.div_ceil(geometry.tile);
        }
        if let Some(pair) = shared {
            let [g, u] = pair.map(|w| &w.pieces[i]);
            let names = [
                ["SHARED_GATE", "SHARED_GATE_TIMES"],
                ["SHARED_UP", "SHARED_UP_TIMES"],
            ];
            call = weights_of(call, names, &pair)
                .planes(["sg_q", "sg_s"], g)
                .planes(["su_q", "su_s"], u)
                .word("shared_rows", g.rows)
                .word("shared_first", self.routed_rows() + g.first_row)
                .word("shared_g_sub", g.sub)
                .word("shared_u_sub", u.sub);
            let read = [g, u].map(|p| p.quants.size + p.scales.size);
            bytes += read.iter().sum::<u64>();
            weights += 2 * u64::from(g.rows) * u64::from(pair[0].cols);
            tiles += g.rows.div_ceil(geometry.tile);
        }
        assert!(tiles <= MAX_GRID, "{tiles} workgroups");
        if self.tokens > 1 {
            call = call.number("TOKEN_ROWS", self.rows());
        }
        call.grid(tiles_by(self.tokens, columns, tiles))
            .with_bytes(bytes)
            .with_flops(super::once(2 * weights))
    }
}

/// `call` with the numbers that the module `rms_in_runs` declares, for workgroups of `threads` threads and an input of `units` units.
pub(super) fn with_rms_in_runs(call: Call, target: &Target, threads: u32, units: u32) -> Call {
    let lanes = target.lanes();
    call.number("SQUARES", (2 * units).div_ceil(threads))
        .number("RUN", lanes)
        .number("SQUARE_RUNS", (2 * units).min(threads).div_ceil(lanes))
}

/// Whether the experts of each of up to `tokens` tokens are chosen in a dispatch before, since so many workgroups would make the same choice.
pub fn chooses_apart(target: &Target, tokens: u32) -> bool {
    tokens > 1 && tokens >= target.machine.tuned.choice_apart_of
}

/// Whether the first subgroup of a workgroup chooses experts, rather than all threads.
pub(super) fn chooses_by_lanes(target: &Target, experts: &Experts) -> bool {
    let (lanes, most) = (target.lanes(), target.machine.tuned.choice_experts);
    (experts.count as u32).div_ceil(lanes) <= most && experts.used as u32 <= lanes
}

/// The call with a choice that is given.
fn given(call: Call, router: &GpuRouter<'_>) -> Call {
    call.number("EXPERTS", router.experts.count as u32)
        .number("USED", router.experts.used as u32)
        .module("LOGITS", "logits_given")
        .module("CHOICE", "choose_given")
        .bind("chosen", &router.ids)
}

/// The call, in workgroups of `threads` threads, with the choice of experts by logits, which may be `raw`.
pub(super) fn of_logits(
    call: Call,
    target: &Target,
    threads: u32,
    router: &GpuRouter<'_>,
    raw: bool,
) -> Call {
    let (experts, lanes) = (router.experts, target.lanes());
    let by_lanes = chooses_by_lanes(target, experts);
    let module = match by_lanes {
        true => "choose_by_lanes",
        false => "choose_by_threads",
    };
    let call = router::choice(call, experts, &router.logits, router.bias.as_ref())
        .module("CHOICE", module)
        .flag("RAW_LOGITS", raw);
    let call = match by_lanes {
        true => call.number("CHUNKS", (experts.count as u32).div_ceil(lanes)),
        false => call,
    };
    let partial_sums = router.partial_sums;
    if partial_sums == 1 {
        return call
            .module("LOGITS", "logits_whole")
            .number("LOGIT_STRIDE", router::logit_stride(experts));
    }
    let columns = experts.count as u32 / 4;
    let phases = threads / columns;
    // Threads of a subgroup that share a column.
    let even = phases * columns == threads;
    let shared = match columns.is_power_of_two() && even {
        true => (lanes / columns).clamp(1, phases),
        false => 1,
    };
    call.module("LOGITS", "add_partial_logits")
        .number("RUNS", partial_sums)
        .number("LOGIT_PHASES", phases)
        .number("LOGIT_FOLDS", shared.ilog2())
        .number("LOGIT_SUMMED", phases / shared)
        .number("RUN_LOADS", partial_sums.div_ceil(phases))
        .flag("RAGGED_RUNS", !even || !partial_sums.is_multiple_of(phases))
}

/// `h` = silu(g x) * (u x) with x divided by its root mean square: of the experts `ids` one after another, then of the
/// shared one; x is what the prepared input stands for and `rms` the sums of squares of 16 values and the epsilon.
pub fn token_gate_up(
    experts: Option<([&Weight; 2], &[u32])>,
    shared: Option<[&Weight; 2]>,
    x: &[f32],
    rms: (&[f32], f32),
) -> Vec<f32> {
    let scale = inverse_rms(rms, x.len());
    let values: Vec<f32> = x.iter().map(|v| v * scale).collect();
    let mut all = vec![];
    let mut add = |[gate, up]: [&Weight; 2], ids: Option<&[u32]>| {
        let mut h = vec![0.0; ids.map_or(1, <[u32]>::len) * gate.rows];
        Products::Exact.gate_up([gate, up], &values, 1, None, ids, &mut h);
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

#[cfg(test)]
mod tests;
