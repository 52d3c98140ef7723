//! Runs every step once before anybody waits for one: some drivers finish compiling with the first run, and only then do weights come into
//! the memory of the device.

use super::{BatchStep, BatchToken, GpuBatch, classes, head_classes};
use crate::gpu::GpuError;
use crate::gpu::call::State;
use crate::gpu::record::Recording;
use crate::kernels::sample;
use crate::kernels::sampling::Sampling;
use std::collections::BTreeSet;
use web_time::{Duration, Instant};

impl GpuBatch {
    /// Runs its steps once each, the small ones first, until it is through or has taken `most`. `told` hears how many ran, and of how many.
    /// The cache must be empty: rows of its first page and the ids of sequences are overwritten.
    ///
    /// # Errors
    /// The errors of [`submit`](Self::submit), or the error that the device reports.
    pub async fn warm_up(
        &mut self,
        most: Duration,
        told: &mut (dyn FnMut(usize, usize) + Send),
    ) -> Result<(), GpuError> {
        let began = Instant::now();
        let sequences = self.sizes.sequences;
        let pages = vec![0; self.pages_per_sequence()];
        for sequence in 0..sequences {
            self.write_pages(sequence, 0, &pages);
        }
        let (steps, runs) = (self.all_once(), self.runs());
        let of = steps.len() + runs.len();
        let steps = steps
            .into_iter()
            .map(|(tokens, drawn)| (tokens, Some(drawn)));
        let runs = runs.into_iter().map(|tokens| (tokens as u32, None));
        for (done, (tokens, drawn)) in steps.chain(runs).enumerate() {
            told(done, of);
            if began.elapsed() >= most {
                break;
            }
            match drawn {
                Some(drawn) => self.run_once(tokens, drawn).await?,
                None => self.run_prompt(tokens as usize).await?,
            }
        }
        told(of, of);
        Ok(())
    }

    /// Compiles the step of `tokens` and its head and writes what they read: after as many of the first tokens as may be, the best one is
    /// chosen. Returned is what it replays.
    ///
    /// # Errors
    /// The errors of [`prepare`](Self::prepare).
    pub(in crate::engine::gpu) async fn ready(
        &mut self,
        tokens: &[BatchToken],
    ) -> Result<Vec<(&Recording, State)>, GpuError> {
        let drawn = self.drawn(tokens.len());
        self.prepare(tokens.len(), drawn).await?;
        let words =
            |token: &BatchToken| sample::words(&Sampling::GREEDY, u64::from(token.position) + 1);
        let choices: Vec<_> = tokens[..drawn].iter().map(words).collect();
        let state = self.write(tokens, &choices);
        Ok(self.replays(tokens.len(), drawn, state))
    }

    /// The most tokens after which one is chosen, in a step of `tokens` tokens.
    fn drawn(&self, tokens: usize) -> usize {
        tokens.min(self.sizes.most_drawn() as usize)
    }

    /// Steps with which each of its steps and heads runs, as numbers of tokens and of those after which one is chosen. A step has the fewest
    /// tokens that it is for.
    fn all_once(&self) -> Vec<(u32, usize)> {
        let sequences = self.sizes.sequences;
        let (mut classes_run, mut heads_run) = (BTreeSet::new(), BTreeSet::new());
        let mut steps = vec![(1, 1)];
        for class in classes(self.sizes, &self.recipes) {
            let tokens = class / 2 + 1;
            if tokens.div_ceil(sequences) as usize > self.sizes.n_ctx {
                break;
            }
            for drawn in head_classes(self.sizes) {
                let drawn = drawn.min(tokens).min(sequences) as usize;
                let is_new = heads_run.insert(self.head_of(tokens as usize, drawn));
                if classes_run.insert(class) || is_new {
                    steps.push((tokens, drawn));
                }
            }
        }
        steps
    }

    /// Runs a step of `tokens` tokens, spread over the sequences, and waits for it.
    async fn run_once(&mut self, tokens: u32, drawn: usize) -> Result<(), GpuError> {
        let sequences = self.sizes.sequences;
        let token = |index: u32| BatchToken {
            sequence: index % sequences,
            position: index / sequences,
        };
        self.run_tokens(&(0..tokens).map(token).collect::<Vec<_>>(), drawn)
            .await
    }

    /// Runs a part of one prompt, and waits for it.
    async fn run_prompt(&mut self, tokens: usize) -> Result<(), GpuError> {
        let token = |position| BatchToken {
            sequence: 0,
            position,
        };
        let last = tokens as u32 - 1;
        let tokens = [last].into_iter().chain(0..last).map(token);
        self.run_tokens(&tokens.collect::<Vec<_>>(), 1).await
    }

    async fn run_tokens(&mut self, tokens: &[BatchToken], drawn: usize) -> Result<(), GpuError> {
        let choices = vec![Sampling::GREEDY; drawn];
        let step = BatchStep {
            tokens,
            choices: &choices,
            biases: &[],
            logits: &[],
            predictions: &[],
        };
        let flight = self.submit(step).await?;
        // The results mean nothing, so neither does whether they are finite.
        self.land(flight).await.map(drop)
    }
}
