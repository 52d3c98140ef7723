//! Files that commands write beside what they print: pictures, and the report.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::error::CliError;
use super::output::{file_error, note};
use crate::files::NewFile;

/// The file of `--svg`, or that of a report. It is begun before anything is measured, so that a wrong name costs nothing.
pub(super) struct Picture {
    path: PathBuf,
    file: NewFile,
}

impl Picture {
    /// Begins the file; what is there stays until it is finished.
    ///
    /// # Errors
    /// [`CliError::WriteFile`].
    pub(super) fn begin(path: &Path) -> Result<Self, CliError> {
        let file = NewFile::create(path).map_err(|source| file_error(path, source))?;
        Ok(Self {
            path: path.to_owned(),
            file,
        })
    }

    /// Writes the next lines.
    ///
    /// # Errors
    /// [`CliError::WriteFile`].
    pub(super) fn add(&mut self, text: &str) -> Result<(), CliError> {
        let written = self.file.write_all(text.as_bytes());
        written.map_err(|source| file_error(&self.path, source))
    }

    /// Writes the last lines, gives the file its name, and says `what` it shows.
    ///
    /// # Errors
    /// [`CliError::WriteFile`].
    pub(super) fn finish(mut self, text: &str, what: &str) -> Result<(), CliError> {
        self.add(text)?;
        let finished = self.file.finish();
        finished.map_err(|source| file_error(&self.path, source))?;
        note(format_args!("{what}: {}", self.path.display()));
        Ok(())
    }
}
