//! Steps with drafts of the prediction layer that are encoded before the host knows where they begin: so these stay in flight. A kernel finds the
//! position by what the step before has left, and copies what the host wrote for that position to where the kernels of the step read it.

use super::drafting::{Key, choice_words};
use super::{BatchFlight, BatchToken, GpuBatch, Prediction, RING};
use crate::engine::gpu::results::{RESULT, Results};
use crate::engine::gpu::table::{records, state_of_cut, write_words};
use crate::gpu::buffer::Range;
use crate::gpu::call::State;
use crate::gpu::record::{Recording, encode_all};
use crate::gpu::{Gpu, GpuError, Most, Step};
use crate::kernels::accept_drafts::{self, Candidates, words_of};
use crate::kernels::attention::{Cut, Seen};
use crate::kernels::sampling::Sampling;
use crate::kernels::sequences::{CHOICE, RECORD, SLICE};
use crate::recipes::{BatchSizes, Steps};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use wgpu::{CommandBuffer, CommandEncoder};

/// The most drafts of a step that is encoded so.
pub(in crate::engine::gpu) const MOST_UNKNOWN: usize = 3;
/// The most positions at which a step may begin: behind those of two that are on their way, and one more for each that is not.
const POSITIONS: usize = 2 * MOST_UNKNOWN + 1;
/// The most rows of the step in its tables: the layer's for the tokens of the step before, those of its further drafts, and its own.
const ROWS: usize = 3 * MOST_UNKNOWN + 1;

/// The buffers and recordings of steps that are encoded before the host knows where they begin.
pub(super) struct Unknown {
    /// The results of the last step with drafts: these stay on the device.
    landed: Range,
    /// The words that the host writes for each position at which a step may begin ([`Candidates`]).
    candidates: Range,
    /// The most words of a position.
    most: usize,
    /// The dispatches that tell a step of so many drafts where it begins.
    recordings: BTreeMap<usize, Recording>,
}

/// A step whose position is not known.
pub(in crate::engine::gpu) struct Ask<'a> {
    /// The positions at which the last token before its drafts may stand.
    pub positions: RangeInclusive<usize>,
    /// The drafts of the step before.
    pub before: usize,
    /// The drafts of that which count as accepted whatever was chosen, if a measurement says so.
    pub fixed: Option<usize>,
    /// Its own drafts.
    pub drafts: usize,
    /// How tokens and drafts are chosen.
    pub sampling: &'a Sampling,
}

/// Such a step, encoded.
pub(in crate::engine::gpu) struct Encoded {
    commands: CommandBuffer,
    candidates: Vec<u32>,
    slot: usize,
    number: u32,
    drafts: usize,
    behind: u32,
}

/// Rows of a step that have a table: the most of them, and their positions behind that of the step.
struct Rows {
    most: u32,
    offsets: Vec<i64>,
}

/// Room for what a step with drafts leaves, in `results` results, and for what the host writes of the next one, with the most words of a position;
/// `None` where there is no prediction layer.
fn room(recipes: &Steps, results: usize) -> Option<([Range; 2], usize)> {
    let sequences = recipes.sequences().filter(|_| recipes.predicts() > 0)?;
    let rows = sequences.table.size as usize / 4 / RECORD;
    let slices = (sequences.work.size as usize / 4).div_ceil(rows.max(1));
    let most = ROWS * (RECORD + slices.max(SLICE)) + (2 * MOST_UNKNOWN + 1) * CHOICE;
    let words = words_of(POSITIONS, most) as u64;
    let landed = Range::words("drafts and what was chosen", 4 * results as u64);
    let candidates = Range::words("where a step may begin", words);
    Some(([landed, candidates], most))
}

/// The step that tells another one, which reads `told`, where it begins.
fn step(
    sizes: BatchSizes,
    [landed, candidates]: [&Range; 2],
    apart: usize,
    told: &[&Range],
) -> Step {
    let parts = told.iter().enumerate();
    let call = |(part, to): (usize, &&Range)| {
        accept_drafts::call(landed, apart as u32, candidates, part, to)
    };
    Step::of(Most::token(sizes.n_ctx as u32), parts.map(call))
}

/// The buffers that a step with so many drafts is told by: table, slices and choices of its tokens and of each draft.
fn told<'a>(
    recipes: &'a Steps,
    choices: &'a Range,
    of_drafts: &'a [Range],
    drafts: usize,
) -> Vec<&'a Range> {
    let own = recipes.sequences();
    let own = own.iter().flat_map(|of| [&of.table, &of.work]);
    let mut told: Vec<_> = own.chain([choices]).collect();
    for (number, choices) in of_drafts.iter().enumerate().take(drafts) {
        let sequences = recipes.sequences_of_draft(number, u32::MAX);
        told.extend(sequences.iter().flat_map(|of| [&of.table, &of.work]));
        told.push(choices);
    }
    told
}

/// The step for the most drafts, as a plan counts it; `None` where a session has none.
pub(in crate::engine::gpu) fn planned(
    recipes: &Steps,
    sizes: BatchSizes,
    choices: &Range,
) -> Option<Step> {
    let drafts = MOST_UNKNOWN.min(recipes.predicts());
    let apart = sizes.most_drawn() as usize;
    let ([landed, candidates], _) = room(recipes, apart * (drafts + 1))?;
    let words = u64::from(sizes.sequences) * CHOICE as u64;
    let of_drafts = vec![Range::words("choices of drafts", words); drafts];
    let told = told(recipes, choices, &of_drafts, drafts);
    Some(step(sizes, [&landed, &candidates], apart, &told))
}

impl Unknown {
    /// Room for such steps of a session; `None` where it has no prediction layer.
    pub(super) async fn new(
        gpu: &Gpu,
        recipes: &Steps,
        results: &Results,
    ) -> Result<Option<Self>, GpuError> {
        let (count, _) = results.parts(MOST_UNKNOWN.min(recipes.predicts()));
        let Some(([landed, candidates], most)) = room(recipes, count) else {
            return Ok(None);
        };
        gpu.realise(&landed.buffer).await?;
        gpu.realise(&candidates.buffer).await?;
        Ok(Some(Self {
            landed,
            candidates,
            most,
            recordings: BTreeMap::new(),
        }))
    }

    /// Encodes a copy of the results of a step with so many drafts, for the one behind it.
    pub(super) fn keep(
        &self,
        encoder: &mut CommandEncoder,
        results: &Results,
        slot: usize,
        drafts: usize,
    ) {
        if (1..=MOST_UNKNOWN).contains(&drafts) {
            let source = results.ring[slot].buffer.made();
            let bytes = RESULT * results.parts(drafts).0 as u64;
            encoder.copy_buffer_to_buffer(source, 0, self.landed.buffer.made(), 0, bytes);
        }
    }
}

/// The key of the recordings of draft `number` of a step behind one with `before` drafts: such steps always have a table.
fn key(recipes: &Steps, number: usize, before: usize) -> Key {
    let rows = match number {
        0 => before as u32 + 1,
        _ => 2,
    };
    (number, [rows.next_power_of_two().min(recipes.as_one()), 1])
}

impl GpuBatch {
    /// Whether steps with so many drafts can be encoded before their positions are known.
    pub(in crate::engine::gpu) fn takes_unknown(&self, drafts: usize) -> bool {
        let most = MOST_UNKNOWN.min(self.recipes.predicts());
        self.unknown.is_some()
            && (1..=most).contains(&drafts)
            && self.model.answering.is_none()
            && self.token.decode.holds_parameters()
            && drafts < self.recipes.as_one() as usize
    }

    /// Compiles what steps with up to `drafts` drafts at unknown positions need, unless that was done.
    pub(in crate::engine::gpu) async fn prepare_unknown(
        &mut self,
        drafts: usize,
    ) -> Result<(), GpuError> {
        for drafts in 1..=drafts {
            self.prepare(drafts + 1, drafts + 1).await?;
            self.prepare_draft(key(&self.recipes, 0, drafts)).await?;
            self.prepare_draft(key(&self.recipes, drafts - 1, drafts))
                .await?;
            let known = |unknown: &Unknown| unknown.recordings.contains_key(&drafts);
            if self.unknown.as_ref().is_none_or(known) {
                continue;
            }
            let gpu = Arc::clone(&self.model.gpu);
            let Some(step) = self.step_of_unknown(drafts) else {
                return Ok(());
            };
            let recording = Recording::new(&gpu, &step).await?;
            if let Some(unknown) = &mut self.unknown {
                unknown.recordings.insert(drafts, recording);
            }
        }
        Ok(())
    }

    /// The step that tells one with so many drafts where it begins.
    fn step_of_unknown(&self, drafts: usize) -> Option<Step> {
        let (unknown, drafting) = (self.unknown.as_ref()?, self.drafting.as_ref()?);
        let told = told(&self.recipes, &self.choices, &drafting.choices, drafts);
        let both = [&unknown.landed, &unknown.candidates];
        Some(step(self.sizes, both, self.results.apart(), &told))
    }

    /// The rows of such a step that have tables: its own, and those of each draft.
    fn rows_of_unknown(&self, ask: &Ask<'_>) -> Vec<Rows> {
        let mut all = vec![Rows {
            most: self.class(ask.drafts + 1),
            offsets: (0..=ask.drafts as i64).collect(),
        }];
        for number in 0..ask.drafts {
            let (_, [most, _]) = key(&self.recipes, number, ask.before);
            let before = ask.before as i64;
            all.push(Rows {
                most,
                offsets: match number {
                    0 => [0].into_iter().chain(-before..0).collect(),
                    _ => vec![number as i64],
                },
            });
        }
        all
    }

    /// The parts of each position that tell of such rows, and the words of their replays; `None` if positions differ in their kernels.
    fn parts_of(&self, rows: &Rows, ask: &Ask<'_>) -> Option<(State, Vec<[Vec<u32>; 2]>)> {
        let gpu = self.gpu();
        let place = self.place(0);
        let mut cuts = vec![];
        for position in ask.positions.clone() {
            let at = |offset: &i64| u32::try_from(position as i64 + offset).ok();
            let positions: Option<Vec<u32>> = rows.offsets.iter().map(at).collect();
            let token = |position| BatchToken {
                sequence: 0,
                position,
            };
            let tokens: Vec<_> = positions?.into_iter().map(|p| (token(p), place)).collect();
            let seen = tokens.iter().map(|(token, _)| Seen {
                sequence: 0,
                position: token.position,
            });
            let seen: Vec<_> = seen.collect();
            cuts.push((self.recipes.cut(gpu, rows.most, &seen), tokens));
        }
        let widest = Cut::widest(cuts.iter().map(|(cut, _)| cut))?;
        let part = |(cut, tokens): &(Cut, Vec<_>)| {
            let work = cut.padded(&widest);
            [records(cut, tokens), work.into_flattened()]
        };
        let parts = cuts.iter().map(part).collect();
        Some((state_of_cut(&widest, rows.offsets.len()), parts))
    }

    /// Encodes a step whose position is not known, with what the host says of each position that may be; `None` where these take different
    /// kernels, or something is not prepared.
    pub(in crate::engine::gpu) fn encode_unknown(&mut self, ask: &Ask<'_>) -> Option<Encoded> {
        let (gpu, unknown) = (self.gpu(), self.unknown.as_ref()?);
        let Ask {
            drafts, sampling, ..
        } = *ask;
        let count = ask.positions.clone().count();
        if count > POSITIONS || *ask.positions.end() + drafts >= self.sizes.n_ctx {
            return None;
        }
        let number = gpu.reserve_numbers(1).number(0);
        let slot = self.next_slot;
        let mut states = vec![];
        let mut positions = vec![vec![]; count];
        for (i, rows) in self.rows_of_unknown(ask).iter().enumerate() {
            let (state, parts) = self.parts_of(rows, ask)?;
            states.push(State { slot, ..state });
            let parts = positions.iter_mut().zip(ask.positions.clone()).zip(parts);
            for ((words, position), tables) in parts {
                words.extend(tables);
                let first = position as u64 + 1;
                words.push(match i.checked_sub(1) {
                    None => choice_words(sampling, first..=first + drafts as u64, number),
                    Some(draft) => {
                        let place = first + draft as u64;
                        choice_words(sampling, place..=place, 0)
                    }
                });
            }
        }
        let candidates = Candidates {
            least: *ask.positions.start() as u32,
            drafts: ask.before as u32,
            fixed: ask.fixed.map(|fixed| fixed as u32),
            positions,
        };
        let candidates = candidates.words();
        if candidates.len() > words_of(POSITIONS, unknown.most) {
            return None;
        }
        let accept = (unknown.recordings.get(&drafts)?, State::default());
        let mut all = vec![accept];
        for draft in 0..drafts {
            let [step, head] = self.draft_recordings(key(&self.recipes, draft, ask.before))?;
            let state = states[draft + 1];
            all.extend([(step, state), (head, State { tokens: 1, ..state })]);
        }
        let rows = drafts + 1;
        self.steps.get(&self.class(rows))?;
        self.heads.get(&self.head_of(rows, rows))?;
        all.extend(self.replays(rows, rows, states[0]));
        let commands = self.commands(&all, slot, drafts);
        self.next_slot = (slot + 1) % RING;
        Some(Encoded {
            commands,
            candidates,
            slot,
            number,
            drafts,
            behind: ask.before as u32 + 1,
        })
    }

    /// The commands of these replays, and of the copies of their results.
    fn commands(&self, all: &[(&Recording, State)], slot: usize, drafts: usize) -> CommandBuffer {
        let gpu = self.gpu();
        let replays = all.iter();
        let replays: Vec<_> = replays
            .map(|(recording, state)| recording.replay(gpu, state))
            .collect();
        let all: Vec<_> = replays.iter().collect();
        let count = all.iter().map(|replay| replay.len()).sum();
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        encode_all(&all, 0..count, &mut encoder, None);
        let results = self.results.parts(drafts).0;
        self.results.copy(&mut encoder, slot, results);
        self.keep_landed(&mut encoder, slot, drafts);
        encoder.finish()
    }

    /// Encodes what keeps the results of a step with so many drafts for a step whose position is not known.
    pub(super) fn keep_landed(&self, encoder: &mut CommandEncoder, slot: usize, drafts: usize) {
        if let Some(unknown) = &self.unknown {
            unknown.keep(encoder, &self.results, slot, drafts);
        }
    }

    /// Submits a step whose position the host does not know. At most `BATCHES_IN_FLIGHT` may be on their way.
    pub(in crate::engine::gpu) fn submit_unknown(&mut self, encoded: Encoded) -> BatchFlight {
        let gpu = self.gpu();
        if let Some(unknown) = &self.unknown {
            write_words(gpu, &unknown.candidates, 0, &encoded.candidates);
        }
        let submission = gpu.submit_numbered(encoded.commands, encoded.number);
        let prediction = Prediction {
            sequence: 0,
            // Nobody reads it.
            position: 0,
            behind: encoded.behind,
            drafts: encoded.drafts as u32,
        };
        BatchFlight {
            slot: encoded.slot,
            number: encoded.number,
            drawn: encoded.drafts + 1,
            rows: None,
            predictions: vec![(0, prediction)],
            position: None,
            layer_rows: false,
            submission,
        }
    }
}

impl BatchFlight {
    /// The same, which must have begun where the first token that it chooses stands at `position`.
    pub(in crate::engine::gpu) fn at(self, position: usize) -> Self {
        Self {
            position: Some(position as u32),
            ..self
        }
    }
}
