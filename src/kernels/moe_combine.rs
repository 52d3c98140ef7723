//! The end of the expert block of a prompt: what the experts of each token gave, weighted and added to the residual.

use super::expert_rows::Other;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent, Word, accesses};
use crate::gpu::pipeline::Spec;
use crate::gpu::shader::Variant;

/// `out` (T, rows) = residual (T, rows) + sum over s of weights (T, used)\[t\]\[s\] * slots (T, used, rows)\[t\]\[s\], in the
/// order of additions of [`moe_down`](super::moe_down::moe_down).
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

/// Threads of a workgroup.
const WG: u32 = 128;

/// The pipeline for `used` experts per token, whose values may stand in `either` of two buffers.
pub(super) fn spec(used: u32, either: bool) -> Spec {
    Spec {
        kernel: "moe_combine",
        source: include_str!("../../wgsl/moe_combine.wgsl"),
        variant: Variant::default()
            .number("WG", WG)
            .number("USED", used)
            .flag("EITHER", either),
        access: accesses(if either { "rrrrrw" } else { "rrrw" }),
    }
}

/// [`moe_combine`] on the device.
pub struct GpuMoeCombine {
    /// What each slot gave, (max_tokens, used, rows).
    pub slots: Range,
    /// What may be read instead.
    pub other: Option<Other>,
    /// The weights, (max_tokens, used).
    pub weights: Range,
    /// Added to the sum, (max_tokens, rows).
    pub residual: Range,
    /// The output, (max_tokens, rows).
    pub y: Range,
    /// Most tokens of a replay.
    pub max_tokens: u32,
    /// Experts per token.
    pub used: u32,
    /// Values of a row, a multiple of 4.
    pub rows: u32,
}

impl GpuMoeCombine {
    /// The dispatch.
    ///
    /// # Panics
    /// If a buffer is too small for the sizes, which would let the kernel index beyond it.
    pub fn call(&self) -> Call {
        let (tokens, used) = (u64::from(self.max_tokens), u64::from(self.used));
        let out = tokens * u64::from(self.rows) * 4;
        assert!(
            self.rows.is_multiple_of(4)
                && self.slots.size >= out * used
                && self.weights.size >= tokens * used * 4
                && self.residual.size.min(self.y.size) >= out,
            "{used} experts of {tokens} tokens with {} values",
            self.rows
        );
        let vectors = self.rows / 4;
        let mut bindings = vec![self.slots.clone()];
        if let Some(Other { rows, tiles }) = &self.other {
            assert!(
                rows.size >= out * used && tiles.size >= 16,
                "other values of {tokens} tokens"
            );
            bindings.extend([rows.clone(), tiles.clone()]);
        }
        bindings.extend([&self.weights, &self.residual, &self.y].map(Range::clone));
        Call::positional(
            spec(self.used, self.other.is_some()),
            bindings,
            vec![Word::U(vectors)],
            [
                Extent::N(vectors.div_ceil(WG)),
                Extent::Tokens,
                Extent::N(1),
            ],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::call::State;
    use crate::gpu::testing::{download, gpus, output, padded, run, upload};
    use crate::kernels::expert_rows::tests::left_by;
    use crate::kernels::testing::{Rng, assert_close};

    #[test]
    fn the_gpu_agrees_with_its_twin() {
        let mut rng = Rng::fresh();
        for (used, rows, n_tokens) in [(4, 2048, 5), (6, 2048, 3), (2, 36, 17), (1, 4, 1)] {
            let [slots, weights, residual] =
                [n_tokens * used * rows, n_tokens * used, n_tokens * rows].map(|n| rng.normals(n));
            let mut twin = vec![0.0; n_tokens * rows];
            moe_combine(&slots, &weights, &residual, rows, &mut twin);
            let exact: Vec<f64> = twin.iter().map(|v| f64::from(*v)).collect();
            for gpu in gpus() {
                let max_tokens = n_tokens as u32 + 1;
                let range = |data: &[f32], width| {
                    Range::whole(&upload(gpu, &padded(data, width, max_tokens)))
                };
                // In the one buffer, or in either of two.
                for tall in [None, Some(false), Some(true)] {
                    let y = output(gpu, max_tokens as usize * rows);
                    let (slots, other) =
                        left_by(gpu, &padded(&slots, used * rows, max_tokens), tall);
                    let call = GpuMoeCombine {
                        slots,
                        other,
                        weights: range(&weights, used),
                        residual: range(&residual, rows),
                        y: Range::whole(&y),
                        max_tokens,
                        used: used as u32,
                        rows: rows as u32,
                    }
                    .call();
                    let state = State {
                        tokens: n_tokens as u32,
                        ..State::default()
                    };
                    run(gpu, &[call], &state);
                    let found: Vec<f32> = download(gpu, &y, max_tokens as usize * rows);
                    let (found, behind) = found.split_at(n_tokens * rows);
                    assert_close(found, &exact, 1e-12, gpu.tier.name());
                    assert!(behind.iter().all(|v| v.is_nan()), "rows behind the tokens");
                }
            }
        }
    }
}
