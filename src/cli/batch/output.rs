//! The answers of a batch: a file to which whole lines are added, and which tells after a kill what is answered already.

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use super::input::Index;
use super::line::ID;
use crate::cli::batch_error::BatchError;
use crate::cli::error::CliError;
use crate::cli::output;
use crate::files;
use crate::server::Answered;

/// The outcome of a request.
pub(super) struct Answer {
    pub(super) id: String,
    pub(super) custom_id: String,
    pub(super) answered: Answered,
}

impl Answer {
    pub(super) fn is_error(&self) -> bool {
        self.answered.status != 200
    }

    /// The line, in OpenAI's batch format.
    fn line(&self) -> String {
        let mut line: Value = json!({
            "id": self.id,
            "custom_id": self.custom_id,
            "response": {
                "status_code": self.answered.status,
                "request_id": self.answered.request_id,
                "body": self.answered.body,
            },
            "error": null,
        });
        for (name, value) in &self.answered.notes {
            line["response"]["headers"][name] = value.as_str().into();
        }
        format!("{line}\n")
    }
}

/// The fields that are looked at in a line that is there.
#[derive(Deserialize)]
struct Kept {
    id: String,
    custom_id: String,
    response: Response,
}

#[derive(Deserialize)]
struct Response {
    status_code: u16,
    body: Body,
}

#[derive(Deserialize)]
struct Body {
    model: Option<String>,
}

/// The contents of a file of answers.
#[derive(Default)]
pub(super) struct Found {
    /// The number of these that are errors.
    pub(super) errors: usize,
    /// Whether the end of a line was missing, as a kill leaves it.
    pub(super) cut: bool,
}

/// The requests and the model that the answers are compared with.
pub(super) struct Expected<'a> {
    pub(super) index: &'a mut Index,
    /// The name of the file of requests.
    pub(super) input: String,
    /// The name of the model.
    pub(super) model: String,
    /// Whether answers have to be in the order of the requests.
    pub(super) ordered: bool,
}

/// The output that answers are written to.
pub(super) struct Output {
    path: String,
    /// A file, which is locked, or a device. `None` is standard output.
    file: Option<File>,
}

impl Output {
    /// Opens and locks a file, or takes standard output for `-`. Nothing is changed.
    ///
    /// # Errors
    /// [`BatchError::File`] or [`BatchError::InUse`].
    pub(super) fn open(path: &Path) -> Result<Self, BatchError> {
        let name = path.display().to_string();
        if path == Path::new("-") {
            return Ok(Self {
                path: "standard output".to_owned(),
                file: None,
            });
        }
        let mut options = OpenOptions::new();
        options.write(true);
        // Lines of devices and pipes are not read back.
        let is_file = !files::is_device(path);
        if is_file {
            files::make_private(options.read(true).create(true));
        }
        let file = options.open(path).map_err(failed("cannot open", &name))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => return Err(BatchError::InUse { path: name }),
            Err(TryLockError::Error(source)) if is_file => {
                return Err(failed("cannot lock", &name)(source));
            }
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        Ok(Self {
            path: name,
            file: Some(file),
        })
    }

    /// The metadata of a regular file. Only such a file has lines that may be read back.
    fn regular(&self) -> Option<Metadata> {
        let found = self.file.as_ref()?.metadata().ok();
        found.filter(Metadata::is_file)
    }

    /// Whether a run that ends early can be gone on with.
    pub(super) fn is_resumable(&self) -> bool {
        self.regular().is_some()
    }

    /// Checks that no answers are there, where they could not be told apart.
    pub(super) fn check_new(&self) -> Result<(), BatchError> {
        match self.regular() {
            Some(found) if found.len() > 0 => {
                let path = self.path.clone();
                Err(BatchError::NotEmpty { path })
            }
            _ => Ok(()),
        }
    }

    /// Notes in the index which answers are there. What a kill has left of a line is cut off.
    ///
    /// # Errors
    /// [`BatchError::Other`] or [`BatchError::NotOrdered`]; then nothing was changed.
    pub(super) fn resume(&self, expected: &mut Expected<'_>) -> Result<Found, BatchError> {
        let mut found = Found::default();
        let Some(mut file) = self.file.as_ref().filter(|_| self.is_resumable()) else {
            return Ok(found);
        };
        let failed_read = failed("cannot read", &self.path);
        let failed_write = failed("cannot write", &self.path);
        let mut from = BufReader::new(file);
        from.seek(SeekFrom::Start(0)).map_err(&failed_read)?;
        let (mut number, mut whole, mut last) = (0, 0, 0);
        let mut bytes = vec![];
        // The last line may lack its line break.
        let mut is_whole = true;
        while is_whole {
            bytes.clear();
            let read = from.read_until(b'\n', &mut bytes);
            if read.map_err(&failed_read)? == 0 {
                break;
            }
            number += 1;
            is_whole = bytes.ends_with(b"\n");
            match self.kept(&bytes, number, expected, &mut found) {
                Ok(asked) if expected.ordered && asked < last => {
                    return Err(BatchError::NotOrdered {
                        path: self.path.clone(),
                        line: number,
                        input: expected.input.clone(),
                    });
                }
                Ok(asked) => last = asked,
                Err(_) if !is_whole && is_ours(&bytes) => {
                    found.cut = true;
                    break;
                }
                Err(error) => return Err(error),
            }
            whole += bytes.len() as u64;
        }
        if found.cut {
            file.set_len(whole).map_err(&failed_write)?;
        }
        file.seek(SeekFrom::End(0)).map_err(&failed_write)?;
        if !is_whole && !found.cut {
            file.write_all(b"\n").map_err(&failed_write)?;
        }
        Ok(found)
    }

    /// Notes the answer in a line; returns the line of its request.
    fn kept(
        &self,
        bytes: &[u8],
        line: u64,
        expected: &mut Expected<'_>,
        found: &mut Found,
    ) -> Result<u64, BatchError> {
        let other = |problem| BatchError::Other {
            path: self.path.clone(),
            line,
            problem,
            input: expected.input.clone(),
        };
        let kept: Kept = serde_json::from_slice(bytes)
            .map_err(|error| other(format!("it is no answer of a batch ({error})")))?;
        if let Some(model) = kept.response.body.model
            && model != expected.model
        {
            let own = &expected.model;
            let problem = format!("it is an answer of the model '{model}', and not of '{own}'");
            return Err(other(problem));
        }
        let asked = expected.index.answered(&kept.custom_id, &kept.id);
        let asked = asked.map_err(other)?;
        found.errors += usize::from(kept.response.status_code != 200);
        Ok(asked)
    }

    /// Adds an answer, in one piece.
    ///
    /// # Errors
    /// [`CliError::WriteFile`]; the next run cuts off what was written of it.
    pub(super) fn write(&mut self, answer: &Answer) -> Result<(), CliError> {
        let line = answer.line();
        let Some(file) = &mut self.file else {
            return output::print_json(&line);
        };
        let written = file.write_all(line.as_bytes());
        written.map_err(|source| CliError::WriteFile {
            path: self.path.clone(),
            source,
        })
    }
}

/// Makes the error of an operation on a file. `what` names the operation.
fn failed(what: &'static str, path: &str) -> impl Fn(io::Error) -> BatchError {
    move |source| {
        let path = path.to_owned();
        BatchError::File { what, path, source }
    }
}

/// Whether `bytes` may be the beginning of an answer's line, with the zeros that a system leaves which was switched off.
fn is_ours(bytes: &[u8]) -> bool {
    let begin = format!("{{\"id\":\"{ID}");
    let zeros = bytes.iter().rev().take_while(|byte| **byte == 0).count();
    let text = &bytes[..bytes.len() - zeros];
    let length = text.len().min(begin.len());
    text[..length] == begin.as_bytes()[..length]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_be_the_beginning_of_an_answer_is_cut_off() {
        for ours in [
            "{",
            "{\"id\":\"batch_r",
            "{\"id\":\"batch_req_00\",\"custom",
            "{\"id\":\"b\0\0\0",
            "\0\0",
        ] {
            assert!(is_ours(ours.as_bytes()), "{ours}");
        }
        for others in [
            "My diary",
            "{\"id\":\"7\"",
            "{\"custom_id\": \"a\"",
            " {\"id\"",
        ] {
            assert!(!is_ours(others.as_bytes()), "{others}");
        }
    }
}
