//! The GGUF container: metadata, tensor table and tensor bytes, memory-mapped.
//!
//! Layout (ggml/docs/gguf.md): magic `GGUF`, version, tensor count, metadata count, the metadata pairs, the tensor
//! table, padding to `general.alignment`, then the tensors' bytes. The reader checks every length, count and offset
//! before it is used: a file is data from a stranger.

mod cursor;
mod error;
mod kept;
mod metadata;
mod planned;
mod reader;
mod split;
mod value;
mod writer;

pub use error::GgufError;
pub use planned::{PlannedInfo, Table};
pub use reader::TensorInfo;
pub use split::split_file_name;
pub use value::{Array, Value};
pub use writer::{GgufDataWriter, GgufWriter};

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use error::EMPTY;
use metadata::Metadata;
use reader::Header;

/// `general.alignment` where a file does not say.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// An opened GGUF model: one file, the joined shards of a split one, bytes inside the program, or a plan.
///
/// Nothing but the metadata and the tensor table is copied; tensor bytes come from the map when touched ([`Gguf::data`]),
/// or from the file without the map ([`Gguf::read`]).
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    shards: Vec<Bytes>,
    version: u32,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    names: HashMap<String, usize>,
}

/// The source of the bytes of one shard.
#[derive(Debug)]
enum Bytes {
    Mapped {
        map: memmap2::Mmap,
        file: File,
        path: PathBuf,
        version: Version,
    },
    Memory(Cow<'static, [u8]>),
    /// The number of bytes, which do not exist.
    Absent(usize),
}

/// What tells whether a file was written to: its length, and when that was last.
type Version = (u64, Option<SystemTime>);

fn version(file: &File) -> std::io::Result<Version> {
    let attributes = file.metadata()?;
    Ok((attributes.len(), attributes.modified().ok()))
}

impl Bytes {
    fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Mapped { map, .. } => map,
            Bytes::Memory(bytes) => bytes,
            Bytes::Absent(_) => &[],
        }
    }

    fn len(&self) -> usize {
        match self {
            Bytes::Absent(len) => *len,
            present => present.as_slice().len(),
        }
    }
}

impl Gguf {
    /// Opens and maps the file at `path`; the first shard of a split model (`-00001-of-0000N.gguf`) opens all shards.
    ///
    /// The file must not be changed while it is open: its bytes are read lazily through a memory map, and the system ends
    /// a process that touches a page of a map beyond the end of its file. Only [`Gguf::read`] notices that as an error.
    ///
    /// # Errors
    /// Any [`GgufError`] but the writer's: the whole header is checked, and that each tensor lies inside its file.
    pub fn open(path: &Path) -> Result<Gguf, GgufError> {
        let (bytes, first) = open_shard(path, 0)?;
        let others = split::other_shards(path, &first)?;
        let mut gguf = Gguf::from_header(path, bytes, first)?;
        if !others.is_empty() {
            for (no, shard) in others.iter().enumerate() {
                let no = no + 1;
                let (bytes, header) = open_shard(shard, no)?;
                split::check_shard(shard, no, others.len() + 1, &header)?;
                gguf.append(bytes, header.tensors)?;
            }
            split::check_total(&gguf)?;
        }
        Ok(gguf)
    }

    /// Reads a GGUF file that is in memory: in the program, as the embedded model is, or read by a browser's page. `name` stands for its
    /// path in messages.
    ///
    /// # Errors
    /// The errors of [`Gguf::open`]; a split model is refused, because its other shards cannot be found.
    pub fn from_bytes(bytes: impl Into<Cow<'static, [u8]>>, name: &str) -> Result<Gguf, GgufError> {
        let (bytes, path) = (bytes.into(), Path::new(name));
        let header = reader::parse(&bytes, path, 0)?;
        split::refuse_split(path, &header)?;
        Gguf::from_header(path, Bytes::Memory(bytes), header)
    }

    /// The architecture that a file begins with; `None` if it does not stand in these bytes. `name` stands for the file in messages.
    ///
    /// # Errors
    /// [`GgufError::File`] if no GGUF file that glimt reads begins so.
    pub fn architecture_of(start: &[u8], name: &str) -> Result<Option<String>, GgufError> {
        reader::architecture(start, Path::new(name))
    }

    fn from_header(path: &Path, bytes: Bytes, header: Header) -> Result<Gguf, GgufError> {
        let mut gguf = Gguf {
            path: path.to_owned(),
            shards: Vec::new(),
            version: header.version,
            metadata: header.metadata,
            tensors: Vec::new(),
            names: HashMap::new(),
        };
        gguf.append(bytes, header.tensors)?;
        Ok(gguf)
    }

    /// Adds a shard and its tensors.
    fn append(&mut self, bytes: Bytes, tensors: Vec<TensorInfo>) -> Result<(), GgufError> {
        for tensor in tensors {
            let index = self.tensors.len();
            if self.names.insert(tensor.name.clone(), index).is_some() {
                return Err(GgufError::tensor(&tensor.name, "appears twice"));
            }
            self.tensors.push(tensor);
        }
        self.shards.push(bytes);
        Ok(())
    }

    /// The container's version, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Size of all shards together, in bytes.
    pub fn file_size(&self) -> u64 {
        self.shards.iter().map(|p| p.len() as u64).sum()
    }

    /// The path that was opened, or the name of embedded bytes.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All metadata in file order (of the first shard, where the model is split).
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &Value)> {
        let pairs = self.metadata.pairs.iter();
        pairs.map(|(key, value)| (key.as_str(), value))
    }

    /// The value of `key`, if the file has it.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// All tensors, in file order, shard by shard.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensor_index(name).map(|i| &self.tensors[i])
    }

    /// The index in [`Gguf::tensors`] of the tensor called `name`.
    pub fn tensor_index(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }

    /// The bytes of a tensor of this file: rows one after another, in blocks of its type. They have no particular
    /// alignment in memory.
    ///
    /// # Panics
    /// May panic if `tensor` belongs to another file. Panics if it has no bytes ([`Gguf::has_data`]).
    pub fn data(&self, tensor: &TensorInfo) -> &[u8] {
        let range = tensor.range();
        &self.shards[tensor.shard].as_slice()[range]
    }

    /// The bytes of a tensor where they need no reading: they are in memory, not in a file.
    pub fn in_memory(&self, tensor: &TensorInfo) -> Option<&[u8]> {
        match &self.shards[tensor.shard] {
            Bytes::Mapped { .. } | Bytes::Absent(_) => None,
            Bytes::Memory(bytes) => Some(&bytes[tensor.range()]),
        }
    }

    /// Copies the bytes of a tensor from its byte `offset` on into `buf`, past the map: streaming a model through a small
    /// buffer costs no page faults then, and leaves no page of the file in the process.
    ///
    /// # Errors
    /// [`GgufError::Read`], also for a file that was cut after it was opened.
    ///
    /// # Panics
    /// If `buf` reaches beyond the tensor or the tensor has no bytes ([`Gguf::has_data`]); may panic if `tensor` belongs
    /// to another file.
    pub fn read(
        &self,
        tensor: &TensorInfo,
        offset: usize,
        buf: &mut [u8],
    ) -> Result<(), GgufError> {
        let range = tensor.range();
        assert!(
            offset <= range.len() && buf.len() <= range.len() - offset,
            "{} bytes from {offset} on of {}",
            buf.len(),
            tensor.name
        );
        let start = range.start + offset;
        match &self.shards[tensor.shard] {
            Bytes::Mapped { file, path, .. } => {
                read_at(file, start as u64, buf).map_err(|source| GgufError::Read {
                    path: path.clone(),
                    tensor: tensor.name.clone(),
                    source,
                })
            }
            in_memory => {
                buf.copy_from_slice(&in_memory.as_slice()[start..start + buf.len()]);
                Ok(())
            }
        }
    }

    /// Whether what was read until now is what the files held when they were opened. A file that another one has replaced under its name stays as it
    /// was.
    ///
    /// # Errors
    /// [`GgufError::Changed`] for one that was written to, or [`GgufError::Open`] if the system does not tell.
    pub fn check_unchanged(&self) -> Result<(), GgufError> {
        for shard in &self.shards {
            let Bytes::Mapped {
                file,
                path,
                version: opened,
                ..
            } = shard
            else {
                continue;
            };
            let path = || path.clone();
            let now = version(file).map_err(|source| GgufError::Open {
                path: path(),
                source,
            })?;
            if now != *opened {
                return Err(GgufError::Changed { path: path() });
            }
        }
        Ok(())
    }
}

macro_rules! typed_getters {
    ($($get:ident, $require:ident, $t:ty, $convert:path, $expected:literal;)*) => {
        /// Typed access to metadata. `get_*` gives `None` for an absent key, `require_*` an error. A value of
        /// another type is always an error.
        impl Gguf {
            $(
                #[doc = concat!("The value of `key` as ", $expected, ", if the key is there.")]
                pub fn $get(&self, key: &str) -> Result<Option<$t>, GgufError> {
                    self.metadata.typed(key, $expected, $convert)
                }

                #[doc = concat!("The value of `key` as ", $expected, ".")]
                pub fn $require(&self, key: &str) -> Result<$t, GgufError> {
                    self.$get(key)?
                        .ok_or_else(|| GgufError::missing_key(key, $expected))
                }
            )*
        }
    };
}
typed_getters! {
    get_u32, require_u32, u32, Value::as_u32, "an unsigned 32-bit integer";
    get_u64, require_u64, u64, Value::as_u64, "an unsigned integer";
    get_f32, require_f32, f32, Value::as_f32, "a float";
    get_bool, require_bool, bool, Value::as_bool, "a boolean";
    get_str, require_str, &str, Value::as_str, "a string";
    get_str_array, require_str_array, &[String], Value::as_str_array, "an array of strings";
    get_f32_array, require_f32_array, &[f32], Value::as_f32_array, "an array of 32-bit floats";
    get_u32_array, require_u32_array, Vec<u32>, Value::as_u32_array, "an array of unsigned 32-bit integers";
}

/// Maps one file and reads its header.
fn open_shard(path: &Path, shard: usize) -> Result<(Bytes, Header), GgufError> {
    let open_error = |source| GgufError::Open {
        path: path.to_owned(),
        source,
    };
    // Asked before opening: opening a pipe would wait for its writer.
    let attributes = std::fs::metadata(path).map_err(open_error)?;
    if !attributes.is_file() {
        let found = if attributes.is_dir() {
            "a directory"
        } else {
            "not a regular file"
        };
        return Err(GgufError::file(
            path,
            format!("is {found}, not a GGUF file"),
        ));
    }
    if attributes.len() == 0 {
        return Err(GgufError::file(path, EMPTY));
    }
    let file = File::open(path).map_err(open_error)?;
    // SAFETY: the map is read-only and lives as long as `Gguf`. Another process that writes to or truncates the file
    // meanwhile breaks the contract of a memory map; `Gguf::open` documents that the file must not change. No value
    // read from the map is trusted twice: lengths and offsets are copied out and checked when the header is parsed.
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(open_error)?;
    let version = version(&file).map_err(open_error)?;
    let header = reader::parse(&map, path, shard)?;
    let bytes = Bytes::Mapped {
        map,
        file,
        path: path.to_owned(),
        version,
    };
    Ok((bytes, header))
}

/// Fills `buf` from `offset` of the file on, from any number of threads at once.
#[cfg(unix)]
fn read_at(file: &File, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buf, offset)
}

/// No file is ever open here.
#[cfg(not(any(unix, windows)))]
fn read_at(_: &File, _: u64, _: &mut [u8]) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// Fills `buf` from `offset` of the file on, from any number of threads at once: each read names its place, the cursor
/// that it moves is never used.
#[cfg(windows)]
fn read_at(file: &File, mut offset: u64, mut buf: &mut [u8]) -> std::io::Result<()> {
    use std::io::ErrorKind;
    use std::os::windows::fs::FileExt;
    while !buf.is_empty() {
        match file.seek_read(buf, offset) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                buf = &mut buf[n..];
                offset += n as u64;
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
