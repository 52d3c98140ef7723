//! The kernels of a few tokens, whose products read a weight once for several of them.

use super::lab::{Compared, Lab, state};
use super::prepared::{self, Normed, compared, form, limit, room, stand_for};
use super::{EPS, TYPES};
use crate::gpu::GpuError;
use crate::gpu::memory::GpuWeight;
use crate::kernels::batch_combine::{GpuBatchCombine, batch_combine};
use crate::kernels::batch_matvec::{GpuBatchMatvec, Input, batch_matvec};
use crate::kernels::expert_rows::{expert_rows, tile_count};
use crate::kernels::gemm::GpuExperts;
use crate::kernels::token::{Divided, TokenInput};
use crate::model::Weight;
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
    GpuBatchMatvec::new(lab.gpu.machine, weight, form(lab), tokens, x)
}

/// With a norm before it and a residual after it, left prepared and in f32.
fn dense(lab: &mut Lab<'_>, ty: GgmlType) {
    let (rows, cols) = (160, 768);
    lab.check(format!("{ty} {rows}x{cols}, {TOKENS} tokens"), |lab| {
        let w = [lab.weight(ty, [1, rows, cols])];
        let x = Normed::new(lab, TOKENS, cols);
        let (before, g) = (lab.normals(TOKENS * rows), lab.normals(rows));
        let of_token = |t: usize| {
            let rms = (&x.squares[t * cols / 16..][..cols / 16], EPS);
            let before = &before[t * rows..][..rows];
            let x = &x.values[t * cols..][..cols];
            batch_matvec(&w, None, x, 0, Some(rms), Some(before))
        };
        let twin: Vec<f32> = (0..TOKENS).flat_map(of_token).collect();
        let (y, left) = (lab.room(twin.len()), room(lab, twin.len(), Some(&g)));
        let weight = &lab.load(&[&w[0]])?[0];
        let product = GpuBatchMatvec {
            residual: Some(lab.given(&before)),
            y: Some(y.clone()),
            prepared: Some(left.clone()),
            ..product(lab, weight, Input::Prepared(x.input(lab)))
        };
        lab.run(product.calls(lab.gpu)?, state(TOKENS, 0))?;
        let mut all = compared(lab, &left, Some(&g), &twin)?;
        all.push(lab.floats(&y, &twin, limit(form(lab)))?);
        Ok(all)
    });
}

/// Of heads, each with an input of its own.
fn heads(lab: &mut Lab<'_>) {
    let (groups, rows, cols, units) = (4, 128, 64, 4);
    lab.check(
        format!("q5_0 {groups}x{rows}x{cols}, {TOKENS} tokens"),
        |lab| {
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
        },
    );
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

/// Experts of a step: those of each slot, the slots by expert, and their tiles.
struct Slots {
    ids: Vec<u32>,
    slots: Vec<u32>,
    tiles: Vec<[u32; 4]>,
}

const COUNT: usize = 5;
const USED: usize = 2;
const HEIGHT: usize = 4;

impl Slots {
    fn new(lab: &Lab<'_>) -> Self {
        let of_token = |_| {
            let first = lab.below(COUNT);
            (0..USED).map(move |k| ((first + k) % COUNT) as u32)
        };
        let ids: Vec<u32> = (0..TOKENS).flat_map(of_token).collect();
        let (slots, mut lists) = expert_rows(&ids, COUNT, &[HEIGHT]);
        let mut tiles = lists.remove(0);
        let [tokens, used, height, count] = [TOKENS, USED, HEIGHT, COUNT].map(|n| n as u32);
        tiles.resize(tile_count(tokens, used, height, count) as usize, [0; 4]);
        Self { ids, slots, tiles }
    }

    fn given(&self, lab: &Lab<'_>, gather: bool) -> GpuExperts {
        GpuExperts {
            tiles: lab.given(&self.tiles),
            slots: lab.given(&self.slots),
            used: USED as u32,
            height: HEIGHT as u32,
            gather,
            counts: None,
            either: false,
        }
    }
}

/// Gate and up of experts, which gather the rows of tokens, and down, which scatters its own to their slots.
pub(super) fn experts(lab: &mut Lab<'_>) {
    let (rows, cols) = (96, 256);
    lab.check(
        format!("q4_k pair {COUNT}x{rows}x{cols}, gathered"),
        |lab| {
            let pair = [(); 2].map(|()| lab.weight(GgmlType::Q4_K, [COUNT, rows, cols]));
            let x = Normed::new(lab, TOKENS, cols);
            let slots = Slots::new(lab);
            let of_place = |slot: &u32| {
                let token = *slot as usize / USED;
                let rms = (&x.squares[token * cols / 16..][..cols / 16], EPS);
                let expert = Some(slots.ids[*slot as usize] as usize);
                let x = &x.values[token * cols..][..cols];
                batch_matvec(&pair, expert, x, 0, Some(rms), None)
            };
            let twin: Vec<f32> = slots.slots.iter().flat_map(of_place).collect();
            let weights = lab.load(&[&pair[0], &pair[1]])?;
            let product = GpuBatchMatvec {
                up: Some(&weights[1]),
                experts: Some(slots.given(lab, true)),
                ..product(lab, &weights[0], Input::Prepared(x.input(lab)))
            };
            of_experts(lab, product, &twin)
        },
    );
    lab.check(format!("q5_0 {COUNT}x{rows}x{cols}, scattered"), |lab| {
        let w: [Weight; 1] = [lab.weight(GgmlType::Q5_0, [COUNT, rows, cols])];
        let slots = Slots::new(lab);
        let given = lab.normals(slots.ids.len() * cols);
        let values = stand_for(form(lab), &given);
        let mut twin = vec![0.0; slots.ids.len() * rows];
        for (x, slot) in values.chunks_exact(cols).zip(&slots.slots) {
            let slot = *slot as usize;
            let expert = Some(slots.ids[slot] as usize);
            let y = batch_matvec(&w, expert, x, 0, None, None);
            twin[slot * rows..][..rows].copy_from_slice(&y);
        }
        let weight = &lab.load(&[&w[0]])?[0];
        let input = TokenInput::of(prepared::given(lab, &given));
        let product = GpuBatchMatvec {
            experts: Some(slots.given(lab, false)),
            ..product(lab, weight, Input::Prepared(input))
        };
        of_experts(lab, product, &twin)
    });
}

/// A product of experts, left prepared and in f32.
fn of_experts(
    lab: &Lab<'_>,
    product: GpuBatchMatvec<'_>,
    twin: &[f32],
) -> Result<Vec<Compared>, GpuError> {
    let (y, left) = (lab.room(twin.len()), room(lab, twin.len(), None));
    let product = GpuBatchMatvec {
        y: Some(y.clone()),
        prepared: Some(left.clone()),
        ..product
    };
    lab.run(product.calls(lab.gpu)?, state(TOKENS, 0))?;
    let mut all = compared(lab, &left, None, twin)?;
    all.push(lab.floats(&y, twin, limit(form(lab)))?);
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
