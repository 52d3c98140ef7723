//! Protects the CPU reference: it gives the golden values of whole models, and the same bits however a prompt is split.

use std::sync::Arc;

use crate::golden::{
    FIXTURES, Golden, all_logits, check_golden, check_small_files, check_synthetic, fixture,
    in_repository, load, random_below, random_tokens,
};
use glimt::engine::Products;
use glimt::engine::Wait;
use glimt::engine::backend::{Backend, BackendError};
use glimt::engine::cpu::CpuBackend;
use glimt::engine::sampling::Sampling;
use glimt::models::mla::Model;

/// The project's limit for the CPU reference is 1e-5; the f16 cache costs up to 3e-8 (with an f32 cache all is within the
/// five decimals of the golden values, NMSE below 1e-12), so an error that hides below 1e-5 is still an error.
const NMSE: f64 = 1e-7;

/// The limit relative to the spread of each position's log-probabilities; the f16 cache costs up to 1e-5.
const CONTRAST: f64 = 5e-5;

fn backend(model: &Arc<Model>, n_ctx: usize) -> CpuBackend {
    CpuBackend::new(model.clone(), Products::Exact, n_ctx).expect("a small cache")
}

fn embedded() -> Arc<Model> {
    load(&in_repository("assets/tales-q4_k_m.gguf"))
}

#[test]
fn the_embedded_model_gives_the_golden_values() {
    let golden = Golden::read(&in_repository("tests/data/golden-tales-q4_k_m.json"));
    check_golden(
        &mut backend(&embedded(), 128),
        &golden,
        "embedded",
        NMSE,
        CONTRAST,
    );
}

#[test]
#[ignore = "long: scripts/test --all"]
fn every_tales_fixture_gives_its_golden_values() {
    for ty in FIXTURES {
        let (Some(model), Some(golden)) = (
            fixture(&format!("tales/tales-{ty}.gguf")),
            fixture(&format!("tales/golden-{ty}.json")),
        ) else {
            return;
        };
        check_golden(
            &mut backend(&load(&model), 128),
            &Golden::read(&golden),
            ty,
            NMSE,
            CONTRAST,
        );
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn synthetic_models_of_every_family_give_their_golden_values() {
    check_synthetic(
        [3, 1],
        &mut |model, n_ctx| Box::new(backend(model, n_ctx)),
        NMSE,
        CONTRAST,
    );
}

#[test]
fn a_model_of_a_type_below_4_bits_or_mxfp4_gives_its_golden_values() {
    check_small_files(
        1,
        &mut |model, n_ctx| Box::new(backend(model, n_ctx)),
        NMSE,
        CONTRAST,
    );
}

#[test]
fn any_split_of_a_prompt_gives_the_same_bits() {
    let model = embedded();
    let tokens = random_tokens(40);
    let whole = all_logits(&mut backend(&model, 64), &tokens, &[]);
    let single = all_logits(&mut backend(&model, 64), &tokens, &[1; 40]);
    assert!(whole == single, "one batch and token by token differ");
    let lengths: Vec<usize> = random_below(12, 4).iter().map(|n| n + 1).collect();
    let split = all_logits(&mut backend(&model, 64), &tokens, &lengths);
    assert!(whole == split, "one batch and calls of {lengths:?} differ");
}

#[test]
fn a_prompt_of_several_chunks_fills_the_same_cache() {
    let model = embedded();
    // More than one internal chunk of 256.
    let tokens = random_tokens(300);
    let next = |backend: &mut CpuBackend| {
        let mut rows = Vec::new();
        let result = backend
            .logits(&[7], tokens.len(), &mut |_, row| {
                rows.extend_from_slice(row);
                std::ops::ControlFlow::Continue(())
            })
            .wait();
        result.expect("one token more fits");
        rows
    };
    let mut whole = backend(&model, 301);
    whole.prefill(&tokens, 0).wait().expect("the prompt fits");
    let mut halves = backend(&model, 301);
    halves
        .prefill(&tokens[..31], 0)
        .wait()
        .expect("the prompt fits");
    halves
        .prefill(&tokens[31..], 31)
        .wait()
        .expect("the prompt fits");
    assert!(next(&mut whole) == next(&mut halves), "the caches differ");
}

#[test]
fn what_cannot_be_computed_is_refused() {
    let mut backend = backend(&embedded(), 8);
    let decode = |backend: &mut CpuBackend, context: &[u32], limit| {
        backend
            .decode(context, &Sampling::GREEDY, limit, &mut |_| {
                std::ops::ControlFlow::Continue(())
            })
            .wait()
    };
    assert!(matches!(
        decode(&mut backend, &[], 1),
        Err(BackendError::NotPrefilled { position: 0 })
    ));
    assert!(matches!(
        backend.prefill(&[], 0).wait(),
        Err(BackendError::NoTokens)
    ));
    assert!(matches!(
        backend.prefill(&[5, 4096], 0).wait(),
        Err(BackendError::TokenOutOfRange {
            token: 4096,
            vocab_size: 4096
        })
    ));
    assert!(matches!(
        backend.prefill(&[5; 9], 0).wait(),
        Err(BackendError::ContextOverflow {
            needed: 9,
            n_ctx: 8
        })
    ));
    assert!(matches!(
        backend.prefill(&[5], 8).wait(),
        Err(BackendError::ContextOverflow {
            needed: 9,
            n_ctx: 8
        })
    ));
    backend.prefill(&[5; 6], 0).wait().expect("six of eight");
    assert!(matches!(
        decode(&mut backend, &[5; 5], 1),
        Err(BackendError::NotPrefilled { position: 5 })
    ));
    assert!(matches!(
        decode(&mut backend, &[5; 6], 3),
        Err(BackendError::ContextOverflow {
            needed: 9,
            n_ctx: 8
        })
    ));
    decode(&mut backend, &[5; 6], 2).expect("up to the end of the cache");
}

#[test]
fn decoding_goes_on_where_the_caller_stopped() {
    let model = embedded();
    let prompt = [3409, 777, 267, 562];
    let sampling = Sampling {
        temperature: 0.8,
        repeat_penalty: 1.1,
        seed: random_below(1 << 30, 1)[0] as u64,
        ..Sampling::GREEDY
    };
    let run = |backend: &mut CpuBackend, context: &[u32], limit: usize, stop_after: usize| {
        let mut tokens = Vec::new();
        let result = backend
            .decode(context, &sampling, limit, &mut |token| {
                tokens.push(token);
                if tokens.len() == stop_after {
                    std::ops::ControlFlow::Break(())
                } else {
                    std::ops::ControlFlow::Continue(())
                }
            })
            .wait();
        result.expect("the context is long enough");
        tokens
    };
    let mut whole = backend(&model, 64);
    whole.prefill(&prompt, 0).wait().expect("the prompt fits");
    let expected = run(&mut whole, &prompt, 12, 99);
    assert_eq!(expected.len(), 12);

    let mut parts = backend(&model, 64);
    parts.prefill(&prompt, 0).wait().expect("the prompt fits");
    let first = run(&mut parts, &prompt, 12, 5);
    assert_eq!(first, expected[..5]);
    let context: Vec<u32> = prompt.iter().chain(&first).copied().collect();
    parts
        .prefill(&first[4..], context.len() - 1)
        .wait()
        .expect("the last token fits");
    assert_eq!(run(&mut parts, &context, 7, 99), expected[5..]);
}
