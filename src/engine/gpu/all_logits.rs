//! The logits of all tokens of a prompt: behind each piece the head over its slices.

use super::GpuBackend;
use super::pace::Kind;
use super::prompt::{HEAD_TOKENS, LEAST_SLICE};
use super::submissions::{Submissions, Worth};
use crate::engine::backend::{BackendError, OnPrompt, OnRow};
use crate::gpu::record::Cost;
use std::sync::Arc;

impl GpuBackend {
    /// Hands the logits of each token to `on_row`, and tells `on_prompt` between two submissions how many tokens are as good as computed:
    /// how many rows were handed out.
    ///
    /// # Errors
    /// Those of [`Backend::logits_async`](crate::engine::backend::Backend::logits_async).
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
        let Self {
            recipes,
            prompt,
            single,
            paces,
            proof,
            logits,
            ..
        } = self;
        let mut submissions = Submissions::begin(gpu, paces, proof, tokens.len());
        let mut done = 0;
        while done < tokens.len() {
            let piece = prompt.piece(tokens.len()).min(tokens.len() - done);
            let begin = done;
            let mut state = recipes.state(gpu.machine, pos + begin, piece);
            // Tokens of a slice at most, and what the piece is worth before its head.
            let mut most = HEAD_TOKENS;
            let mut before = begin as f64;
            if piece > 1 {
                let step = prompt.step(&model, &**recipes, piece).await?;
                let slices = prompt.slices(&model, &**recipes, most).await?;
                let mut whole = state;
                whole.tokens = slices.tokens.min(piece) as u32;
                let head = work(&slices.head.replay(gpu, &whole).costs());
                let heads = head / f64::from(whole.tokens) * piece as f64;
                let step = step.replay(gpu, &state);
                let share = work(&step.costs());
                before += piece as f64 * share / (share + heads);
                let worth = Worth {
                    tokens: [begin as f64, before],
                    ends: false,
                };
                let flow = submissions
                    .run(Kind::Several, &[&step], worth, on_prompt)
                    .await?;
                if flow.is_break() {
                    submissions.land_all().await?;
                    return Ok(done);
                }
            }
            while done < begin + piece {
                let after = |done: usize| {
                    let share = (done - begin) as f64 / piece as f64;
                    before + share * ((begin + piece) as f64 - before)
                };
                let part;
                let rows = if piece == 1 {
                    // The step that decoding takes, so that its logits are those that decoding sees.
                    part = 1;
                    let step = single.replay(gpu, &state);
                    let worth = Worth::piece(done..done + 1);
                    let from = (&*logits, bytes(1, vocab));
                    submissions
                        .read(Kind::Single, &step, worth, from, on_prompt)
                        .await?
                } else {
                    let slices = loop {
                        let slices = prompt.slices(&model, &**recipes, most).await?;
                        // Halving keeps slices where they begin: at multiples of their tokens.
                        state.slot = (done - begin) / slices.tokens;
                        state.tokens = slices.tokens.min(begin + piece - done) as u32;
                        let head = slices.head.replay(gpu, &state);
                        if most <= LEAST_SLICE || submissions.fits(&head) {
                            break slices;
                        }
                        most /= 2;
                    };
                    part = state.tokens as usize;
                    let head = slices.head.replay(gpu, &state);
                    let worth = Worth {
                        tokens: [after(done), after(done + part)],
                        ends: false,
                    };
                    let from = (&slices.logits, bytes(part, vocab));
                    submissions
                        .read(Kind::Several, &head, worth, from, on_prompt)
                        .await?
                };
                let Some(rows) = rows else {
                    return Ok(done);
                };
                let told = after(done + part) as usize;
                for row in rows.chunks_exact(vocab) {
                    let stop = on_row(done, row).is_break();
                    done += 1;
                    if stop || done == tokens.len() {
                        let bytes = bytemuck::cast_slice(row);
                        gpu.queue.write_buffer(logits.buffer.made(), 0, bytes);
                        submissions.prove_writes().await?;
                        self.next = pos + done;
                        return Ok(done);
                    }
                }
                if on_prompt(told).is_break() {
                    return Ok(done);
                }
            }
            if submissions.take_halving() {
                prompt.halve(piece);
            }
        }
        Ok(done)
    }
}

/// Bytes of the logits of so many tokens.
fn bytes(tokens: usize, vocab: usize) -> u64 {
    (tokens * vocab * 4) as u64
}

fn work(costs: &[Cost]) -> f64 {
    costs.iter().map(|c| c.work).sum()
}
