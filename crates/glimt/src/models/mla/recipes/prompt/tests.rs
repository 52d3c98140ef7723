//! Protects prompts whose cache has pages: their chunks leave the rows and the hidden states, to the bit, that they leave in a cache by
//! position.

use super::super::Weights;
use crate::gpu::Gpu;
use crate::gpu::Target;
use crate::gpu::buffer::{Range, Role};
use crate::gpu::call::{Blocks, State};
use crate::gpu::testing::{Recorded, download, gpus, upload};
use crate::gpu::wait::complete;
use crate::kernels::sequences::PAGE;
use crate::kernels::testing::Rng;
use crate::kernels::testing::paged::Paged;
use crate::models::mla::Model;
use crate::recipes::{self, BatchSizes, ChunkSize, Placed, Residence, Steps};
use crate::synth::{self, ModelName, SynthOptions};
use half::f16;
use std::sync::Arc;

/// The most rows of a context: some behind the last chunk, and no whole pages.
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

/// The attention of `model`, and its weights on a device.
fn weights(gpu: &Gpu, model: &Model) -> (Weights, recipes::Weights) {
    let mut attention = None;
    let placed = Placed::new(
        gpu,
        Residence::Whole,
        &model.config,
        &model.weights,
        |attention, places| attention.convert(places),
        |attention, made| attention.convert(made),
        |layers| {
            let weights = Weights::new(&model.config, layers);
            attention = Some(weights.clone());
            Arc::new(weights)
        },
    );
    let Placed {
        weights,
        loader,
        matrices,
    } = placed.expect("it fits");
    complete(loader.fill(gpu, &matrices, &mut |_| {})).expect("it fits");
    complete(gpu.realise(&weights.body.vectors.buffer)).expect("it fits");
    (attention.expect("it was made"), weights)
}

/// The steps of `weights` in the forms of `target`, which expand a context in blocks of two pages, with a cache of NaN and these ids.
fn steps(
    gpu: &Gpu,
    target: &Target,
    (attention, weights): &(Weights, recipes::Weights),
    sizes: BatchSizes,
    ids: &[u32],
) -> Steps {
    let mut steps = weights.untried(target).steps(gpu, sizes).expect("it fits");
    let chunk = ChunkSize {
        machine: gpu.machine,
        products: steps.context.products,
        tokens: MOST,
    };
    let attention = attention.in_best_forms(target);
    let mut mla = attention.mla(gpu, chunk, sizes);
    let expanded = mla.expanded.as_mut().expect("its sizes suit");
    expanded.scratch.blocks = Blocks::new(2 * PAGE, N_CTX as u32);
    let of_several = [&steps.context, &steps.context.alone()];
    let expands = of_several.map(|context| mla.expands(context).is_some());
    let table = !expands[0];
    assert_eq!(
        [table, expands[1]],
        [sizes.tokens > 1 || steps.as_one() > 1, true]
    );
    steps.attention = Arc::new(mla);
    let cache = |range: &Range| {
        let nan = vec![f16::NAN; range.size as usize / 2];
        Range::whole(&upload(gpu, &nan)).holding(Role::Cache)
    };
    steps.context.cache = steps.context.cache.iter().map(cache).collect();
    steps.context.history = Range::whole(&upload(gpu, ids));
    steps
}

/// The bits of the hidden states that the chunks of a prompt leave one after another. `place` tells where its pages and its ids begin.
fn hidden_states(gpu: &Gpu, steps: &mut Steps, [first_page, first_id]: [u32; 2]) -> Vec<Vec<u32>> {
    steps.alone = steps.context.alone();
    let step = steps.prompt(gpu, 1, MOST).expect("its shapes suit");
    let mut pos = 0;
    let mut recorded = None;
    let mut found = vec![];
    for (i, tokens) in CHUNKS.into_iter().enumerate() {
        let state = State {
            first_page,
            first_id,
            few: i == FEW,
            ..steps.state(gpu.machine, pos, tokens)
        };
        let recorded =
            recorded.get_or_insert_with(|| Recorded::new(gpu, &step.calls, step.most, &state));
        recorded.submit(gpu, &state);
        complete(gpu.done()).expect("it runs");
        let n = tokens * steps.body.config.embedding_length;
        found.push(download(gpu, &steps.hidden().buffer, n));
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
    let ids: Vec<u32> = (0..3 * (N_CTX + 1))
        .map(|_| rng.below(config.vocab_size) as u32)
        .collect();
    let paged = Paged::new(&mut rng, N_CTX);
    let first_id = paged.own() * (N_CTX + 1);

    let sizes = BatchSizes::of_one(N_CTX, MOST);
    let own = &ids[first_id..][..=N_CTX];
    let mut alone = steps(gpu, target, &weights, sizes, own);
    let expected = hidden_states(gpu, &mut alone, [0, 0]);

    let sizes = BatchSizes {
        n_ctx: N_CTX,
        pages: paged.count,
        sequences: 3,
        tokens: MOST,
        chunk: MOST,
        drafts: 0,
    };
    let mut in_pages = steps(gpu, target, &weights, sizes, &ids);
    let sequences = in_pages.context.sequences.as_mut();
    sequences.expect("there are some").pages = paged.sequences(gpu).pages;
    let place = [paged.first_page(), first_id as u32];
    let found = hidden_states(gpu, &mut in_pages, place);

    let what = format!("{:?} in tier {}", target.coop, gpu.tier.name());
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let finite = |bits: &u32| f32::from_bits(*bits).is_finite();
        assert!(expected.iter().all(finite), "chunk {i}, {what}");
        assert!(found == expected, "chunk {i}, {what}");
    }
    let (row, n) = (config.cache_values(), CHUNKS.iter().sum());
    for (i, (alone, pages)) in alone.cache().iter().zip(in_pages.cache()).enumerate() {
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
