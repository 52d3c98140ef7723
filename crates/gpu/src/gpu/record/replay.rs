//! A replay that is encoded in ranges, each of which can be submitted alone.

use super::{Recording, Turn};
use crate::gpu::Gpu;
use crate::gpu::call::{State, Taken};
use crate::gpu::question::Question;
use crate::gpu::stamps::Stamping;
use std::ops::Range;

/// Work of a dispatch for each byte that it reads, in floating-point operations.
const PER_BYTE: f64 = 32.0;
/// Work of a dispatch for each token, where it tells neither operations nor bytes. A dispatch that is alone costs some such tokens.
const PER_TOKEN: f64 = 10_000.0;
const ALONE: f64 = 16.0;

/// The expected cost of a dispatch of a replay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// The kernel: what a unit of work takes is measured for each.
    pub kernel: &'static str,
    /// Work, about in proportion to the time of a dispatch of this kernel.
    pub work: f64,
    /// Whether a pass, half a layer or a block of the context begins with it, so that a submission may begin there at no cost.
    pub begins: bool,
    /// The layer, where it belongs to one.
    pub layer: Option<usize>,
}

/// A replay of a recording for one state, encoded range by range.
///
/// Submissions run in order and each sees all that those before wrote, so a replay may be cut anywhere. All ranges must be
/// submitted before another replay of the same recording is made: where parameters are uniforms both have them in one buffer.
pub struct Replay<'a> {
    recording: &'a Recording,
    state: State,
    turns: Vec<Turn>,
}

impl Recording {
    /// Whether what is encoded for a replay holds all its parameters, so that other replays may be encoded before it is submitted.
    pub fn holds_parameters(&self) -> bool {
        self.uniforms.is_none()
    }

    /// Begins a replay for `state`.
    pub fn replay(&self, gpu: &Gpu, state: &State) -> Replay<'_> {
        let turns = self.turns(state);
        self.write_uniforms(gpu, state, &turns);
        Replay {
            recording: self,
            state: *state,
            turns,
        }
    }
}

impl Replay<'_> {
    /// Dispatches.
    #[expect(clippy::len_without_is_empty, reason = "no replay is empty")]
    pub fn len(&self) -> usize {
        self.turns.len()
    }

    /// The expected cost of each dispatch, in order.
    pub fn costs(&self) -> Vec<Cost> {
        let mut before: Option<&Turn> = None;
        let cost = |turn| {
            let begins = before.replace(turn).is_none_or(|b| self.begins(b, turn));
            self.cost(turn, begins)
        };
        self.turns.iter().map(cost).collect()
    }

    /// Its questions to the host, in order, each with the dispatches of the replay that come before it and those that need no answer.
    pub fn questions(&self) -> impl Iterator<Item = ([usize; 2], &Question)> {
        let before = |end| self.turns.partition_point(|turn| turn.dispatch < end);
        let questions = self.recording.questions.iter();
        questions.map(move |question| ([question.asked, question.due].map(before), question))
    }

    fn begins(&self, before: &Turn, turn: &Turn) -> bool {
        let Recording { about, plans, .. } = self.recording;
        // A dispatch that runs a block ahead overlaps with the one before it.
        let next_block = before.index != turn.index && before.dispatch >= turn.dispatch;
        self.recording.separates_passes(before, turn)
            || about[before.dispatch].sublayer != about[turn.dispatch].sublayer
            || (next_block && !plans[turn.dispatch].ahead)
    }

    fn cost(&self, turn: &Turn, begins: bool) -> Cost {
        let about = &self.recording.about[turn.dispatch];
        let taken = Taken::new(turn.dispatch, about, &self.state, turn.block);
        let told = taken.flops as f64 + taken.bytes as f64 * PER_BYTE;
        Cost {
            kernel: about.kernel,
            work: told + PER_TOKEN * (f64::from(self.state.tokens) + ALONE),
            begins,
            layer: about.sublayer.layer(),
        }
    }

    /// Encodes the dispatches of `range` into compute passes, with the timestamps of `stamping`, and returns the number of passes. If a
    /// `mark` is given, each pass ends with its first dispatch.
    ///
    /// # Panics
    /// If the range is not within the replay.
    pub fn encode(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        range: Range<usize>,
        stamping: Stamping<'_>,
        mark: Option<&Recording>,
    ) -> u32 {
        let turns = &self.turns[range];
        self.recording
            .encode_turns(encoder, &self.state, turns, stamping, mark)
    }
}

/// Encodes the dispatches of `range` of replays that stand one behind the other, and returns the number of passes. If a `mark` is given, each
/// pass ends with its first dispatch.
pub fn encode_all(
    replays: &[&Replay<'_>],
    range: Range<usize>,
    encoder: &mut wgpu::CommandEncoder,
    mark: Option<&Recording>,
) -> u32 {
    let (mut first, mut passes) = (0, 0);
    for replay in replays {
        let within = |at: usize| at.clamp(first, first + replay.len()) - first;
        let part = within(range.start)..within(range.end);
        if !part.is_empty() {
            passes += replay.encode(encoder, part, Stamping::None, mark);
        }
        first += replay.len();
    }
    passes
}
