//! Measurements for `bench` and `profile`: what a step reads, and when its parts ran.

use super::pace::{Kind, Pace, Took};
use super::prompt::Piece;
use super::{GpuBackend, HostTime};
use crate::engine::backend::{Backend, BackendError, check_rows};
use crate::gpu::call::{Call, State, Taken};
use crate::gpu::clock::{self, Clock};
use crate::gpu::record::{Recording, Replay};
use crate::gpu::stamps::{Stamping, Stamps};
use crate::gpu::wait::Wait;
use crate::gpu::{Gpu, GpuError, Most, Step};
use crate::kernels::sample;
use crate::kernels::sampling::Sampling;
use std::collections::{BTreeMap, HashMap};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use web_time::Instant;
use wgpu::CommandEncoder;

/// Runs of a token whose dispatches are repeated by the host's clock, at most.
const HOST_RUNS: usize = 3;

/// How the dispatches of a step are told apart in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Separation {
    /// A timestamp between two dispatches of one pass.
    Stamps,
    /// A pass of its own for each dispatch.
    Passes,
    /// Each dispatch alone, repeated, by the host's clock: where timestamps are missing or wrong.
    Host,
}

impl Separation {
    /// The finer one that `gpu` has.
    pub fn best(gpu: &Gpu) -> Self {
        match Clock::of(gpu) {
            Clock::Host => Self::Host,
            Clock::Gpu if Stamps::inside_passes(gpu) => Self::Stamps,
            Clock::Gpu => Self::Passes,
        }
    }
}

/// A part of a step with drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DraftedPart {
    /// The prediction layer's rows that a draft stands on: for the first, number 0, those of all tokens since the step before.
    Layer(usize),
    /// The logits and the choice of a draft.
    Draft(usize),
    /// The rows of the model.
    Rows,
    /// The logits behind these rows, and the choices of tokens.
    Choices,
}

impl GpuBackend {
    /// The dispatches that decode the token at `pos`, in order.
    pub fn step(&self, pos: usize) -> Vec<Taken> {
        self.batch.token.decode.step(&self.state(pos, 1))
    }

    /// The clock that times on its GPU are told by.
    pub fn clock(&self) -> Clock {
        Clock::of(self.gpu())
    }

    /// Bytes of weights and cache that decoding the token at `pos` reads at least.
    pub fn step_bytes(&self, pos: usize) -> u64 {
        self.step(pos).iter().map(|taken| taken.bytes).sum()
    }

    /// The steps and time that the host spent on decoding since the last call.
    pub fn take_host_time(&mut self) -> HostTime {
        std::mem::take(&mut self.host)
    }

    /// Decodes `steps` tokens after `context` (as [`Backend::decode`] does, greedily) and tells when each began and ended
    /// on the GPU, in nanoseconds.
    ///
    /// # Errors
    /// The errors of [`Backend::decode`], and that of a GPU that tells no times ([`GpuError::is_of_clock`]), also for steps that the host
    /// answers.
    pub fn time_steps(
        &mut self,
        context: &[u32],
        steps: usize,
    ) -> Result<Vec<[f64; 2]>, BackendError> {
        if self.model().answering.is_some() {
            // The parts of a step that the host answers end at times of their own.
            let adapter = self.gpu().target.name.clone();
            return Err(GpuError::NoTimestamps { adapter }.into());
        }
        self.stamps = Some(Stamps::new(self.gpu(), 2 * steps).wait()?);
        // The first token is only chosen, from logits that are there.
        let decoded = self
            .decode(context, &Sampling::GREEDY, steps + 1, &mut |_| {
                ControlFlow::Continue(())
            })
            .wait();
        let stamps = self.stamps.take();
        decoded?;
        let Some(stamps) = stamps else {
            return Ok(vec![]);
        };
        let times = stamps.read(self.gpu(), 2 * steps).wait()?;
        Ok(times.chunks_exact(2).map(|t| [t[0], t[1]]).collect())
    }

    /// Microseconds that the decoding of the token at `pos` takes alone, several times ([`clock::in_turn`]).
    pub fn time_step(&self, pos: usize, rounds: usize) -> Result<Vec<f64>, GpuError> {
        self.model().distrust_slots();
        let state = self.choosing(pos, &Sampling::GREEDY);
        let mut times =
            clock::in_turn(self.gpu(), &[(&self.batch.token.decode, &state)], rounds).wait()?;
        Ok(times.remove(0))
    }

    /// The words of a step at `pos` that chooses the next token by `sampling`.
    fn choosing(&self, pos: usize, sampling: &Sampling) -> State {
        State {
            sampling: sample::words(sampling, (pos + 1) as u64),
            ..self.state(pos, 1)
        }
    }

    /// Replays the decoding of one token `runs` times, at positions from `pos` on, and tells when each dispatch began and
    /// ended, per run, in nanoseconds, for the dispatches of [`step`](Self::step) in the middle of them, at `pos + runs / 2`.
    /// A run that does without one of them spends no time on it. With [`Separation::Stamps`] a dispatch begins when the one
    /// before ended.
    ///
    /// The cache must hold rows up to `pos`; the token there is whatever the history holds, and `sampling` chooses the others. Where timestamps are missing or turn
    /// out to be wrong it is done as with [`Separation::Host`], which takes at most three runs, all at the position in the middle.
    ///
    /// # Errors
    /// [`BackendError::ContextOverflow`], or what the device reports.
    pub fn time_dispatches(
        &mut self,
        pos: usize,
        runs: usize,
        separation: Separation,
        sampling: &Sampling,
    ) -> Result<Vec<Vec<[f64; 2]>>, BackendError> {
        check_rows(pos + runs, self.n_ctx())?;
        self.next = 0;
        self.model().distrust_slots();
        let stamped = match separation {
            Separation::Host => None,
            _ => match self.stamp_dispatches(pos, runs, separation, sampling) {
                Err(error) if error.is_of_clock() => None,
                told => Some(told?),
            },
        };
        if let Some(times) = stamped {
            return Ok(times);
        }
        let state = self.choosing(pos + runs / 2, sampling);
        let gpu = self.gpu();
        let run = |_| {
            let whole = &mut || {
                self.batch.token.decode.submit(gpu, &state);
                Ok(())
            };
            by_host(gpu, &self.batch.token.decode, &state, whole)
        };
        Ok((0..runs.min(HOST_RUNS))
            .map(run)
            .collect::<Result<_, _>>()?)
    }

    /// The most drafts that the prediction layer makes for a step, 0 without one.
    pub fn most_predicted(&self) -> usize {
        self.batch.recipes.predicts()
    }

    /// Computes the token at `last` and `drafts` drafts behind it once, which the prediction layer makes where they are `predicted`, and tells of each
    /// dispatch, in order, its part of the step, what it is and when it began and ended, in nanoseconds.
    ///
    /// The cache must hold rows up to `last`; tokens are whatever the history holds. Where timestamps are missing or turn out to be wrong it is
    /// done as with [`Separation::Host`].
    ///
    /// # Errors
    /// [`BackendError::ContextOverflow`], or what the device reports.
    pub fn time_drafted(
        &mut self,
        last: usize,
        drafts: usize,
        predicted: bool,
        separation: Separation,
    ) -> Result<Vec<(DraftedPart, Taken, [f64; 2])>, BackendError> {
        check_rows(last + drafts + 1, self.n_ctx())?;
        self.next = 0;
        self.model().distrust_slots();
        let gpu = Arc::clone(&self.batch.model.gpu);
        let parts = self.batch.parts_of_drafted(last, drafts, predicted);
        let parts = parts.wait()?;
        let stamped = || {
            let submitted = parts
                .iter()
                .map(|(_, recording, state)| Timed::submit(&gpu, recording, state, separation));
            let submitted = submitted.collect::<Result<Vec<_>, _>>()?;
            let times = submitted.iter().map(|timed| timed.read(&gpu));
            times.collect::<Result<Vec<_>, GpuError>>()
        };
        let stamped = match separation {
            Separation::Host => None,
            _ => match stamped() {
                Err(error) if error.is_of_clock() => None,
                told => Some(told?),
            },
        };
        let by_host = |(_, recording, state): &(_, &Recording, State)| {
            let whole = &mut || {
                recording.submit(&gpu, state);
                Ok(())
            };
            by_host(&gpu, recording, state, whole)
        };
        let times = match stamped {
            Some(times) => times,
            None => parts.iter().map(by_host).collect::<Result<_, _>>()?,
        };
        let all = parts
            .iter()
            .zip(times)
            .flat_map(|((part, recording, state), times)| {
                let taken = recording.step(state).into_iter().zip(times);
                taken.map(|(taken, times)| (*part, taken, times))
            });
        Ok(all.collect())
    }

    /// The drafts that the prediction layer makes behind `context`, the best ones, and the logits of each.
    ///
    /// # Errors
    /// [`BackendError::ContextOverflow`], [`BackendError::NoTokens`], or what the device reports.
    pub fn predicted(
        &mut self,
        context: &[u32],
        drafts: usize,
    ) -> Result<(Vec<u32>, Vec<Vec<f32>>), BackendError> {
        let last = context.len().checked_sub(1).ok_or(BackendError::NoTokens)?;
        check_rows(context.len() + drafts, self.n_ctx())?;
        self.prefill(context, 0).wait()?;
        self.next = 0;
        let (mut ids, mut logits) = (vec![], vec![]);
        for number in 1..=drafts.min(self.most_predicted()) {
            let (all, row) = self.batch.predicted(last, number, 0).wait()?;
            ids = all;
            logits.push(row);
        }
        Ok((ids, logits))
    }

    /// Goes along `text` behind the token at `first` as if its tokens were those that are chosen, in steps with up to `most` drafts of the prediction layer:
    /// the drafts, and how many of them are accepted.
    ///
    /// # Errors
    /// The errors of [`predicted`](Self::predicted).
    pub fn follow(
        &mut self,
        text: &[u32],
        first: usize,
        most: usize,
    ) -> Result<[usize; 2], BackendError> {
        check_rows(text.len(), self.n_ctx())?;
        self.prefill(&text[..first], 0).wait()?;
        self.next = 0;
        let (mut last, mut counts) = (first, [0; 2]);
        while last + 1 < text.len() {
            self.batch.write_ids(0, last, &text[last..=last]);
            let number = most.min(text.len() - last - 1).min(self.most_predicted());
            let (drafts, _) = self.batch.predicted(last, number, number).wait()?;
            let pairs = drafts.iter().zip(&text[last + 1..]);
            let accepted = pairs.take_while(|(draft, id)| draft == id).count();
            counts = [counts[0] + drafts.len(), counts[1] + accepted];
            last += accepted + 1;
        }
        Ok(counts)
    }

    fn stamp_dispatches(
        &self,
        pos: usize,
        runs: usize,
        separation: Separation,
        sampling: &Sampling,
    ) -> Result<Vec<Vec<[f64; 2]>>, GpuError> {
        let gpu = self.gpu();
        let timed = (0..runs)
            .map(|run| {
                Timed::submit(
                    gpu,
                    &self.batch.token.decode,
                    &self.choosing(pos + run, sampling),
                    separation,
                )
            })
            .collect::<Result<Vec<_>, _>>()?;
        let wanted = self.step(pos + runs / 2);
        let runs = timed.into_iter().map(|timed| {
            let times = timed.read(gpu)?;
            let alike = timed.taken.len() == wanted.len()
                && timed
                    .taken
                    .iter()
                    .zip(&wanted)
                    .all(|(a, b)| a.dispatch == b.dispatch);
            if alike {
                return Ok(times);
            }
            let mut end = times.first().map_or(0.0, |[begin, _]| *begin);
            let span = |wanted: &Taken| {
                let at = timed
                    .taken
                    .iter()
                    .position(|t| t.dispatch == wanted.dispatch);
                let span = at.map_or([end, end], |at| times[at]);
                end = span[1];
                span
            };
            Ok(wanted.iter().map(span).collect())
        });
        runs.collect()
    }

    /// Microseconds on the GPU of all dispatches of a kernel in the token at `pos`, by label, with nothing between them, `rounds`
    /// times: no layer's call waits for another's then, but where they write the same buffer (the attention's slices).
    /// Kernels with fewer than `least` calls are left out: the ends of their pass would count.
    pub fn time_alone(
        &self,
        pos: usize,
        least: usize,
        rounds: usize,
    ) -> Result<BTreeMap<String, Vec<f64>>, GpuError> {
        let mut kernels: BTreeMap<String, Vec<Call>> = BTreeMap::new();
        let state = self.state(pos, 1);
        for call in self.token_step()?.calls {
            if call.when.holds(&state) {
                kernels.entry(call.about().label).or_default().push(call);
            }
        }
        kernels.retain(|_, calls| calls.len() >= least);
        let alone = kernels.into_iter().map(|(label, calls)| {
            let recording = Recording::new(
                self.gpu(),
                &Step::of(Most::token(self.n_ctx() as u32), calls),
            )
            .wait()?;
            let mut times = self.time_in_turn(&[&recording], pos, rounds)?;
            Ok((label, times.remove(0)))
        });
        alone.collect()
    }

    /// Computes the prompt `tokens` from `pos` on as [`prefill`](Backend::prefill) does, each submission when the one
    /// before is done, and tells of each dispatch, in order, what it is and when it began and ended, in nanoseconds from the beginning of
    /// its recording on. Where timestamps are missing or turn out to be wrong it is done as with [`Separation::Host`].
    pub fn time_prompt(
        &mut self,
        tokens: &[u32],
        pos: usize,
        separation: Separation,
    ) -> Result<Vec<(Taken, [f64; 2])>, BackendError> {
        self.take(tokens, pos)?;
        let at_once = self.at_once(tokens.len());
        let batch = &mut self.batch;
        let (model, place) = (Arc::clone(&batch.model), batch.place(0));
        model.distrust_slots();
        let (gpu, recipes) = (&model.gpu, &batch.recipes);
        let mut all = vec![];
        let mut done = 0;
        for piece in tokens.chunks(at_once) {
            let begin = pos + done;
            done += piece.len();
            if piece.len() == 1 {
                let state = place.state(recipes, gpu, begin, 1);
                let (pace, single) = (batch.paces.of(Kind::Single), &batch.token.single);
                append(gpu, pace, single, &state, separation, &mut all)?;
                continue;
            }
            let part = Piece {
                sequence: 0,
                place,
                pos: begin,
                tokens: piece.len(),
                ends: done == tokens.len(),
            };
            let parts = batch
                .prompt
                .recordings(&model, recipes, &part, &batch.logits);
            let pace = batch.paces.of(Kind::Several);
            for (recording, state) in parts.wait()? {
                append(gpu, pace, &recording, &state, separation, &mut all)?;
            }
        }
        self.next = pos + done;
        Ok(all)
    }
}

/// A replay under way whose dispatches are timed.
pub(super) struct Timed {
    pub(super) taken: Vec<Taken>,
    stamps: Stamps,
    separation: Separation,
    /// The dispatches of each submission.
    parts: Vec<Range<usize>>,
}

impl Timed {
    fn new(
        gpu: &Gpu,
        recording: &Recording,
        state: &State,
        separation: Separation,
    ) -> Result<Self, GpuError> {
        let taken = recording.step(state);
        // Each dispatch may be submitted alone.
        let most = 2 * taken.len();
        Ok(Self {
            stamps: Stamps::new(gpu, most).wait()?,
            taken,
            separation,
            parts: vec![],
        })
    }

    /// Submits a replay whole.
    pub(super) fn submit(
        gpu: &Gpu,
        recording: &Recording,
        state: &State,
        separation: Separation,
    ) -> Result<Self, GpuError> {
        let mut timed = Self::new(gpu, recording, state, separation)?;
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let replay = recording.replay(gpu, state);
        timed.encode(&replay, &mut encoder, 0..replay.len());
        gpu.queue.submit([encoder.finish()]);
        Ok(timed)
    }

    /// Encodes what the next submission takes.
    fn encode(&mut self, replay: &Replay<'_>, encoder: &mut CommandEncoder, part: Range<usize>) {
        let stamping = match self.separation {
            Separation::Stamps => Stamping::Dispatches(&self.stamps, part.start + self.parts.len()),
            Separation::Passes => Stamping::Passes(&self.stamps, 2 * part.start),
            Separation::Host => Stamping::None,
        };
        replay.encode(encoder, part.clone(), stamping, None);
        self.parts.push(part);
    }

    /// Begin and end of each dispatch, in nanoseconds, when everything submitted is done.
    pub(super) fn read(&self, gpu: &Gpu) -> Result<Vec<[f64; 2]>, GpuError> {
        let count = match self.separation {
            Separation::Stamps => self.taken.len() + self.parts.len(),
            Separation::Passes => 2 * self.taken.len(),
            Separation::Host => 0,
        };
        let times = self.stamps.read(gpu, count).wait()?;
        Ok(match self.separation {
            Separation::Stamps => {
                let of = |(i, part): (usize, &Range<usize>)| {
                    let part = &times[part.start + i..=part.end + i];
                    part.windows(2).map(|t| [t[0], t[1]])
                };
                self.parts.iter().enumerate().flat_map(of).collect()
            }
            _ => times.chunks_exact(2).map(|t| [t[0], t[1]]).collect(),
        })
    }
}

/// Submits what `encode` encodes of the dispatches of `replay`, cut by time, each part when the one before is done.
fn in_parts(
    gpu: &Gpu,
    pace: &mut Pace,
    replay: &Replay<'_>,
    encode: &mut (dyn FnMut(&mut CommandEncoder, Range<usize>) + Send),
) -> Result<(), GpuError> {
    let costs = replay.costs();
    let mut begin = 0;
    while begin < costs.len() {
        let end = begin + pace.cut(&costs[begin..]);
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        encode(&mut encoder, begin..end);
        let number = gpu.reserve_numbers(1).number(0);
        let commands = encoder.finish();
        let at = Instant::now();
        gpu.submit_numbered(commands, number);
        gpu.done().wait()?;
        let ns = at.elapsed().as_nanos() as f64;
        let took = Took {
            least: ns,
            most: ns,
        };
        // Chunks stay as they are: what is computed again is to be the same.
        let _ = pace.learn(&costs[begin..end], took);
        begin = end;
    }
    Ok(())
}

/// Replays `recording` and appends what was taken and when: what had no workgroups read and multiplied nothing.
fn append(
    gpu: &Gpu,
    pace: &mut Pace,
    recording: &Recording,
    state: &State,
    separation: Separation,
    all: &mut Vec<(Taken, [f64; 2])>,
) -> Result<(), GpuError> {
    let mut stamp = || {
        let mut timed = Timed::new(gpu, recording, state, separation)?;
        let replay = recording.replay(gpu, state);
        in_parts(gpu, pace, &replay, &mut |encoder, part| {
            timed.encode(&replay, encoder, part);
        })?;
        timed.read(gpu)
    };
    let stamped = match separation {
        Separation::Host => None,
        _ => match stamp() {
            Err(error) if error.is_of_clock() => None,
            told => Some(told?),
        },
    };
    let times = match stamped {
        Some(times) => times,
        None => by_host(gpu, recording, state, &mut || {
            let replay = recording.replay(gpu, state);
            in_parts(gpu, pace, &replay, &mut |encoder, part| {
                replay.encode(encoder, part, Stamping::None, None);
            })
        })?,
    };
    for (mut taken, times) in recording.step(state).into_iter().zip(times) {
        if !recording.had_work(gpu, taken.dispatch).wait()? {
            (taken.bytes, taken.flops) = (0, 0);
        }
        all.push((taken, times));
    }
    Ok(())
}

/// Begin and end of each dispatch of a replay, in nanoseconds, as if one began when the one before ended: each is repeated alone and
/// timed by the host's clock, where nothing of the same kind was before. First and last is `whole`, which submits the whole replay: its
/// results stay.
fn by_host(
    gpu: &Gpu,
    recording: &Recording,
    state: &State,
    whole: &mut dyn FnMut() -> Result<(), GpuError>,
) -> Result<Vec<[f64; 2]>, GpuError> {
    // The values that a dispatch reads must be there.
    whole()?;
    let mut known = HashMap::new();
    let mut at = 0.0;
    let mut spans = vec![];
    for (turn, taken) in recording.step(state).into_iter().enumerate() {
        let kind = (taken.about.label.clone(), taken.bytes, taken.flops);
        let ns = match known.get(&kind) {
            Some(ns) => *ns,
            None => {
                let encode = &mut |encoder: &mut CommandEncoder, times| {
                    recording.encode_alone(gpu, encoder, state, turn, times);
                };
                let repeats = clock::repeats(gpu, encode).wait()?;
                clock::repeated(gpu, encode, repeats).wait()?.as_secs_f64() * 1e9
            }
        };
        known.insert(kind, ns);
        spans.push([at, at + ns]);
        at += ns;
    }
    whole()?;
    gpu.done().wait()?;
    Ok(spans)
}
