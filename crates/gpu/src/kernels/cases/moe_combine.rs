//! Cases of the weighted sum of a token's slots in prompts, and rows that low or tall tiles left for it.

use super::Case;
use super::lab::{Compared, Lab, state};
use crate::gpu::GpuError;
use crate::gpu::buffer::Range;
use crate::kernels::expert_rows::Other;
use crate::kernels::moe_combine::{GpuMoeCombine, moe_combine};

/// Rows that low or `tall` tiles left, the buffer of the others no numbers; or those of tiles of one height.
pub(crate) fn left_by(lab: &Lab<'_>, data: &[f32], tall: Option<bool>) -> (Range, Option<Other>) {
    let (data, none) = (lab.given(data), lab.room(data.len()));
    let other = |rows: &Range, places: u32| {
        let (rows, tiles) = (rows.clone(), lab.given(&[0, 0, places, 0]));
        Some(Other { rows, tiles })
    };
    match tall {
        None => (data, None),
        Some(false) => (data, other(&none, 0)),
        Some(true) => (none, other(&data, 1)),
    }
}

fn compare(lab: &Lab<'_>, [used, rows, tokens]: [usize; 3]) -> Result<Vec<Compared>, GpuError> {
    let sizes = [tokens * used * rows, tokens * used, tokens * rows];
    let [mut slots, weights, residual] = sizes.map(|n| lab.normals(n));
    let mut twin = vec![0.0; tokens * rows];
    moe_combine(&slots, &weights, &residual, rows, &mut twin);
    let most = tokens + 1;
    slots.resize(most * used * rows, f32::NAN);
    let mut all = vec![];
    // In the one buffer, or in either of two.
    for tall in [None, Some(false), Some(true)] {
        let (slots, other) = left_by(lab, &slots, tall);
        let call = GpuMoeCombine {
            slots,
            other,
            weights: lab.padded(&weights, used, most),
            residual: lab.padded(&residual, rows, most),
            y: lab.room(most * rows),
            used: used as u32,
            rows: rows as u32,
        };
        lab.run(vec![call.call()], state(tokens, 0))?;
        all.push(lab.floats(&call.y, &twin, 1e-12)?);
    }
    Ok(all)
}

pub(crate) fn cases() -> Vec<Case> {
    let case = |of: [usize; 3]| {
        let [used, rows, tokens] = of;
        let name = format!("{used} of {rows}, {tokens} tokens");
        Case::new(name, move |lab| compare(lab, of)).verified_if(used == 4)
    };
    [[4, 2048, 5], [6, 2048, 3], [2, 36, 17], [1, 4, 1]]
        .map(case)
        .into()
}
