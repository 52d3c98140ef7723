//! The submissions of a prompt: one is computed while the next is encoded, each is proven and timed.

use super::answered::Asked;
use super::model::GpuModel;
use super::pace::{Kind, Paces, Took};
use super::proof::{Proof, Receipt};
use crate::engine::backend::OnPrompt;
use crate::gpu::buffer::Range as Bound;
use crate::gpu::record::{Cost, Replay, encode_all};
use crate::gpu::{Gpu, GpuError};
use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};
use web_time::Instant;
use wgpu::{BufferUsages, CommandEncoder};

/// The submissions of one call.
pub(super) struct Submissions<'a> {
    model: &'a GpuModel,
    gpu: &'a Gpu,
    paces: &'a mut Paces,
    proof: &'a mut Proof,
    /// Tokens of the call.
    tokens: usize,
    sent: VecDeque<Sent>,
    /// The earliest and the latest time at which the last finished one can have ended.
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
    kind: Kind,
    costs: Vec<Cost>,
    /// Tokens of the call that are as good as computed when it is done, and whether a piece ends with it.
    worth: usize,
    ends: bool,
}

/// The progress that a part of a call makes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Worth {
    /// Tokens of the call that are as good as computed before it and after it.
    pub tokens: [f64; 2],
    /// Whether a piece ends with it.
    pub ends: bool,
}

impl Worth {
    /// The progress of a whole piece.
    pub(super) fn piece(tokens: Range<usize>) -> Self {
        Self {
            tokens: [tokens.start as f64, tokens.end as f64],
            ends: true,
        }
    }

    /// Tokens after a share of it.
    pub(super) fn after(self, share: f64) -> usize {
        let [before, after] = self.tokens;
        (before + (after - before) * share.clamp(0.0, 1.0)) as usize
    }
}

impl<'a> Submissions<'a> {
    /// The submissions of a call for `tokens` tokens.
    pub(super) fn begin(
        model: &'a GpuModel,
        paces: &'a mut Paces,
        proof: &'a mut Proof,
        tokens: usize,
    ) -> Self {
        proof.begin();
        Self {
            model,
            gpu: &model.gpu,
            paces,
            proof,
            tokens,
            sent: VecDeque::new(),
            ended: None,
            whole: 0,
            halve: false,
        }
    }

    /// Submits replays one behind the other, cut by time. Tells `on_prompt` whenever a submission is done how many tokens are as good
    /// as computed.
    pub(super) async fn run(
        &mut self,
        kind: Kind,
        replays: &[&Replay<'_>],
        worth: Worth,
        on_prompt: &mut OnPrompt<'_>,
    ) -> Result<ControlFlow<()>, GpuError> {
        self.cut(kind, replays, worth, |_| {}, on_prompt).await
    }

    /// Does what [`run`](Self::run) does, and reads `bytes` of what is left in `from`: nothing where `on_prompt` broke.
    pub(super) async fn read(
        &mut self,
        kind: Kind,
        replays: &[&Replay<'_>],
        worth: Worth,
        (from, bytes): (&Bound, u64),
        on_prompt: &mut OnPrompt<'_>,
    ) -> Result<Option<Vec<f32>>, GpuError> {
        let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
        let staging = self.gpu.buffer("readback", bytes, usage).await?;
        let copy = |encoder: &mut CommandEncoder| {
            encoder.copy_buffer_to_buffer(from.buffer.made(), from.offset, &staging, 0, bytes);
        };
        let flow = self.cut(kind, replays, worth, copy, on_prompt).await?;
        self.land_all().await?;
        let rows = match flow {
            ControlFlow::Continue(()) => Some(self.gpu.map_read(&staging, bytes, None).await?),
            ControlFlow::Break(()) => None,
        };
        self.gpu.release_made(&staging);
        Ok(rows)
    }

    /// Submits replays cut by time and by their questions, which are answered, and `copy` with the last of them.
    async fn cut(
        &mut self,
        kind: Kind,
        replays: &[&Replay<'_>],
        worth: Worth,
        copy: impl Fn(&mut CommandEncoder),
        on_prompt: &mut OnPrompt<'_>,
    ) -> Result<ControlFlow<()>, GpuError> {
        let costs: Vec<_> = replays.iter().flat_map(|replay| replay.costs()).collect();
        let all: f64 = costs.iter().map(|c| c.work).sum();
        let (mut begin, mut done) = (0, 0.0);
        let mut asked = Asked::begin(self.gpu, self.model.answering.as_deref(), replays).await?;
        while begin < costs.len() {
            let end = begin + self.paces.of(kind).cut(&costs[begin..]);
            let end = asked.end_of(begin, end);
            let part = costs[begin..end].to_vec();
            done += part.iter().map(|c| c.work).sum::<f64>();
            let last = end == costs.len();
            let at = Instant::now();
            let tell = asked.tell(end).await?;
            let receipt = self.proof.submit(
                self.gpu,
                |encoder, mark| encode_all(replays, begin..end, encoder, Some(mark)),
                |encoder| {
                    tell.copy(encoder);
                    if last {
                        copy(encoder);
                    }
                },
            );
            let submitted = receipt.submission();
            self.sent.push_back(Sent {
                receipt,
                at,
                kind,
                costs: part,
                worth: worth.after(if last { 1.0 } else { done / all }),
                ends: last && worth.ends,
            });
            asked.go_on(end, submitted).await?;
            if self.land_all_but_one(on_prompt).await?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            begin = end;
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Whether the head `replay` is short enough for the device.
    pub(super) fn fits(&mut self, replay: &Replay<'_>) -> bool {
        self.paces.of(Kind::Several).fits(&replay.costs())
    }

    /// Proves that what the host wrote has arrived.
    pub(super) async fn prove_writes(&mut self) -> Result<(), GpuError> {
        self.proof.prove(self.gpu, |_| {}).await
    }

    /// Goes on once one submission is left under way; or none, where nothing is known of the device's speed.
    async fn land_all_but_one(
        &mut self,
        on_prompt: &mut OnPrompt<'_>,
    ) -> Result<ControlFlow<()>, GpuError> {
        loop {
            let first = self.sent.front().map(|sent| sent.kind);
            let unknown = first.is_some_and(|kind| !self.paces.of(kind).is_known());
            if self.sent.len() <= 1 && !unknown {
                return Ok(ControlFlow::Continue(()));
            }
            let Some(worth) = self.land().await? else {
                return Ok(ControlFlow::Continue(()));
            };
            if worth < self.tokens && on_prompt(worth).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
    }

    /// Goes on once everything is done: how many tokens are computed, in whole pieces.
    pub(super) async fn land_all(&mut self) -> Result<usize, GpuError> {
        while self.land().await?.is_some() {}
        Ok(self.whole)
    }

    /// Goes on once the first submission under way is done: how many tokens are as good as computed.
    async fn land(&mut self) -> Result<Option<usize>, GpuError> {
        let Some(sent) = self.sent.pop_front() else {
            return Ok(None);
        };
        let late = self.proof.check(self.gpu, sent.receipt).await?;
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
        self.halve |= self.paces.of(sent.kind).learn(&sent.costs, took);
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
