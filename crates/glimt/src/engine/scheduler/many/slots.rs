//! Sequences on their way to session files and from them. Their rows are pages that stay known, so that later requests find them.

use std::ops::Range;
use std::path::Path;

use super::Many;
use crate::engine::backend::BackendError;
use crate::engine::batch::Batch;
use crate::engine::saved::Source;
use crate::engine::scheduler::pages::{ROWS, Table};
use crate::engine::scheduler::slots::{SlotAction, SlotDone, SlotError};
use crate::engine::session::Lineage;
use crate::engine::{Engine, EngineError, SessionFile, SessionFileError};

/// A sequence of the batch, as far as its rows are there.
struct Rows<'m> {
    engine: &'m Engine,
    batch: &'m mut dyn Batch,
    sequence: u32,
    tokens: &'m [u32],
    cached: usize,
    lineage: Lineage,
}

impl Source for Rows<'_> {
    fn engine(&self) -> &Engine {
        self.engine
    }

    fn tokens(&self) -> &[u32] {
        self.tokens
    }

    fn cached(&self) -> usize {
        self.cached
    }

    fn lineage(&self) -> &Lineage {
        &self.lineage
    }

    async fn read_rows(&mut self, positions: Range<usize>) -> Result<Vec<u8>, EngineError> {
        Ok(self.batch.rows(self.sequence, positions).await?)
    }
}

impl Many {
    /// Does something with the sequence of a slot.
    pub(in crate::engine::scheduler) async fn act(
        &mut self,
        slot: usize,
        action: &SlotAction,
    ) -> Result<SlotDone, SlotError> {
        let slots = self.slots();
        if slot >= slots {
            return Err(SlotError::NoSuchSlot { slot, slots });
        }
        let free = self.seats.last().copied();
        let is_answered = self.running.iter().any(|sequence| sequence.name() == slot);
        let Some(sequence) = free.filter(|_| !is_answered) else {
            return Err(SlotError::Busy { slot });
        };
        match action {
            SlotAction::Save(path) => self.save(slot, sequence, path).await,
            SlotAction::Restore(path) => self.restore(slot, sequence, path).await,
            SlotAction::Erase => {
                let tokens = std::mem::take(&mut self.kept[slot]);
                self.pages.drop_known(&tokens);
                let (tokens, bytes) = (tokens.len(), 0);
                Ok(SlotDone { tokens, bytes })
            }
        }
    }

    /// Saves a slot, whose rows are read as those of a sequence of the batch that nobody uses.
    async fn save(
        &mut self,
        slot: usize,
        sequence: u32,
        path: &Path,
    ) -> Result<SlotDone, SlotError> {
        let mut file = SessionFile::open(path, &self.engine)?;
        let tokens = &self.kept[slot];
        let (pages, cached) = self.pages.covered(tokens);
        self.batch.write_pages(sequence, 0, &pages);
        // The application's data belong to the tokens that they were saved with.
        let data = match tokens.starts_with(file.tokens()) {
            true => file.data().to_vec(),
            false => vec![],
        };
        let mut rows = Rows {
            engine: &self.engine,
            batch: &mut *self.batch,
            sequence,
            tokens,
            cached,
            lineage: Lineage::new(),
        };
        file.save_from(&mut rows, &data).await?;
        Ok(SlotDone {
            tokens: tokens.len(),
            bytes: file.bytes(),
        })
    }

    /// Restores a slot. Its rows are written as those of a sequence of the batch that nobody uses.
    async fn restore(
        &mut self,
        slot: usize,
        sequence: u32,
        path: &Path,
    ) -> Result<SlotDone, SlotError> {
        if !path.is_file() {
            let path = path.to_owned();
            return Err(SlotError::NoFile { path });
        }
        let mut file = SessionFile::open(path, &self.engine)?;
        let (tokens, cached) = (file.tokens().to_vec(), file.cached());
        let n_ctx = self.engine.n_ctx().min(self.rows_in_all());
        file.check_room(n_ctx)?;
        let mut table = self.pages.adopt(&[]);
        if !self.pages.grow(&mut table, cached) {
            return Err(SlotError::NoRoom {
                needed: cached.next_multiple_of(ROWS),
                available: self.pages.available() * ROWS,
            });
        }
        self.batch.write_pages(sequence, 0, &table.pages);
        if let Err(error) = put_rows(&mut *self.batch, sequence, &mut file).await {
            self.depart(table.pages);
            return Err(error.into());
        }
        self.leave_known(table, &tokens[..cached]);
        self.kept[slot].clone_from(&tokens);
        Ok(SlotDone {
            tokens: tokens.len(),
            bytes: file.bytes(),
        })
    }

    /// Makes the pages of `table` known, and lets them go.
    fn leave_known(&mut self, mut table: Table, rows: &[u32]) {
        let swaps = self.pages.register(&mut table, rows);
        self.pages.register_rest(&table, rows);
        self.depart(swaps.iter().map(|swap| swap.old).collect());
        self.depart(table.pages);
    }
}

/// Writes the rows of a file to a sequence.
async fn put_rows(
    batch: &mut dyn Batch,
    sequence: u32,
    file: &mut SessionFile,
) -> Result<(), SessionFileError> {
    let failed = |error: BackendError| SessionFileError::from(EngineError::from(error));
    for extent in 0..file.extents() {
        let (first, rows) = file.rows(extent)?;
        batch
            .put_rows(sequence, first, &rows)
            .await
            .map_err(failed)?;
    }
    Ok(())
}
