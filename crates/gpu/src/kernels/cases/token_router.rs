//! Cases of the experts' logits of a decoded token.

use super::Case;
use super::lab::{Compared, Lab, state};
use super::places::Several;
use super::prepared::{EPS, Normed};
use crate::gpu::GpuError;
use crate::kernels::token_router::{GpuTokenRouter, token_router};
use crate::quant::GgmlType;

/// Compares the router with the norm inside, and of values that are multiplied by its weight already.
fn compare(lab: &Lab<'_>, [rows, cols]: [usize; 2]) -> Result<Vec<Compared>, GpuError> {
    let w = lab.weight(GgmlType::F32, [1, rows, cols]);
    let x = Normed::new(lab, 1, cols);
    let twin = token_router(&w, &x.weighted, &x.squares, EPS);
    let weight = lab.load(&w)?;
    let mut all = vec![];
    for inside in [true, false] {
        let router = GpuTokenRouter {
            weight: &weight,
            x: lab.given(if inside { &x.x } else { &x.weighted }),
            norm: inside.then(|| lab.given(&x.norm)),
            squares: lab.given(&x.squares),
            eps: EPS,
            y: lab.room(rows),
            stride: rows as u32,
            tokens: 1,
        };
        lab.run(router.calls(), state(1, 0))?;
        all.push(lab.floats(&router.y, &twin, 1e-12)?);
    }
    Ok(all)
}

/// Compares the router of several tokens, whose logits are made whole vec4.
fn of_several(lab: &Lab<'_>, [rows, cols]: [usize; 2]) -> Result<Vec<Compared>, GpuError> {
    let Several { here, most } = Several::new(lab);
    let w = lab.weight(GgmlType::F32, [1, rows, cols]);
    let x = Normed::new(lab, most, cols);
    let stride = rows.next_multiple_of(4);
    let weight = lab.load(&w)?;
    let router = GpuTokenRouter {
        weight: &weight,
        x: lab.given(&x.x),
        norm: Some(lab.given(&x.norm)),
        squares: lab.given(&x.squares),
        eps: EPS,
        y: lab.room(most * stride),
        stride: stride as u32,
        tokens: most as u32,
    };
    Several { here, most }.run(lab, router.calls(), 1)?;
    let found: Vec<f32> = lab.read(&router.y, here * stride)?;
    let of_token = |(t, found): (usize, &[f32])| {
        let (weighted, (squares, _)) = (&x.weighted[t * cols..][..cols], x.rms(t));
        let twin = token_router(&w, weighted, squares, EPS);
        lab.close(&found[..rows], &twin, 1e-12)
    };
    Ok(found
        .chunks_exact(stride)
        .enumerate()
        .map(of_token)
        .collect())
}

pub(crate) fn cases() -> Vec<Case> {
    let case = |shape: [usize; 2]| {
        let name = format!("f32 {}x{}", shape[0], shape[1]);
        Case::new(name, move |lab| compare(lab, shape)).verified_if(shape[0] == 64)
    };
    let mut all: Vec<_> = [[64, 2048], [8, 320], [256, 7168], [3, 32]]
        .map(case)
        .into();
    all.extend([[64, 2048], [3, 32]].map(|shape| {
        let name = format!("f32 {}x{}, tokens", shape[0], shape[1]);
        Case::new(name, move |lab| of_several(lab, shape))
    }));
    all
}
