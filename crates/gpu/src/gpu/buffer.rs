//! Buffers as a step knows them: a name, a size and what is in them. A device makes them when the step is realised, and not before,
//! so that steps can be listed, counted and checked on a machine without any.

use super::host_memory::HostMemory;
use crate::quant::GgmlType;
use crate::quant::activation::{Activation, Q8Unit};
use crate::quant::halves::HalvesBlock;
use half::f16;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};
use wgpu::BufferUsages;

/// The kind of content of a buffer, or of a range of one: WGSL's types alone do not tell codes from ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// f32.
    Floats,
    /// u32: ids, counts, lists of tiles.
    Words,
    /// f16, such as rows of keys and values.
    Halves,
    /// Rows of the cache of a layer, f16.
    Cache,
    /// The codes of a weight of this type ([`crate::quant::repack`]).
    Codes(GgmlType),
    /// The scales, minima and high bits of a weight of this type.
    Scales(GgmlType),
    /// An activation that its producer prepared for the next product.
    Prepared(Activation),
}

impl Role {
    /// The role of activations of this kind.
    pub const fn prepared(activation: Activation) -> Self {
        match activation {
            Activation::Floats => Self::Floats,
            // Pairs or not is how they are multiplied.
            Activation::Halves { .. } => Self::Prepared(Activation::Halves { packed: false }),
            Activation::Bytes => Self::Prepared(Activation::Bytes),
        }
    }
}

/// A type whose values can be the content of a buffer.
pub trait Content: bytemuck::NoUninit {
    /// The role of a buffer with such values.
    const ROLE: Role;
}

macro_rules! content {
    ($($ty:ty: $role:expr),* $(,)?) => { $(impl Content for $ty { const ROLE: Role = $role; })* };
}
content!(
    f32: Role::Floats,
    [f32; 2]: Role::Floats,
    u32: Role::Words,
    [u32; 3]: Role::Words,
    [u32; 4]: Role::Words,
    [u32; 8]: Role::Words,
    u8: Role::Words,
    f16: Role::Halves,
    Q8Unit: Role::prepared(Activation::Bytes),
    HalvesBlock: Role::prepared(Activation::Halves { packed: false }),
);

/// A buffer of a step. Clones are the same buffer; two are equal if they are one.
#[derive(Clone)]
pub struct Buffer(Arc<Inner>);

/// The uses of a buffer beside those that all have.
#[derive(Clone, Copy, Default)]
struct Usage {
    /// Whether numbers of workgroups are read from it.
    counts: bool,
    /// Whether it lies in host memory.
    host: bool,
    /// Whether its bytes stay in a file.
    file: bool,
}

struct Inner {
    name: String,
    size: u64,
    role: Role,
    /// The bytes that the buffer begins with; zeros where there are none.
    contents: Option<Vec<u8>>,
    usage: Usage,
    made: OnceLock<wgpu::Buffer>,
    /// The memory of the host that it is, where the processor reaches it.
    memory: OnceLock<HostMemory>,
}

impl Buffer {
    /// A buffer of `size` bytes that a device makes when a step that uses it is realised.
    pub fn new(name: impl Into<String>, size: u64, role: Role) -> Self {
        Self::of(name.into(), size, role, None, Usage::default())
    }

    /// A buffer in host memory, which kernels read over the bus and which a device without
    /// [`MAPPABLE_PRIMARY_BUFFERS`](wgpu::Features::MAPPABLE_PRIMARY_BUFFERS) cannot make. Its bytes are none of the device
    /// ([`Gpu::allocated`](super::Gpu::allocated)).
    pub fn of_host(name: impl Into<String>, size: u64, role: Role) -> Self {
        let host = Usage {
            host: true,
            ..Usage::default()
        };
        Self::of(name.into(), size, role, None, host)
    }

    /// The place of weights that stay in their file: no device makes it, and no kernel binds it.
    pub fn of_file(name: impl Into<String>, size: u64, role: Role) -> Self {
        let file = Usage {
            file: true,
            ..Usage::default()
        };
        Self::of(name.into(), size, role, None, file)
    }

    /// A buffer that begins with `data`.
    pub fn with<T: Content>(name: impl Into<String>, data: &[T]) -> Self {
        Self::holding(name.into(), data, Usage::default())
    }

    /// A buffer of `size` bytes that begins with `head`; zeros follow.
    pub fn beginning(name: impl Into<String>, size: u64, role: Role, head: &[u8]) -> Self {
        let contents = (!head.is_empty()).then(|| head.to_vec());
        Self::of(name.into(), size, role, contents, Usage::default())
    }

    /// A buffer that holds workgroups of dispatches, three words each, that kernels may change.
    pub fn counts(name: impl Into<String>, grids: &[[u32; 3]]) -> Self {
        let counts = Usage {
            counts: true,
            ..Usage::default()
        };
        Self::holding(name.into(), grids, counts)
    }

    fn holding<T: Content>(name: String, data: &[T], usage: Usage) -> Self {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        let contents = Some(bytes.to_vec());
        Self::of(name, bytes.len() as u64, T::ROLE, contents, usage)
    }

    fn of(name: String, size: u64, role: Role, contents: Option<Vec<u8>>, usage: Usage) -> Self {
        Self(Arc::new(Inner {
            name,
            // Kernels bind vectors of 16 bytes, and no binding may be empty.
            size: size.next_multiple_of(16).max(16),
            role,
            contents,
            usage,
            made: OnceLock::new(),
            memory: OnceLock::new(),
        }))
    }

    /// The name of its purpose, for messages and debuggers.
    pub(super) fn name(&self) -> &str {
        &self.0.name
    }

    /// The size in bytes.
    pub fn size(&self) -> u64 {
        self.0.size
    }

    /// The kind of its content.
    pub fn role(&self) -> Role {
        self.0.role
    }

    /// Whether numbers of workgroups are read from it.
    pub fn is_counts(&self) -> bool {
        self.0.usage.counts
    }

    /// Whether it lies in host memory, so that none of its bytes are the device's.
    pub fn is_host(&self) -> bool {
        self.0.usage.host
    }

    /// Whether its bytes stay in a file.
    pub fn is_file(&self) -> bool {
        self.0.usage.file
    }

    /// Whether it lies on the device.
    pub fn is_of_device(&self) -> bool {
        !self.is_host() && !self.is_file()
    }

    /// Whether a device has made it.
    pub fn is_made(&self) -> bool {
        self.0.made.get().is_some()
    }

    /// The usage flags that a device makes it with.
    pub(super) fn usage(&self) -> BufferUsages {
        if self.is_host() {
            // wgpu puts what the host may read into its memory, cached, and allows nothing else beside these.
            return BufferUsages::STORAGE | BufferUsages::MAP_READ | BufferUsages::COPY_DST;
        }
        let mut usage = BufferUsages::STORAGE | BufferUsages::COPY_DST | BufferUsages::COPY_SRC;
        usage.set(BufferUsages::INDIRECT, self.is_counts());
        usage
    }

    /// The bytes that it begins with; `None` for zeros.
    pub(super) fn contents(&self) -> Option<&[u8]> {
        self.0.contents.as_deref()
    }

    /// Has it be `made`, unless a device has made it before.
    pub(super) fn is_now(&self, made: wgpu::Buffer) {
        self.0.made.get_or_init(|| made);
    }

    /// Has its bytes be this memory of the host.
    pub(super) fn lies_in(&self, memory: HostMemory) {
        self.0.memory.get_or_init(|| memory);
    }

    /// The memory of the host that its bytes are, where a device has made it so that the processor reaches it.
    pub fn memory(&self) -> Option<&HostMemory> {
        self.0.memory.get()
    }

    /// A buffer of a device that was made elsewhere, such as one that the host maps.
    pub fn from_made(name: impl Into<String>, made: wgpu::Buffer, role: Role) -> Self {
        let buffer = Self::of(name.into(), made.size(), role, None, Usage::default());
        assert_eq!(buffer.0.size, made.size(), "whole vectors");
        buffer.is_now(made);
        buffer
    }

    /// The buffer on the device.
    ///
    /// # Panics
    /// If nobody has made it.
    pub fn made(&self) -> &wgpu::Buffer {
        let made = self.0.made.get();
        made.unwrap_or_else(|| panic!("the buffer {} was not made yet", self.0.name))
    }
}

impl PartialEq for Buffer {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Buffer {}

impl Hash for Buffer {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({} bytes, {:?})",
            self.0.name, self.0.size, self.0.role
        )
    }
}

/// A part of a buffer, as it is bound.
#[derive(Debug, Clone)]
pub struct Range {
    /// The buffer.
    pub buffer: Buffer,
    /// First byte, a multiple of [`Target::offset_alignment`](super::Target::offset_alignment).
    pub offset: u64,
    /// The size in bytes.
    pub size: u64,
    /// The kind of content of these bytes.
    pub role: Role,
}

impl Range {
    /// The whole buffer.
    pub fn whole(buffer: &Buffer) -> Self {
        Self {
            buffer: buffer.clone(),
            offset: 0,
            size: buffer.size(),
            role: buffer.role(),
        }
    }

    /// This range, with `role` for its content.
    pub fn holding(self, role: Role) -> Self {
        Self { role, ..self }
    }

    /// All of a new buffer of `n` f32.
    pub fn floats(name: impl Into<String>, n: u64) -> Self {
        Self::whole(&Buffer::new(name, n * 4, Role::Floats))
    }

    /// All of a new buffer of `n` values prepared for products of this kind.
    pub fn prepared(name: impl Into<String>, activation: Activation, n: u32) -> Self {
        let bytes = activation.bytes(u64::from(n.div_ceil(32)));
        Self::whole(&Buffer::new(name, bytes, Role::prepared(activation)))
    }

    /// All of a new buffer of `n` u32.
    pub fn words(name: impl Into<String>, n: u64) -> Self {
        Self::whole(&Buffer::new(name, n * 4, Role::Words))
    }
}
