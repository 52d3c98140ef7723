//! An answer whose tokens are chosen on the host.

use std::ops::ControlFlow;

use super::{GenerateStats, Session};
use crate::engine::EngineError;
use crate::engine::backend::{OnPrompt, OnToken, check_finite};
use crate::engine::chooser::Chooser;

impl Session {
    /// Generates like [`generate_watched`](Self::generate_watched), with each token chosen by `chooser` from its row of logits. So the
    /// device waits for the host after each token, and the row is read back.
    ///
    /// # Errors
    /// The errors of [`generate_watched`](Self::generate_watched) and of `chooser`. The session then goes on after the prompt.
    pub async fn generate_chosen(
        &mut self,
        prompt: &[u32],
        chooser: &mut dyn Chooser,
        limit: usize,
        on_prompt: &mut OnPrompt<'_>,
        on_token: &mut OnToken<'_>,
    ) -> Result<GenerateStats, EngineError> {
        let mut row = vec![];
        let keep = &mut |_: usize, logits: &[f32]| {
            row = logits.to_vec();
            ControlFlow::Continue(())
        };
        let mut answer = match self.begin(prompt, limit, Some(keep), on_prompt).await? {
            ControlFlow::Continue(answer) => answer,
            ControlFlow::Break(stats) => return Ok(stats),
        };
        let mut context = self.tokens.clone();
        for step in 0..answer.limit {
            if step > 0 {
                let last = context.len() - 1;
                self.row(context[last], last, &mut row).await?;
            }
            let token = chooser.choose(&mut row, &context)?;
            chooser.accept(token)?;
            context.push(token);
            if answer.take(token, on_token).is_break() {
                break;
            }
        }
        Ok(self.end(answer))
    }

    /// Computes the token at `position`, and its logits to `row`.
    async fn row(
        &mut self,
        token: u32,
        position: usize,
        row: &mut Vec<f32>,
    ) -> Result<(), EngineError> {
        let unwatched = &mut |_| ControlFlow::Continue(());
        let keep = &mut |_: usize, logits: &[f32]| {
            row.clear();
            row.extend_from_slice(logits);
            ControlFlow::Continue(())
        };
        self.backend
            .logits_watched(&[token], position, unwatched, keep)
            .await?;
        Ok(check_finite(row, position)?)
    }
}
