//! Protects quantisation: the bytes are those of gguf-py where the formula is fixed, and errors stay within bounds where it is ours.

use super::*;
use crate::quant::dequantize_row;
use crate::quant::tests::Golden;
use crate::testing::Rng;

const COLS: usize = 1024;

fn quantized(ty: GgmlType, weights: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; ty.row_bytes(weights.len()).expect("whole blocks")];
    quantize_row(ty, weights, &mut bytes);
    bytes
}

fn dequantized(ty: GgmlType, bytes: &[u8], count: usize) -> Vec<f32> {
    let mut weights = vec![f32::NAN; count];
    dequantize_row(ty, bytes, &mut weights);
    weights
}

fn round_trip(ty: GgmlType, weights: &[f32]) -> Vec<f32> {
    dequantized(ty, &quantized(ty, weights), weights.len())
}

/// Root of the mean squared difference, relative to the root of the mean square of `a`.
fn relative_rmse(a: &[f32], b: &[f32]) -> f64 {
    let square = |v: f64| v * v;
    let error: f64 = a
        .iter()
        .zip(b)
        .map(|(&a, &b)| square(f64::from(a) - f64::from(b)))
        .sum();
    let norm: f64 = a.iter().map(|&a| square(f64::from(a))).sum();
    (error / norm).sqrt()
}

/// Bound on the relative error for normally distributed weights: what GGML's quantisers leave, plus 2%. For the types with grids and MXFP4
/// it is what ours leave.
fn bound(ty: GgmlType) -> f64 {
    match ty {
        GgmlType::F32 => 0.0,
        GgmlType::F16 => 0.00022,
        GgmlType::BF16 => 0.0017,
        GgmlType::Q4_0 => 0.0876,
        GgmlType::Q4_1 => 0.0797,
        GgmlType::Q5_0 => 0.0435,
        GgmlType::Q5_1 => 0.0386,
        GgmlType::Q8_0 => 0.00545,
        GgmlType::Q2_K => 0.302,
        GgmlType::Q3_K => 0.1538,
        GgmlType::Q4_K => 0.0728,
        GgmlType::Q5_K => 0.0369,
        GgmlType::Q6_K => 0.0181,
        GgmlType::IQ4_NL => 0.0776,
        GgmlType::IQ4_XS => 0.0782,
        GgmlType::IQ1_S => 0.53,
        GgmlType::IQ1_M => 0.475,
        GgmlType::IQ2_XXS => 0.39,
        GgmlType::IQ2_XS => 0.333,
        GgmlType::IQ2_S => 0.285,
        GgmlType::IQ3_XXS => 0.203,
        GgmlType::IQ3_S => 0.156,
        GgmlType::MXFP4 => 0.1165,
    }
}

#[test]
fn formats_with_a_fixed_formula_give_the_bytes_of_gguf_py() {
    let golden = Golden::read();
    let fixed = [
        GgmlType::F16,
        GgmlType::BF16,
        GgmlType::Q4_0,
        GgmlType::Q4_1,
        GgmlType::Q5_0,
        GgmlType::Q5_1,
        GgmlType::Q8_0,
        GgmlType::MXFP4,
    ];
    let weights = golden.floats("weights");
    for ty in fixed {
        assert_eq!(
            quantized(ty, &weights),
            golden.bytes(ty, "quantized"),
            "{ty}"
        );
    }
}

#[test]
fn errors_stay_within_those_of_ggml() {
    let mut random = Rng::fresh();
    let weights: Vec<f32> = (0..64 * COLS).map(|_| 0.02 * random.normal()).collect();
    for &ty in GgmlType::ALL {
        let error = relative_rmse(&weights, &round_trip(ty, &weights));
        assert!(error <= bound(ty), "{ty}: {error}");
    }
}

#[test]
fn the_order_of_magnitude_does_not_matter() {
    let mut random = Rng::fresh();
    let weights: Vec<f32> = (0..4 * COLS).map(|_| random.normal()).collect();
    for scale in [1.0 / 256.0, 1.0, 1024.0] {
        let weights: Vec<f32> = weights.iter().map(|w| w * scale).collect();
        for &ty in GgmlType::ALL {
            let error = relative_rmse(&weights, &round_trip(ty, &weights));
            assert!(error <= 1.15 * bound(ty), "{ty} at {scale}: {error}");
        }
    }
}

#[test]
fn rows_with_an_offset_and_one_sided_rows_keep_their_shape() {
    let mut random = Rng::fresh();
    let normal: Vec<f32> = (0..16 * COLS).map(|_| random.normal()).collect();
    let rows = [
        ("raised", normal.iter().map(|w| w + 3.0).collect::<Vec<_>>()),
        ("lowered", normal.iter().map(|w| w - 3.0).collect()),
        ("positive", normal.iter().map(|w| w.abs()).collect()),
        ("negative", normal.iter().map(|w| -w.abs()).collect()),
    ];
    for (name, weights) in &rows {
        for &ty in GgmlType::ALL {
            let error = relative_rmse(weights, &round_trip(ty, weights));
            assert!(error <= 1.1 * bound(ty), "{ty} {name}: {error}");
        }
    }
}

#[test]
fn zeros_stay_zeros() {
    for &ty in GgmlType::ALL {
        for zero in [0.0, -0.0] {
            let weights = round_trip(ty, &[zero; COLS]);
            assert!(weights.iter().all(|&w| w == 0.0), "{ty}");
        }
    }
}

#[test]
fn constant_rows_survive() {
    for &ty in GgmlType::ALL {
        for constant in [0.75f32, -0.75] {
            let weights = round_trip(ty, &[constant; COLS]);
            let error = relative_rmse(&[constant; COLS], &weights);
            assert!(error <= 0.01, "{ty} {constant}: {error}");
        }
    }
}

#[test]
fn huge_tiny_and_mixed_rows_give_finite_weights() {
    let mut random = Rng::fresh();
    for &ty in GgmlType::ALL {
        for magnitude in [1e-42, 1e-38, 1e-20, 1e-8, 1e5, 1e20, 3e38] {
            let row: Vec<f32> = (0..COLS)
                .map(|_| magnitude * random.normal().clamp(-1.0, 1.0))
                .collect();
            let mut mixed = row.clone();
            for w in mixed.iter_mut().step_by(3) {
                *w = random.normal();
            }
            for weights in [row, mixed] {
                let result = round_trip(ty, &weights);
                if matches!(ty, GgmlType::F16 | GgmlType::BF16) {
                    // Both types have infinities of their own.
                    assert!(!result.iter().any(|w| w.is_nan()), "{ty} at {magnitude}");
                    continue;
                }
                let largest = |row: &[f32]| row.iter().fold(0.0f32, |m, w| m.max(w.abs()));
                assert!(result.iter().all(|w| w.is_finite()), "{ty} at {magnitude}");
                // A saturated minimum can move a row by up to its own range.
                assert!(
                    largest(&result) <= 2.0 * largest(&weights),
                    "{ty} at {magnitude}"
                );
            }
        }
    }
}

#[test]
fn weights_that_are_not_finite_do_not_panic() {
    for &ty in GgmlType::ALL {
        for strange in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut weights = [0.5; COLS];
            weights[7] = strange;
            round_trip(ty, &weights);
            round_trip(ty, &[strange; COLS]);
        }
    }
}

#[test]
fn quantising_again_changes_next_to_nothing() {
    let mut random = Rng::fresh();
    let weights: Vec<f32> = (0..16 * COLS).map(|_| 0.02 * random.normal()).collect();
    for &ty in GgmlType::ALL {
        let once = round_trip(ty, &weights);
        let twice = round_trip(ty, &once);
        let (first, second) = (relative_rmse(&weights, &once), relative_rmse(&once, &twice));
        // A search may settle on other scales than those that made the values, but none that fit much worse.
        assert!(second <= 0.5 * first, "{ty}: {second} after {first}");
    }
}

#[test]
fn quantize_rows_does_every_row() {
    let mut random = Rng::fresh();
    let (rows, cols) = (5, 512);
    let weights: Vec<f32> = (0..rows * cols).map(|_| random.normal()).collect();
    for &ty in GgmlType::ALL {
        let mut bytes = vec![0; rows * ty.row_bytes(cols).expect("whole blocks")];
        quantize_rows(ty, cols, &weights, &mut bytes);
        let expected: Vec<u8> = weights
            .chunks(cols)
            .flat_map(|row| quantized(ty, row))
            .collect();
        assert_eq!(bytes, expected, "{ty}");
    }
}

#[test]
#[should_panic(expected = "rows of 100 weights cannot be Q4_K")]
fn quantize_rows_refuses_broken_rows() {
    quantize_rows(GgmlType::Q4_K, 100, &[0.0; 200], &mut [0; 144]);
}
