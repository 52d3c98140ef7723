//! The end of the expert block of a prompt: what the experts of each token gave, weighted and added to the residual.

use super::expert_rows::Other;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent};
use crate::gpu::machine::workgroups::MOE_COMBINE as WG;

/// The sum over a token's slots and the residual on the device, in the order of additions of [`moe_down`](super::products::moe_down).
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
/// order of additions of [`moe_down`](super::products::moe_down).
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
    use crate::gpu::call::State;
    use crate::gpu::testing::{download, gpus, output, padded, run, upload};
    use crate::kernels::expert_rows::tests::left_by;
    use crate::kernels::testing::bounds::needs_every_byte;
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
