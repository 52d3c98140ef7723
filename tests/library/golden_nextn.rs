//! Protects the prediction layer on the CPU: its logits are llama.cpp's.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::golden::{Golden, GoldenPrompt, deviation, in_repository};
use glimt::engine::Products;
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

/// The drafts behind the token at `first` along a text, at most `most` in a step, and how many of them are accepted.
pub fn along(model: &Arc<Model>, text: &[u32], first: usize, most: usize) -> [usize; 2] {
    let (mut layer, states) = Layer::new(model, Products::Quick, text);
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
