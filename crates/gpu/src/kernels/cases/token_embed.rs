//! Cases of the row of the vocabulary that a decoded token begins with.

use super::Case;
use super::lab::{Compared, Lab};
use super::places::places;
use crate::gpu::GpuError;
use crate::kernels::token_embed::{calls, token_embed};
use crate::model::Weight;
use crate::quant::GgmlType;

/// A token alone and in a batch. Its id is the first row of the last piece, just behind the rows of the piece before, if there are several.
pub(crate) fn compare(lab: &Lab<'_>, w: &Weight) -> Result<Vec<Compared>, GpuError> {
    let (rows, cols) = (w.rows, w.cols);
    let norm = lab.normals(cols);
    let weight = lab.load(w)?;
    let id = match &weight.pieces[..] {
        [.., _, last] => last.first_row,
        _ => lab.below(rows) as u32,
    };
    let (x, ..) = token_embed(w, id, &norm);
    let mut all = vec![];
    for place in places(lab, 3).0 {
        let mut history = lab.ids(200, rows);
        history[place.state.first_id as usize + 3] = id;
        let (y, left) = (lab.room(cols), lab.output(cols, Some(&norm)));
        let (sequences, ids) = (place.sequences.as_ref(), lab.given(&history));
        let calls = calls(sequences, &weight, &ids, &y, &left, lab.form());
        lab.run(calls, place.state)?;
        all.push(lab.floats(&y, &x, 1e-13)?);
        all.extend(lab.left(&left, Some(&norm), &x)?);
    }
    Ok(all)
}

pub(crate) fn cases() -> Vec<Case> {
    // Workgroups have 64 threads. The units of a row fill one, or they do not.
    let of_type = |&ty: &GgmlType| {
        let case = Case::new(format!("{ty} 37 rows"), move |lab| {
            let cols = lab.one_of(&[768, 2048]);
            compare(lab, &lab.weight(ty, [1, 37, cols]))
        });
        case.verified_if(ty == GgmlType::Q6_K)
    };
    GgmlType::ALL.iter().map(of_type).collect()
}
