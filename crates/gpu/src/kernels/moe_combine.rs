//! The end of the expert block of a prompt: what the experts of each token gave, weighted and added to the residual.

use super::expert_rows::Other;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent};
use crate::gpu::machine::workgroups::MOE_COMBINE as WG;

/// The sum over a token's slots and the residual on the device, in the order of additions of [`moe_down`](super::products::Products::moe_down).
pub struct GpuMoeCombine {
    /// The output of each slot, (tokens, used, rows).
    pub slots: Range,
    /// The rows by tall tiles, which are read instead of `slots` where there are tall tiles.
    pub other: Option<Other>,
    /// The weights, (tokens, used).
    pub weights: Range,
    /// Added to the sum, (tokens, rows).
    pub residual: Range,
    /// The output, (tokens, rows).
    pub y: Range,
    /// Experts per token.
    pub used: u32,
    /// Values of a row, a multiple of 4.
    pub rows: u32,
}

impl GpuMoeCombine {
    /// The dispatch.
    ///
    /// # Panics
    /// If a row is not whole vectors.
    pub fn call(&self) -> Call {
        assert!(self.rows.is_multiple_of(4), "rows of {} values", self.rows);
        let vectors = self.rows / 4;
        let across = Extent::N(vectors.div_ceil(WG));
        Call::new("moe_combine")
            .number("WG", WG)
            .number("USED", self.used)
            .word("vectors", vectors)
            .bind("slots", &self.slots)
            .bind_some("other", self.other.as_ref().map(|other| &other.rows))
            .bind_some("tiles", self.other.as_ref().map(|other| &other.tiles))
            .bind("weights", &self.weights)
            .bind("residual", &self.residual)
            .bind("y", &self.y)
            .grid([across, Extent::Tokens, Extent::N(1)])
    }
}

/// `out` (T, rows) = residual (T, rows) + sum over s of weights (T, used)\[t\]\[s\] * slots (T, used, rows)\[t\]\[s\], in the
/// order of additions of [`moe_down`](super::products::Products::moe_down).
///
/// # Panics
/// If a size does not fit the others.
pub fn moe_combine(slots: &[f32], weights: &[f32], residual: &[f32], rows: usize, out: &mut [f32]) {
    let n_tokens = residual.len() / rows;
    let used = weights.len() / n_tokens;
    assert_eq!(
        (slots.len(), out.len()),
        (weights.len() * rows, residual.len()),
        "experts of {n_tokens} tokens"
    );
    out.fill(0.0);
    for (slot, (y, weight)) in slots.chunks_exact(rows).zip(weights).enumerate() {
        let out = &mut out[slot / used * rows..][..rows];
        out.iter_mut()
            .zip(y)
            .for_each(|(out, y)| *out += weight * y);
    }
    out.iter_mut().zip(residual).for_each(|(out, r)| *out += r);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Most;
    use crate::gpu::testing::gpus;
    use crate::kernels::cases::moe_combine::cases;
    use crate::kernels::testing::agree_everywhere;
    use crate::kernels::testing::bounds::needs_every_byte;

    #[test]
    fn the_gpu_agrees_with_its_twin() {
        agree_everywhere(gpus(), |_| cases());
    }

    #[test]
    fn every_index_lies_in_its_buffer() {
        let (tokens, used, rows) = (9, 2, 36);
        for other in [false, true] {
            let slots = || Range::floats("slots", u64::from(tokens * used * rows));
            let out = || Range::floats("rows", u64::from(tokens * rows));
            let call = GpuMoeCombine {
                slots: slots(),
                other: other.then(|| Other {
                    rows: slots(),
                    tiles: Range::words("tiles", 4),
                }),
                weights: Range::floats("weights", u64::from(tokens * used)),
                residual: out(),
                y: out(),
                used,
                rows,
            };
            needs_every_byte(&call.call(), Most { tokens, context: 9 });
        }
    }
}
