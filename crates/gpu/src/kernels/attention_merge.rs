//! Joins what [`attention`](super::attention) left of each slice of the context.

use super::MlaDims;
use super::sequences::Sequences;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent, Word};
use crate::gpu::machine::attention::{JOINED_VECTORS as COLUMNS, JOINING as PHASES};
use crate::quant::activation::Activation;
use crate::quant::repack::UNIT;

/// The softmax over all slices of a context from the softmax of each (FlashDecoding). The dispatch reads the `partials` that
/// [`GpuAttention`](super::attention::GpuAttention) wrote in the same step. With `sequences` the tokens may be those of several sequences.
///
/// The output `out`, (max_tokens, heads, kv_lora), is in the format `output`. Bytes and halves need a tier with subgroups.
///
/// # Panics
/// If `kv_lora` is not a multiple of 4. For bytes and halves it has to be a multiple of 32.
pub fn call(
    sequences: Option<&Sequences>,
    partials: &[Range; 2],
    dims: MlaDims,
    out: &Range,
    output: Activation,
) -> Call {
    let unit = if output.rounds() { UNIT } else { 4 };
    assert!(
        dims.kv_lora.is_multiple_of(unit),
        "attention_merge: {dims:?} for units of {unit}"
    );
    let (heads, kv_lora) = (dims.heads as u32, dims.kv_lora as u32);
    let blocks = (kv_lora / 4).div_ceil(COLUMNS);
    let call = Call::new("attention_merge");
    let merged = if output.rounds() {
        "prepared"
    } else {
        "merged"
    };
    let table = sequences.and_then(Sequences::table);
    let call = match table {
        Some(table) => call.bind("table", table),
        None => call.word("slices", Word::Slices),
    };
    let phases = PHASES[usize::from(table.is_some())];
    call.number("WG", phases * COLUMNS)
        .number("COLUMNS", COLUMNS)
        .number("PHASES", phases)
        .number("HEADS", heads)
        .number("KV_LORA", kv_lora)
        .flag("BYTES", output == Activation::Bytes)
        .flag("HALVES", output.is_halves())
        .bind("slice_sums", &partials[0])
        .bind("stats", &partials[1])
        .bind(merged, out)
        .grid([Extent::N(heads), Extent::N(blocks), Extent::Tokens])
}

/// The softmax over all slices of a context from the softmax of each (FlashDecoding).
///
/// `partial` (T, heads, slices, kv_lora) are sums of weights times values, `stats` (T, heads, slices) the score that each
/// slice's weights are relative to and the sum of its weights; a slice without rows has sum 0. `out` (T, heads, kv_lora).
///
/// # Panics
/// If a size does not fit the others.
pub fn attention_merge(
    partial: &[f32],
    stats: &[[f32; 2]],
    slices: usize,
    kv_lora: usize,
    out: &mut [f32],
) {
    let heads = out.len() / kv_lora;
    assert_eq!(stats.len(), heads * slices, "statistics of {heads} heads");
    assert_eq!(
        partial.len(),
        stats.len() * kv_lora,
        "partial sums of {heads} heads"
    );
    for ((out, stats), partial) in out
        .chunks_exact_mut(kv_lora)
        .zip(stats.chunks_exact(slices))
        .zip(partial.chunks_exact(slices * kv_lora))
    {
        let max = stats.iter().map(|s| s[0]).fold(f32::MIN, f32::max);
        let weights = stats.iter().map(|s| (s[0] - max).exp());
        let total: f32 = weights.clone().zip(stats).map(|(w, s)| w * s[1]).sum();
        out.fill(0.0);
        for (weight, sums) in weights.zip(partial.chunks_exact(kv_lora)) {
            out.iter_mut().zip(sums).for_each(|(o, x)| *o += weight * x);
        }
        out.iter_mut().for_each(|o| *o /= total);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::gpu::buffer::{Buffer, Role};
    use crate::gpu::call::State;
    use crate::gpu::testing::{download, gpus, output, run, upload};
    use crate::kernels::attention::{MAX_SLICES, partial_bytes};
    use crate::kernels::testing::{Rng, assert_close, drawn_pairs, slice_stats};
    use crate::quant::activation::{Q8Unit, dequantize_activation, quantize_activation};
    use crate::quant::halves::{halve, restore};

    /// Scales and codes alike but for the last bit of the scale, and for codes of values midway between two.
    fn assert_same_units(found: &[Q8Unit], expected: &[Q8Unit], what: &str) {
        assert_eq!(found.len(), expected.len());
        let values = dequantize_activation(found);
        let wanted = dequantize_activation(expected);
        for (i, (f, e)) in found.iter().zip(expected).enumerate() {
            for half in 0..2 {
                let (scale, other) = (f.scales[half], e.scales[half]);
                assert!(
                    (scale - other).abs() <= 1e-6 * other,
                    "{what}: scale {half} of unit {i} is {scale}, expected {other}"
                );
                let sum: i32 = f.codes[half].iter().map(|c| i32::from(*c)).sum();
                let (found, exact) = (f.scaled_sums[half], scale * sum as f32);
                assert!(
                    (found - exact).abs() <= 1e-6 * exact.abs(),
                    "{what}: sum {half} of unit {i} is {found}, expected {exact}"
                );
            }
            let apart = |(a, b): (&i8, &i8)| a.abs_diff(*b) > 1;
            let pairs = || f.codes.as_flattened().iter().zip(e.codes.as_flattened());
            assert!(!pairs().any(apart), "{what}: unit {i}: {f:?} for {e:?}");
        }
        let different = values
            .iter()
            .zip(&wanted)
            .filter(|(a, b)| (**a - **b).abs() > 1e-5 * b.abs())
            .count();
        assert!(
            different <= 1 + values.len() / 1000,
            "{what}: {different} of {} codes differ",
            values.len()
        );
    }

    /// The sums of slices of each head, divided by those of their weights, in f64.
    fn by_definition(
        partial: &[f32],
        stats: &[[f32; 2]],
        slices: usize,
        kv_lora: usize,
    ) -> Vec<f64> {
        let weight = |s: usize| f64::from(stats[s][0]).exp();
        let value = |i: usize| {
            let (head, column) = (i / kv_lora, i % kv_lora);
            let slices = || head * slices..(head + 1) * slices;
            let sums = slices().map(|s| weight(s) * f64::from(partial[s * kv_lora + column]));
            let weights = slices().map(|s| weight(s) * f64::from(stats[s][1]));
            sums.sum::<f64>() / weights.sum::<f64>()
        };
        (0..partial.len() / slices).map(value).collect()
    }

    #[test]
    fn slices_weigh_by_their_scores_and_sums_on_every_device() {
        let mut rng = Rng::fresh();
        let cases = [
            (20, 512, 1, 1),
            (16, 512, 1, 52),
            (20, 512, 3, 42),
            // The last workgroup of a head has room for more than the head.
            (3, 96, 1, 5),
            (3, 24, 1, MAX_SLICES),
        ];
        for (gpu, &(heads, kv_lora, n_tokens, slices)) in drawn_pairs(gpus(), &cases) {
            let dims = MlaDims {
                heads,
                nope: 8,
                rope: 8,
                kv_lora,
            };
            let n = n_tokens * heads;
            let mut partial = rng.normals(n * slices * kv_lora);
            let mut stats = slice_stats(&mut rng, n * slices);
            // A slice that its token cannot see.
            let empty = n * slices - 1;
            if slices > 1 {
                stats[empty] = [-1e30, 0.0];
                partial[empty * kv_lora..].fill(0.0);
            }
            let exact = by_definition(&partial, &stats, slices, kv_lora);
            let mut twin = vec![f32::NAN; n * kv_lora];
            attention_merge(&partial, &stats, slices, kv_lora, &mut twin);
            let what = format!("{dims:?}, {slices} slices of {n_tokens} tokens");
            assert_close(&twin, &exact, 1e-11, &what);
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
            let make = |out: &Range, output| call(None, &partials, dims, out, output);
            let state = State {
                tokens: n_tokens as u32,
                slices: slices as u32,
                ..Default::default()
            };
            let floats = make(&Range::whole(&out), Activation::Floats);
            run(gpu, &[floats], &state);
            let what = format!("{what}, {}", gpu.tier.name());
            let found = download(gpu, &out, twin.len());
            assert_close(&found, &exact, 1e-11, &what);
            // Tiers without subgroups have f32 only.
            if kv_lora % UNIT != 0 || !gpu.tier.has_subgroups() {
                continue;
            }
            let prepared = |buffer: &Buffer, activation| {
                Range::whole(buffer).holding(Role::prepared(activation))
            };
            let units = output(gpu, twin.len() / UNIT * 12);
            let out = prepared(&units, Activation::Bytes);
            run(gpu, &[make(&out, Activation::Bytes)], &state);
            let units: Vec<Q8Unit> = download(gpu, &units, twin.len() / UNIT);
            assert_same_units(&units, &quantize_activation(&found), &what);
            if n_tokens == 1 {
                let blocks = found.len().div_ceil(256);
                let halves = output(gpu, blocks * 160);
                let activation = Activation::Halves { packed: false };
                let out = prepared(&halves, activation);
                run(gpu, &[make(&out, activation)], &state);
                let halves = restore(&download(gpu, &halves, blocks), found.len());
                let own = restore(&halve(&found), found.len());
                let own: Vec<f64> = own.iter().map(|v| f64::from(*v)).collect();
                // Values midway between two halves may round the other way.
                assert_close(&halves, &own, 1e-9, &what);
            }
        }
    }
}
