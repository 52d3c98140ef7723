//! `--precompose`: two consecutive weights of a block, multiplied when a model is loaded.

use super::Weight;
use crate::gguf::GgufError;
use crate::quant::repack::{has_codes, plane_bytes};
use crate::quant::{GgmlType, dequantize_row, quantize_row};
use rayon::prelude::*;

/// Two weights of an attention with nothing between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pair {
    /// The query's projection, and the weight that takes its heads to where the keys are.
    Qk,
    /// The weight that makes the values of the heads, and the output of the attention.
    Vo,
}

impl Pair {
    /// Every pair.
    pub const ALL: [Self; 2] = [Self::Qk, Self::Vo];
}

/// The two weights of a pair in one block. For each head the rows of `right` are multiplied by columns of `left`.
pub struct Factors<'a> {
    /// The second weight: its heads are its groups, or lie beside each other in its rows.
    pub left: &'a Weight,
    /// The first weight, with the rows of one head after the other.
    pub right: &'a Weight,
    /// Query heads.
    pub heads: usize,
    /// Rows at the end of each head of `right` that the product keeps as they are, behind all its others.
    pub kept: usize,
}

impl Factors<'_> {
    /// Terms of a sum.
    fn depth(&self) -> usize {
        self.right.groups * self.right.rows / self.heads - self.kept
    }

    /// The type of the product, its rows and its columns. Half a step of Q8_0 is a fourth of a percent of the largest of 32 weights, less than
    /// factors of 4 to 6 bits are off. Floats stay floats, so that nothing is quantised unasked.
    pub fn shape(&self) -> (GgmlType, usize, usize) {
        let ty = match has_codes(self.left.ty) || has_codes(self.right.ty) {
            true => GgmlType::Q8_0,
            false => GgmlType::F16,
        };
        let rows = self.left.groups * self.left.rows + self.heads * self.kept;
        (ty, rows, self.left.cols / self.depth() * self.right.cols)
    }

    /// Bytes of the product on a device.
    pub fn bytes(&self) -> u64 {
        let (ty, rows, cols) = self.shape();
        let (quants, scales) = plane_bytes(ty, rows, cols);
        (quants + scales) as u64
    }

    /// The product, summed in f32. It is zero if the factors have no bytes.
    ///
    /// # Errors
    /// [`GgufError::Read`].
    pub fn product(&self) -> Result<Weight, GgufError> {
        let (ty, rows, cols) = self.shape();
        let row_bytes = ty.row_bytes(cols).unwrap_or(0);
        let mut bytes = vec![0; rows * row_bytes];
        if self.left.has_data() {
            let values = self.multiply(rows * cols)?;
            let each = bytes.par_chunks_exact_mut(row_bytes);
            let each = each.zip(values.par_chunks_exact(cols));
            each.for_each(|(bytes, row)| quantize_row(ty, row, bytes));
        }
        Ok(Weight::from_bytes("product", ty, 1, rows, cols, bytes))
    }

    /// The values of the product, of which there are `n`.
    fn multiply(&self, n: usize) -> Result<Vec<f32>, GgufError> {
        let mut out = vec![0.0; n];
        let (left, right) = (values(self.left)?, values(self.right)?);
        let (depth, width) = (self.depth(), self.right.cols);
        let (beside, head_values) = (self.left.cols / depth, (depth + self.kept) * width);
        let (sums, kept) = out.split_at_mut(left.len() / depth * width);
        let sums = sums.par_chunks_exact_mut(width).enumerate();
        let each = sums.zip(left.par_chunks_exact(depth));
        each.for_each(|((i, sums), factors)| {
            let head = i % beside + i / (self.left.rows * beside);
            let terms = right[head * head_values..].chunks_exact(width);
            for (terms, factor) in terms.zip(factors) {
                let sums = sums.iter_mut().zip(terms);
                sums.for_each(|(sum, term)| *sum += factor * term);
            }
        });
        let heads = right.chunks_exact(head_values);
        let kept = kept.chunks_exact_mut((self.kept * width).max(1));
        kept.zip(heads)
            .for_each(|(kept, head)| kept.copy_from_slice(&head[depth * width..]));
        Ok(out)
    }
}

/// All values of a weight, by rows of one group after the other.
fn values(weight: &Weight) -> Result<Vec<f32>, GgufError> {
    let rows = weight.groups * weight.rows;
    let (mut values, mut scratch) = (vec![0.0; rows * weight.cols], vec![]);
    let bytes = weight.read_rows(0..rows, &mut scratch)?;
    let rows = bytes.par_chunks_exact(weight.row_bytes());
    let each = rows.zip(values.par_chunks_exact_mut(weight.cols));
    each.for_each(|(bytes, row)| dequantize_row(weight.ty, bytes, row));
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_agree_with_their_formula() {
        // Small whole numbers, which F16 holds exactly.
        let left = |i: usize| (i * 7 % 5) as f32 - 2.0;
        let right = |i: usize| (i * 11 % 7) as f32 - 3.0;
        let weight = |at: &dyn Fn(usize) -> f32, [groups, rows, cols]: [usize; 3]| {
            let values: Vec<f32> = (0..groups * rows * cols).map(at).collect();
            let bytes = bytemuck::cast_slice::<_, u8>(&values).to_vec();
            Weight::from_bytes("whole numbers", GgmlType::F32, groups, rows, cols, bytes)
        };
        let (heads, rows, depth, width) = (3, 5, 32, 64);
        // The heads of the left factor lie below each other, or beside each other.
        for (kept, of_left) in [(4, [heads, rows, depth]), (0, [1, rows, heads * depth])] {
            let factors = Factors {
                left: &weight(&left, of_left),
                right: &weight(&right, [heads, depth + kept, width]),
                heads,
                kept,
            };
            let product = values(&factors.product().expect("its bytes")).expect("its bytes");
            assert_eq!(product.len(), heads * (rows + kept) * width);
            for (i, found) in product.into_iter().enumerate() {
                let (at, column) = (i / width, i % width);
                let right = |head, j| right((head * (depth + kept) + j) * width + column);
                let expected = match at.checked_sub(heads * rows) {
                    Some(i) => right(i / kept, depth + i % kept),
                    None => {
                        let head = if kept > 0 { at / rows } else { at % heads };
                        let terms = (0..depth).map(|j| left(at * depth + j) * right(head, j));
                        terms.sum()
                    }
                };
                assert_eq!(found, expected, "{i}, {kept} rows kept");
            }
        }
    }
}
