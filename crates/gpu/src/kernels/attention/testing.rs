//! Cases and checks that the tests of one token's attention share, whichever kernel attends.

use super::{Form, GpuAttention, attention, partial_bytes};
use crate::gpu::Gpu;
use crate::gpu::buffer::{Range, Role};
use crate::gpu::call::{Call, State};
use crate::gpu::testing::{download, output, run, upload};
use crate::kernels::testing::{Rng, cache_rows, nmse};
use crate::kernels::{MlaDims, attention_merge};
use crate::quant::activation::Activation;
use half::f16;

/// The sizes of GLM-4.7-Flash.
pub fn glm() -> MlaDims {
    MlaDims {
        heads: 20,
        nope: 192,
        rope: 64,
        kv_lora: 512,
    }
}

/// The NMSE that is allowed over so many rows. The twin adds row by row, so its own error grows with the rows. The error of the kernels is
/// smaller.
pub fn limit(rows: usize) -> f64 {
    1e-12 + 1e-12 * rows as f64
}

/// NMSE against the twin of what `calls` makes of the attention of one token over `n` rows, cut into slices of rows.
pub fn token_error(
    gpu: &Gpu,
    dims: MlaDims,
    n: usize,
    (slices, slice_rows): (usize, usize),
    calls: impl FnOnce(GpuAttention) -> Vec<Call>,
) -> f64 {
    let mut rng = Rng::fresh();
    let row = dims.cache_row();
    let mut cache = cache_rows(&mut rng, n, row);
    // Queries large enough for weights that differ much, as real ones do.
    let mut queries = |n: usize| -> Vec<f32> { rng.normals(n).iter().map(|x| x * 3.0).collect() };
    let q_lat = queries(dims.heads * dims.kv_lora);
    let mut q_pe = queries(dims.heads * dims.rope);
    let scale = 1.0 / (row as f32).sqrt();
    // A share of the scores that rises by 1 every 2 rows, so that sums must be scaled.
    q_pe.iter_mut()
        .step_by(dims.rope)
        .for_each(|q| *q = 1.0 / scale);
    // The share of the second head falls by 16 every 2 rows instead. Its sums must stay as they are where those of other heads are scaled: a
    // factor between its scores may be too small or too large for an f32.
    if let Some(q) = q_pe.iter_mut().step_by(dims.rope).nth(1) {
        *q = -16.0 / scale;
    }
    for (i, row) in cache[..n * row].chunks_exact_mut(row).enumerate() {
        row[dims.kv_lora] = f16::from_f32((i / 2 % 32) as f32);
    }
    let mut twin = vec![f32::NAN; q_lat.len()];
    attention(&q_lat, &q_pe, &cache, n - 1, 1, dims, scale, &mut twin);
    let exact: Vec<f64> = twin.iter().map(|x| f64::from(*x)).collect();

    let partials =
        partial_bytes(dims, 1).map(|bytes| Range::whole(&output(gpu, bytes as usize / 4)));
    let out = output(gpu, q_lat.len());
    let mut calls = calls(GpuAttention {
        form: Form::Vector,
        q_lat: Range::whole(&upload(gpu, &q_lat)),
        q_pe: Range::whole(&upload(gpu, &q_pe)),
        cache: Range::whole(&upload(gpu, &cache)).holding(Role::Cache),
        dims,
        scale,
        partials: partials.clone(),
        sequences: None,
    });
    let floats = Activation::Floats;
    calls.push(attention_merge::call(
        None,
        &partials,
        dims,
        &Range::whole(&out),
        floats,
    ));
    let state = State {
        pos: n as u32 - 1,
        tokens: 1,
        slices: slices as u32,
        slice_rows: slice_rows as u32,
        ..State::default()
    };
    run(gpu, &calls, &state);
    nmse(&download(gpu, &out, q_lat.len()), &exact)
}
