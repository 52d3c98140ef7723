//! What the kernels of the `int8` tier share: how they divide rows, and where their outputs go.

use super::MAX_GRID;
use crate::gpu::Gpu;
use crate::gpu::record::{Extent, Range};
use crate::gpu::shader::Variant;
use crate::quant::GgmlType;
use crate::quant::repack::has_codes;

/// Rows of a workgroup: the 16 values that share a scale.
pub(super) const TILE: u32 = 16;

/// Bytes of the record of a unit of 32 values.
pub(super) const RECORD: u64 = 48;

/// Words of a weight row asked for at once by one thread: more keeps more bytes in flight, but costs registers and, on
/// small subgroups, long shaders that take long to compile.
const UNROLL_WIDE: u32 = 8;
const UNROLL_NARROW: u32 = 2;

/// The q8 form of an output, for the product that comes next.
#[derive(Clone)]
pub struct Q8Output {
    /// (n / 32) records of 48 bytes.
    pub records: Range,
    /// Where an RMS norm lies between: its weight (n), and where the sums of squares of 16 values go, (n / 16) f32.
    pub norm: Option<(Range, Range)>,
}

impl Q8Output {
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

    /// Their accesses.
    pub(super) fn access(&self) -> &'static str {
        if self.norm.is_some() { "rww" } else { "w" }
    }
}

/// An input in q8 form.
#[derive(Clone)]
pub struct Q8Input {
    /// (n / 32) records.
    pub records: Range,
    /// Where an RMS norm lies between: the sums of squares of 16 values, (n / 16), and its epsilon.
    pub rms: Option<(Range, f32)>,
}

/// The constants of a variant that divides rows of `units` units among LANES threads.
pub(super) fn divided(gpu: &Gpu, variant: Variant, rows_per_group: u32, units: u32) -> Variant {
    let lanes = gpu.lanes();
    let most = if lanes >= 32 {
        UNROLL_WIDE
    } else {
        UNROLL_NARROW
    };
    variant
        .number("LANES", lanes)
        .number("WG", lanes * rows_per_group)
        .number("UNROLL", units.div_ceil(lanes).min(most))
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
