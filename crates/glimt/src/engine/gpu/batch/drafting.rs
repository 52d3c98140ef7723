//! The drafts that the prediction layer makes at the beginning of a step: the recordings, what the host writes for them, and what comes back.

use super::{BatchToken, Chosen, GpuBatch, Prediction};
use crate::engine::gpu::table::{write_table, write_table_of, write_words};
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, State};
use crate::gpu::record::Recording;
use crate::gpu::{Gpu, GpuError};
use crate::kernels::keep_states::KEPT;
use crate::kernels::sample;
use crate::kernels::sampling::Sampling;
use crate::kernels::sequences::CHOICE;
use crate::recipes::{BatchSizes, Steps};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// The drafts of the prediction layer.
pub(super) struct Drafting {
    /// The logits of a draft, (sequences, vocab).
    pub(super) logits: Range,
    /// The settings of the choices of each draft, (sequences, 12) words.
    pub(super) choices: Vec<Range>,
    /// The recordings of each draft by its number, the most rows and the most of them that get a draft: the step, and its head with the choice.
    recordings: BTreeMap<Key, [Recording; 2]>,
    /// The recording of rows that were not made with their tokens, where there are several sequences.
    missing: Option<Recording>,
}

/// The number of a draft, the most rows of its step, and the most of them that get a draft.
pub(super) type Key = (usize, [u32; 2]);

/// Room for the logits of a draft.
pub(in crate::engine::gpu) fn logits(vocab: u32, sizes: BatchSizes) -> Range {
    let values = u64::from(sizes.sequences) * u64::from(vocab);
    Range::floats("logits of drafts", values)
}

/// The choice of draft `number` from `logits`, for up to `drawn` of up to `most` rows.
pub(in crate::engine::gpu) fn choice(
    chosen: &Chosen<'_>,
    number: usize,
    [most, drawn]: [u32; 2],
    logits: &Range,
    choices: &Range,
) -> Vec<Call> {
    let rows = sample::Rows {
        sequences: chosen.recipes.sequences_of_draft(number, most),
        choices,
        biases: chosen.biases,
        most: drawn,
    };
    let history = chosen.recipes.history();
    sample::calls(Some(&rows), logits, chosen.vocab, history, chosen.results)
}

impl Drafting {
    /// Room for the drafts of a batch of these sizes; `None` without a prediction layer.
    pub(super) async fn new(
        gpu: &Gpu,
        recipes: &Steps,
        vocab: u32,
        sizes: BatchSizes,
    ) -> Result<Option<Self>, GpuError> {
        if recipes.predicts() == 0 {
            return Ok(None);
        }
        let mut choices = vec![];
        for number in 0..recipes.predicts() {
            let words = u64::from(sizes.sequences) * CHOICE as u64;
            let range = Range::words("choices of drafts", words);
            gpu.realise(&range.buffer).await?;
            choices.push(range);
            let sequences = recipes.sequences_of_draft(number, u32::MAX);
            for told in sequences
                .iter()
                .flat_map(|known| [&known.table, &known.work])
            {
                gpu.realise(&told.buffer).await?;
            }
        }
        Ok(Some(Self {
            logits: logits(vocab, sizes),
            choices,
            recordings: BTreeMap::new(),
            missing: None,
        }))
    }
}

/// The words of the choices at these positions, in a submission of this number.
pub(super) fn choice_words(
    sampling: &Sampling,
    positions: RangeInclusive<u64>,
    number: u32,
) -> Vec<u32> {
    let words = |position| {
        let mut words = sample::words(sampling, position);
        words[sample::NUMBER] = number;
        words
    };
    positions.flat_map(words).collect()
}

/// The predictions of a step, those with more drafts first, and their places in the step.
pub(super) type Ordered = Vec<(usize, Prediction)>;

/// The predictions that have a draft of this number.
fn with_draft(predictions: &Ordered, number: usize) -> usize {
    let has = |(_, prediction): &&(usize, Prediction)| prediction.drafts as usize > number;
    predictions.iter().take_while(has).count()
}

/// The most drafts of a prediction.
pub(super) fn most_drafts(predictions: &Ordered) -> usize {
    let first = predictions.first();
    first.map_or(0, |(_, prediction)| prediction.drafts as usize)
}

/// Positions of a prediction's rows: that of its last token first.
fn positions(prediction: &Prediction) -> impl Iterator<Item = u32> + use<> {
    let Prediction {
        position, behind, ..
    } = *prediction;
    [position]
        .into_iter()
        .chain(position + 1 - behind..position)
}

impl GpuBatch {
    /// The key of the recordings of draft `number` of these predictions.
    fn draft_key(&self, predictions: &Ordered, number: usize) -> Key {
        let drawn = with_draft(predictions, number) as u32;
        let rows: u32 = match number {
            0 => predictions.iter().map(|(_, of)| of.behind).sum(),
            _ => drawn,
        };
        let class = |rows: u32| rows.next_power_of_two().min(self.recipes.as_one());
        (number, [rows, drawn].map(class))
    }

    /// Compiles the steps of these predictions, unless that was done, and brings the layer's rows so near to their positions that the rest has
    /// room in a step. The predictions are ordered for the step.
    ///
    /// # Panics
    /// If there is no prediction layer for so many drafts, or a prediction has none or no row.
    pub(in crate::engine::gpu) async fn prepare_drafts(
        &mut self,
        predictions: &[Prediction],
    ) -> Result<Ordered, GpuError> {
        let most = self.recipes.predicts();
        let mut ordered: Ordered = predictions.iter().copied().enumerate().collect();
        ordered.sort_by_key(|(place, prediction)| (std::cmp::Reverse(prediction.drafts), *place));
        let is_possible = |of: &Prediction| {
            (1..=most).contains(&(of.drafts as usize)) && (1..=of.position + 1).contains(&of.behind)
        };
        assert!(
            predictions.iter().all(is_possible),
            "{predictions:?}, of {most} drafts"
        );
        self.catch_up(&mut ordered).await?;
        for number in 0..most_drafts(&ordered) {
            let key = self.draft_key(&ordered, number);
            self.prepare_draft(key).await?;
        }
        Ok(ordered)
    }

    /// Makes rows of the layer in steps of their own while there are more than a step takes.
    async fn catch_up(&mut self, predictions: &mut [(usize, Prediction)]) -> Result<(), GpuError> {
        let room = self.recipes.as_one() / predictions.len().max(1) as u32;
        let room = room.max(1);
        if self.sizes.pages > 0 {
            return self.make_missing(predictions, room).await;
        }
        for (_, prediction) in predictions.iter_mut() {
            while prediction.behind > room {
                let rows = (prediction.behind - room).min(self.recipes.as_one());
                let first = prediction.position + 1 - prediction.behind;
                prediction.behind -= rows;
                let part = Prediction {
                    position: first + rows - 1,
                    behind: rows,
                    drafts: 1,
                    ..*prediction
                };
                let part = vec![(0, part)];
                let key = self.draft_key(&part, 0);
                self.prepare_draft(key).await?;
                let state = self.write_draft(&part, 0);
                let Some([step, _]) = self.draft_recordings(key) else {
                    return Ok(());
                };
                let replay = step.replay(self.gpu(), &state);
                let number = self.gpu().reserve_numbers(1).number(0);
                self.model.run(&[&replay], number, |_| {}).await?;
            }
        }
        Ok(())
    }

    /// Makes all rows of the layer but the last `room` of each sequence. Nothing but the rows is computed.
    async fn make_missing(
        &mut self,
        predictions: &mut [(usize, Prediction)],
        room: u32,
    ) -> Result<(), GpuError> {
        let mut rows = vec![];
        for (_, of) in predictions.iter_mut().filter(|(_, of)| of.behind > room) {
            let (sequence, place) = (of.sequence, self.place(of.sequence));
            let positions = of.position + 1 - of.behind..of.position + 1 - room;
            rows.extend(positions.map(|position| (BatchToken { sequence, position }, place)));
            of.behind = room;
        }
        if rows.is_empty() {
            return Ok(());
        }
        self.prepare_missing().await?;
        let missing = self.drafting.as_ref().and_then(|of| of.missing.as_ref());
        let Some(missing) = missing else {
            return Ok(());
        };
        let most = self.most_missing();
        for rows in rows.chunks(most as usize) {
            let state = write_table(self.gpu(), &self.recipes, most, rows);
            let replay = missing.replay(self.gpu(), &state);
            let number = self.gpu().reserve_numbers(1).number(0);
            self.model.run(&[&replay], number, |_| {}).await?;
        }
        Ok(())
    }

    /// The most rows of a step of such that were not made with their tokens.
    fn most_missing(&self) -> u32 {
        KEPT.min(self.sizes.tokens)
    }

    /// Compiles the step of rows that were not made with their tokens, unless that was done.
    async fn prepare_missing(&mut self) -> Result<(), GpuError> {
        let gpu = Arc::clone(&self.model.gpu);
        let most = self.most_missing();
        let Some(drafting) = self.drafting.as_mut().filter(|of| of.missing.is_none()) else {
            return Ok(());
        };
        if let Some(step) = self.recipes.rows_of_layer(&gpu, most) {
            drafting.missing = Some(Recording::new(&gpu, &step).await?);
        }
        Ok(())
    }

    /// Compiles all steps of drafts that the sequences may need.
    pub(super) async fn prepare_all_drafts(&mut self) -> Result<(), GpuError> {
        let as_one = self.recipes.as_one();
        let powers = || {
            (0..u32::BITS)
                .map(|power| 1 << power)
                .take_while(|power| *power <= as_one)
        };
        for number in 0..self.recipes.predicts() {
            // A sequence that has such a draft has a row for its last token and for each of its drafts.
            let all_drawn = powers().filter(|drawn| drawn * (number as u32 + 2) <= as_one);
            for drawn in all_drawn {
                let rows = powers().filter(|rows| match number {
                    0 => *rows >= drawn,
                    _ => *rows == drawn,
                });
                for rows in rows {
                    self.prepare_draft((number, [rows, drawn])).await?;
                }
            }
        }
        self.prepare_missing().await
    }

    /// Compiles the recordings of a draft, unless that was done.
    pub(super) async fn prepare_draft(&mut self, key: Key) -> Result<(), GpuError> {
        let Some(drafting) = &self.drafting else {
            return Ok(());
        };
        if drafting.recordings.contains_key(&key) {
            return Ok(());
        }
        let (gpu, (number, of)) = (Arc::clone(&self.model.gpu), key);
        let [step, head] = self.recipes.draft(&gpu, number, of, &drafting.logits)?;
        let chosen = Chosen {
            results: &self.results.drafts[number],
            ..self.chosen()
        };
        let (logits, choices) = (&drafting.logits, &drafting.choices[number]);
        let choose = choice(&chosen, number, of, logits, choices);
        let head = head.then(&choose);
        let both = [
            Recording::new(&gpu, &step).await?,
            Recording::new(&gpu, &head).await?,
        ];
        if let Some(drafting) = &mut self.drafting {
            drafting.recordings.insert(key, both);
        }
        Ok(())
    }

    pub(super) fn draft_recordings(&self, key: Key) -> Option<&[Recording; 2]> {
        self.drafting.as_ref()?.recordings.get(&key)
    }

    /// Says where the rows of draft `number` stand: in the words of its replay if it is one, else in its table.
    fn write_draft(&self, predictions: &Ordered, number: usize) -> State {
        let place = |sequence, position| {
            let token = BatchToken { sequence, position };
            (token, self.place(sequence))
        };
        let with = &predictions[..with_draft(predictions, number)];
        let mut rows = vec![];
        match number {
            0 => {
                let of = |(_, of): &(usize, Prediction)| place(of.sequence, of.position);
                rows.extend(predictions.iter().map(of));
                for (_, of) in predictions {
                    rows.extend(
                        positions(of)
                            .skip(1)
                            .map(|position| place(of.sequence, position)),
                    );
                }
            }
            _ => {
                let of =
                    |(_, of): &(usize, Prediction)| place(of.sequence, of.position + number as u32);
                rows.extend(with.iter().map(of));
            }
        }
        if let [(token, _)] = rows[..] {
            return self.state(token.sequence, token.position as usize, 1);
        }
        let (_, [most, _]) = self.draft_key(predictions, number);
        let sequences = self.recipes.sequences_of_draft(number, most);
        write_table_of(self.gpu(), &self.recipes, sequences, most, &rows)
    }

    /// The recordings that make the drafts of a step whose tokens are `chosen` so, and the words of each. `of` are those of the step.
    pub(super) fn replays_of_drafts(
        &self,
        predictions: &Ordered,
        chosen: &[(&BatchToken, &Sampling)],
        of: State,
    ) -> Vec<(&Recording, State)> {
        let mut replays = vec![];
        for number in 0..most_drafts(predictions) {
            let key = self.draft_key(predictions, number);
            let (Some(drafting), Some([step, head])) = (&self.drafting, self.draft_recordings(key))
            else {
                return vec![];
            };
            let drawn = with_draft(predictions, number);
            let words = |(_, prediction): &(usize, Prediction)| {
                let is_own = |(token, _): &&(&BatchToken, &Sampling)| {
                    [token.sequence, token.position] == [prediction.sequence, prediction.position]
                };
                let own = chosen.iter().find(is_own);
                let sampling = own.map_or(Sampling::GREEDY, |(_, sampling)| **sampling);
                let position = u64::from(prediction.position) + number as u64 + 1;
                sample::words(&sampling, position)
            };
            let words: Vec<_> = predictions[..drawn].iter().map(words).collect();
            write_words(
                self.gpu(),
                &drafting.choices[number],
                0,
                words.as_flattened(),
            );
            let state = State {
                slot: of.slot,
                // Rows of biases are those of the step's tokens.
                biased: of.biased && predictions.len() == 1,
                sampling: words.first().copied().unwrap_or_default(),
                ..self.write_draft(predictions, number)
            };
            let of_head = State {
                tokens: drawn as u32,
                ..state
            };
            let is_alone = key.1[0] == 1;
            let of_head = if is_alone { state } else { of_head };
            replays.extend([(step, state), (head, of_head)]);
        }
        replays
    }

    /// The number of results that a step leaves, from the first of its choices to the last of its drafts.
    pub(super) fn results_of(&self, drawn: usize, predictions: &Ordered) -> usize {
        match most_drafts(predictions) {
            0 => drawn,
            drafts => self.results.parts(drafts).0,
        }
    }

    /// The drafts among the results of a step, in the order in which they were asked for.
    pub(super) fn drafts_of(&self, predictions: &Ordered, results: &[[u32; 4]]) -> Vec<u32> {
        let mut by_place = BTreeMap::new();
        for (row, (place, prediction)) in predictions.iter().enumerate() {
            let (_, parts) = self.results.parts(prediction.drafts as usize);
            let ids: Vec<u32> = parts.map(|first| results[first + row][0]).collect();
            by_place.insert(*place, ids);
        }
        by_place.into_values().flatten().collect()
    }
}
