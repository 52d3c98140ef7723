//! [`embed`](super::embed) of one token in the `int8` tier: the row as f32 and as bytes for the first layer.

use super::q8::Q8Output;
use crate::gpu::memory::GpuWeight;
use crate::gpu::pipeline::Spec;
use crate::gpu::record::{Extent, Op, Range, Word, accesses};
use crate::gpu::shader::Variant;
use crate::kernels::embed::embed;
use crate::model::Weight;
use crate::quant::activation::{Q8Unit, quantize_activation, squares};
use crate::quant::repack::shader_module;

/// The row of `token`, its sums of squares of 16 values, and the records of the row times `norm`.
pub fn embed_q8(
    token_embd: &Weight,
    token: u32,
    norm: &[f32],
) -> (Vec<f32>, Vec<f32>, Vec<Q8Unit>) {
    let mut x = vec![0.0; token_embd.cols];
    embed(token_embd, &[token], &mut x);
    let weighted: Vec<f32> = x.iter().zip(norm).map(|(x, g)| x * g).collect();
    let squares = squares(&x);
    (x, squares, quantize_activation(&weighted))
}

/// The pipeline.
pub(super) fn spec(w: &GpuWeight) -> Spec {
    Spec {
        kernel: "embed_q8",
        source: include_str!("../../wgsl/embed_q8.wgsl"),
        variant: Variant::default()
            .module("WEIGHT", shader_module(w.ty))
            .number("UNITS", w.cols / 32),
        access: accesses("rrrrwww"),
    }
}

/// The row history\[pos\] as f32 in `y` and as bytes in `q`, which must have a norm; one dispatch per part.
///
/// # Panics
/// If a buffer is too small, which would let the kernel index beyond it, or `q` has no norm.
pub fn ops(token_embd: &GpuWeight, history: &Range, y: &Range, q: &Q8Output) -> Vec<Op> {
    let w = token_embd;
    assert!(y.size >= u64::from(w.cols) * 4, "output of {}", w.name);
    q.check(w.cols, &w.name);
    let (norm, squares) = q.norm.clone().expect("the first layer begins with a norm");
    let units = w.cols / 32;
    w.parts
        .iter()
        .map(|part| {
            let bindings = vec![
                part.quants.clone(),
                part.scales.clone(),
                history.clone(),
                norm.clone(),
                y.clone(),
                squares.clone(),
                q.records.clone(),
            ];
            let params = vec![
                Word::U(part.rows),
                Word::U(part.first_row),
                Word::U(part.sub),
                Word::Pos,
            ];
            let grid = [Extent::N(units.div_ceil(64)), Extent::N(1), Extent::N(1)];
            Op::new(spec(w), bindings, params, grid).with_bytes(w.bytes_of_rows(1))
        })
        .collect()
}
