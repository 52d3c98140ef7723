//! The common parts of a decoded token's kernels: how they divide rows, and how each leaves its output prepared for the next. A
//! prepared output is multiplied by the weight of the norm in between and has the sums of squares beside it that the norm needs,
//! so that no kernel begins with one; and it is in the form that the tier multiplies ([`Activation`]).

use super::MAX_GRID;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent};
use crate::gpu::geometry::{Geometry, PREPARED_ROWS, Site};
use crate::gpu::machine::MAX_THREADS;
use crate::gpu::memory::GpuWeight;
use crate::gpu::{GpuError, Target, Tier};
use crate::quant::GgmlType;
use crate::quant::activation::Activation;
use crate::quant::halves::BLOCK_UNITS;
use crate::quant::repack::{has_codes, has_nibbles, shader_module};

/// An output prepared for the product that comes next.
#[derive(Clone)]
pub struct TokenOutput {
    /// (n / 32) units.
    pub values: Range,
    /// Where an RMS norm lies between: its weight (n), and where the sums of squares of 16 values go, (n / 16) f32.
    pub norm: Option<(Range, Range)>,
}

impl TokenOutput {
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
    /// (n / 32) units.
    pub values: Range,
    /// Where an RMS norm lies between: the sums of squares of 16 values, (n / 16), and its epsilon.
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

/// `call` for up to `tokens` tokens with inputs of `units` units each. An input passes through workgroup memory where that is faster, and
/// where this device has room for it beside `beside` bytes of the kernel's own.
pub(super) fn staged(
    target: &Target,
    call: Call,
    geometry: &Geometry,
    activation: Activation,
    [tokens, units]: [u32; 2],
    beside: u64,
) -> Call {
    let tuned = target.machine.tuned;
    let bytes = activation.bytes(u64::from(units));
    // Halves are laid out in blocks of units, and what is staged begins where a block does.
    let begins = tokens == 1 || units.is_multiple_of(BLOCK_UNITS as u32);
    let module = match activation {
        Activation::Bytes => "staged_bytes",
        Activation::Halves { .. } if begins => "staged_halves",
        Activation::Halves { .. } | Activation::Floats => return call,
    };
    if !(tuned.staged_units_least..=tuned.staged_units_most).contains(&units)
        || bytes + STAGED_BESIDES + beside > u64::from(target.machine.workgroup_memory)
    {
        return call;
    }
    let vectors = (bytes / 16) as u32;
    call.module("INPUT", module)
        .number("STAGE_VECTORS", vectors)
        .number("STAGE_LOADS", vectors.div_ceil(geometry.threads()))
}

/// The geometry of a product.
pub(crate) fn geometry(target: &Target, site: &Site) -> Result<Geometry, GpuError> {
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
        two_runs: false,
        thread_sums: 0,
    }
}

/// A product of a decoded token, whose rows a geometry divides.
pub trait Divided {
    /// The site that a geometry is chosen for.
    fn site(&self) -> Site;

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
        self.calls_with(target, &geometry(target, &self.site())?)
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
pub(crate) fn unsupported(target: &Target, missing: &str) -> GpuError {
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

/// The grid of `tiles` workgroups for each of up to so many tokens: `shared/own_token.wgsl`. That of one is continued along y where one
/// dimension does not hold it.
pub(super) fn tiles_of(tokens: u32, tiles: u32) -> [Extent; 3] {
    let width = tiles.min(MAX_GRID);
    match tokens {
        1 => [width, tiles.div_ceil(width), 1].map(Extent::N),
        _ => [Extent::Tokens, Extent::N(tiles), Extent::N(1)],
    }
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;
    use crate::gpu::Gpu;
    use crate::gpu::buffer::Role;
    use crate::gpu::testing::{download, output, upload};
    use crate::kernels::testing::assert_close;
    use crate::quant::activation::{Q8Unit, dequantize_activation, quantize_activation, squares};
    use crate::quant::halves::{HalvesBlock, halve, restore};
    use crate::testing::{Rng, rounds};

    /// The form of a product's output for the next product in the tier of the device.
    pub fn activation(gpu: &Gpu) -> Activation {
        gpu.activation()
    }

    /// The numbers that prepared `values` stand for: themselves, or what their bytes or halves give.
    pub fn stand_for(activation: Activation, values: &[f32]) -> Vec<f32> {
        match activation {
            Activation::Bytes => dequantize_activation(&quantize_activation(values)),
            Activation::Halves { .. } => restore(&halve(values), values.len()),
            Activation::Floats => values.to_vec(),
        }
    }

    /// The NMSE that sums of products have in this form, beside what stands for their input.
    pub fn sums_nmse(activation: Activation) -> f64 {
        match activation {
            // Sums of integers are exact; the rest are f32 sums of up to 684 half units in another order.
            Activation::Bytes | Activation::Floats => 1e-11,
            // Sums of f32 from which a bias of some 100 times their size is taken off.
            Activation::Halves { packed: false } => 1e-8,
            // Sums of 4 products in f16, of codes without a sign.
            Activation::Halves { packed: true } => 4e-6,
        }
    }

    /// The geometries that a test runs a site with: the default, or some of those that the device allows.
    pub fn geometries(gpu: &Gpu, site: &Site, many: bool) -> Vec<Geometry> {
        let found = if many {
            some_of(site.candidates(gpu.machine))
        } else {
            vec![gpu.geometry(site).expect("the device allows one")]
        };
        assert!(!found.is_empty());
        found
    }

    /// Geometries of a test at most: there are hundreds, and each is compiled.
    const GEOMETRIES: usize = 4;

    /// Some of them, others in each run.
    pub fn some_of(geometries: Vec<Geometry>) -> Vec<Geometry> {
        let step = geometries.len().div_ceil(rounds(GEOMETRIES)).max(1);
        let first = Rng::fresh().below(step);
        geometries.into_iter().skip(first).step_by(step).collect()
    }

    /// Prepared values on the device.
    pub fn upload_values(gpu: &Gpu, values: &[f32]) -> Range {
        Range::whole(&match activation(gpu) {
            Activation::Bytes => upload(gpu, &quantize_activation(values)),
            Activation::Halves { .. } => upload(gpu, &halve(values)),
            Activation::Floats => upload(gpu, values),
        })
    }

    /// Random values with a norm in between: what a consumer gets and what it stands for.
    pub struct Given {
        weighted: Vec<f32>,
        /// The numbers that the prepared values stand for.
        pub values: Vec<f32>,
        pub squares: Vec<f32>,
    }

    impl Given {
        /// `x` times `norm`, with the squares of `x`.
        pub fn new(gpu: &Gpu, x: &[f32], norm: &[f32]) -> Self {
            let weighted: Vec<f32> = x.iter().zip(norm).map(|(x, g)| x * g).collect();
            Self {
                values: stand_for(activation(gpu), &weighted),
                weighted,
                squares: squares(x),
            }
        }

        /// On the device.
        pub fn upload(&self, gpu: &Gpu, eps: f32) -> TokenInput {
            TokenInput {
                values: upload_values(gpu, &self.weighted),
                rms: Some((Range::whole(&upload(gpu, &self.squares)), eps)),
            }
        }
    }

    /// Room for `n` prepared values, with the norm `g` where there is one.
    pub fn room(gpu: &Gpu, n: usize, g: Option<&[f32]>) -> TokenOutput {
        let words = activation(gpu).bytes(n.div_ceil(32) as u64) as usize / 4;
        TokenOutput {
            values: Range::whole(&output(gpu, words)).holding(Role::prepared(activation(gpu))),
            norm: g.map(|g| {
                (
                    Range::whole(&upload(gpu, g)),
                    Range::whole(&output(gpu, n / 16)),
                )
            }),
        }
    }

    /// Fails unless `found` on the device is `expected` (times the norm) prepared, with the squares of `expected`.
    #[track_caller]
    pub fn assert_prepared(
        gpu: &Gpu,
        found: &TokenOutput,
        g: Option<&[f32]>,
        expected: &[f32],
        what: &str,
    ) {
        let n = expected.len();
        let weighted = |(i, x): (usize, &f32)| x * g.map_or(1.0, |g| g[i]);
        let weighted: Vec<f32> = expected.iter().enumerate().map(weighted).collect();
        match activation(gpu) {
            Activation::Bytes => {
                assert_bytes(
                    &download(gpu, &found.values.buffer, n.div_ceil(32)),
                    &weighted,
                    what,
                );
            }
            Activation::Halves { .. } => assert_halves(
                &download(gpu, &found.values.buffer, n.div_ceil(256)),
                &weighted,
                sums_nmse(activation(gpu)),
                what,
            ),
            Activation::Floats => {
                let exact: Vec<f64> = weighted.iter().map(|v| f64::from(*v)).collect();
                let found: Vec<f32> = download(gpu, &found.values.buffer, n);
                assert_close(&found, &exact, 1e-11, what);
            }
        }
        if let Some((_, buffer)) = &found.norm {
            let found: Vec<f32> = download(gpu, &buffer.buffer, n / 16);
            for (i, (found, exact)) in found.iter().zip(squares(expected)).enumerate() {
                assert!(
                    // A deviation of x counts twice in its square, and 16 values may deviate more than all do.
                    (found - exact).abs()
                        <= 1e-4f32.max(4.0 * sums_nmse(activation(gpu)).sqrt() as f32) * exact,
                    "{what}: squares {i} are {found} for {exact}"
                );
            }
        }
    }

    /// The values but for what halves round and sums in another form lose (`nmse`), and the sums those of the halves. The error of
    /// few values varies, so the limit is several times that of many.
    #[track_caller]
    fn assert_halves(blocks: &[HalvesBlock], expected: &[f32], nmse: f64, what: &str) {
        let found = restore(blocks, expected.len());
        let exact: Vec<f64> = expected.iter().map(|v| f64::from(*v)).collect();
        assert_close(&found, &exact, nmse + 4e-7, what);
        for (i, values) in found.chunks_exact(16).enumerate() {
            let [scale, scaled_sum] = blocks[i / 16].scales[i / 2 % 8][i % 2];
            let largest = values.iter().fold(0.0f32, |max, v| max.max(v.abs()));
            assert!(
                16384.0 * scale <= largest && largest <= 32768.0 * scale,
                "{what}: scale {scale} of half {i} for {largest}"
            );
            let sum: f32 = values.iter().sum();
            assert!(
                (sum - scaled_sum).abs() <= 1e-5 * largest,
                "{what}: sum of half {i} is {scaled_sum} for {sum}"
            );
        }
    }

    /// Each value within its half step, the scaled sums those of the bytes.
    #[track_caller]
    fn assert_bytes(records: &[Q8Unit], expected: &[f32], what: &str) {
        let values = dequantize_activation(records);
        for (i, (value, x)) in values.iter().zip(expected).enumerate() {
            let scale = records[i / 32].scales[i % 32 / 16];
            // The sums behind x differ in their last bits, so a value may round the other way.
            assert!(
                (value - x).abs() <= 0.502 * scale + 1e-30,
                "{what}: value {i} is {value} for {x}, step {scale}"
            );
        }
        for (i, unit) in records.iter().enumerate() {
            // The last unit may be half a one.
            for h in (0..2).filter(|h| 2 * i + h < expected.len() / 16) {
                let sum: i32 = unit.codes[h].iter().map(|c| i32::from(*c)).sum();
                let expected = unit.scales[h] * sum as f32;
                assert!(
                    (unit.scaled_sums[h] - expected).abs() <= 1e-6 * expected.abs(),
                    "{what}: sum of unit {i}"
                );
                assert!(
                    unit.scales[h] == 0.0 || unit.codes[h].iter().any(|c| c.unsigned_abs() == 127),
                    "{what}: unit {i} wastes its range"
                );
            }
        }
    }
}
