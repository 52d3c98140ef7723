//! The prompt of one sequence, piece by piece.

use super::GpuBatch;
use crate::engine::backend::OnPrompt;
use crate::engine::gpu::pace::Kind;
use crate::engine::gpu::prompt::Piece;
use crate::engine::gpu::submissions::{Submissions, Worth};
use crate::gpu::GpuError;
use std::sync::Arc;

impl GpuBatch {
    /// Computes the cache rows of `tokens` tokens of a sequence from `pos` on, whose ids are [written](Self::write_ids), and keeps the logits of
    /// the last, in submissions whose length `pace` bounds. `on_prompt` is told between two of them how many tokens are as good as
    /// computed. `Break` ends it, unless all is submitted. Returned is the number of tokens that have their rows; if it is not all, no logits
    /// are kept.
    ///
    /// # Errors
    /// [`GpuError::WorkLost`], or what the device reports.
    pub async fn compute(
        &mut self,
        sequence: u32,
        pos: usize,
        tokens: usize,
        on_prompt: &mut OnPrompt<'_>,
    ) -> Result<usize, GpuError> {
        self.layer_rows = self.layer_rows.min(pos);
        let model = Arc::clone(&self.model);
        let (gpu, place) = (&model.gpu, self.place(sequence));
        let Self {
            recipes,
            prompt,
            token,
            paces,
            proof,
            logits,
            layer_rows,
            ..
        } = self;
        let mut submissions = Submissions::begin(&model, paces, proof, tokens);
        let mut at_once = prompt.at_once(tokens);
        if at_once == 1 && tokens > 1 {
            prompt.was_short();
        }
        let mut begin = 0;
        while begin < tokens {
            let piece = at_once.min(tokens - begin);
            let end = begin + piece;
            let worth = Worth::piece(begin..end);
            let flow = if piece == 1 {
                let state = place.state(recipes, gpu, pos + begin, piece);
                let step = token.single.replay(gpu, &state);
                submissions
                    .run(Kind::Single, &[&step], worth, on_prompt)
                    .await?
            } else {
                let part = Piece {
                    sequence,
                    place,
                    pos: pos + begin,
                    tokens: piece,
                    ends: end == tokens,
                };
                let all = prompt.recordings(&model, recipes, &part, logits).await?;
                let replays = all
                    .iter()
                    .map(|(recording, state)| recording.replay(gpu, state));
                let all: Vec<_> = replays.collect();
                let all: Vec<_> = all.iter().collect();
                submissions
                    .run(Kind::Several, &all, worth, on_prompt)
                    .await?
            };
            if flow.is_break() {
                break;
            }
            if prompt.makes_layer_rows(piece) {
                *layer_rows = pos + end;
            }
            begin = end;
            if submissions.take_halving() {
                prompt.halve(piece);
                at_once = prompt.piece(tokens - begin);
            }
        }
        submissions.land_all().await
    }
}
