//! The submissions of a prompt: one is computed while the next is encoded, each is proven and timed.

use super::pace::{Pace, Took};
use super::proof::{Proof, Receipt};
use crate::engine::backend::OnPrompt;
use crate::gpu::record::{Cost, Range as Bound, Replay, State};
use crate::gpu::{Gpu, GpuError};
use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};
use std::time::Instant;
use wgpu::{BufferUsages, CommandEncoder};

/// The submissions of one call.
pub(super) struct Submissions<'a> {
    gpu: &'a Gpu,
    pace: &'a mut Pace,
    proof: &'a mut Proof,
    /// Tokens of the call.
    tokens: usize,
    sent: VecDeque<Sent>,
    /// When the last one ended that is done: at the earliest and at the latest.
    ended: Option<[Instant; 2]>,
    /// Tokens of the pieces that are done as a whole.
    whole: usize,
    /// Whether chunks are to be halved.
    halve: bool,
}

/// A submission under way.
struct Sent {
    receipt: Receipt,
    at: Instant,
    costs: Vec<Cost>,
    /// Tokens of the call that are as good as computed when it is done, and whether a piece ends with it.
    worth: usize,
    ends: bool,
}

impl<'a> Submissions<'a> {
    /// Those of a call for `tokens` tokens.
    pub(super) fn begin(
        gpu: &'a Gpu,
        pace: &'a mut Pace,
        proof: &'a mut Proof,
        tokens: usize,
    ) -> Self {
        proof.begin();
        Self {
            gpu,
            pace,
            proof,
            tokens,
            sent: VecDeque::new(),
            ended: None,
            whole: 0,
            halve: false,
        }
    }

    /// Submits a piece of several tokens, cut by time: a step and behind it a `head`, where there is one. Tells `on_prompt` whenever a
    /// submission is done how many tokens are as good as computed.
    ///
    /// # Errors
    /// [`GpuError::WorkLost`], or what the device reports.
    pub(super) fn piece(
        &mut self,
        step: &Replay<'_>,
        head: Option<&Replay<'_>>,
        tokens: Range<usize>,
        on_prompt: &mut OnPrompt<'_>,
    ) -> Result<ControlFlow<()>, GpuError> {
        let costs = step.costs();
        let all: f64 = costs.iter().map(|c| c.work).sum();
        let (mut begin, mut done) = (0, 0.0);
        while begin < step.len() {
            let end = begin + self.pace.cut(&costs[begin..]);
            let mut part = costs[begin..end].to_vec();
            done += part.iter().map(|c| c.work).sum::<f64>();
            let worth = (tokens.len() as f64 * done / all) as usize;
            let ends = end == step.len();
            let head = head.filter(|_| ends);
            part.extend(head.map(Replay::costs).unwrap_or_default());
            let at = Instant::now();
            let receipt = self.proof.submit(
                self.gpu,
                |encoder, mark| {
                    let passes = step.encode(encoder, begin..end, mark);
                    let more = head.map_or(0, |head| head.encode(encoder, 0..head.len(), mark));
                    passes + more
                },
                |_| {},
            );
            self.sent.push_back(Sent {
                receipt,
                at,
                costs: part,
                worth: match ends {
                    true => tokens.end,
                    false => tokens.end.min(tokens.start + worth).max(tokens.start),
                },
                ends,
            });
            if self.land_all_but_one(on_prompt)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            begin = end;
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Submits the step of one token alone, whose end is that of a piece.
    ///
    /// # Errors
    /// As [`piece`](Self::piece).
    pub(super) fn token(
        &mut self,
        step: &Replay<'_>,
        end: usize,
        on_prompt: &mut OnPrompt<'_>,
    ) -> Result<ControlFlow<()>, GpuError> {
        // A token says nothing about what many take.
        self.submit(step, vec![], Some(end), |_| {});
        self.land_all_but_one(on_prompt)
    }

    /// Submits a head alone and reads `bytes` of what it leaves in `from`, when all before is done, too.
    ///
    /// # Errors
    /// As [`piece`](Self::piece), and [`GpuError::OutOfMemory`].
    pub(super) fn read(
        &mut self,
        head: &Replay<'_>,
        from: &Bound,
        bytes: u64,
    ) -> Result<Vec<f32>, GpuError> {
        let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
        let staging = self.gpu.buffer("readback", bytes, usage)?;
        let costs = head.costs();
        self.submit(head, costs, None, |encoder| {
            encoder.copy_buffer_to_buffer(&from.buffer, from.offset, &staging, 0, bytes);
        });
        self.land_all()?;
        let rows = self.gpu.map_read(&staging, bytes, None)?;
        self.gpu.release(&staging);
        Ok(rows)
    }

    /// Proves that what the host wrote has arrived.
    ///
    /// # Errors
    /// As [`piece`](Self::piece).
    pub(super) fn prove_writes(&mut self) -> Result<(), GpuError> {
        let encode = |encoder: &mut CommandEncoder, mark: &crate::gpu::record::Recording| {
            mark.encode(self.gpu, encoder, &State::default());
            1
        };
        let receipt = self.proof.submit(self.gpu, encode, |_| {});
        self.proof.check(self.gpu, receipt).map(drop)
    }

    fn submit(
        &mut self,
        replay: &Replay<'_>,
        costs: Vec<Cost>,
        end: Option<usize>,
        copy: impl FnOnce(&mut CommandEncoder),
    ) {
        let at = Instant::now();
        let encode =
            |encoder: &mut CommandEncoder, mark: &_| replay.encode(encoder, 0..replay.len(), mark);
        let receipt = self.proof.submit(self.gpu, encode, copy);
        self.sent.push_back(Sent {
            receipt,
            at,
            costs,
            worth: end.unwrap_or(self.whole),
            ends: end.is_some(),
        });
    }

    /// Waits until one submission is left under way; or none, where nothing is known of the device's speed.
    fn land_all_but_one(
        &mut self,
        on_prompt: &mut OnPrompt<'_>,
    ) -> Result<ControlFlow<()>, GpuError> {
        let cut = |sent: &Sent| !sent.costs.is_empty();
        while self.sent.len() > 1 || (!self.pace.is_known() && self.sent.iter().any(cut)) {
            let Some(worth) = self.land()? else { break };
            if worth < self.tokens && on_prompt(worth).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Waits until everything is done: how many tokens are computed, in whole pieces.
    ///
    /// # Errors
    /// As [`piece`](Self::piece).
    pub(super) fn land_all(&mut self) -> Result<usize, GpuError> {
        while self.land()?.is_some() {}
        Ok(self.whole)
    }

    /// Waits for the first submission under way: how many tokens are as good as computed.
    fn land(&mut self) -> Result<Option<usize>, GpuError> {
        let Some(sent) = self.sent.pop_front() else {
            return Ok(None);
        };
        let late = self.proof.check(self.gpu, sent.receipt)?;
        let now = Instant::now();
        let ended = [if late { sent.at } else { now }, now];
        // It began when it was submitted and the one before was done.
        let [first, last] = match self.ended.replace(ended) {
            Some(before) => before.map(|before| before.max(sent.at)),
            None => [sent.at; 2],
        };
        let between = |from: Instant, to: Instant| to.duration_since(from).as_nanos() as f64;
        let took = Took {
            least: between(last, ended[0]),
            most: between(first, ended[1]),
        };
        self.halve |= self.pace.learn(&sent.costs, took);
        if sent.ends {
            self.whole = sent.worth;
        }
        Ok(Some(sent.worth))
    }

    /// Whether chunks were found to be too long since the last call.
    pub(super) fn take_halving(&mut self) -> bool {
        std::mem::take(&mut self.halve)
    }
}
