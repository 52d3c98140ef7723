//! Joins what [`attention`](super::attention) left of each slice of the context.

use super::sequences::Sequences;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent, Word};
use crate::gpu::machine::attention::{JOINED_VECTORS as COLUMNS, JOINING as PHASES};
use crate::quant::activation::Activation;
use crate::quant::repack::UNIT;

/// The softmax over all slices of a context from the softmax of each (FlashDecoding). The dispatch reads the `partials` that
/// [`GpuAttention`](super::attention::GpuAttention) or [`GpuGroupedAttention`](super::grouped_attention::GpuGroupedAttention) wrote in the same
/// step, of so many `heads` with sums of `width` values: latents, or values of a head. With `sequences` the tokens may be those of several
/// sequences. With `as_one` each is joined as one token alone is.
///
/// The output `out`, (max_tokens, heads, width), is in the format `output`. Bytes and halves need a tier with subgroups.
///
/// # Panics
/// If `width` is not a multiple of 4. For bytes and halves the values of a token have to be a multiple of 32.
pub fn call(
    (sequences, as_one): (Option<&Sequences>, bool),
    partials: &[Range; 2],
    [heads, width]: [usize; 2],
    out: &Range,
    output: Activation,
) -> Call {
    let unit = if output.rounds() { UNIT } else { 4 };
    assert!(
        width.is_multiple_of(4) && (heads * width).is_multiple_of(unit),
        "attention_merge: {heads} heads of {width} for units of {unit}"
    );
    // Units of 32 values may begin in one head and end in the next.
    let across = !width.is_multiple_of(UNIT);
    let (heads, width) = (heads as u32, width as u32);
    let (along_heads, of_row) = if across {
        (1, heads * width)
    } else {
        (heads, width)
    };
    let blocks = (of_row / 4).div_ceil(COLUMNS);
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
    let phases = PHASES[usize::from(table.is_some() && !as_one)];
    call.number("WG", phases * COLUMNS)
        .number("COLUMNS", COLUMNS)
        .number("PHASES", phases)
        .number("HEADS", heads)
        .number("KV_LORA", width)
        .flag("ACROSS", across)
        .flag("BYTES", output == Activation::Bytes)
        .flag("HALVES", output.is_halves())
        .bind("slice_sums", &partials[0])
        .bind("stats", &partials[1])
        .bind(merged, out)
        .grid([Extent::N(along_heads), Extent::N(blocks), Extent::Tokens])
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
mod tests {
    use super::*;
    use crate::gpu::testing::gpus;
    use crate::kernels::cases::attention_merge::cases;
    use crate::kernels::testing::{Rng, agree, assert_close};

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
    fn slices_weigh_by_their_scores_and_sums() {
        let mut rng = Rng::fresh();
        for (heads, kv_lora, slices) in [(20, 512, 1), (4, 96, 52), (3, 24, 5)] {
            let partial = rng.normals(heads * slices * kv_lora);
            let stats = rng.normals(heads * slices).into_iter();
            let stats: Vec<_> = stats.map(|x| [x * 4.0, 0.1 + rng.uniform()]).collect();
            let mut twin = vec![f32::NAN; heads * kv_lora];
            attention_merge(&partial, &stats, slices, kv_lora, &mut twin);
            let exact = by_definition(&partial, &stats, slices, kv_lora);
            assert_close(&twin, &exact, 1e-11, &format!("{slices} slices"));
        }
    }

    #[test]
    fn the_kernel_agrees_with_its_twin_and_prepares_what_it_leaves() {
        agree(gpus(), |_| cases());
    }
}
