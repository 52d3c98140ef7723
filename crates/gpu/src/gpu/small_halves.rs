//! A trial of halves below the smallest normal one, as which packed products take codes (`wgsl/shared/halves_math.wgsl`).
//!
//! WGSL allows a device to take such halves for 0. By what Mesa's drivers say of themselves, NVIDIA's, AMD's and Apple's GPUs keep
//! them and some of Intel's do not. A device that does not would multiply by nothing but zeros, so it is asked.

use super::buffer::{Range, Role};
use super::call::{Call, State};
use super::record::Recording;
use super::{Gpu, GpuError};
use crate::gpu::{Most, Step};
use half::f16;

/// Sums of the trial.
const SUMS: usize = 64;
/// Products of a sum.
const TERMS: usize = 16;
/// The greatest NMSE of the sums of large and of small products: rounding by f16 gives some thousandths of it, zeros give 1.
const LIMIT: f64 = 1e-2;

/// The sum of code * half for every 16 of them; the twin of the kernel.
fn small_halves(codes: &[u16], x: &[f16]) -> Vec<f64> {
    let terms = codes.chunks(TERMS).zip(x.chunks(TERMS));
    let product = |(code, x): (&u16, &f16)| f64::from(*code) * x.to_f64();
    terms
        .map(|(codes, x)| codes.iter().zip(x).map(product).sum())
        .collect()
}

/// Codes of all sizes up to a byte, and halves: of the first half of the sums as large as those of activations can be, of the rest so
/// small that the products, too, lie below the smallest normal half.
fn problem() -> (Vec<u16>, Vec<f16>) {
    let codes = (0..SUMS * TERMS).map(|i| (i * 37 % 256) as u16);
    let x = (0..SUMS * TERMS).map(|i| {
        let size = if i < SUMS * TERMS / 2 { 30_000.0 } else { 3.0 };
        let sign = if i % 3 == 0 { -1.0 } else { 1.0 };
        f16::from_f32(sign * size * (0.5 + (i % 7) as f32 / 14.0))
    });
    (codes.collect(), x.collect())
}

/// Words of 16 numbers of 16 bits: those at 4i and 4i + 2 in the even words, those at 4i + 1 and 4i + 3 in the odd ones; first all even
/// ones where `apart`, else by turns.
fn words(numbers: &[u16], apart: bool) -> Vec<u32> {
    let word = |low: u16, high: u16| u32::from(low) | u32::from(high) << 16;
    let of = |numbers: &[u16]| {
        let fours = || numbers.chunks(4);
        let even = fours().map(|n| word(n[0], n[2]));
        let odd = fours().map(|n| word(n[1], n[3]));
        match apart {
            true => even.chain(odd).collect::<Vec<_>>(),
            false => even.zip(odd).flat_map(|(e, o)| [e, o]).collect(),
        }
    };
    numbers.chunks(TERMS).flat_map(of).collect()
}

/// How far the device's sums are off, as NMSE: of those of large and of small products.
async fn deviations(gpu: &Gpu) -> Result<[f64; 2], GpuError> {
    let (codes, x) = problem();
    let expected = small_halves(&codes, &x);
    let bits: Vec<u16> = x.iter().map(|x| x.to_bits()).collect();
    let buffers = [
        gpu.storage_with("codes of a trial", &words(&codes, true))
            .await?,
        gpu.storage_with("halves of a trial", &words(&bits, false))
            .await?,
        gpu.storage("sums of a trial", SUMS as u64 * 4, Role::Floats)
            .await?,
    ];
    let [codes, x, y] = &buffers;
    let call = Call::new("small_halves")
        .flag("PACKED", true)
        .bind("codes", &Range::whole(codes))
        .bind("x", &Range::whole(x))
        .bind("y", &Range::whole(y));
    let step = Step::of(Most::token(1), [call]);
    let found = match Recording::new(gpu, &step).await {
        Ok(recording) => {
            recording.submit(gpu, &State::default());
            gpu.read::<f32>(y, 0, SUMS as u64 * 4).await
        }
        Err(error) => Err(error),
    };
    buffers.iter().for_each(|buffer| gpu.release(buffer));
    let found = found?;
    let nmse = |range: std::ops::Range<usize>| {
        let pairs = expected[range.clone()].iter().zip(&found[range]);
        let (mut error, mut size) = (0.0, 0.0);
        for (e, f) in pairs {
            error += (e - f64::from(*f)).powi(2);
            size += e * e;
        }
        error / size
    };
    Ok([nmse(0..SUMS / 2), nmse(SUMS / 2..SUMS)])
}

/// Why halves cannot be multiplied in pairs on the device; nothing where they can.
///
/// # Errors
/// The error that the device reports, unless it refuses the shader.
pub(super) async fn objection(gpu: &Gpu) -> Result<Option<String>, GpuError> {
    match deviations(gpu).await {
        Ok(found) if found.iter().all(|nmse| *nmse <= LIMIT) => Ok(None),
        Ok([large, small]) => Ok(Some(format!(
            "f16 arithmetic that keeps halves below the smallest normal one (sums have an NMSE of {large:.1e} and {small:.1e}, limit {LIMIT:.0e})"
        ))),
        Err(e @ GpuError::Shader { .. }) => Ok(Some(format!("f16 arithmetic: {e}"))),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::testing::packed_gpu;
    use crate::gpu::wait::complete;

    #[test]
    fn a_device_that_multiplies_in_pairs_keeps_small_halves() {
        let Some(gpu) = packed_gpu() else { return };
        let found = complete(deviations(gpu)).unwrap_or_else(|e| panic!("{e}"));
        assert!(found.iter().all(|nmse| *nmse < LIMIT / 10.0), "{found:?}");
    }

    #[test]
    fn zeros_in_place_of_small_halves_would_be_noticed() {
        let (codes, x) = problem();
        let sums = small_halves(&codes, &x);
        for sums in sums.chunks(SUMS / 2) {
            assert!(sums.iter().any(|sum| *sum != 0.0));
        }
        // The products of the second part are below the smallest normal half, over the codes' 2^24.
        let largest = x[SUMS * TERMS / 2..].iter().map(|x| x.to_f32().abs());
        let largest = largest.fold(0.0, f32::max) * 255.0 * 2f32.powi(-24);
        assert!(largest < f16::MIN_POSITIVE.to_f32());
    }
}
