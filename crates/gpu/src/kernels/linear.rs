//! The common parts of the CPU twins: dot products, the RMS norm, and quantised rows times a batch of inputs.

use std::borrow::Cow;
use std::ops::Range;

use crate::model::Weight;
use crate::quant::dequantize_row;
use crate::quant::dot::Abreast;
use crate::team::Team;

/// Independent partial sums per dot product: two SSE or one AVX register, and a shorter chain of roundings than one sum.
const LANES: usize = 8;

/// Rows multiplied at once, so that an input is loaded once for all of them.
const ROWS: usize = 4;

/// The fewest weights of a task: enough to hide what handing it to a thread costs (a part of a microsecond).
const TASK_WEIGHTS: usize = 16 * 1024;

/// Rows of a task are a multiple of this many: of those that are multiplied at once.
const STRIP: usize = 8;

/// Tasks for each thread, so that one that is late leaves the others something to do meanwhile.
const TASKS: usize = 4;

/// The dot product of two vectors of one length, in f32, as 8 interleaved partial sums.
///
/// # Panics
/// If the lengths differ.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    dot_rows([a], b)[0]
}

/// Dot products of N rows with one input; each result has the bits [`dot`] would give.
fn dot_rows<const N: usize>(rows: [&[f32]; N], x: &[f32]) -> [f32; N] {
    let same = rows.iter().all(|row| row.len() == x.len());
    assert!(same, "dot product of vectors of different lengths");
    let split = rows.map(|row| row.as_chunks::<LANES>());
    let (x_chunks, x_rest) = x.as_chunks::<LANES>();
    let mut sums = [[0.0f32; LANES]; N];
    for (i, x) in x_chunks.iter().enumerate() {
        for (sum, (chunks, _)) in sums.iter_mut().zip(split) {
            let row = &chunks[i];
            for lane in 0..LANES {
                sum[lane] += row[lane] * x[lane];
            }
        }
    }
    let mut out = [0.0; N];
    for (n, (_, rest)) in split.iter().enumerate() {
        for (lane, (a, b)) in rest.iter().zip(x_rest).enumerate() {
            sums[n][lane] += a * b;
        }
        let s = &sums[n];
        out[n] = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
    }
    out
}

/// `x / sqrt(mean(x^2) + eps) * w` of one vector (Zhang and Sennrich 2019; ggml_rms_norm then a product).
///
/// # Panics
/// If `x` and `w` differ in length.
pub fn rms_norm(x: &[f32], w: &[f32], eps: f32) -> Vec<f32> {
    assert_eq!(
        x.len(),
        w.len(),
        "RMS norm of a vector with a weight of another length"
    );
    let scale = 1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt();
    x.iter().zip(w).map(|(x, w)| x * scale * w).collect()
}

/// `x`, its rows normed where `norm` gives a weight and an epsilon.
pub(super) fn normed<'a>(x: &'a [f32], norm: Option<(&[f32], f32)>) -> Cow<'a, [f32]> {
    match norm {
        Some((weight, eps)) => rms_norm_rows(x, weight, eps).into(),
        None => x.into(),
    }
}

/// RMS norm of every row of `x` (T, w.len()), row after row in the result.
pub fn rms_norm_rows(x: &[f32], w: &[f32], eps: f32) -> Vec<f32> {
    let mut out = vec![0.0; x.len()];
    let rows = x.chunks_exact(w.len()).zip(out.chunks_exact_mut(w.len()));
    Team::all().each(rows.collect(), |(row, out)| {
        out.copy_from_slice(&rms_norm(row, w, eps));
    });
    out
}

/// Products of some rows of a weight with a batch of inputs, (rows, inputs): w\[group\]\[rows\] . inputs.
///
/// A row is dequantised once, whatever the number of inputs.
///
/// # Panics
/// If an input is not `w.cols` wide.
pub fn rows_dot(w: &Weight, group: usize, rows: Range<usize>, inputs: &[&[f32]]) -> Vec<f32> {
    let n = inputs.len();
    let mut products = vec![0.0; rows.len() * n];
    let mut buffer = vec![0.0f32; ROWS * w.cols];
    let mut first = rows.start;
    for out in products.chunks_mut((ROWS * n).max(1)) {
        let count = out.len() / n;
        for (i, values) in buffer.chunks_exact_mut(w.cols).take(count).enumerate() {
            dequantize_row(w.ty, w.row(group, first + i), values);
        }
        // The last rows may be fewer. Then the rest of the buffer is multiplied as well, and not used.
        let rows = [0, 1, 2, 3].map(|i| &buffer[i * w.cols..][..w.cols]);
        for (j, x) in inputs.iter().enumerate() {
            for (i, y) in dot_rows(rows, x).into_iter().take(count).enumerate() {
                out[i * n + j] = y;
            }
        }
        first += count;
    }
    products
}

/// The inputs that a group of a weight multiplies.
pub(super) struct Batch {
    /// The head or the expert.
    pub group: usize,
    /// The numbers of the inputs.
    pub inputs: Vec<usize>,
    /// As many of the first inputs as are multiplied side by side.
    pub abreast: Vec<Abreast>,
    /// The number of each input's product in the output, in rows of a group.
    pub places: Vec<usize>,
}

/// The products of some batches with a weight of each group, or with several that are alike: `job` says with which.
pub(super) struct Share<'a, J> {
    pub job: J,
    pub batches: &'a [Batch],
    /// Rows and columns of a group.
    pub shape: [usize; 2],
    /// All rows of each place.
    pub out: &'a mut [f32],
}

/// Some rows of a batch's products.
struct Task<'a, J> {
    job: J,
    batch: &'a Batch,
    rows: Range<usize>,
    out: Outputs<'a>,
}

/// The rows of each input. A single one, as of a decoded token, needs no memory of its own.
enum Outputs<'a> {
    One([&'a mut [f32]; 1]),
    Many(Vec<&'a mut [f32]>),
}

/// All rows of each batch of all shares: `products` makes some rows of each input of a batch, in tasks for the threads of a team.
pub(super) fn in_tasks<J: Copy + Send>(
    shares: Vec<Share<'_, J>>,
    products: impl Fn(J, &Batch, Range<usize>, &mut [&mut [f32]]) + Sync,
) {
    let team = Team::all();
    let of_share = |share: &Share<'_, J>| share.batches.len() * share.shape[0] * share.shape[1];
    let weights: usize = shares.iter().map(of_share).sum();
    let of_task = TASK_WEIGHTS.max(weights / (TASKS * team.threads()));
    let mut tasks = vec![];
    for share in shares {
        let (job, [rows, cols]) = (share.job, share.shape);
        let block = (of_task / cols.max(1))
            .next_multiple_of(STRIP)
            .clamp(STRIP, rows.max(STRIP));
        let mut places: Vec<Option<&mut [f32]>> = share.out.chunks_mut(rows).map(Some).collect();
        for batch in share.batches {
            let taken = batch.places.iter().map(|&place| places[place].take());
            let mut rest: Vec<&mut [f32]> = taken.map(Option::unwrap_or_default).collect();
            for first in (0..rows).step_by(block) {
                let rows = first..(first + block).min(rows);
                let mut next = rest
                    .iter_mut()
                    .filter_map(|out| out.split_off_mut(..rows.len()));
                let out = match (batch.places.len(), next.next()) {
                    (1, Some(out)) => Outputs::One([out]),
                    (_, first) => Outputs::Many(first.into_iter().chain(next).collect()),
                };
                tasks.push(Task {
                    job,
                    batch,
                    rows,
                    out,
                });
            }
        }
    }
    team.each(tasks, |mut task| {
        let out = match &mut task.out {
            Outputs::One(out) => &mut out[..],
            Outputs::Many(out) => &mut out[..],
        };
        products(task.job, task.batch, task.rows, out);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{Rng, assert_close, exact_rows, random_weight};
    use crate::quant::GgmlType;

    #[test]
    fn dot_is_the_sum_of_products_at_any_length() {
        let mut rng = Rng::fresh();
        for len in (0..70).chain([576, 2048, 2049]) {
            let (a, b) = (rng.normals(len), rng.normals(len));
            let exact: f64 = a
                .iter()
                .zip(&b)
                .map(|(a, b)| f64::from(*a) * f64::from(*b))
                .sum();
            let size: f64 = a
                .iter()
                .zip(&b)
                .map(|(a, b)| (f64::from(*a) * f64::from(*b)).abs())
                .sum();
            assert!(
                (f64::from(dot(&a, &b)) - exact).abs() <= 1e-6 * size,
                "length {len}"
            );
        }
    }

    #[test]
    fn rows_in_fours_and_single_rows_have_the_same_bits() {
        let mut rng = Rng::fresh();
        let w = random_weight(&mut rng, GgmlType::Q4_0, 1, 7, 96);
        let (x, y) = (rng.normals(96), rng.normals(96));
        let all = rows_dot(&w, 0, 0..7, &[&x, &y]);
        for r in 0..7 {
            let one = rows_dot(&w, 0, r..r + 1, &[&y]);
            assert_eq!(one[0].to_bits(), all[r * 2 + 1].to_bits(), "row {r}");
        }
    }

    #[test]
    fn rows_are_dequantised_and_multiplied() {
        let mut rng = Rng::fresh();
        for ty in [GgmlType::F32, GgmlType::F16, GgmlType::Q5_1, GgmlType::Q6_K] {
            let w = random_weight(&mut rng, ty, 2, 10, 256);
            let x = rng.normals(256);
            let out = rows_dot(&w, 1, 3..8, &[&x]);
            assert_close(
                &out,
                &exact_rows(&w, 1, &x)[3..8],
                1e-12,
                "rows 3..8 of group 1",
            );
        }
    }

    #[test]
    fn rms_norm_divides_by_the_root_mean_square() {
        let mut rng = Rng::fresh();
        let (x, w, eps) = (rng.normals(515), rng.normals(515), 1e-5f32);
        let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / 515.0;
        let exact: Vec<f64> = x
            .iter()
            .zip(&w)
            .map(|(x, w)| f64::from(*x) * f64::from(*w) / (mean + f64::from(eps)).sqrt())
            .collect();
        assert_close(&rms_norm(&x, &w, eps), &exact, 1e-12, "RMS norm");
        // A zero vector stays zero: eps keeps the division finite.
        assert_eq!(rms_norm(&[0.0; 8], &[1.0; 8], eps), vec![0.0; 8]);
    }
}
