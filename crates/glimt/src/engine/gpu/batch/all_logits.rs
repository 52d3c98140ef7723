//! The logits of all tokens of a prompt: behind each piece the head over its slices.

use super::GpuBatch;
use crate::engine::backend::{OnPrompt, OnRow};
use crate::engine::gpu::GpuModel;
use crate::engine::gpu::pace::Kind;
use crate::engine::gpu::prompt::{HEAD_TOKENS, LEAST_SLICE, Piece, Prompt};
use crate::engine::gpu::submissions::{Submissions, Worth};
use crate::engine::gpu::table::Place;
use crate::gpu::buffer::Range as Bound;
use crate::gpu::call::State;
use crate::gpu::record::{Cost, Recording};
use crate::gpu::{Gpu, GpuError};
use crate::recipes::Steps;
use std::ops::Range;
use std::sync::Arc;

impl GpuBatch {
    /// Computes tokens as [`compute`](Self::compute) does, and hands the logits of each to `on_row`. `on_prompt` may be told of more tokens
    /// than rows were handed out. Returned is the number of these rows, and whether the logits of the last of them are kept.
    pub(in crate::engine::gpu) async fn all_logits(
        &mut self,
        sequence: u32,
        pos: usize,
        tokens: usize,
        on_prompt: &mut OnPrompt<'_>,
        on_row: &mut OnRow<'_>,
    ) -> Result<(usize, bool), GpuError> {
        self.layer_rows = self.layer_rows.min(pos);
        if self.prompt.is_as_one(tokens) && self.recipes.several_equal_one(self.gpu()) {
            return self
                .logits_as_one(sequence, pos, tokens, on_prompt, on_row)
                .await;
        }
        let (model, place) = (Arc::clone(&self.model), self.place(sequence));
        let (gpu, vocab) = (&model.gpu, model.model.config().vocab_size);
        let mut pieces = Pieces {
            model: &model,
            recipes: &self.recipes,
            place,
            prompt: &mut self.prompt,
            single: &self.token.single,
            logits: &self.logits,
            submissions: Submissions::begin(&model, &mut self.paces, &mut self.proof, tokens),
        };
        let mut done = 0;
        while done < tokens {
            let at_once = pieces.prompt.piece(tokens).min(tokens - done);
            let piece = done..done + at_once;
            let Some(mut piece) = pieces.hidden(pos, piece, on_prompt).await? else {
                return Ok((done, false));
            };
            if pieces.prompt.makes_layer_rows(at_once) {
                self.layer_rows = pos + piece.tokens.end;
            }
            while done < piece.tokens.end {
                let Some(rows) = pieces.rows(&mut piece, done, on_prompt).await? else {
                    return Ok((done, false));
                };
                let told = piece.worth(done + rows.len() / vocab) as usize;
                for row in rows.chunks_exact(vocab) {
                    let stop = on_row(done, row).is_break();
                    done += 1;
                    if stop || done == tokens {
                        // The logits of a single token lie where decoding reads them already.
                        if piece.tokens.len() > 1 {
                            keep(gpu, &self.logits, row);
                            pieces.submissions.prove_writes().await?;
                        }
                        return Ok((done, true));
                    }
                }
                if on_prompt(told).is_break() {
                    return Ok((done, false));
                }
            }
            if pieces.submissions.take_halving() {
                pieces.prompt.halve(at_once);
            }
        }
        Ok((done, false))
    }

    /// The logits of few tokens, by the kernels of a decoded token, so that each has what it has alone, to the bit.
    async fn logits_as_one(
        &mut self,
        sequence: u32,
        pos: usize,
        tokens: usize,
        on_prompt: &mut OnPrompt<'_>,
        on_row: &mut OnRow<'_>,
    ) -> Result<(usize, bool), GpuError> {
        let (model, place) = (Arc::clone(&self.model), self.place(sequence));
        let (gpu, vocab) = (&model.gpu, model.model.config().vocab_size);
        let piece = Piece {
            sequence,
            place,
            pos,
            tokens,
            ends: false,
        };
        let (prompt, recipes) = (&mut self.prompt, &self.recipes);
        let (both, logits) = prompt.logits_as_one(&model, recipes, &piece).await?;
        let both = both.each_ref();
        let both = both.map(|(recording, state)| recording.replay(gpu, state));
        let mut submissions = Submissions::begin(&model, &mut self.paces, &mut self.proof, tokens);
        let (worth, bytes) = (Worth::piece(0..tokens), (tokens * vocab * 4) as u64);
        let from = (&logits, bytes);
        let rows = submissions
            .read(Kind::Several, &both.each_ref(), worth, from, on_prompt)
            .await?;
        let Some(rows) = rows else {
            return Ok((0, false));
        };
        let mut done = 0;
        for row in rows.chunks_exact(vocab) {
            let stop = on_row(done, row).is_break();
            done += 1;
            if stop || done == tokens {
                keep(gpu, &self.logits, row);
                submissions.prove_writes().await?;
                break;
            }
        }
        Ok((done, true))
    }
}

/// Writes a row of logits to where decoding reads them.
fn keep(gpu: &Gpu, logits: &Bound, row: &[f32]) {
    let bytes = bytemuck::cast_slice(row);
    let buffer = logits.buffer.made();
    gpu.queue.write_buffer(buffer, logits.offset, bytes);
}

/// The means to compute a prompt piece by piece.
struct Pieces<'a> {
    model: &'a GpuModel,
    recipes: &'a Steps,
    place: Place,
    prompt: &'a mut Prompt,
    single: &'a Recording,
    /// Where `single` leaves its logits.
    logits: &'a Bound,
    submissions: Submissions<'a>,
}

/// A piece whose logits are computed part by part.
struct Parts {
    /// The tokens of the piece, counted in the prompt.
    tokens: Range<usize>,
    /// Tokens that are as good as computed before its head.
    before: f64,
    /// The most tokens of a slice.
    most: u32,
    state: State,
}

impl Parts {
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
    ) -> Result<Option<Parts>, GpuError> {
        let (gpu, n) = (&self.model.gpu, tokens.len());
        let mut piece = Parts {
            before: tokens.start as f64,
            most: HEAD_TOKENS,
            state: (self.place).state(self.recipes, gpu, pos + tokens.start, n),
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
        piece: &mut Parts,
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
                .read(Kind::Single, &[&step], worth, from, on_prompt)
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
            .read(Kind::Several, &[&head], worth, from, on_prompt)
            .await
    }
}

fn work(costs: &[Cost]) -> f64 {
    costs.iter().map(|c| c.work).sum()
}
