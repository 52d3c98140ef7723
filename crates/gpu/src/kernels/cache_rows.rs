//! The rows of a cache of latent attention in each of its types: how their values are stored.

use super::cache_type::BLOCK;
use super::{CacheType, MlaDims};
use crate::gpu::call::Call;
use crate::gpu::shader::Variant;
use half::f16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;
use std::borrow::Cow;

/// Words of 16 bits in the 16 bytes that kernels load at once.
const WORDS_AT_ONCE: usize = 8;

impl MlaDims {
    /// Values of a cache row: the latent, then the rotated key that all heads share.
    pub const fn cache_values(&self) -> usize {
        self.kv_lora + self.rope
    }

    /// Words of 16 bits in a cache row: its values in F16. In Q8_0 they are the codes of the latent, two in a word, then the scales of its
    /// blocks and zeros up to whole 16 bytes, then the rotated values and again zeros (`shared/cache_codes.wgsl`).
    pub const fn cache_row(&self) -> usize {
        match self.cache {
            CacheType::F16 => self.cache_values(),
            CacheType::Q8_0 => (self.rotated_word() + self.rope).next_multiple_of(WORDS_AT_ONCE),
        }
    }

    /// The word of a cache row with the first rotated value.
    pub const fn rotated_word(&self) -> usize {
        match self.cache {
            CacheType::F16 => self.kv_lora,
            CacheType::Q8_0 => {
                self.kv_lora / 2 + (self.kv_lora / BLOCK).next_multiple_of(WORDS_AT_ONCE)
            }
        }
    }

    /// `call` of a kernel that reads or writes such rows.
    pub(super) fn with_rows(&self, mut call: Call) -> Call {
        call.variant = self.rows_in(call.variant);
        call
    }

    /// `variant` of such a kernel.
    pub(super) fn rows_in(&self, variant: Variant) -> Variant {
        match self.cache {
            CacheType::F16 => variant,
            CacheType::Q8_0 => variant
                .flag("CODES", true)
                .number("CACHE_WORDS", self.cache_row() as u32),
        }
    }

    /// Whether a row of these sizes has whole blocks of its [type](Self::cache).
    pub const fn has_whole_blocks(&self) -> bool {
        match self.cache {
            CacheType::F16 => true,
            CacheType::Q8_0 => self.kv_lora.is_multiple_of(BLOCK),
        }
    }

    /// Writes a cache row, [`cache_row`](Self::cache_row) words, of these `values` (kv_lora + rope). A scale of Q8_0 is the greatest magnitude of its
    /// block over 127 (ggml-quants.c, quantize_row_q8_0).
    ///
    /// # Panics
    /// If a length is another, or a latent in Q8_0 has no whole blocks.
    pub fn write_row(&self, values: &[f32], row: &mut [f16]) {
        assert_eq!(
            [values.len(), row.len()],
            [self.cache_values(), self.cache_row()]
        );
        if self.cache == CacheType::F16 {
            row.convert_from_f32_slice(values);
            return;
        }
        assert!(self.has_whole_blocks(), "whole blocks: {self:?}");
        let (latent, rotated) = values.split_at(self.kv_lora);
        let (codes, others) = row.split_at_mut(self.kv_lora / 2);
        others.fill(f16::ZERO);
        let (scales, others) = others.split_at_mut(self.rotated_word() - self.kv_lora / 2);
        others[..self.rope].convert_from_f32_slice(rotated);
        let codes: &mut [i8] = bytemuck::cast_slice_mut(codes);
        let blocks = latent
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

    /// Cache rows of these values (rows, kv_lora + rope).
    ///
    /// # Panics
    /// As [`write_row`](Self::write_row).
    pub fn write_rows(&self, values: &[f32]) -> Vec<f16> {
        let (row, width) = (self.cache_row(), self.cache_values());
        let mut rows = vec![f16::ZERO; values.len() / width * row];
        let both = values.chunks_exact(width).zip(rows.chunks_exact_mut(row));
        both.for_each(|(values, row)| self.write_row(values, row));
        rows
    }

    /// Reads the values (kv_lora + rope) of a cache row, [`cache_row`](Self::cache_row) words.
    ///
    /// # Panics
    /// If a length is another.
    pub fn read_row(&self, row: &[f16], values: &mut [f32]) {
        assert_eq!(
            [values.len(), row.len()],
            [self.cache_values(), self.cache_row()]
        );
        if self.cache == CacheType::F16 {
            row.convert_to_f32_slice(values);
            return;
        }
        let (latent, rotated) = values.split_at_mut(self.kv_lora);
        let (codes, others) = row.split_at(self.kv_lora / 2);
        let (scales, others) = others.split_at(self.rotated_word() - self.kv_lora / 2);
        others[..self.rope].convert_to_f32_slice(rotated);
        let codes: &[i8] = bytemuck::cast_slice(codes);
        let blocks = latent
            .chunks_exact_mut(BLOCK)
            .zip(codes.chunks_exact(BLOCK));
        for ((values, codes), scale) in blocks.zip(scales) {
            let scale = scale.to_f32();
            for (x, code) in values.iter_mut().zip(codes) {
                *x = f32::from(*code) * scale;
            }
        }
    }

    /// Cache rows in F16, for instructions that read these: the rows themselves, or what rows of another type are rounded to f16.
    pub fn rows_in_f16<'a>(&self, cache: &'a [f16]) -> Cow<'a, [f16]> {
        match self.cache {
            CacheType::F16 => Cow::Borrowed(cache),
            CacheType::Q8_0 => Cow::Owned(self.mapped(cache, |row, values| {
                let mut wide = vec![0.0; values.len()];
                self.read_row(row, &mut wide);
                values.convert_from_f32_slice(&wide);
            })),
        }
    }

    /// The values (rows, kv_lora + rope) of cache rows, by all threads.
    pub fn read_rows(&self, cache: &[f16]) -> Vec<f32> {
        self.mapped(cache, |row, values| self.read_row(row, values))
    }

    /// The values of all cache rows, (rows, kv_lora + rope). `read` makes those of a row, and all threads share the rows.
    fn mapped<T: Default + Copy + Send>(
        &self,
        cache: &[f16],
        read: impl Fn(&[f16], &mut [T]) + Sync,
    ) -> Vec<T> {
        const AT_ONCE: usize = 64;
        let (row, width) = (self.cache_row(), self.cache_values());
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
    use crate::kernels::testing::Rng;

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
            dims.write_row(values, row);
        }
        let read = dims.read_rows(&rows);
        for (values, read) in values
            .chunks(dims.cache_values())
            .zip(read.chunks(dims.cache_values()))
        {
            for (block, found) in values[..96].chunks(32).zip(read.chunks(32)) {
                let most = block.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                // Half a code, and the scale's own rounding to f16.
                let bound = most * (0.5 / 127.0 + 1.0 / 2048.0);
                for (x, y) in block.iter().zip(found) {
                    assert!((x - y).abs() <= bound, "{x} came back as {y}");
                }
            }
            for (x, y) in values[96..].iter().zip(&read[96..]) {
                assert_eq!(f16::from_f32(*x).to_f32(), *y);
            }
        }
        assert!(read[32..64].iter().all(|x| *x == 0.0));
    }
}
