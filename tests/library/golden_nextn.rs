//! Protects the prediction layer on the CPU: its logits are llama.cpp's, and as many of its drafts are accepted.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::golden::{Golden, GoldenPrompt, deviation, fixture, in_repository, load_with_nextn};
use glimt::engine::Products;
use glimt::model::NextnSource;
use glimt::models::mla::{Model, Reference};
use glimt::models::{Part, Reference as _};
use serde::Deserialize;

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

/// A text of the fixture, and what llama.cpp drafted and accepted of it.
#[derive(Deserialize)]
struct Text {
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    n1: [usize; 2],
    n3: [usize; 2],
    same1: bool,
    same3: bool,
}

impl Text {
    /// Whether drafts changed nothing in llama.cpp.
    fn stayed(&self) -> bool {
        self.same1 && self.same3
    }
}

/// Drafted and accepted, with one draft and with three.
type Counts = [[usize; 2]; 2];

/// The drafts of a text and how many of them are accepted.
fn counted(model: &Arc<Model>, text: &Text) -> Counts {
    let all = [&text.prompt[..], &text.greedy].concat();
    let (mut layer, states) = Layer::new(model, Products::Quick, &all);
    [1, 3].map(|most| {
        let (mut last, mut counts) = (text.prompt.len(), [0; 2]);
        while last + 1 < all.len() {
            let drafts = most.min(all.len() - last - 1);
            let state = &states[last * layer.width..][..layer.width];
            let accepted = layer.accepted(&all, last, drafts, state);
            counts = [counts[0] + drafts, counts[1] + accepted];
            last += accepted + 1;
        }
        counts
    })
}

/// Holds the accepted shares of the texts that are `taken`, at most `count` of each kind, against llama.cpp's.
fn check_acceptance(count: usize, points: f64, taken: impl Fn(&Text) -> bool) {
    let (Some(model), Some(texts)) = (
        fixture("tales64/tales64-Q4_0.gguf"),
        fixture("tales64/acceptance.json"),
    ) else {
        return;
    };
    let model = load_with_nextn(&model, &NextnSource::Own);
    let texts = std::fs::read_to_string(texts).expect("it is there");
    let texts: BTreeMap<String, Vec<Text>> = serde_json::from_str(&texts).expect("it is valid");
    for (kind, texts) in &texts {
        let (mut found, mut expected) = (Counts::default(), Counts::default());
        for text in texts.iter().filter(|text| taken(text)).take(count) {
            let both = counted(&model, text).into_iter().zip([text.n1, text.n3]);
            for (i, (ours, theirs)) in both.enumerate() {
                for j in 0..2 {
                    found[i][j] += ours[j];
                    expected[i][j] += theirs[j];
                }
            }
        }
        for (most, found, expected) in [(1, found[0], expected[0]), (3, found[1], expected[1])] {
            let share = |[drafted, accepted]: [usize; 2]| 100.0 * accepted as f64 / drafted as f64;
            let (ours, theirs) = (share(found), share(expected));
            let line = format!(
                "{kind}, up to {most}: {found:?} {ours:.1}%, llama.cpp {expected:?} {theirs:.1}%"
            );
            eprintln!("{line}");
            assert!((ours - theirs).abs() <= points, "{line}");
        }
    }
}

#[test]
fn as_many_drafts_are_accepted_as_in_llama_cpp() {
    check_acceptance(1, 3.0, Text::stayed);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn as_many_drafts_of_all_texts_are_accepted_as_in_llama_cpp() {
    check_acceptance(30, 3.0, |_| true);
}
