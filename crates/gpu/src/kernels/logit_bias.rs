//! Numbers that requests add to the logits of some tokens, before one is chosen.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::gpu::buffer::{Buffer, Range};
use crate::gpu::call::{Call, Extent, When};

/// The most tokens that may have biases in a row of logits.
pub const MOST: usize = 64;

/// The biases of a row of logits on the device: (token, number to add as bits).
pub type Row = [[u32; 2]; MOST];

/// A row without biases: no vocabulary has this token.
pub const NONE: Row = [[u32::MAX, 0]; MOST];

/// The largest bias that the device adds, and with the other sign the smallest. Minus infinity excludes a token, but a sum with it would
/// be infinite, and [`sample`](super::sample) reports logits that are not finite as broken. This number is just as far from all other
/// logits and leaves sums finite. The token's share of a draw is 0 all the same.
const FARTHEST: f32 = 1e30;

/// Numbers that are added to the logits of up to [`MOST`] tokens. Clones share them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Biases(Arc<[(u32, f32)]>);

impl Biases {
    /// Biases from pairs of a token and a number. The numbers of a token that is there several times are added up. `None` if there are more
    /// tokens than a row of the device has room for.
    pub fn new(biases: &[(u32, f32)]) -> Option<Self> {
        let mut sums = BTreeMap::new();
        for (token, bias) in biases {
            *sums.entry(*token).or_insert(0.0) += bias;
        }
        (sums.len() <= MOST).then(|| Self(sums.into_iter().collect()))
    }

    /// Whether no token has a bias.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The biases in the form of the device: finite.
    pub fn row(&self) -> Row {
        let mut row = NONE;
        for (place, (token, bias)) in row.iter_mut().zip(&*self.0) {
            *place = [*token, bias.clamp(-FARTHEST, FARTHEST).to_bits()];
        }
        row
    }
}

/// A buffer for the biases of `rows` rows of logits, (rows, [`MOST`]) pairs, which has none at first.
pub fn buffer(rows: u32) -> Buffer {
    let none = vec![NONE; rows as usize];
    let words: &[u32] = none.as_flattened().as_flattened();
    Buffer::with("biases", words)
}

/// The dispatch that adds `biases`, a [`Row`] for each of `rows`, to `logits`, (rows, vocab) f32, in replays of which some row
/// [has any](When::Biased). Tokens that the vocabulary does not have are ignored.
pub fn call(biases: &Range, logits: &Range, vocab: u32, rows: Extent) -> Call {
    Call::new("logit_bias")
        .number("WG", MOST as u32)
        .number("VOCAB", vocab)
        .bind("logits", logits)
        .bind("biases", biases)
        .grid([Extent::N(1), rows, Extent::N(1)])
        .only(When::Biased)
}

/// Adds the biases of a row to its logits.
pub fn logit_bias(logits: &mut [f32], biases: &Row) {
    for [token, bias] in biases {
        if let Some(logit) = logits.get_mut(*token as usize) {
            *logit += f32::from_bits(*bias);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::testing::{assert_refused, gpus};
    use crate::kernels::cases::logit_bias::cases;
    use crate::kernels::sample;
    use crate::kernels::sampling::Sampling;
    use crate::kernels::testing::{Rng, agree_everywhere};

    #[test]
    fn biases_of_a_token_are_added_up_and_finite_on_the_device() {
        let inf = f32::INFINITY;
        let given = [(7, 1.5), (3, -inf), (7, 2.0), (3, 50.0), (9, inf)];
        let biases = Biases::new(&given).expect("three");
        assert_eq!(*biases.0, [(3, -inf), (7, 3.5), (9, inf)]);
        let row = biases.row();
        let values = row.map(|[token, bias]| (token, f32::from_bits(bias)));
        assert_eq!(values[..3], [(3, -FARTHEST), (7, 3.5), (9, FARTHEST)]);
        assert_eq!(row[3..], NONE[3..]);
        let many = |count: u32| (0..2 * count).map(|i| (i % count, 1.0)).collect::<Vec<_>>();
        assert!(Biases::new(&many(64)).is_some() && Biases::new(&many(65)).is_none());
        assert!(Biases::default().is_empty() && Biases::default().row() == NONE);
    }

    #[test]
    fn each_row_gets_its_own_biases() {
        agree_everywhere(gpus(), |_| cases());
    }

    #[test]
    fn an_excluded_token_is_not_chosen_and_breaks_nothing() {
        let mut rng = Rng::fresh();
        let mut logits = rng.normals(300);
        let best = |logits: &[f32]| sample::sample(logits, &[], &Sampling::GREEDY, 0);
        for _ in 0..MOST {
            let token = best(&logits);
            let biases = Biases::new(&[(token, f32::NEG_INFINITY)]).expect("one");
            logit_bias(&mut logits, &biases.row());
            assert!(best(&logits) != token && sample::all_finite(&logits));
        }
    }

    #[test]
    fn buffers_for_fewer_rows_are_refused() {
        let (biases, logits) = (Range::whole(&buffer(8)), Range::floats("logits", 9 * 300));
        let call = call(&biases, &logits, 300, Extent::Tokens);
        assert_refused(&[call], 9, "logit_bias", "biases");
    }
}
