//! Protects what one session goes through on the GPU: prompts in parts, models cut by the binding limit, decoding from what is there,
//! and refusals.

use super::*;
use glimt::engine::Wait;

#[test]
fn one_batch_and_token_by_token_agree() {
    let model = embedded();
    for gpu in tiers() {
        let mut backend = backend(&gpu, &model, 96);
        // Rounding to f16 explains 1e-6; what it does to the choice of experts is not bounded so.
        let limit = if gpu.coop.is_some() { 1e-3 } else { 1e-5 };
        let mut errors = || {
            // More than one slice of 64 for the head, and an odd rest.
            let tokens = random_tokens(71);
            let whole = all_logits(&mut backend, &tokens, &[]);
            let single = all_logits(&mut backend, &tokens[..8], &[1; 8]);
            let split = all_logits(&mut backend, &tokens, &[3, 1, 17]);
            let errors = [contrast(&single, &whole[..8]), contrast(&split, &whole)];
            eprintln!("{}: {errors:?}", gpu.tier.name());
            errors.iter().all(|error| *error < limit)
        };
        // In some texts two experts are so near for a token that rounding chooses. Three texts in a row are none by chance.
        assert!((0..3).any(|_| errors()), "{}", gpu.tier.name());
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_long_prompt_in_parts_and_token_by_token_agree() {
    let model = embedded();
    // Always the same, so that no two tokens of the text can be too near to tell apart in some runs.
    let tokens: Vec<u32> = (1..=90u32).map(|i| i * i * 31 % 4093 + 3).collect();
    for gpu in drawn(&tiers(), 1) {
        let weights = GpuModel::load(Arc::clone(gpu), model.clone(), &mut |_, _| {})
            .wait()
            .expect("the model fits");
        let weights = Arc::new(weights);
        let with_chunk = |chunk| {
            GpuBackend::with_chunk(Arc::clone(&weights), 110, Some(chunk))
                .wait()
                .expect("a small cache")
        };
        let last = |backend: &mut dyn Backend| {
            backend.prefill(&tokens[..89], 0).wait().expect("it fits");
            // The cache of all before decides the logits of the last.
            all_logits_from(backend, &tokens[89..], 89)
        };
        let mut single = OneByOne(with_chunk(1));
        let expected = last(&mut single);
        let text = greedy(&mut single, &tokens, 12);
        let limit = if gpu.coop.is_some() { 1e-3 } else { 1e-5 };
        // One chunk, two, three, and chunks of 7 tokens, which take the kernels of few tokens.
        for chunk in some(&[90, 64, 34, 7], 1) {
            let mut backend = with_chunk(chunk);
            let mut parts = vec![];
            let watched = backend
                .prefill_watched(&tokens, 0, &mut |done| {
                    parts.push(done);
                    ControlFlow::Continue(())
                })
                .wait();
            assert_eq!(watched.expect("it fits"), 90);
            assert!(parts.is_sorted() && parts.iter().all(|done| *done < 90));
            // A session's first submission is one layer; behind the others stand parts of pieces.
            assert!(!parts.is_empty(), "{chunk}");
            let error = contrast(&last(&mut backend), &expected);
            eprintln!("{} {chunk}: {error:.2e}", gpu.tier.name());
            assert!(error < limit, "{} {chunk}: {error:.2e}", gpu.tier.name());
            if gpu.coop.is_none() {
                assert_eq!(greedy(&mut backend, &tokens, 12), text, "chunk {chunk}");
            }
        }
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_prompt_of_one_token_over_and_over_agrees_with_single_ones() {
    let model = embedded();
    // Few experts have most tokens, so their products take tall tiles where 50 tokens would share low ones.
    let tokens = [100u32; 50];
    for gpu in tiers() {
        let weights = GpuModel::load(Arc::clone(&gpu), model.clone(), &mut |_, _| {})
            .wait()
            .expect("the model fits");
        let weights = Arc::new(weights);
        let with_chunk = |chunk| {
            GpuBackend::with_chunk(Arc::clone(&weights), 64, Some(chunk))
                .wait()
                .expect("a small cache")
        };
        let expected = all_logits(&mut OneByOne(with_chunk(1)), &tokens, &[]);
        let found = all_logits(&mut with_chunk(64), &tokens, &[]);
        let limit = if gpu.coop.is_some() { 1e-3 } else { 1e-5 };
        let error = contrast(&found, &expected);
        eprintln!("{}: {error:.2e}", gpu.tier.name());
        assert!(error < limit, "{}: {error:.2e}", gpu.tier.name());
    }
}

#[test]
fn a_prompt_can_be_stopped_between_its_parts() {
    let gpu = tiers().pop().expect("at least one tier");
    let is_software = gpu.info.device_type == wgpu::DeviceType::Cpu;
    let weights = GpuModel::load(gpu, embedded(), &mut |_, _| {})
        .wait()
        .expect("the model fits");
    let mut backend = GpuBackend::with_chunk(Arc::new(weights), 200, Some(32))
        .wait()
        .expect("it fits");
    let tokens = random_tokens(120);
    let mut asked = 0;
    let stopped = backend
        .prefill_watched(&tokens, 0, &mut |done| match done {
            0..70 => ControlFlow::Continue(()),
            _ => {
                asked = done;
                ControlFlow::Break(())
            }
        })
        .wait();
    let done = stopped.expect("it fits");
    if done == tokens.len() && !is_software {
        eprintln!("skipped: this GPU had the whole prompt before it could be stopped");
        return;
    }
    // Whole pieces only: the one that it was stopped in counts, where all of it was submitted.
    assert!(done % 32 == 0 && (64..120).contains(&done), "{done}");
    assert!((70..done + 32).contains(&asked), "stopped at {asked}");
    let decoded = backend
        .decode(&tokens[..done], &Sampling::GREEDY, 1, &mut |_| {
            ControlFlow::Continue(())
        })
        .wait();
    assert!(matches!(decoded, Err(BackendError::NotPrefilled { .. })));
    // The rows are there: going on gives what starting anew gives.
    backend
        .prefill(&tokens[done..], done)
        .wait()
        .expect("it fits");
    let next = |backend: &mut GpuBackend| {
        let mut next = 0;
        let on_token = &mut |token| {
            next = token;
            ControlFlow::Continue(())
        };
        backend
            .decode(&tokens, &Sampling::GREEDY, 1, on_token)
            .wait()
            .expect("it fits");
        next
    };
    let resumed = next(&mut backend);
    backend.prefill(&tokens, 0).wait().expect("it fits");
    assert_eq!(next(&mut backend), resumed);
}

#[test]
fn a_model_cut_by_the_binding_limit_gives_the_same_logits() {
    let model = embedded();
    let tokens = random_tokens(6);
    let mut cpu = CpuBackend::new(model.clone(), Products::Exact, 16).expect("a small cache");
    let expected = all_logits(&mut cpu, &tokens, &[]);
    let options = GpuOptions {
        max_binding: Some(150_000),
        ..Default::default()
    };
    let gpu = Arc::new(Gpu::open(&options).wait().expect("an adapter"));
    let found = all_logits(&mut backend(&gpu, &model, 16), &tokens, &[]);
    let error = contrast(&found, &expected);
    let limit = contrast_of_prompts(&gpu);
    assert!(error < limit, "contrast error {error:.2e}");
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_model_cut_by_the_binding_limit_gives_the_same_logits_of_a_token_alone() {
    let model = embedded();
    let token = random_tokens(1);
    for (gpu, limit, _) in tiers_of_tokens(Tier::Int8) {
        let expected = all_logits(&mut backend(&gpu, &model, 16), &token, &[]);
        // The experts and the dense block, too.
        let options = GpuOptions {
            tier: Some(gpu.tier),
            packed_halves: Some(gpu.activation() == Activation::Halves { packed: true }),
            max_binding: Some(100_000),
            ..Default::default()
        };
        let cut = Arc::new(Gpu::open(&options).wait().expect("it opened before"));
        let found = all_logits(&mut backend(&cut, &model, 16), &token, &[]);
        let error = contrast(&found, &expected);
        // The experts' parts are added in another order, and of one position's spread halves stray more than of all logits.
        let halves = gpu.activation().is_halves();
        let limit = if halves { 20.0 * limit } else { limit };
        assert!(error < limit, "contrast error {error:.2e}");
    }
}

#[test]
fn decoding_starts_from_logits_that_are_still_there() {
    let model = embedded();
    let prompt = [3409, 777, 267, 562];
    for gpu in tiers() {
        let mut backend = backend(&gpu, &model, 16);
        let expected = greedy(&mut backend, &prompt, 6);
        backend.prefill(&prompt, 0).wait().expect("the prompt fits");
        let mut decode = |context: &[u32], limit, stop_after| {
            let mut tokens = Vec::new();
            backend
                .decode(context, &Sampling::GREEDY, limit, &mut |token| {
                    tokens.push(token);
                    if tokens.len() == stop_after {
                        ControlFlow::Break(())
                    } else {
                        ControlFlow::Continue(())
                    }
                })
                .wait()
                .map(|()| tokens)
        };
        assert!(decode(&prompt, 0, 1).expect("nothing to do").is_empty());
        assert_eq!(decode(&prompt, 6, 1).expect("it fits"), expected[..1]);
        // The steps in flight have replaced the logits of the prompt.
        assert!(matches!(
            decode(&prompt, 6, 1),
            Err(BackendError::NotPrefilled { position: 4 })
        ));
        assert_eq!(greedy(&mut backend, &prompt, 6), expected);
    }
}

#[test]
fn what_cannot_be_computed_is_refused() {
    let gpu = tiers().pop().expect("at least one tier");
    let mut small = backend(&gpu, &embedded(), 8);
    assert!(matches!(
        small.prefill(&[], 0).wait(),
        Err(BackendError::NoTokens)
    ));
    assert!(matches!(
        small.prefill(&[5, 4096], 0).wait(),
        Err(BackendError::TokenOutOfRange { token: 4096, .. })
    ));
    assert!(matches!(
        small.prefill(&[5; 9], 0).wait(),
        Err(BackendError::ContextOverflow {
            needed: 9,
            n_ctx: 8
        })
    ));
    let refused = GpuOptions {
        max_binding: Some(1000),
        ..Default::default()
    };
    let tight = Arc::new(Gpu::open(&refused).wait().expect("an adapter"));
    let error = GpuModel::load(tight, embedded(), &mut |_, _| {})
        .wait()
        .map(|_| ())
        .expect_err("no row fits");
    assert!(matches!(error, GpuError::BindingTooLarge { .. }), "{error}");
}

/// Windows keeps a mapped file from being cut.
#[cfg(unix)]
#[test]
fn a_file_cut_under_the_loader_is_an_error() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("cut.gguf");
    std::fs::copy(in_repository("assets/tales-q4_k_m.gguf"), &path).expect("a copy");
    let model = load(&path);
    let file = std::fs::OpenOptions::new().write(true).open(&path);
    let half = model.gguf.file_size() / 2;
    file.and_then(|file| file.set_len(half)).expect("a cut");
    let gpu = tiers().pop().expect("at least one tier");
    let error = GpuModel::load(gpu, model, &mut |_, _| {})
        .wait()
        .map(|_| ())
        .expect_err("half of the file is gone");
    assert!(matches!(error, GpuError::ReadWeights { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("cut.gguf"), "{text}");
}
