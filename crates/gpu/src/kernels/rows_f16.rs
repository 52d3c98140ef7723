//! Makes the inputs of [`gemm`](super::gemm): rows, normed where asked for, as f16 with a scale for each row, or as f32.

use super::expert_rows::Other;
use super::linear::normed;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent, Word};
use crate::gpu::machine::workgroups::ROWS_F16 as WG;
use half::f16;
use rayon::prelude::*;

/// The rows as halves and a scale each, or as floats: value = scale * half, and the largest half of a row is 2^14.
pub struct GpuRowsF16 {
    /// The rows, (max_tokens * used, cols) f32, or their partial sums, (partial_sums, max_tokens * used, cols).
    pub x: Range,
    /// Rows that are read instead if the other list of tiles is in use. They are not partial sums.
    pub other: Option<Other>,
    /// The number of partial sums that make a row, usually 1.
    pub partial_sums: u32,
    /// Values of a row, a multiple of 4.
    pub cols: u32,
    /// The weight (cols) and the epsilon of an RMS norm that is applied first.
    pub norm: Option<(Range, f32)>,
    /// The halves (max_tokens * used, cols) and scales (max_tokens * used) that are written.
    pub halves: Option<[Range; 2]>,
    /// The floats (max_tokens * used, cols) that are written.
    pub floats: Option<Range>,
    /// Most tokens of a replay.
    pub max_tokens: u32,
    /// Rows of a token: 1, or one for each chosen expert.
    pub used: u32,
    /// A residual to add to partial sums, and where the totals go, (max_tokens, cols) f32 each. Then a token has one row.
    pub sum: Option<[Range; 2]>,
    /// Whether only the last token's row is taken. It becomes the first row of the output. Then a token has one row.
    pub last: bool,
}

impl GpuRowsF16 {
    /// The conversion of the rows of `x` (max_tokens, cols), one for each token. The caller fills in what is to be made of them.
    pub fn of(x: &Range, cols: u32, max_tokens: u32) -> Self {
        Self {
            x: x.clone(),
            other: None,
            partial_sums: 1,
            cols,
            norm: None,
            halves: None,
            floats: None,
            max_tokens,
            used: 1,
            sum: None,
            last: false,
        }
    }

    /// The dispatch.
    pub fn call(&self) -> Call {
        let vectors = self.cols / 4;
        let (by, more, used) = (1, 0, self.used);
        let (first, rows) = match self.last {
            true => (Word::LastTokenTimes(vectors), Extent::N(1)),
            false => (Word::U(0), Extent::Slots { used, by, more }),
        };
        let summed = self.partial_sums > 1;
        let (norm, eps) = self.norm.as_ref().map(|(w, eps)| (w, *eps)).unzip();
        Call::new("rows_f16")
            .number("WG", WG)
            .number("LANES", 1)
            .word("vectors", vectors)
            .word("first", first)
            .word_some("eps", eps)
            .word_some("partial_sums", summed.then_some(self.partial_sums))
            .word_some(
                "partial_stride",
                summed.then_some(self.max_tokens * self.used * vectors),
            )
            .bind("x", &self.x)
            .bind_some("other", self.other.as_ref().map(|other| &other.rows))
            .bind_some("tiles", self.other.as_ref().map(|other| &other.tiles))
            .bind_some("norm", norm)
            .bind_some("halves", self.halves.as_ref().map(|h| &h[0]))
            .bind_some("scales", self.halves.as_ref().map(|h| &h[1]))
            .bind_some("floats", self.floats.as_ref())
            .bind_some("residual", self.sum.as_ref().map(|sum| &sum[0]))
            .bind_some("sums", self.sum.as_ref().map(|sum| &sum[1]))
            .grid([rows, Extent::N(1), Extent::N(1)])
            .with_shape(self.cols.to_string())
    }
}

/// The f16 that the largest value of a row becomes: 2^14, a quarter of the range of f16.
const LARGEST: f32 = 16384.0;
/// A row whose largest value is not above this becomes 0.
const SMALLEST: f32 = 1e-30;

/// The rows of `x` (rows, cols) as halves (rows, cols) and scales (rows): value = scale * half. The largest half of a row is 2^14.
/// If `norm` gives a weight and an epsilon, the rows are RMS-normed first.
pub fn rows_f16(x: &[f32], cols: usize, norm: Option<(&[f32], f32)>) -> (Vec<f16>, Vec<f32>) {
    let (halves, scales): (Vec<_>, Vec<_>) = normed(x, norm)
        .par_chunks_exact(cols)
        .map(|row| {
            let largest = row.iter().fold(0.0f32, |most, v| most.max(v.abs()));
            if largest <= SMALLEST {
                return (vec![f16::ZERO; cols], 0.0);
            }
            let inverse = LARGEST / largest;
            let halves = row.iter().map(|v| f16::from_f32(v * inverse)).collect();
            (halves, largest / LARGEST)
        })
        .unzip();
    (halves.concat(), scales)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::testing::gpus;
    use crate::kernels::cases::rows_f16::cases;
    use crate::kernels::testing::{Rng, agree_everywhere, assert_close};

    #[test]
    fn scaled_halves_are_the_normed_rows() {
        let mut rng = Rng::fresh();
        let cols = 96;
        // Rows with values too large for f16, rows with values that it would round to 0, and a row of zeros.
        let sizes = [1e6f32, 1.0, 1e-7, 0.0, 1e-36];
        let x: Vec<f32> = sizes
            .iter()
            .flat_map(|size| rng.normals(cols).into_iter().map(move |v| v * size))
            .collect();
        let (halves, scales) = rows_f16(&x, cols, None);
        for (i, row) in x.chunks_exact(cols).enumerate().take(3) {
            let found: Vec<f32> = halves[i * cols..][..cols]
                .iter()
                .map(|h| h.to_f32() * scales[i])
                .collect();
            let exact: Vec<f64> = row.iter().map(|v| f64::from(*v)).collect();
            assert_close(&found, &exact, 1e-6, "row");
        }
        assert_eq!(scales[3..], [0.0, 0.0]);
        assert!(halves[3 * cols..].iter().all(|h| *h == f16::ZERO));
    }

    #[test]
    fn the_gpu_agrees_with_its_twin() {
        agree_everywhere(gpus(), |_| cases());
    }
}
