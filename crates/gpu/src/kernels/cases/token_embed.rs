//! Cases of the row of the vocabulary that a decoded token begins with.

use super::Case;
use super::lab::{Compared, Lab, state};
use super::places::{Pages, places};
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
        let calls = calls((sequences, 1), &weight, &ids, &y, &left, lab.form());
        lab.run(calls, place.state)?;
        all.push(lab.floats(&y, &x, 1e-13)?);
        all.extend(lab.left(&left, Some(&norm), &x)?);
    }
    Ok(all)
}

/// Tokens of several sequences, each of which has a row of its own.
fn of_several(lab: &Lab<'_>, w: &Weight) -> Result<Vec<Compared>, GpuError> {
    let (rows, cols) = (w.rows, w.cols);
    let norm = lab.normals(cols);
    let pages = Pages::new(lab, 32, &[3, 40, 1]);
    let (tokens, weight) = (pages.tokens(), lab.load(w)?);
    let history = lab.ids(pages.ids(), rows);
    let row = |t: usize| token_embed(w, history[pages.id(t)], &norm).0;
    let twin: Vec<f32> = (0..tokens).flat_map(row).collect();
    let (y, left) = (
        lab.room(tokens * cols),
        lab.output(tokens * cols, Some(&norm)),
    );
    let (sequences, ids) = (pages.without_slices(lab), lab.given(&history));
    let of = (Some(&sequences), tokens as u32);
    let calls = calls(of, &weight, &ids, &y, &left, lab.form());
    lab.run(calls, state(tokens, 0))?;
    let mut all = vec![lab.floats(&y, &twin, 1e-13)?];
    all.extend(lab.left(&left, Some(&norm), &twin)?);
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
    let mut all: Vec<_> = GgmlType::ALL.iter().map(of_type).collect();
    // Units of a token that fill no block of halves, and those that do.
    all.extend([768, 2048, 544].map(|cols| {
        let name = format!("q8_0 37x{cols}, tokens");
        Case::new(name, move |lab| {
            of_several(lab, &lab.weight(GgmlType::Q8_0, [1, 37, cols]))
        })
    }));
    all
}
