//! The content of a session file, and how its records change it.

use super::identity::Writer;

/// Rows that stand together in a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Extent {
    /// Position of the first row, and one past that of the last.
    pub first: usize,
    pub end: usize,
    /// The position in the file at which the record begins.
    pub at: u64,
    /// The length of what was saved before it.
    pub before: u64,
}

/// A change that a commit makes.
#[derive(Debug, Clone)]
pub(super) enum Change {
    Forget { tokens: usize, rows: usize },
    Tokens(Vec<u32>),
    Rows(Extent),
    Writer(Writer),
    Data(Vec<u8>),
}

/// The content of a session file after a commit, and the tokens that were journaled since.
#[derive(Debug, Clone, Default)]
pub(super) struct Kept {
    /// All tokens, those journaled at the end.
    pub tokens: Vec<u32>,
    /// The number of tokens that are only journaled.
    pub journaled: usize,
    /// Rows, in order and without gaps.
    pub extents: Vec<Extent>,
    /// The writers of the rows, each with the position of its first row.
    pub writers: Vec<(usize, Writer)>,
    /// The data of the application.
    pub data: Vec<u8>,
}

impl Kept {
    /// The number of tokens with rows.
    pub(super) fn rows(&self) -> usize {
        self.extents.last().map_or(0, |extent| extent.end)
    }

    /// Tokens of the last commit.
    pub(super) fn committed(&self) -> &[u32] {
        &self.tokens[..self.tokens.len() - self.journaled]
    }

    /// The rows up to `rows` that stand in whole records.
    pub(super) fn whole_rows(&self, rows: usize) -> usize {
        let whole = self.extents.iter().take_while(|extent| extent.end <= rows);
        whole.last().map_or(0, |extent| extent.end)
    }

    /// Drops the journaled tokens, which a commit replaces.
    pub(super) fn drop_journal(&mut self) {
        self.tokens.truncate(self.tokens.len() - self.journaled);
        self.journaled = 0;
    }

    /// Takes tokens that are journaled.
    pub(super) fn journal(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
        self.journaled += tokens.len();
    }

    /// Makes a change; whether it can be made.
    pub(super) fn apply(&mut self, change: Change) -> bool {
        match change {
            Change::Forget { tokens, rows } => {
                let fits = tokens <= self.tokens.len() && rows == self.whole_rows(rows);
                self.tokens.truncate(tokens);
                self.extents.retain(|extent| extent.end <= rows);
                self.writers.retain(|(first, _)| *first < rows);
                return fits && rows <= tokens;
            }
            Change::Tokens(tokens) => self.tokens.extend(tokens),
            Change::Rows(extent) => {
                let fits = extent.first == self.rows() && extent.first < extent.end;
                self.extents.push(extent);
                return fits;
            }
            Change::Writer(writer) => self.writers.push((self.rows(), writer)),
            Change::Data(data) => self.data = data,
        }
        true
    }
}
