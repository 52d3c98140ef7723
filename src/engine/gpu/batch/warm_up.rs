//! Runs every step once before anybody waits for one: some drivers finish compiling with the first run, and only then do weights come into
//! the memory of the device.

use super::{BatchStep, BatchToken, GpuBatch, classes, head_classes};
use crate::gpu::GpuError;
use crate::kernels::sample;
use crate::kernels::sampling::Sampling;
use std::collections::BTreeSet;
use web_time::{Duration, Instant};

impl GpuBatch {
    /// Runs its steps once each, the small ones first, until it is through or has taken `most`. The cache must be empty: rows of its first
    /// page and the ids of sequences are overwritten.
    ///
    /// # Errors
    /// Those of [`submit_async`](Self::submit_async), or what the device reports.
    pub async fn warm_up_async(&mut self, most: Duration) -> Result<(), GpuError> {
        let began = Instant::now();
        let sequences = self.sizes.sequences;
        let pages = vec![0; self.pages_per_sequence()];
        for sequence in 0..sequences {
            self.write_pages(sequence, 0, &pages);
        }
        let (mut steps, mut heads) = (BTreeSet::new(), BTreeSet::new());
        for class in classes(self.sizes) {
            if class.div_ceil(sequences) as usize > self.sizes.n_ctx {
                break;
            }
            for drawn in head_classes(self.sizes) {
                let drawn = drawn.min(class).min(sequences) as usize;
                let is_new = heads.insert(self.head_of(class as usize, drawn));
                if !steps.insert(class) && !is_new {
                    continue;
                }
                if began.elapsed() >= most {
                    return Ok(());
                }
                self.run_once(class, drawn).await?;
            }
        }
        Ok(())
    }

    /// Runs a step of so many tokens, spread over the sequences, and waits for it.
    async fn run_once(&mut self, tokens: u32, drawn: usize) -> Result<(), GpuError> {
        let sequences = self.sizes.sequences;
        let token = |index: u32| BatchToken {
            sequence: index % sequences,
            position: index / sequences,
        };
        let tokens: Vec<_> = (0..tokens).map(token).collect();
        let choices = vec![sample::words(&Sampling::GREEDY, 0); drawn];
        let step = BatchStep {
            tokens: &tokens,
            choices: &choices,
            biases: &[],
            logits: &[],
        };
        let flight = self.submit_async(step).await?;
        // What it computes means nothing, so neither does whether it is finite.
        self.land_async(flight).await.map(drop)
    }
}
