//! The logits of all tokens of a prompt: behind each piece the head over its slices.

use super::GpuBackend;
use super::model::GpuModel;
use super::pace::Kind;
use super::prompt::{HEAD_TOKENS, LEAST_SLICE, Prompt};
use super::submissions::{Submissions, Worth};
use crate::engine::backend::{BackendError, OnPrompt, OnRow};
use crate::gpu::GpuError;
use crate::gpu::buffer::Range as Bound;
use crate::gpu::call::State;
use crate::gpu::record::{Cost, Recording};
use crate::models::Recipes;
use std::ops::Range;
use std::sync::Arc;

impl GpuBackend {
    /// Hands the logits of each token to `on_row`, and tells `on_prompt` between two submissions how many tokens are as good as computed:
    /// how many rows were handed out.
    pub(super) async fn all_logits(
        &mut self,
        tokens: &[u32],
        pos: usize,
        on_prompt: &mut OnPrompt<'_>,
        on_row: &mut OnRow<'_>,
    ) -> Result<usize, BackendError> {
        self.check(tokens, pos)?;
        self.next = 0;
        let model = Arc::clone(&self.model);
        let (gpu, vocab) = (&model.gpu, model.model.config().vocab_size);
        let mut pieces = Pieces {
            model: &model,
            recipes: &*self.recipes,
            prompt: &mut self.prompt,
            single: &self.single,
            logits: &self.logits,
            submissions: Submissions::begin(gpu, &mut self.paces, &mut self.proof, tokens.len()),
        };
        let mut done = 0;
        while done < tokens.len() {
            let at_once = pieces.prompt.piece(tokens.len()).min(tokens.len() - done);
            let piece = done..done + at_once;
            let Some(mut piece) = pieces.hidden(pos, piece, on_prompt).await? else {
                return Ok(done);
            };
            while done < piece.tokens.end {
                let Some(rows) = pieces.rows(&mut piece, done, on_prompt).await? else {
                    return Ok(done);
                };
                let told = piece.worth(done + rows.len() / vocab) as usize;
                for row in rows.chunks_exact(vocab) {
                    let stop = on_row(done, row).is_break();
                    done += 1;
                    if stop || done == tokens.len() {
                        // Those of a single token lie where decoding reads them already.
                        if piece.tokens.len() > 1 {
                            let bytes = bytemuck::cast_slice(row);
                            let logits = self.logits.buffer.made();
                            gpu.queue.write_buffer(logits, 0, bytes);
                            pieces.submissions.prove_writes().await?;
                        }
                        self.next = pos + done;
                        return Ok(done);
                    }
                }
                if on_prompt(told).is_break() {
                    return Ok(done);
                }
            }
            if pieces.submissions.take_halving() {
                pieces.prompt.halve(at_once);
            }
        }
        Ok(done)
    }
}

/// What computes a prompt piece by piece.
struct Pieces<'a> {
    model: &'a GpuModel,
    recipes: &'a dyn Recipes,
    prompt: &'a mut Prompt,
    single: &'a Recording,
    /// Where `single` leaves its logits.
    logits: &'a Bound,
    submissions: Submissions<'a>,
}

/// A piece whose logits are computed part by part.
struct Piece {
    /// Its tokens, counted in the prompt.
    tokens: Range<usize>,
    /// Tokens that are as good as computed before its head.
    before: f64,
    /// Tokens of a slice at most.
    most: u32,
    state: State,
}

impl Piece {
    /// Tokens that are as good as computed where `done` have their logits.
    fn worth(&self, done: usize) -> f64 {
        let Range { start, end } = self.tokens;
        let share = (done - start) as f64 / (end - start) as f64;
        self.before + share * (end as f64 - self.before)
    }
}

impl Pieces<'_> {
    /// Computes the hidden states of these tokens, unless it is one token, whose step computes its logits too: nothing where `on_prompt`
    /// broke.
    async fn hidden(
        &mut self,
        pos: usize,
        tokens: Range<usize>,
        on_prompt: &mut OnPrompt<'_>,
    ) -> Result<Option<Piece>, GpuError> {
        let (gpu, n) = (&self.model.gpu, tokens.len());
        let mut piece = Piece {
            before: tokens.start as f64,
            most: HEAD_TOKENS,
            state: self.recipes.state(gpu.machine, pos + tokens.start, n),
            tokens,
        };
        if n == 1 {
            return Ok(Some(piece));
        }
        let step = self.prompt.step(self.model, self.recipes, n).await?;
        let slices = (self.prompt)
            .slices(self.model, self.recipes, piece.most)
            .await?;
        let mut whole = piece.state;
        whole.tokens = slices.tokens.min(n) as u32;
        let head = work(&slices.head.replay(gpu, &whole).costs());
        let heads = head / f64::from(whole.tokens) * n as f64;
        let step = step.replay(gpu, &piece.state);
        let share = work(&step.costs());
        let begin = piece.before;
        piece.before += n as f64 * share / (share + heads);
        let worth = Worth {
            tokens: [begin, piece.before],
            ends: false,
        };
        let flow = self
            .submissions
            .run(Kind::Several, &[&step], worth, on_prompt)
            .await?;
        if flow.is_break() {
            self.submissions.land_all().await?;
            return Ok(None);
        }
        Ok(Some(piece))
    }

    /// The logits of the next part of a piece, `done` tokens of the prompt having theirs: nothing where `on_prompt` broke.
    async fn rows(
        &mut self,
        piece: &mut Piece,
        done: usize,
        on_prompt: &mut OnPrompt<'_>,
    ) -> Result<Option<Vec<f32>>, GpuError> {
        let gpu = &self.model.gpu;
        let row = self.model.model.config().vocab_size as u64 * 4;
        if piece.tokens.len() == 1 {
            // The step that decoding takes, so that its logits are those that decoding sees.
            let step = self.single.replay(gpu, &piece.state);
            let worth = Worth::piece(done..done + 1);
            let from = (self.logits, row);
            let submissions = &mut self.submissions;
            return submissions
                .read(Kind::Single, &step, worth, from, on_prompt)
                .await;
        }
        let slices = loop {
            let slices = (self.prompt)
                .slices(self.model, self.recipes, piece.most)
                .await?;
            // Halving keeps slices where they begin: at multiples of their tokens.
            piece.state.slot = (done - piece.tokens.start) / slices.tokens;
            piece.state.tokens = slices.tokens.min(piece.tokens.end - done) as u32;
            let head = slices.head.replay(gpu, &piece.state);
            if piece.most <= LEAST_SLICE || self.submissions.fits(&head) {
                break slices;
            }
            piece.most /= 2;
        };
        let part = piece.state.tokens as usize;
        let head = slices.head.replay(gpu, &piece.state);
        let worth = Worth {
            tokens: [piece.worth(done), piece.worth(done + part)],
            ends: false,
        };
        let from = (&slices.logits, part as u64 * row);
        let submissions = &mut self.submissions;
        submissions
            .read(Kind::Several, &head, worth, from, on_prompt)
            .await
    }
}

fn work(costs: &[Cost]) -> f64 {
    costs.iter().map(|c| c.work).sum()
}
