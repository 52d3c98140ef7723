//! Protects the comparison of kernels: all of them are compared, a right device passes, and a wrong kernel is the one that is named.

use super::*;
use crate::gpu::call::{Call, Extent, Word};
use crate::gpu::testing::{gpus, int8_gpu, metal, packed_gpu};
use crate::testing::{drawn, drawn_pairs};
use std::collections::BTreeSet;
use std::path::Path;

/// The devices of the tests in every tier.
fn devices() -> impl Iterator<Item = &'static Gpu> {
    gpus().iter().chain(packed_gpu()).chain(int8_gpu())
}

/// The rows of a device whose calls `change` makes wrong.
fn rows(gpu: &Gpu, seed: u64, change: Option<fn(Call) -> Call>) -> Vec<KernelCheck> {
    let mut lab = Lab::new(gpu, seed);
    lab.change = change;
    groups(gpu).iter().for_each(|group| group(&mut lab));
    lab.take()
}

/// Kernels that only some devices use. Some need matrices. `attention_heads` is used where there are none. Of `gemm` and `gemm_eight` a
/// device uses the one that suits its subgroups.
const OF_SOME_DEVICES: [&str; 7] = [
    "attention_coop",
    "attention_heads",
    "expand_kv_coop",
    "gemm",
    "gemm_coop",
    "gemm_eight",
    "prompt_attention_coop",
];

#[test]
fn every_kernel_agrees_with_its_twin_and_none_is_left_out() {
    let mut named = BTreeSet::new();
    for gpu in devices() {
        let rows = rows(gpu, crate::testing::Rng::fresh().bits(), None);
        let failed: Vec<_> = rows.iter().filter(|row| !row.passed()).collect();
        assert!(failed.is_empty(), "{failed:#?}");
        let names = rows.iter().flat_map(|row| row.kernel.split(" + "));
        named.extend(names.map(str::to_owned));
    }
    named.extend(WITHOUT.map(|(name, _)| name.to_owned()));
    named.extend(OF_SOME_DEVICES.map(str::to_owned));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../wgsl");
    let files = std::fs::read_dir(folder).expect("the folder of the kernels");
    let all = files.filter_map(|file| {
        let path = file.expect("a file or a folder").path();
        let name = path.file_stem().and_then(|name| name.to_str());
        let is_kernel = path.extension().is_some_and(|e| e == "wgsl");
        name.filter(|_| is_kernel).map(str::to_owned)
    });
    assert_eq!(named, all.collect::<BTreeSet<_>>());
}

#[test]
fn a_kernel_that_does_nothing_fails_every_case() {
    if metal::skips("kernels without workgroups, which a device takes") {
        return;
    }
    let idle = |call: Call| call.grid([Extent::N(0); 3]);
    for gpu in drawn(&devices().collect::<Vec<_>>(), 1) {
        let passed = rows(gpu, 1, Some(idle));
        let passed: Vec<_> = passed.into_iter().filter(KernelCheck::passed).collect();
        assert!(passed.is_empty(), "{passed:#?}");
    }
}

/// The names of the kernels whose rows fail.
fn failed(gpu: &Gpu, change: fn(Call) -> Call) -> BTreeSet<String> {
    let rows = rows(gpu, 1, Some(change));
    let failed = rows.into_iter().filter(|row| !row.passed());
    failed.map(|row| row.kernel).collect()
}

/// `call` with other numbers in place of its floats, if it is of `kernel`.
fn with_other_floats(mut call: Call, kernel: &str) -> Call {
    if call.kernel == kernel {
        for (_, word) in &mut call.words {
            if let Word::F(value) = word {
                *value = *value * 1.01 + 0.1;
            }
        }
    }
    call
}

/// A kernel, and what makes a wrong number in its calls.
type Wrong = (&'static str, fn(Call) -> Call);

#[test]
#[ignore = "long: scripts/test --all"]
fn a_wrong_number_is_found_in_the_kernel_that_has_it_and_in_no_other() {
    let product = |gpu: &Gpu| -> Wrong {
        match gpu.tier.has_subgroups() {
            false => ("batch_matvec", |call| {
                with_other_floats(call, "batch_matvec")
            }),
            true => ("token_matvec", |call| {
                with_other_floats(call, "token_matvec")
            }),
        }
    };
    let of_all: [Wrong; 4] = [
        ("attention", |call| with_other_floats(call, "attention")),
        ("rope_cache", |call| with_other_floats(call, "rope_cache")),
        ("router", |call| with_other_floats(call, "router")),
        ("prompt_attention", |call| {
            with_other_floats(call, "prompt_attention")
        }),
    ];
    let of_all = drawn_pairs(gpus(), &of_all)
        .into_iter()
        .map(|(gpu, wrong)| (gpu, *wrong));
    let products = gpus().iter().map(|gpu| (gpu, product(gpu)));
    for (gpu, (kernel, change)) in of_all.chain(products) {
        let expected = BTreeSet::from([kernel.to_owned()]);
        assert_eq!(failed(gpu, change), expected, "{}", gpu.tier.name());
    }
}

#[test]
fn the_verdict_names_the_wrong_kernels_and_their_tiers() {
    let gpu = &gpus()[0];
    let kernels = rows(gpu, 1, Some(|call| with_other_floats(call, "router")));
    let found = crate::verify::Found {
        kernels,
        ..Default::default()
    };
    let expected = format!("router ({})", gpu.tier.name());
    assert_eq!(found.wrong_kernels(), BTreeSet::from([expected]));
    // One with a bias and one without.
    assert_eq!(found.failed(), 2);
}

#[test]
fn the_same_seed_gives_the_same_inputs() {
    let gpu = &gpus()[0];
    let [first, second] = [1, 2].map(|seed| Lab::new(gpu, seed).normals(64));
    assert_eq!(first, Lab::new(gpu, 1).normals(64));
    assert_ne!(first, second);
}
