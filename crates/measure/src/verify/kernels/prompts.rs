//! The products of prompts, of many tokens at once: their inputs, those of one weight and those of experts.

use super::lab::{Compared, Lab, state};
use super::{EPS, TYPES};
use crate::gpu::buffer::Role;
use crate::gpu::wait::complete;
use crate::kernels::expert_rows::{GpuExpertRows, TileList, expert_rows, tile_count};
use crate::kernels::gemm::{Form, GpuExperts, GpuGemm, Input, expert_tiles};
use crate::kernels::linear::rms_norm_rows;
use crate::kernels::moe_combine::{GpuMoeCombine, moe_combine};
use crate::kernels::products::{MatvecOptions, gate_up, matvec};
use crate::kernels::rows_f16::{GpuRowsF16, rows_f16};
use crate::model::Weight;
use crate::quant::GgmlType;
use half::f16;

/// Tokens of a chunk: no multiple of what a workgroup takes.
const TOKENS: usize = 37;

/// In f32 everywhere, and by matrices where the device takes them.
fn forms(lab: &mut Lab<'_>) -> Vec<Form> {
    let chosen = complete(Form::for_prompts(lab.gpu));
    lab.forms(Form::float(lab.gpu), chosen.map(Some), "gemm_coop")
}

/// f32 sums in another order, or inputs and weights rounded to f16.
fn limit(form: Form) -> f64 {
    match form {
        Form::Float { .. } => 1e-9,
        Form::Matrix(_) => 1e-5,
    }
}

/// The input of a product as `form` takes it.
fn input(lab: &Lab<'_>, form: Form, x: &[f32], cols: usize) -> Input {
    match form {
        Form::Float { .. } => Input::Floats(lab.given(x)),
        Form::Matrix(_) => {
            let (halves, scales) = rows_f16(x, cols, None);
            Input::Halves([lab.given(&halves), lab.given(&scales)])
        }
    }
}

pub(super) fn products(lab: &mut Lab<'_>) {
    rows(lab);
    for form in forms(lab) {
        for ty in TYPES {
            product(lab, form, ty);
        }
        heads(lab, form);
        partial_sums(lab, form);
    }
}

/// The rows of a chunk, normed, as halves and as floats.
fn rows(lab: &mut Lab<'_>) {
    let cols = 512;
    lab.check(format!("{TOKENS} rows of {cols}, normed"), |lab| {
        let (x, norm) = (lab.normals(TOKENS * cols), lab.normals(cols));
        let (halves, scales) = (lab.room(TOKENS * cols / 2), lab.room(TOKENS));
        let floats = lab.room(TOKENS * cols);
        let call = GpuRowsF16 {
            norm: Some((lab.given(&norm), EPS)),
            halves: Some([halves.clone().holding(Role::Halves), scales.clone()]),
            floats: Some(floats.clone()),
            ..GpuRowsF16::of(&lab.given(&x), cols as u32, TOKENS as u32)
        };
        lab.run(vec![call.call()], state(TOKENS, 0))?;
        let (twin, scales_of_twin) = rows_f16(&x, cols, Some((&norm, EPS)));
        let wide = |halves: &[f16], scales: &[f32]| -> Vec<f32> {
            let rows = halves.chunks_exact(cols).zip(scales);
            let rows = rows.flat_map(|(row, scale)| row.iter().map(move |h| h.to_f32() * scale));
            rows.collect()
        };
        let found = wide(
            &lab.read(&halves, TOKENS * cols)?,
            &lab.read(&scales, TOKENS)?,
        );
        Ok(vec![
            Compared::new(&found, &wide(&twin, &scales_of_twin), 1e-6),
            lab.floats(&floats, &rms_norm_rows(&x, &norm, EPS), 1e-10)?,
        ])
    });
}

/// With a residual after it.
fn product(lab: &mut Lab<'_>, form: Form, ty: GgmlType) {
    let (rows, cols) = (130, 512);
    lab.check(format!("{ty} {rows}x{cols}, {TOKENS} tokens"), |lab| {
        let w = lab.weight(ty, [1, rows, cols]);
        let (x, residual) = (lab.normals(TOKENS * cols), lab.normals(TOKENS * rows));
        let mut twin = vec![0.0; TOKENS * rows];
        let options = MatvecOptions::contiguous(cols).with_residual(&residual);
        matvec(&w, &x, TOKENS, options, &mut twin);
        let y = lab.room(twin.len());
        let weight = &lab.load(&[&w])?[0];
        let product = GpuGemm {
            residual: Some(lab.given(&residual)),
            ..GpuGemm::of(form, weight, input(lab, form, &x, cols), TOKENS as u32, &y)
        };
        lab.run(product.calls(lab.gpu), state(TOKENS, 0))?;
        Ok(vec![lab.floats(&y, &twin, limit(form))?])
    });
}

/// Of heads, each with an input of its own.
fn heads(lab: &mut Lab<'_>, form: Form) {
    let (groups, rows, cols, apart) = (4, 96, 64, 128);
    let case = format!("q5_0 {groups}x{rows}x{cols}, {TOKENS} tokens");
    lab.check(case, |lab| {
        let w = lab.weight(GgmlType::Q5_0, [groups, rows, cols]);
        let stride = groups * apart;
        let x = lab.normals(TOKENS * stride);
        let mut twin = vec![0.0; TOKENS * groups * rows];
        let options = MatvecOptions::per_group(stride, apart);
        matvec(&w, &x, TOKENS, options, &mut twin);
        let (x, y) = (input(lab, form, &x, stride), lab.room(twin.len()));
        let weight = &lab.load(&[&w])?[0];
        let product = GpuGemm {
            x_stride: stride as u32,
            x_group_stride: apart as u32,
            ..GpuGemm::of(form, weight, x, TOKENS as u32, &y)
        };
        lab.run(product.calls(lab.gpu), state(TOKENS, 0))?;
        Ok(vec![lab.floats(&y, &twin, limit(form))?])
    });
}

/// Of ranges of the columns, which are added up here.
fn partial_sums(lab: &mut Lab<'_>, form: Form) {
    let (rows, cols, ranges) = (64, 768, 3);
    lab.check(format!("f32 {rows}x{cols} in {ranges} ranges"), |lab| {
        let w = lab.weight(GgmlType::F32, [1, rows, cols]);
        let x = lab.normals(TOKENS * cols);
        let mut twin = vec![0.0; TOKENS * rows];
        matvec(&w, &x, TOKENS, MatvecOptions::contiguous(cols), &mut twin);
        let y = lab.room(ranges * twin.len());
        let weight = &lab.load(&[&w])?[0];
        let product = GpuGemm {
            split_k: ranges as u32,
            ..GpuGemm::of(form, weight, input(lab, form, &x, cols), TOKENS as u32, &y)
        };
        lab.run(product.calls(lab.gpu), state(TOKENS, 0))?;
        let sums: Vec<f32> = lab.read(&y, ranges * twin.len())?;
        let mut found = vec![0.0; twin.len()];
        for sums in sums.chunks_exact(twin.len()) {
            found
                .iter_mut()
                .zip(sums)
                .for_each(|(all, sum)| *all += sum);
        }
        Ok(vec![Compared::new(&found, &twin, limit(form))])
    });
}

const COUNT: usize = 5;
const USED: usize = 2;
const ROWS: usize = 96;
const COLS: usize = 256;
const SLOTS: usize = TOKENS * USED;

/// Slots sorted by expert, gate and up of them, down, and the sum of a token's slots.
pub(super) fn experts(lab: &mut Lab<'_>) {
    sorted(lab);
    for form in forms(lab) {
        gathered(lab, form);
        scattered(lab, form);
    }
    lab.check(format!("{USED} of {ROWS}, {TOKENS} tokens"), |lab| {
        let sizes = [SLOTS * ROWS, SLOTS, TOKENS * ROWS];
        let [slots, weights, residual] = sizes.map(|n| lab.normals(n));
        let mut twin = vec![0.0; TOKENS * ROWS];
        moe_combine(&slots, &weights, &residual, ROWS, &mut twin);
        let y = lab.room(twin.len());
        let call = GpuMoeCombine {
            slots: lab.given(&slots),
            other: None,
            weights: lab.given(&weights),
            residual: lab.given(&residual),
            y: y.clone(),
            used: USED as u32,
            rows: ROWS as u32,
        };
        lab.run(vec![call.call()], state(TOKENS, 0))?;
        Ok(vec![lab.floats(&y, &twin, 1e-10)?])
    });
}

/// The experts of each slot of a chunk.
fn ids(lab: &Lab<'_>) -> Vec<u32> {
    let of_token = |_| {
        let first = lab.below(COUNT);
        (0..USED).map(move |k| ((first + k) % COUNT) as u32)
    };
    (0..TOKENS).flat_map(of_token).collect()
}

fn sorted(lab: &mut Lab<'_>) {
    lab.check(format!("{USED} of {COUNT}, {TOKENS} tokens"), |lab| {
        let (ids, height) = (ids(lab), 16);
        let (slots, lists) = expert_rows(&ids, COUNT, &[height]);
        let [tokens, used, count] = [TOKENS, USED, COUNT].map(|n| n as u32);
        let tiles = tile_count(tokens, used, height as u32, count) as usize;
        let unwritten = |words: usize| lab.given(&vec![u32::MAX; words]);
        let list = TileList {
            height: height as u32,
            tiles: unwritten(4 * tiles),
        };
        let call = GpuExpertRows {
            ids: lab.given(&ids),
            experts: count,
            used,
            slots: unwritten(ids.len()),
            lists: vec![list],
            counts: unwritten(6),
        };
        lab.run(vec![call.call()], state(TOKENS, 0))?;
        let mut expected = lists[0].clone();
        let filled = [u32::MAX, expected.len() as u32, u32::MAX];
        expected.resize(tiles, [0; 4]);
        Ok(vec![
            lab.same(&call.slots, &slots)?,
            lab.same(&call.lists[0].tiles, &expected)?,
            lab.same(&call.counts, &[filled; 2])?,
        ])
    });
}

/// The experts of a chunk as the device has them after they were sorted.
fn chosen(lab: &Lab<'_>, form: Form, ids: &[u32], gather: bool) -> (GpuExperts, Vec<u32>) {
    let pair = expert_tiles(form, true);
    let height = pair.iter().map(|tile| tile.tokens).min().unwrap_or(16);
    let (slots, mut lists) = expert_rows(ids, COUNT, &[height as usize]);
    let [tokens, used, count] = [TOKENS, USED, COUNT].map(|n| n as u32);
    let mut tiles = lists.remove(0);
    tiles.resize(tile_count(tokens, used, height, count) as usize, [0; 4]);
    let experts = GpuExperts {
        tiles: lab.given(&tiles),
        slots: lab.given(&slots),
        used,
        height,
        gather,
        counts: None,
        either: false,
    };
    (experts, slots)
}

/// Gate and up, which read the rows of tokens and leave those of places.
fn gathered(lab: &mut Lab<'_>, form: Form) {
    let case = format!("q4_k pair {COUNT}x{ROWS}x{COLS}, gathered");
    lab.check(case, |lab| {
        let pair = [(); 2].map(|()| lab.weight(GgmlType::Q4_K, [COUNT, ROWS, COLS]));
        let (x, ids) = (lab.normals(TOKENS * COLS), ids(lab));
        let mut h = vec![0.0; SLOTS * ROWS];
        let [gate, up] = &pair;
        gate_up(gate, up, &x, TOKENS, None, Some(&ids), &mut h);
        let (experts, slots) = chosen(lab, form, &ids, true);
        let twin = slots
            .iter()
            .flat_map(|slot| &h[*slot as usize * ROWS..][..ROWS]);
        let twin: Vec<f32> = twin.copied().collect();
        let y = lab.room(twin.len());
        let weights = lab.load(&[gate, up])?;
        let x = input(lab, form, &x, COLS);
        let product = GpuGemm {
            up: Some(&weights[1]),
            experts: Some(experts),
            ..GpuGemm::of(form, &weights[0], x, TOKENS as u32, &y)
        };
        lab.run(product.calls(lab.gpu), state(TOKENS, 0))?;
        Ok(vec![lab.floats(&y, &twin, limit(form))?])
    });
}

/// Down, which reads the rows of places and leaves those of slots.
fn scattered(lab: &mut Lab<'_>, form: Form) {
    lab.check(format!("q5_0 {COUNT}x{ROWS}x{COLS}, scattered"), |lab| {
        let w = lab.weight(GgmlType::Q5_0, [COUNT, ROWS, COLS]);
        let (x, ids) = (lab.normals(SLOTS * COLS), ids(lab));
        let (experts, slots) = chosen(lab, form, &ids, false);
        let mut twin = vec![0.0; SLOTS * ROWS];
        for (x, slot) in x.chunks_exact(COLS).zip(&slots) {
            let slot = *slot as usize;
            let y = of_expert(&w, ids[slot] as usize, x);
            twin[slot * ROWS..][..ROWS].copy_from_slice(&y);
        }
        let y = lab.room(twin.len());
        let weight = &lab.load(&[&w])?[0];
        let x = input(lab, form, &x, COLS);
        let product = GpuGemm {
            experts: Some(experts),
            ..GpuGemm::of(form, weight, x, TOKENS as u32, &y)
        };
        lab.run(product.calls(lab.gpu), state(TOKENS, 0))?;
        Ok(vec![lab.floats(&y, &twin, limit(form))?])
    });
}

/// The product of one expert.
fn of_expert(w: &Weight, expert: usize, x: &[f32]) -> Vec<f32> {
    let mut all = vec![0.0; w.groups * w.rows];
    matvec(w, x, 1, MatvecOptions::per_group(x.len(), 0), &mut all);
    all[expert * w.rows..][..w.rows].to_vec()
}
