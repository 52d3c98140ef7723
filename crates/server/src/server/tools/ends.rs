//! The ends of calls: what may stand between the arguments of a call and the text or the call that follows.

use super::Format;
use super::heads::first;
use super::marks::{KEY_BEGIN, PYTHON_TAG};
use super::parser::{Parser, State};
use super::tags::{settled, without_begun};

/// Bytes of the longest remark between the arguments of a call and the mark that ends the call. A longer text is one of the answer.
const LONGEST_REMARK: usize = 200;

impl Parser {
    /// Goes on with arguments in tags, or ends the object.
    pub(super) fn behind_json(&mut self) -> Option<()> {
        let rest = self.held.trim_start();
        let goes_on = rest.starts_with(KEY_BEGIN);
        if !goes_on && !self.over && KEY_BEGIN.starts_with(rest) {
            return None;
        }
        match goes_on {
            true => self.state = State::Arguments,
            false => {
                self.end_arguments(true);
                self.loose = true;
            }
        }
        Some(())
    }

    /// Leaves out what follows damaged arguments, up to the next mark.
    pub(super) fn damaged(&mut self) -> Option<()> {
        let marks = [self.format.begins(), self.format.ends()].concat();
        let found = first(&self.held, &marks);
        let end = match found {
            Some((at, _)) => at,
            None if self.over => self.held.len(),
            None => settled(&self.held, &marks),
        };
        self.held.drain(..end);
        (found.is_some() || self.over).then(|| self.state = State::Behind)
    }

    /// The length of a remark between the object of a call and the mark that ends the call, which belongs to no text. It is `Some(None)` while
    /// the mark may still come.
    fn remark(&self, rest: &str) -> Option<Option<usize>> {
        let marks = [self.format.begins(), self.format.ends()].concat();
        let found = first(rest, &marks);
        let end = match found {
            Some((at, _)) => at,
            None => settled(rest, &marks),
        };
        if end > LONGEST_REMARK || rest[..end].contains("\n\n") {
            return None;
        }
        match found {
            Some((_, mark)) => self.format.ends().contains(&mark).then_some(Some(end)),
            None => (!self.over).then_some(None),
        }
    }

    /// Leaves out marks that are doubled behind a call, and remarks before them.
    pub(super) fn behind(&mut self) -> Option<()> {
        let rest = self.held.trim_start();
        let blank = self.held.len() - rest.len();
        let ends = self.format.ends();
        let loose: &[&str] = match self.loose {
            // Llama writes several calls with semicolons between them.
            true if self.format == Format::Llama => &[";", "}", "```", PYTHON_TAG],
            true => &["}", ")", "```"],
            false => &[],
        };
        if let Some(mark) = ends.iter().find(|mark| rest.starts_with(*mark)) {
            self.held.drain(..blank + mark.len());
            self.loose = false;
        } else if let Some(mark) = loose.iter().find(|mark| rest.starts_with(*mark)) {
            self.held.drain(..blank + mark.len());
        } else if self.loose && rest.starts_with('{') {
            // Another call in the same tags.
            self.before = self.held.drain(..blank).collect();
            self.state = State::Head;
        } else if let Some(more) = rest.strip_prefix(',').filter(|_| self.loose) {
            match more.trim_start() {
                "" if !self.over => return None,
                more if more.starts_with('{') => {
                    let end = self.held.len() - more.len();
                    self.before = self.held.drain(..end).collect();
                    self.state = State::Head;
                }
                // More of the object that the arguments stood in.
                _ => self.state = State::Damaged,
            }
        } else if !self.over && ends.iter().chain(loose).any(|mark| mark.starts_with(rest)) {
            return None;
        } else if self.loose
            && !ends.is_empty()
            && let Some(remark) = self.remark(rest)
        {
            self.held.drain(..blank + remark?);
        } else if self.over && !rest.is_empty() && without_begun(rest, ends) == 0 {
            // An end that is half written.
            self.held.clear();
            self.state = State::Outside;
        } else {
            self.state = State::Outside;
        }
        Some(())
    }
}
