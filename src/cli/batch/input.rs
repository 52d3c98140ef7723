//! The requests of a batch, line by line: checked before anything is computed, and then read again while there is room for them.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use serde_json::Value;

use super::line::{self, Line, MOST_BYTES};
use crate::cli::batch_error::{BatchError, Problems};
use crate::cli::error::CliError;

/// The lines of a file or of standard input, with their numbers.
pub(super) struct Lines {
    from: Box<dyn BufRead + Send>,
    path: String,
    /// The number of the line that was read last.
    number: u64,
    buffer: Vec<u8>,
}

impl Lines {
    /// The lines of a file, or of standard input for `-`.
    pub(super) fn open(path: &Path) -> Result<Self, CliError> {
        let mut name = path.display().to_string();
        let from: Box<dyn BufRead + Send> = if path == Path::new("-") {
            name = "standard input".to_owned();
            Box::new(BufReader::new(io::stdin()))
        } else {
            let file = File::open(path).map_err(CliError::unread(&name))?;
            Box::new(BufReader::new(file))
        };
        Ok(Self {
            from,
            path: name,
            number: 0,
            buffer: vec![],
        })
    }

    /// The next line that holds more than spaces, without its end.
    ///
    /// # Errors
    /// [`CliError::ReadText`], or a line that is too long.
    fn next(&mut self) -> Result<Option<&[u8]>, CliError> {
        loop {
            self.buffer.clear();
            let read = (&mut self.from)
                .take(MOST_BYTES as u64 + 1)
                .read_until(b'\n', &mut self.buffer);
            if read.map_err(CliError::unread(&self.path))? == 0 {
                return Ok(None);
            }
            self.number += 1;
            if self.buffer.len() > MOST_BYTES {
                let problem = format!("has more than {MOST_BYTES} bytes; expected fewer");
                return Err(self.wrong(problem).into());
            }
            let mark = "\u{feff}".as_bytes();
            let is_marked = self.number == 1 && self.buffer.starts_with(mark);
            let start = if is_marked { mark.len() } else { 0 };
            if !self.buffer[start..].trim_ascii().is_empty() {
                return Ok(Some(self.buffer[start..].trim_ascii()));
            }
        }
    }

    fn wrong(&self, problem: String) -> BatchError {
        BatchError::Lines {
            path: self.path.clone(),
            problems: Problems::one(self.number, problem),
        }
    }
}

/// A request that was found.
pub(super) struct Asked {
    /// The number of the request's line.
    pub(super) line: u64,
    /// The id that the answer names the request by.
    id: String,
    /// Whether its answer is there.
    answered: bool,
}

/// All requests of a file by what stands for their `custom_id`, or those of standard input so far.
#[derive(Default)]
pub(super) struct Index {
    asked: HashMap<u128, Asked>,
    /// The names of models that are asked for, with the first line of each and the number of its lines.
    models: BTreeMap<String, (u64, usize)>,
}

impl Index {
    /// The number of requests.
    pub(super) fn len(&self) -> usize {
        self.asked.len()
    }

    /// Notes a request.
    fn add(&mut self, number: u64, line: &Line) -> Result<(), String> {
        let asked = Asked {
            line: number,
            id: line.id(),
            answered: false,
        };
        if let Some(model) = line.body.get("model").and_then(Value::as_str) {
            let found = self.models.entry(model.to_owned()).or_insert((number, 0));
            found.1 += 1;
        }
        match self.asked.insert(line::key(&line.custom_id), asked) {
            None => Ok(()),
            Some(first) => Err(format!(
                "has the custom_id of line {}, \"{}\"; expected one of its own",
                first.line, line.custom_id
            )),
        }
    }

    /// Checks that all requests which name a model name this one.
    ///
    /// # Errors
    /// [`BatchError::OtherModel`].
    pub(super) fn check_models(&self, path: &Path, own: &str) -> Result<(), BatchError> {
        let mut others = self.models.iter().filter(|(name, _)| *name != own);
        let Some((name, (line, _))) = others.next() else {
            return Ok(());
        };
        let all = self.models.iter().filter(|(name, _)| *name != own);
        Err(BatchError::OtherModel {
            path: path.display().to_string(),
            line: *line,
            name: name.clone(),
            lines: all.map(|(_, (_, lines))| lines).sum(),
            own: own.to_owned(),
        })
    }

    /// Notes that the answer named `id` to the request with this `custom_id` is there; returns the request's line.
    ///
    /// # Errors
    /// If there is no such request, or the answer is there twice.
    pub(super) fn answered(&mut self, custom_id: &str, id: &str) -> Result<u64, String> {
        let Some(asked) = self.asked.get_mut(&line::key(custom_id)) else {
            return Err(format!(
                "it answers a request that is not asked, \"{custom_id}\""
            ));
        };
        if asked.id != id {
            return Err(format!(
                "it answers another request named \"{custom_id}\" than line {} asks",
                asked.line
            ));
        }
        match std::mem::replace(&mut asked.answered, true) {
            true => Err(format!("it answers \"{custom_id}\" a second time")),
            false => Ok(asked.line),
        }
    }

    /// The number of requests that are answered.
    pub(super) fn done(&self) -> usize {
        self.asked.values().filter(|asked| asked.answered).count()
    }

    /// Whether the answers that are there are those of the first lines.
    pub(super) fn is_prefix(&self) -> bool {
        let done = self.asked.values().filter(|asked| asked.answered);
        let last = done.map(|asked| asked.line).max().unwrap_or(0);
        let mut open = self.asked.values().filter(|asked| !asked.answered);
        open.all(|asked| asked.line > last)
    }
}

/// Checks all lines of a file.
///
/// # Errors
/// [`BatchError::Lines`] with all that is wrong, [`BatchError::Empty`], or what the system says.
pub(super) fn check(path: &Path) -> Result<Index, CliError> {
    let mut lines = Lines::open(path)?;
    let mut index = Index::default();
    let mut problems = Problems::default();
    while let Some(bytes) = lines.next()? {
        let read = line::read(bytes);
        let number = lines.number;
        if let Err(problem) = read.and_then(|line| index.add(number, &line)) {
            problems.add(number, problem);
        }
    }
    let path = lines.path;
    match (problems.all, index.len()) {
        (0, 0) => Err(BatchError::Empty { path }.into()),
        (0, _) => Ok(index),
        _ => Err(BatchError::Lines { path, problems }.into()),
    }
}

/// The requests that are not answered yet, in order.
pub(super) struct Requests {
    lines: Lines,
    index: Index,
    /// Whether all requests are in the index.
    checked: bool,
}

impl Requests {
    /// The requests of a file that was checked, or of standard input, of which nothing is known.
    pub(super) fn open(path: &Path, index: Option<Index>) -> Result<Self, CliError> {
        Ok(Self {
            lines: Lines::open(path)?,
            checked: index.is_some(),
            index: index.unwrap_or_default(),
        })
    }

    /// The next one.
    ///
    /// # Errors
    /// [`BatchError::Lines`] where a line of standard input is none, [`BatchError::Changed`], or what the system says.
    pub(super) fn next(&mut self) -> Result<Option<Line>, CliError> {
        loop {
            let Some(bytes) = self.lines.next()? else {
                return Ok(None);
            };
            let read = line::read(bytes);
            let number = self.lines.number;
            if !self.checked {
                let added = read.and_then(|line| {
                    self.index.add(number, &line)?;
                    Ok(line)
                });
                return added
                    .map(Some)
                    .map_err(|problem| self.lines.wrong(problem).into());
            }
            let changed = || BatchError::Changed {
                path: self.lines.path.clone(),
                line: number,
            };
            let line = read.map_err(|_| changed())?;
            match self.index.asked.get(&line::key(&line.custom_id)) {
                Some(asked) if asked.answered => {}
                Some(asked) if asked.id == line.id() => return Ok(Some(line)),
                _ => return Err(changed().into()),
            }
        }
    }
}
