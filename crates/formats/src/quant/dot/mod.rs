//! Products of weights in their file's own blocks with activations as bytes, by the instructions that the processor has.
//!
//! Every type is unsigned codes with a scale and an offset for every 16 weights (`types`), and so are activations bytes with a scale for
//! every 16 values and with their sum, as [`activation`](super::activation) has them. So one loop multiplies all types, on vectors that each
//! instruction set has as it can (`simd`). Floats are multiplied by floats.
//!
//! Products of 16 codes are summed as integers. There is a sum of floats for each sixteenth of 256 weights, in the order of the row, and
//! these are added at its end. For few inputs a vector has the sums of a row (`rows`), for many it has those of 16 inputs (`abreast`). Rows
//! may also lie as a device reads them (`planes`). In every way a product of a row and an input is the same sequence of operations among any
//! other rows and inputs, whatever the vectors.

mod abreast;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod curves;
#[cfg(target_arch = "aarch64")]
mod neon;
mod planes;
mod portable;
mod rows;
mod simd;
mod types;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::sync::OnceLock;

use super::activation::quantize_half;
use super::repack::HALF;
use super::types::{GgmlType, SUPER_BLOCK};
pub use abreast::Abreast;
pub use planes::PlaneRows;
use portable::Portable;
use simd::{Simd, Work};

/// 256 consecutive values as bytes.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct ByteBlock {
    /// The values divided by their scale, -127..=127.
    codes: [[i8; 64]; 4],
    /// The scale of every 16 values.
    scales: [f32; 16],
    /// The sum of the codes of every 16 values.
    sums: [i32; 16],
    /// Scale times sum of the codes, of every 32 values, behind each of which there is a 0.
    scaled_sums: [f32; 16],
}

/// Consecutive rows of a weight as they lie in a file.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    /// The format of the blocks.
    pub ty: GgmlType,
    /// Values of a row, a multiple of 32.
    pub cols: usize,
    /// The bytes of whole rows.
    pub bytes: &'a [u8],
}

/// Rows of f16 that lie apart, such as the keys of one head in the rows of a cache.
#[derive(Clone, Copy)]
pub struct Apart<'a> {
    /// The values from the beginning of the first row on. The last row may end behind what is read of it.
    pub values: &'a [half::f16],
    /// Values from the beginning of a row to that of the next.
    pub stride: usize,
}

impl Apart<'_> {
    /// Panics if there are no `count` rows with `cols` values to be read, or these are no multiple of 32.
    fn check(self, count: usize, cols: usize) {
        let fits = cols <= self.stride && cols.is_multiple_of(32);
        assert!(fits, "{cols} of the {} values of a row", self.stride);
        let reach = count.saturating_sub(1) * self.stride + cols;
        assert!(count == 0 || reach <= self.values.len(), "{count} rows");
    }
}

/// A row of activations.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// The values, for weights that are floats.
    pub floats: &'a [f32],
    /// The values as bytes, for weights that are not: see [`takes_bytes`].
    pub bytes: &'a [ByteBlock],
}

/// Whether weights of this type are multiplied by bytes; the others are floats.
pub const fn takes_bytes(ty: GgmlType) -> bool {
    !matches!(ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16)
}

/// The blocks of a row of `cols` values.
pub const fn byte_blocks(cols: usize) -> usize {
    cols.div_ceil(SUPER_BLOCK)
}

/// A set of instructions that this processor has.
#[derive(Clone, Copy)]
pub struct Instructions(Set);

#[derive(Clone, Copy)]
enum Set {
    Portable(Portable),
    #[cfg(target_arch = "x86_64")]
    Avx2(x86::Avx2<false>),
    #[cfg(target_arch = "x86_64")]
    AvxVnni(x86::Avx2<true>),
    #[cfg(target_arch = "x86_64")]
    Avx512(x86::Avx512),
    #[cfg(target_arch = "aarch64")]
    Neon(neon::Neon<false>),
    #[cfg(target_arch = "aarch64")]
    NeonDot(neon::Neon<true>),
}

impl Instructions {
    /// The fastest.
    pub fn best() -> Self {
        static BEST: OnceLock<Instructions> = OnceLock::new();
        *BEST.get_or_init(|| {
            let all = Self::all();
            all[all.len() - 1]
        })
    }

    /// All that this processor has, the fastest last.
    pub fn all() -> Vec<Self> {
        #[cfg_attr(
            not(any(target_arch = "x86_64", target_arch = "aarch64")),
            expect(unused_mut, reason = "other processors have plain code alone")
        )]
        let mut sets = vec![Set::Portable(Portable)];
        #[cfg(target_arch = "x86_64")]
        {
            sets.extend(x86::Avx2::plain().map(Set::Avx2));
            sets.extend(x86::Avx2::vnni().map(Set::AvxVnni));
            sets.extend(x86::Avx512::found().map(Set::Avx512));
        }
        #[cfg(target_arch = "aarch64")]
        {
            sets.push(Set::Neon(neon::Neon::plain()));
            sets.extend(neon::Neon::dotprod().map(Set::NeonDot));
        }
        sets.into_iter().map(Instructions).collect()
    }

    /// Whether there is no code for instructions of the processor.
    pub fn are_plain(self) -> bool {
        matches!(self.0, Set::Portable(_))
    }

    /// The set's name.
    pub fn name(self) -> &'static str {
        match self.0 {
            Set::Portable(_) => "plain code",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2(_) => "AVX2",
            #[cfg(target_arch = "x86_64")]
            Set::AvxVnni(_) => "AVX-VNNI",
            #[cfg(target_arch = "x86_64")]
            Set::Avx512(_) => "AVX-512 VNNI",
            #[cfg(target_arch = "aarch64")]
            Set::Neon(_) => "NEON",
            #[cfg(target_arch = "aarch64")]
            Set::NeonDot(_) => "NEON dotprod",
        }
    }

    fn run(self, work: impl Work) {
        match self.0 {
            Set::Portable(simd) => simd.run(work),
            #[cfg(target_arch = "x86_64")]
            Set::Avx2(simd) => simd.run(work),
            #[cfg(target_arch = "x86_64")]
            Set::AvxVnni(simd) => simd.run(work),
            #[cfg(target_arch = "x86_64")]
            Set::Avx512(simd) => simd.run(work),
            #[cfg(target_arch = "aarch64")]
            Set::Neon(simd) => simd.run(work),
            #[cfg(target_arch = "aarch64")]
            Set::NeonDot(simd) => simd.run(work),
        }
    }

    /// The values as bytes, the last block filled up with zeroes. A block with a value that is not finite has such a scale.
    ///
    /// # Panics
    /// If the blocks are not as many as [`byte_blocks`] says.
    pub fn quantize(self, x: &[f32], to: &mut [ByteBlock]) {
        assert_eq!(
            to.len(),
            byte_blocks(x.len()),
            "blocks of {} values",
            x.len()
        );
        self.run(Quantize { x, to });
    }

    /// `out[i][r]` = row r . `inputs[i]`.
    ///
    /// # Panics
    /// If a size does not fit the others.
    pub fn multiply(self, rows: Rows<'_>, inputs: &[Input<'_>], out: &mut [&mut [f32]]) {
        self.run(rows::Multiply::new(rows, inputs, out));
    }

    /// The number of inputs from which on [`multiply_abreast`](Self::multiply_abreast) is faster.
    pub fn many(self) -> usize {
        struct Many<'a>(&'a mut usize);
        impl Work for Many<'_> {
            #[inline(always)]
            fn run<S: Simd>(self, _: S) {
                *self.0 = S::ABREAST;
            }
        }
        let mut many = 0;
        self.run(Many(&mut many));
        many
    }

    /// [`multiply`](Self::multiply) with many inputs, to the same bits.
    ///
    /// # Panics
    /// If a size does not fit the others, or the rows are floats.
    pub fn multiply_abreast(self, rows: Rows<'_>, inputs: &[Abreast], out: &mut [&mut [f32]]) {
        self.run(abreast::Multiply { rows, inputs, out });
    }

    /// `gate[i] = silu(gate[i]) * up[i]`, of finite values.
    ///
    /// # Panics
    /// If there are fewer `up`.
    pub fn silu_times(self, gate: &mut [f32], up: &[f32]) {
        assert!(gate.len() <= up.len(), "a gate of {} values", gate.len());
        self.run(curves::SiluTimes { gate, up });
    }

    /// Each x becomes e^(scale * (x - the largest)). The result is `scale` times the largest, and the sum of the new values.
    pub fn exponentials(self, x: &mut [f32], scale: f32) -> [f32; 2] {
        let mut found = [f32::NEG_INFINITY, 0.0];
        let stats = &mut found;
        self.run(curves::Exponentials { x, scale, stats });
        found
    }

    /// `out[i][r]` = row r . `inputs[i]`, to the bits of [`multiply`](Self::multiply).
    ///
    /// # Panics
    /// If inputs are of several lengths, no multiples of 32 or longer than a row, or if there are more outputs than rows.
    pub fn multiply_apart(self, rows: Apart<'_>, inputs: &[Input<'_>], out: &mut [&mut [f32]]) {
        self.run(rows::Multiply::apart(rows, inputs, out));
    }

    /// `out[i]` = sum over r of `weights[i][r]` * row r, of as many of the first values of a row as an output has.
    ///
    /// # Panics
    /// If an output is no multiple of 32 or longer than a row, or if there are more weights than rows.
    pub fn add_rows(self, rows: Apart<'_>, weights: &[&[f32]], out: &mut [&mut [f32]]) {
        self.run(rows::AddRows { rows, weights, out });
    }
}

struct Quantize<'a> {
    x: &'a [f32],
    to: &'a mut [ByteBlock],
}

impl Work for Quantize<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let ones = simd.bytes(&[1; 64]);
        for (values, block) in self.x.chunks(SUPER_BLOCK).zip(self.to) {
            let (halves, _) = values.as_chunks::<HALF>();
            let (codes, _) = block.codes.as_flattened_mut().as_chunks_mut::<HALF>();
            codes[halves.len()..].fill([0; HALF]);
            block.scales[halves.len()..].fill(0.0);
            let places = codes.iter_mut().zip(&mut block.scales);
            for (values, (codes, scale)) in halves.iter().zip(places) {
                (*codes, *scale) = quantize_half(values);
            }
            let sums = simd.dots([ones; 4], &block.codes, false);
            simd.put_ints(sums, &mut block.sums);
            let scales = simd.floats(&block.scales);
            let mut scaled = [0.0; 16];
            simd.store(simd.mul(scales, simd.to_floats(sums)), &mut scaled);
            for (to, pair) in block.scaled_sums.chunks_mut(2).zip(scaled.chunks(2)) {
                to.copy_from_slice(&[pair[0] + pair[1], 0.0]);
            }
        }
    }
}

impl ByteBlock {
    /// A block of zeroes.
    pub const ZERO: Self = Self {
        codes: [[0; 64]; 4],
        scales: [0.0; 16],
        sums: [0; 16],
        scaled_sums: [0.0; 16],
    };

    /// The values that it stands for.
    #[cfg(test)]
    fn values(&self) -> [f32; SUPER_BLOCK] {
        let codes = self.codes.as_flattened();
        std::array::from_fn(|i| self.scales[i / HALF] * f32::from(codes[i]))
    }
}

#[cfg(test)]
mod tests;
