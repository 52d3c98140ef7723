//! The sizes of attention blocks.

use super::CacheType;
use crate::gpu::shader::Variant;

/// The sizes of one multi-head latent attention block (DeepSeek-V2 paper, section 2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MlaDims {
    /// Number of query heads, `attention.head_count`.
    pub heads: usize,
    /// Width of the part of a query or key head that is not rotated.
    pub nope: usize,
    /// Width of the rotated part, `rope.dimension_count`; even.
    pub rope: usize,
    /// Width of the latent, `attention.kv_lora_rank`.
    pub kv_lora: usize,
    /// The type of the cache's rows.
    pub cache: CacheType,
}

impl MlaDims {
    /// Width of one query head before absorption: nope + rope.
    pub fn head(&self) -> usize {
        self.nope + self.rope
    }

    /// The sizes with a cache of another type.
    pub const fn with_cache(self, cache: CacheType) -> Self {
        Self { cache, ..self }
    }
}

/// The sizes of one attention block whose query heads share keys and values in groups (Ainslie et al. 2023, arXiv 2305.13245).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupedDims {
    /// Number of query heads, `attention.head_count`.
    pub heads: usize,
    /// Number of key heads and of value heads, `attention.head_count_kv`: a divisor of the query heads.
    pub kv_heads: usize,
    /// Width of a query or key head, `attention.key_length`.
    pub key: usize,
    /// Width of a value head, `attention.value_length`.
    pub value: usize,
    /// Width of the rotated part, with which a query or key head begins, `rope.dimension_count`; even.
    pub rope: usize,
    /// Which two values of the rotated part are turned together.
    pub pairing: Pairing,
    /// The type of the cache's rows.
    pub cache: CacheType,
}

/// Which two values of a rotated part are turned together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairing {
    /// Neighbours, 2i and 2i + 1.
    Adjacent,
    /// One of the first half and one of the second, i and i + rope / 2.
    Halves,
}

impl GroupedDims {
    /// Query heads that share a key head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// The sizes with a cache of another type.
    pub const fn with_cache(self, cache: CacheType) -> Self {
        Self { cache, ..self }
    }
}

/// The sizes of an attention block as the attention of prompts needs them. Its keys and values lie in rows: the keys of all key heads, then
/// the values of all.
pub(crate) trait PromptDims: Copy + std::fmt::Debug {
    /// The widths of a head.
    fn widths(self) -> HeadWidths;

    /// The constants of the attention's kernels.
    fn numbers_of_attention(self) -> Variant;
}

/// The widths of a head in the attention of prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeadWidths {
    /// Width of the part of a query or key that lies beside the values.
    pub key: usize,
    /// Width of the part that is rotated in the kernel, and whose keys all heads share; 0 if queries and keys come whole.
    pub rotated: usize,
    /// Width of a value.
    pub value: usize,
    /// Keys or values that a thread loads at once, 8 bytes: 4 of f16, or 8 codes of a cache in Q8_0.
    pub vector: usize,
}

impl HeadWidths {
    /// Width of a whole query or key.
    pub fn head(self) -> usize {
        self.key + self.rotated
    }

    /// All three.
    pub fn all(self) -> [usize; 3] {
        [self.key, self.rotated, self.value]
    }
}

impl PromptDims for GroupedDims {
    fn widths(self) -> HeadWidths {
        HeadWidths {
            key: self.key,
            rotated: 0,
            value: self.value,
            vector: match self.cache {
                CacheType::F16 => 4,
                CacheType::Q8_0 => 8,
            },
        }
    }

    fn numbers_of_attention(self) -> Variant {
        self.rows()
            .in_variant(Variant::default())
            .flag("GROUPED", true)
            .flag("KV_CODES", self.cache == CacheType::Q8_0)
            .number("HEADS", self.heads as u32)
            .number("GROUP", self.group() as u32)
            .number("NOPE", self.key as u32)
            .number("ROPE", 0)
            .number("V", self.value as u32)
    }
}

/// The sizes of an attention block whose keys and values are expanded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvDims {
    /// The sizes of the latent form.
    pub mla: MlaDims,
    /// Width of a value head, `attention.value_length_mla`.
    pub v: usize,
}

impl KvDims {
    /// The sizes with a cache of another type.
    pub const fn with_cache(self, cache: CacheType) -> Self {
        Self {
            mla: self.mla.with_cache(cache),
            ..self
        }
    }

    /// Values that a context row expands to: the keys of all heads without their rotated part, then the values of all heads.
    pub fn width(&self) -> usize {
        self.mla.heads * (self.mla.nope + self.v)
    }

    /// Bytes of the expansion's weights (width, kv_lora), for matrices or in f32.
    pub fn weight_bytes(&self, matrices: bool) -> u64 {
        (self.width() * self.mla.kv_lora) as u64 * value_bytes(matrices)
    }

    /// Bytes of `rows` expanded rows (rows, width), for matrices or in f32.
    pub fn kv_bytes(&self, rows: usize, matrices: bool) -> u64 {
        (rows * self.width()) as u64 * value_bytes(matrices)
    }

    /// The constants of the expansion's kernels.
    pub(super) fn numbers_of_expansion(self) -> Variant {
        let rows = self.mla.rows();
        let variant = match rows.cache {
            CacheType::F16 => Variant::default(),
            CacheType::Q8_0 => Variant::default()
                .flag("CODES", true)
                .number("CODED", rows.coded as u32),
        };
        variant
            .number("KV_LORA", self.mla.kv_lora as u32)
            .number("CACHE_ROW", self.mla.cache_row() as u32)
            .number("WIDTH", self.width() as u32)
    }
}

impl PromptDims for KvDims {
    fn widths(self) -> HeadWidths {
        HeadWidths {
            key: self.mla.nope,
            rotated: self.mla.rope,
            value: self.v,
            vector: 4,
        }
    }

    fn numbers_of_attention(self) -> Variant {
        self.mla
            .rows()
            .in_variant(Variant::default())
            .number("HEADS", self.mla.heads as u32)
            .number("NOPE", self.mla.nope as u32)
            .number("ROPE", self.mla.rope as u32)
            .number("KV_LORA", self.mla.kv_lora as u32)
            .number("V", self.v as u32)
    }
}

fn value_bytes(matrices: bool) -> u64 {
    if matrices { 2 } else { 4 }
}
