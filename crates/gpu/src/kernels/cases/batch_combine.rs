//! Cases of the end of a layer in steps of a few tokens: sums, norm and preparation.

use super::Case;
use super::lab::{Compared, Lab, state};
use super::prepared::EPS;
use crate::gpu::GpuError;
use crate::kernels::batch_combine::{GpuBatchCombine, batch_combine};

fn compare(lab: &Lab<'_>, [used, rows, tokens]: [usize; 3]) -> Result<Vec<Compared>, GpuError> {
    let sizes = [tokens * used * rows, tokens * used, tokens * rows, rows];
    let [slots, weights, residual, norm] = sizes.map(|n| lab.normals(n));
    let [sums, normed] = batch_combine(&slots, &weights, &residual, &norm, EPS);
    let (x, left) = (lab.room(sums.len()), lab.output(sums.len(), None));
    let call = GpuBatchCombine {
        slots: (used > 0).then(|| [lab.given(&slots), lab.given(&weights)]),
        used: used as u32,
        residual: lab.given(&residual),
        x: Some(x.clone()),
        norm: (lab.given(&norm), EPS),
        values: left.values.clone(),
        activation: lab.form(),
        rows: rows as u32,
    };
    lab.run(vec![call.call()], state(tokens, 0))?;
    let mut all = lab.left(&left, None, &normed)?;
    all.push(lab.floats(&x, &sums, 1e-12)?);
    Ok(all)
}

pub(crate) fn cases() -> Vec<Case> {
    let case = |of: [usize; 3]| {
        let [used, rows, tokens] = of;
        let name = format!("{used} of {rows}, {tokens} tokens");
        Case::new(name, move |lab| compare(lab, of)).verified_if(used == 4)
    };
    [[4, 2048, 5], [6, 2048, 3], [0, 2048, 9], [2, 96, 17]]
        .map(case)
        .into()
}
