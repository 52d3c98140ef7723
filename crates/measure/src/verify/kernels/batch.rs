//! The kernels of a few tokens, whose products read a weight once for several of them.

use super::lab::{Compared, Lab, state};
use super::prepared::{self, Normed, compared, form, limit, room, stand_for};
use super::{EPS, TYPES};
use crate::gpu::GpuError;
use crate::gpu::memory::GpuWeight;
use crate::kernels::batch_combine::{GpuBatchCombine, batch_combine};
use crate::kernels::batch_experts::{
    self, GpuBatchExperts, MOST_PLACES, TILE_WORDS, batch_experts,
};
use crate::kernels::batch_matvec::{GpuBatchMatvec, Input, Tiles, batch_matvec};
use crate::kernels::router::strided;
use crate::kernels::token::{Divided, TokenInput, TokenOutput};
use crate::model::{Experts, Gating, Weight};
use crate::quant::GgmlType;

/// Tokens of a step: no multiple of what a workgroup takes.
const TOKENS: usize = 5;

pub(super) fn products(lab: &mut Lab<'_>) {
    for ty in TYPES {
        dense(lab, ty);
    }
    heads(lab);
    stream(lab);
}

fn product<'w>(lab: &Lab<'_>, weight: &'w GpuWeight, x: Input) -> GpuBatchMatvec<'w> {
    let tokens = TOKENS as u32;
    GpuBatchMatvec::new(lab.gpu, weight, tokens, x)
}

/// With a norm before it and a residual after it, left prepared and in f32.
fn dense(lab: &mut Lab<'_>, ty: GgmlType) {
    let (rows, cols) = (160, 768);
    lab.check(format!("{ty} {rows}x{cols}, {TOKENS} tokens"), |lab| {
        let w = [lab.weight(ty, [1, rows, cols])];
        let x = Normed::new(lab, TOKENS, cols);
        let (before, g) = (lab.normals(TOKENS * rows), lab.normals(rows));
        let of_token = |t: usize| {
            let before = &before[t * rows..][..rows];
            let (x, rms) = x.token(t);
            batch_matvec(&w, None, x, 0, Some(rms), Some(before))
        };
        let twin: Vec<f32> = (0..TOKENS).flat_map(of_token).collect();
        let left = room(lab, twin.len(), Some(&g));
        let weight = &lab.load(&[&w[0]])?[0];
        let product = GpuBatchMatvec {
            residual: Some(lab.given(&before)),
            ..product(lab, weight, Input::Prepared(x.input(lab)))
        };
        left_by(lab, product, left, Some(&g), &twin)
    });
}

/// Of heads, each with an input of its own.
fn heads(lab: &mut Lab<'_>) {
    let (groups, rows, cols, units) = (4, 128, 64, 4);
    let case = format!("q5_0 {groups}x{rows}x{cols}, {TOKENS} tokens");
    lab.check(case, |lab| {
        let w = [lab.weight(GgmlType::Q5_0, [groups, rows, cols])];
        let width = groups * units * 32;
        let given = lab.normals(TOKENS * width);
        let values = stand_for(form(lab), &given);
        let tokens = values.chunks_exact(width);
        let twin = tokens.flat_map(|x| batch_matvec(&w, None, x, units, None, None));
        let twin: Vec<f32> = twin.collect();
        let y = lab.room(twin.len());
        let weight = &lab.load(&[&w[0]])?[0];
        let input = TokenInput::of(prepared::given(lab, &given));
        let product = GpuBatchMatvec {
            x_stride: (width / 32) as u32,
            x_group: units as u32,
            y: Some(y.clone()),
            ..product(lab, weight, Input::Prepared(input))
        };
        lab.run(product.calls(lab.gpu)?, state(TOKENS, 0))?;
        Ok(vec![lab.floats(&y, &twin, limit(form(lab)))?])
    });
}

/// Of the residual stream itself, in f32.
fn stream(lab: &mut Lab<'_>) {
    let (rows, cols) = (64, 512);
    lab.check(format!("f32 {rows}x{cols}, from the stream"), |lab| {
        let w = [lab.weight(GgmlType::F32, [1, rows, cols])];
        let Normed {
            x, norm, squares, ..
        } = Normed::new(lab, TOKENS, cols);
        let of_token = |t: usize| {
            let x = x[t * cols..][..cols].iter().zip(&norm).map(|(x, g)| x * g);
            let rms = (&squares[t * cols / 16..][..cols / 16], EPS);
            batch_matvec(&w, None, &x.collect::<Vec<f32>>(), 0, Some(rms), None)
        };
        let twin: Vec<f32> = (0..TOKENS).flat_map(of_token).collect();
        let y = lab.room(twin.len());
        let [x, norm, squares] = [&x, &norm, &squares].map(|data| lab.given(data));
        let weight = &lab.load(&[&w[0]])?[0];
        let product = GpuBatchMatvec {
            y: Some(y.clone()),
            ..product(lab, weight, Input::Stream(x, norm, squares, EPS))
        };
        lab.run(product.calls(lab.gpu)?, state(TOKENS, 0))?;
        Ok(vec![lab.floats(&y, &twin, 1e-10)?])
    });
}

const EXPERTS: Experts = Experts {
    count: 5,
    used: 2,
    shared_count: 1,
    feed_forward_length: 96,
    gating: Gating::Sigmoid,
    weights_norm: true,
    weights_scale: 1.8,
};
const COUNT: usize = EXPERTS.count;
const USED: usize = EXPERTS.used;

/// Logits of experts of which no two are nearly the same, so that no rounding changes the choice.
fn logits(lab: &Lab<'_>) -> Vec<f32> {
    let of_token = |_| {
        let first = lab.below(COUNT);
        (0..COUNT).map(move |i| ((first + 2 * i) % COUNT) as f32 / 2.0 - 1.0)
    };
    (0..TOKENS).flat_map(of_token).collect()
}

/// Slots of a tile, as few or as many as there may be.
fn places(lab: &Lab<'_>) -> u32 {
    [2, MOST_PLACES][lab.below(2)]
}

/// The experts of a step, and the expert of each slot.
pub(super) fn choice(lab: &mut Lab<'_>) {
    lab.check(format!("{USED} of {COUNT}, {TOKENS} tokens"), |lab| {
        let logits = logits(lab);
        let places = places(lab);
        let (weights, mut expected) = batch_experts(&logits, None, &EXPERTS, TOKENS, places);
        let most = batch_experts::tiles(TOKENS as u32, places, &EXPERTS) as usize;
        let unwritten = |words: usize| lab.given(&vec![0u32; words]);
        let call = GpuBatchExperts {
            logits: lab.given(&strided(&logits, &EXPERTS)),
            bias: None,
            experts: &EXPERTS,
            max_tokens: TOKENS as u32,
            places,
            weights: lab.room(weights.len()),
            tiles: unwritten(TILE_WORDS as usize * most),
            counts: unwritten(6),
        };
        lab.run(vec![call.call(lab.gpu.machine)], state(TOKENS, 0))?;
        let filled = [0, expected.len() as u32, 0];
        expected.resize(most, [0; TILE_WORDS as usize]);
        Ok(vec![
            lab.same(&call.tiles, &expected)?,
            lab.same(&call.counts, &[filled; 2])?,
            lab.floats(&call.weights, &weights, 1e-10)?,
        ])
    });
}

/// Random experts of a step: the tiles on the device, and the expert of each slot.
fn tiles(lab: &Lab<'_>, by_token: bool) -> (Tiles, Vec<usize>) {
    let places = places(lab);
    let (_, mut listed) = batch_experts(&logits(lab), None, &EXPERTS, TOKENS, places);
    let mut experts = vec![0; TOKENS * USED];
    for [expert, _, _, _, slots @ ..] in &listed {
        for slot in slots {
            experts[*slot as usize] = *expert as usize;
        }
    }
    let most = batch_experts::tiles(TOKENS as u32, places, &EXPERTS);
    listed.resize(most as usize, [0; TILE_WORDS as usize]);
    let tiles = Tiles {
        list: lab.given(&listed),
        places,
        used: USED as u32,
        most: TOKENS as u32,
        by_token,
        counts: None,
    };
    (tiles, experts)
}

/// Gate and up of experts, which read the rows of tokens, and down, which reads those of slots.
pub(super) fn experts(lab: &mut Lab<'_>) {
    let (rows, cols) = (96, 256);
    let case = format!("q4_k pair {COUNT}x{rows}x{cols}, by token");
    lab.check(case, |lab| {
        let pair = [(); 2].map(|()| lab.weight(GgmlType::Q4_K, [COUNT, rows, cols]));
        let x = Normed::new(lab, TOKENS, cols);
        let (tiles, experts) = tiles(lab, true);
        let of_slot = |(slot, expert): (usize, &usize)| {
            let (x, rms) = x.token(slot / USED);
            batch_matvec(&pair, Some(*expert), x, 0, Some(rms), None)
        };
        let twin: Vec<f32> = experts.iter().enumerate().flat_map(of_slot).collect();
        let weights = lab.load(&[&pair[0], &pair[1]])?;
        let product = GpuBatchMatvec {
            up: Some(&weights[1]),
            experts: Some(tiles),
            ..product(lab, &weights[0], Input::Prepared(x.input(lab)))
        };
        let left = room(lab, twin.len(), None);
        left_by(lab, product, left, None, &twin)
    });
    lab.check(format!("q5_0 {COUNT}x{rows}x{cols}, by slot"), |lab| {
        let w: [Weight; 1] = [lab.weight(GgmlType::Q5_0, [COUNT, rows, cols])];
        let (tiles, experts) = tiles(lab, false);
        let given = lab.normals(experts.len() * cols);
        let values = stand_for(form(lab), &given);
        let slots = values.chunks_exact(cols).zip(&experts);
        let twin = slots.flat_map(|(x, expert)| batch_matvec(&w, Some(*expert), x, 0, None, None));
        let twin: Vec<f32> = twin.collect();
        let weight = &lab.load(&[&w[0]])?[0];
        let input = TokenInput::of(prepared::given(lab, &given));
        let product = GpuBatchMatvec {
            experts: Some(tiles),
            ..product(lab, weight, Input::Prepared(input))
        };
        let left = room(lab, twin.len(), None);
        left_by(lab, product, left, None, &twin)
    });
}

/// A product left prepared, and in the tiers with buffers enough also in f32.
fn left_by(
    lab: &Lab<'_>,
    product: GpuBatchMatvec<'_>,
    left: TokenOutput,
    g: Option<&[f32]>,
    twin: &[f32],
) -> Result<Vec<Compared>, GpuError> {
    let y = lab.gpu.tier.has_subgroups().then(|| lab.room(twin.len()));
    let product = GpuBatchMatvec {
        y: y.clone(),
        prepared: Some(left.clone()),
        ..product
    };
    lab.run(product.calls(lab.gpu)?, state(TOKENS, 0))?;
    let mut all = compared(lab, &left, g, twin)?;
    if let Some(y) = y {
        all.push(lab.floats(&y, twin, limit(form(lab)))?);
    }
    Ok(all)
}

/// The end of a layer with experts.
pub(super) fn combine(lab: &mut Lab<'_>) {
    let rows = 512;
    lab.check(format!("{USED} of {rows}, {TOKENS} tokens"), |lab| {
        let sizes = [TOKENS * USED * rows, TOKENS * USED, TOKENS * rows, rows];
        let [slots, weights, residual, norm] = sizes.map(|n| lab.normals(n));
        let [sums, normed] = batch_combine(&slots, &weights, &residual, &norm, EPS);
        let (x, left) = (lab.room(sums.len()), room(lab, sums.len(), None));
        let call = GpuBatchCombine {
            slots: Some([lab.given(&slots), lab.given(&weights)]),
            used: USED as u32,
            residual: lab.given(&residual),
            x: Some(x.clone()),
            norm: (lab.given(&norm), EPS),
            values: left.values.clone(),
            activation: form(lab),
            rows: rows as u32,
        };
        lab.run(vec![call.call()], state(TOKENS, 0))?;
        let mut all = compared(lab, &left, None, &normed)?;
        all.push(lab.floats(&x, &sums, 1e-10)?);
        Ok(all)
    });
}
