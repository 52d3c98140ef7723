//! Protects the rows of the prediction layer: they do not depend on how tokens are split into calls, nor on what else is computed.

mod cache_types;

use super::*;
use crate::model::NextnSource;
use crate::models::Reference as _;
use crate::models::mla::testing::{Draft, VOCAB, WIDTH};
use std::ops::ControlFlow;

fn reference(model: &Arc<Model>) -> Reference {
    Reference::new(Arc::clone(model), Products::Exact, 64, 64).expect("there is memory")
}

#[test]
fn rows_of_the_layer_are_those_of_any_call() {
    let mut draft = Draft::glm(2);
    draft.add_nextn(2);
    let model = Model::with_nextn(draft.open(), &NextnSource::Own).expect("it has the layer");
    let model = Arc::new(model);
    let part = |tokens, pos| Part {
        tokens,
        pos,
        pages: &[],
    };
    let tokens: Vec<u32> = (0..9).map(|i| (7 * i + 3) % VOCAB as u32).collect();
    let width = WIDTH as usize;

    let mut whole = reference(&model);
    let go_on = &mut |_| ControlFlow::Continue(());
    let x = whole.forward(&tokens, &[part(9, 0)], go_on);
    let normed = whole.normed(&x.expect("nobody breaks"));
    let mut hidden = vec![0.0; width];
    hidden.extend_from_slice(&normed[..8 * width]);
    let states = whole.predict(&tokens, &hidden, &[part(9, 0)]);
    assert!(states.iter().all(|value| value.is_finite()));
    let logits = whole.predicted_head(&states);
    assert_eq!(logits.len(), 9 * VOCAB as usize);

    // The first rows without anything else, the others one by one.
    let mut split = reference(&model);
    split.predict_rows(&tokens[..5], &hidden[..5 * width], &[part(5, 0)]);
    for (i, token) in tokens.iter().enumerate().skip(5) {
        let own = i * width..(i + 1) * width;
        let state = split.predict(&[*token], &hidden[own.clone()], &[part(1, i)]);
        assert_eq!(state, states[own], "{i}");
        let row = split.predicted_head(&state);
        assert_eq!(row, logits[i * VOCAB as usize..][..VOCAB as usize], "{i}");
    }
    assert_eq!(split.cached().len(), 3);
    assert_eq!(split.cached()[2], whole.cached()[2]);
    // The hidden state and the token both matter.
    let other = split.predict(&tokens[8..], &hidden[..width], &[part(1, 8)]);
    assert_ne!(other, states[8 * width..]);
    let other = split.predict(&tokens[..1], &hidden[8 * width..], &[part(1, 8)]);
    assert_ne!(other, states[8 * width..]);
}
