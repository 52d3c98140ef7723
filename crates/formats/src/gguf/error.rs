//! Errors of reading and writing GGUF files.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use crate::quant::GgmlType;

/// Everything that opening, reading or writing a GGUF file can fail with.
///
/// Every message names the file, key or tensor, what was found, and what was expected.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The operating system refused to open, inspect or map the file.
    #[error("cannot open {path}: {source}", path = .path.display())]
    Open {
        /// The file asked for.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The operating system could not read a tensor, or the file has become shorter since it was opened.
    #[error("cannot read {tensor} from {path}: {source}; leave the file unchanged while it is in use", path = .path.display())]
    Read {
        /// The file read.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The file has been written to since it was opened.
    #[error("{path} has changed since it was opened; leave the file unchanged while it is in use, and start again", path = .path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read as a GGUF file, or other shards of its model are needed.
    #[error("{path} {problem}", path = .path.display())]
    File {
        /// The file asked for.
        path: PathBuf,
        /// The fault, and what to do about it.
        problem: String,
    },
    /// Something reaches beyond the end of the file.
    #[error("{path} is truncated or damaged: {what} needs a file of at least {need} bytes, this one has {have}; copy or download it again", path = .path.display())]
    Truncated {
        /// The file read.
        path: PathBuf,
        /// The value or table that was being read.
        what: String,
        /// The least size of a whole file, in bytes.
        need: u64,
        /// The size of this file, in bytes.
        have: u64,
    },
    /// A string, array or table longer than any real file holds.
    #[error("{what} claims {found} {unit}; at most {limit} are accepted")]
    TooLong {
        /// The string, array or table.
        what: String,
        /// The length found.
        found: u64,
        /// The cap.
        limit: u64,
        /// The things that the length counts, such as "bytes".
        unit: &'static str,
    },
    /// A string that is not UTF-8.
    #[error("{what} is not valid UTF-8")]
    InvalidUtf8 {
        /// The string.
        what: String,
    },
    /// A metadata key that is missing or appears twice, or whose value has not the type or range that was expected.
    #[error("metadata key {key} {problem}")]
    Key {
        /// The key.
        key: String,
        /// The value found, and the one expected.
        problem: String,
    },
    /// `general.alignment` is zero, not a power of two, or absurdly large.
    #[error("general.alignment is {found}; a power of two from 1 to {limit} was expected")]
    BadAlignment {
        /// The value found.
        found: u64,
        /// The cap.
        limit: u64,
    },
    /// A tensor that appears twice, or whose type, dimensions or place in the file are impossible.
    #[error("tensor {tensor} {problem}")]
    Tensor {
        /// The tensor.
        tensor: String,
        /// The property found, and the one expected.
        problem: String,
    },
    /// Two tensors share bytes.
    #[error("tensors {first} and {second} overlap in the file")]
    Overlap {
        /// The tensor that starts first.
        first: String,
        /// The tensor that starts inside the first.
        second: String,
    },
    /// The shards of a split model contradict each other.
    #[error("{path}: {key} is {found}; the other shards say {expected}", path = .path.display())]
    SplitMismatch {
        /// The shard read.
        path: PathBuf,
        /// The key, or what is counted.
        key: &'static str,
        /// The value in this shard.
        found: String,
        /// The value in the other shards.
        expected: String,
    },
    /// Writing failed.
    #[error("cannot write the GGUF file: {source}")]
    Write {
        /// The system's answer.
        #[from]
        source: std::io::Error,
    },
    /// More or fewer data bytes were given to the writer than its tensors hold.
    #[error("tensor {tensor} takes {expected} bytes, {found} were written")]
    DataLength {
        /// The tensor being written ("end of file" after the last one).
        tensor: String,
        /// The byte length of the tensor.
        expected: u64,
        /// Bytes given.
        found: u64,
    },
}

/// The message for a file without bytes.
pub(super) const EMPTY: &str = "is empty (0 bytes), not a GGUF file";

impl GgufError {
    pub(super) fn file(path: &Path, problem: impl Into<String>) -> Self {
        Self::File {
            path: path.to_owned(),
            problem: problem.into(),
        }
    }

    pub(super) fn key(key: &str, problem: impl Into<String>) -> Self {
        Self::Key {
            key: key.to_owned(),
            problem: problem.into(),
        }
    }

    pub(super) fn tensor(tensor: &str, problem: impl Into<String>) -> Self {
        Self::Tensor {
            tensor: tensor.to_owned(),
            problem: problem.into(),
        }
    }

    /// The error for a key that is needed and missing.
    pub fn missing_key(key: &str, expected: &str) -> Self {
        Self::key(key, format!("({expected}) is missing"))
    }

    /// The error for a value of another type, or out of range.
    pub fn wrong_type(key: &str, found: &impl Display, expected: &str) -> Self {
        Self::key(key, format!("is {found}; {expected} was expected"))
    }

    /// The error for a tensor with no dimensions or more than four.
    pub(super) fn dimension_count(tensor: &str, found: usize) -> Self {
        let problem = format!("has {found} dimensions; 1 to 4 were expected");
        Self::tensor(tensor, problem)
    }

    /// The error for dimensions that multiply to zero or beyond what 64 bits hold.
    pub(super) fn impossible(tensor: &str, dims: &[u64]) -> Self {
        Self::tensor(tensor, format!("has impossible dimensions {dims:?}"))
    }

    /// The error for a type that glimt does not know.
    pub(super) fn unknown_type(tensor: &str, id: u32) -> Self {
        let name = ggml_type_name(id).map(|name| format!(" ({name})"));
        let name = name.unwrap_or_default();
        let supported: Vec<&str> = GgmlType::ALL.iter().map(|ty| ty.name()).collect();
        let supported = supported.join(", ");
        let problem =
            format!("has the unsupported GGML type {id}{name}; supported are {supported}");
        Self::tensor(tensor, problem)
    }
}

/// Names of the GGML types glimt does not support, so that a refusal can say what the file holds (ggml.h, `enum ggml_type`).
fn ggml_type_name(id: u32) -> Option<&'static str> {
    Some(match id {
        4 => "Q4_2, withdrawn",
        5 => "Q4_3, withdrawn",
        9 => "Q8_1",
        15 => "Q8_K",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        31..=33 => "Q4_0 in a repacked layout, withdrawn",
        34 => "TQ1_0",
        35 => "TQ2_0",
        36..=38 => "IQ4_NL in a repacked layout, withdrawn",
        40 => "NVFP4",
        41 => "Q1_0",
        42 => "Q2_0",
        _ => return None,
    })
}
