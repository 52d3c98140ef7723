//! The absorbed and the rotated queries and the cache's new row of one token in one grid, where every dispatch of a pass waits for
//! the one before it ([`Machine::serial_passes`](crate::gpu::machine::Machine::serial_passes)): `attn_k_b` with [`rope_cache`](super::rope_cache).

use super::rope_cache::{CacheRow, ROW_SUBGROUPS, rope_cache};
use super::sequences::Sequences;
use super::token::{Divided, divided, kernel, site, weight};
use super::token_matvec::token_matvec;
use super::{MAX_GRID, MlaDims};
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent};
use crate::gpu::geometry::{Geometry, Site, WHOLE_THREADS};
use crate::gpu::machine::MIN_SUBGROUP;
use crate::gpu::memory::GpuWeight;
use crate::gpu::{GpuError, Target};
use crate::model::Weight;
use crate::quant::activation::Activation;
use half::f16;

/// Whether the kernel is for this `attn_k_b`.
pub fn fits(k_b: &GpuWeight, dims: MlaDims) -> bool {
    let pairs = dims.heads * dims.rope / 2;
    let least = (dims.heads * dims.kv_lora).div_ceil(WHOLE_THREADS as usize / 32)
        + pairs.div_ceil(WHOLE_THREADS as usize);
    k_b.pieces.len() == 1
        && dims.nope > 0
        && dims.nope.is_multiple_of(32)
        && dims.head().is_multiple_of(32)
        && dims.kv_lora.is_multiple_of(2)
        && least < MAX_GRID as usize
}

/// The queries and the row on the device.
pub struct GpuTokenQueries<'a> {
    /// `attn_k_b`, (heads, kv_lora, nope).
    pub k_b: &'a GpuWeight,
    /// The form of prepared values.
    pub activation: Activation,
    /// The query heads as f32, (heads, nope + rope).
    pub q: Range,
    /// The query heads, prepared.
    pub values: Range,
    /// Cosine and sine, (n_ctx, rope / 2).
    pub rope_table: Range,
    /// The sizes of the block.
    pub dims: MlaDims,
    /// Absorbed queries, (heads, kv_lora) f32.
    pub q_lat: Range,
    /// Rotated queries, (heads, rope) f32.
    pub q_pe: Range,
    /// The cache's new row.
    pub row: CacheRow,
    /// The place of the new row, if the token belongs to one of several sequences.
    pub sequences: Option<Sequences>,
}

impl Divided for GpuTokenQueries<'_> {
    fn site(&self) -> Site {
        Site {
            threads: [1, ROW_SUBGROUPS * MIN_SUBGROUP],
            ..site("token_queries", &[self.k_b], self.activation)
        }
    }

    fn pieces(&self, _: &Target, geometry: &Geometry) -> Result<Vec<Call>, GpuError> {
        let (k_b, dims) = (self.k_b, self.dims);
        assert!(
            fits(k_b, dims)
                && [k_b.groups, k_b.rows, k_b.cols].map(|n| n as usize)
                    == [dims.heads, dims.kv_lora, dims.nope],
            "{} for {dims:?}",
            k_b.name
        );
        let piece = &k_b.pieces[0];
        let units = k_b.cols / 32;
        let call = kernel("token_queries", self.activation);
        let call = divided(call, geometry, units);
        let call = weight(call, ["WEIGHT", "WEIGHT_TIMES"], k_b.ty, self.activation);
        let weights = u64::from(k_b.total_rows()) * u64::from(k_b.cols);
        let pairs = (dims.heads * dims.rope / 2) as u32;
        let workgroups =
            k_b.total_rows().div_ceil(geometry.tile) + 1 + pairs.div_ceil(geometry.threads());
        let call = call
            .number("UNITS", units)
            .number("HEADS", k_b.groups)
            .planes(["w_q", "w_s"], piece)
            .bind("x", &self.values)
            .bind("q", &self.q)
            .bind("angles", &self.rope_table)
            .bind("q_lat", &self.q_lat)
            .bind("q_pe", &self.q_pe)
            .word("sub", piece.sub)
            .grid([Extent::N(workgroups), Extent::N(1), Extent::N(1)])
            .with_bytes(k_b.bytes())
            .with_flops(super::once(2 * weights));
        let call = Sequences::bind_pages(self.sequences.as_ref(), call);
        Ok(vec![self.row.bind(call, dims, geometry.threads())])
    }
}

/// The absorbed queries (heads, kv_lora), the rotated ones (heads, rope) and the cache's row (kv_lora + rope) of one token.
///
/// `k_b` (heads, kv_lora, nope) times what `keep` makes of all heads `q` (heads, nope + rope), and the rest as
/// [`rope_cache`] for a token whose `angles` are (rope / 2) of cosine and sine.
pub fn token_queries(
    k_b: &Weight,
    q: &[f32],
    (kv_a, kv_a_norm, eps): (&[f32], &[f32], f32),
    angles: &[[f32; 2]],
    dims: MlaDims,
    keep: impl Fn(&[f32]) -> Vec<f32>,
) -> ([Vec<f32>; 2], Vec<f16>) {
    let q_lat = token_matvec(k_b, &keep(q), dims.head() / 32, None, None);
    let mut q_pe = vec![0.0; dims.heads * dims.rope];
    let mut row = vec![f16::ZERO; dims.cache_row()];
    rope_cache(
        q, kv_a, kv_a_norm, eps, angles, 0, dims, &mut q_pe, &mut row,
    );
    ([q_lat, q_pe], row)
}

#[cfg(test)]
mod tests {
    use crate::gpu::testing::token_gpus;
    use crate::kernels::cases::token_queries::cases;
    use crate::kernels::testing::{agree, agree_long};

    #[test]
    fn the_kernel_agrees_with_its_twin_at_shapes_of_models() {
        agree(token_gpus(), |_| cases());
    }

    #[test]
    #[ignore = "long: scripts/test --all"]
    fn other_geometries_give_the_same() {
        for gpu in token_gpus() {
            agree_long([gpu], |_| cases());
        }
    }
}
