//! The end of a layer with experts for the tokens of a batch: what their experts gave is added up, normed and prepared for the next layer.

use super::linear::rms_norm;
use super::token;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent};
use crate::gpu::machine::workgroups::BATCH_COMBINE as WG;
use crate::quant::activation::Activation;

/// x = residual + sum over a token's slots of weight * slot, and x / rms(x) * norm prepared, on the device.
pub struct GpuBatchCombine {
    /// The output of each slot, (tokens, used, rows), and its weight, (tokens, used); nothing where the residual is all.
    pub slots: Option<[Range; 2]>,
    /// Experts per token; 0 without slots.
    pub used: u32,
    /// Added to the sum, (tokens, rows).
    pub residual: Range,
    /// The sum, (tokens, rows), where it is needed.
    pub x: Option<Range>,
    /// The weight of the norm, (rows), and its epsilon.
    pub norm: (Range, f32),
    /// The normed sum, prepared as `activation` says, (tokens, rows / 32) units.
    pub values: Range,
    /// The format of prepared values.
    pub activation: Activation,
    /// Values of a row, a multiple of 32.
    pub rows: u32,
}

impl GpuBatchCombine {
    /// The dispatch.
    ///
    /// # Panics
    /// If a row is not whole units.
    pub fn call(&self) -> Call {
        assert!(self.rows.is_multiple_of(32), "rows of {} values", self.rows);
        let vectors = self.rows / 4;
        let (slots, weights) = self.slots.as_ref().map(|[s, w]| (s, w)).unzip();
        let (norm, eps) = &self.norm;
        token::kernel("batch_combine", self.activation)
            .number("WG", WG)
            .number("LANES", 1)
            .number("LOADS", vectors.div_ceil(WG))
            .number("VECTORS", vectors)
            .number("USED", self.used)
            .bind_some("slots", slots)
            .bind_some("weights", weights)
            .bind("residual", &self.residual)
            .bind("norm", norm)
            .bind_some("x", self.x.as_ref())
            .bind("prepared", &self.values)
            .word("eps", *eps)
            .grid([Extent::Tokens, Extent::N(1), Extent::N(1)])
    }
}

/// The sums (tokens, rows) of residual and weighted slots, and what they are when normed.
pub fn batch_combine(
    slots: &[f32],
    weights: &[f32],
    residual: &[f32],
    norm: &[f32],
    eps: f32,
) -> [Vec<f32>; 2] {
    let rows = norm.len();
    let used = weights.len() * rows / residual.len();
    let mut sums = residual.to_vec();
    for (slot, (values, weight)) in slots.chunks_exact(rows).zip(weights).enumerate() {
        let sum = &mut sums[slot / used.max(1) * rows..][..rows];
        sum.iter_mut()
            .zip(values)
            .for_each(|(s, v)| *s += weight * v);
    }
    let normed = sums.chunks_exact(rows);
    let normed = normed.flat_map(|row| rms_norm(row, norm, eps)).collect();
    [sums, normed]
}

#[cfg(test)]
mod tests {
    use crate::gpu::testing::all_gpus;
    use crate::kernels::cases::batch_combine::cases;
    use crate::kernels::testing::agree_everywhere;

    #[test]
    fn the_gpu_agrees_with_its_twin() {
        agree_everywhere(all_gpus(), |_| cases());
    }
}
