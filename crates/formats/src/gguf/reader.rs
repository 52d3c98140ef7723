//! Parses the header of one GGUF file: every length, count and offset is checked before it is used.

use std::ops::Range;
use std::path::Path;

use super::cursor::Cursor;
use super::error::EMPTY;
use super::metadata::Metadata;
use super::{DEFAULT_ALIGNMENT, GgufError, Value};
use crate::quant::GgmlType;

/// The key of the architecture. Converters write it first.
const ARCHITECTURE: &str = "general.architecture";
/// The specification limits keys to 2^16 - 1 bytes.
const MAX_KEY: u64 = 65_535;
/// The specification limits tensor names to 64 bytes (`GGML_MAX_NAME`).
const MAX_TENSOR_NAME: u64 = 64;
/// Real files have fewer than 200 metadata pairs.
const MAX_PAIRS: u64 = 1 << 16;
/// The largest models, with a tensor per expert, have fewer than 100 000.
const MAX_TENSORS: u64 = 1 << 20;
/// `GGML_MAX_DIMS`.
const MAX_DIMS: u32 = 4;
/// Real files use 32 to 4096; the cap keeps padding arithmetic far from overflow.
const MAX_ALIGNMENT: u64 = 1 << 20;
/// Least bytes of a metadata pair: key length, type, a one-byte value.
const MIN_PAIR: u64 = 8 + 4 + 1;
/// Least bytes of a tensor table entry: name length, dimension count, one dimension, type, offset.
const MIN_TENSOR: u64 = 8 + 4 + 8 + 4 + 8;

/// A tensor as the file's table describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorInfo {
    /// The tensor's name, unique in the model.
    pub name: String,
    /// The format of its blocks.
    pub ty: GgmlType,
    /// The tensor's dimensions in GGUF order: `dims[0]` is the row length, consecutive in memory.
    pub dims: Vec<u64>,
    /// The file of a split model that holds the bytes, from 0.
    pub(super) shard: usize,
    pub(super) start: usize,
    pub(super) len: usize,
}

impl TensorInfo {
    /// Size in bytes.
    pub fn byte_len(&self) -> u64 {
        self.len as u64
    }

    /// Number of values.
    pub fn element_count(&self) -> u64 {
        // Overflow was refused when the table was read.
        self.dims.iter().product()
    }

    pub(super) fn range(&self) -> Range<usize> {
        self.start..self.start + self.len
    }
}

/// Everything in front of the tensor data.
#[derive(Debug)]
pub(super) struct Header {
    pub version: u32,
    pub metadata: Metadata,
    pub tensors: Vec<TensorInfo>,
}

/// Reads the header of `bytes`, the whole file; `path` is for messages, `shard` its index in a split model.
pub(super) fn parse(bytes: &[u8], path: &Path, shard: usize) -> Result<Header, GgufError> {
    parse_start(bytes, bytes.len() as u64, path, shard)
}

/// Parses the header of a file of `len` bytes, of which these are the first.
pub(super) fn parse_start(
    bytes: &[u8],
    len: u64,
    path: &Path,
    shard: usize,
) -> Result<Header, GgufError> {
    let mut cursor = Cursor {
        bytes,
        pos: 0,
        path,
        invalid: None,
    };
    let version = read_version(&mut cursor)?;
    let tensor_count = cursor.u64("the tensor count")?;
    let pair_count = cursor.u64("the metadata count")?;

    let pair_count = cursor.count(pair_count, MAX_PAIRS, MIN_PAIR, || {
        "the metadata table".to_owned()
    })?;
    let mut metadata = Metadata::default();
    for i in 0..pair_count {
        let name = || format!("the key of metadata entry {i}");
        let (key, valid) = cursor.text(MAX_KEY, name)?;
        if !valid {
            log::warn!("{} is not valid UTF-8; it has no effect", name());
        }
        let type_id = cursor.u32(|| format!("the type of metadata key {key}"))?;
        let value = Value::read(&mut cursor, &key, type_id)?;
        metadata.push(key.clone(), value)?;
        if let Some(what) = cursor.invalid.take() {
            metadata.note_invalid(&key, what);
        }
    }
    let alignment = read_alignment(&metadata)?;

    let tensor_count = cursor.count(tensor_count, MAX_TENSORS, MIN_TENSOR, || {
        "the tensor table".to_owned()
    })?;
    let mut tensors = Vec::with_capacity(tensor_count);
    for i in 0..tensor_count {
        tensors.push(read_tensor(&mut cursor, i, alignment)?);
    }
    let tensors = place(tensors, &cursor, len, alignment, shard)?;
    Ok(Header {
        version,
        metadata,
        tensors,
    })
}

/// The architecture that a file begins with; `None` if it does not stand in these bytes. `path` is for messages.
///
/// # Errors
/// If no file that glimt reads begins so.
pub(super) fn architecture(start: &[u8], path: &Path) -> Result<Option<String>, GgufError> {
    let mut cursor = Cursor {
        bytes: start,
        pos: 0,
        path,
        invalid: None,
    };
    read_version(&mut cursor)?;
    Ok(find_architecture(&mut cursor))
}

fn find_architecture(cursor: &mut Cursor<'_>) -> Option<String> {
    cursor.u64("the tensor count").ok()?;
    let pairs = cursor.u64("the metadata count").ok()?;
    for _ in 0..pairs {
        // A read behind the last byte ends it.
        let key = cursor.string(MAX_KEY, String::new).ok()?;
        let type_id = cursor.u32(String::new).ok()?;
        let value = Value::read(cursor, &key, type_id).ok()?;
        if key == ARCHITECTURE {
            return value.as_str().map(str::to_owned);
        }
    }
    None
}

fn read_version(cursor: &mut Cursor<'_>) -> Result<u32, GgufError> {
    let path = cursor.path;
    if cursor.bytes.is_empty() {
        return Err(GgufError::file(path, EMPTY));
    }
    let start = &cursor.bytes[..cursor.bytes.len().min(4)];
    if start != b"GGUF" {
        let found = start.escape_ascii();
        let problem = format!(
            "is not a GGUF file: it starts with \"{found}\", a GGUF file starts with \"GGUF\""
        );
        return Err(GgufError::file(path, problem));
    }
    cursor.pos = 4;
    let version = cursor.u32(|| "the version".to_owned())?;
    match version {
        2 | 3 => Ok(version),
        // Versions are small, so empty low bytes mean that the writer's byte order was the other one.
        v if v != 0 && v & 0xffff == 0 => Err(GgufError::file(
            path,
            "is a big-endian GGUF file; only little-endian files are supported: convert the model again without --bigendian",
        )),
        found => Err(GgufError::file(
            path,
            format!(
                "has GGUF version {found}; versions 2 and 3 are supported: convert the model again, by a current llama.cpp"
            ),
        )),
    }
}

fn read_alignment(metadata: &Metadata) -> Result<u64, GgufError> {
    let key = "general.alignment";
    let alignment = metadata.typed(key, "an unsigned integer", Value::as_u64)?;
    let alignment = alignment.unwrap_or(DEFAULT_ALIGNMENT);
    if !alignment.is_power_of_two() || alignment > MAX_ALIGNMENT {
        return Err(GgufError::BadAlignment {
            found: alignment,
            limit: MAX_ALIGNMENT,
        });
    }
    Ok(alignment)
}

/// A table entry whose place in the file is not checked yet.
#[derive(Debug)]
pub(super) struct TableEntry {
    pub name: String,
    pub ty: GgmlType,
    pub dims: Vec<u64>,
    /// The first byte, counted from the start of the data section, a multiple of the alignment.
    pub offset: u64,
    pub byte_len: u64,
}

fn read_tensor(
    cursor: &mut Cursor<'_>,
    index: usize,
    alignment: u64,
) -> Result<TableEntry, GgufError> {
    let name = cursor.string(MAX_TENSOR_NAME, || format!("the name of tensor {index}"))?;
    let what = || format!("the table entry of tensor {name}");
    let dim_count = cursor.u32(what)?;
    if dim_count == 0 || dim_count > MAX_DIMS {
        return Err(GgufError::dimension_count(&name, dim_count as usize));
    }
    let mut dims = Vec::with_capacity(dim_count as usize);
    for _ in 0..dim_count {
        dims.push(u64::from_le_bytes(cursor.array(what)?));
    }
    let type_id = cursor.u32(what)?;
    let offset = u64::from_le_bytes(cursor.array(what)?);
    let Some(ty) = GgmlType::from_id(type_id) else {
        return Err(GgufError::unknown_type(&name, type_id));
    };
    if !offset.is_multiple_of(alignment) {
        let problem = format!(
            "starts at offset {offset}, not a multiple of the file's alignment {alignment}"
        );
        return Err(GgufError::tensor(&name, problem));
    }
    let byte_len = byte_len(&name, ty, &dims)?;
    Ok(TableEntry {
        name,
        ty,
        dims,
        offset,
        byte_len,
    })
}

/// Bytes of a tensor of type `ty` and dimensions `dims`, row length first; `tensor` is for the error.
pub(super) fn byte_len(tensor: &str, ty: GgmlType, dims: &[u64]) -> Result<u64, GgufError> {
    let impossible = || GgufError::impossible(tensor, dims);
    let cols = *dims.first().ok_or_else(impossible)?;
    let block_len = ty.block_len();
    if !cols.is_multiple_of(block_len as u64) {
        let problem = format!(
            "has rows of {cols} values, not a multiple of the {block_len} in a block of {ty}"
        );
        return Err(GgufError::tensor(tensor, problem));
    }
    let elements = dims
        .iter()
        .try_fold(1u64, |n, &dim| n.checked_mul(dim))
        .filter(|&n| n > 0);
    elements
        .and_then(|n| (n / block_len as u64).checked_mul(ty.block_bytes() as u64))
        .ok_or_else(impossible)
}

/// Finds the data section behind the table and checks that each tensor lies inside the file and shares no byte.
fn place(
    entries: Vec<TableEntry>,
    cursor: &Cursor<'_>,
    file_len: u64,
    alignment: u64,
    shard: usize,
) -> Result<Vec<TensorInfo>, GgufError> {
    let data_start = (cursor.pos as u64).next_multiple_of(alignment);
    let mut last: Option<(&TableEntry, u64)> = None;
    for entry in &entries {
        let end = data_start
            .checked_add(entry.offset)
            .and_then(|start| start.checked_add(entry.byte_len));
        let end = end.unwrap_or(u64::MAX);
        if last.is_none_or(|(_, last_end)| end > last_end) {
            last = Some((entry, end));
        }
    }
    if let Some((entry, need)) = last
        && need > file_len
    {
        let what = format!("the data of tensor {}", entry.name);
        return Err(GgufError::Truncated {
            path: cursor.path.to_owned(),
            what,
            need,
            have: file_len,
        });
    }

    let mut order: Vec<&TableEntry> = entries.iter().collect();
    order.sort_by_key(|entry| entry.offset);
    for pair in order.windows(2) {
        if pair[0].offset + pair[0].byte_len > pair[1].offset {
            return Err(GgufError::Overlap {
                first: pair[0].name.clone(),
                second: pair[1].name.clone(),
            });
        }
    }
    // Every end is at most the length of a slice, so the numbers fit `usize`.
    let to_info = |entry: TableEntry| TensorInfo {
        name: entry.name,
        ty: entry.ty,
        dims: entry.dims,
        shard,
        start: (data_start + entry.offset) as usize,
        len: entry.byte_len as usize,
    };
    Ok(entries.into_iter().map(to_info).collect())
}

#[cfg(test)]
mod tests;
