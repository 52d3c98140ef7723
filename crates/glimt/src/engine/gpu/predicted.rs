//! Decoding with drafts of the prediction layer: steps stay in flight, since the device finds out where each begins.

use super::GpuBackend;
use super::batch::unknown::{Ask, Encoded};
use super::batch::{BATCHES_IN_FLIGHT, BatchFlight};
use super::drafted::{Answered, accepted_ids};
use crate::engine::backend::BackendError;
use crate::engine::draft::{Acceptance, Proposal};
use std::collections::VecDeque;
use std::ops::ControlFlow;

/// A step with drafts on its way.
struct Flying {
    flight: BatchFlight,
    drafts: usize,
    acceptance: Acceptance,
}

/// Steps with drafts on their way, and one that is encoded.
#[derive(Default)]
struct Flight {
    flying: VecDeque<Flying>,
    ready: Option<(Encoded, usize)>,
}

impl Flight {
    /// The positions at which the step behind those on their way may begin, the first of which begins at `last`.
    fn positions(&self, last: usize) -> [usize; 2] {
        let most = self.flying.iter().map(|of| of.drafts + 1);
        [last + self.flying.len(), last + most.sum::<usize>()]
    }
}

impl GpuBackend {
    /// Whether steps with so many drafts may be in flight.
    pub(super) fn may_fly(&self, drafts: usize) -> bool {
        self.biases.is_empty() && self.batch.takes_unknown(drafts)
    }

    /// Computes steps with drafts of the prediction layer, `count` or as many as are proposed meanwhile, until it is not to make any.
    pub(super) async fn fly_predicted(
        &mut self,
        answered: &mut Answered<'_, '_>,
        mut count: usize,
    ) -> Result<ControlFlow<()>, BackendError> {
        let mut flight = Flight::default();
        let acceptance = answered.drafter.acceptance(count);
        self.batch.prepare_unknown(count).await?;
        let (first, ..) = self
            .submit_drafted(answered, Proposal::Predict(count))
            .await?;
        flight.flying.push_back(Flying {
            flight: first,
            drafts: count,
            acceptance,
        });
        let mut goes_on = acceptance != Acceptance::Told;
        loop {
            if goes_on && flight.ready.is_none() {
                flight.ready = self.encode_behind(answered, &flight, count);
                goes_on = flight.ready.is_some();
            }
            if flight.flying.len() < BATCHES_IN_FLIGHT && self.submit_ready(answered, &mut flight) {
                continue;
            }
            let Some(landed) = flight.flying.pop_front() else {
                return Ok(ControlFlow::Continue(()));
            };
            let last = answered.text.len() - 1;
            let first = landed.flight.at(last + 1);
            let landing = self.batch.land(first).await?;
            // The device goes on before anybody looks at the tokens.
            self.submit_ready(answered, &mut flight);
            self.batch.layer_rows = last + 1;
            let accepted = match landed.acceptance {
                Acceptance::Fixed(accepted) => accepted,
                _ => answered.drafter.accepted(&landing.drafts, &landing.ids),
            };
            let ids = accepted_ids(&landing, last, accepted)?;
            // The last step may give more than the answer takes.
            answered.tell(landed.drafts, accepted.min(answered.left - 1));
            if answered.take(ids).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            if goes_on {
                match answered.propose(self.vocab(), self.batch.recipes.predicts()) {
                    Proposal::Predict(next) if self.may_fly(next) => count = next,
                    _ => goes_on = false,
                }
            }
        }
    }

    /// Encodes the step behind those on their way, with so many drafts; `None` if there is to be none, or its position must be known.
    fn encode_behind(
        &mut self,
        answered: &Answered<'_, '_>,
        flight: &Flight,
        drafts: usize,
    ) -> Option<(Encoded, usize)> {
        let before = flight.flying.back()?;
        let [least, most] = flight.positions(answered.text.len() - 1);
        // Each step gives a token at least.
        if answered.left <= flight.flying.len() || least < before.drafts {
            return None;
        }
        let fixed = match before.acceptance {
            Acceptance::Fixed(accepted) => Some(accepted),
            _ => None,
        };
        let ask = Ask {
            positions: least..=most,
            before: before.drafts,
            fixed,
            drafts,
            sampling: answered.sampling,
        };
        Some((self.batch.encode_unknown(&ask)?, drafts))
    }

    /// Submits the step that is encoded, if there is one.
    fn submit_ready(&mut self, answered: &mut Answered<'_, '_>, flight: &mut Flight) -> bool {
        let Some((encoded, drafts)) = flight.ready.take() else {
            return false;
        };
        flight.flying.push_back(Flying {
            flight: self.batch.submit_unknown(encoded),
            drafts,
            acceptance: answered.drafter.acceptance(drafts),
        });
        true
    }
}
