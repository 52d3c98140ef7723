//! A step on its way: what the host writes before it, the recordings that it replays, and what comes back of it.

use super::ahead::{Ahead, Key};
use super::drafting::{Ordered, most_drafts};
use super::rows::FlyingRows;
use super::{BatchFlight, BatchLanding, BatchStep, BatchToken, GpuBatch, LEAST_RUN, RING};
use crate::engine::gpu::results::RESULT;
use crate::engine::gpu::table::{write_table, write_words};
use crate::gpu::GpuError;
use crate::gpu::call::State;
use crate::gpu::record::Recording;
use crate::kernels::sample;
use crate::kernels::sampling::Sampling;
use crate::kernels::sequences::CHOICE;
use std::sync::Arc;
use wgpu::{CommandEncoder, SubmissionIndex};

/// Whether a step has tokens of prompts, so that it makes their rows of the prediction layer with those of all its tokens. Other rows are made when
/// drafts are.
fn makes_rows(tokens: usize, drawn: usize) -> bool {
    tokens > drawn
}

/// What is known of a step before it is submitted.
struct Known {
    /// Whether it is a part of one prompt.
    is_run: bool,
    state: State,
    /// The number of the submission.
    number: u32,
    /// The step that was encoded before.
    ahead: Option<Ahead>,
}

impl GpuBatch {
    /// Submits a step. At most `BATCHES_IN_FLIGHT` may be on their way.
    ///
    /// # Errors
    /// The errors of [`prepare`](Self::prepare).
    ///
    /// # Panics
    /// If there are no tokens or more than the batch is made for, or if they do not go with the choices.
    pub async fn submit(&mut self, step: BatchStep<'_>) -> Result<BatchFlight, GpuError> {
        let BatchStep {
            tokens,
            choices,
            biases,
            logits,
            predictions,
        } = step;
        let drawn = choices.len();
        let run = self.run(tokens, drawn);
        let most = match run {
            Some(_) => self.sizes.chunk,
            None => self.sizes.tokens,
        };
        assert!(
            (1..=most as usize).contains(&tokens.len())
                && drawn <= tokens.len().min(self.sizes.most_drawn() as usize)
                && biases.len() <= drawn,
            "{drawn} of {} tokens",
            tokens.len()
        );
        match run {
            Some(_) => self.prepare_run(tokens.len()).await?,
            None => self.prepare(tokens.len(), drawn).await?,
        }
        let predictions = self.prepare_drafts(predictions).await?;
        if let Some(copies) = &mut self.copies {
            copies.submit(&self.model.gpu);
        }
        let ahead = self.ahead.take();
        let number = self.gpu().reserve_numbers(1).number(0);
        let words = |(choice, token): (&Sampling, &BatchToken)| {
            let mut words = sample::words(choice, u64::from(token.position) + 1);
            words[sample::NUMBER] = number;
            words
        };
        let words: Vec<_> = choices.iter().zip(tokens).map(words).collect();
        let mut state = match run {
            Some(first) => State {
                sampling: words.first().copied().unwrap_or_default(),
                ..self.state(first.sequence, first.position as usize, tokens.len())
            },
            None => self.write(tokens, &words),
        };
        let slot = self.next_slot;
        self.next_slot = (slot + 1) % RING;
        state.slot = slot;
        state.biased = self.biases.write(&self.model.gpu, drawn, biases);
        let bytes = self.row_bytes() * logits.len() as u64;
        let rows = self.rows.staged(&self.model.gpu, bytes).await?;

        let known = Known {
            is_run: run.is_some(),
            state,
            number,
            ahead,
        };
        let submission = self.send(&step, known, &predictions, rows.as_ref()).await?;
        Ok(BatchFlight {
            slot,
            number,
            drawn,
            rows,
            predictions,
            position: None,
            layer_rows: self.makes_layer_rows(tokens.len(), drawn, run.is_some()),
            submission,
        })
    }

    /// Submits a step for which all is written: as it was encoded before, if it was.
    async fn send(
        &self,
        step: &BatchStep<'_>,
        known: Known,
        predictions: &Ordered,
        rows: Option<&FlyingRows>,
    ) -> Result<SubmissionIndex, GpuError> {
        let Known {
            is_run,
            state,
            number,
            ahead,
        } = known;
        let (gpu, drawn) = (self.gpu(), step.choices.len());
        let chosen: Vec<_> = step.tokens.iter().zip(step.choices).collect();
        let drafts = self.replays_of_drafts(predictions, &chosen, state);
        let results = self.results_of(drawn, predictions);
        let key = Key::new(&state, drawn, results);
        let ahead = ahead.filter(|ahead| ahead.key == key && !is_run && rows.is_none());
        if let Some(ahead) = ahead {
            return Ok(ahead.submit(gpu, &drafts, number));
        }
        let replays = match is_run {
            true => self.replays_of_run(drawn, state),
            false => self.replays(step.tokens.len(), drawn, state),
        };
        let replays: Vec<_> = drafts
            .iter()
            .chain(&replays)
            .map(|(recording, state)| recording.replay(gpu, state))
            .collect();
        let copy = |encoder: &mut CommandEncoder| {
            if results > 0 {
                self.results.copy(encoder, state.slot, results);
            }
            self.keep_landed(encoder, state.slot, most_drafts(predictions));
            if let Some(FlyingRows { staging, .. }) = rows {
                let bytes = self.row_bytes();
                for (to, row) in step.logits.iter().enumerate() {
                    let from = self.logits.offset + bytes * *row as u64;
                    let source = self.logits.buffer.made();
                    encoder.copy_buffer_to_buffer(source, from, staging, bytes * to as u64, bytes);
                }
            }
        };
        let all: Vec<_> = replays.iter().collect();
        self.model.run(&all, number, copy).await
    }

    /// The first of tokens that are taken as a part of one prompt: they are many of one sequence and follow each other, the first of them
    /// behind the others if a token is chosen after it.
    fn run(&self, tokens: &[BatchToken], drawn: usize) -> Option<BatchToken> {
        if drawn > 1 || tokens.len() < LEAST_RUN || self.sizes.pages == 0 || self.sizes.chunk == 0 {
            return None;
        }
        let (last, others) = tokens.split_at(drawn);
        let first = *others.first()?;
        let follow = others.iter().chain(last).zip(first.position..);
        let mut follow = follow.map(|(token, position)| BatchToken { position, ..first } == *token);
        follow.all(|follows| follows).then_some(first)
    }

    /// Compiles the step of `tokens` tokens of one prompt, unless that was done.
    pub(super) async fn prepare_run(&mut self, tokens: usize) -> Result<(), GpuError> {
        let model = Arc::clone(&self.model);
        let (prompt, recipes) = (&mut self.prompt, &self.recipes);
        prompt.step(&model, recipes, tokens).await?;
        prompt.head(&model, recipes, &self.logits).await?;
        Ok(())
    }

    /// The recordings that a part of one prompt replays, prepared before, and the words of each.
    fn replays_of_run(&self, drawn: usize, state: State) -> Vec<(&Recording, State)> {
        let Some([step, head]) = self.prompt.made(state.tokens as usize) else {
            return vec![];
        };
        let of_choice = State {
            pos: state.pos + state.tokens - 1,
            tokens: 1,
            ..state
        };
        let mut replays = vec![(step, state)];
        if drawn > 0 {
            replays.extend([(head, state), (&self.token.sample, of_choice)]);
        }
        replays
    }

    /// The recordings that a step of `tokens` tokens replays, prepared before, and the words of each.
    pub(super) fn replays(
        &self,
        tokens: usize,
        drawn: usize,
        state: State,
    ) -> Vec<(&Recording, State)> {
        match (tokens, drawn) {
            (1, 0) => return vec![(&self.token.single, state)],
            (1, _) => return vec![(&self.token.decode, state)],
            _ => {}
        }
        let of_head = State {
            tokens: drawn as u32,
            ..state
        };
        let head = self.heads.get(&self.head_of(tokens, drawn));
        let head = head.filter(|_| drawn > 0).map(|head| (head, of_head));
        let class = self.class(tokens);
        let of_layer = self.of_layer.get(&class);
        let rows = usize::from(makes_rows(tokens, drawn));
        let of_layer = of_layer.map(|recordings| (&recordings[rows], state));
        let step = [(&self.steps[&class], state)];
        step.into_iter().chain(of_layer).chain(head).collect()
    }

    /// Whether a step makes the rows of the prediction layer for its tokens.
    fn makes_layer_rows(&self, tokens: usize, drawn: usize, is_run: bool) -> bool {
        let has_recording = self.of_layer.contains_key(&self.class(tokens));
        is_run || makes_rows(tokens, drawn) && has_recording
    }

    /// Bytes of a row of logits.
    fn row_bytes(&self) -> u64 {
        self.model.model.config().vocab_size as u64 * 4
    }

    /// Says where the tokens of a step stand and how those after them are chosen: in the words of its replay if a token is alone, else in
    /// buffers.
    pub(super) fn write(&self, tokens: &[BatchToken], choices: &[[u32; CHOICE]]) -> State {
        if let [token] = tokens {
            self.check(token);
            return State {
                sampling: choices.first().copied().unwrap_or_default(),
                ..self.state(token.sequence, token.position as usize, 1)
            };
        }
        write_words(self.gpu(), &self.choices, 0, choices.as_flattened());
        let placed = tokens.iter().map(|token| {
            self.check(token);
            (*token, self.place(token.sequence))
        });
        let most = self.class(tokens.len());
        write_table(self.gpu(), &self.recipes, most, &placed.collect::<Vec<_>>())
    }

    /// # Panics
    /// If the batch has no such sequence or position.
    fn check(&self, token: &BatchToken) {
        let BatchToken { sequence, position } = *token;
        assert!(
            sequence < self.sizes.sequences && (position as usize) < self.sizes.n_ctx,
            "{token:?}"
        );
    }

    /// Goes on once a step is done.
    ///
    /// # Errors
    /// [`GpuError::WorkLost`], or what the device reports.
    pub async fn land(&mut self, flight: BatchFlight) -> Result<BatchLanding, GpuError> {
        let gpu = &self.model.gpu;
        let mut landing = BatchLanding {
            layer_rows: flight.layer_rows,
            ..BatchLanding::default()
        };
        let submission = Some(flight.submission.clone());
        let results = self.results_of(flight.drawn, &flight.predictions);
        if results > 0 {
            let result = self.results.mapped(flight.slot);
            let bytes = RESULT * results as u64;
            let words: Vec<u32> = gpu.map_read(result, bytes, submission.clone()).await?;
            let words = words.as_chunks::<4>().0;
            for result in &words[..flight.drawn] {
                let [id, position, number, broken] = *result;
                if number != flight.number {
                    let what = "the number of a batch's step".to_owned();
                    return Err(gpu.work_lost(what, flight.number, number));
                }
                let expected = flight
                    .position
                    .map(|first| first + landing.ids.len() as u32);
                if let Some(expected) = expected.filter(|expected| *expected != position) {
                    let what = "the position of a step with drafts".to_owned();
                    return Err(gpu.work_lost(what, expected, position));
                }
                landing.ids.push(id);
                landing.broken.push(broken != 0);
            }
            landing.drafts = self.drafts_of(&flight.predictions, words);
        } else {
            gpu.done().await?;
        }
        if let Some(rows) = &flight.rows {
            landing.logits = self.rows.land(gpu, rows, flight.submission).await?;
        }
        Ok(landing)
    }
}
