//! Writes GGUF files: metadata and tensor table first, then the tensors' bytes as they come.

use std::collections::HashSet;
use std::io::Write;

use super::metadata::Metadata;
use super::reader::{TableEntry, byte_len};
use super::value::push_string;
use super::{DEFAULT_ALIGNMENT, GgufError, Value};
use crate::quant::GgmlType;

/// Collects the header of a GGUF file (version 3, alignment 32); [`begin_data`](Self::begin_data) writes it.
///
/// ```
/// # use glimt_formats::{gguf::GgufWriter, quant::GgmlType};
/// let mut writer = GgufWriter::new(Vec::new());
/// writer.metadata("general.architecture", "deepseek2")?;
/// writer.tensor("output_norm.weight", GgmlType::F32, &[2])?;
/// let mut data = writer.begin_data()?;
/// data.write(bytemuck::cast_slice(&[1.0f32, 1.0]))?;
/// let file: Vec<u8> = data.finish()?;
/// # Ok::<(), glimt_formats::gguf::GgufError>(())
/// ```
#[derive(Debug)]
pub struct GgufWriter<W: Write> {
    out: W,
    metadata: Metadata,
    tensors: Vec<TableEntry>,
    names: HashSet<String>,
    /// The offset of the next tensor in the data section.
    offset: u64,
}

impl<W: Write> GgufWriter<W> {
    /// A writer of an empty file; nothing is written yet.
    pub fn new(out: W) -> Self {
        GgufWriter {
            out,
            metadata: Metadata::default(),
            tensors: Vec::new(),
            names: HashSet::new(),
            offset: 0,
        }
    }

    /// Adds a metadata pair.
    ///
    /// # Errors
    /// [`GgufError::Key`] for a key that is there already. [`GgufError::BadAlignment`] for a `general.alignment` other than 32, because
    /// no other is written.
    pub fn metadata(&mut self, key: &str, value: impl Into<Value>) -> Result<(), GgufError> {
        let value = value.into();
        if key == "general.alignment" && value.as_u64() != Some(DEFAULT_ALIGNMENT) {
            let found = value.as_u64().unwrap_or(0);
            return Err(GgufError::BadAlignment {
                found,
                limit: DEFAULT_ALIGNMENT,
            });
        }
        self.metadata.push(key.to_owned(), value)
    }

    /// Adds a tensor of dimensions `dims` (GGUF order: row length first) and gives its size in bytes. The data must be
    /// written in the order of these calls.
    ///
    /// # Errors
    /// [`GgufError::Tensor`] for a name that is there already, or for impossible dimensions.
    pub fn tensor(&mut self, name: &str, ty: GgmlType, dims: &[u64]) -> Result<u64, GgufError> {
        if dims.is_empty() || dims.len() > 4 {
            return Err(GgufError::dimension_count(name, dims.len()));
        }
        let byte_len = byte_len(name, ty, dims)?;
        let too_large = || GgufError::impossible(name, dims);
        let end = self.offset.checked_add(byte_len).ok_or_else(too_large)?;
        let next = end
            .checked_next_multiple_of(DEFAULT_ALIGNMENT)
            .ok_or_else(too_large)?;
        if !self.names.insert(name.to_owned()) {
            return Err(GgufError::tensor(name, "appears twice"));
        }
        self.tensors.push(TableEntry {
            name: name.to_owned(),
            ty,
            dims: dims.to_vec(),
            offset: self.offset,
            byte_len,
        });
        self.offset = next;
        Ok(byte_len)
    }

    /// Writes the header and the padding behind it.
    ///
    /// # Errors
    /// [`GgufError::Write`].
    pub fn begin_data(mut self) -> Result<GgufDataWriter<W>, GgufError> {
        let mut header = Vec::new();
        header.extend(b"GGUF");
        header.extend(3u32.to_le_bytes());
        header.extend((self.tensors.len() as u64).to_le_bytes());
        header.extend((self.metadata.pairs.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata.pairs {
            push_string(&mut header, key);
            value.write(&mut header);
        }
        for entry in &self.tensors {
            push_string(&mut header, &entry.name);
            header.extend((entry.dims.len() as u32).to_le_bytes());
            header.extend(entry.dims.iter().flat_map(|dim| dim.to_le_bytes()));
            header.extend(entry.ty.id().to_le_bytes());
            header.extend(entry.offset.to_le_bytes());
        }
        header.resize(header.len().next_multiple_of(DEFAULT_ALIGNMENT as usize), 0);
        self.out.write_all(&header)?;
        Ok(GgufDataWriter {
            out: self.out,
            tensors: self.tensors,
            current: 0,
            written: 0,
        })
    }
}

/// Takes the tensors' bytes in the order in which the tensors were added, in pieces of any size up to a tensor's end;
/// padding is written in between.
#[derive(Debug)]
pub struct GgufDataWriter<W: Write> {
    out: W,
    tensors: Vec<TableEntry>,
    current: usize,
    /// Bytes of the current tensor written so far.
    written: u64,
}

impl<W: Write> GgufDataWriter<W> {
    /// Writes the next bytes of the current tensor; the tensor after it becomes current once they complete it.
    ///
    /// # Errors
    /// [`GgufError::DataLength`] for bytes beyond the tensor's end, of which none are written; [`GgufError::Write`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), GgufError> {
        let Some(entry) = self.tensors.get(self.current) else {
            let found = bytes.len() as u64;
            return Err(GgufError::DataLength {
                tensor: "(none is left)".to_owned(),
                expected: 0,
                found,
            });
        };
        let written = self.written + bytes.len() as u64;
        if written > entry.byte_len {
            return Err(GgufError::DataLength {
                tensor: entry.name.clone(),
                expected: entry.byte_len,
                found: written,
            });
        }
        self.out.write_all(bytes)?;
        self.written = written;
        if written == entry.byte_len {
            let padding = written.next_multiple_of(DEFAULT_ALIGNMENT) - written;
            self.out
                .write_all(&[0; DEFAULT_ALIGNMENT as usize][..padding as usize])?;
            self.current += 1;
            self.written = 0;
        }
        Ok(())
    }

    /// Flushes and gives the output back.
    ///
    /// # Errors
    /// [`GgufError::DataLength`] naming the first tensor whose data is not complete; [`GgufError::Write`].
    pub fn finish(mut self) -> Result<W, GgufError> {
        if let Some(entry) = self.tensors.get(self.current) {
            return Err(GgufError::DataLength {
                tensor: entry.name.clone(),
                expected: entry.byte_len,
                found: self.written,
            });
        }
        self.out.flush()?;
        Ok(self.out)
    }
}
