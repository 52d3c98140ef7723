//! JSON schemas as people and their libraries write them, rewritten to what llguidance takes.
//!
//! A schema may have any keyword of any draft. [`taken`] writes one for the same values in the keywords that llguidance follows: each
//! reference names a definition of the rewritten schema, tuples have the form of draft 2020-12, and a few keywords are expressed by others.
//! Demands that no grammar can enforce are left out and returned as [`Lost`], so that whoever asks is told of them. The rewritten schema
//! accepts all that the original accepts, except for integers and lengths at the very end of their range.

mod arrays;
mod disjoint;
mod lark;
mod numbers;
mod objects;
mod patterns;
mod probe;
mod references;
mod size;
mod strings;
mod walk;

use std::fmt;

use serde_json::Value;

use crate::effort::Stopped;

pub(super) use lark::{end, end_of_line, rewritten};
pub(super) use walk::taken;

/// A keyword that is not enforced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// The keyword, with its value where that says more.
    pub keyword: String,
    /// The keyword's place: a pointer into the schema, such as `#/properties/tags`.
    pub place: String,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.keyword, self.place)
    }
}

/// Why a value is no JSON schema that answers can be kept to.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SchemaError {
    /// Something else stands where a schema is expected.
    #[error("{place} is {found}, where a schema is expected: an object, true or false")]
    NoSchema {
        /// The place in the schema.
        place: String,
        /// The value, shortened.
        found: String,
    },
    /// The value of a keyword is of a wrong kind.
    #[error("'{keyword}' at {place} is {found}, but must be {expected}")]
    Keyword {
        /// The keyword.
        keyword: String,
        /// The place in the schema.
        place: String,
        /// The value, shortened.
        found: String,
        /// A description of the values that are allowed.
        expected: &'static str,
    },
    /// A reference names a schema elsewhere.
    #[error(
        "the reference {reference:?} at {place} names a schema elsewhere, and nothing is loaded; put that schema into $defs and refer to #/$defs/NAME"
    )]
    Elsewhere {
        /// The reference.
        reference: String,
        /// The place in the schema.
        place: String,
    },
    /// A reference names nothing.
    #[error("the reference {reference:?} at {place} names nothing in the schema")]
    Missing {
        /// The reference.
        reference: String,
        /// The place in the schema.
        place: String,
    },
    /// A schema refers to itself without a property or an item in between.
    #[error(
        "the reference {reference:?} at {place} leads back to itself without a property or an item in between, so no value is ever described"
    )]
    Endless {
        /// The reference.
        reference: String,
        /// The place in the schema.
        place: String,
    },
    /// The schema is too large.
    #[error("it has more than {most} {what}; write a smaller one")]
    Large {
        /// The name of the things that there are too many of.
        what: String,
        /// The most that is read.
        most: usize,
    },
    /// The reading of the schema was stopped.
    #[error("it was not read to its end: {0}")]
    Stopped(#[from] Stopped),
    /// References lead from one definition to the next too often.
    #[error("definitions refer to each other {most} deep at {place}; more is not read")]
    Deep {
        /// The most that is read.
        most: usize,
        /// The place at which that is exceeded.
        place: String,
    },
}

/// A schema in the keywords that llguidance follows.
#[derive(Debug, PartialEq)]
pub(super) struct Taken {
    pub(super) schema: Value,
    pub(super) lost: Vec<Lost>,
}

/// A regular expression of Python or JavaScript in the notation of the regex crate, and what of it is not enforced.
pub(super) fn regex(text: &str) -> (String, Vec<Lost>) {
    let mut found = patterns::read(text);
    let regex = found.all.swap_remove(0);
    if !found.all.is_empty() {
        found.lost.push(patterns::LOOK_AROUND);
    }
    let lost = |keyword: &str| Lost {
        keyword: keyword.to_owned(),
        place: "#".to_owned(),
    };
    (regex, found.lost.into_iter().map(lost).collect())
}

/// A value in a message, shortened.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
