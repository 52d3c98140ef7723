//! Random inputs and exact (f64) expectations for the tests of the kernels.

pub mod bounds;
pub mod coop;
pub mod paged;

use std::collections::BTreeMap;

use crate::gpu::Gpu;
use crate::gpu::call::Call;
use crate::gpu::testing::gpu_weight;
#[cfg(test)]
use crate::kernels::cache_type::BLOCK;
use crate::kernels::cases::random::Random;
use crate::kernels::cases::{Case, Lab, Runs};
use crate::model::Weight;
use crate::quant::{GgmlType, dequantize_row};
use crate::testing::rounds;
pub use crate::testing::{Rng, drawn, drawn_pairs};

/// A weight of random values, scaled so that a product with normal inputs is of size 1.
pub fn random_weight(
    rng: &mut Rng,
    ty: GgmlType,
    groups: usize,
    rows: usize,
    cols: usize,
) -> Weight {
    Random::new(rng.bits()).weight(ty, groups, rows, cols)
}

/// A lab on `gpu` in which a difference beyond its limit fails the test, with `name`.
pub fn lab<'g>(gpu: &'g Gpu, name: impl Into<String>) -> Lab<'g> {
    let mut lab = Lab::new(gpu, Rng::fresh().bits());
    lab.asserted = Some(name.into());
    lab
}

/// Fails unless the device cuts this weight into several pieces.
#[track_caller]
pub fn assert_in_pieces(gpu: &Gpu, weight: &Weight) {
    let pieces = gpu_weight(gpu, weight).pieces.len();
    assert!(pieces > 1, "{pieces} pieces");
}

/// Runs a comparison on `gpu`, with each call changed, and fails where it does.
#[track_caller]
pub fn agrees_changed(gpu: &Gpu, case: &Case, change: impl Fn(Call) -> Call) {
    let mut lab = lab(gpu, &case.name);
    lab.change = Some(Box::new(change));
    let compared = case.compare(&lab);
    let compared = compared.unwrap_or_else(|e| panic!("{}: {e}", case.name));
    assert!(!compared.is_empty(), "{}: nothing is compared", case.name);
}

/// Runs the cases of each device that are in this kind of run: each on one of the devices that have it, drawn anew in each run, or on all.
/// `GLIMT_TEST_MORE` has a case run on more of them.
#[track_caller]
fn run<'g>(
    gpus: impl IntoIterator<Item = &'g Gpu>,
    cases: impl Fn(&Gpu) -> Vec<Case>,
    long: bool,
    everywhere: bool,
) {
    let mut by_name: BTreeMap<String, Vec<(&Gpu, Case)>> = BTreeMap::new();
    for gpu in gpus {
        let own = cases(gpu).into_iter();
        for case in own.filter(|case| (case.runs == Runs::Long) == long) {
            by_name
                .entry(case.name.clone())
                .or_default()
                .push((gpu, case));
        }
    }
    let mut all: Vec<_> = by_name.into_values().collect();
    let mut rng = Rng::fresh();
    rng.shuffle(&mut all);
    let first = rng.below(all.len().max(1));
    for (i, of_name) in all.iter().enumerate() {
        let most = if everywhere {
            of_name.len()
        } else {
            rounds(1).min(of_name.len())
        };
        for k in 0..most {
            let (gpu, case) = &of_name[(first + i + k) % of_name.len()];
            agrees_changed(gpu, case, |call| call);
        }
    }
}

/// Each case agrees on one of the devices, but for long ones.
#[track_caller]
pub fn agree<'g>(gpus: impl IntoIterator<Item = &'g Gpu>, cases: impl Fn(&Gpu) -> Vec<Case>) {
    run(gpus, cases, false, false);
}

/// Each long case agrees on one of the devices.
#[track_caller]
pub fn agree_long<'g>(gpus: impl IntoIterator<Item = &'g Gpu>, cases: impl Fn(&Gpu) -> Vec<Case>) {
    run(gpus, cases, true, false);
}

/// Each case agrees on each of the devices, but for long ones.
#[track_caller]
pub fn agree_everywhere<'g>(
    gpus: impl IntoIterator<Item = &'g Gpu>,
    cases: impl Fn(&Gpu) -> Vec<Case>,
) {
    run(gpus, cases, false, true);
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

/// Panics unless values of Q8_0 are within half a code of these: 2^-11 is the rounding of the scale, and the rest that of f32.
#[cfg(test)]
pub fn assert_half_a_code(found: &[f32], exact: &[f64]) {
    assert_eq!(found.len(), exact.len());
    for (found, exact) in found.chunks(BLOCK).zip(exact.chunks(BLOCK)) {
        let most = exact.iter().fold(0.0f64, |most, x| most.max(x.abs()));
        let bound = most * (0.5 / 127.0 + 1.0 / 2048.0 + 1e-5);
        for (x, y) in found.iter().zip(exact) {
            assert!((f64::from(*x) - y).abs() <= bound, "{x} for {y}");
        }
    }
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
