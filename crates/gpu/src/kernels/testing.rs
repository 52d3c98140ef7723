//! Random inputs and exact (f64) expectations for the tests of the kernels.

pub mod bounds;
pub mod coop;
pub mod paged;
pub mod several;

use half::{bf16, f16};

use crate::model::Weight;
use crate::quant::{GgmlType, dequantize_row};
pub use crate::testing::{Rng, drawn, drawn_pairs};

/// `n` random rows of a cache, `width` values each, and three behind them that are NaN: reading one would show.
pub fn cache_rows(rng: &mut Rng, n: usize, width: usize) -> Vec<f16> {
    let values = rng.normals((n + 3) * width).into_iter();
    let mut cache: Vec<f16> = values.map(f16::from_f32).collect();
    cache[n * width..].fill(f16::NAN);
    cache
}

/// The stats of `n` slices of a context, beside their sums: the score that their weights are relative to, and the sum of these weights.
///
/// The scores of some are so far below the others' that `exp` of the difference is no f32: a sum that is relative to the wrong one shows.
pub fn slice_stats(rng: &mut Rng, n: usize) -> Vec<[f32; 2]> {
    let stat = |_| {
        let far = if rng.below(3) == 0 { 120.0 } else { 0.0 };
        [rng.normals(1)[0] * 4.0 - far, 0.1 + rng.uniform()]
    };
    (0..n).map(stat).collect()
}

/// A weight of random values, scaled so that a product with normal inputs is of size 1.
///
/// Quantised blocks are random bytes but for their f16 scales: every pattern of bits occurs, also those no quantiser
/// writes.
pub fn random_weight(
    rng: &mut Rng,
    ty: GgmlType,
    groups: usize,
    rows: usize,
    cols: usize,
) -> Weight {
    let values = groups * rows * cols;
    let size = 1.0 / (cols as f32).sqrt();
    let bytes = match f16_fields(ty) {
        None => {
            let values = rng.normals(values).into_iter().map(|x| x * size);
            match ty {
                GgmlType::F32 => values.flat_map(f32::to_le_bytes).collect(),
                GgmlType::F16 => values
                    .flat_map(|x| f16::from_f32(x).to_le_bytes())
                    .collect(),
                _ => values
                    .flat_map(|x| bf16::from_f32(x).to_le_bytes())
                    .collect(),
            }
        }
        Some(fields) => {
            let blocks = values / ty.block_len();
            let mut bytes: Vec<u8> = (0..blocks * ty.block_bytes())
                .map(|_| rng.bits() as u8)
                .collect();
            for block in bytes.chunks_exact_mut(ty.block_bytes()) {
                for &(offset, step) in fields {
                    let scale = f16::from_f32(step * size * (0.5 + rng.uniform()));
                    block[offset..offset + 2].copy_from_slice(&scale.to_le_bytes());
                }
            }
            bytes
        }
    };
    Weight::from_bytes(
        format!("random {}", ty.name()),
        ty,
        groups,
        rows,
        cols,
        bytes,
    )
}

/// Byte offset of each f16 in a block, and what it is for weights of size 1 (ggml-common.h); none for float types.
fn f16_fields(ty: GgmlType) -> Option<&'static [(usize, f32)]> {
    match ty {
        GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 => None,
        GgmlType::Q4_0 => Some(&[(0, 0.2)]),
        GgmlType::Q4_1 => Some(&[(0, 0.2), (2, -1.5)]),
        GgmlType::Q5_0 => Some(&[(0, 0.1)]),
        GgmlType::Q5_1 => Some(&[(0, 0.1), (2, -1.6)]),
        GgmlType::Q8_0 => Some(&[(0, 0.013)]),
        GgmlType::Q2_K => Some(&[(80, 0.1), (82, 0.15)]),
        GgmlType::Q3_K => Some(&[(108, 0.02)]),
        GgmlType::Q4_K => Some(&[(0, 0.006), (2, 0.045)]),
        GgmlType::Q5_K => Some(&[(0, 0.003), (2, 0.045)]),
        GgmlType::Q6_K => Some(&[(208, 7e-4)]),
        GgmlType::IQ4_NL => Some(&[(0, 0.015)]),
        GgmlType::IQ4_XS => Some(&[(0, 8e-4)]),
    }
}

/// The exact products of every row of one group with `x`.
pub fn exact_rows(w: &Weight, group: usize, x: &[f32]) -> Vec<f64> {
    let mut values = vec![0.0f32; w.cols];
    (0..w.rows)
        .map(|row| {
            dequantize_row(w.ty, w.row(group, row), &mut values);
            values
                .iter()
                .zip(x)
                .map(|(a, b)| f64::from(*a) * f64::from(*b))
                .sum()
        })
        .collect()
}

/// `x * sigmoid(x)` in f64.
pub fn exact_silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// Sum of squared differences over sum of squared expectations.
pub fn nmse(found: &[f32], exact: &[f64]) -> f64 {
    assert_eq!(found.len(), exact.len());
    let error: f64 = found
        .iter()
        .zip(exact)
        .map(|(a, b)| (f64::from(*a) - b).powi(2))
        .sum();
    let size: f64 = exact.iter().map(|b| b * b).sum();
    if error == 0.0 { 0.0 } else { error / size }
}

/// Fails unless the NMSE is at most `limit`; a NaN fails.
#[track_caller]
pub fn assert_close(found: &[f32], exact: &[f64], limit: f64, what: &str) {
    let error = nmse(found, exact);
    assert!(
        error <= limit,
        "{what}: NMSE {error:.3e} is above {limit:.0e}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::buffer::Range;
    use crate::gpu::call::State;
    use crate::gpu::testing::{download, gpu_weight, gpus, output, run, upload};
    use crate::kernels::embed;
    use std::{env, process::Command, thread};

    /// Has the test below fail as a kernel would: it is set where that test runs itself.
    const FAIL: &str = "GLIMT_TEST_FAILS";

    /// Expects zeros of rows that are none.
    fn fail() {
        let w = random_weight(&mut Rng::fresh(), GgmlType::Q4_0, 1, 37, 256);
        let gpu = &gpus()[0];
        let out = output(gpu, 3 * 256);
        let history = Range::whole(&upload(gpu, &[5u32, 6, 7, 8]));
        let calls = embed::calls(None, &gpu_weight(gpu, &w), &history, &Range::whole(&out));
        let state = State {
            pos: 1,
            tokens: 3,
            ..State::default()
        };
        run(gpu, &calls, &state);
        let found: Vec<f32> = download(gpu, &out, 3 * 256);
        assert_close(&found, &vec![1.0; 3 * 256], 1e-13, "Q4_0");
    }

    #[test]
    fn a_failure_names_kernel_shape_tier_and_seed_and_is_repeated_by_its_command() {
        if env::var_os(FAIL).is_some() {
            return fail();
        }
        let thread = thread::current();
        let test = thread.name().expect("a test has a name");
        let failed = |seed| {
            let mut command = Command::new(env::current_exe().expect("the tests run"));
            command.args([test, "--exact"]).env(FAIL, "1");
            let output = command.env("GLIMT_SEED", seed).output();
            let output = output.expect("the tests run");
            assert!(!output.status.success());
            let text = String::from_utf8(output.stdout).expect("UTF-8");
            let told = text
                .split_once("Q4_0: NMSE ")
                .unwrap_or_else(|| panic!("{text}"));
            let told = told
                .1
                .split_once("failures:")
                .unwrap_or_else(|| panic!("{text}"));
            told.0.to_owned()
        };
        let told = failed("0x2a");
        let command = format!("GLIMT_SEED=0x2a cargo test --lib --bins {test} -- --exact");
        let expected = [
            "kernel: embed Q4_0",
            "rows 37",
            "tokens: 3 at 1",
            "tier: plain (floats)",
            "seed: 0x2a",
            &command.replace(
                "test --lib",
                match cfg!(debug_assertions) {
                    true => "test --lib",
                    false => "test --release --lib",
                },
            ),
        ];
        for expected in expected {
            assert!(told.contains(expected), "{expected} is not in: {told}");
        }
        // The number is another way to write the same seed.
        assert_eq!(failed("42"), told);
        assert_ne!(failed("43"), told);
    }
}
