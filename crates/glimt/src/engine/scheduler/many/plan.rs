//! The tokens that the next step computes.

use web_time::{Duration, Instant};

use super::pace::{Filled, is_read};
use super::{Draw, Flight, Many};
use crate::engine::batch::{BatchStep, BatchToken, Prediction};
use crate::engine::draft::Proposal;
use crate::engine::scheduler::fair::shares;
use crate::engine::scheduler::request::Choice;
use crate::engine::{Biases, EngineError, Sampling};
use crate::kernels::keep_states::KEPT;

/// How long after others no step is made that somebody who comes would break off.
const ALERT: Duration = Duration::from_secs(10);

/// A step that is not submitted yet.
#[derive(Default)]
struct Plan {
    /// The tokens after which one is chosen.
    drawn: Vec<BatchToken>,
    choices: Vec<Sampling>,
    biases: Vec<Biases>,
    draws: Vec<Draw>,
    /// Indices of the drawn tokens of which the host wants the logits.
    rows: Vec<usize>,
    /// The other tokens.
    others: Vec<BatchToken>,
    predictions: Vec<Prediction>,
    parts: Vec<(u64, usize)>,
    /// Tokens of prompts.
    prompts: usize,
    /// Whether the tokens of prompts are a part of one prompt.
    is_run: bool,
    /// Whether prompts have more.
    is_full: bool,
    /// The run of a prompt that has the step for itself and may be broken off.
    watched: Option<u64>,
}

impl Plan {
    fn len(&self) -> usize {
        self.drawn.len() + self.others.len()
    }
}

impl Many {
    /// Submits a step if there is something to compute; whether there was.
    pub(super) async fn fly(&mut self) -> Result<bool, EngineError> {
        let mut plan = self.plan();
        let restored = match (plan.drawn.is_empty(), plan.others.pop()) {
            (true, None) => return Ok(false),
            // On a GPU a step without a choice has nothing to come back with, so one is made and its token is put back.
            (true, Some(token)) if !self.is_slow() => {
                plan.drawn.push(token);
                plan.choices.push(Sampling::GREEDY);
                self.id_after(token).map(|id| (token, id))
            }
            (_, last) => {
                plan.others.extend(last);
                None
            }
        };
        let filled = Filled {
            tokens: plan.len(),
            prompts: plan.prompts,
            is_run: plan.is_run,
            is_full: plan.is_full,
            at: Instant::now(),
        };
        let tokens = [&plan.drawn[..], &plan.others].concat();
        let submitted = self.batch.submit(BatchStep {
            tokens: &tokens,
            choices: &plan.choices,
            biases: &plan.biases,
            logits: &plan.rows,
            predictions: &plan.predictions,
        });
        submitted.await?;
        self.encode_ahead(&plan, &tokens);
        if let Some((token, id)) = restored {
            let position = token.position as usize + 1;
            self.batch.write_ids(token.sequence, position, &[id]);
        }
        self.flown += 1;
        self.flights.push_back(Flight {
            number: self.flown,
            draws: plan.draws,
            parts: plan.parts,
            filled,
            watched: plan.watched,
        });
        Ok(true)
    }

    /// Has the next step encoded while one with drafts computes: mostly it has as many drafts.
    fn encode_ahead(&mut self, plan: &Plan, tokens: &[BatchToken]) {
        let has_drafts = plan.draws.iter().any(|draw| draw.drafts.count() > 0);
        if !has_drafts || !plan.rows.is_empty() || plan.prompts > 0 {
            return;
        }
        let moved = |token: &BatchToken| {
            let own = tokens
                .iter()
                .filter(|other| other.sequence == token.sequence);
            BatchToken {
                position: token.position + own.count() as u32,
                ..*token
            }
        };
        let next: Vec<_> = tokens.iter().map(moved).collect();
        let predicted = plan.predictions.iter().map(|of| of.drafts).max();
        let biased = plan.biases.iter().any(|biases| !biases.is_empty());
        let predicted = predicted.unwrap_or(0) as usize;
        self.batch.encode_ahead(&next, predicted, biased);
    }

    /// The id behind a token of a prompt.
    fn id_after(&self, token: BatchToken) -> Option<u32> {
        let sequence = self.running.iter().find(|s| s.seat == token.sequence)?;
        let next = token.position as usize + 1;
        sequence.answer.tokens.get(next).copied()
    }

    /// First a token of each sequence that decodes, then as much of the prompts as the pace allows, shared among them.
    fn plan(&mut self) -> Plan {
        let mut plan = Plan::default();
        let most = self.batch.sizes().tokens as usize;
        let decoding = self
            .running
            .iter()
            .filter(|s| s.is_ready() && s.left() == 1);
        let mut decoding: Vec<u64> = decoding.map(|s| s.run).take(most).collect();
        // Whoever needs a page may have one of another sequence taken back, which must not be planned then.
        decoding.retain(|&run| {
            let rows = self
                .find(run)
                .map(|index| self.running[index].submitted + 1);
            rows.is_some_and(|rows| self.make_room(run, rows))
        });
        for (run, drafts) in self.drafts(decoding) {
            if let Some(index) = self.find(run) {
                self.add(&mut plan, index, 1, drafts);
            }
        }
        // Also those that the host chooses for, which may not be ready.
        let now = Instant::now();
        let mut decoding = self.running.iter().filter(|s| s.left() <= 1);
        let beside = decoding.any(|s| is_read(s.answer.first, now));
        let prompts: Vec<usize> = (0..self.running.len())
            .filter(|index| self.running[*index].is_ready() && self.running[*index].left() > 1)
            .collect();
        if plan.len() == 0
            && !beside
            && let Some((index, count)) = self.part(&prompts)
        {
            (plan.prompts, plan.is_run) = (count, !self.is_slow());
            plan.watched = self.is_slow().then_some(self.running[index].run);
            plan.is_full = count < self.running[index].left();
            self.add(&mut plan, index, count, Proposal::None);
            return plan;
        }
        let room = self.pace.room(plan.len(), beside, most);
        let of = |index: &usize| {
            (
                self.running[*index].answer.owner,
                self.running[*index].left(),
            )
        };
        let wanted: Vec<_> = prompts.iter().map(of).collect();
        let turn = self.flown as usize;
        let shares = shares(room, &wanted, turn);
        for ((index, (_, left)), count) in prompts.into_iter().zip(wanted).zip(shares) {
            plan.is_full |= count < left;
            if count > 0 {
                plan.prompts += count;
                self.add(&mut plan, index, count, Proposal::None);
            }
        }
        plan
    }

    /// The prompt of which the next step computes a part alone, and the tokens of that: one that no step with others could end, or the only
    /// one. Such prompts of different peers take turns, and with steps for those that are short. Where steps are slow, it is the prompt of a
    /// request that has been alone for a while.
    fn part(&self, prompts: &[usize]) -> Option<(usize, usize)> {
        let most = self.batch.longest_run()?;
        let left = |index: &usize| self.running[*index].left();
        if self.is_slow() {
            let [only] = prompts else {
                return None;
            };
            let is_alone = self.running.len() + self.waiting.len() == 1;
            let was_alone = self.shared.is_none_or(|at| at.elapsed() >= ALERT);
            return (is_alone && was_alone || self.slots() == 1)
                .then(|| (*only, left(only).min(most)));
        }
        let of_any = self.batch.sizes().tokens as usize;
        let long = |index: &&usize| left(index) > of_any;
        let turn = self.flown as usize;
        let index = match prompts {
            [only] => *only,
            _ if turn % 2 == 1 && !prompts.iter().all(|index| long(&index)) => return None,
            _ => {
                let mut peers = vec![];
                for index in prompts.iter().filter(long) {
                    let peer = self.running[*index].answer.owner.peer;
                    if peers.iter().all(|(known, _)| *known != peer) {
                        peers.push((peer, *index));
                    }
                }
                let (_, oldest) = peers.get(turn / 2 % peers.len().max(1))?;
                *oldest
            }
        };
        Some((index, self.pace.part(left(&index), most)?))
    }

    /// Adds the next tokens of a sequence, and drafts behind the last one.
    fn add(&mut self, plan: &mut Plan, index: usize, count: usize, drafts: Proposal) {
        let sequence = &mut self.running[index];
        let first = sequence.submitted;
        let is_last = count == sequence.left();
        let token = |position: usize| BatchToken {
            sequence: sequence.seat,
            position: position as u32,
        };
        let mut tokens: Vec<_> = (first..first + count).map(token).collect();
        if is_last && let Some(last) = tokens.pop() {
            let (sampling, biases, on_host) = match &sequence.answer.choice {
                Choice::Device(sampling, biases) => (*sampling, biases.clone(), false),
                Choice::Host(_) => (Sampling::GREEDY, Biases::default(), true),
            };
            let (first_draft, rows) = (first + count, 1 + drafts.count());
            let drafted = (first_draft..first_draft + drafts.count()).map(token);
            let (drawn, row) = (plan.drawn.len(), plan.rows.len());
            plan.drawn.extend([last].into_iter().chain(drafted));
            plan.choices.extend(std::iter::repeat_n(sampling, rows));
            plan.biases.extend(std::iter::repeat_n(biases, rows));
            if on_host {
                plan.rows.extend(drawn..plan.drawn.len());
            }
            match &drafts {
                Proposal::None => {}
                Proposal::Ids(ids) => self.batch.write_ids(sequence.seat, first_draft, ids),
                Proposal::Predict(count) => {
                    // States of earlier tokens are not kept.
                    let most = KEPT.saturating_sub(self.batch.sizes().drafts + 1);
                    let behind = first_draft.saturating_sub(sequence.predicted) as u32;
                    plan.predictions.push(Prediction {
                        sequence: sequence.seat,
                        position: last.position,
                        behind: behind.clamp(1, most.max(1)),
                        drafts: *count as u32,
                    });
                    sequence.predicted = first_draft;
                }
            }
            sequence.drawn += 1;
            sequence.drafts = drafts.count();
            plan.draws.push(Draw {
                run: sequence.run,
                first: drawn,
                row: on_host.then_some(row),
                drafts,
            });
        }
        plan.others.extend(tokens);
        sequence.submitted += count;
        plan.parts.push((sequence.run, sequence.submitted));
    }
}
