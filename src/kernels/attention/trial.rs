//! Whether a device's cooperative matrices attend as f32 does.

use super::{Form, GpuAttention, partial_bytes};
use crate::gpu::buffer::{Range, Role};
use crate::gpu::call::State;
use crate::gpu::record::Recording;
use crate::gpu::{Gpu, GpuError, Most, Step};
use crate::kernels::attention_coop::{Shape, Shapes};
use crate::kernels::{MlaDims, attention_merge};

/// The NMSE that a device may show in the [`trial`]. Rounding queries and weights to f16 explains 1e-6: scores of variance
/// 9 are off by 6e-4, so weights by as much.
pub(in crate::kernels) const LIMIT: f64 = 1e-5;

/// The NMSE of this form against the other one on the device, for made-up queries and cache rows: three slices, the last
/// tile not full, scores that rise so that sums must be scaled.
///
/// # Errors
/// What the device reports.
pub(in crate::kernels) async fn trial(
    gpu: &Gpu,
    shape: Shape,
    dims: MlaDims,
) -> Result<f64, GpuError> {
    const ROWS: usize = 120;
    let mut state = 1u32;
    // Uniform in -1..1 (the linear congruence of Numerical Recipes).
    let mut value = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let mut floats =
        |n: usize, scale: f32| -> Vec<f32> { (0..n).map(|_| value() * scale).collect() };
    let (q_lat, mut q_pe) = (
        floats(dims.heads * dims.kv_lora, 4.0),
        floats(dims.heads * dims.rope, 4.0),
    );
    let mut cache = floats(ROWS * dims.cache_row(), 1.0);
    // One value of the key is 0, 1, 2.. for every 2 rows, and adds as much to the score.
    let scale = 1.0 / (dims.cache_row() as f32).sqrt();
    q_pe.iter_mut()
        .step_by(dims.rope)
        .for_each(|q| *q = 1.0 / scale);
    for (i, row) in cache.chunks_exact_mut(dims.cache_row()).enumerate() {
        row[dims.kv_lora] = (i / 2) as f32;
    }
    let cache: Vec<half::f16> = cache.into_iter().map(half::f16::from_f32).collect();
    let sizes = partial_bytes(dims, 1);
    const NAME: &str = "trial of attention";
    let floats = async |bytes: u64| {
        let buffer = gpu.storage_async(NAME, bytes, Role::Floats).await?;
        Ok::<_, GpuError>(Range::whole(&buffer))
    };
    let partials = [floats(sizes[0]).await?, floats(sizes[1]).await?];
    let matrices = Form::Matrix(Shapes::always(shape));
    let slice_rows = shape.tile().0 as u32;
    let state = State {
        pos: ROWS as u32 - 1,
        tokens: 1,
        slices: (ROWS as u32).div_ceil(3 * slice_rows),
        slice_rows: 3 * slice_rows,
        ..State::default()
    };
    let latent = q_lat.len() as u64 * 4;
    let q_lat = gpu.storage_with_async(NAME, &q_lat).await?;
    let q_pe = gpu.storage_with_async(NAME, &q_pe).await?;
    let cache = gpu.storage_with_async(NAME, &cache).await?;
    let mut attention = GpuAttention {
        form: Form::Vector,
        q_lat: Range::whole(&q_lat),
        q_pe: Range::whole(&q_pe),
        cache: Range::whole(&cache).holding(Role::Cache),
        dims,
        scale,
        partials: partials.clone(),
    };
    let mut results = vec![];
    for form in [Form::Vector, matrices] {
        attention.form = form;
        let out = floats(latent).await?;
        let output = attention_merge::Output::Floats;
        let merge = attention_merge::call(&partials, dims, &out, output);
        let calls = [attention.calls(), vec![merge]].concat();
        let step = Step::of(Most::of(&state), calls);
        let recording = Recording::new_async(gpu, &step).await?;
        recording.submit(gpu, &state);
        results.push(gpu.read_async::<f32>(&out.buffer, 0, latent).await?);
    }
    let sum =
        |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>();
    let error = sum(&mut results[0].iter().zip(&results[1]).map(|(a, b)| a - b));
    Ok(error / sum(&mut results[0].iter().copied()))
}
