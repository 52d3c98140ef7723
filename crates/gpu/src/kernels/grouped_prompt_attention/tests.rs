//! Protects the grouped attention of prompts: in every form it agrees with its twin, wherever chunks, tiles and pages begin and end, and
//! reaches beyond no buffer.

use super::*;
use crate::gpu::Most;
use crate::gpu::buffer::{Buffer, Role};
use crate::gpu::machine::Machine;
use crate::gpu::testing::{gpus, metal};
use crate::gpu::wait::complete;
use crate::gpu::{Tier, machine};
use crate::kernels::CacheType;
use crate::kernels::cases::grouped_prompt_attention::{Context, QWEN3, SMOLLM, case, dims};
use crate::kernels::cases::{Case, Lab};
use crate::kernels::testing::bounds::needs_every_byte;
use crate::kernels::testing::coop::{
    APPLE, NVIDIA, emulated_call, emulated_error, emulates, has_matrices,
};
use crate::kernels::testing::{Rng, agree, agree_everywhere, agree_long, agrees_changed};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Head sizes and groups of models: Qwen3-30B-A3B, Qwen2.5-7B, Llama-3.1-8B, SmolLM2-135M, and others.
const OF_MODELS: [GroupedDims; 8] = [
    QWEN3,
    dims(28, 4, 128, 128),
    dims(32, 8, 128, 128),
    SMOLLM,
    dims(16, 1, 80, 80),
    dims(12, 2, 96, 96),
    dims(2, 2, 64, 128),
    dims(8, 2, 96, 64),
];

/// Sizes that suit no matrices.
const ODD: [GroupedDims; 3] = [dims(6, 2, 72, 40), dims(4, 4, 20, 12), dims(3, 1, 200, 136)];

/// The sizes with a cache of each type that has whole blocks of them.
fn of_types(dims: GroupedDims) -> impl Iterator<Item = GroupedDims> {
    let all = CacheType::ALL.map(|cache| dims.with_cache(cache));
    all.into_iter().filter(GroupedDims::has_whole_blocks)
}

/// The kernels of a device. By matrices there are several shapes.
fn kernels(gpu: &Gpu, dims: GroupedDims) -> Vec<Kernel> {
    let suits = |shape: &Shape| Some(shape.coop) == gpu.coop && shape.fits(dims);
    let shapes = SHAPES.into_iter().filter(suits).map(Kernel::Matrix);
    [Kernel::Vector].into_iter().chain(shapes).collect()
}

/// Chunks of any size anywhere, in every form that a device has.
fn cases(gpu: &Gpu) -> Vec<Case> {
    let mut all = vec![];
    let mut add = |dims, of: [usize; 2], paged, is_long| {
        for kernel in kernels(gpu, dims) {
            let case = case(kernel, dims, of, paged);
            all.push(if is_long { case.long() } else { case });
        }
    };
    let mut rng = Rng::fresh();
    for dims in OF_MODELS.into_iter().chain(ODD).flat_map(of_types) {
        add(
            dims,
            [rng.below(200), 1 + rng.below(70)],
            rng.below(2) == 0,
            false,
        );
    }
    for (dims, of, paged) in [
        (QWEN3, [0, 1], false),
        (QWEN3, [0, 67], false),
        // The last page has one row, or all.
        (QWEN3, [155, 38], true),
        (QWEN3, [219, 37], true),
        (SMOLLM, [0, 130], false),
        (SMOLLM, [1, 130], true),
        (SMOLLM, [575, 65], true),
    ] {
        for dims in of_types(dims) {
            add(dims, of, paged, false);
        }
    }
    for of in [[31, 33], [32, 32], [33, 31], [63, 65], [64, 64], [127, 1]] {
        for paged in [false, true] {
            of_types(SMOLLM).for_each(|dims| add(dims, of, paged, true));
        }
    }
    if gpu.metal.is_none() {
        of_types(QWEN3).for_each(|dims| add(dims, [4096, 19], true, true));
    }
    all
}

#[test]
fn chunks_of_any_size_anywhere_agree_with_the_twin_also_in_pages() {
    agree(gpus(), cases);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn masks_hold_at_the_edges_of_tiles_and_in_long_contexts() {
    agree_long(gpus(), cases);
}

impl Context {
    /// The score of row i is `step` times i, so all weight is on the last row seen or on the first.
    fn far(lab: &Lab<'_>, dims: GroupedDims, step: f32) -> Self {
        let mut context = Self::random(lab, dims, 150, 50);
        context.q.fill(0.0);
        context.set_share(step, |i| i);
        context
    }
}

/// Rows whose scores are so far apart.
fn far_case(kernel: Kernel, dims: GroupedDims, step: f32) -> Case {
    Case::new(
        format!(
            "scores far apart by {step}, cache of {}, {kernel:?}",
            dims.cache.name()
        ),
        move |lab| Context::far(lab, dims, step).compare(lab, kernel, false),
    )
}

#[test]
fn scores_far_beyond_the_range_of_exp_stay_finite() {
    agree_everywhere(gpus(), |gpu| {
        let far = of_types(SMOLLM).flat_map(|dims| {
            let kernels = kernels(gpu, dims).into_iter();
            // The second kind of query exceeds the range of f16.
            kernels.flat_map(move |kernel| [1000.0, -1e6].map(|step| far_case(kernel, dims, step)))
        });
        far.collect()
    });
}

/// The kernel of these matrices for heads as narrow as a model's, where they are emulated. The tile is not full in some cases, masks
/// begin within a tile and at its edge, and a context has several pages.
fn check_emulated(coop: Coop, dims: GroupedDims, backwards: bool) {
    if !has_matrices(coop) {
        return;
    }
    let kernel = Form::Matrix(coop).kernel(dims);
    let sizes = [
        ([0, 70], false),
        ([31, 67], false),
        ([64, 64], false),
        ([150, 33], true),
        ([155, 40], true),
    ];
    let mut cases: Vec<_> = sizes
        .map(|(of, paged)| case(kernel, dims, of, paged))
        .into();
    cases.push(far_case(kernel, dims, 1000.0));
    for gpu in gpus().iter().filter(|gpu| emulates(gpu)) {
        for case in &cases {
            agrees_changed(gpu, case, |call| emulated_call(&call, coop, backwards));
        }
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn matrices_of_16_agree_with_the_twin_where_they_are_emulated() {
    // Rows that 16, 8 and 4 threads load, in both shapes. Heads are narrow, because llvmpipe has little workgroup memory.
    let narrow = [
        dims(4, 2, 128, 128),
        dims(3, 1, 64, 64),
        dims(2, 1, 96, 32),
        dims(4, 2, 48, 48),
    ];
    for (i, dims) in narrow.into_iter().flat_map(of_types).enumerate() {
        check_emulated(NVIDIA, dims, i % 2 == 0);
    }
}

#[test]
#[ignore = "llvmpipe takes half a minute to compile 8x8 matrices over 32 lanes: cargo test --lib emulated -- --ignored"]
fn a_chunk_agrees_with_the_twin_where_matrices_of_8_over_32_lanes_are_emulated() {
    let narrow = [dims(3, 1, 64, 64), dims(4, 2, 80, 80), dims(2, 1, 96, 96)];
    for dims in narrow.into_iter().flat_map(of_types) {
        check_emulated(APPLE, dims, false);
    }
}

#[test]
fn every_device_with_matrices_has_a_shape_for_the_heads_of_models() {
    for coop in [NVIDIA, APPLE, Coop::LLVMPIPE] {
        let machine = Machine {
            workgroup_memory: machine::matrix_memory(coop),
            ..Machine::H200
        };
        let target = Target {
            coop: Some(coop),
            ..Target::new("test", machine, Tier::Subgroup)
        };
        for dims in OF_MODELS.into_iter().flat_map(of_types) {
            let form = Form::untried(&target, dims);
            assert_eq!(form, Some(Form::Matrix(coop)), "{dims:?}");
        }
        // Keys of 72 values are no whole matrices of 16 rows. Nothing works on keys of 30.
        let form = Form::untried(&target, dims(6, 2, 72, 40));
        assert_eq!(form, Some(Form::Vector));
        assert_eq!(Form::untried(&target, dims(6, 2, 30, 40)), None);
        let small = Target {
            machine: Machine {
                workgroup_memory: 8 << 10,
                ..machine
            },
            ..target
        };
        assert_eq!(Form::untried(&small, QWEN3), Some(Form::Vector));
    }
    for shape in SHAPES {
        assert!(ROWS.is_multiple_of(shape.rows()), "{shape:?}");
        assert!(OF_MODELS.iter().any(|dims| shape.fits(*dims)), "{shape:?}");
    }
}

/// The attention of steps of 40 tokens in a cache of `rows` rows with pages, without a device. Its buffers are no larger than they need to
/// be.
fn unmade(dims: GroupedDims, form: Form, rows: u32, page: u32) -> GpuGroupedPromptAttention {
    let floats = |of: usize| Range::floats("test", 40 * of as u64);
    let cache = u64::from(rows) * dims.cache_row() as u64 * 2;
    GpuGroupedPromptAttention {
        form,
        q: floats(dims.heads * dims.key),
        cache: Range::whole(&Buffer::new("test", cache, Role::Cache)),
        sequences: Some(Sequences {
            table: Range::words("test", 4),
            pages: Some(Range::words("test", 12)),
            work: Range::words("test", 4),
            page,
            rows,
            ids: 300,
            alone: true,
        }),
        dims,
        scale: 1.0,
        values: floats(dims.heads * dims.value),
    }
}

#[test]
fn every_index_lies_in_its_buffer() {
    let most = Most {
        tokens: 40,
        context: 200,
    };
    for form in [Form::Vector, Form::Matrix(NVIDIA), Form::Matrix(APPLE)] {
        // The cache is larger than the context, or smaller: pages are few, and sequences share them.
        for (rows, dims) in [640, 128]
            .into_iter()
            .flat_map(|rows| of_types(QWEN3).map(move |dims| (rows, dims)))
        {
            let call = unmade(dims, form, rows, 64).call();
            needs_every_byte(&call, most);
            // So many storage buffers every device has.
            assert!(call.bindings.len() <= 8, "{}", call.kernel);
        }
    }
}

#[test]
fn pages_that_tiles_do_not_divide_and_tokens_of_several_sequences_are_refused() {
    let refused = |attention: GpuGroupedPromptAttention| {
        catch_unwind(AssertUnwindSafe(|| attention.call())).is_err()
    };
    assert!(!refused(unmade(QWEN3, Form::Vector, 640, 64)));
    assert!(refused(unmade(QWEN3, Form::Vector, 640, 32)));
    let mut several = unmade(QWEN3, Form::Vector, 640, 64);
    several.sequences.as_mut().expect("pages").alone = false;
    assert!(refused(several));
}

#[test]
fn the_trial_passes_where_there_are_matrices() {
    if metal::skips("a trial, which runs on the device") {
        return;
    }
    for gpu in gpus() {
        let Some(coop) = gpu.coop else {
            eprintln!("skipped: tier {} (no matrices)", gpu.tier.name());
            continue;
        };
        for dims in [QWEN3, SMOLLM].into_iter().flat_map(of_types) {
            let error = complete(trial::compared(dims, coop).nmse(gpu));
            let error = error.unwrap_or_else(|e| panic!("{e}"));
            eprintln!("{dims:?}: NMSE {error:.1e}");
            assert!(error <= trial::LIMIT / 4.0, "{dims:?}: {error:e}");
            let form = complete(Form::of(gpu, dims)).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(form, Some(Form::Matrix(coop)));
        }
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn the_trial_passes_where_matrices_are_emulated_and_fails_where_they_are_wrong() {
    let devices = gpus().iter().filter(|gpu| emulates(gpu));
    for (gpu, dims) in
        devices.flat_map(|gpu| of_types(dims(3, 1, 64, 64)).map(move |dims| (gpu, dims)))
    {
        let error = |scale| emulated_error(gpu, &trial::compared(dims, NVIDIA), scale);
        let [right, wrong] = [0.125, 0.12].map(error);
        eprintln!("NMSE {right:.1e}, {wrong:.1e}");
        assert!(right <= trial::LIMIT / 4.0, "{right:e}");
        assert!(wrong > trial::LIMIT, "{wrong:e}");
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn what_is_timed_is_an_attention_by_matrices_and_one_in_floats() {
    for gpu in gpus() {
        let trial = trial::timed(QWEN3, gpu.coop.unwrap_or(NVIDIA), 16);
        let kernel = |matrices| (trial.calls)(matrices, &Range::floats("test", 4))[0].kernel;
        assert_eq!(
            [true, false].map(kernel),
            ["prompt_attention_coop", "prompt_attention"]
        );
        if gpu.coop.is_none() {
            continue;
        }
        let us = complete(trial.times(gpu)).unwrap_or_else(|e| panic!("{e}"));
        assert!(us.iter().all(|us| *us > 0.0), "{us:?}");
    }
}
