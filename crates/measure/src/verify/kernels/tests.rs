//! Protects the comparison of kernels: every kernel has a case, a wrong kernel fails it and is the one that is named. The tests of the kernels
//! run the cases.

use super::*;
use crate::gpu::call::{Call, Extent, Word};
use crate::gpu::testing::{gpus, int8_gpu, metal, packed_gpu};
use crate::kernels::cases::{Runs, router};
use crate::testing::{drawn, drawn_pairs};
use crate::verify::Found;
use std::collections::BTreeSet;
use std::path::Path;

/// The devices of the tests in every tier.
fn devices() -> impl Iterator<Item = &'static Gpu> {
    gpus().iter().chain(packed_gpu()).chain(int8_gpu())
}

/// The checks of a device whose calls `change` makes wrong.
fn changed(gpu: &Gpu, cases: Vec<Case>, change: fn(Call) -> Call) -> Vec<KernelCheck> {
    let mut lab = Lab::new(gpu, 1);
    lab.change = Some(Box::new(change));
    checks_of(lab, cases).collect()
}

/// Kernels that no case has, and why.
const WITHOUT: [(&str, &str); 3] = [
    ("mark", "every submission proves that it counts"),
    ("read", "it measures, and no model uses it"),
    (
        "small_halves",
        "it is a question to the device, not an operation",
    ),
];

/// Kernels that only some devices use. Some need matrices. `attention_heads` is used where there are none. Of `gemm` and `gemm_eight` a
/// device uses the one that suits its subgroups.
const OF_SOME_DEVICES: [&str; 8] = [
    "attention_coop",
    "attention_heads",
    "expand_kv_coop",
    "gemm",
    "gemm_coop",
    "gemm_eight",
    "grouped_attention_coop",
    "prompt_attention_coop",
];

#[test]
fn every_kernel_has_a_case_and_none_is_left_out() {
    let mut named = BTreeSet::new();
    for gpu in gpus() {
        let mut lab = Lab::new(gpu, 1);
        lab.dry = true;
        let checks = checks_of(lab, verified(gpu));
        named.extend(checks.flat_map(|check| {
            let names = check.kernels().map(str::to_owned);
            names.collect::<Vec<_>>()
        }));
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
        let passed = changed(gpu, verified(gpu), idle).into_iter();
        let passed: Vec<_> = passed.filter(KernelCheck::passed).collect();
        assert!(passed.is_empty(), "{passed:#?}");
    }
}

/// The kernels that are found wrong, each with its tier.
fn found_wrong(gpu: &Gpu, change: fn(Call) -> Call) -> BTreeSet<String> {
    let found = Found {
        kernels: changed(gpu, verified(gpu), change),
        ..Default::default()
    };
    found.wrong_kernels()
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
    let of_all: [Wrong; 6] = [
        ("attention", |call| with_other_floats(call, "attention")),
        ("rope_cache", |call| with_other_floats(call, "rope_cache")),
        ("router", |call| with_other_floats(call, "router")),
        ("prompt_attention", |call| {
            with_other_floats(call, "prompt_attention")
        }),
        ("grouped_rows", |call| {
            with_other_floats(call, "grouped_rows")
        }),
        ("grouped_attention", |call| {
            with_other_floats(call, "grouped_attention")
        }),
    ];
    let of_all = drawn_pairs(gpus(), &of_all)
        .into_iter()
        .map(|(gpu, wrong)| (gpu, *wrong));
    let products = gpus().iter().map(|gpu| (gpu, product(gpu)));
    for (gpu, (kernel, change)) in of_all.chain(products) {
        let expected = format!("{kernel} ({})", gpu.tier.name());
        assert_eq!(found_wrong(gpu, change), BTreeSet::from([expected]));
    }
}

#[test]
fn the_verdict_names_the_wrong_kernels_and_their_tiers() {
    let gpu = &gpus()[0];
    let mut cases = router::cases();
    cases.retain(|case| case.runs == Runs::Verified);
    let kernels = changed(gpu, cases, |call| with_other_floats(call, "router"));
    let found = Found {
        kernels,
        ..Default::default()
    };
    let expected = format!("router ({})", gpu.tier.name());
    assert_eq!(found.wrong_kernels(), BTreeSet::from([expected]));
    // One with a bias and one without.
    assert_eq!(found.failed(), 2);
}

#[test]
fn kernels_that_differ_together_are_named_where_none_differs_alone() {
    let check = |tier, kernel: &str, nmse| KernelCheck {
        tier,
        kernel: kernel.to_owned(),
        case: String::new(),
        nmse: Some(nmse),
        limit: 0.5,
        error: None,
    };
    let of_two = |alone| Found {
        kernels: vec![
            check("subgroup", "attention", alone),
            check("subgroup", "attention + attention_short", 1.0),
            check("int8", "attention + attention_short", 1.0),
        ],
        ..Default::default()
    };
    let together = |tier| format!("attention + attention_short ({tier})");
    let expected = BTreeSet::from(["subgroup", "int8"].map(together));
    assert_eq!(of_two(0.0).wrong_kernels(), expected);
    let expected = BTreeSet::from(["attention (subgroup)".to_owned(), together("int8")]);
    assert_eq!(of_two(1.0).wrong_kernels(), expected);
}

#[test]
fn a_check_tells_of_the_output_that_is_nearest_to_its_limit() {
    // The differences of both outputs have the NMSE 1e-4.
    let check = |limits: [f64; 2]| {
        let case = Case::new("two outputs", move |lab| {
            let near = limits.map(|limit| lab.close(&[1.01], &[1.0], limit));
            Ok(near.into())
        });
        KernelCheck::of(&Lab::new(&gpus()[0], 1), case)
    };
    let right = check([1e-2, 2e-4]);
    assert!(right.passed() && right.limit == 2e-4, "{right:?}");
    let wrong = check([5e-5, 1e-2]);
    assert!(!wrong.passed() && wrong.limit == 5e-5, "{wrong:?}");
    assert_eq!((wrong.case.as_str(), wrong.error), ("two outputs", None));
    let exact = |found: f32| Lab::new(&gpus()[0], 1).close(&[found], &[0.0], 0.0).nmse;
    assert_eq!(
        [exact(0.0), exact(1e-9), exact(f32::NAN)],
        [0.0, f64::INFINITY, f64::INFINITY]
    );
}

#[test]
fn the_same_seed_gives_the_same_inputs() {
    let gpu = &gpus()[0];
    let [first, second] = [1, 2].map(|seed| Lab::new(gpu, seed).normals(64));
    assert_eq!(first, Lab::new(gpu, 1).normals(64));
    assert_ne!(first, second);
}
