//! The rows of a cache in each of its types: how their values are stored.

use super::cache_type::BLOCK;
use super::{CacheType, GroupedDims, MlaDims};
use crate::gpu::call::Call;
use crate::gpu::shader::Variant;
use half::f16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;
use std::borrow::Cow;

/// Words of 16 bits in the 16 bytes that kernels load at once.
const WORDS_AT_ONCE: usize = 8;

/// The layout of a cache row: values that may be codes, then values that are in F16 in every type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// The type of the cache.
    pub cache: CacheType,
    /// Values that Q8_0 has as codes: the latent, or the keys of all key heads and then the values of all.
    pub coded: usize,
    /// Values behind them that stay in F16: the rotated key that all heads of latent attention share.
    pub plain: usize,
}

impl MlaDims {
    /// The layout of a cache row: the latent, then the rotated key that all heads share.
    pub const fn rows(&self) -> Rows {
        Rows {
            cache: self.cache,
            coded: self.kv_lora,
            plain: self.rope,
        }
    }

    /// Values of a cache row.
    pub const fn cache_values(&self) -> usize {
        self.rows().values()
    }

    /// Words of 16 bits in a cache row.
    pub const fn cache_row(&self) -> usize {
        self.rows().words()
    }

    /// Whether a row of these sizes has whole blocks of its type.
    pub const fn has_whole_blocks(&self) -> bool {
        match self.cache {
            CacheType::F16 => true,
            CacheType::Q8_0 => self.kv_lora.is_multiple_of(BLOCK),
        }
    }
}

impl GroupedDims {
    /// The layout of a cache row: the rotated keys of all key heads, then the values of all.
    pub const fn rows(&self) -> Rows {
        Rows {
            cache: self.cache,
            coded: self.kv_heads * (self.key + self.value),
            plain: 0,
        }
    }

    /// Values of a cache row.
    pub const fn cache_values(&self) -> usize {
        self.rows().values()
    }

    /// Words of 16 bits in a cache row.
    pub const fn cache_row(&self) -> usize {
        self.rows().words()
    }

    /// Whether every head of a row of these sizes has whole blocks of its type. Those of Q8_0 come in pairs, whose scales share a word of 32
    /// bits: what writes a head writes whole words.
    pub const fn has_whole_blocks(&self) -> bool {
        const PAIR: usize = 2 * BLOCK;
        match self.cache {
            CacheType::F16 => true,
            CacheType::Q8_0 => self.key.is_multiple_of(PAIR) && self.value.is_multiple_of(PAIR),
        }
    }
}

impl Rows {
    /// Values of a row.
    pub const fn values(&self) -> usize {
        self.coded + self.plain
    }

    /// Words of 16 bits in a row: its values in F16. In Q8_0 they are the codes, two in a word, then the scales of their blocks and zeros up to
    /// whole 16 bytes, then the values in F16 and again zeros (`shared/cache_codes.wgsl`).
    pub const fn words(&self) -> usize {
        match self.cache {
            CacheType::F16 => self.values(),
            CacheType::Q8_0 => (self.plain_word() + self.plain).next_multiple_of(WORDS_AT_ONCE),
        }
    }

    /// The word of a row with the first value that is always in F16.
    pub const fn plain_word(&self) -> usize {
        match self.cache {
            CacheType::F16 => self.coded,
            CacheType::Q8_0 => {
                self.coded / 2 + (self.coded / BLOCK).next_multiple_of(WORDS_AT_ONCE)
            }
        }
    }

    /// `call` of a kernel that reads or writes such rows.
    pub(super) fn read_by(&self, mut call: Call) -> Call {
        call.variant = self.in_variant(call.variant);
        call
    }

    /// `variant` of such a kernel.
    pub(super) fn in_variant(&self, variant: Variant) -> Variant {
        match self.cache {
            CacheType::F16 => variant,
            CacheType::Q8_0 => variant
                .flag("CODES", true)
                .number("CACHE_WORDS", self.words() as u32)
                .number("CODED", self.coded as u32),
        }
    }

    /// Writes a cache row, [`words`](Self::words) long, of these [`values`](Self::values). A scale of Q8_0 is the greatest magnitude of its
    /// block over 127 (ggml-quants.c, quantize_row_q8_0).
    ///
    /// # Panics
    /// If a length is another, or the values that Q8_0 has as codes are no whole blocks.
    pub fn write(&self, values: &[f32], row: &mut [f16]) {
        assert_eq!([values.len(), row.len()], [self.values(), self.words()]);
        if self.cache == CacheType::F16 {
            row.convert_from_f32_slice(values);
            return;
        }
        assert!(self.coded.is_multiple_of(BLOCK), "whole blocks: {self:?}");
        let (coded, plain) = values.split_at(self.coded);
        let (codes, others) = row.split_at_mut(self.coded / 2);
        others.fill(f16::ZERO);
        let (scales, others) = others.split_at_mut(self.plain_word() - self.coded / 2);
        others[..self.plain].convert_from_f32_slice(plain);
        let codes: &mut [i8] = bytemuck::cast_slice_mut(codes);
        let blocks = coded
            .as_chunks::<BLOCK>()
            .0
            .iter()
            .zip(codes.as_chunks_mut::<BLOCK>().0);
        for ((values, codes), scale) in blocks.zip(scales) {
            let most = values.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            let one = most / 127.0;
            let inverse = if one > 0.0 { 1.0 / one } else { 0.0 };
            *scale = f16::from_f32(one);
            for (code, x) in codes.iter_mut().zip(values) {
                *code = (x * inverse).round() as i8;
            }
        }
    }

    /// Cache rows of these values (rows, values).
    ///
    /// # Panics
    /// The cases in which [`write`](Self::write) panics.
    pub fn write_all(&self, values: &[f32]) -> Vec<f16> {
        let (row, width) = (self.words(), self.values());
        let mut rows = vec![f16::ZERO; values.len() / width * row];
        let both = values.chunks_exact(width).zip(rows.chunks_exact_mut(row));
        both.for_each(|(values, row)| self.write(values, row));
        rows
    }

    /// Reads the values  of a cache row, [`words`](Self::words) long.
    ///
    /// # Panics
    /// If a length is another.
    pub fn read(&self, row: &[f16], values: &mut [f32]) {
        assert_eq!([values.len(), row.len()], [self.values(), self.words()]);
        if self.cache == CacheType::F16 {
            row.convert_to_f32_slice(values);
            return;
        }
        let (coded, plain) = values.split_at_mut(self.coded);
        let (codes, others) = row.split_at(self.coded / 2);
        let (scales, others) = others.split_at(self.plain_word() - self.coded / 2);
        others[..self.plain].convert_to_f32_slice(plain);
        let codes: &[i8] = bytemuck::cast_slice(codes);
        let blocks = coded.chunks_exact_mut(BLOCK).zip(codes.chunks_exact(BLOCK));
        for ((values, codes), scale) in blocks.zip(scales) {
            let scale = scale.to_f32();
            for (x, code) in values.iter_mut().zip(codes) {
                *x = f32::from(*code) * scale;
            }
        }
    }

    /// Cache rows in F16, for instructions that read these: the rows themselves, or what rows of another type are rounded to f16.
    pub fn in_f16<'a>(&self, cache: &'a [f16]) -> Cow<'a, [f16]> {
        match self.cache {
            CacheType::F16 => Cow::Borrowed(cache),
            CacheType::Q8_0 => Cow::Owned(self.mapped(cache, |row, values| {
                let mut wide = vec![0.0; values.len()];
                self.read(row, &mut wide);
                values.convert_from_f32_slice(&wide);
            })),
        }
    }

    /// The values (rows, values) of cache rows, by all threads.
    pub fn read_all(&self, cache: &[f16]) -> Vec<f32> {
        self.mapped(cache, |row, values| self.read(row, values))
    }

    /// The values of all cache rows, (rows, values). `read` makes those of a row, and all threads share the rows.
    fn mapped<T: Default + Copy + Send>(
        &self,
        cache: &[f16],
        read: impl Fn(&[f16], &mut [T]) + Sync,
    ) -> Vec<T> {
        const AT_ONCE: usize = 64;
        let (row, width) = (self.words(), self.values());
        let mut values = vec![T::default(); cache.len() / row * width];
        values
            .par_chunks_mut(AT_ONCE * width)
            .zip(cache.par_chunks(AT_ONCE * row))
            .for_each(|(values, rows)| {
                let rows = rows.chunks_exact(row);
                let both = values.chunks_exact_mut(width).zip(rows);
                both.for_each(|(values, row)| read(row, values));
            });
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Pairing;
    use crate::kernels::testing::{Rng, assert_half_a_code};

    const GLM: MlaDims = crate::kernels::cases::attention::GLM;

    #[test]
    fn rows_have_the_bytes_that_the_documents_say() {
        let q8_0 = GLM.with_cache(CacheType::Q8_0);
        assert_eq!([GLM, q8_0].map(|dims| dims.cache_row() * 2), [1152, 672]);
        // Small models: scales are padded to whole 16 bytes.
        let small = MlaDims {
            kv_lora: 64,
            rope: 32,
            ..q8_0
        };
        assert_eq!(small.cache_row() * 2, 144);
        let whole = |kv_lora| MlaDims { kv_lora, ..q8_0 }.has_whole_blocks();
        assert_eq!([whole(512), whole(48)], [true, false]);
        // Qwen3 30B A3B, 1.88 times as many rows in the same memory; and heads that would share words with their neighbours.
        let qwen3 = |cache, key, value| GroupedDims {
            heads: 32,
            kv_heads: 4,
            key,
            value,
            rope: 32,
            pairing: Pairing::Halves,
            cache,
        };
        let bytes = CacheType::ALL.map(|cache| qwen3(cache, 128, 128).cache_row() * 2);
        assert_eq!(bytes, [2048, 1088]);
        let whole = [[128, 128], [64, 192], [96, 64], [64, 96]];
        let whole = whole.map(|[key, value]| qwen3(CacheType::Q8_0, key, value).has_whole_blocks());
        assert_eq!(whole, [true, true, false, false]);
    }

    #[test]
    fn a_row_comes_back_within_half_a_code_of_its_block() {
        let mut rng = Rng::fresh();
        let dims = MlaDims {
            kv_lora: 96,
            rope: 20,
            ..GLM
        }
        .with_cache(CacheType::Q8_0);
        let mut values = rng.normals(2 * dims.cache_values());
        // A block of zeros, and one that a single large value coarsens.
        values[32..64].fill(0.0);
        values[64] = 100.0;
        let mut rows = vec![f16::NAN; 2 * dims.cache_row()];
        for (values, row) in values
            .chunks(dims.cache_values())
            .zip(rows.chunks_mut(dims.cache_row()))
        {
            dims.rows().write(values, row);
        }
        let read = dims.rows().read_all(&rows);
        for (values, read) in values
            .chunks(dims.cache_values())
            .zip(read.chunks(dims.cache_values()))
        {
            let coded: Vec<f64> = values[..96].iter().map(|x| f64::from(*x)).collect();
            assert_half_a_code(&read[..96], &coded);
            for (x, y) in values[96..].iter().zip(&read[96..]) {
                assert_eq!(f16::from_f32(*x).to_f32(), *y);
            }
        }
        assert!(read[32..64].iter().all(|x| *x == 0.0));
    }
}
