//! The instruction sets of x86, and AVX2 with VNNI or without it.

use std::arch::is_x86_feature_detected;
use std::arch::x86_64::*;

use super::simd::{Simd, Strips, Work};

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
pub(super) use instructions;

#[inline(always)]
pub(super) fn load16(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: SSE2 belongs to every x86-64, and the array has the 16 bytes, at any address.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// Eight bytes, each twice.
#[inline(always)]
pub(super) fn each_twice(bytes: [u8; 8]) -> __m128i {
    // SAFETY: SSE2 belongs to every x86-64.
    unsafe {
        let bytes = _mm_cvtsi64_si128(i64::from_le_bytes(bytes));
        _mm_unpacklo_epi8(bytes, bytes)
    }
}

/// Eight halves, each twice: the first four and the others.
#[inline(always)]
pub(super) fn halves_twice(halves: [[u8; 2]; 8]) -> [__m128i; 2] {
    // They are put together in other registers, because a vector that is read right after its parts are written waits for them.
    let four = |halves: [[u8; 2]; 4]| {
        let [a, b, c, d] = halves.map(|half| u64::from(u16::from_le_bytes(half)));
        (a | b << 16 | c << 32 | d << 48) as i64
    };
    let [a, b, c, d, e, f, g, h] = halves;
    // SAFETY: SSE2 belongs to every x86-64.
    unsafe {
        let low = _mm_cvtsi64_si128(four([a, b, c, d]));
        let high = _mm_cvtsi64_si128(four([e, f, g, h]));
        [_mm_unpacklo_epi16(low, low), _mm_unpacklo_epi16(high, high)]
    }
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
    fn numbers(self, bytes: __m128i) -> [__m256; 2] {
        instructions! {
            let high = _mm_srli_si128::<8>(bytes);
            [
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(high)),
            ]
        }
    }

    /// `sums` and the sums of four products each.
    #[inline(always)]
    fn dot_of(self, sums: __m256i, codes: __m256i, x: &[i8; 32], wide: bool) -> __m256i {
        instructions! {
            let x = _mm256_loadu_si256(x.as_ptr().cast());
            if VNNI {
                return _mm256_dpbusd_avx_epi32(sums, codes, x);
            }
            // Pairs are summed in 16 bits: 2 * 128 * 127 is below 2^15.
            let pairs = match wide {
                true => _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes)),
                false => _mm256_maddubs_epi16(codes, x),
            };
            _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }

    /// The sums of 16 products each of half the weights.
    #[inline(always)]
    fn dots_of(self, codes: [[__m256i; 2]; 2], x: &[[i8; 64]; 2], wide: bool) -> __m256i {
        let (x, _) = x.as_flattened().as_chunks::<32>();
        instructions! {
            let zero = _mm256_setzero_si256();
            let fours = [
                self.dot_of(zero, codes[0][0], &x[0], wide),
                self.dot_of(zero, codes[0][1], &x[1], wide),
                self.dot_of(zero, codes[1][0], &x[2], wide),
                self.dot_of(zero, codes[1][1], &x[3], wide),
            ];
            let pairs = |a, b| {
                _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b))
            };
            let (low, high) = (pairs(fours[0], fours[1]), pairs(fours[2], fours[3]));
            let sums = _mm256_add_epi32(
                _mm256_unpacklo_epi64(low, high),
                _mm256_unpackhi_epi64(low, high),
            );
            // The lower half of a register of fours had an even 16, the upper one the next.
            _mm256_permutevar8x32_epi32(sums, _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0))
        }
    }
}

impl<const VNNI: bool> Simd for Avx2<VNNI> {
    type Bytes = [__m256i; 2];
    type Ints = [__m256i; 2];
    type Floats = [__m256; 2];
    const BIAS: i32 = if VNNI { 128 } else { 0 };
    const ABREAST: usize = 12;

    #[inline(always)]
    fn strips(self, strips: impl Strips) {
        strips.run::<Self, 4>(self);
    }

    #[inline(always)]
    fn bytes(self, bytes: &[u8; 64]) -> [__m256i; 2] {
        let (bytes, _) = bytes.as_chunks::<32>();
        [self.load32(&bytes[0]), self.load32(&bytes[1])]
    }

    #[inline(always)]
    fn put(self, bytes: [__m256i; 2], to: &mut [u8; 64]) {
        let (to, _) = to.as_chunks_mut::<32>();
        instructions! {
            _mm256_storeu_si256(to[0].as_mut_ptr().cast(), bytes[0]);
            _mm256_storeu_si256(to[1].as_mut_ptr().cast(), bytes[1]);
        }
    }

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
    fn dots(self, codes: [[__m256i; 2]; 4], x: &[[i8; 64]; 4], wide: bool) -> [__m256i; 2] {
        let (x, _) = x.as_chunks::<2>();
        [
            self.dots_of([codes[0], codes[1]], &x[0], wide),
            self.dots_of([codes[2], codes[3]], &x[1], wide),
        ]
    }

    #[inline(always)]
    fn dot_four(
        self,
        sums: [__m256i; 2],
        codes: &[u8; 4],
        x: &[i8; 64],
        wide: bool,
    ) -> [__m256i; 2] {
        let (x, _) = x.as_chunks::<32>();
        let codes = instructions!(_mm256_set1_epi32(i32::from_le_bytes(*codes)));
        [
            self.dot_of(sums[0], codes, &x[0], wide),
            self.dot_of(sums[1], codes, &x[1], wide),
        ]
    }

    #[inline(always)]
    fn ints(self, values: &[i32; 16]) -> [__m256i; 2] {
        self.bytes(bytemuck::cast_ref(values))
    }

    #[inline(always)]
    fn put_ints(self, values: [__m256i; 2], to: &mut [i32; 16]) {
        self.put(values, bytemuck::cast_mut(to));
    }

    #[inline(always)]
    fn less(self, a: [__m256i; 2], b: [__m256i; 2], factor: i32) -> [__m256i; 2] {
        instructions! {
            let factor = _mm256_set1_epi32(factor);
            [
                _mm256_sub_epi32(a[0], _mm256_mullo_epi32(b[0], factor)),
                _mm256_sub_epi32(a[1], _mm256_mullo_epi32(b[1], factor)),
            ]
        }
    }

    #[inline(always)]
    fn to_floats(self, values: [__m256i; 2]) -> [__m256; 2] {
        instructions!([_mm256_cvtepi32_ps(values[0]), _mm256_cvtepi32_ps(values[1])])
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
    fn half(self, half: [u8; 2]) -> [__m256; 2] {
        instructions!([_mm256_cvtph_ps(_mm_set1_epi16(i16::from_le_bytes(half))); 2])
    }

    #[inline(always)]
    fn half_pairs(self, halves: [[u8; 2]; 8]) -> [__m256; 2] {
        let [low, high] = halves_twice(halves);
        instructions!([_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)])
    }

    #[inline(always)]
    fn unsigned(self, bytes: &[u8; 16]) -> [__m256; 2] {
        self.numbers(load16(bytes))
    }

    #[inline(always)]
    fn pairs(self, bytes: [u8; 8]) -> [__m256; 2] {
        self.numbers(each_twice(bytes))
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
    fn div(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        instructions!([_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])])
    }

    #[inline(always)]
    fn max(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        instructions!([_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])])
    }

    #[inline(always)]
    fn min(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        instructions!([_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])])
    }

    #[inline(always)]
    fn times_power(self, a: [__m256; 2], exponents: [__m256; 2]) -> [__m256; 2] {
        let times = |a, exponent| {
            instructions! {
                let bits = _mm256_slli_epi32::<23>(_mm256_castps_si256(exponent));
                _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), bits))
            }
        };
        [times(a[0], exponents[0]), times(a[1], exponents[1])]
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
