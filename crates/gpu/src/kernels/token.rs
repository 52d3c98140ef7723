//! The common parts of a decoded token's kernels: how they divide rows, and how each leaves its output prepared for the next. A
//! prepared output is multiplied by the weight of the norm in between and has the sums of squares beside it that the norm needs,
//! so that no kernel begins with one; and it is in the form that the tier multiplies ([`Activation`]).

use super::MAX_GRID;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent};
use crate::gpu::geometry::{Geometry, PREPARED_ROWS, Site};
use crate::gpu::machine::geometries::TOKENS_AT_ONCE;
use crate::gpu::machine::{MAX_THREADS, Machine};
use crate::gpu::memory::GpuWeight;
use crate::gpu::{GpuError, Target, Tier};
use crate::quant::GgmlType;
use crate::quant::activation::Activation;
use crate::quant::halves::BLOCK_UNITS;
use crate::quant::repack::{has_codes, has_nibbles, shader_module};

/// An output prepared for the product that comes next.
#[derive(Clone)]
pub struct TokenOutput {
    /// The prepared values, (n / 32) units.
    pub values: Range,
    /// The RMS norm that lies between, if there is one: its weight (n), and the sums of squares of 16 values, (n / 16) f32.
    pub norm: Option<(Range, Range)>,
}

impl TokenOutput {
    /// An output that no norm follows.
    pub fn of(values: Range) -> Self {
        Self { values, norm: None }
    }

    /// Binds an output, where there is one, as `token_store.wgsl` names it.
    pub(super) fn bind(output: Option<&Self>, call: Call) -> Call {
        let Some(Self { values, norm }) = output else {
            return call;
        };
        let (weight, squares) = norm.as_ref().map(|(w, s)| (w, s)).unzip();
        call.bind("prepared", values)
            .bind_some("norm_weight", weight)
            .bind_some("squares_out", squares)
    }
}

/// A prepared input.
#[derive(Clone)]
pub struct TokenInput {
    /// The prepared values, (n / 32) units.
    pub values: Range,
    /// The RMS norm that lies between, if there is one: the sums of squares of 16 values, (n / 16), and its epsilon.
    pub rms: Option<(Range, f32)>,
}

impl TokenInput {
    /// An input without a norm.
    pub fn of(values: Range) -> Self {
        Self { values, rms: None }
    }

    /// Binds it as `x_*.wgsl` and `rms.wgsl` name it.
    pub(super) fn bind(&self, call: Call) -> Call {
        let (squares, eps) = self.rms.as_ref().map(|(s, eps)| (s, *eps)).unzip();
        call.bind("x", &self.values)
            .bind_some("squares", squares)
            .word_some("eps", eps)
    }
}

/// `call` in workgroups that divide rows of `units` units so.
pub(super) fn divided(call: Call, geometry: &Geometry, units: u32) -> Call {
    let block = geometry.lanes * geometry.unroll;
    call.number("LANES", geometry.lanes)
        .number("WG", geometry.threads())
        .number("UNROLL", geometry.unroll)
        .flag("RAGGED", !units.is_multiple_of(block))
        .flag("ONE_BLOCK", block >= units)
}

/// `call` with what `rms.wgsl` needs: the partial sums of squares that a thread requests before its weights.
pub(super) fn with_rms(target: &Target, call: Call, geometry: &Geometry, units: u32) -> Call {
    let squares = (2 * units).div_ceil(geometry.lanes);
    call.number("SQUARES", squares.min(target.machine.tuned.squares_ahead))
}

/// Workgroup memory that kernels with such an input need besides, at most.
const STAGED_BESIDES: u64 = 4 << 10;

/// `call` for up to `tokens` tokens with inputs of `units` units each, of which a workgroup has as many as the third number says. Inputs pass
/// through workgroup memory where that is faster, and where this device has room for them beside `beside` bytes of the kernel's own.
pub(super) fn staged(
    machine: Machine,
    call: Call,
    geometry: &Geometry,
    activation: Activation,
    [tokens, units, columns]: [u32; 3],
    beside: u64,
) -> Call {
    let tuned = machine.tuned;
    let bytes = activation.bytes(u64::from(units));
    // Halves are laid out in blocks of units, and what is staged begins where a block does.
    let begins = tokens == 1 || units.is_multiple_of(BLOCK_UNITS as u32);
    let module = match activation {
        Activation::Bytes => "staged_bytes",
        Activation::Halves { .. } if begins => "staged_halves",
        Activation::Halves { .. } | Activation::Floats => return call,
    };
    // The threads of a row read the bytes of a unit far from those of the next one, and the more so the more tokens a workgroup has.
    let pays = (tuned.staged_units_least..=tuned.staged_units_most).contains(&units)
        || columns > 1 && activation == Activation::Bytes;
    let all = bytes * u64::from(columns) + STAGED_BESIDES + beside;
    if !pays || all > u64::from(machine.workgroup_memory) {
        return call;
    }
    let vectors = (bytes / 16) as u32;
    call.module("INPUT", module)
        .number("COLS", columns)
        .number("STAGE_VECTORS", vectors)
        .number("STAGE_LOADS", vectors.div_ceil(geometry.threads()))
}

/// The geometry at the site of a product of several tokens, whose rows are added up as those of `one` token are: by as many lanes, in
/// workgroups of as many threads. It is what was chosen for the site, else `suggested`, else that of one token.
pub(super) fn alike(target: &Target, site: &Site, one: Geometry, suggested: Geometry) -> Geometry {
    let is_alike = |g: &Geometry| {
        let shares = [g.lanes, g.threads()] == [one.lanes, one.threads()];
        shares && site.allows(g, target.machine)
    };
    let mut all = target.chosen(site).into_iter().chain([suggested]);
    all.find(is_alike).unwrap_or(one)
}

/// The geometry of a product.
pub fn geometry(target: &Target, site: &Site) -> Result<Geometry, GpuError> {
    target
        .geometry(site)
        .ok_or_else(|| unsupported(target, &format!("a division of {}", site.key())))
}

/// The site of a kernel that multiplies these weights beside each other, where it demands nothing special.
pub(super) fn site(kernel: &'static str, weights: &[&GpuWeight], activation: Activation) -> Site {
    let shapes: Vec<_> = weights.iter().map(|w| w.shape()).collect();
    Site {
        kernel,
        types: weights.iter().map(|w| w.ty).collect(),
        shape: shapes.join("+"),
        rows: weights.iter().map(|w| w.total_rows()).sum(),
        units: weights[0].cols / 32,
        activation,
        prepared: false,
        together: 1,
        suggested: None,
        whole: None,
        threads: [1, MAX_THREADS],
        one_block: false,
        at_once: 1,
        shares_work: None,
        pair: false,
        two_runs: false,
        thread_sums: 0,
    }
}

/// A product of a decoded token, whose rows a geometry divides.
pub trait Divided {
    /// The site that a geometry is chosen for.
    fn site(&self) -> Site;

    /// The geometry that the device takes.
    ///
    /// # Errors
    /// [`GpuError::TierUnsupported`] if no geometry suits the shape on this device.
    fn geometry(&self, target: &Target) -> Result<Geometry, GpuError> {
        geometry(target, &self.site())
    }

    /// The dispatches in an allowed geometry, not yet at their site: one for each piece of the weights.
    ///
    /// # Errors
    /// The errors of [`calls_with`](Self::calls_with).
    fn pieces(&self, target: &Target, geometry: &Geometry) -> Result<Vec<Call>, GpuError>;

    /// The dispatches in this geometry.
    ///
    /// # Errors
    /// [`GpuError::TierUnsupported`] if the tier has no kernel for a size.
    ///
    /// # Panics
    /// If what is multiplied does not go together, or the kernel or the device does not allow the geometry.
    fn calls_with(&self, target: &Target, geometry: &Geometry) -> Result<Vec<Call>, GpuError> {
        let site = self.site();
        let allowed = site.allows(geometry, target.machine);
        assert!(allowed, "{geometry:?} for {}", site.key());
        let calls = self.pieces(target, geometry)?.into_iter();
        Ok(calls.map(|call| call.at_site(site.clone())).collect())
    }

    /// The dispatches in the geometry that the device takes.
    ///
    /// # Errors
    /// The errors of [`calls_with`](Self::calls_with), also if no geometry suits the shape on this device.
    fn calls(&self, target: &Target) -> Result<Vec<Call>, GpuError> {
        self.calls_with(target, &self.geometry(target)?)
    }
}

/// Refuses rows that leave prepared but whose number is no multiple of those that leave together.
pub(super) fn check_rows(target: &Target, rows: u32, what: &str) -> Result<(), GpuError> {
    if rows.is_multiple_of(PREPARED_ROWS) {
        return Ok(());
    }
    Err(unsupported(
        target,
        &format!("a kernel for {rows} rows of {what}, no multiple of {PREPARED_ROWS}"),
    ))
}

/// The error for a size that the tier has no kernel for.
pub fn unsupported(target: &Target, missing: &str) -> GpuError {
    GpuError::TierUnsupported {
        tier: target.tier.name(),
        adapter: target.name.clone(),
        missing: missing.to_owned(),
        remedy: match target.tier {
            Tier::Plain => "use --device cpu",
            _ => "try --tier plain, or use --device cpu",
        },
    }
}

/// A kernel that reads and leaves activations of this kind, with nothing bound yet.
pub(super) fn kernel(name: &'static str, activation: Activation) -> Call {
    let (input, flag) = match activation {
        Activation::Bytes => ("x_bytes", "BYTES"),
        Activation::Halves { .. } => ("x_halves", "HALVES"),
        Activation::Floats => ("x_floats", "FLOATS"),
    };
    Call::new(name)
        .flag(flag, true)
        .flag("PACKED", activation == Activation::Halves { packed: true })
        .module("INPUT", input)
}

/// Names the module of a weight's type, and the one by which it meets the input.
pub(super) fn weight(
    call: Call,
    [name, times]: [&'static str; 2],
    ty: GgmlType,
    activation: Activation,
) -> Call {
    let by = match (activation, has_codes(ty)) {
        (Activation::Bytes, true) if has_nibbles(ty) => "nibbles_by_bytes",
        (Activation::Bytes, true) => "codes_by_bytes",
        (Activation::Bytes, false) => "floats_by_bytes",
        (Activation::Halves { .. }, true) if has_nibbles(ty) => "nibbles_by_halves",
        (Activation::Halves { .. }, true) => "codes_by_halves",
        (Activation::Halves { .. }, false) => "floats_by_halves",
        (Activation::Floats, true) => "codes_by_floats",
        (Activation::Floats, false) => "floats_by_floats",
    };
    call.module(name, shader_module(ty)).module(times, by)
}

/// The grid of `tiles` workgroups for each of up to `tokens` tokens: `shared/own_token.wgsl`. It is continued along the next dimension where one
/// does not hold it.
pub(super) fn tiles_of(tokens: u32, tiles: u32) -> [Extent; 3] {
    tiles_by(tokens, 1, tiles)
}

/// The grid of `tiles` workgroups for each `by` of up to `tokens` tokens.
pub(super) fn tiles_by(tokens: u32, by: u32, tiles: u32) -> [Extent; 3] {
    let width = tiles.min(MAX_GRID);
    let [along, further] = [width, tiles.div_ceil(width)].map(Extent::N);
    match (tokens, by) {
        (1, _) => [along, further, Extent::N(1)],
        (_, 1) => [Extent::Tokens, along, further],
        _ => [Extent::TokensBy(by), along, further],
    }
}

/// Tokens that a workgroup takes of up to `tokens`, of a weight with `rows` rows: the fewest that do not make more workgroups than the device
/// runs at once.
pub(super) fn columns(machine: Machine, rows: u32, tokens: u32) -> u32 {
    let workgroups = tokens * rows.div_ceil(PREPARED_ROWS);
    let at_once = (machine.tuned.workgroups_of_several * machine.cores).max(1);
    let most = tokens.next_power_of_two().min(TOKENS_AT_ONCE[1]);
    (workgroups / at_once).next_power_of_two().clamp(1, most)
}
