//! Plain Rust, of which the compiler makes vectors as it can: for processors and targets that have no code of their own.

use std::array::from_fn;

use half::{bf16, f16};

use super::simd::{BYTES, FLOATS, Simd, Strips, Work, sum};

/// No instructions in particular.
#[derive(Clone, Copy)]
pub(super) struct Portable;

impl Portable {
    pub(super) fn run(self, work: impl Work) {
        work.run(self);
    }
}

impl Simd for Portable {
    type Bytes = [u8; BYTES];
    type Ints = [i32; FLOATS];
    type Floats = [f32; FLOATS];
    const BIAS: i32 = 0;
    const ABREAST: usize = 16;

    #[inline(always)]
    fn strips(self, strips: impl Strips) {
        strips.run::<Self, 4>(self);
    }

    #[inline(always)]
    fn bytes(self, bytes: &[u8; 64]) -> [u8; 64] {
        *bytes
    }

    #[inline(always)]
    fn put(self, bytes: [u8; 64], to: &mut [u8; 64]) {
        *to = bytes;
    }

    #[inline(always)]
    fn join(self, low: &[u8; 32], high: &[u8; 32]) -> [u8; 64] {
        from_fn(|i| if i < 32 { low[i] } else { high[i - 32] })
    }

    #[inline(always)]
    fn nibbles(self, a: &[u8; 16], b: &[u8; 16]) -> [u8; 64] {
        let mut out = [0; 64];
        for i in 0..16 {
            out[i] = a[i] & 15;
            out[i + 16] = a[i] >> 4;
            out[i + 32] = b[i] & 15;
            out[i + 48] = b[i] >> 4;
        }
        out
    }

    #[inline(always)]
    fn sixteens(self, low: [u8; 4], high: [u8; 4]) -> [u8; 64] {
        let bits = u64::from(u32::from_le_bytes(low)) | u64::from(u32::from_le_bytes(high)) << 32;
        from_fn(|i| if bits >> i & 1 == 1 { 16 } else { 0 })
    }

    #[inline(always)]
    fn codes(self, bytes: [u8; 64], low: u32, high: u32, mask: u8) -> [u8; 64] {
        from_fn(|i| bytes[i] >> if i < 32 { low } else { high } & mask)
    }

    #[inline(always)]
    fn above(self, low: [u8; 64], high: [u8; 64], bits: u32) -> [u8; 64] {
        from_fn(|i| low[i] | high[i] << bits)
    }

    #[inline(always)]
    fn fields(self, words: [u32; 4], bits: u32) -> [u8; 64] {
        let mask = (1 << bits) - 1;
        from_fn(|i| words[i / 16].to_le_bytes()[i % 4] >> (bits * (i as u32 / 4 % 4)) & mask)
    }

    #[inline(always)]
    fn look_up(self, table: &[i8; 16], indices: [u8; 64]) -> [u8; 64] {
        indices.map(|i| table[usize::from(i & 15)] as u8)
    }

    #[inline(always)]
    fn signed(self, codes: [u8; 64]) -> [u8; 64] {
        codes
    }

    #[inline(always)]
    fn dots(self, codes: [[u8; 64]; 4], x: &[[i8; 64]; 4], _wide: bool) -> [i32; 16] {
        // Codes that are not wide are below 128, so all are signed bytes.
        let (codes, _) = codes.as_flattened().as_chunks::<16>();
        let (x, _) = x.as_flattened().as_chunks::<16>();
        let mut sums = [0; 16];
        for (sum, (codes, x)) in sums.iter_mut().zip(codes.iter().zip(x)) {
            for (code, x) in codes.iter().zip(x) {
                *sum += i32::from(*code as i8) * i32::from(*x);
            }
        }
        sums
    }

    #[inline(always)]
    fn dot_four(self, sums: [i32; 16], codes: &[u8; 4], x: &[i8; 64], _wide: bool) -> [i32; 16] {
        let codes = codes.map(|code| i32::from(code as i8));
        from_fn(|i| {
            let products: [i32; 4] = from_fn(|j| codes[j] * i32::from(x[4 * i + j]));
            sums[i] + products.iter().sum::<i32>()
        })
    }

    #[inline(always)]
    fn ints(self, values: &[i32; 16]) -> [i32; 16] {
        *values
    }

    #[inline(always)]
    fn put_ints(self, values: [i32; 16], to: &mut [i32; 16]) {
        *to = values;
    }

    #[inline(always)]
    fn less(self, a: [i32; 16], b: [i32; 16], factor: i32) -> [i32; 16] {
        from_fn(|i| a[i] - b[i] * factor)
    }

    #[inline(always)]
    fn to_floats(self, values: [i32; 16]) -> [f32; 16] {
        values.map(|value| value as f32)
    }

    #[inline(always)]
    fn floats(self, values: &[f32; 16]) -> [f32; 16] {
        *values
    }

    #[inline(always)]
    fn store(self, values: [f32; 16], to: &mut [f32; 16]) {
        *to = values;
    }

    #[inline(always)]
    fn splat(self, value: f32) -> [f32; 16] {
        [value; 16]
    }

    #[inline(always)]
    fn singles(self, bytes: &[u8; 64]) -> [f32; 16] {
        let (words, _) = bytes.as_chunks::<4>();
        from_fn(|i| f32::from_le_bytes(words[i]))
    }

    #[inline(always)]
    fn halves(self, halves: &[u8; 32]) -> [f32; 16] {
        from_fn(|i| f16::from_le_bytes([halves[2 * i], halves[2 * i + 1]]).to_f32())
    }

    #[inline(always)]
    fn brain(self, halves: &[u8; 32]) -> [f32; 16] {
        from_fn(|i| bf16::from_le_bytes([halves[2 * i], halves[2 * i + 1]]).to_f32())
    }

    #[inline(always)]
    fn half(self, half: [u8; 2]) -> [f32; 16] {
        [f16::from_le_bytes(half).to_f32(); 16]
    }

    #[inline(always)]
    fn half_pairs(self, halves: [[u8; 2]; 8]) -> [f32; 16] {
        from_fn(|i| f16::from_le_bytes(halves[i / 2]).to_f32())
    }

    #[inline(always)]
    fn unsigned(self, bytes: &[u8; 16]) -> [f32; 16] {
        bytes.map(f32::from)
    }

    #[inline(always)]
    fn pairs(self, bytes: [u8; 8]) -> [f32; 16] {
        from_fn(|i| f32::from(bytes[i / 2]))
    }

    #[inline(always)]
    fn add(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn mul(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        from_fn(|i| a[i] * b[i])
    }

    #[inline(always)]
    fn div(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        from_fn(|i| a[i] / b[i])
    }

    #[inline(always)]
    fn max(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn min(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn times_power(self, a: [f32; 16], exponents: [f32; 16]) -> [f32; 16] {
        from_fn(|i| f32::from_bits(a[i].to_bits().wrapping_add(exponents[i].to_bits() << 23)))
    }

    #[inline(always)]
    fn fma(self, a: [f32; 16], b: [f32; 16], c: [f32; 16]) -> [f32; 16] {
        from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    fn sum(self, values: [f32; 16]) -> f32 {
        sum(values, |a, b| a + b)
    }
}
