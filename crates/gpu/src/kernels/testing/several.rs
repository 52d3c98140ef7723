//! Tools of the tests of kernels for several tokens of a batch: steps of fewer tokens than the most that they are recorded for.

use super::Rng;
use crate::gpu::buffer::{Buffer, Range};
use crate::gpu::call::{Call, State};
use crate::gpu::testing::{download, run_of, upload};
use crate::gpu::{Gpu, Most};
use crate::kernels::sequences::{Record, Sequences};

/// Tokens of a step.
#[derive(Debug, Clone, Copy)]
pub struct Several {
    /// The number of tokens of a replay.
    pub here: usize,
    /// The number of tokens that the calls are for, more than `here`.
    pub most: usize,
}

impl Several {
    /// 2 to 8 tokens, of up to 9.
    pub fn new(rng: &mut Rng) -> Self {
        let here = 2 + rng.below(7);
        let most = here + 1 + rng.below(9 - here);
        Self { here, most }
    }

    /// Runs `calls` once, after up to `context` rows of the cache, and waits.
    #[track_caller]
    pub fn run(self, gpu: &Gpu, calls: &[Call], context: usize) {
        let [tokens, most, context] = [self.here, self.most, context].map(|n| n as u32);
        let state = State {
            tokens,
            ..State::default()
        };
        let most = Most {
            tokens: most,
            context,
        };
        run_of(gpu, calls, most, &state);
    }

    /// The content that the step left in an output of `width` values per token. Nothing may be written behind its tokens.
    #[track_caller]
    pub fn download(self, gpu: &Gpu, buffer: &Buffer, width: usize) -> Vec<f32> {
        let mut found: Vec<f32> = download(gpu, buffer, self.most * width);
        let behind = found.split_off(self.here * width);
        assert!(behind.iter().all(|v| v.is_nan()), "{self:?}: {behind:?}");
        found
    }

    /// Experts of each token, `used` different ones of `count`. Two tokens share one.
    pub fn experts(self, rng: &mut Rng, [count, used]: [usize; 2]) -> Vec<u32> {
        let mut ids: Vec<u32> = vec![];
        for token in 0..self.here {
            let begin = ids.len();
            if token == 1 {
                ids.push(ids[used - 1]);
            }
            while ids.len() < begin + used {
                let id = rng.below(count) as u32;
                if !ids[begin..].contains(&id) {
                    ids.push(id);
                }
            }
        }
        ids
    }
}

/// Tokens at `positions`, each with so many `slices`, for kernels that read nothing else of sequences. Other slices precede them.
pub fn standing(gpu: &Gpu, positions: &[u32], slices: &[u32], preceding: u32) -> Sequences {
    let mut first_slice = preceding;
    let record = |(position, slices): (&u32, &u32)| {
        let record = Record {
            position: *position,
            first_slice,
            slices: *slices,
            // No kernel in question reads these.
            first_page: u32::MAX,
            first_id: u32::MAX,
        };
        first_slice += slices;
        record.words()
    };
    let table: Vec<u32> = positions.iter().zip(slices).flat_map(record).collect();
    let none = || Range::whole(&upload(gpu, &[u32::MAX; 4]));
    Sequences {
        table: Range::whole(&upload(gpu, &table)),
        pages: none(),
        work: none(),
        page: 64,
        rows: 64,
        ids: 64,
        alone: false,
    }
}
