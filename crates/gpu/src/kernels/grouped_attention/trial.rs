//! Whether a device's cooperative matrices attend to grouped keys and values as f32 does, and how fast.

use super::{Form, GpuGroupedAttention, partials};
use crate::gpu::buffer::{Buffer, Range, Role};
use crate::gpu::call::{Call, State};
use crate::gpu::machine::Machine;
use crate::kernels::attention::{Cuts, cut_context};
use crate::kernels::coop::{Trial, made_up};
use crate::kernels::{GroupedDims, attention_merge};
use crate::quant::activation::Activation;

/// The NMSE that a device may show where the forms are [compared]. Rounding queries and weights to f16 explains 1e-6.
pub(in crate::kernels) const LIMIT: f64 = 1e-5;

const NAME: &str = "trial of grouped attention of a token";

/// The attention to made-up cache rows in these forms. There are two slices of two tiles, and the last tile is not full. Scores rise within a slice,
/// so that sums must be scaled.
pub(in crate::kernels) fn compared(
    forms: [Form; 2],
    dims: GroupedDims,
) -> Trial<impl Fn(bool, &Range) -> Vec<Call>> {
    let slice_rows = 2 * forms[0].tile(0).0;
    let rows = 2 * slice_rows - 5;
    let mut floats = made_up();
    let scale = 1.0 / (dims.key as f32).sqrt();
    let mut q = floats(dims.heads * dims.key, 4.0);
    let mut cache = floats(rows * dims.cache_values(), 1.0);
    // One value of each key rises from 0 to 16 * 127 / 128 in a slice, and adds twice as much to the score. These values are exact in f16 and in codes
    // of 8 bits. Greater ones would be rounded, and be off by more than all else.
    let queries = q.chunks_exact_mut(dims.key);
    queries.for_each(|q| q[0] = 2.0 / scale);
    for (i, row) in cache.chunks_exact_mut(dims.cache_values()).enumerate() {
        let keys = row.chunks_exact_mut(dims.key).take(dims.kv_heads);
        let risen = i % slice_rows * 17 / slice_rows;
        keys.for_each(|key| key[0] = risen as f32 * (127.0 / 128.0));
    }
    let cache = Buffer::with(NAME, &dims.rows().write_all(&cache));
    let attention = GpuGroupedAttention {
        form: forms[1],
        q: Range::whole(&Buffer::with(NAME, &q)),
        cache: Range::whole(&cache).holding(Role::Cache),
        dims,
        scale,
        partials: partials(dims, 1),
        sequences: None,
    };
    let calls = move |matrices: bool, out: &Range| {
        let attention = in_form(&attention, forms, matrices);
        let merge = attention_merge::call(
            (None, false),
            &attention.partials,
            [dims.heads, dims.value],
            out,
            Activation::Floats,
        );
        vec![attention.call(), merge]
    };
    Trial {
        state: State {
            pos: rows as u32 - 1,
            tokens: 1,
            slices: rows.div_ceil(slice_rows) as u32,
            slice_rows: slice_rows as u32,
            ..State::default()
        },
        values: dims.heads * dims.value,
        calls,
    }
}

/// The attention to a long context of zeros in these forms, whose slices are not joined.
pub(super) fn timed(
    machine: Machine,
    forms: [Form; 2],
    dims: GroupedDims,
) -> Trial<impl Fn(bool, &Range) -> Vec<Call>> {
    const ROWS: usize = 8192;
    let bytes = (ROWS * dims.cache_row() * 2) as u64;
    let attention = GpuGroupedAttention {
        form: forms[1],
        q: Range::floats(NAME, (dims.heads * dims.key) as u64),
        cache: Range::whole(&Buffer::new(NAME, bytes, Role::Cache)),
        dims,
        scale: 1.0,
        partials: partials(dims, 1),
        sequences: None,
    };
    let calls = move |matrices: bool, _: &Range| vec![in_form(&attention, forms, matrices).call()];
    let (slices, slice_rows) = cut_context(forms[0], machine, ROWS, 1, dims.heads);
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

fn in_form(
    attention: &GpuGroupedAttention,
    forms: [Form; 2],
    matrices: bool,
) -> GpuGroupedAttention {
    GpuGroupedAttention {
        form: forms[usize::from(!matrices)],
        ..attention.clone()
    }
}
