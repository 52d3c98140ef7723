//! The inputs of [`gemm`](super::gemm): normed rows as f16 with a scale each, or as they are.

use half::f16;
use rayon::prelude::*;

use super::MAX_GRID;
use super::linear::rms_norm_rows;
use crate::gpu::pipeline::Spec;
use crate::gpu::record::{Extent, Op, Range, Word, accesses};
use crate::gpu::shader::Variant;

/// What the largest value of a row becomes as f16: 2^14, a quarter of the largest that there is.
const LARGEST: f32 = 16384.0;
/// Rows of which the largest value is smaller become 0.
const SMALLEST: f32 = 1e-30;

/// Rows of `x` (rows, cols), RMS-normed where a weight and epsilon are given, as halves (rows, cols) and scales (rows):
/// value = scale * half, and the largest half of a row is 2^14.
pub fn rows_f16(x: &[f32], cols: usize, norm: Option<(&[f32], f32)>) -> (Vec<f16>, Vec<f32>) {
    let normed;
    let x = match norm {
        None => x,
        Some((weight, eps)) => {
            normed = rms_norm_rows(x, weight, eps);
            normed.as_slice()
        }
    };
    x.par_chunks_exact(cols)
        .map(|row| {
            let largest = row.iter().fold(0.0f32, |most, v| most.max(v.abs()));
            if largest <= SMALLEST {
                return (vec![f16::ZERO; cols], 0.0);
            }
            let inverse = LARGEST / largest;
            let halves = row.iter().map(|v| f16::from_f32(v * inverse)).collect();
            (halves, largest / LARGEST)
        })
        .collect::<Vec<(Vec<f16>, f32)>>()
        .into_iter()
        .fold(
            (vec![], vec![]),
            |(mut halves, mut scales), (row, scale)| {
                halves.extend(row);
                scales.push(scale);
                (halves, scales)
            },
        )
}

/// Threads of a workgroup.
const WG: u32 = 128;

/// The pipeline: with a norm or without, to halves, floats or both.
pub(super) fn spec(norm: bool, half: bool, float: bool) -> Spec {
    let access = [
        "r",
        if norm { "r" } else { "" },
        if half { "ww" } else { "" },
    ];
    Spec {
        kernel: "rows_f16",
        source: include_str!("../../wgsl/rows_f16.wgsl"),
        variant: Variant::default()
            .number("WG", WG)
            .number("LANES", 1)
            .flag("NORM", norm)
            .flag("HALF", half)
            .flag("FLOAT", float),
        access: accesses(&(access.concat() + if float { "w" } else { "" })),
    }
}

/// [`rows_f16`] on the device.
pub struct GpuRowsF16 {
    /// The rows, (max_tokens * used, cols) f32.
    pub x: Range,
    /// Values of a row, a multiple of 4.
    pub cols: u32,
    /// RMS norm first: its weight (cols) and epsilon.
    pub norm: Option<(Range, f32)>,
    /// Where the halves (max_tokens * used, cols) and scales (max_tokens * used) go.
    pub halves: Option<[Range; 2]>,
    /// Where the floats (max_tokens * used, cols) go.
    pub floats: Option<Range>,
    /// Most tokens of a replay.
    pub max_tokens: u32,
    /// Rows of a token.
    pub used: u32,
}

impl GpuRowsF16 {
    /// The dispatch.
    ///
    /// # Panics
    /// If a buffer is too small for the sizes, which would let the kernel index beyond it, or nothing is asked for.
    pub fn op(&self) -> Op {
        let rows = u64::from(self.max_tokens) * u64::from(self.used);
        let values = rows * u64::from(self.cols);
        assert!(
            self.cols.is_multiple_of(4) && rows <= u64::from(MAX_GRID),
            "{rows} rows of {} values",
            self.cols
        );
        assert!(self.x.size >= values * 4, "rows of {} values", self.cols);
        let mut bindings = vec![self.x.clone()];
        if let Some((norm, _)) = &self.norm {
            assert!(norm.size >= u64::from(self.cols) * 4, "norm of rows");
            bindings.push(norm.clone());
        }
        if let Some([halves, scales]) = &self.halves {
            assert!(
                halves.size >= values * 2 && scales.size >= rows * 4,
                "halves and scales of {rows} rows"
            );
            bindings.extend([halves.clone(), scales.clone()]);
        }
        if let Some(floats) = &self.floats {
            assert!(floats.size >= values * 4, "floats of {rows} rows");
            bindings.push(floats.clone());
        }
        assert!(
            self.halves.is_some() || self.floats.is_some(),
            "rows for nobody"
        );
        let spec = spec(
            self.norm.is_some(),
            self.halves.is_some(),
            self.floats.is_some(),
        );
        let eps = self.norm.as_ref().map_or(0.0, |(_, eps)| *eps);
        let along_rows = Extent::Slots {
            used: self.used,
            by: 1,
            more: 0,
        };
        Op::new(
            spec,
            bindings,
            vec![Word::U(self.cols / 4), Word::F(eps)],
            [along_rows, Extent::N(1), Extent::N(1)],
        )
        .with_shape(self.cols.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::record::State;
    use crate::gpu::testing::{download, gpus, output, padded, run, upload};
    use crate::kernels::testing::{Rng, assert_close};

    #[test]
    fn scaled_halves_are_the_normed_rows() {
        let mut rng = Rng::fresh();
        let cols = 96;
        // From values that f16 cannot hold to values that it would lose; one row of zeros.
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
        let mut rng = Rng::fresh();
        for gpu in gpus() {
            for (cols, n_tokens, used) in [(2048, 3, 1), (10_944, 2, 1), (1408, 5, 6), (32, 1, 1)] {
                let rows = n_tokens * used;
                let x: Vec<f32> = (0..rows)
                    .flat_map(|i| {
                        let size = [1e6, 1.0, 1e-4][i % 3];
                        rng.normals(cols).into_iter().map(move |v| v * size)
                    })
                    .collect();
                let norm = rng.normals(cols);
                for (with_norm, half, float) in [
                    (true, true, true),
                    (false, true, false),
                    (true, false, true),
                    (true, true, false),
                ] {
                    let max_tokens = n_tokens as u32 + 1;
                    let all = (max_tokens as usize) * used;
                    let outputs = [all * cols / 2, all, all * cols].map(|n| output(gpu, n));
                    let [halves, scales, floats] = &outputs;
                    let op = GpuRowsF16 {
                        x: Range::whole(&upload(gpu, &padded(&x, used * cols, max_tokens))),
                        cols: cols as u32,
                        norm: with_norm.then(|| (Range::whole(&upload(gpu, &norm)), 1e-5)),
                        halves: half.then(|| [halves, scales].map(Range::whole)),
                        floats: float.then(|| Range::whole(floats)),
                        max_tokens,
                        used: used as u32,
                    }
                    .op();
                    let state = State {
                        tokens: n_tokens as u32,
                        ..State::default()
                    };
                    run(gpu, &[op], &state);
                    let twin_norm = with_norm.then_some((norm.as_slice(), 1e-5));
                    let exact: Vec<f64> = match twin_norm {
                        Some((weight, eps)) => rms_norm_rows(&x, weight, eps),
                        None => x.clone(),
                    }
                    .iter()
                    .map(|v| f64::from(*v))
                    .collect();
                    let what = format!("{} {cols} {with_norm}", gpu.tier.name());
                    if half {
                        let (twin, twin_scales) = rows_f16(&x, cols, twin_norm);
                        let found: Vec<f16> = download(gpu, halves, rows * cols);
                        let found_scales: Vec<f32> = download(gpu, scales, rows);
                        let value = |halves: &[f16], scales: &[f32]| -> Vec<f32> {
                            let halves = halves.chunks_exact(cols).zip(scales);
                            halves
                                .flat_map(|(row, scale)| {
                                    row.iter().map(move |h| h.to_f32() * scale)
                                })
                                .collect()
                        };
                        // Each row by itself: rows differ in size by 10^10.
                        for r in 0..rows {
                            let found = value(&found[r * cols..][..cols], &found_scales[r..]);
                            let exact = &exact[r * cols..][..cols];
                            assert_close(&found, exact, 2e-7, &what);
                            let twin = value(&twin[r * cols..][..cols], &twin_scales[r..]);
                            assert_close(&twin, exact, 2e-7, &what);
                        }
                    }
                    if float {
                        let found: Vec<f32> = download(gpu, floats, rows * cols);
                        for (found, exact) in found.chunks_exact(cols).zip(exact.chunks_exact(cols))
                        {
                            assert_close(found, exact, 1e-11, &what);
                        }
                    }
                }
            }
        }
    }
}
