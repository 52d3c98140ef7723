//! Parses the header of one GGUF file: every length, count and offset is checked before it is used.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use super::value::{Array, Value};
use super::{DEFAULT_ALIGNMENT, GgufError};
use crate::quant::GgmlType;

/// The specification limits keys to 2^16 - 1 bytes.
const MAX_KEY: u64 = 65_535;
/// The specification limits tensor names to 64 bytes (`GGML_MAX_NAME`).
const MAX_TENSOR_NAME: u64 = 64;
/// The longest strings in real files are chat templates and tokenizer JSON, below 32 MiB; a longer one is damage.
const MAX_STRING: u64 = 64 << 20;
/// Vocabularies and merge lists stay below a million entries; a longer array is damage, and would be copied to memory.
const MAX_ARRAY: u64 = 1 << 24;
/// Real files have fewer than 200 metadata pairs.
const MAX_PAIRS: u64 = 1 << 16;
/// The largest models, with a tensor per expert, have fewer than 100 000.
const MAX_TENSORS: u64 = 1 << 20;
/// Real files nest arrays at most once; the cap bounds the recursion.
const MAX_ARRAY_DEPTH: usize = 4;
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
    /// Its name, unique in the model.
    pub name: String,
    /// The format of its blocks.
    pub ty: GgmlType,
    /// Its dimensions in GGUF order: `dims[0]` is the row length, consecutive in memory.
    pub dims: Vec<u64>,
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

    /// Which file of a split model holds the bytes, from 0.
    pub fn shard(&self) -> usize {
        self.shard
    }

    pub(super) fn range(&self) -> Range<usize> {
        self.start..self.start + self.len
    }
}

/// Everything in front of the tensor data.
#[derive(Debug)]
pub(super) struct Header {
    pub version: u32,
    pub alignment: u64,
    pub metadata: Vec<(String, Value)>,
    pub keys: HashMap<String, usize>,
    pub tensors: Vec<TensorInfo>,
}

impl Header {
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.keys.get(key).map(|&i| &self.metadata[i].1)
    }
}

/// Reads the header of `bytes`, the whole file; `path` is for messages, `shard` its index in a split model.
pub(super) fn parse(bytes: &[u8], path: &Path, shard: usize) -> Result<Header, GgufError> {
    let mut cursor = Cursor {
        bytes,
        pos: 0,
        path,
    };
    let version = read_version(&mut cursor)?;
    let tensor_count = cursor.u64("the tensor count")?;
    let pair_count = cursor.u64("the metadata count")?;

    let pair_count = cursor.count(pair_count, MAX_PAIRS, MIN_PAIR, || {
        "the metadata table".to_owned()
    })?;
    let mut metadata = Vec::with_capacity(pair_count);
    for i in 0..pair_count {
        let key = cursor.string(MAX_KEY, || format!("the key of metadata entry {i}"))?;
        let type_id = cursor.u32(|| format!("the type of metadata key {key}"))?;
        let value = read_value(&mut cursor, &key, type_id)?;
        metadata.push((key, value));
    }
    let keys = index(&metadata)?;
    let alignment = read_alignment(&metadata, &keys)?;

    let tensor_count = cursor.count(tensor_count, MAX_TENSORS, MIN_TENSOR, || {
        "the tensor table".to_owned()
    })?;
    let mut tensors = Vec::with_capacity(tensor_count);
    for i in 0..tensor_count {
        tensors.push(read_tensor(&mut cursor, i, alignment)?);
    }
    let tensors = place(tensors, &cursor, alignment, shard)?;
    Ok(Header {
        version,
        alignment,
        metadata,
        keys,
        tensors,
    })
}

/// Where each key is.
pub(super) fn index(metadata: &[(String, Value)]) -> Result<HashMap<String, usize>, GgufError> {
    let mut keys = HashMap::with_capacity(metadata.len());
    for (i, (key, _)) in metadata.iter().enumerate() {
        if keys.insert(key.clone(), i).is_some() {
            return Err(GgufError::DuplicateKey { key: key.clone() });
        }
    }
    Ok(keys)
}

fn read_version(cursor: &mut Cursor<'_>) -> Result<u32, GgufError> {
    if cursor.bytes.is_empty() {
        return Err(GgufError::Empty {
            path: cursor.path.to_owned(),
        });
    }
    let start = &cursor.bytes[..cursor.bytes.len().min(4)];
    if start != b"GGUF" {
        let found = format!("\"{}\"", start.escape_ascii());
        return Err(GgufError::NotGguf {
            path: cursor.path.to_owned(),
            found,
        });
    }
    cursor.pos = 4;
    let version = cursor.u32(|| "the version".to_owned())?;
    match version {
        2 | 3 => Ok(version),
        // Versions are small, so empty low bytes mean that the writer's byte order was the other one.
        v if v != 0 && v & 0xffff == 0 => Err(GgufError::BigEndian {
            path: cursor.path.to_owned(),
        }),
        found => Err(GgufError::Version {
            path: cursor.path.to_owned(),
            found,
        }),
    }
}

fn read_alignment(
    metadata: &[(String, Value)],
    keys: &HashMap<String, usize>,
) -> Result<u64, GgufError> {
    let key = "general.alignment";
    let Some(&i) = keys.get(key) else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    let value = &metadata[i].1;
    let Some(alignment) = value.as_u64() else {
        return Err(GgufError::WrongType {
            key: key.to_owned(),
            found: value.to_string(),
            expected: "an unsigned integer",
        });
    };
    if !alignment.is_power_of_two() || alignment > MAX_ALIGNMENT {
        return Err(GgufError::BadAlignment {
            found: alignment,
            limit: MAX_ALIGNMENT,
        });
    }
    Ok(alignment)
}

fn read_value(cursor: &mut Cursor<'_>, key: &str, type_id: u32) -> Result<Value, GgufError> {
    let what = || format!("the value of metadata key {key}");
    Ok(match type_id {
        0 => Value::U8(u8::from_le_bytes(cursor.array(what)?)),
        1 => Value::I8(i8::from_le_bytes(cursor.array(what)?)),
        2 => Value::U16(u16::from_le_bytes(cursor.array(what)?)),
        3 => Value::I16(i16::from_le_bytes(cursor.array(what)?)),
        4 => Value::U32(u32::from_le_bytes(cursor.array(what)?)),
        5 => Value::I32(i32::from_le_bytes(cursor.array(what)?)),
        6 => Value::F32(f32::from_le_bytes(cursor.array(what)?)),
        7 => Value::Bool(read_bool(cursor.array(what)?, key)?),
        8 => Value::String(cursor.string(MAX_STRING, what)?),
        9 => Value::Array(read_array(cursor, key, 1)?),
        10 => Value::U64(u64::from_le_bytes(cursor.array(what)?)),
        11 => Value::I64(i64::from_le_bytes(cursor.array(what)?)),
        12 => Value::F64(f64::from_le_bytes(cursor.array(what)?)),
        id => {
            return Err(GgufError::UnknownValueType {
                key: key.to_owned(),
                id,
            });
        }
    })
}

fn read_bool([byte]: [u8; 1], key: &str) -> Result<bool, GgufError> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        found => Err(GgufError::InvalidBool {
            key: key.to_owned(),
            found,
        }),
    }
}

fn read_array(cursor: &mut Cursor<'_>, key: &str, depth: usize) -> Result<Array, GgufError> {
    if depth > MAX_ARRAY_DEPTH {
        return Err(GgufError::NestedTooDeep {
            key: key.to_owned(),
            limit: MAX_ARRAY_DEPTH,
        });
    }
    let what = || format!("the array of metadata key {key}");
    let type_id = cursor.u32(what)?;
    let count = u64::from_le_bytes(cursor.array(what)?);
    Ok(match type_id {
        0 => Array::U8(cursor.numbers(count, what, u8::from_le_bytes)?),
        1 => Array::I8(cursor.numbers(count, what, i8::from_le_bytes)?),
        2 => Array::U16(cursor.numbers(count, what, u16::from_le_bytes)?),
        3 => Array::I16(cursor.numbers(count, what, i16::from_le_bytes)?),
        4 => Array::U32(cursor.numbers(count, what, u32::from_le_bytes)?),
        5 => Array::I32(cursor.numbers(count, what, i32::from_le_bytes)?),
        6 => Array::F32(cursor.numbers(count, what, f32::from_le_bytes)?),
        7 => {
            let bytes = cursor.numbers(count, what, |byte| byte)?;
            Array::Bool(
                bytes
                    .into_iter()
                    .map(|byte| read_bool(byte, key))
                    .collect::<Result<_, _>>()?,
            )
        }
        8 => {
            let count = cursor.count(count, MAX_ARRAY, 8, what)?;
            let mut strings = Vec::with_capacity(count);
            for i in 0..count {
                strings.push(
                    cursor.string(MAX_STRING, || format!("element {i} of metadata key {key}"))?,
                );
            }
            Array::String(strings)
        }
        9 => {
            let count = cursor.count(count, MAX_ARRAY, 4 + 8, what)?;
            let mut arrays = Vec::new();
            for _ in 0..count {
                arrays.push(read_array(cursor, key, depth + 1)?);
            }
            Array::Array(arrays)
        }
        10 => Array::U64(cursor.numbers(count, what, u64::from_le_bytes)?),
        11 => Array::I64(cursor.numbers(count, what, i64::from_le_bytes)?),
        12 => Array::F64(cursor.numbers(count, what, f64::from_le_bytes)?),
        id => {
            return Err(GgufError::UnknownValueType {
                key: key.to_owned(),
                id,
            });
        }
    })
}

/// A table entry whose place in the file is not checked yet.
#[derive(Debug)]
pub(super) struct TableEntry {
    pub name: String,
    pub ty: GgmlType,
    pub dims: Vec<u64>,
    /// From the start of the data section, a multiple of the alignment.
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
        return Err(GgufError::DimensionCount {
            tensor: name,
            found: dim_count,
        });
    }
    let mut dims = Vec::with_capacity(dim_count as usize);
    for _ in 0..dim_count {
        dims.push(u64::from_le_bytes(cursor.array(what)?));
    }
    let type_id = cursor.u32(what)?;
    let offset = u64::from_le_bytes(cursor.array(what)?);
    let Some(ty) = GgmlType::from_id(type_id) else {
        return Err(GgufError::UnknownTensorType {
            tensor: name,
            id: type_id,
        });
    };
    if !offset.is_multiple_of(alignment) {
        return Err(GgufError::MisalignedOffset {
            tensor: name,
            offset,
            alignment,
        });
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
    let impossible = || GgufError::BadDimensions {
        tensor: tensor.to_owned(),
        dims: dims.to_vec(),
    };
    let cols = *dims.first().ok_or_else(impossible)?;
    let block_len = ty.block_len();
    if !cols.is_multiple_of(block_len as u64) {
        return Err(GgufError::PartialBlock {
            tensor: tensor.to_owned(),
            cols,
            block_len,
            ty: ty.name(),
        });
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
    alignment: u64,
    shard: usize,
) -> Result<Vec<TensorInfo>, GgufError> {
    let data_start = (cursor.pos as u64).next_multiple_of(alignment);
    let file_len = cursor.bytes.len() as u64;
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

/// A position in the file; every read checks what is left.
struct Cursor<'a> {
    bytes: &'a [u8],
    pos: usize,
    path: &'a Path,
}

impl<'a> Cursor<'a> {
    fn truncated(&self, what: String, len: u64) -> GgufError {
        GgufError::Truncated {
            path: self.path.to_owned(),
            what,
            need: (self.pos as u64).saturating_add(len),
            have: self.bytes.len() as u64,
        }
    }

    /// The next `len` bytes; `what` names them in the error.
    fn take(&mut self, len: u64, what: impl FnOnce() -> String) -> Result<&'a [u8], GgufError> {
        let left = &self.bytes[self.pos..];
        if len > left.len() as u64 {
            return Err(self.truncated(what(), len));
        }
        let taken = &left[..len as usize];
        self.pos += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(
        &mut self,
        what: impl FnOnce() -> String,
    ) -> Result<[u8; N], GgufError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    fn u32(&mut self, what: impl FnOnce() -> String) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    fn u64(&mut self, what: &str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(|| what.to_owned())?))
    }

    /// A count of things that take at least `min_len` bytes each, refused when the rest of the file cannot hold them:
    /// so no allocation is larger than the file warrants.
    fn count(
        &self,
        count: u64,
        limit: u64,
        min_len: u64,
        what: impl Fn() -> String,
    ) -> Result<usize, GgufError> {
        if count > limit {
            return Err(GgufError::TooLong {
                what: what(),
                found: count,
                limit,
                unit: "entries",
            });
        }
        let least = count * min_len;
        if least > (self.bytes.len() - self.pos) as u64 {
            return Err(self.truncated(format!("{} of {count} entries", what()), least));
        }
        Ok(count as usize)
    }

    fn string(&mut self, limit: u64, what: impl Fn() -> String) -> Result<String, GgufError> {
        let len = u64::from_le_bytes(self.array(&what)?);
        if len > limit {
            return Err(GgufError::TooLong {
                what: what(),
                found: len,
                limit,
                unit: "bytes",
            });
        }
        let bytes = self.take(len, &what)?;
        match std::str::from_utf8(bytes) {
            Ok(s) => Ok(s.to_owned()),
            Err(_) => Err(GgufError::InvalidUtf8 { what: what() }),
        }
    }

    /// `count` numbers of `N` bytes.
    fn numbers<T, const N: usize>(
        &mut self,
        count: u64,
        what: impl Fn() -> String,
        convert: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>, GgufError> {
        let count = self.count(count, MAX_ARRAY, N as u64, &what)?;
        let bytes = self.take((count * N) as u64, &what)?;
        let (numbers, _) = bytes.as_chunks::<N>();
        Ok(numbers.iter().map(|&number| convert(number)).collect())
    }
}

#[cfg(test)]
mod tests;
