//! A case of the product of two weights as a weight.

use half::f16;

use super::Case;
use super::lab::{Compared, Lab};
use crate::gpu::GpuError;
use crate::gpu::call::State;
use crate::kernels::compose::{Composition, GpuCompose, Pair, compose};
use crate::model::Weight;
use crate::quant::{GgmlType, SMALL_BLOCK, dequantize_row};

fn compare(lab: &Lab<'_>, composition: Composition) -> Result<Vec<Compared>, GpuError> {
    let c = &composition;
    let left = lab.weight(GgmlType::Q8_0, [c.heads, c.rows, c.depth]);
    let rows = c.heads * (c.depth + c.kept);
    let right = lab.weight(GgmlType::Q4_0, [1, rows, c.cols]);
    let ty = GgmlType::Q8_0;
    let twin = compose(c, [&left, &right], ty);
    let out = c.product(ty);
    let [codes, scales] = [&out.pieces[0].quants, &out.pieces[0].scales];
    let call = GpuCompose {
        composition,
        left: &lab.load(&left)?,
        right: &lab.load(&right)?,
        out: &out,
    };
    lab.run(call.calls()?, State::default())?;
    let blocks = c.out_rows() * c.out_cols() / SMALL_BLOCK;
    let codes: Vec<[i8; SMALL_BLOCK]> = lab.read(codes, blocks)?;
    let scales: Vec<f16> = lab.read(scales, blocks)?;
    let blocks = codes.iter().zip(scales);
    let found: Vec<f32> = blocks
        .flat_map(|(codes, d)| codes.map(|code| f32::from(code) * f32::from(d)))
        .collect();
    // Where a value is midway between two codes it may become the other one, which counts more in a product as small as this.
    Ok(vec![lab.close(&found, &values(&twin), 1e-5)])
}

fn values(w: &Weight) -> Vec<f32> {
    let mut all = vec![0.0; w.rows * w.cols];
    for (row, values) in all.chunks_exact_mut(w.cols).enumerate() {
        dequantize_row(w.ty, w.row(0, row), values);
    }
    all
}

pub(crate) fn cases() -> Vec<Case> {
    let composition = Composition {
        pair: Pair::Qk,
        heads: 2,
        rows: 96,
        depth: 64,
        cols: 128,
        kept: 32,
    };
    let case = Case::new("q8_0 by q4_0, 2 heads", move |lab| {
        compare(lab, composition)
    });
    vec![case.verified()]
}
