//! The products of tier `plain`: everything in f32.

use super::lab::{Lab, state};
use super::{EPS, TYPES};
use crate::gpu::call::Word;
use crate::kernels::gate_up::{GpuGateUp, gate_up as gate_up_twin};
use crate::kernels::matvec::{GpuMatvec, MatvecOptions, matvec as matvec_twin};
use crate::kernels::moe_down::{GpuMoeDown, moe_down as moe_down_twin};
use crate::kernels::rope_cache::{Rotation, rotate_rows};
use crate::quant::GgmlType;

/// f32 sums in another order.
const LIMIT: f64 = 1e-10;
/// Tokens of a step.
const TOKENS: usize = 3;

pub(super) fn matvec(lab: &mut Lab<'_>) {
    for ty in TYPES {
        normed(lab, ty);
    }
    heads(lab);
    rotated(lab);
}

/// With a norm before it and a residual after it.
fn normed(lab: &mut Lab<'_>, ty: GgmlType) {
    let (rows, cols) = (130, 768);
    lab.check(format!("{ty} {rows}x{cols}, {TOKENS} tokens"), |lab| {
        let w = lab.weight(ty, [1, rows, cols]);
        let (x, norm) = (lab.normals(TOKENS * cols), lab.normals(cols));
        let residual = lab.normals(TOKENS * rows);
        let mut twin = vec![0.0; TOKENS * rows];
        let options = MatvecOptions::contiguous(cols).with_norm(&norm, EPS);
        let options = options.with_residual(&residual);
        matvec_twin(&w, &x, TOKENS, options, &mut twin);
        let y = lab.room(twin.len());
        let product = GpuMatvec {
            weight: &lab.load(&[&w])?[0],
            max_tokens: TOKENS as u32,
            x: lab.given(&x),
            x_offset: Word::U(0),
            x_stride: cols as u32,
            x_group_stride: 0,
            norm: Some((lab.given(&norm), EPS)),
            residual: Some(lab.given(&residual)),
            y: y.clone(),
            tokens: Word::Tokens,
        };
        lab.run(product.calls(), state(TOKENS, 0))?;
        Ok(vec![lab.floats(&y, &twin, LIMIT)?])
    });
}

/// Of heads, each with an input of its own.
fn heads(lab: &mut Lab<'_>) {
    let (groups, rows, cols, apart) = (4, 96, 64, 96);
    lab.check(format!("q5_0 {groups}x{rows}x{cols}"), |lab| {
        let w = lab.weight(GgmlType::Q5_0, [groups, rows, cols]);
        let x = lab.normals(groups * apart);
        let mut twin = vec![0.0; groups * rows];
        let options = MatvecOptions::per_group(groups * apart, apart);
        matvec_twin(&w, &x, 1, options, &mut twin);
        let y = lab.room(twin.len());
        let product = GpuMatvec {
            weight: &lab.load(&[&w])?[0],
            max_tokens: 1,
            x: lab.given(&x),
            x_offset: Word::U(0),
            x_stride: (groups * apart) as u32,
            x_group_stride: apart as u32,
            norm: None,
            residual: None,
            y: y.clone(),
            tokens: Word::Tokens,
        };
        lab.run(product.calls(), state(1, 0))?;
        Ok(vec![lab.floats(&y, &twin, LIMIT)?])
    });
}

/// Of one token, with rotated rows behind the others.
fn rotated(lab: &mut Lab<'_>) {
    let (rows, first, rope, cols, pos, n_ctx) = (576, 448, 64, 256, 5, 7);
    lab.check(format!("q8_0 {rows}x{cols}, rotated"), |lab| {
        let w = lab.weight(GgmlType::Q8_0, [1, rows, cols]);
        let (x, norm) = (lab.normals(cols), lab.normals(cols));
        let table = lab.normals(n_ctx * rope);
        let mut twin = vec![0.0; rows];
        let options = MatvecOptions::contiguous(cols).with_norm(&norm, EPS);
        matvec_twin(&w, &x, 1, options, &mut twin);
        let (angles, _) = table[pos * rope..][..rope].as_chunks();
        rotate_rows(&mut twin, first, rope, angles);
        let y = lab.room(rows);
        let product = GpuMatvec {
            weight: &lab.load(&[&w])?[0],
            max_tokens: 1,
            x: lab.given(&x),
            x_offset: Word::U(0),
            x_stride: cols as u32,
            x_group_stride: 0,
            norm: Some((lab.given(&norm), EPS)),
            residual: None,
            y: y.clone(),
            tokens: Word::Tokens,
        };
        let rotation = Rotation {
            table: lab.given(&table),
            first_row: first as u32,
            rope: rope as u32,
        };
        lab.run(product.rotated_calls(&rotation), state(1, pos))?;
        Ok(vec![lab.floats(&y, &twin, LIMIT)?])
    });
}

pub(super) fn gate_up(lab: &mut Lab<'_>) {
    gate_up_of(lab, None);
    gate_up_of(lab, Some(2));
}

/// Of experts, so many of which each token chose, or of a dense block.
fn gate_up_of(lab: &mut Lab<'_>, used: Option<usize>) {
    let (rows, cols) = (70, 256);
    let experts = used.map_or(1, |_| 5);
    let slots = TOKENS * used.unwrap_or(1);
    let case = format!("q4_k, q6_k {experts}x{rows}x{cols}, {slots} slots");
    lab.check(case, |lab| {
        let gate = lab.weight(GgmlType::Q4_K, [experts, rows, cols]);
        let up = lab.weight(GgmlType::Q6_K, [experts, rows, cols]);
        let (x, norm) = (lab.normals(TOKENS * cols), lab.normals(cols));
        let ids: Vec<u32> = (0..slots).map(|_| lab.below(experts) as u32).collect();
        let chosen = used.map(|_| ids.as_slice());
        let mut twin = vec![0.0; slots * rows];
        let norm_of = Some((norm.as_slice(), EPS));
        gate_up_twin(&gate, &up, &x, TOKENS, norm_of, chosen, &mut twin);
        let h = lab.room(twin.len());
        let weights = lab.load(&[&gate, &up])?;
        let call = GpuGateUp {
            gate: &weights[0],
            up: &weights[1],
            max_tokens: TOKENS as u32,
            x: lab.given(&x),
            norm: (lab.given(&norm), EPS),
            ids: used.map(|used| (lab.given(&ids), used as u32)),
            h: h.clone(),
        };
        lab.run(call.calls(), state(TOKENS, 0))?;
        Ok(vec![lab.floats(&h, &twin, LIMIT)?])
    });
}

pub(super) fn moe_down(lab: &mut Lab<'_>) {
    let (experts, used, rows, cols) = (5, 2, 130, 256);
    let slots = TOKENS * used;
    lab.check(
        format!("q6_k {experts}x{rows}x{cols}, {slots} slots"),
        |lab| {
            let down = lab.weight(GgmlType::Q6_K, [experts, rows, cols]);
            let (h, weights) = (lab.normals(slots * cols), lab.normals(slots));
            let residual = lab.normals(TOKENS * rows);
            let ids: Vec<u32> = (0..slots).map(|_| lab.below(experts) as u32).collect();
            let mut twin = vec![0.0; TOKENS * rows];
            moe_down_twin(&down, &h, &ids, &weights, TOKENS, &residual, &mut twin);
            let y = lab.room(twin.len());
            let call = GpuMoeDown {
                down: &lab.load(&[&down])?[0],
                max_tokens: TOKENS as u32,
                used: used as u32,
                h: lab.given(&h),
                ids: lab.given(&ids),
                weights: lab.given(&weights),
                residual: lab.given(&residual),
                y: y.clone(),
            };
            lab.run(call.calls(), state(TOKENS, 0))?;
            Ok(vec![lab.floats(&y, &twin, LIMIT)?])
        },
    );
}
