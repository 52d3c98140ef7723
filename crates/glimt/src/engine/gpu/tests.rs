//! Protects prompts that are cut into submissions: the same logits wherever they are cut.

mod biases;
mod lost;

use super::measure::Separation;
use super::pace::{Kind, Paces};
use super::*;
use crate::engine::Products;
use crate::engine::backend::Backend;
use crate::engine::cpu::CpuBackend;
use crate::engine::testing::{VOCAB, small_model};
use crate::gpu::buffer::Range;
use crate::gpu::call::Taken;
use crate::gpu::machine::Machine;
use crate::gpu::record::Recording;
use crate::gpu::wait::Wait;
use crate::gpu::wait::complete;
use crate::gpu::{GpuOptions, Tier};
use crate::models;
use crate::testing::some;
use std::ops::ControlFlow;
use std::sync::Mutex;

/// Rows before a prompt: several blocks of a context of its own.
const DEPTH: usize = 1100;

/// A small model in a tier, with chunks of up to `chunk` tokens; nothing where the adapter cannot run it.
pub(super) fn backend(tier: Tier, n_ctx: usize, chunk: u32) -> Option<GpuBackend> {
    let options = GpuOptions {
        tier: Some(tier),
        ..GpuOptions::default()
    };
    backend_of(&options, &|_| {}, n_ctx, chunk)
}

/// A backend like that of [`backend`], on a device that is opened with `options`. `change` then edits what is known of its machine.
pub(super) fn backend_of(
    options: &GpuOptions,
    change: &dyn Fn(&mut Machine),
    n_ctx: usize,
    chunk: u32,
) -> Option<GpuBackend> {
    let mut gpu = match Gpu::open(options).wait() {
        Ok(gpu) => gpu,
        Err(GpuError::TierUnsupported { .. }) => {
            eprintln!("skipped: {options:?} (this adapter cannot run it)");
            return None;
        }
        Err(e) => panic!("these tests need a GPU adapter: {e}"),
    };
    change(&mut gpu.target.machine);
    let gpu = Arc::new(gpu);
    let model = models::load(Arc::new(small_model())).expect("a supported model");
    let model = GpuModel::load(gpu, model, &mut |_, _| {})
        .wait()
        .expect("it fits");
    Some(
        GpuBackend::with_chunk(Arc::new(model), n_ctx, Some(chunk))
            .wait()
            .expect("it fits"),
    )
}

pub(super) fn tokens(n: usize) -> Vec<u32> {
    (1..=n as u32)
        .map(|i| i * i * 31 % (VOCAB - 3) + 3)
        .collect()
}

/// Submissions so long that nothing is cut, once the first is known.
fn uncut(backend: &mut GpuBackend) {
    backend.batch.paces = Paces::with_budget(Duration::from_secs(3600), false);
    let first = tokens(backend.chunk() as usize);
    backend.prefill(&first, 0).wait().expect("it fits");
    let on_row = &mut |_, _: &[f32]| ControlFlow::Continue(());
    backend
        .logits(&first[..1], 0, on_row)
        .wait()
        .expect("it fits");
}

/// Every dispatch in a submission of its own, but those of the first layer.
pub(super) fn cut_everywhere(backend: &mut GpuBackend) {
    backend.batch.paces = Paces::with_budget(Duration::ZERO, false);
}

/// Asserts that a prompt had `some` submissions where it has `few` uncut and at most `many`. On a GPU a submission takes about as long
/// however little it holds, so there all of them may be cut.
#[track_caller]
fn assert_between(backend: &GpuBackend, few: usize, some: usize, many: usize) {
    let most = match backend.batch.model.gpu.info.device_type {
        wgpu::DeviceType::Cpu => many - 1,
        _ => many,
    };
    assert!(few < some && some <= most, "{few} < {some} <= {most}");
}

/// The kept logits, as bits.
pub(super) fn kept(backend: &GpuBackend) -> Vec<u32> {
    let Range {
        buffer,
        offset,
        size,
        ..
    } = &backend.batch.logits;
    backend
        .gpu()
        .read(buffer, *offset, *size)
        .wait()
        .expect("it reads")
}

/// Submissions that `work` makes.
fn submissions(backend: &mut GpuBackend, work: impl FnOnce(&mut GpuBackend)) -> usize {
    let gpu = Arc::clone(&backend.batch.model.gpu);
    let before = gpu.reserve_numbers(0).number(0);
    work(backend);
    (gpu.reserve_numbers(0).number(0) - before) as usize
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_prompt_cut_between_any_dispatches_gives_the_same_logits_to_the_bit() {
    for tier in some(&[Tier::Plain, Tier::Subgroup], 1) {
        let Some(mut backend) = backend(tier, DEPTH + 160, 64) else {
            continue;
        };
        // Two pieces over some blocks, and one of few tokens.
        for n in [if tier == Tier::Plain { 70 } else { 100 }, 5] {
            let tokens = tokens(n);
            uncut(&mut backend);
            backend.fill_cache(DEPTH).wait().expect("it fits");
            let prefill =
                |backend: &mut GpuBackend| backend.prefill(&tokens, DEPTH).wait().expect("it fits");
            // The first time, kernels may be compiled while they run.
            prefill(&mut backend);
            backend.take_longest_submission();
            let few = submissions(&mut backend, prefill);
            assert_eq!(few, n.div_ceil(64), "one for each piece");
            let expected = kept(&backend);
            assert!(expected.iter().any(|bits| *bits != 0));
            let longest = backend.take_longest_submission().expect("there were some");

            cut_everywhere(&mut backend);
            prefill(&mut backend);
            let many = submissions(&mut backend, prefill);
            let layers = backend.batch.model.model.config().block_count;
            assert!(many > 10 * few * layers, "{many} submissions");
            assert!(
                kept(&backend) == expected,
                "{n} tokens in tier {}",
                tier.name()
            );
            // Submissions of some dispatches each, as a slow device has them.
            backend.batch.paces = Paces::with_budget(longest / 8, false);
            prefill(&mut backend);
            let some = submissions(&mut backend, prefill);
            assert_between(&backend, few, some, many);
            assert!(
                kept(&backend) == expected,
                "{n} tokens in {some} submissions"
            );
        }
    }
}

#[test]
fn the_first_submission_is_one_layer() {
    let mut backend = backend(Tier::Subgroup, 64, 64).expect("this adapter has subgroups");
    let all = tokens(40);
    let costs = {
        let model = Arc::clone(&backend.batch.model);
        let step = complete(
            backend
                .batch
                .prompt
                .step(&model, &backend.batch.recipes, 40),
        );
        let state = backend.state(0, 40);
        step.expect("it compiles")
            .replay(&model.gpu, &state)
            .costs()
    };
    let first = backend.batch.paces.of(Kind::Several).cut(&costs);
    assert!(
        costs[..first]
            .iter()
            .all(|c| c.layer.is_none_or(|l| l == 0))
    );
    assert_eq!(costs[first].layer, Some(1));
    backend.prefill(&all, 0).wait().expect("it fits");
    assert!(backend.batch.paces.of(Kind::Several).is_known());
}

#[test]
fn all_logits_of_cut_pieces_are_the_same_to_the_bit() {
    let mut backend = backend(Tier::Subgroup, 200, 96).expect("this adapter has subgroups");
    // Pieces of 96 (two slices of the head) and 65, and one of one token.
    let tokens = tokens(161);
    let rows = |backend: &mut GpuBackend| {
        let mut rows = vec![];
        for part in [&tokens[..160], &tokens[160..]] {
            let pos = rows.len();
            let on_row = &mut |_, row: &[f32]| {
                rows.push(row.to_vec());
                ControlFlow::Continue(())
            };
            backend.logits(part, pos, on_row).wait().expect("it fits");
        }
        rows
    };
    uncut(&mut backend);
    let expected = rows(&mut backend);
    assert_eq!(expected.len(), 161);
    cut_everywhere(&mut backend);
    assert!(rows(&mut backend) == expected);
}

#[test]
fn the_head_over_all_tokens_is_cut_and_watched() {
    let mut backend = backend(Tier::Subgroup, 200, 96).expect("this adapter has subgroups");
    let tokens = tokens(96);
    // Rows, as bits, and after how many what was told; broken off where `stop.1` was told after `stop.0` rows.
    let watched = |backend: &mut GpuBackend, stop: (usize, usize)| {
        let (rows, told) = (Mutex::new(vec![]), Mutex::new(vec![]));
        let done = backend
            .logits_watched(
                &tokens,
                0,
                &mut |done| {
                    let n = rows.lock().expect("nobody panics").len();
                    let mut told = told.lock().expect("nobody panics");
                    told.push((n, done));
                    let times = told.iter().filter(|told| told.0 == n).count();
                    match (n, times) == stop {
                        true => ControlFlow::Break(()),
                        false => ControlFlow::Continue(()),
                    }
                },
                &mut |row, logits: &[f32]| {
                    assert_eq!(row, rows.lock().expect("nobody panics").len());
                    let bits: Vec<_> = logits.iter().map(|l| l.to_bits()).collect();
                    rows.lock().expect("nobody panics").push(bits);
                    ControlFlow::Continue(())
                },
            )
            .wait();
        let told = told.into_inner().expect("nobody panics");
        let rows = rows.into_inner().expect("nobody panics");
        assert_eq!(done.expect("it fits"), rows.len());
        (rows, told)
    };
    let never = (96, 1);
    uncut(&mut backend);
    let mut whole = (vec![], vec![]);
    let few = submissions(&mut backend, |backend| whole = watched(backend, never));
    // Step, two slices and the last row on its way back; what is told stands between them.
    assert_eq!(few, 4);
    let (expected, told) = whole;
    assert_eq!(expected.len(), 96);
    let [(0, step), (64, slice)] = told[..] else {
        panic!("{told:?}");
    };
    assert!(64 < step && step < slice && slice < 96, "{told:?}");

    cut_everywhere(&mut backend);
    let costs = {
        let model = Arc::clone(&backend.batch.model);
        let batch = &mut backend.batch;
        let step = batch.prompt.step(&model, &batch.recipes, 96).wait();
        let state = backend.state(0, 96);
        let step = step.expect("it compiles");
        step.replay(&model.gpu, &state).costs()
    };
    let in_step = 1 + costs.len() - backend.batch.paces.of(Kind::Several).cut(&costs);
    let mut cut = (vec![], vec![]);
    let many = submissions(&mut backend, |backend| cut = watched(backend, never));
    // A slice has its rows normed, then multiplied.
    assert_eq!(many, in_step + 2 * 2 + 1);
    let (rows, told) = cut;
    assert!(rows == expected);
    assert!(told.is_sorted() && told[told.len() - 1].1 < 96, "{told:?}");
    let after = |n| told.iter().filter(|told| told.0 == n).count();
    // Whenever a submission is done, but for a slice whose rows are handed out first.
    assert_eq!([after(0), after(64)], [in_step + 1, 2]);

    // Within the step, in the first slice, after it and in the second one.
    for stop in [(0, 1), (0, 20), (0, in_step + 1), (64, 1), (64, 2)] {
        let (rows, told) = watched(&mut backend, stop);
        assert_eq!(rows.len(), stop.0, "stopped at {stop:?}: {told:?}");
        assert!(rows == expected[..stop.0]);
        let context = &tokens[..stop.0.max(1)];
        assert!(matches!(
            decode(&mut backend, context).1,
            Err(BackendError::NotPrefilled { .. })
        ));
    }
    assert!(watched(&mut backend, never).0 == expected);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn slices_of_the_head_are_shorter_where_they_take_too_long() {
    let mut backend = backend(Tier::Subgroup, 200, 96).expect("this adapter has subgroups");
    let tokens = tokens(90);
    // Rows that come without anything told between them, and all of them.
    let slices = |backend: &mut GpuBackend, budget, halves| {
        uncut(backend);
        backend.batch.paces = Paces::with_budget(budget, halves);
        let (ends, rows) = (Mutex::new(vec![]), Mutex::new(vec![]));
        let done = backend
            .logits_watched(
                &tokens,
                0,
                &mut |_| {
                    ends.lock()
                        .expect("nobody panics")
                        .push(rows.lock().expect("nobody panics").len() / VOCAB as usize);
                    ControlFlow::Continue(())
                },
                &mut |_, row: &[f32]| {
                    rows.lock().expect("nobody panics").extend(row);
                    ControlFlow::Continue(())
                },
            )
            .wait();
        assert_eq!(done.expect("it fits"), 90);
        let mut ends = ends.into_inner().expect("nobody panics");
        ends.dedup();
        (ends, rows.into_inner().expect("nobody panics"))
    };
    let hour = Duration::from_secs(3600);
    let (ends, expected) = slices(&mut backend, hour, true);
    assert_eq!(ends, [0, 64]);
    assert_eq!(slices(&mut backend, Duration::ZERO, false).0, [0, 64]);
    let (ends, rows) = slices(&mut backend, Duration::from_nanos(1), true);
    assert_eq!(ends, [0, 16, 32, 48, 64, 80]);
    let off = |(a, b): (&f32, &f32)| f64::from(a - b).powi(2);
    let error: f64 = rows.iter().zip(&expected).map(off).sum();
    let size: f64 = expected.iter().map(|b| f64::from(*b).powi(2)).sum();
    assert!(error / size < 1e-6, "NMSE {:.1e}", error / size);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn single_tokens_of_a_prompt_are_cut_too() {
    for tier in [Tier::Plain, Tier::Subgroup, Tier::Int8] {
        // All pieces are of one token.
        let Some(mut backend) = backend(tier, DEPTH + 16, 1) else {
            continue;
        };
        let tokens = tokens(5);
        let prefill = |backend: &mut GpuBackend| {
            backend.prefill(&tokens, DEPTH).wait().expect("it fits");
        };
        let rows = |backend: &mut GpuBackend| {
            let mut rows = vec![];
            let on_row = &mut |_, row: &[f32]| {
                rows.push(row.to_vec());
                ControlFlow::Continue(())
            };
            backend
                .logits(&tokens, DEPTH, on_row)
                .wait()
                .expect("it fits");
            rows
        };
        // The first submission is one layer, since nothing is known.
        backend.fill_cache(DEPTH).wait().expect("it fits");
        backend.batch.paces = Paces::with_budget(Duration::from_secs(3600), true);
        assert_eq!(submissions(&mut backend, prefill), tokens.len() + 1);
        backend.take_longest_submission();
        assert_eq!(submissions(&mut backend, prefill), tokens.len());
        // Other work on the device makes a submission longer now and then, so the shortest of several prompts counts.
        let longest = (0..5).map(|_| {
            submissions(&mut backend, prefill);
            backend.take_longest_submission().expect("there were some")
        });
        let longest = longest.min().expect("there were several");
        let (expected, all) = (kept(&backend), rows(&mut backend));

        cut_everywhere(&mut backend);
        prefill(&mut backend);
        let many = submissions(&mut backend, prefill);
        let layers = backend.batch.model.model.config().block_count;
        assert!(many > 5 * tokens.len() * layers, "{many} submissions");
        assert!(kept(&backend) == expected, "tier {}", tier.name());
        assert!(rows(&mut backend) == all, "tier {}", tier.name());
        backend.batch.paces = Paces::with_budget(longest / 8, true);
        prefill(&mut backend);
        let some = submissions(&mut backend, prefill);
        assert_between(&backend, tokens.len(), some, many);
        assert!(kept(&backend) == expected, "tier {}", tier.name());
        assert_eq!(backend.chunk(), 1);

        // It ends between two submissions, and counts whole tokens.
        let mut calls = 0;
        cut_everywhere(&mut backend);
        let done = backend
            .prefill_watched(&tokens, DEPTH, &mut |done| {
                calls += usize::from(done == 2);
                match calls {
                    3 => ControlFlow::Break(()),
                    _ => ControlFlow::Continue(()),
                }
            })
            .wait();
        assert_eq!(done.expect("it fits"), 2);
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_profiled_prompt_is_cut_and_tells_each_dispatch_once() {
    let mut backend = backend(Tier::Subgroup, DEPTH + 80, 64).expect("this adapter has subgroups");
    let tokens = tokens(70);
    let others = some(&[Separation::Passes, Separation::Host], 1);
    for separation in [Separation::Stamps].into_iter().chain(others) {
        if separation == Separation::Stamps && Separation::best(backend.gpu()) != separation {
            eprintln!("skipped: no timestamps between dispatches");
            continue;
        }
        uncut(&mut backend);
        backend.fill_cache(DEPTH).wait().expect("it fits");
        let time = |backend: &mut GpuBackend| {
            let timed = backend.time_prompt(&tokens, DEPTH, separation);
            timed.expect("it fits")
        };
        let mut whole = vec![];
        let few = submissions(&mut backend, |backend| whole = time(backend));
        // Two pieces and a head; by the host's clock all is done before and after.
        let times = if separation == Separation::Host { 2 } else { 1 };
        assert_eq!(few, 3 * times);
        let expected = kept(&backend);
        cut_everywhere(&mut backend);
        let mut parts = vec![];
        let many = submissions(&mut backend, |backend| parts = time(backend));
        assert!(many <= times * parts.len(), "{many} submissions");
        assert!(2 * many > times * parts.len(), "{many} submissions");
        assert!(kept(&backend) == expected, "{separation:?}");
        let taken = |all: &[(Taken, [f64; 2])]| {
            all.iter()
                .map(|(taken, _)| taken.clone())
                .collect::<Vec<_>>()
        };
        assert!(taken(&parts) == taken(&whole), "{separation:?}");
        for all in [whole, parts] {
            assert!(all.iter().all(|(_, [begin, end])| begin <= end), "{all:?}");
            // Each recording has an origin of its own.
            let origins = all.iter().filter(|(_, [begin, _])| *begin == 0.0).count();
            assert!(origins >= 3, "{separation:?}");
            let sum: f64 = all.iter().map(|(_, [begin, end])| end - begin).sum();
            assert!(sum > 0.0);
        }
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn an_interrupted_chunk_counts_no_tokens_and_the_prompt_goes_on_from_there() {
    let mut backend = backend(Tier::Subgroup, 200, 64).expect("this adapter has subgroups");
    let tokens = tokens(150);
    uncut(&mut backend);
    backend.prefill(&tokens, 0).wait().expect("it fits");
    let expected = kept(&backend);
    cut_everywhere(&mut backend);
    for (stop, whole) in [(1, 0), (30, 0), (100, 64), (149, 128)] {
        let mut told = vec![];
        let done = backend
            .prefill_watched(&tokens, 0, &mut |done| {
                told.push(done);
                match done >= stop {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            })
            .wait();
        assert_eq!(done.expect("it fits"), whole, "stopped at {stop}");
        assert!(told.is_sorted() && told[told.len() - 1] < 150, "{told:?}");
        assert!(told.iter().any(|done| done % 64 != 0), "{told:?}");
        let decoded = backend
            .decode(&tokens[..whole.max(1)], &Sampling::GREEDY, 1, &mut |_| {
                ControlFlow::Continue(())
            })
            .wait();
        assert!(matches!(decoded, Err(BackendError::NotPrefilled { .. })));
        backend
            .prefill(&tokens[whole..], whole)
            .wait()
            .expect("it fits");
        assert!(kept(&backend) == expected, "after {whole} tokens");
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn chunks_halve_where_a_dispatch_takes_too_long() {
    let mut backend = backend(Tier::Subgroup, 200, 128).expect("this adapter has subgroups");
    let tokens = tokens(200);
    uncut(&mut backend);
    backend.prefill(&tokens, 0).wait().expect("it fits");
    let floats = |backend: &GpuBackend| {
        let bits = kept(backend).into_iter();
        bits.map(f32::from_bits).collect::<Vec<_>>()
    };
    let expected = floats(&backend);
    assert_eq!(backend.chunk(), 128);
    // Where the host sees the end of a dispatch late, it counts no time for it. With this budget even that is too long.
    backend.batch.paces = Paces::with_budget(Duration::ZERO, true);
    let mut chunks = vec![128];
    while chunks[chunks.len() - 1] > 32 && chunks.len() < 9 {
        backend.prefill(&tokens, 0).wait().expect("it fits");
        chunks.push(backend.chunk());
    }
    assert!(chunks.is_sorted_by(|a, b| a >= b), "{chunks:?}");
    backend.prefill(&tokens, 0).wait().expect("it fits");
    assert_eq!(backend.chunk(), 32, "not below: {chunks:?}");
    let off = |(a, b): (&f32, &f32)| f64::from(a - b).powi(2);
    let error: f64 = floats(&backend).iter().zip(&expected).map(off).sum();
    let size: f64 = expected.iter().map(|b| f64::from(*b).powi(2)).sum();
    let limit = if backend.gpu().coop.is_some() {
        1e-3
    } else {
        1e-6
    };
    assert!(error / size < limit, "NMSE {:.1e}", error / size);
}

/// The tokens that decoding hands out before it ends, and how it ends.
fn decode(backend: &mut GpuBackend, context: &[u32]) -> (Vec<u32>, Result<(), BackendError>) {
    let mut out = vec![];
    let ended = backend
        .decode(context, &Sampling::GREEDY, 8, &mut |token| {
            out.push(token);
            ControlFlow::Continue(())
        })
        .wait();
    (out, ended)
}

#[test]
fn compiling_is_told_and_counted_once() {
    use crate::gpu::compiling;
    use std::sync::atomic::{AtomicUsize, Ordering};
    static TOLD: AtomicUsize = AtomicUsize::new(0);
    compiling::listen(|_| {
        TOLD.fetch_add(1, Ordering::Relaxed);
    });
    let Some(mut backend) = backend(Tier::Plain, 64, 32) else {
        return;
    };
    // Other tests of this process may compile as well.
    assert!(TOLD.load(Ordering::Relaxed) > 0);
    let made = backend.compile_time();
    assert!(made > Duration::ZERO);
    backend.prefill(&tokens(20), 0).wait().expect("it fits");
    let prompt = backend.compile_time();
    assert!(
        prompt > made,
        "the steps of a prompt are compiled when the first comes"
    );
    backend.prefill(&tokens(20), 0).wait().expect("it fits");
    assert_eq!(backend.compile_time(), prompt);
}
