//! Where a report goes: a file, which has its name when it is whole, or standard output.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::cli::error::CliError;
use crate::cli::output::{self, clean, note};
use crate::files::NewFile;

/// A report that is being written.
pub(super) enum Written {
    /// To standard output.
    Stdout,
    /// Into a file.
    File {
        /// Its name.
        path: PathBuf,
        /// What will have this name.
        file: NewFile,
    },
}

impl Written {
    /// Begins the file, or takes standard output for `-`. What is there stays until the report is whole.
    ///
    /// # Errors
    /// [`CliError::WriteFile`].
    pub(super) fn begin(path: &Path) -> Result<Self, CliError> {
        if path == Path::new("-") {
            return Ok(Self::Stdout);
        }
        let file = NewFile::create(path).map_err(|source| failed(path, source))?;
        let path = path.to_owned();
        Ok(Self::File { path, file })
    }

    /// Writes the next lines.
    ///
    /// # Errors
    /// [`CliError::WriteFile`], or those of standard output.
    pub(super) fn add(&mut self, text: &str) -> Result<(), CliError> {
        match self {
            Self::Stdout => output::page(text),
            Self::File { path, file } => {
                let written = file.write_all(clean(text).as_bytes());
                written.map_err(|source| failed(path, source))
            }
        }
    }

    /// Gives the file its name, and tells it.
    ///
    /// # Errors
    /// [`CliError::WriteFile`].
    pub(super) fn finish(self) -> Result<(), CliError> {
        if let Self::File { path, file } = self {
            file.finish().map_err(|source| failed(&path, source))?;
            note(format_args!("report: {}", path.display()));
        }
        Ok(())
    }
}

fn failed(path: &Path, source: io::Error) -> CliError {
    CliError::WriteFile {
        path: path.display().to_string(),
        source,
    }
}
