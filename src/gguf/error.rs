//! What can be wrong with a GGUF file.

use std::path::PathBuf;

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
    /// The path is a directory, pipe or device.
    #[error("{path} is {found}, not a GGUF file", path = .path.display())]
    NotAFile {
        /// The path asked for.
        path: PathBuf,
        /// "a directory", or "not a regular file".
        found: &'static str,
    },
    /// The file has no bytes.
    #[error("{path} is empty (0 bytes), not a GGUF file", path = .path.display())]
    Empty {
        /// The file asked for.
        path: PathBuf,
    },
    /// The first four bytes are not `GGUF`.
    #[error("{path} is not a GGUF file: it starts with {found}, a GGUF file starts with \"GGUF\"", path = .path.display())]
    NotGguf {
        /// The file asked for.
        path: PathBuf,
        /// Its first bytes, quoted.
        found: String,
    },
    /// The version field reads as if bytes were swapped.
    #[error("{path} is a big-endian GGUF file; only little-endian files are supported: convert the model again without --bigendian", path = .path.display())]
    BigEndian {
        /// The file asked for.
        path: PathBuf,
    },
    /// A version of the container other than 2 and 3.
    #[error("{path} has GGUF version {found}; versions 2 and 3 are supported: convert the model again, by a current llama.cpp", path = .path.display())]
    Version {
        /// The file asked for.
        path: PathBuf,
        /// Its version field.
        found: u32,
    },
    /// Something reaches beyond the end of the file.
    #[error("{path} is truncated or damaged: {what} needs a file of at least {need} bytes, this one has {have}; copy or download it again", path = .path.display())]
    Truncated {
        /// The file read.
        path: PathBuf,
        /// What was being read.
        what: String,
        /// The least size of a whole file, in bytes.
        need: u64,
        /// The size of this file, in bytes.
        have: u64,
    },
    /// A string, array or table longer than any real file holds.
    #[error("{what} claims {found} {unit}; at most {limit} are accepted")]
    TooLong {
        /// Which string, array or table.
        what: String,
        /// Its length.
        found: u64,
        /// The cap.
        limit: u64,
        /// What the length counts, such as "bytes".
        unit: &'static str,
    },
    /// A string that is not UTF-8.
    #[error("{what} is not valid UTF-8")]
    InvalidUtf8 {
        /// Which string.
        what: String,
    },
    /// A key that appears twice.
    #[error("metadata key {key} appears twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A value type id outside 0..=12.
    #[error("metadata key {key} has the unknown value type {id}; known are 0 to 12")]
    UnknownValueType {
        /// The key.
        key: String,
        /// The type id found.
        id: u32,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("metadata key {key} holds {found} as a boolean; 0 or 1 was expected")]
    InvalidBool {
        /// The key.
        key: String,
        /// The byte found.
        found: u8,
    },
    /// Arrays of arrays of arrays, deeper than the cap.
    #[error("metadata key {key} nests arrays deeper than {limit} levels")]
    NestedTooDeep {
        /// The key.
        key: String,
        /// The cap.
        limit: usize,
    },
    /// A key needed by the caller is not in the file.
    #[error("metadata key {key} ({expected}) is missing")]
    MissingKey {
        /// The key.
        key: String,
        /// The type it should have.
        expected: &'static str,
    },
    /// A key has a value of another type, or out of range.
    #[error("metadata key {key} is {found}; {expected} was expected")]
    WrongType {
        /// The key.
        key: String,
        /// Type and value found.
        found: String,
        /// The type it should have.
        expected: &'static str,
    },
    /// `general.alignment` is zero, not a power of two, or absurdly large.
    #[error("general.alignment is {found}; a power of two from 1 to {limit} was expected")]
    BadAlignment {
        /// The value found.
        found: u64,
        /// The cap.
        limit: u64,
    },
    /// A tensor name that appears twice.
    #[error("tensor {tensor} appears twice")]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
    },
    /// A tensor with no dimensions or more than four.
    #[error("tensor {tensor} has {found} dimensions; 1 to 4 were expected")]
    DimensionCount {
        /// The tensor.
        tensor: String,
        /// The number found.
        found: u32,
    },
    /// A tensor whose dimensions multiply to zero or beyond what 64 bits hold.
    #[error("tensor {tensor} has impossible dimensions {dims:?}")]
    BadDimensions {
        /// The tensor.
        tensor: String,
        /// Its dimensions, row length first.
        dims: Vec<u64>,
    },
    /// A tensor type that glimt does not know.
    #[error(
        "tensor {tensor} has the unsupported GGML type {id}{name}; supported are {supported}",
        name = ggml_type_name(*.id).map(|n| format!(" ({n})")).unwrap_or_default(),
        supported = supported_types()
    )]
    UnknownTensorType {
        /// The tensor.
        tensor: String,
        /// The type id found.
        id: u32,
    },
    /// A row that does not fill whole blocks of its type.
    #[error(
        "tensor {tensor} has rows of {cols} values, not a multiple of the {block_len} in a block of {ty}"
    )]
    PartialBlock {
        /// The tensor.
        tensor: String,
        /// Its row length.
        cols: u64,
        /// Values in a block.
        block_len: usize,
        /// The type's name.
        ty: &'static str,
    },
    /// A tensor that does not start on a multiple of the alignment.
    #[error(
        "tensor {tensor} starts at offset {offset}, not a multiple of the file's alignment {alignment}"
    )]
    MisalignedOffset {
        /// The tensor.
        tensor: String,
        /// Its offset in the data section.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// Two tensors share bytes.
    #[error("tensors {first} and {second} overlap in the file")]
    Overlap {
        /// The one that starts first.
        first: String,
        /// The one that starts inside it.
        second: String,
    },
    /// A shard other than the first of a split model was opened.
    #[error("{path} is shard {shard} of {count} of a split model; open the first shard, {first}", path = .path.display(), shard = .no + 1)]
    NotFirstPart {
        /// The file opened.
        path: PathBuf,
        /// Its `split.no`, from 0.
        no: u32,
        /// Its `split.count`.
        count: u32,
        /// What the first shard should be called.
        first: String,
    },
    /// A split model whose name does not tell where the other shards are.
    #[error("{path} is one of {count} shards of a split model, but its name does not end in {expected}, so the others cannot be found", path = .path.display())]
    SplitName {
        /// The file opened.
        path: PathBuf,
        /// Its `split.count`.
        count: u32,
        /// The ending expected.
        expected: String,
    },
    /// Shards of a split model are not there.
    #[error("{path} is split into {count} shards and these are missing: {missing}; put all of them into its folder", path = .path.display(), missing = .missing.join(", "))]
    MissingParts {
        /// The first shard.
        path: PathBuf,
        /// Its `split.count`.
        count: u32,
        /// File names that were looked for and not found.
        missing: Vec<String>,
    },
    /// The shards of a split model contradict each other.
    #[error("{path}: {key} is {found}; the other shards say {expected}", path = .path.display())]
    SplitMismatch {
        /// The shard read.
        path: PathBuf,
        /// The key, or what is counted.
        key: &'static str,
        /// What this shard says.
        found: String,
        /// What the rest says.
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
        /// Its byte length.
        expected: u64,
        /// Bytes given.
        found: u64,
    },
}

/// Names of the GGML types glimt does not support, so that a refusal can say what the file holds (ggml.h, `enum ggml_type`).
fn ggml_type_name(id: u32) -> Option<&'static str> {
    Some(match id {
        4 => "Q4_2, withdrawn",
        5 => "Q4_3, withdrawn",
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        31..=33 => "Q4_0 in a repacked layout, withdrawn",
        34 => "TQ1_0",
        35 => "TQ2_0",
        36..=38 => "IQ4_NL in a repacked layout, withdrawn",
        39 => "MXFP4",
        40 => "NVFP4",
        41 => "Q1_0",
        42 => "Q2_0",
        _ => return None,
    })
}

/// The supported type names in a row.
fn supported_types() -> String {
    let names: Vec<&str> = crate::quant::GgmlType::ALL
        .iter()
        .map(|t| t.name())
        .collect();
    names.join(", ")
}
