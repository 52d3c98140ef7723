//! Matrix times vector, for any weight and any number of tokens: the norm before and the residual after included.

use rayon::prelude::*;

use super::linear::{rms_norm_rows, rows_dot, task_rows};
use crate::model::Weight;

/// What surrounds a product: how the input lies, what happens to it first, what is added last.
#[derive(Debug, Clone, Copy)]
pub struct MatvecOptions<'a> {
    /// RMS norm of each input row first: its weight (cols) and epsilon. Only for weights of one group.
    pub norm: Option<(&'a [f32], f32)>,
    /// Added to the output, (T, groups * rows).
    pub residual: Option<&'a [f32]>,
    /// Floats from one token's input to the next.
    pub x_stride: usize,
    /// Floats from one group's input to the next: 0 where all groups read the same.
    pub x_group_stride: usize,
}

impl<'a> MatvecOptions<'a> {
    /// The input is (T, cols), nothing before, nothing after.
    pub fn contiguous(cols: usize) -> Self {
        MatvecOptions {
            norm: None,
            residual: None,
            x_stride: cols,
            x_group_stride: 0,
        }
    }

    /// The input is (T, stride), and group g (a head) reads `cols` values from `g * group_stride` on.
    pub fn per_group(stride: usize, group_stride: usize) -> Self {
        MatvecOptions {
            norm: None,
            residual: None,
            x_stride: stride,
            x_group_stride: group_stride,
        }
    }

    /// The same with an RMS norm of the input.
    pub fn with_norm(self, weight: &'a [f32], eps: f32) -> Self {
        MatvecOptions {
            norm: Some((weight, eps)),
            ..self
        }
    }

    /// The same with `residual` (T, groups * rows) added.
    pub fn with_residual(self, residual: &'a [f32]) -> Self {
        MatvecOptions {
            residual: Some(residual),
            ..self
        }
    }
}

/// `out` (T, groups * rows): out\[t\]\[g\]\[r\] = w\[g\]\[r\] . norm(x\[t * x_stride + g * x_group_stride ..\]\[..cols\]) + residual.
///
/// # Panics
/// If a size does not fit the others: sizes come from a checked [`Model`](crate::model::Model), never from input.
pub fn matvec(w: &Weight, x: &[f32], n_tokens: usize, options: MatvecOptions<'_>, out: &mut [f32]) {
    let rows = w.groups * w.rows;
    assert_eq!(
        out.len(),
        n_tokens * rows,
        "output of {} for {n_tokens} tokens",
        w.name
    );
    if n_tokens == 0 {
        return;
    }
    let normed;
    let (x, stride) = match options.norm {
        None => (x, options.x_stride),
        Some((weight, eps)) => {
            assert_eq!(
                (w.groups, options.x_stride),
                (1, w.cols),
                "norm before {}: one contiguous input",
                w.name
            );
            normed = rms_norm_rows(&x[..n_tokens * w.cols], weight, eps);
            (normed.as_slice(), w.cols)
        }
    };

    // Tasks write (row, token); the result is (token, row), so that one task never writes between another's rows.
    let block = task_rows(w.cols).min(w.rows);
    let tasks: Vec<(usize, usize)> = (0..w.groups)
        .flat_map(|group| (0..w.rows).step_by(block).map(move |row| (group, row)))
        .collect();
    let products: Vec<Vec<f32>> = tasks
        .par_iter()
        .map(|&(group, first)| {
            let inputs: Vec<&[f32]> = (0..n_tokens)
                .map(|t| &x[t * stride + group * options.x_group_stride..][..w.cols])
                .collect();
            let rows = first..(first + block).min(w.rows);
            let mut products = vec![0.0; rows.len() * n_tokens];
            rows_dot(w, group, rows, &inputs, &mut products);
            products
        })
        .collect();
    for (&(group, first), products) in tasks.iter().zip(&products) {
        for (i, row) in products.chunks_exact(n_tokens).enumerate() {
            for (t, y) in row.iter().enumerate() {
                out[t * rows + group * w.rows + first + i] = *y;
            }
        }
    }
    if let Some(residual) = options.residual {
        assert_eq!(residual.len(), out.len(), "residual of {}", w.name);
        out.iter_mut().zip(residual).for_each(|(y, r)| *y += r);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::linear::rms_norm;
    use crate::kernels::testing::{Rng, assert_close, exact_rows, random_weight};
    use crate::quant::GgmlType;

    #[test]
    fn plain_product_with_norm_and_residual() {
        let mut rng = Rng::fresh();
        for (ty, rows, cols, n_tokens) in [
            (GgmlType::Q4_K, 301, 512, 3),
            (GgmlType::Q8_0, 5, 96, 1),
            (GgmlType::F32, 64, 32, 17),
        ] {
            let w = random_weight(&mut rng, ty, 1, rows, cols);
            let (x, norm) = (rng.normals(n_tokens * cols), rng.normals(cols));
            let residual = rng.normals(n_tokens * rows);
            let mut out = vec![f32::NAN; n_tokens * rows];
            let options = MatvecOptions::contiguous(cols)
                .with_norm(&norm, 1e-6)
                .with_residual(&residual);
            matvec(&w, &x, n_tokens, options, &mut out);
            for t in 0..n_tokens {
                let input = rms_norm(&x[t * cols..][..cols], &norm, 1e-6);
                let exact: Vec<f64> = exact_rows(&w, 0, &input)
                    .iter()
                    .zip(&residual[t * rows..])
                    .map(|(y, r)| y + f64::from(*r))
                    .collect();
                assert_close(&out[t * rows..][..rows], &exact, 1e-12, "token");
            }
        }
    }

    #[test]
    fn each_head_reads_its_own_slice() {
        let mut rng = Rng::fresh();
        // Heads of nope 64 + rope 32: only the first 64 of each 96 are multiplied.
        let (heads, rows, cols, head, n_tokens) = (3, 80, 64, 96, 4);
        let w = random_weight(&mut rng, GgmlType::Q5_0, heads, rows, cols);
        let x = rng.normals(n_tokens * heads * head);
        let mut out = vec![f32::NAN; n_tokens * heads * rows];
        matvec(
            &w,
            &x,
            n_tokens,
            MatvecOptions::per_group(heads * head, head),
            &mut out,
        );
        for t in 0..n_tokens {
            for h in 0..heads {
                let exact = exact_rows(&w, h, &x[(t * heads + h) * head..][..cols]);
                assert_close(
                    &out[(t * heads + h) * rows..][..rows],
                    &exact,
                    1e-12,
                    "head",
                );
            }
        }
    }

    #[test]
    fn a_batch_has_the_bits_of_single_tokens() {
        let mut rng = Rng::fresh();
        let w = random_weight(&mut rng, GgmlType::Q4_0, 1, 130, 288);
        let x = rng.normals(6 * 288);
        let mut batch = vec![0.0; 6 * 130];
        matvec(&w, &x, 6, MatvecOptions::contiguous(288), &mut batch);
        for t in 0..6 {
            let mut one = vec![0.0; 130];
            matvec(
                &w,
                &x[t * 288..][..288],
                1,
                MatvecOptions::contiguous(288),
                &mut one,
            );
            assert_eq!(one, batch[t * 130..][..130]);
        }
    }
}
