//! An answer whose tokens are chosen on the host.

use std::ops::ControlFlow;

use web_time::Instant;

use super::{Answer, GenerateStats, Session};
use crate::engine::EngineError;
use crate::engine::backend::{OnPrompt, OnToken, check_finite};
use crate::engine::chooser::Chooser;
use crate::engine::draft::{Drafter, Proposal, Verified};

impl Session {
    /// Generates like [`generate_watched`](Self::generate_watched), with each token chosen by `chooser` from its row of logits. So the
    /// device waits for the host after each step, and the rows are read back. A step has drafts, where they pay: the rows behind them are
    /// there already if the chooser chooses the same.
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
        let answer = match self.begin(prompt, limit, Some(keep), on_prompt).await? {
            ControlFlow::Continue(answer) => answer,
            ControlFlow::Break(stats) => return Ok(stats),
        };
        let mut choosing = Choosing {
            chooser,
            context: self.tokens.clone(),
            answer,
            on_token,
            row,
        };
        if choosing.answer.limit > 0 {
            let mut flow = choosing.choose()?;
            while flow.is_continue() && choosing.left() > 0 {
                flow = self.step(&mut choosing).await?;
            }
        }
        Ok(self.end(choosing.answer))
    }

    /// Computes the last token and drafts behind it, and chooses a token behind each, up to the first that is not the draft.
    async fn step(&mut self, choosing: &mut Choosing<'_>) -> Result<ControlFlow<()>, EngineError> {
        let began = Instant::now();
        let last = choosing.context.len() - 1;
        let drafts = self.drafts_behind(choosing).await?;
        let tokens = [&choosing.context[last..], &drafts].concat();
        let unwatched = &mut |_| ControlFlow::Continue(());
        let (mut flow, mut accepted) = (Ok(ControlFlow::Continue(())), 0);
        let on_row = &mut |i: usize, logits: &[f32]| {
            flow = choosing.take(logits);
            let chosen = choosing.context.last();
            if !matches!(flow, Ok(ControlFlow::Continue(()))) || drafts.get(i) != chosen {
                return ControlFlow::Break(());
            }
            accepted += 1;
            ControlFlow::Continue(())
        };
        self.backend
            .logits_watched(&tokens, last, unwatched, on_row)
            .await?;
        if let Some(drafter) = &mut self.drafts {
            drafter.verified(&Verified {
                drafted: drafts.len(),
                accepted,
                took: began.elapsed(),
            });
        }
        flow
    }

    /// The drafts of the next step.
    async fn drafts_behind(&mut self, choosing: &Choosing<'_>) -> Result<Vec<u32>, EngineError> {
        let Some(drafts) = &mut self.drafts else {
            return Ok(vec![]);
        };
        let context = &choosing.context;
        let most = (choosing.left() - 1).min(self.backend.ready_drafts());
        Ok(match drafts.propose(context, most) {
            Proposal::None => vec![],
            Proposal::Ids(ids) => ids,
            Proposal::Predict(number) => self.backend.predict(context, number).await?,
        })
    }
}

/// An answer while its tokens are chosen.
struct Choosing<'a> {
    chooser: &'a mut dyn Chooser,
    /// All tokens so far.
    context: Vec<u32>,
    answer: Answer,
    on_token: &'a mut OnToken<'a>,
    /// The logits behind the last token, which the chooser may change.
    row: Vec<f32>,
}

impl Choosing<'_> {
    /// The tokens that may still be chosen.
    fn left(&self) -> usize {
        self.answer.limit - self.answer.delivered
    }

    /// Takes the logits behind the last token, and chooses the next.
    fn take(&mut self, logits: &[f32]) -> Result<ControlFlow<()>, EngineError> {
        check_finite(logits, self.context.len() - 1)?;
        self.row.clear();
        self.row.extend_from_slice(logits);
        self.choose()
    }

    /// Chooses the next token, and hands it out.
    fn choose(&mut self) -> Result<ControlFlow<()>, EngineError> {
        let token = self.chooser.choose(&mut self.row, &self.context)?;
        self.chooser.accept(token)?;
        self.context.push(token);
        Ok(self.answer.take(token, self.on_token))
    }
}
