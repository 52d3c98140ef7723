//! Whether a device's cooperative matrices attend to a prompt as f32 does, and how fast.

use super::{Form, GpuPromptAttention, Scratch};
use crate::gpu::buffer::{Buffer, Range, Role};
use crate::gpu::call::{Blocks, Call, State};
use crate::gpu::{Coop, Target};
use crate::kernels::KvDims;
use crate::kernels::coop::{Trial, made_up};
use half::f16;

/// The NMSE that a device may show where the forms are [compared]. Rounding to f16 explains 1e-6.
pub(super) const LIMIT: f64 = 1e-5;
/// Tokens of the prompt that is [timed]: with the expansion some 3 GFLOP at the sizes of GLM-4.7-Flash.
pub(super) const TIMED: usize = 256;

const NAME: &str = "trial of attention";

/// The attention to a made-up prompt by matrices and in f32: two blocks, tiles not full, scores that rise so that sums must be scaled.
pub(super) fn compared(
    target: &Target,
    dims: KvDims,
    coop: Coop,
) -> Trial<impl Fn(bool, &Range) -> Vec<Call>> {
    const POS: usize = 90;
    const TOKENS: usize = 70;
    let (mla, rows) = (dims.mla, POS + TOKENS);
    let mut floats = made_up();
    let scale = 1.0 / (mla.head() as f32).sqrt();
    let mut q = floats(TOKENS * mla.heads * mla.head(), 4.0);
    let mut cache = floats(rows * mla.cache_values(), 1.0);
    let weights = floats(dims.width() * mla.kv_lora, 0.07);
    // One value of the key is 0, 1, 2.. for every 8 rows, and adds as much to the score: rotations here turn by nothing.
    let table = [1.0f32, 0.0].repeat(rows * mla.rope / 2);
    let queries = q.chunks_exact_mut(mla.head());
    queries.for_each(|q| q[mla.nope] = 1.0 / scale);
    for (i, row) in cache.chunks_exact_mut(mla.cache_values()).enumerate() {
        row[mla.kv_lora] = (i / 8) as f32;
    }
    let narrow = |wide: &[f32]| -> Vec<f16> { wide.iter().map(|x| f16::from_f32(*x)).collect() };
    let [q, rope_table] = [q, table].map(|values| Range::whole(&Buffer::with(NAME, &values)));
    let cache =
        Range::whole(&Buffer::with(NAME, &mla.rows().write_all(&cache))).holding(Role::Cache);
    let calls = move |matrices: bool, values: &Range| {
        let (form, weights) = match matrices {
            true => (Form::Matrix(coop), Buffer::with(NAME, &narrow(&weights))),
            false => (Form::Vector, Buffer::with(NAME, &weights)),
        };
        let scratch = Scratch {
            weights: Range::whole(&weights),
            ..Scratch::cut(dims, form, TOKENS, Blocks::new(128, rows as u32))
        };
        let attention = GpuPromptAttention {
            form,
            q: q.clone(),
            rope_table: rope_table.clone(),
            cache: cache.clone(),
            sequences: None,
            dims,
            scale,
            max_tokens: TOKENS as u32,
            scratch: &scratch,
            values: values.clone(),
        };
        attention.calls(target).to_vec()
    };
    Trial {
        state: State {
            pos: POS as u32,
            tokens: TOKENS as u32,
            ..State::default()
        },
        values: TOKENS * mla.heads * dims.v,
        calls,
    }
}

/// The attention to a prompt of `tokens` zeros by matrices and in f32.
pub(super) fn timed(
    target: &Target,
    dims: KvDims,
    coop: Coop,
    tokens: usize,
) -> Trial<impl Fn(bool, &Range) -> Vec<Call>> {
    let mla = dims.mla;
    let floats = |n: usize| Range::floats(NAME, n as u64);
    let q = floats(tokens * mla.heads * mla.head());
    let rope_table = floats(tokens * mla.rope);
    let rows = (tokens * mla.cache_row() * 2) as u64;
    let cache = Range::whole(&Buffer::new(NAME, rows, Role::Cache));
    let calls = move |matrices: bool, values: &Range| {
        let form = match matrices {
            true => Form::Matrix(coop),
            false => Form::Vector,
        };
        let attention = GpuPromptAttention {
            form,
            q: q.clone(),
            rope_table: rope_table.clone(),
            cache: cache.clone(),
            sequences: None,
            dims,
            scale: 1.0,
            max_tokens: tokens as u32,
            scratch: &Scratch::new(target, dims, form, tokens, tokens),
            values: values.clone(),
        };
        attention.calls(target).to_vec()
    };
    Trial {
        state: State {
            tokens: tokens as u32,
            ..State::default()
        },
        values: tokens * mla.heads * dims.v,
        calls,
    }
}
