//! AVX-512 with VNNI.

use std::arch::x86_64::*;

use super::simd::{Simd, Strips};
use super::x86::{Avx512, each_twice, halves_twice, instructions, load16};

impl Simd for Avx512 {
    type Bytes = __m512i;
    type Ints = __m512i;
    type Floats = __m512;
    const BIAS: i32 = 128;
    const ABREAST: usize = 10;

    #[inline(always)]
    fn strips(self, strips: impl Strips) {
        strips.run::<Self, 8>(self);
    }

    #[inline(always)]
    fn bytes(self, bytes: &[u8; 64]) -> __m512i {
        instructions!(_mm512_loadu_si512(bytes.as_ptr().cast()))
    }

    #[inline(always)]
    fn put(self, bytes: __m512i, to: &mut [u8; 64]) {
        instructions!(_mm512_storeu_si512(to.as_mut_ptr().cast(), bytes))
    }

    #[inline(always)]
    fn join(self, low: &[u8; 32], high: &[u8; 32]) -> __m512i {
        instructions! {
            let low = _mm512_castsi256_si512(_mm256_loadu_si256(low.as_ptr().cast()));
            _mm512_inserti64x4::<1>(low, _mm256_loadu_si256(high.as_ptr().cast()))
        }
    }

    #[inline(always)]
    fn nibbles(self, a: &[u8; 16], b: &[u8; 16]) -> __m512i {
        instructions! {
            let both = _mm512_castsi256_si512(_mm256_set_m128i(load16(b), load16(a)));
            let places = _mm512_set_epi64(3, 2, 3, 2, 1, 0, 1, 0);
            let twice = _mm512_permutexvar_epi64(places, both);
            let low_first = _mm512_srlv_epi64(twice, _mm512_set_epi64(4, 4, 0, 0, 4, 4, 0, 0));
            _mm512_and_si512(low_first, _mm512_set1_epi8(15))
        }
    }

    #[inline(always)]
    fn sixteens(self, low: [u8; 4], high: [u8; 4]) -> __m512i {
        let [low, high] = [low, high].map(|bits| u64::from(u32::from_le_bytes(bits)));
        instructions!(_mm512_maskz_set1_epi8(low | high << 32, 16))
    }

    #[inline(always)]
    fn codes(self, bytes: __m512i, low: u32, high: u32, mask: u8) -> __m512i {
        let (l, h) = (i64::from(low), i64::from(high));
        instructions! {
            let shifted = _mm512_srlv_epi64(bytes, _mm512_set_epi64(h, h, h, h, l, l, l, l));
            _mm512_and_si512(shifted, _mm512_set1_epi8(mask as i8))
        }
    }

    #[inline(always)]
    fn above(self, low: __m512i, high: __m512i, bits: u32) -> __m512i {
        instructions! {
            let high = _mm512_sll_epi16(high, _mm_cvtsi32_si128(bits as i32));
            _mm512_or_si512(low, high)
        }
    }

    #[inline(always)]
    fn fields(self, words: [u32; 4], bits: u32) -> __m512i {
        let [a, b, c, d] = words;
        let [a, b, c, d] = [a as i32, b as i32, c as i32, d as i32];
        let (one, mask) = (bits as i32, (1 << bits) - 1);
        instructions! {
            let words = _mm512_castsi128_si512(_mm_set_epi32(d, c, b, a));
            let of = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
            let words = _mm512_permutexvar_epi32(of, words);
            let by = _mm512_broadcast_i32x4(_mm_set_epi32(3 * one, 2 * one, one, 0));
            _mm512_and_si512(_mm512_srlv_epi32(words, by), _mm512_set1_epi8(mask))
        }
    }

    #[inline(always)]
    fn look_up(self, table: &[i8; 16], indices: __m512i) -> __m512i {
        instructions! {
            let table = _mm512_broadcast_i32x4(load16(bytemuck::cast_ref(table)));
            _mm512_shuffle_epi8(table, indices)
        }
    }

    #[inline(always)]
    fn signed(self, codes: __m512i) -> __m512i {
        instructions!(_mm512_xor_si512(codes, _mm512_set1_epi8(-128)))
    }

    #[inline(always)]
    fn dots(self, codes: [__m512i; 4], x: &[[i8; 64]; 4], _wide: bool) -> __m512i {
        instructions! {
            let dot = |codes, x: &[i8; 64]| {
                let x = _mm512_loadu_si512(x.as_ptr().cast());
                _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes, x)
            };
            let pairs = |a, b| {
                _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b))
            };
            let low = pairs(dot(codes[0], &x[0]), dot(codes[1], &x[1]));
            let high = pairs(dot(codes[2], &x[2]), dot(codes[3], &x[3]));
            let sums = _mm512_add_epi32(
                _mm512_unpacklo_epi64(low, high),
                _mm512_unpackhi_epi64(low, high),
            );
            // Each 128 bits have one 16 of every quarter.
            let order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
            _mm512_permutexvar_epi32(order, sums)
        }
    }

    #[inline(always)]
    fn dot_four(self, sums: __m512i, codes: &[u8; 4], x: &[i8; 64], _wide: bool) -> __m512i {
        instructions! {
            let codes = _mm512_set1_epi32(i32::from_le_bytes(*codes));
            _mm512_dpbusd_epi32(sums, codes, _mm512_loadu_si512(x.as_ptr().cast()))
        }
    }

    #[inline(always)]
    fn ints(self, values: &[i32; 16]) -> __m512i {
        self.bytes(bytemuck::cast_ref(values))
    }

    #[inline(always)]
    fn put_ints(self, values: __m512i, to: &mut [i32; 16]) {
        self.put(values, bytemuck::cast_mut(to));
    }

    #[inline(always)]
    fn less(self, a: __m512i, b: __m512i, factor: i32) -> __m512i {
        instructions!(_mm512_sub_epi32(
            a,
            _mm512_mullo_epi32(b, _mm512_set1_epi32(factor))
        ))
    }

    #[inline(always)]
    fn to_floats(self, values: __m512i) -> __m512 {
        instructions!(_mm512_cvtepi32_ps(values))
    }

    #[inline(always)]
    fn floats(self, values: &[f32; 16]) -> __m512 {
        instructions!(_mm512_loadu_ps(values.as_ptr()))
    }

    #[inline(always)]
    fn store(self, values: __m512, to: &mut [f32; 16]) {
        instructions!(_mm512_storeu_ps(to.as_mut_ptr(), values))
    }

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        instructions!(_mm512_set1_ps(value))
    }

    #[inline(always)]
    fn singles(self, bytes: &[u8; 64]) -> __m512 {
        instructions!(_mm512_loadu_ps(bytes.as_ptr().cast()))
    }

    #[inline(always)]
    fn halves(self, halves: &[u8; 32]) -> __m512 {
        instructions!(_mm512_cvtph_ps(_mm256_loadu_si256(halves.as_ptr().cast())))
    }

    #[inline(always)]
    fn brain(self, halves: &[u8; 32]) -> __m512 {
        instructions! {
            let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(halves.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words))
        }
    }

    #[inline(always)]
    fn half(self, half: [u8; 2]) -> __m512 {
        instructions!(_mm512_cvtph_ps(_mm256_set1_epi16(i16::from_le_bytes(half))))
    }

    #[inline(always)]
    fn half_pairs(self, halves: [[u8; 2]; 8]) -> __m512 {
        let [low, high] = halves_twice(halves);
        instructions!(_mm512_cvtph_ps(_mm256_set_m128i(high, low)))
    }

    #[inline(always)]
    fn unsigned(self, bytes: &[u8; 16]) -> __m512 {
        instructions!(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load16(bytes))))
    }

    #[inline(always)]
    fn pairs(self, bytes: [u8; 8]) -> __m512 {
        instructions!(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(each_twice(bytes))))
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        instructions!(_mm512_add_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        instructions!(_mm512_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        instructions!(_mm512_div_ps(a, b))
    }

    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        instructions!(_mm512_max_ps(a, b))
    }

    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        instructions!(_mm512_min_ps(a, b))
    }

    #[inline(always)]
    fn times_power(self, a: __m512, exponents: __m512) -> __m512 {
        instructions! {
            let bits = _mm512_slli_epi32::<23>(_mm512_castps_si512(exponents));
            _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), bits))
        }
    }

    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        instructions!(_mm512_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn sum(self, values: __m512) -> f32 {
        instructions!(_mm512_reduce_add_ps(values))
    }
}
