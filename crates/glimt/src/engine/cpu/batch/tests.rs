//! Protects drafts in steps of several sequences: they are those of the layer, and the text is what it is without.

use super::*;
use crate::gpu::wait::Wait;
use crate::kernels::testing::Rng;
use crate::model::NextnSource;
use crate::models;
use crate::models::mla::testing::{Draft, VOCAB};

const N_CTX: usize = 3 * PAGE as usize;

fn model() -> Arc<dyn Model> {
    let mut draft = Draft::glm(2);
    draft.add_nextn(2);
    let model = models::load_with_nextn(draft.open(), &NextnSource::Own);
    model.expect("it has the layer")
}

/// A batch of two sequences, whose pages are mixed.
fn batch(model: &Arc<dyn Model>) -> CpuBatch {
    let sizes = BatchSizes {
        sequences: 2,
        pages: 6,
        tokens: 64,
        ..BatchSizes::of_one(N_CTX, 256)
    };
    let batch = CpuBatch::new(Arc::clone(model), Products::Quick, sizes);
    let mut batch = batch.expect("there is memory");
    batch.write_pages(0, 0, &[4, 1, 2]);
    batch.write_pages(1, 0, &[0, 5, 3]);
    batch
}

fn token(sequence: usize, position: usize) -> BatchToken {
    BatchToken {
        sequence: sequence as u32,
        position: position as u32,
    }
}

fn land(batch: &mut CpuBatch, step: BatchStep<'_>) -> BatchLanding {
    batch.submit(step).wait().expect("it is taken");
    let landing = batch.land(&mut |_| ControlFlow::Continue(())).wait();
    landing.expect("it is computed").expect("nobody breaks")
}

/// The texts of both sequences up to `end`. With `most`, steps have up to so many drafts of the layer; these are told as the text before, and what
/// came.
fn texts(
    model: &Arc<dyn Model>,
    prompts: &[Vec<u32>; 2],
    (choice, end): (&Sampling, usize),
    most: usize,
    told: &mut dyn FnMut(&[u32], &[u32]),
) -> [Vec<u32>; 2] {
    let mut rng = Rng::fresh();
    let mut batch = batch(model);
    let mut texts = prompts.clone();
    for (sequence, prompt) in prompts.iter().enumerate() {
        batch.write_ids(sequence as u32, 0, prompt);
        let tokens: Vec<_> = (0..prompt.len() - 1).map(|i| token(sequence, i)).collect();
        let step = BatchStep {
            tokens: &tokens,
            choices: &[],
            biases: &[],
            logits: &[],
            predictions: &[],
        };
        land(&mut batch, step);
    }
    // The rows that stand on drafts, or are not there.
    let mut behind = [1; 2];
    while texts.iter().any(|text| text.len() < end) {
        let (mut tokens, mut predictions, mut parts) = (vec![], vec![], vec![]);
        for (sequence, text) in texts.iter().enumerate() {
            let last = text.len() - 1;
            let drafts = rng.below(most + 1);
            if drafts > 0 {
                predictions.push(Prediction {
                    sequence: sequence as u32,
                    position: last as u32,
                    behind: behind[sequence],
                    drafts: drafts as u32,
                });
            }
            tokens.extend((last..=last + drafts).map(|i| token(sequence, i)));
            parts.push(drafts);
        }
        let choices = vec![*choice; tokens.len()];
        let step = BatchStep {
            tokens: &tokens,
            choices: &choices,
            biases: &[],
            logits: &[],
            predictions: &predictions,
        };
        let landing = land(&mut batch, step);
        let (mut ids, mut drafts) = (&landing.ids[..], &landing.drafts[..]);
        for (sequence, count) in parts.into_iter().enumerate() {
            let own = drafts.split_off(..count).expect("all drafts come back");
            let chosen = ids.split_off(..=count).expect("all rows come back");
            told(&texts[sequence], own);
            let pairs = own.iter().zip(chosen);
            let accepted = pairs.take_while(|(draft, id)| draft == id).count();
            texts[sequence].extend(&chosen[..=accepted]);
            behind[sequence] = accepted as u32 + 1;
        }
        assert!(drafts.is_empty() && ids.is_empty());
    }
    texts.map(|mut text| {
        text.truncate(end);
        text
    })
}

#[test]
fn the_layer_drafts_what_it_drafts_alone_and_the_text_stays() {
    let (model, mut rng) = (model(), Rng::fresh());
    let prompts = [3 + rng.below(20), PAGE as usize + 5].map(|length| {
        let ids = (0..length).map(|_| rng.below(VOCAB as usize) as u32);
        ids.collect::<Vec<u32>>()
    });
    let choice = Sampling {
        temperature: [0.0, 1.0][rng.below(2)],
        seed: rng.below(1000) as u64,
        ..Sampling::GREEDY
    };
    let end = PAGE as usize + 40;
    let plain = texts(&model, &prompts, (&choice, end), 0, &mut |_, _| {});

    // The drafts of a few steps, made again from the whole text.
    let mut steps = vec![];
    let told = &mut |text: &[u32], drafts: &[u32]| {
        if rng.below(6) == 0 && !drafts.is_empty() {
            steps.push((text.to_vec(), drafts.to_vec()));
        }
    };
    let drafted = texts(&model, &prompts, (&choice, end), 3, told);
    assert_eq!(drafted, plain, "{choice:?}");
    assert!(!steps.is_empty());
    for (mut text, drafts) in steps {
        let reference = Arc::clone(&model).reference(Products::Quick, N_CTX, N_CTX);
        let mut reference = reference.expect("there is memory");
        let part = |tokens, pos| Part {
            tokens,
            pos,
            pages: &[],
        };
        let width = model.config().embedding_length;
        let all = [part(text.len(), 0)];
        let x = reference.forward(&text, &all, &mut |_| ControlFlow::Continue(()));
        let mut hidden = vec![0.0; width];
        hidden.extend(reference.normed(&x.expect("nobody breaks")));
        hidden.truncate(text.len() * width);
        let states = reference.predict(&text, &hidden, &all);
        let mut state = states[states.len() - width..].to_vec();
        for (i, draft) in drafts.iter().enumerate() {
            if i > 0 {
                let row = [part(1, text.len() - 1)];
                state = reference.predict(&text[text.len() - 1..], &state, &row);
            }
            let logits = reference.predicted_head(&state);
            let next = sample(&logits, choice.recent(&text), &choice, text.len() as u64);
            assert_eq!(next, *draft, "draft {i}");
            text.push(*draft);
        }
    }
}
