//! Cases of the input of the prediction layer.

use super::Case;
use super::keep_states::{in_any_order, states};
use super::lab::{Compared, Lab, state};
use super::places::Pages;
use super::prepared::EPS;
use crate::gpu::GpuError;
use crate::gpu::buffer::Range;
use crate::gpu::call::State;
use crate::kernels::keep_states::KEPT;
use crate::kernels::nextn_input::{GpuNextnInput, StatesFrom, nextn_input};
use crate::quant::activation::Activation;

/// The embeddings and the norms.
struct Given {
    embedding: Vec<f32>,
    norms: [Vec<f32>; 3],
    width: usize,
}

impl Given {
    fn new(lab: &Lab<'_>, tokens: usize, width: usize) -> Self {
        Self {
            embedding: lab.normals(tokens * width),
            norms: [(); 3].map(|()| lab.normals(width)),
            width,
        }
    }

    /// Compares what comes of states `from` somewhere with that of these `rows`.
    fn compare(
        &self,
        lab: &Lab<'_>,
        (from, rows): (StatesFrom<'_>, &[f32]),
        activation: Activation,
        state: State,
    ) -> Result<Vec<Compared>, GpuError> {
        let norms = self.norms.each_ref().map(|norm| &norm[..]);
        let twin = nextn_input(&self.embedding, rows, norms, EPS);
        let prepared = match activation {
            Activation::Floats => lab.room(twin.len()),
            _ => lab.output(twin.len(), None).values,
        };
        let call = GpuNextnInput {
            embedding: lab.given(&self.embedding),
            states: from,
            norms: self.norms.each_ref().map(|norm| lab.given(norm)),
            eps: EPS,
            prepared: prepared.clone(),
            activation,
            width: self.width as u32,
        };
        lab.run(vec![call.call()], state)?;
        lab.left_in(activation, &prepared, None, &twin)
    }
}

/// Drafts, whose states are those of the layer.
fn of_drafts(lab: &Lab<'_>, tokens: usize, width: usize) -> Result<Vec<Compared>, GpuError> {
    let given = Given::new(lab, tokens, width);
    let rows = lab.normals(tokens * width);
    let from = StatesFrom::Own(lab.given(&rows));
    given.compare(lab, (from, &rows), lab.form(), state(tokens, 7))
}

/// Tokens of several sequences, of which one is at position 0.
fn of_several(lab: &Lab<'_>, width: usize) -> Result<Vec<Compared>, GpuError> {
    let pages = Pages::new(lab, 32, &[3, 40, 65, 1]);
    let given = Given::new(lab, pages.tokens(), width);
    let (kept, states) = states(lab, [4, pages.n_ctx, width]);
    let row = |t: usize| match pages.positions[t] as usize {
        0 => vec![0.0; width],
        position => {
            let at = pages.of[t] * KEPT as usize + (position - 1) % KEPT as usize;
            kept[at * width..][..width].to_vec()
        }
    };
    let rows: Vec<f32> = (0..pages.tokens()).flat_map(row).collect();
    let sequences = pages.without_slices(lab);
    let from = StatesFrom::Kept(Some(&sequences), &states);
    given.compare(lab, (from, &rows), lab.form(), state(pages.tokens(), 0))
}

/// Tokens of a prompt from `pos` on.
fn of_prompt(lab: &Lab<'_>, [tokens, width, pos]: [usize; 3]) -> Result<Vec<Compared>, GpuError> {
    let given = Given::new(lab, tokens, width);
    let (kept, states) = states(lab, [1, 400, width]);
    let mut rows = match pos {
        0 => vec![0.0; width],
        _ => kept[(pos - 1) % KEPT as usize * width..][..width].to_vec(),
    };
    let own = lab.normals(tokens * width);
    rows.extend_from_slice(&own[..(tokens - 1) * width]);
    let own: Range = lab.given(&own);
    let from = StatesFrom::Before(None, &states, own);
    given.compare(lab, (from, &rows), Activation::Floats, state(tokens, pos))
}

/// Tokens of the prompts of several sequences in a random order, of which one begins.
fn of_prompts(lab: &Lab<'_>, width: usize) -> Result<Vec<Compared>, GpuError> {
    let pages = in_any_order(lab, &[1, 40, 65, 9], &[1, 1, 39, 9]);
    let given = Given::new(lab, pages.tokens(), width);
    let (kept, states) = states(lab, [4, pages.n_ctx, width]);
    let own = lab.normals(pages.tokens() * width);
    let places = || pages.of.iter().zip(&pages.positions);
    let row = |(sequence, position): (&usize, &u32)| {
        let Some(before) = position.checked_sub(1) else {
            return vec![0.0; width];
        };
        let is_before = |place: (&usize, &u32)| place == (sequence, &before);
        let (rows, at) = match places().position(is_before) {
            Some(token) => (&own, token),
            None => (&kept, (*sequence as u32 * KEPT + before % KEPT) as usize),
        };
        rows[at * width..][..width].to_vec()
    };
    let rows: Vec<f32> = places().flat_map(row).collect();
    let sequences = pages.without_slices(lab);
    let from = StatesFrom::Before(Some(&sequences), &states, lab.given(&own));
    given.compare(
        lab,
        (from, &rows),
        Activation::Floats,
        state(pages.tokens(), 0),
    )
}

pub(crate) fn cases() -> Vec<Case> {
    let drafts = |(tokens, width)| {
        let name = format!("{tokens} drafts of {width}");
        Case::new(name, move |lab| of_drafts(lab, tokens, width)).verified_if(width == 2048)
    };
    let prompts = |of: [usize; 3]| {
        let [tokens, width, pos] = of;
        let name = format!("{tokens} of a prompt at {pos}, {width}");
        Case::new(name, move |lab| of_prompt(lab, of)).verified_if(width == 2048)
    };
    let mut all: Vec<_> = [(1, 2048), (3, 96)].map(drafts).into();
    all.extend([[9, 2048, 33], [5, 160, 0], [1, 64, 70]].map(prompts));
    let several = Case::new("several sequences", |lab| of_several(lab, 2048));
    all.push(several.verified());
    let prompts = Case::new("prompts of several", |lab| of_prompts(lab, 160));
    all.push(prompts.verified());
    all
}
