//! Replacing a session file by a shorter one that holds only what still counts.

use std::io::{self, Seek, SeekFrom};

use super::kept::{Change, Extent, Kept};
use super::opening::{self, failed};
use super::record::{self, AROUND, Kind};
use super::{Group, SessionFile, SessionFileError};
use crate::files::NewFile;

/// Files that are shorter are left as they are.
const LEAST: u64 = 1 << 20;

impl SessionFile {
    /// Replaces the file, if it is long and more than half of it is no longer needed. A kill leaves the one or the other, whole.
    pub(super) fn shorten(&mut self) -> Result<(), SessionFileError> {
        let extents = self.kept.extents.len() as u64;
        let needed = self.header
            + self.kept.rows() as u64 * self.identity.row_bytes()
            + extents * AROUND
            + self.kept.tokens.len() as u64 * 4
            + self.kept.data.len() as u64;
        if self.end < LEAST || needed > self.end / 2 {
            return Ok(());
        }
        let write_failed = failed(&self.path, "cannot shorten");
        let new = NewFile::create(&self.path).map_err(&write_failed)?;
        let mut file = new.handle().map_err(&write_failed)?;
        // A second process that opens the new file finds it locked.
        file.try_lock()
            .map_err(|error| write_failed(io::Error::from(error)))?;
        let header = opening::header(&self.identity);
        io::Write::write_all(&mut file, &header).map_err(&write_failed)?;
        let mut group = Group::begin(&self.path, "cannot shorten", &mut file, self.header)?;
        let mut copied = Kept::default();
        self.copy(&mut group)?;
        let counts = record::counts(self.kept.tokens.len(), self.kept.rows());
        let (changes, end) = group.commit(&counts)?;
        if !changes.into_iter().all(|change| copied.apply(change)) {
            return Ok(());
        }
        file.seek(SeekFrom::Start(end)).map_err(&write_failed)?;
        new.finish().map_err(&write_failed)?;
        opening::sync_folder(&self.path);
        (self.file, self.end, self.kept) = (file, end, copied);
        Ok(())
    }

    /// Copies what counts into the group of another file.
    fn copy(&mut self, group: &mut Group<'_>) -> Result<(), SessionFileError> {
        let tokens = record::tokens(&self.kept.tokens);
        let change = Change::Tokens(self.kept.tokens.clone());
        group.put(Kind::Tokens, &tokens, change)?;
        let mut writers = self.kept.writers.clone().into_iter().peekable();
        for i in 0..self.kept.extents.len() {
            let Extent { first, end, .. } = self.kept.extents[i];
            while let Some((_, writer)) = writers.next_if(|(from, _)| *from <= first) {
                group.put_writer(writer)?;
            }
            let rows = self.rows_there(i)?;
            group.put_rows(first, end, &rows, self.header)?;
        }
        if !self.kept.data.is_empty() {
            let change = Change::Data(self.kept.data.clone());
            group.put(Kind::Data, &self.kept.data, change)?;
        }
        Ok(())
    }
}
