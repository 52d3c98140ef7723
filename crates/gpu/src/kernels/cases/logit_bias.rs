//! Cases of biases of the logits of rows.

use super::Case;
use super::lab::{Compared, Lab, state};
use crate::gpu::GpuError;
use crate::gpu::call::{Extent, State};
use crate::kernels::logit_bias::{Biases, MOST, NONE, Row, call, logit_bias};

/// Random biases of some tokens, the first and the last among them, some of them several times, and of tokens that are none. That of the first
/// is never 0, so that something changes.
fn biases(lab: &Lab<'_>, vocab: usize, count: usize) -> Row {
    let mut biases = vec![];
    for i in 0..count {
        let token = match i {
            0 => 0,
            1 => vocab - 1,
            2 => vocab + lab.below(9),
            _ => lab.below(vocab),
        };
        let bias = match lab.below(2) {
            _ if i == 0 => lab.one_of(&[f32::NEG_INFINITY, 100.0, -100.0]),
            0 => lab.one_of(&[f32::NEG_INFINITY, 0.0, 100.0, -100.0]),
            _ => lab.normals(1)[0],
        };
        biases.push((token as u32, bias));
        if bias.is_finite() && lab.below(3) == 0 {
            biases.push((token as u32, 1.5));
        }
    }
    Biases::new(&biases).map_or(NONE, |biases| biases.row())
}

fn compare(lab: &Lab<'_>, vocab: usize, most: usize) -> Result<Vec<Compared>, GpuError> {
    let rows = 1 + lab.below(most);
    let logits = lab.normals(rows * vocab);
    // The first row has biases.
    let count = |row| match row {
        0 => lab.one_of(&[3, MOST]),
        _ => lab.one_of(&[0, 3, MOST, lab.below(MOST)]),
    };
    let given = (0..rows).map(|row| biases(lab, vocab, count(row)));
    let given: Vec<Row> = given.collect();
    let mut twin = logits.clone();
    for (row, given) in twin.chunks_exact_mut(vocab).zip(&given) {
        logit_bias(row, given);
    }
    // Rows behind those of the replay are left alone.
    let behind = vec![7.0; vocab];
    let found = lab.given(&[&logits[..], &behind].concat());
    let biases = lab.given(given.as_flattened().as_flattened());
    let mut all = vec![];
    for (biased, twin) in [(false, &logits), (true, &twin)] {
        let call = call(&biases, &found, vocab as u32, Extent::Tokens);
        let state = State {
            biased,
            ..state(rows, 0)
        };
        lab.run(vec![call], state)?;
        let expected = [&twin[..], &behind].concat().into_iter().map(f32::to_bits);
        all.push(lab.same(&found, &expected.collect::<Vec<_>>())?);
    }
    Ok(all)
}

pub(crate) fn cases() -> Vec<Case> {
    let case = |(vocab, most)| {
        let name = format!("up to {most} rows of {vocab}");
        Case::new(name, move |lab| compare(lab, vocab, most)).verified_if(vocab == 102_400)
    };
    [(154_880, 3), (102_400, 2), (300, 9), (70, 64), (1, 1)]
        .map(case)
        .into()
}
