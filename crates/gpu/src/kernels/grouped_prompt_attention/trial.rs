//! Whether a device's cooperative matrices attend to a prompt as f32 does in grouped-query attention, and how fast.

use super::{Form, GpuGroupedPromptAttention};
use crate::gpu::Coop;
use crate::gpu::buffer::{Buffer, Range, Role};
use crate::gpu::call::{Call, State};
use crate::kernels::GroupedDims;
use crate::kernels::coop::{Trial, made_up};

/// The NMSE that a device may show where the forms are [compared]. Rounding to f16 explains 1e-6.
pub(super) const LIMIT: f64 = 1e-5;
/// Tokens of the prompt that is [timed]: 1 GFLOP at the sizes of Qwen3-30B-A3B.
pub(super) const TIMED: usize = 256;

const NAME: &str = "trial of grouped attention";

/// The attention to a made-up prompt by matrices and in f32: tiles not full, scores that rise so that sums must be scaled.
pub(super) fn compared(dims: GroupedDims, coop: Coop) -> Trial<impl Fn(bool, &Range) -> Vec<Call>> {
    const POS: usize = 90;
    const TOKENS: usize = 70;
    let mut floats = made_up();
    let scale = 1.0 / (dims.key as f32).sqrt();
    let mut q = floats(TOKENS * dims.heads * dims.key, 4.0);
    let mut cache = floats((POS + TOKENS) * dims.cache_values(), 1.0);
    // One value of each key rises by 127 / 128 every 10 rows, and adds as much to the score. It is exact in codes of 8 bits, too: a greater
    // one would be off by more than all else when it is rounded to f16.
    let queries = q.chunks_exact_mut(dims.key);
    queries.for_each(|q| q[0] = 1.0 / scale);
    for (i, row) in cache.chunks_exact_mut(dims.cache_values()).enumerate() {
        let keys = row.chunks_exact_mut(dims.key).take(dims.kv_heads);
        keys.for_each(|key| key[0] = (i / 10) as f32 * (127.0 / 128.0));
    }
    let cache = Buffer::with(NAME, &dims.rows().write_all(&cache));
    let cache = Range::whole(&cache).holding(Role::Cache);
    let q = Range::whole(&Buffer::with(NAME, &q));
    let state = State {
        pos: POS as u32,
        tokens: TOKENS as u32,
        ..State::default()
    };
    trial(dims, coop, [q, cache], scale, state)
}

/// The attention to a prompt of `tokens` zeros by matrices and in f32.
pub(super) fn timed(
    dims: GroupedDims,
    coop: Coop,
    tokens: usize,
) -> Trial<impl Fn(bool, &Range) -> Vec<Call>> {
    let q = Range::floats(NAME, (tokens * dims.heads * dims.key) as u64);
    let rows = (tokens * dims.cache_row() * 2) as u64;
    let cache = Range::whole(&Buffer::new(NAME, rows, Role::Cache));
    let state = State {
        tokens: tokens as u32,
        ..State::default()
    };
    trial(dims, coop, [q, cache], 1.0, state)
}

/// The attention of these queries to this cache, both ways.
fn trial(
    dims: GroupedDims,
    coop: Coop,
    [q, cache]: [Range; 2],
    scale: f32,
    state: State,
) -> Trial<impl Fn(bool, &Range) -> Vec<Call>> {
    let calls = move |matrices: bool, values: &Range| {
        let attention = GpuGroupedPromptAttention {
            form: match matrices {
                true => Form::Matrix(coop),
                false => Form::Vector,
            },
            q: q.clone(),
            cache: cache.clone(),
            sequences: None,
            dims,
            scale,
            values: values.clone(),
        };
        vec![attention.call()]
    };
    Trial {
        values: state.tokens as usize * dims.heads * dims.value,
        state,
        calls,
    }
}
