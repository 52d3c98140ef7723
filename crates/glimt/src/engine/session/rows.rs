//! The cache rows of a session: read, written again, and copied to a second session.

use std::ops::Range;

use super::{Lineage, Session};
use crate::engine::EngineError;
use crate::engine::draft::Drafts;

impl Session {
    /// The number of tokens that have their cache rows. The others are computed with the next prompt.
    pub fn cached(&self) -> usize {
        self.cached
    }

    /// Bytes of a token's cache rows in all layers.
    pub fn row_bytes(&self) -> usize {
        self.engine.model().cache_bytes_per_token() as usize
    }

    /// The cache rows of the tokens at `positions`, exactly as they are: layer after layer, f16, [`row_bytes`](Self::row_bytes) a token.
    /// All of it is held in memory, so many are read in pieces.
    ///
    /// # Errors
    /// [`EngineError::RowsMissing`] beyond [`cached`](Self::cached), or what the device reports.
    pub async fn read_rows(&mut self, positions: Range<usize>) -> Result<Vec<u8>, EngineError> {
        if positions.end > self.cached {
            return Err(EngineError::RowsMissing {
                asked: positions.end,
                cached: self.cached,
            });
        }
        Ok(self.backend.read_rows(positions).await?)
    }

    /// Forgets everything and goes on after `tokens`, which have no cache rows yet. Rows that were kept elsewhere can be
    /// [given back](Self::push_rows); the others are computed with the next prompt.
    ///
    /// # Errors
    /// [`EngineError::UnknownToken`] or [`EngineError::PromptTooLong`]; the session is then as it was.
    pub fn resume(&mut self, tokens: &[u32]) -> Result<(), EngineError> {
        if !tokens.is_empty() {
            self.engine.check_tokens(tokens, 0)?;
        }
        self.tokens.clear();
        self.tokens.extend_from_slice(tokens);
        self.cached = 0;
        self.lineage = Lineage::new();
        Ok(())
    }

    /// Gives the next tokens without cache rows theirs, as [`read_rows`](Self::read_rows) gave them of the same tokens,
    /// model and context before them.
    ///
    /// # Errors
    /// [`EngineError::RowsWithoutTokens`], bytes that are no whole rows, or what the device reports; the session is then as it was.
    pub async fn push_rows(&mut self, rows: &[u8]) -> Result<(), EngineError> {
        let end = self.cached + rows.len() / self.row_bytes().max(1);
        if end > self.tokens.len() {
            return Err(EngineError::RowsWithoutTokens {
                rows: end,
                tokens: self.tokens.len(),
            });
        }
        self.backend.write_rows(self.cached, rows).await?;
        self.cached = end;
        Ok(())
    }

    /// A second session that goes on from the same tokens. Their rows are copied, on a GPU without leaving it, so nothing is computed
    /// again; it takes as much memory as this one.
    ///
    /// # Errors
    /// The error that a second cache does not fit, or the error that the device reports.
    pub async fn branch(&self) -> Result<Session, EngineError> {
        let backend = self.backend.branch(self.cached).await?;
        Ok(Session {
            drafts: Drafts::new(&self.draft_options, &backend.draft_means())?,
            draft_options: self.draft_options,
            engine: self.engine.clone(),
            backend,
            tokens: self.tokens.clone(),
            cached: self.cached,
            lineage: self.lineage.branch(self.cached),
        })
    }

    /// The lineage of the rows, which tells whether they are the same as those that were kept elsewhere.
    pub(in crate::engine) fn lineage(&self) -> &Lineage {
        &self.lineage
    }
}
