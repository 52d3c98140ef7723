//! Protects the prediction layer on the CPU: its logits are llama.cpp's, and as many of its drafts are accepted.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::golden::{Golden, GoldenPrompt, deviation, fixture, in_repository, load_with_nextn};
use crate::texts::{MODEL, Text, some_texts, texts};
use glimt::engine::Products;
use glimt::model::NextnSource;
use glimt::models::mla::{Model, Reference};
use glimt::models::{Part, Reference as _};

/// The limits of the CPU reference for whole models hold here, too.
const NMSE: f64 = 1e-7;
const CONTRAST: f64 = 5e-5;

/// The layer of a model with a text that is known.
struct Layer {
    reference: Reference,
    width: usize,
    /// The state of the model before each position, zeros for the first.
    before: Vec<f32>,
}

impl Layer {
    /// The layer with all rows of `tokens`, and its states there.
    fn new(model: &Arc<Model>, products: Products, tokens: &[u32]) -> (Self, Vec<f32>) {
        let room = tokens.len() + 8;
        let reference = Reference::new(Arc::clone(model), products, room, room);
        let mut reference = reference.expect("there is memory");
        let width = model.config.embedding_length;
        let part = part(tokens.len(), 0);
        let go_on = &mut |_| ControlFlow::Continue(());
        let hidden = reference.forward(tokens, &[part], go_on);
        let mut before = vec![0.0; width];
        before.extend(reference.normed(&hidden.expect("nobody breaks")));
        let states = reference.predict(tokens, &before[..tokens.len() * width], &[part]);
        let layer = Self {
            reference,
            width,
            before,
        };
        (layer, states)
    }

    fn logits(&self, states: &[f32]) -> Vec<Vec<f32>> {
        let logits = self.reference.predicted_head(states);
        let vocab = logits.len() / (states.len() / self.width);
        logits.chunks_exact(vocab).map(<[f32]>::to_vec).collect()
    }

    /// The state and the best token behind a draft that follows a state.
    fn chained(&mut self, draft: u32, state: &[f32], position: usize) -> (Vec<f32>, u32) {
        let state = self
            .reference
            .predict(&[draft], state, &[part(1, position)]);
        let best = best(&self.logits(&state)[0]);
        (state, best)
    }

    /// How many of `most` drafts behind position `last` are what `text` has there. `state` is that of the row of `last`.
    fn accepted(&mut self, text: &[u32], last: usize, most: usize, state: &[f32]) -> usize {
        let mut state = state.to_vec();
        let mut draft = best(&self.logits(&state)[0]);
        let mut accepted = 0;
        while accepted < most && text[last + 1 + accepted] == draft {
            accepted += 1;
            if accepted < most {
                (state, draft) = self.chained(draft, &state, last + accepted);
            }
        }
        // The rows of drafts are made again.
        let again = last + 1..last + 1 + accepted;
        let hidden = &self.before[again.start * self.width..again.end * self.width];
        let part = part(accepted, again.start);
        self.reference.predict_rows(&text[again], hidden, &[part]);
        accepted
    }
}

fn part(tokens: usize, pos: usize) -> Part<'static> {
    Part {
        tokens,
        pos,
        pages: &[],
    }
}

fn best(logits: &[f32]) -> u32 {
    let mut all = logits.iter().enumerate();
    let first = all.next().expect("there is a vocabulary");
    all.fold(first, |best, one| if one.1 > best.1 { one } else { best })
        .0 as u32
}

fn check(prompt: &GoldenPrompt, rows: &[Vec<f32>], name: &str) {
    let found = deviation(prompt, rows);
    eprintln!(
        "{name}: NMSE {:.2e}, contrast {:.2e}",
        found.nmse, found.contrast
    );
    assert!(found.nmse < NMSE, "{name}: NMSE {:.2e}", found.nmse);
    let contrast = found.contrast;
    assert!(contrast < CONTRAST, "{name}: contrast {contrast:.2e}");
}

#[test]
fn the_layer_gives_llama_cpps_logits() {
    let golden = Golden::read(&in_repository("tests/data/golden-nextn-tiny-glm-q8_0.json"));
    let model = golden.synthetic.as_ref().expect("it is synthetic").load();
    let (prompt, chained) = (&golden.prompts["prompt"], &golden.prompts["chained"]);
    let (mut layer, states) = Layer::new(&model, Products::Exact, &prompt.tokens);
    let rows = layer.logits(&states);
    check(prompt, &rows, "rows of a prompt");

    let mut state = states[states.len() - layer.width..].to_vec();
    let mut draft = best(rows.last().expect("there are rows"));
    let mut rows = vec![];
    for (i, expected) in chained.tokens.iter().enumerate() {
        assert_eq!(draft, *expected, "draft {i}");
        (state, draft) = layer.chained(draft, &state, prompt.tokens.len() + i);
        rows.extend(layer.logits(&state));
    }
    check(chained, &rows, "chained rows");
}

/// Drafted and accepted.
type Counts = [usize; 2];

/// Drafted and accepted here and by llama.cpp.
type Both = [Counts; 2];

/// The drafts along llama.cpp's greedy text, at most `most` in a step, and how many of them are accepted.
fn counted(
    layer: &mut Layer,
    text: &[u32],
    states: &[f32],
    (first, most): (usize, usize),
) -> Counts {
    let (mut last, mut counts) = (first, [0; 2]);
    while last + 1 < text.len() {
        let drafts = most.min(text.len() - last - 1);
        let state = &states[last * layer.width..][..layer.width];
        let accepted = layer.accepted(text, last, drafts, state);
        counts = [counts[0] + drafts, counts[1] + accepted];
        last += accepted + 1;
    }
    counts
}

fn share([drafted, accepted]: Counts) -> f64 {
    100.0 * accepted as f64 / drafted.max(1) as f64
}

/// Holds the shares that are accepted of drafts along `texts` against llama.cpp's, with one draft in a step and up to three: those of all texts of a
/// kind where all are there, else those of texts that llama.cpp's drafts left as they were, which alone are comparable one by one.
fn check_acceptance(texts: &[Text], points: f64) {
    let Some(model) = fixture(MODEL) else {
        return;
    };
    let model = load_with_nextn(&model, &NextnSource::Own);
    let is_whole = texts.len() == crate::texts::texts().len();
    let mut sums: BTreeMap<(&str, usize), Both> = BTreeMap::new();
    for text in texts {
        let all = [&text.prompt[..], &text.greedy].concat();
        let (mut layer, states) = Layer::new(&model, Products::Quick, &all);
        for (most, theirs, stayed) in [(1, text.n1, text.same1), (3, text.n3, text.same3)] {
            let ours = counted(&mut layer, &all, &states, (text.prompt.len(), most));
            eprintln!(
                "{:?}, up to {most}: {ours:?}, llama.cpp {theirs:?}, the same text: {stayed}",
                text.name
            );
            if stayed || is_whole {
                let sum = sums.entry((&text.name.0, most)).or_default();
                for (sum, counts) in sum.iter_mut().zip([ours, theirs]) {
                    *sum = [sum[0] + counts[0], sum[1] + counts[1]];
                }
            }
        }
    }
    for ((kind, most), [ours, theirs]) in sums {
        let line = format!(
            "{kind}, up to {most}: {ours:?} {:.1}%, llama.cpp {theirs:?} {:.1}%",
            share(ours),
            share(theirs)
        );
        eprintln!("{line}");
        assert!((share(ours) - share(theirs)).abs() <= points, "{line}");
    }
}

#[test]
fn as_many_drafts_are_accepted_as_in_llama_cpp() {
    check_acceptance(&some_texts(1), 3.0);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn as_many_drafts_of_all_texts_are_accepted_as_in_llama_cpp() {
    check_acceptance(&texts(), 3.0);
}
