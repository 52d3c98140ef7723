//! Steps that the host answers: they are submitted part by part, and between two parts the host reads what was told and does its share.
//!
//! A step of a session or of a batch goes through [`GpuModel::run`](super::model::GpuModel::run), a prompt through [`Submissions`](super::submissions::Submissions). Both
//! cut their replays by [`Asked`]. Without questions there is one part, and nothing is waited for.

use crate::engine::backend::BoxedFuture;
use crate::engine::share::HostWork;
use crate::engine::turns::{Turn, Turns};
use crate::gpu::buffer::{Range, Role};
use crate::gpu::question::Question;
use crate::gpu::record::Replay;
use crate::gpu::{Gpu, GpuError};
use crate::kernels::expert_slots::Table;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use wgpu::{BufferUsages, CommandEncoder, SubmissionIndex};

/// The host's part of steps.
pub(super) trait Answers: Send {
    /// The experts that the processor has multiplied in answers.
    fn work(&self) -> HostWork {
        HostWork::default()
    }

    /// Answers a question, of which `words` are those of each range that it tells. What it submits or writes is there for the part of the step
    /// that follows.
    ///
    /// # Errors
    /// The reason why it cannot. The step then ends with it.
    fn answer<'a>(
        &'a mut self,
        gpu: &'a Gpu,
        question: &'a Question,
        words: &'a [&'a [u32]],
    ) -> BoxedFuture<'a, Result<(), GpuError>>;
}

/// Who answers the steps of a model. One step runs at a time, whichever session it is of, because the tables of slots change in it.
pub(super) struct Answering {
    turns: Turns<Told>,
    /// The tables that tell which expert lies in which slot.
    tables: Vec<Table>,
    /// Whether these tell of experts that nobody brought: a question was asked whose answer did not come.
    open: AtomicBool,
}

/// What one step has at a time.
struct Told {
    answers: Box<dyn Answers>,
    /// The number of the last part, which the host writes before it and the part tells behind its words.
    number: Range,
    /// The buffer that told words come back through.
    back: Option<wgpu::Buffer>,
}

/// Bytes of a part's number.
const NUMBER: u64 = 4;

impl Answering {
    /// `answers` for steps whose slots these `tables` tell of.
    ///
    /// # Errors
    /// The error that the device reports.
    pub(super) async fn new(
        gpu: &Gpu,
        answers: Box<dyn Answers>,
        tables: Vec<Table>,
    ) -> Result<Self, GpuError> {
        let number = gpu.storage("number of a part", NUMBER, Role::Words).await?;
        Ok(Self {
            turns: Turns::new(Told {
                answers,
                number: Range {
                    size: NUMBER,
                    ..Range::whole(&number)
                },
                back: None,
            }),
            tables,
            open: AtomicBool::new(false),
        })
    }

    /// The experts that the processor has multiplied in answers, once no step runs.
    pub(super) async fn work(&self) -> HostWork {
        self.turns.take().await.answers.work()
    }

    /// Has the slots be empty from the next step on, because steps are replayed whose questions nobody answers, such as those of a measurement.
    pub(super) fn distrust(&self) {
        self.open.store(true, Ordering::SeqCst);
    }
}

/// A question of replays that stand one behind the other, with the dispatches before it and those that need no answer.
struct Cut<'a> {
    asked: usize,
    due: usize,
    question: &'a Question,
}

/// The copies of what a part tells; none where it tells nothing.
#[derive(Default)]
pub(super) struct Telling {
    ranges: Vec<Range>,
    back: Option<wgpu::Buffer>,
    /// The number that it tells.
    pub(super) number: Option<u32>,
}

impl Telling {
    /// Encodes them.
    pub(super) fn copy(&self, encoder: &mut CommandEncoder) {
        let mut at = 0;
        for (range, back) in self.ranges.iter().zip(self.back.iter().cycle()) {
            let from = range.buffer.made();
            encoder.copy_buffer_to_buffer(from, range.offset, back, at, range.size);
            at += range.size;
        }
    }
}

/// A question that was asked.
struct Open<'a> {
    question: &'a Question,
    number: u32,
    submission: Option<SubmissionIndex>,
}

/// The questions of replays while these run.
pub(super) struct Asked<'a> {
    gpu: &'a Gpu,
    /// Who answers, from before the first part until after the last one; nobody where nothing is asked.
    told: Option<(&'a Answering, Turn<'a, Told>)>,
    cuts: VecDeque<Cut<'a>>,
    open: Option<Open<'a>>,
}

impl<'a> Asked<'a> {
    /// Begins to run `replays` one behind the other, once no other step is run that is answered.
    ///
    /// # Errors
    /// [`GpuError::Runtime`] if there are questions and nobody answers.
    pub(super) async fn begin(
        gpu: &'a Gpu,
        answering: Option<&'a Answering>,
        replays: &[&'a Replay<'a>],
    ) -> Result<Self, GpuError> {
        let (mut cuts, mut first) = (VecDeque::new(), 0);
        for replay in replays {
            let cut = |([asked, due], question): ([usize; 2], &'a Question)| Cut {
                asked: first + asked,
                due: first + due,
                question,
            };
            cuts.extend(replay.questions().map(cut));
            first += replay.len();
        }
        let told = match (cuts.is_empty(), answering) {
            (true, _) => None,
            (false, None) => return Err(failed("nobody answers its questions".to_owned())),
            (false, Some(answering)) => {
                let told = answering.turns.take().await;
                if answering.open.swap(false, Ordering::SeqCst) {
                    answering.tables.iter().for_each(|t| t.forget(gpu));
                }
                Some((answering, told))
            }
        };
        Ok(Self {
            gpu,
            told,
            cuts,
            open: None,
        })
    }

    /// The end of the part that begins with dispatch `begin` and may go on until `end`.
    pub(super) fn end_of(&self, begin: usize, end: usize) -> usize {
        let places = self.cuts.iter().flat_map(|cut| [cut.asked, cut.due]);
        places.filter(|at| *at > begin).fold(end, usize::min)
    }

    /// The copies of what is told at the `end` of a part, if the host is asked there.
    ///
    /// # Errors
    /// The error that the device reports.
    pub(super) async fn tell(&mut self, end: usize) -> Result<Telling, GpuError> {
        let (Some(cut), Some((answering, told))) = (self.cuts.front(), &mut self.told) else {
            return Ok(Telling::default());
        };
        if cut.asked != end || self.open.is_some() {
            return Ok(Telling::default());
        }
        let gpu = self.gpu;
        let bytes = cut.question.tells.iter().map(|range| range.size).sum();
        let back = told.back(gpu, bytes).await?.clone();
        let number = gpu.reserve_numbers(1).number(0);
        let words = bytemuck::bytes_of(&number);
        gpu.queue.write_buffer(told.number.buffer.made(), 0, words);
        answering.open.store(true, Ordering::SeqCst);
        self.open = Some(Open {
            question: cut.question,
            number,
            submission: None,
        });
        let tells = cut.question.tells.iter().chain([&told.number]);
        Ok(Telling {
            ranges: tells.cloned().collect(),
            back: Some(back),
            number: Some(number),
        })
    }

    /// Goes on behind the part that ends at `end`, which was `submitted`, once a question is answered whose answer is due there.
    ///
    /// # Errors
    /// The errors of [`Answers::answer`], [`GpuError::WorkLost`] if the part did not run, or what the device reports.
    pub(super) async fn go_on(
        &mut self,
        end: usize,
        submitted: SubmissionIndex,
    ) -> Result<(), GpuError> {
        if let Some(open) = &mut self.open {
            open.submission.get_or_insert(submitted);
        }
        let is_due = self.cuts.front().is_some_and(|cut| cut.due == end);
        if !is_due {
            return Ok(());
        }
        let (Some(open), Some((answering, told))) = (self.open.take(), &mut self.told) else {
            return Ok(());
        };
        self.cuts.pop_front();
        told.answer(self.gpu, open).await?;
        answering.open.store(false, Ordering::SeqCst);
        Ok(())
    }
}

impl Told {
    /// The buffer that `bytes` and a number come back through.
    async fn back(&mut self, gpu: &Gpu, bytes: u64) -> Result<&wgpu::Buffer, GpuError> {
        let needed = bytes + NUMBER;
        let back = match self.back.take() {
            Some(back) if back.size() >= needed => back,
            smaller => {
                if let Some(smaller) = smaller {
                    gpu.release_made(&smaller);
                }
                let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
                gpu.buffer("told words", needed, usage).await?
            }
        };
        Ok(self.back.insert(back))
    }

    async fn answer(&mut self, gpu: &Gpu, open: Open<'_>) -> Result<(), GpuError> {
        let tells = open.question.tells.iter();
        let lengths: Vec<_> = tells.map(|range| range.size as usize / 4).collect();
        let all: usize = lengths.iter().sum();
        let back = self.back(gpu, 4 * all as u64).await?.clone();
        let bytes = 4 * all as u64 + NUMBER;
        let words: Vec<u32> = gpu.map_read(&back, bytes, open.submission).await?;
        if words[all] != open.number {
            let what = format!("the number of a part of layer {}", open.question.layer);
            return Err(gpu.work_lost(what, open.number, words[all]));
        }
        let mut rest = &words[..all];
        let each = lengths.iter().map(|length| {
            let (own, others) = rest.split_at(*length);
            rest = others;
            own
        });
        let each: Vec<_> = each.collect();
        self.answers.answer(gpu, open.question, &each).await
    }
}

/// The error of a step that cannot be answered, for this reason.
pub(super) fn failed(reason: String) -> GpuError {
    GpuError::Runtime {
        what: "running a step that the host answers".to_owned(),
        reason,
    }
}
