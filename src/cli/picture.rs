//! Pictures that commands write into files beside what they print.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::error::CliError;
use super::output::note;
use crate::files::NewFile;

/// The file of `--svg`. It is begun before anything is measured, so that a wrong name costs nothing.
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
        let file = NewFile::create(path).map_err(|source| failed(path, source))?;
        Ok(Self {
            path: path.to_owned(),
            file,
        })
    }

    /// Writes it, and says `what` it shows.
    ///
    /// # Errors
    /// [`CliError::WriteFile`].
    pub(super) fn finish(mut self, svg: &str, what: &str) -> Result<(), CliError> {
        self.file
            .write_all(svg.as_bytes())
            .and_then(|()| self.file.finish())
            .map_err(|source| failed(&self.path, source))?;
        note(format_args!("{what}: {}", self.path.display()));
        Ok(())
    }
}

fn failed(path: &Path, source: io::Error) -> CliError {
    CliError::WriteFile {
        path: path.display().to_string(),
        source,
    }
}
