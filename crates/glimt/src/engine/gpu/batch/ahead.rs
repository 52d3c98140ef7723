//! A step of several tokens that is encoded while the one before computes, though nobody knows yet which tokens it has: where they stand is in
//! tables, and only the slices of their contexts tell such steps apart.

use super::GpuBatch;
use crate::engine::batch::BatchToken;
use crate::engine::gpu::table::state_of;
use crate::gpu::Gpu;
use crate::gpu::call::{KERNELS, State};
use crate::gpu::record::{Recording, encode_all};
use wgpu::{CommandBuffer, SubmissionIndex};

/// A step that is encoded.
pub(super) struct Ahead {
    pub(super) key: Key,
    commands: CommandBuffer,
}

/// What tells the commands of steps of several tokens apart.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Key {
    /// The tokens, those after which one is chosen, and the results that are copied.
    counts: [usize; 3],
    slot: usize,
    biased: bool,
    /// The slices, the kernels, and the slices of each.
    slices: (u32, u32, [u32; KERNELS]),
}

impl Key {
    /// The key of a step with these words.
    pub(super) fn new(state: &State, drawn: usize, results: usize) -> Self {
        Self {
            counts: [state.tokens as usize, drawn, results],
            slot: state.slot,
            biased: state.biased,
            slices: (state.slices, state.kernels, state.slices_of),
        }
    }
}

impl Ahead {
    /// Submits it behind the `drafts` of its step, which are encoded now.
    pub(super) fn submit(
        self,
        gpu: &Gpu,
        drafts: &[(&Recording, State)],
        number: u32,
    ) -> SubmissionIndex {
        let replays = drafts.iter();
        let replays: Vec<_> = replays
            .map(|(recording, state)| recording.replay(gpu, state))
            .collect();
        let all: Vec<_> = replays.iter().collect();
        let first = (!all.is_empty()).then(|| {
            let mut encoder = gpu.device.create_command_encoder(&Default::default());
            let count = all.iter().map(|replay| replay.len()).sum();
            encode_all(&all, 0..count, &mut encoder, None);
            encoder.finish()
        });
        gpu.submit_both_numbered(first, self.commands, number)
    }
}

impl GpuBatch {
    /// Encodes the next step as it is if it has as many tokens as these, about where they stand, and as many drafts of the prediction layer. Steps
    /// of so many tokens must have been submitted before. A token is chosen after each.
    pub(in crate::engine::gpu) fn encode_ahead(
        &mut self,
        tokens: &[BatchToken],
        drafts: usize,
        biased: bool,
    ) {
        let n_ctx = self.sizes.n_ctx as u32;
        let is_there = tokens.iter().all(|token| token.position < n_ctx);
        if tokens.len() < 2 || !is_there || self.model.answering.is_some() {
            return;
        }
        let (gpu, drawn) = (self.gpu(), tokens.len());
        let most = self.sizes.class(drawn as u32);
        let state = State {
            slot: self.next_slot,
            biased,
            ..state_of(gpu, &self.recipes, most, tokens)
        };
        let replays = self.replays(drawn, drawn, state);
        if !replays
            .iter()
            .all(|(recording, _)| recording.holds_parameters())
        {
            return;
        }
        let replays: Vec<_> = replays
            .iter()
            .map(|(recording, state)| recording.replay(gpu, state))
            .collect();
        let all: Vec<_> = replays.iter().collect();
        let results = match drafts {
            0 => drawn,
            drafts => self.results.parts(drafts).0,
        };
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let count = all.iter().map(|replay| replay.len()).sum();
        encode_all(&all, 0..count, &mut encoder, None);
        self.results.copy(&mut encoder, state.slot, results);
        self.keep_landed(&mut encoder, state.slot, drafts);
        let commands = encoder.finish();
        self.ahead = Some(Ahead {
            key: Key::new(&state, drawn, results),
            commands,
        });
    }
}
