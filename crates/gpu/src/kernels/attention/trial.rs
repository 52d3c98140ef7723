//! Whether a device's cooperative matrices attend as f32 does, and how fast.

use super::{Form, GpuAttention, cut_context, partials};
use crate::gpu::buffer::{Buffer, Range, Role};
use crate::gpu::call::{Call, State};
use crate::gpu::machine::Machine;
use crate::kernels::attention_coop::{Shape, Shapes};
use crate::kernels::coop::{Trial, made_up};
use crate::kernels::{MlaDims, attention_merge};
use crate::quant::activation::Activation;

/// The NMSE that a device may show where the forms are [compared]. Rounding queries and weights to f16 explains 1e-6: scores of variance
/// 9 are off by 6e-4, so weights by as much.
pub(in crate::kernels) const LIMIT: f64 = 1e-5;

const NAME: &str = "trial of attention";

/// The attention to made-up cache rows by this shape and in f32: slices of three tiles, the last tile not full, scores that rise so that
/// sums must be scaled.
pub(in crate::kernels) fn compared(
    shape: Shape,
    dims: MlaDims,
) -> Trial<impl Fn(bool, &Range) -> Vec<Call>> {
    const ROWS: usize = 120;
    let mut floats = made_up();
    let q_lat = floats(dims.heads * dims.kv_lora, 4.0);
    let mut q_pe = floats(dims.heads * dims.rope, 4.0);
    let mut cache = floats(ROWS * dims.cache_values(), 1.0);
    // One value of the key is 0, 1, 2.. for every 2 rows, and adds as much to the score.
    let scale = 1.0 / (dims.cache_values() as f32).sqrt();
    let firsts = q_pe.iter_mut().step_by(dims.rope);
    firsts.for_each(|q| *q = 1.0 / scale);
    for (i, row) in cache.chunks_exact_mut(dims.cache_values()).enumerate() {
        row[dims.kv_lora] = (i / 2) as f32;
    }
    let cache = dims.rows().write_all(&cache);
    let attention = GpuAttention {
        form: Form::Vector,
        q_lat: Range::whole(&Buffer::with(NAME, &q_lat)),
        q_pe: Range::whole(&Buffer::with(NAME, &q_pe)),
        cache: Range::whole(&Buffer::with(NAME, &cache)).holding(Role::Cache),
        dims,
        scale,
        partials: partials(dims, 1),
        sequences: None,
    };
    let calls = move |matrices: bool, out: &Range| {
        let mut attention = attention.clone();
        if matrices {
            attention.form = Form::Matrix(Shapes::always(shape));
        }
        let floats = Activation::Floats;
        let merge = attention_merge::call(
            (None, false),
            &attention.partials,
            [dims.heads, dims.kv_lora],
            out,
            floats,
        );
        [attention.calls(), vec![merge]].concat()
    };
    let slice_rows = 3 * shape.tile().0 as u32;
    Trial {
        state: State {
            pos: ROWS as u32 - 1,
            tokens: 1,
            slices: (ROWS as u32).div_ceil(slice_rows),
            slice_rows,
            ..State::default()
        },
        values: q_lat.len(),
        calls,
    }
}

/// The attention to a long context of zeros by matrices and by another form, whose slices are not joined.
pub(super) fn timed(
    machine: Machine,
    dims: MlaDims,
    [matrices, floats]: [Form; 2],
) -> Trial<impl Fn(bool, &Range) -> Vec<Call>> {
    const ROWS: usize = 4096;
    let rows = (ROWS * dims.cache_row() * 2) as u64;
    let attention = GpuAttention {
        form: floats,
        q_lat: Range::floats(NAME, (dims.heads * dims.kv_lora) as u64),
        q_pe: Range::floats(NAME, (dims.heads * dims.rope) as u64),
        cache: Range::whole(&Buffer::new(NAME, rows, Role::Cache)),
        dims,
        scale: 1.0,
        partials: partials(dims, 1),
        sequences: None,
    };
    let calls = move |by_matrices: bool, _: &Range| {
        let mut attention = attention.clone();
        if by_matrices {
            attention.form = matrices;
        }
        attention.calls()
    };
    let (slices, slice_rows) = cut_context(matrices, machine, ROWS, 1, dims.heads);
    Trial {
        state: State {
            pos: ROWS as u32 - 1,
            tokens: 1,
            slices,
            slice_rows,
            ..State::default()
        },
        values: 0,
        calls,
    }
}
