//! Cases of the rows of the vocabulary that tokens begin with.

use super::Case;
use super::lab::{Compared, Lab, state};
use super::places::Pages;
use crate::gpu::GpuError;
use crate::kernels::embed::{calls, embed};
use crate::model::Weight;
use crate::quant::GgmlType;

/// Tokens of one sequence. One id is the first row of a piece, just behind the rows of the piece before.
pub(crate) fn compare(lab: &Lab<'_>, w: &Weight) -> Result<Vec<Compared>, GpuError> {
    let weight = lab.load(w)?;
    let mut history = lab.ids(20, w.rows);
    let (pos, tokens) = (lab.below(10), 1 + lab.below(8));
    history[pos] = weight.pieces[lab.below(weight.pieces.len())].first_row;
    let mut twin = vec![0.0; tokens * w.cols];
    embed(w, &history[pos..pos + tokens], &mut twin);
    let out = lab.room(8 * w.cols);
    let calls = calls(None, &weight, &lab.given(&history), &out);
    lab.run(calls, state(tokens, pos))?;
    // No sum: only the rounding of scale times code, which a compiler may fuse.
    Ok(vec![lab.floats(&out, &twin, 1e-13)?])
}

/// Tokens of several sequences, in one step and each alone.
fn by_sequence(lab: &Lab<'_>) -> Result<Vec<Compared>, GpuError> {
    let (pages, cols) = (Pages::new(lab, 32, &[40, 1, 33, 32]), 64);
    let w = lab.weight(GgmlType::Q4_0, [1, 50, cols]);
    let history = lab.ids(pages.ids(), 50);
    let tokens = pages.tokens();
    let ids: Vec<u32> = (0..tokens).map(|t| history[pages.id(t)]).collect();
    let mut twin = vec![f32::NAN; ids.len() * cols];
    embed(&w, &ids, &mut twin);
    let (weight, history) = (lab.load(&w)?, lab.given(&history));
    let out = lab.room(twin.len());
    let longest = pages.n_ctx - 2;
    let sequences = pages.without_slices(lab);
    let together = calls(Some(&sequences), &weight, &history, &out);
    lab.run(together, state(tokens, longest - tokens))?;
    let mut all = vec![lab.floats(&out, &twin, 1e-13)?];
    for (t, row) in twin.chunks_exact(cols).enumerate() {
        let (sequences, state) = pages.alone(lab, t, 16);
        let out = lab.room(cols);
        lab.run(calls(Some(&sequences), &weight, &history, &out), state)?;
        all.push(lab.floats(&out, row, 1e-13)?);
    }
    Ok(all)
}

pub(crate) fn cases() -> Vec<Case> {
    let case = |ty: GgmlType, rows, cols| {
        let name = format!("{ty} {rows}x{cols}");
        Case::new(name, move |lab| {
            compare(lab, &lab.weight(ty, [1, rows, cols]))
        })
    };
    let mut all: Vec<_> = GgmlType::ALL.iter().map(|&ty| case(ty, 37, 256)).collect();
    all.push(case(GgmlType::Q4_K, 301, 2048).verified());
    all.push(Case::new("q4_0 50x64, 4 sequences", by_sequence));
    all
}
