//! Cases of the states that are kept of the last positions.

use super::Case;
use super::lab::{Compared, Lab, state};
use super::places::{Pages, places};
use crate::gpu::GpuError;
use crate::kernels::keep_states::{KEPT, States, call, keep_states};

/// Random states of `sequences` sequences, and the same on the device.
pub(super) fn states(lab: &Lab<'_>, [sequences, n_ctx, width]: [usize; 3]) -> (Vec<f32>, States) {
    let values = lab.normals(sequences * KEPT as usize * width);
    let states = States {
        rows: lab.given(&values),
        ..States::new(sequences as u32, n_ctx, width as u32)
    };
    (values, states)
}

/// Tokens of one sequence that follow each other, of which the last ones are kept.
fn alone(lab: &Lab<'_>, tokens: usize, width: usize) -> Result<Vec<Compared>, GpuError> {
    let pos = lab.below(90);
    let (mut twin, states) = states(lab, [1, 400, width]);
    let x = lab.normals(tokens * width);
    let first = tokens.saturating_sub(KEPT as usize);
    let kept: Vec<_> = (first..tokens).map(|token| [0, pos + token]).collect();
    keep_states(&x[first * width..], &kept, &mut twin);
    let call = call(None, &lab.given(&x), &states, tokens as u32);
    lab.run(vec![call], state(tokens, pos))?;
    Ok(vec![lab.same(&states.rows, &twin)?])
}

/// Tokens of several sequences, and one of them alone.
fn of_several(lab: &Lab<'_>, width: usize) -> Result<Vec<Compared>, GpuError> {
    let pages = Pages::new(lab, 32, &[3, 40, 65]);
    let (mut twin, states) = states(lab, [3, pages.n_ctx, width]);
    let x = lab.normals(pages.tokens() * width);
    let place = |t: usize| [pages.of[t], pages.positions[t] as usize];
    let all: Vec<_> = (0..pages.tokens()).map(place).collect();
    keep_states(&x, &all, &mut twin);
    let sequences = pages.without_slices(lab);
    let call_of = call(Some(&sequences), &lab.given(&x), &states, KEPT);
    lab.run(vec![call_of], state(pages.tokens(), 0))?;
    let together = lab.same(&states.rows, &twin)?;
    let (sequences, state) = pages.alone(lab, 1, 16);
    let row = lab.normals(width);
    keep_states(&row, &[place(1)], &mut twin);
    let call = call(Some(&sequences), &lab.given(&row), &states, 1);
    lab.run(vec![call], state)?;
    Ok(vec![together, lab.same(&states.rows, &twin)?])
}

/// Tokens of several sequences in a random order, of which two have more than are kept.
fn of_prompts(lab: &Lab<'_>, width: usize) -> Result<Vec<Compared>, GpuError> {
    let pages = in_any_order(
        lab,
        &[3, 90, 140],
        &[2, KEPT as usize + 7, 2 * KEPT as usize + 1],
    );
    let (mut twin, states) = states(lab, [3, pages.n_ctx, width]);
    let x = lab.normals(pages.tokens() * width);
    let row = |t: usize| &x[t * width..][..width];
    let mut order: Vec<usize> = (0..pages.tokens()).collect();
    order.sort_by_key(|t| pages.positions[*t]);
    for t in order {
        keep_states(
            row(t),
            &[[pages.of[t], pages.positions[t] as usize]],
            &mut twin,
        );
    }
    let sequences = pages.without_slices(lab);
    let call = call(Some(&sequences), &lab.given(&x), &states, KEPT + 1);
    lab.run(vec![call], state(pages.tokens(), 0))?;
    Ok(vec![lab.same(&states.rows, &twin)?])
}

/// The last `counts` tokens of sequences with so many rows, in a random order.
pub(super) fn in_any_order(lab: &Lab<'_>, lengths: &[usize], counts: &[usize]) -> Pages {
    let mut pages = Pages::new(lab, 32, lengths);
    let of_each = lengths.iter().zip(counts).enumerate();
    let tokens = of_each.flat_map(|(sequence, (length, count))| {
        let positions = *length - count..*length;
        positions.map(move |position| (sequence, position as u32))
    });
    let mut tokens: Vec<_> = tokens.collect();
    lab.shuffle(&mut tokens);
    (pages.of, pages.positions) = tokens.into_iter().unzip();
    pages
}

pub(crate) fn cases() -> Vec<Case> {
    let by_itself = |(tokens, width)| {
        let name = format!("{tokens} rows of {width}");
        Case::new(name, move |lab| alone(lab, tokens, width)).verified_if(tokens == 1)
    };
    let mut all: Vec<_> = [(1, 2048), (9, 96), (100, 160)].map(by_itself).into();
    all.push(Case::new("several sequences", |lab| of_several(lab, 96)));
    all.push(Case::new("prompts of several", |lab| of_prompts(lab, 96)));
    // A token that is alone stands in a sequence of its own, too.
    all.push(Case::new("places", |lab| {
        let mut all = vec![];
        for place in places(lab, 45).0 {
            let n_ctx = place
                .sequences
                .as_ref()
                .map_or(60, |s| s.ids as usize / 3 - 1);
            let (mut twin, states) = states(lab, [3, n_ctx, 64]);
            let row = lab.normals(64);
            let sequence = place.state.first_id as usize / (n_ctx + 1);
            keep_states(&row, &[[sequence, 45]], &mut twin);
            let call = call(place.sequences.as_ref(), &lab.given(&row), &states, 1);
            lab.run(vec![call], place.state)?;
            all.push(lab.same(&states.rows, &twin)?);
        }
        Ok(all)
    }));
    all
}
