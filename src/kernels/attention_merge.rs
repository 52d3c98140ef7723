//! Joins what [`attention`](super::attention) left of each slice of the context.

use super::MlaDims;
use super::attention::{MAX_SLICES, partial_bytes};
use crate::gpu::pipeline::Spec;
use crate::gpu::record::{Extent, Op, Range, Word, accesses};
use crate::gpu::shader::Variant;

/// The softmax over all slices of a context from the softmax of each (FlashDecoding).
///
/// `partial` (T, heads, splits, kv_lora) are sums of weights times values, `stats` (T, heads, splits) the score that each
/// slice's weights are relative to and the sum of its weights; a slice without rows has sum 0. `out` (T, heads, kv_lora).
///
/// # Panics
/// If a size does not fit the others.
pub fn attention_merge(
    partial: &[f32],
    stats: &[[f32; 2]],
    splits: usize,
    kv_lora: usize,
    out: &mut [f32],
) {
    let heads = out.len() / kv_lora;
    assert_eq!(stats.len(), heads * splits, "statistics of {heads} heads");
    assert_eq!(
        partial.len(),
        stats.len() * kv_lora,
        "partial sums of {heads} heads"
    );
    for ((out, stats), partial) in out
        .chunks_exact_mut(kv_lora)
        .zip(stats.chunks_exact(splits))
        .zip(partial.chunks_exact(splits * kv_lora))
    {
        let max = stats.iter().map(|s| s[0]).fold(f32::MIN, f32::max);
        let weights = stats.iter().map(|s| (s[0] - max).exp());
        let total: f32 = weights.clone().zip(stats).map(|(w, s)| w * s[1]).sum();
        out.fill(0.0);
        for (weight, part) in weights.zip(partial.chunks_exact(kv_lora)) {
            out.iter_mut().zip(part).for_each(|(o, x)| *o += weight * x);
        }
        out.iter_mut().for_each(|o| *o /= total);
    }
}

/// Threads of a workgroup: at least one per slice.
const WG: u32 = 256;
/// Groups of 4 columns that a workgroup joins.
const COLUMNS: u32 = 32;
const _: () = assert!(MAX_SLICES <= WG as usize);

/// The pipeline for blocks of these sizes.
pub(super) fn spec(dims: MlaDims) -> Spec {
    Spec {
        kernel: "attention_merge",
        source: include_str!("../../wgsl/attention_merge.wgsl"),
        variant: Variant::default()
            .number("WG", WG)
            .number("LANES", 1)
            .number("COLUMNS", COLUMNS)
            .number("PHASES", WG / COLUMNS)
            .number("HEADS", dims.heads as u32)
            .number("KV_LORA", dims.kv_lora as u32),
        access: accesses("rrw"),
    }
}

/// The dispatch for up to `max_tokens` tokens, reading the `partials` that [`GpuAttention`](super::attention::GpuAttention)
/// wrote in the same step; `out` is (max_tokens, heads, kv_lora).
///
/// # Panics
/// If a buffer is too small or `kv_lora` is no multiple of 4.
pub fn op(partials: &[Range; 2], dims: MlaDims, max_tokens: u32, out: &Range) -> Op {
    assert!(dims.kv_lora.is_multiple_of(4), "attention_merge: {dims:?}");
    let sizes = partial_bytes(dims, max_tokens as usize);
    assert!(
        partials.iter().zip(sizes).all(|(p, bytes)| p.size >= bytes),
        "attention_merge: partial sums and statistics need {sizes:?} bytes"
    );
    let bytes = u64::from(max_tokens) * (dims.heads * dims.kv_lora * 4) as u64;
    assert!(
        out.size >= bytes,
        "attention_merge: the output needs {bytes} bytes"
    );
    let blocks = (dims.kv_lora as u32 / 4).div_ceil(COLUMNS);
    let grid = [
        Extent::N(dims.heads as u32),
        Extent::N(blocks),
        Extent::Tokens,
    ];
    let [partial, stats] = partials.clone();
    Op::new(
        spec(dims),
        vec![partial, stats, out.clone()],
        vec![Word::Splits],
        grid,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::record::State;
    use crate::gpu::testing::{download, gpus, output, run, upload};
    use crate::kernels::testing::{Rng, assert_close};

    #[test]
    fn slices_weigh_by_their_scores_and_sums_on_every_device() {
        let mut rng = Rng::fresh();
        for (heads, kv_lora, n_tokens, splits) in [
            (20, 512, 1, 1),
            (16, 512, 1, 52),
            (20, 512, 3, 42),
            (3, 24, 1, MAX_SLICES),
        ] {
            let dims = MlaDims {
                heads,
                nope: 8,
                rope: 8,
                kv_lora,
            };
            let n = n_tokens * heads;
            let mut partial = rng.normals(n * splits * kv_lora);
            let mut stats: Vec<[f32; 2]> = (0..n * splits)
                .map(|_| [rng.normals(1)[0] * 4.0, 0.1 + rng.uniform()])
                .collect();
            // A slice that its token cannot see.
            let empty = n * splits - 1;
            if splits > 1 {
                stats[empty] = [-1e30, 0.0];
                partial[empty * kv_lora..].fill(0.0);
            }
            let exact: Vec<f64> = (0..n * kv_lora)
                .map(|i| {
                    let (head, column) = (i / kv_lora, i % kv_lora);
                    let slices = head * splits..(head + 1) * splits;
                    let weight = |s: usize| f64::from(stats[s][0]).exp();
                    let sum: f64 = slices
                        .clone()
                        .map(|s| weight(s) * f64::from(partial[s * kv_lora + column]))
                        .sum();
                    sum / slices
                        .map(|s| weight(s) * f64::from(stats[s][1]))
                        .sum::<f64>()
                })
                .collect();
            let mut twin = vec![f32::NAN; n * kv_lora];
            attention_merge(&partial, &stats, splits, kv_lora, &mut twin);
            let what = format!("{dims:?}, {splits} slices of {n_tokens} tokens");
            assert_close(&twin, &exact, 1e-11, &what);
            for gpu in gpus() {
                let sizes = partial_bytes(dims, n_tokens);
                let padded = |data: &[f32], bytes: u64| {
                    let mut data = data.to_vec();
                    data.resize(bytes as usize / 4, f32::NAN);
                    Range::whole(&upload(gpu, &data))
                };
                let out = output(gpu, twin.len());
                let partials = [
                    padded(&partial, sizes[0]),
                    padded(stats.as_flattened(), sizes[1]),
                ];
                let op = op(&partials, dims, n_tokens as u32, &Range::whole(&out));
                let state = State {
                    tokens: n_tokens as u32,
                    splits: splits as u32,
                    ..Default::default()
                };
                run(gpu, &[op], &state);
                let what = format!("{what}, {}", gpu.tier.name());
                assert_close(&download(gpu, &out, twin.len()), &exact, 1e-11, &what);
            }
        }
    }
}
