//! AVX2, with VNNI or without it, and AVX-512 with VNNI.

use std::arch::is_x86_feature_detected;
use std::arch::x86_64::*;

use super::simd::{Simd, Work};

/// AVX2 with FMA and F16C, and with AVX-VNNI where `VNNI` is true.
#[derive(Clone, Copy)]
pub(super) struct Avx2<const VNNI: bool>(());

/// AVX-512 (F, BW, VL) with VNNI.
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

impl Avx2<false> {
    /// The set without VNNI, where the processor has it.
    pub(super) fn plain() -> Option<Self> {
        has_avx2().then_some(Self(()))
    }
}

impl Avx2<true> {
    /// The set with VNNI, where the processor has it.
    pub(super) fn vnni() -> Option<Self> {
        (has_avx2() && is_x86_feature_detected!("avxvnni")).then_some(Self(()))
    }
}

impl Avx512 {
    /// The set, where the processor has it.
    pub(super) fn found() -> Option<Self> {
        let found = has_avx2()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        found.then_some(Self(()))
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn inside_avx2<S: Simd>(simd: S, work: impl Work) {
    work.run(simd);
}

#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn inside_vnni<S: Simd>(simd: S, work: impl Work) {
    work.run(simd);
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
fn inside_avx512<S: Simd>(simd: S, work: impl Work) {
    work.run(simd);
}

impl<const VNNI: bool> Avx2<VNNI> {
    pub(super) fn run(self, work: impl Work) {
        // SAFETY: a value of the type is made only where the processor has these features.
        unsafe {
            match VNNI {
                true => inside_vnni(self, work),
                false => inside_avx2(self, work),
            }
        }
    }
}

impl Avx512 {
    pub(super) fn run(self, work: impl Work) {
        // SAFETY: a value of the type is made only where the processor has these features.
        unsafe { inside_avx512(self, work) }
    }
}

/// Instructions of the set that a method's `self` proves. Memory is read and written through references to arrays of the registers' lengths.
macro_rules! instructions {
    ($($body:tt)*) => {{
        // SAFETY: a value of the type is made only where the processor has these features, and every pointer comes from a reference to an
        // array of as many bytes as the instruction reads or writes, which may lie at any address.
        unsafe { $($body)* }
    }};
}

#[inline(always)]
fn load16(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: SSE2 belongs to every x86-64, and the array has the 16 bytes, at any address.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

impl<const VNNI: bool> Avx2<VNNI> {
    #[inline(always)]
    fn load32(self, bytes: &[u8; 32]) -> __m256i {
        instructions!(_mm256_loadu_si256(bytes.as_ptr().cast()))
    }

    #[inline(always)]
    fn nibbles_of(self, bytes: &[u8; 16]) -> __m256i {
        instructions! {
            let both = _mm256_broadcastsi128_si256(load16(bytes));
            let low_first = _mm256_srlv_epi64(both, _mm256_set_epi64x(4, 4, 0, 0));
            _mm256_and_si256(low_first, _mm256_set1_epi8(15))
        }
    }

    #[inline(always)]
    fn sixteens_of(self, bits: [u8; 4]) -> __m256i {
        instructions! {
            let all = _mm256_set1_epi32(i32::from_le_bytes(bits));
            let byte_of = _mm256_set_epi64x(
                0x0303_0303_0303_0303,
                0x0202_0202_0202_0202,
                0x0101_0101_0101_0101,
                0,
            );
            let bit_of = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
            let bits = _mm256_and_si256(_mm256_shuffle_epi8(all, byte_of), bit_of);
            _mm256_and_si256(_mm256_cmpeq_epi8(bits, bit_of), _mm256_set1_epi8(16))
        }
    }

    #[inline(always)]
    fn codes_of(self, bytes: __m256i, from: u32, mask: u8) -> __m256i {
        instructions! {
            let shifted = _mm256_srl_epi16(bytes, _mm_cvtsi32_si128(from as i32));
            _mm256_and_si256(shifted, _mm256_set1_epi8(mask as i8))
        }
    }

    #[inline(always)]
    fn dot_of(self, codes: __m256i, x: &[i8; 32], wide: bool) -> __m256 {
        instructions! {
            let x = _mm256_loadu_si256(x.as_ptr().cast());
            let sums = if VNNI {
                _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), codes, x)
            } else {
                // Pairs are summed in 16 bits: 2 * 128 * 127 is below 2^15.
                let pairs = match wide {
                    true => _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes)),
                    false => _mm256_maddubs_epi16(codes, x),
                };
                _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
            };
            _mm256_cvtepi32_ps(sums)
        }
    }

    /// The two values from `first` on, each four times.
    #[inline(always)]
    fn spread_of(self, values: __m256, first: i32) -> __m256 {
        instructions! {
            let of = _mm256_set_epi32(1, 1, 1, 1, 0, 0, 0, 0);
            _mm256_permutevar8x32_ps(values, _mm256_add_epi32(of, _mm256_set1_epi32(first)))
        }
    }
}

impl<const VNNI: bool> Simd for Avx2<VNNI> {
    type Bytes = [__m256i; 2];
    type Floats = [__m256; 2];
    const BIAS: f32 = if VNNI { 128.0 } else { 0.0 };

    #[inline(always)]
    fn join(self, low: &[u8; 32], high: &[u8; 32]) -> [__m256i; 2] {
        [self.load32(low), self.load32(high)]
    }

    #[inline(always)]
    fn nibbles(self, a: &[u8; 16], b: &[u8; 16]) -> [__m256i; 2] {
        [self.nibbles_of(a), self.nibbles_of(b)]
    }

    #[inline(always)]
    fn sixteens(self, low: [u8; 4], high: [u8; 4]) -> [__m256i; 2] {
        [self.sixteens_of(low), self.sixteens_of(high)]
    }

    #[inline(always)]
    fn codes(self, bytes: [__m256i; 2], low: u32, high: u32, mask: u8) -> [__m256i; 2] {
        [
            self.codes_of(bytes[0], low, mask),
            self.codes_of(bytes[1], high, mask),
        ]
    }

    #[inline(always)]
    fn above(self, low: [__m256i; 2], high: [__m256i; 2], bits: u32) -> [__m256i; 2] {
        instructions! {
            let bits = _mm_cvtsi32_si128(bits as i32);
            [
                _mm256_or_si256(low[0], _mm256_sll_epi16(high[0], bits)),
                _mm256_or_si256(low[1], _mm256_sll_epi16(high[1], bits)),
            ]
        }
    }

    #[inline(always)]
    fn fields(self, words: [u32; 4], bits: u32) -> [__m256i; 2] {
        let [a, b, c, d] = words;
        let [a, b, c, d] = [a as i32, b as i32, c as i32, d as i32];
        let (one, mask) = (bits as i32, (1 << bits) - 1);
        instructions! {
            let words = _mm256_castsi128_si256(_mm_set_epi32(d, c, b, a));
            let by = _mm256_set_epi32(3 * one, 2 * one, one, 0, 3 * one, 2 * one, one, 0);
            let mask = _mm256_set1_epi8(mask);
            let low = _mm256_permutevar8x32_epi32(words, _mm256_set_epi32(1, 1, 1, 1, 0, 0, 0, 0));
            let high = _mm256_permutevar8x32_epi32(words, _mm256_set_epi32(3, 3, 3, 3, 2, 2, 2, 2));
            [
                _mm256_and_si256(_mm256_srlv_epi32(low, by), mask),
                _mm256_and_si256(_mm256_srlv_epi32(high, by), mask),
            ]
        }
    }

    #[inline(always)]
    fn look_up(self, table: &[i8; 16], indices: [__m256i; 2]) -> [__m256i; 2] {
        instructions! {
            let table = _mm256_broadcastsi128_si256(load16(bytemuck::cast_ref(table)));
            [
                _mm256_shuffle_epi8(table, indices[0]),
                _mm256_shuffle_epi8(table, indices[1]),
            ]
        }
    }

    #[inline(always)]
    fn signed(self, codes: [__m256i; 2]) -> [__m256i; 2] {
        if !VNNI {
            return codes;
        }
        instructions! {
            let bias = _mm256_set1_epi8(-128);
            [_mm256_xor_si256(codes[0], bias), _mm256_xor_si256(codes[1], bias)]
        }
    }

    #[inline(always)]
    fn dot(self, codes: [__m256i; 2], x: &[i8; 64], wide: bool) -> [__m256; 2] {
        let (x, _) = x.as_chunks::<32>();
        [
            self.dot_of(codes[0], &x[0], wide),
            self.dot_of(codes[1], &x[1], wide),
        ]
    }

    #[inline(always)]
    fn floats(self, values: &[f32; 16]) -> [__m256; 2] {
        let (values, _) = values.as_chunks::<8>();
        instructions!([
            _mm256_loadu_ps(values[0].as_ptr()),
            _mm256_loadu_ps(values[1].as_ptr())
        ])
    }

    #[inline(always)]
    fn store(self, values: [__m256; 2], to: &mut [f32; 16]) {
        let (to, _) = to.as_chunks_mut::<8>();
        instructions! {
            _mm256_storeu_ps(to[0].as_mut_ptr(), values[0]);
            _mm256_storeu_ps(to[1].as_mut_ptr(), values[1]);
        }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> [__m256; 2] {
        instructions!([_mm256_set1_ps(value); 2])
    }

    #[inline(always)]
    fn singles(self, bytes: &[u8; 64]) -> [__m256; 2] {
        let (bytes, _) = bytes.as_chunks::<32>();
        instructions!([
            _mm256_loadu_ps(bytes[0].as_ptr().cast()),
            _mm256_loadu_ps(bytes[1].as_ptr().cast())
        ])
    }

    #[inline(always)]
    fn halves(self, halves: &[u8; 32]) -> [__m256; 2] {
        let (halves, _) = halves.as_chunks::<16>();
        instructions!([
            _mm256_cvtph_ps(load16(&halves[0])),
            _mm256_cvtph_ps(load16(&halves[1]))
        ])
    }

    #[inline(always)]
    fn brain(self, halves: &[u8; 32]) -> [__m256; 2] {
        let (halves, _) = halves.as_chunks::<16>();
        instructions! {
            let [low, high] = [
                _mm256_cvtepu16_epi32(load16(&halves[0])),
                _mm256_cvtepu16_epi32(load16(&halves[1])),
            ];
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            ]
        }
    }

    #[inline(always)]
    fn unsigned(self, bytes: &[u8; 16]) -> [__m256; 2] {
        instructions! {
            let low = load16(bytes);
            let high = _mm_srli_si128::<8>(low);
            [
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(low)),
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(high)),
            ]
        }
    }

    #[inline(always)]
    fn each_twice(self, bytes: u64) -> [__m256; 2] {
        instructions! {
            let bytes = _mm_cvtsi64_si128(bytes as i64);
            let twice = _mm_unpacklo_epi8(bytes, bytes);
            [
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(twice)),
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128::<8>(twice))),
            ]
        }
    }

    #[inline(always)]
    fn spread(self, values: [__m256; 2], quarter: usize) -> [__m256; 2] {
        let (of, first) = (values[quarter / 2], 4 * (quarter as i32 % 2));
        [self.spread_of(of, first), self.spread_of(of, first + 2)]
    }

    #[inline(always)]
    fn add(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        instructions!([_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])])
    }

    #[inline(always)]
    fn mul(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        instructions!([_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])])
    }

    #[inline(always)]
    fn fma(self, a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        instructions!([
            _mm256_fmadd_ps(a[0], b[0], c[0]),
            _mm256_fmadd_ps(a[1], b[1], c[1])
        ])
    }

    #[inline(always)]
    fn sum(self, values: [__m256; 2]) -> f32 {
        instructions! {
            let eight = _mm256_add_ps(values[0], values[1]);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }
}

impl Simd for Avx512 {
    type Bytes = __m512i;
    type Floats = __m512;
    const BIAS: f32 = 128.0;

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
    fn dot(self, codes: __m512i, x: &[i8; 64], _wide: bool) -> __m512 {
        instructions! {
            let x = _mm512_loadu_si512(x.as_ptr().cast());
            _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(_mm512_setzero_si512(), codes, x))
        }
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
    fn unsigned(self, bytes: &[u8; 16]) -> __m512 {
        instructions!(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load16(bytes))))
    }

    #[inline(always)]
    fn each_twice(self, bytes: u64) -> __m512 {
        instructions! {
            let bytes = _mm_cvtsi64_si128(bytes as i64);
            _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_unpacklo_epi8(bytes, bytes)))
        }
    }

    #[inline(always)]
    fn spread(self, values: __m512, quarter: usize) -> __m512 {
        instructions! {
            let of = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
            let first = _mm512_set1_epi32(4 * quarter as i32);
            _mm512_permutexvar_ps(_mm512_add_epi32(of, first), values)
        }
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
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        instructions!(_mm512_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn sum(self, values: __m512) -> f32 {
        instructions!(_mm512_reduce_add_ps(values))
    }
}
