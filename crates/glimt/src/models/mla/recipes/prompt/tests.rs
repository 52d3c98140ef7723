//! Protects prompts whose cache has pages: their chunks leave the rows and the hidden states, to the bit, that they leave in a cache by
//! position.

use super::*;
use crate::gpu::Gpu;
use crate::gpu::Target;
use crate::gpu::buffer::Role;
use crate::gpu::call::{Blocks, State};
use crate::gpu::testing::{Recorded, download, gpus, upload};
use crate::gpu::wait::complete;
use crate::kernels::sequences::PAGE;
use crate::kernels::testing::Rng;
use crate::kernels::testing::paged::Paged;
use crate::models::BatchSizes;
use crate::models::mla::recipes::{Context, Expanded, Forms};
use crate::models::mla::{Model, Weights};
use crate::synth::{self, ModelName, SynthOptions};
use half::f16;
use std::sync::Arc;

/// Rows of a context at most: some behind the last chunk, and no whole pages.
const N_CTX: usize = 200;
/// Tokens of the chunks. One begins with a page, and the last page is not full.
const CHUNKS: [usize; 4] = [64, 70, 9, 41];
/// The chunk that is absorbed, since it has few tokens.
const FEW: usize = 2;
const MOST: u32 = 70;

/// A model of two layers, of which one has experts.
fn model() -> Model {
    let options = SynthOptions {
        layers: Some(2),
        ..SynthOptions::default()
    };
    let bytes = synth::in_memory(ModelName::Tiny, synth::Recipe::Q4KM, &options);
    let bytes = bytes.expect("two layers are fine");
    let gguf = crate::gguf::Gguf::from_bytes(bytes, "a small model").expect("it is whole");
    Model::load(Arc::new(gguf)).expect("it is supported")
}

/// The weights of `model` on a device.
fn weights(gpu: &Gpu, model: &Model) -> Weights {
    let (weights, loader, matrices) = Weights::plan(gpu, model).expect("it fits");
    complete(loader.fill(gpu, &matrices, &mut |_| {})).expect("it fits");
    complete(gpu.realise(&weights.vectors.buffer)).expect("it fits");
    weights
}

/// `context` in blocks of two pages, with a cache of NaN and these ids.
fn filled(gpu: &Gpu, context: Context, ids: &[u32]) -> Context {
    let cache = |range: &Range| {
        let nan = vec![f16::NAN; range.size as usize / 2];
        Range::whole(&upload(gpu, &nan)).holding(Role::Cache)
    };
    let expanded = context.expanded.map(|expanded| {
        let mut scratch = expanded.scratch;
        scratch.blocks = Blocks::new(2 * PAGE, N_CTX as u32);
        Expanded {
            scratch,
            ..expanded
        }
    });
    Context {
        cache: context.cache.iter().map(cache).collect(),
        history: Range::whole(&upload(gpu, ids)),
        expanded,
        ..context
    }
}

/// The bits of the hidden states that the chunks of a prompt leave one after another. `place` tells where its pages and its ids begin.
fn hidden_states(
    gpu: &Gpu,
    weights: &Weights,
    context: &Context,
    [first_page, first_id]: [u32; 2],
) -> Vec<Vec<u32>> {
    let given = Given {
        target: gpu,
        weights,
        context,
    };
    let config = &weights.config;
    let chunk = Chunk::new(gpu.machine, config, context.forms, MOST, MOST);
    let step = step(given, &chunk, 1, MOST);
    let mut pos = 0;
    let mut recorded = None;
    let mut found = vec![];
    for (i, tokens) in CHUNKS.into_iter().enumerate() {
        let (slices, slice_rows) = context.cut(gpu.machine, config.head_count, pos, tokens);
        let state = State {
            pos: pos as u32,
            tokens: tokens as u32,
            slices,
            slice_rows,
            first_page,
            first_id,
            few: i == FEW,
            ..State::default()
        };
        let recorded =
            recorded.get_or_insert_with(|| Recorded::new(gpu, &step.calls, step.most, &state));
        recorded.submit(gpu, &state);
        complete(gpu.done()).expect("it runs");
        let n = tokens * config.embedding_length;
        found.push(download(gpu, &chunk.after_ffn.buffer, n));
        pos += tokens;
    }
    found
}

/// Holds a prompt in pages against one in a cache by position.
fn check(gpu: &Gpu, target: &Target) {
    let mut rng = Rng::fresh();
    let model = model();
    let weights = weights(gpu, &model);
    let config = &model.config;
    let forms = Forms::untried(target, config);
    assert!(forms.expanded.is_some());
    let ids: Vec<u32> = (0..3 * (N_CTX + 1))
        .map(|_| rng.below(config.vocab_size) as u32)
        .collect();
    let paged = Paged::new(&mut rng, N_CTX);
    let first_id = paged.own() * (N_CTX + 1);

    let context =
        Context::new(gpu, config, forms, BatchSizes::of_one(N_CTX, MOST)).expect("it fits");
    let alone = filled(gpu, context, &ids[first_id..][..=N_CTX]);
    let expected = hidden_states(gpu, &weights, &alone, [0, 0]);

    let sizes = BatchSizes {
        n_ctx: N_CTX,
        pages: paged.count,
        sequences: 3,
        tokens: MOST,
        chunk: MOST,
    };
    let context = Context::new(gpu, config, forms, sizes).expect("it fits");
    let context = filled(gpu, context, &ids);
    let mut sequences = context.sequences.clone().expect("there are some");
    assert!(context.expands().is_none(), "tokens of several sequences");
    sequences.pages = paged.sequences(gpu).pages;
    let in_pages = Context {
        sequences: Some(sequences),
        ..context
    }
    .alone();
    let place = [paged.first_page(), first_id as u32];
    let found = hidden_states(gpu, &weights, &in_pages, place);

    let what = format!("{forms:?} in tier {}", gpu.tier.name());
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let finite = |bits: &u32| f32::from_bits(*bits).is_finite();
        assert!(expected.iter().all(finite), "chunk {i}, {what}");
        assert!(found == expected, "chunk {i}, {what}");
    }
    let (row, n) = (config.cache_row(), CHUNKS.iter().sum());
    for (i, (alone, pages)) in alone.cache.iter().zip(&in_pages.cache).enumerate() {
        let alone: Vec<f16> = download(gpu, &alone.buffer, N_CTX * row);
        let pages: Vec<f16> = download(gpu, &pages.buffer, (paged.count * PAGE) as usize * row);
        let bits = |values: &[f16]| values.iter().map(|v| v.to_bits()).collect::<Vec<u16>>();
        let found = paged.rows(&pages, row, n).concat();
        assert!(bits(&found) == bits(&alone[..n * row]), "layer {i}, {what}");
        let written = pages.iter().filter(|v| !v.is_nan()).count();
        assert_eq!(written, n * row, "rows of nobody, layer {i}, {what}");
    }
}

#[test]
fn chunks_in_pages_leave_what_they_leave_in_a_cache_by_position() {
    for gpu in gpus() {
        let without_matrices = Target {
            coop: None,
            ..gpu.target.clone()
        };
        check(gpu, &without_matrices);
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn chunks_in_pages_do_so_by_matrices_too() {
    for gpu in gpus() {
        match gpu.coop {
            Some(_) => check(gpu, gpu),
            None => eprintln!("skipped: tier {} (no matrices)", gpu.tier.name()),
        }
    }
}
