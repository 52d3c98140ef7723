//! Plain Rust, of which the compiler makes vectors as it can: for processors and targets that have no code of their own.

use std::array::from_fn;

use half::{bf16, f16};

use super::simd::{BYTES, FLOATS, Simd};

/// No instructions in particular.
#[derive(Clone, Copy)]
pub(super) struct Portable;

impl Simd for Portable {
    type Bytes = [u8; BYTES];
    type Floats = [f32; FLOATS];
    const BIAS: f32 = 0.0;

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
    fn dot(self, codes: [u8; 64], x: &[i8; 64], _wide: bool) -> [f32; 16] {
        // Codes that are not wide are below 128, so all are signed bytes. Four sums of four with the same scale are one here.
        let mut sums = [0.0; 16];
        for quarter in 0..4 {
            let mut sum = 0;
            for i in 16 * quarter..16 * quarter + 16 {
                sum += i32::from(codes[i] as i8) * i32::from(x[i]);
            }
            sums[4 * quarter] = sum as f32;
        }
        sums
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
    fn unsigned(self, bytes: &[u8; 16]) -> [f32; 16] {
        bytes.map(f32::from)
    }

    #[inline(always)]
    fn each_twice(self, bytes: u64) -> [f32; 16] {
        from_fn(|i| f32::from(bytes.to_le_bytes()[i / 2]))
    }

    #[inline(always)]
    fn spread(self, values: [f32; 16], quarter: usize) -> [f32; 16] {
        from_fn(|i| values[4 * quarter + i / 4])
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
    fn fma(self, a: [f32; 16], b: [f32; 16], c: [f32; 16]) -> [f32; 16] {
        from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    fn sum(self, values: [f32; 16]) -> f32 {
        let eight: [f32; 8] = from_fn(|i| values[i] + values[i + 8]);
        let four: [f32; 4] = from_fn(|i| eight[i] + eight[i + 4]);
        (four[0] + four[2]) + (four[1] + four[3])
    }
}
