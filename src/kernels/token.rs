//! What the kernels of the `int8` tier share: how they divide rows, and where their outputs go.

use super::MAX_GRID;
use crate::gpu::geometry::{Geometry, Machine, SCALED_ROWS, Site};
use crate::gpu::record::{Extent, Range};
use crate::gpu::shader::Variant;
use crate::gpu::{Gpu, GpuError};
use crate::quant::GgmlType;
use crate::quant::repack::has_codes;

/// Bytes of the record of a unit of 32 values.
pub(super) const RECORD: u64 = 48;
/// Sums of squares that a thread asks for ahead of the weights at most.
const MOST_SQUARES: u32 = 8;

/// An output as records, for the product that comes next.
#[derive(Clone)]
pub struct TokenOutput {
    /// (n / 32) records of 48 bytes.
    pub records: Range,
    /// Where an RMS norm lies between: its weight (n), and where the sums of squares of 16 values go, (n / 16) f32.
    pub norm: Option<(Range, Range)>,
}

impl TokenOutput {
    /// Panics unless `n` values fit.
    pub(super) fn check(&self, n: u32, what: &str) {
        let n = u64::from(n);
        assert!(
            n.is_multiple_of(32),
            "{what}: records hold 32 values, {n} are no multiple"
        );
        assert!(self.records.size >= n / 32 * RECORD, "records of {what}");
        if let Some((weight, squares)) = &self.norm {
            assert!(
                weight.size >= n * 4 && squares.size >= n / 4,
                "norm after {what}"
            );
        }
    }

    /// The bindings in the order of the kernels: norm weight, squares, records.
    pub(super) fn bindings(&self) -> Vec<Range> {
        let norm = self
            .norm
            .iter()
            .flat_map(|(weight, squares)| [weight.clone(), squares.clone()]);
        norm.chain([self.records.clone()]).collect()
    }
}

/// An input as records.
#[derive(Clone)]
pub struct TokenInput {
    /// (n / 32) records.
    pub records: Range,
    /// Where an RMS norm lies between: the sums of squares of 16 values, (n / 16), and its epsilon.
    pub rms: Option<(Range, f32)>,
}

/// The constants of a variant whose workgroups divide rows of `units` units so.
pub(super) fn divided(variant: Variant, geometry: &Geometry, units: u32) -> Variant {
    let block = geometry.lanes * geometry.unroll;
    variant
        .number("LANES", geometry.lanes)
        .number("WG", geometry.threads())
        .number("UNROLL", geometry.unroll)
        .number(
            "SQUARES",
            (2 * units).div_ceil(geometry.lanes).min(MOST_SQUARES),
        )
        .flag("RAGGED", !units.is_multiple_of(block))
        .flag("ONE_BLOCK", block >= units)
}

/// The geometry of a product.
///
/// # Errors
/// [`GpuError::TierUnsupported`] where the device allows none.
pub(super) fn geometry(gpu: &Gpu, site: &Site) -> Result<Geometry, GpuError> {
    gpu.geometry(site)
        .ok_or_else(|| unsupported(gpu, &format!("a division of {}", site.key())))
}

/// Panics unless the kernel and the device allow the geometry.
pub(super) fn check_geometry(gpu: &Gpu, site: &Site, geometry: &Geometry) {
    assert!(
        site.allows(geometry, Machine::of(gpu)),
        "{geometry:?} for {}",
        site.key()
    );
}

/// Refuses rows that leave as bytes but whose number is no multiple of those that share a scale.
///
/// # Errors
/// [`GpuError::TierUnsupported`].
pub(super) fn check_rows(gpu: &Gpu, rows: u32, what: &str) -> Result<(), GpuError> {
    if rows.is_multiple_of(SCALED_ROWS) {
        return Ok(());
    }
    Err(unsupported(
        gpu,
        &format!("a kernel for {rows} rows of {what}, no multiple of {SCALED_ROWS}"),
    ))
}

/// What the tier lacks on this device.
pub(super) fn unsupported(gpu: &Gpu, missing: &str) -> GpuError {
    GpuError::TierUnsupported {
        tier: gpu.tier.name(),
        adapter: gpu.info.name.clone(),
        missing: missing.to_owned(),
    }
}

/// Names a weight type's module and says where it has no integer codes.
pub(super) fn weight(
    variant: Variant,
    name: &'static str,
    float: &'static str,
    ty: GgmlType,
) -> Variant {
    variant
        .module(name, crate::quant::repack::shader_module(ty))
        .flag(float, !has_codes(ty))
}

/// A grid of `tiles` workgroups, continued along y where one dimension does not hold them; and its width.
pub(super) fn grid(tiles: u32) -> ([Extent; 3], u32) {
    let width = tiles.min(MAX_GRID);
    (
        [
            Extent::N(width),
            Extent::N(tiles.div_ceil(width)),
            Extent::N(1),
        ],
        width,
    )
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;
    use crate::gpu::testing::{download, output, upload};
    use crate::quant::activation::{Q8Unit, dequantize_activation, quantize_activation, squares};

    /// Random values with a norm in between: what a consumer gets and what it stands for.
    pub struct Given {
        pub records: Vec<Q8Unit>,
        pub squares: Vec<f32>,
    }

    impl Given {
        /// `x` times `norm` as bytes, with the squares of `x`.
        pub fn new(x: &[f32], norm: &[f32]) -> Self {
            let weighted: Vec<f32> = x.iter().zip(norm).map(|(x, g)| x * g).collect();
            Self {
                records: quantize_activation(&weighted),
                squares: squares(x),
            }
        }

        /// On the device.
        pub fn upload(&self, gpu: &Gpu, eps: f32) -> TokenInput {
            TokenInput {
                records: Range::whole(&upload(gpu, &self.records)),
                rms: Some((Range::whole(&upload(gpu, &self.squares)), eps)),
            }
        }
    }

    /// Room for `n` values as bytes, with the norm `g` where there is one.
    pub fn room(gpu: &Gpu, n: usize, g: Option<&[f32]>) -> TokenOutput {
        TokenOutput {
            records: Range::whole(&output(gpu, n / 32 * 12)),
            norm: g.map(|g| {
                (
                    Range::whole(&upload(gpu, g)),
                    Range::whole(&output(gpu, n / 16)),
                )
            }),
        }
    }

    /// Fails unless `found` on the device are the bytes of `expected` (times the norm): each value within its half step,
    /// the scaled sums those of the bytes, the squares those of `expected`.
    #[track_caller]
    pub fn assert_bytes(
        gpu: &Gpu,
        found: &TokenOutput,
        g: Option<&[f32]>,
        expected: &[f32],
        what: &str,
    ) {
        let n = expected.len();
        let records: Vec<Q8Unit> = download(gpu, &found.records.buffer, n / 32);
        let values = dequantize_activation(&records);
        for (i, (value, x)) in values.iter().zip(expected).enumerate() {
            let x = x * g.map_or(1.0, |g| g[i]);
            let unit = &records[i / 32];
            let scale = unit.scales[i % 32 / 16];
            // The sums behind x differ in their last bits, so a value may round the other way.
            assert!(
                (value - x).abs() <= 0.502 * scale + 1e-30,
                "{what}: value {i} is {value} for {x}, step {scale}"
            );
        }
        for (i, unit) in records.iter().enumerate() {
            for h in 0..2 {
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
        if let Some((_, buffer)) = &found.norm {
            let found: Vec<f32> = download(gpu, &buffer.buffer, n / 16);
            for (i, (found, exact)) in found.iter().zip(squares(expected)).enumerate() {
                assert!(
                    (found - exact).abs() <= 1e-4 * exact,
                    "{what}: squares {i} are {found} for {exact}"
                );
            }
        }
    }
}
