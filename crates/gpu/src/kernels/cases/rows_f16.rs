//! Cases of the rows of prompts: normed, as halves with scales and as floats.

use half::f16;

use super::Case;
use super::lab::{Compared, Lab, state};
use super::moe_combine::left_by;
use super::prepared::EPS;
use crate::gpu::GpuError;
use crate::gpu::buffer::Role;
use crate::kernels::linear::normed;
use crate::kernels::rows_f16::{GpuRowsF16, rows_f16};

/// Rows in sizes that differ much, and the weight of their norm.
struct Given {
    cols: usize,
    tokens: usize,
    /// Rows of a token.
    used: usize,
    /// Whether the rows of the last token alone are wanted.
    last: bool,
    /// Partial sums that are added up to the rows.
    partial_sums: usize,
    x: Vec<f32>,
    norm: Vec<f32>,
}

/// The rows that are asked for.
#[derive(Clone, Copy)]
struct Form {
    norm: bool,
    halves: bool,
    floats: bool,
    /// Whether the rows come from the tall one of two buffers, if there are two.
    tall: Option<bool>,
}

const fn form(norm: bool, halves: bool, floats: bool, tall: Option<bool>) -> Form {
    Form {
        norm,
        halves,
        floats,
        tall,
    }
}

const FORMS: [Form; 6] = [
    form(true, true, true, None),
    form(false, true, false, None),
    form(true, false, true, None),
    form(true, true, false, None),
    form(false, true, false, Some(false)),
    form(false, true, false, Some(true)),
];

/// Each row is compared by itself, because the sizes of rows differ by 10^10.
fn by_row(lab: &Lab<'_>, found: &[f32], exact: &[f32], cols: usize, limit: f64) -> Vec<Compared> {
    let rows = found.chunks_exact(cols).zip(exact.chunks_exact(cols));
    rows.map(|(found, exact)| lab.close(found, exact, limit))
        .collect()
}

fn wide(halves: &[f16], scales: &[f32], cols: usize) -> Vec<f32> {
    let rows = halves.chunks_exact(cols).zip(scales);
    let rows = rows.flat_map(|(row, scale)| row.iter().map(move |h| h.to_f32() * scale));
    rows.collect()
}

impl Given {
    fn compare(&self, lab: &Lab<'_>, form: Form) -> Result<Vec<Compared>, GpuError> {
        let (cols, used) = (self.cols, self.used);
        // With two buffers to choose from there are no partial sums.
        let partial_sums = if form.tall.is_some() {
            1
        } else {
            self.partial_sums
        };
        let most = self.tokens + 1;
        let all = most * used;
        let [halves, scales, floats] = [all * cols / 2, all, all * cols].map(|n| lab.room(n));
        let mut padded = self.x.clone();
        padded.resize(all * cols, f32::NAN);
        // The first partial sum, or the residual if there is one, has the whole value, and the others are 0. So adding up is exact.
        let sum = (partial_sums > 3).then(|| [lab.given(&padded), lab.room(padded.len())]);
        let none = vec![0.0; padded.len()];
        let mut in_parts = if sum.is_some() { none.clone() } else { padded };
        (1..partial_sums).for_each(|_| in_parts.extend(&none));
        let (x, other) = left_by(lab, &in_parts, form.tall);
        let call = GpuRowsF16 {
            x,
            other,
            partial_sums: partial_sums as u32,
            cols: cols as u32,
            norm: form.norm.then(|| (lab.given(&self.norm), EPS)),
            halves: form
                .halves
                .then(|| [halves.clone().holding(Role::Halves), scales.clone()]),
            floats: form.floats.then(|| floats.clone()),
            max_tokens: most as u32,
            used: used as u32,
            sum: sum.clone(),
            last: self.last,
        };
        lab.run(vec![call.call()], state(self.tokens, 0))?;
        let from = if self.last {
            (self.tokens - 1) * cols
        } else {
            0
        };
        let (x, norm) = (&self.x[from..], form.norm.then_some((&self.norm[..], EPS)));
        let exact = normed(x, norm);
        let mut compared = vec![];
        if form.halves {
            let (twin, of_twin) = rows_f16(x, cols, norm);
            let found: Vec<f16> = lab.read(&halves, x.len())?;
            let of_found: Vec<f32> = lab.read(&scales, x.len() / cols)?;
            for (halves, scales) in [(&twin, &of_twin), (&found, &of_found)] {
                let values = wide(halves, scales, cols);
                compared.extend(by_row(lab, &values, &exact, cols, 2e-7));
            }
        }
        if let Some([_, sums]) = &sum {
            compared.push(lab.same(sums, x)?);
        }
        if form.floats {
            let found: Vec<f32> = lab.read(&floats, x.len())?;
            compared.extend(by_row(lab, &found, &exact, cols, 1e-11));
        }
        Ok(compared)
    }
}

pub(crate) fn cases() -> Vec<Case> {
    let sizes = [
        (2048, 3, 1, false, 1),
        (10_944, 2, 1, false, 1),
        (1408, 5, 6, false, 2),
        (32, 1, 1, false, 1),
        (2048, 3, 1, true, 1),
        (768, 9, 1, false, 4),
    ];
    let case = |(cols, tokens, used, last, partial_sums)| {
        let name = format!("{tokens}x{used} rows of {cols}, {partial_sums} sums, last: {last}");
        let case = Case::new(name, move |lab| {
            // A row of zeros has no scale. In the others one value is far larger than the rest. A scale that
            // ignores it would make it too large for a half.
            let row = |size: f32| {
                let mut row = lab.normals(cols);
                row[lab.below(cols)] *= 50.0;
                row.into_iter().map(move |v| v * size)
            };
            let sizes = [1e6, 1.0, 1e-4, 0.0].into_iter().cycle();
            let given = Given {
                cols,
                tokens,
                used,
                last,
                partial_sums,
                x: sizes.take(tokens * used).flat_map(row).collect(),
                norm: lab.normals(cols),
            };
            let mut all = vec![];
            for form in FORMS {
                all.extend(given.compare(lab, form)?);
            }
            Ok(all)
        });
        case.verified_if(cols == 2048 && !last)
    };
    sizes.map(case).into()
}
