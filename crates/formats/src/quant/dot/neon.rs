//! NEON, with dotprod or without it.

use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};
use std::array::from_fn;

use super::simd::{Simd, Strips, Work};

/// NEON, which every 64-bit Arm has, and dotprod where `DOT` is true.
#[derive(Clone, Copy)]
pub(super) struct Neon<const DOT: bool>(());

impl Neon<false> {
    /// The set without dotprod.
    pub(super) fn plain() -> Self {
        Self(())
    }
}

impl Neon<true> {
    /// The set with dotprod, where the processor has it.
    pub(super) fn dotprod() -> Option<Self> {
        is_aarch64_feature_detected!("dotprod").then_some(Self(()))
    }
}

#[target_feature(enable = "neon,dotprod")]
fn inside_dotprod<S: Simd>(simd: S, work: impl Work) {
    work.run(simd);
}

/// `sums` and the sums of four products each: an intrinsic that is not stable yet.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot(mut sums: int32x4_t, codes: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: it reads and writes nothing but these registers, and the function has the feature.
    unsafe {
        asm!(
            "sdot {sums:v}.4s, {codes:v}.16b, {x:v}.16b",
            sums = inout(vreg) sums,
            codes = in(vreg) codes,
            x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// Instructions of the set that a method's `self` proves. Memory is read and written through references to arrays of the registers' lengths.
macro_rules! instructions {
    ($($body:tt)*) => {{
        // SAFETY: every 64-bit Arm that Rust's standard library runs on has NEON, dotprod is used only where the value proves it, and every
        // pointer comes from a reference to an array of as many bytes as the instruction reads or writes, which may lie at any address.
        unsafe { $($body)* }
    }};
}

impl<const DOT: bool> Neon<DOT> {
    pub(super) fn run(self, work: impl Work) {
        if DOT {
            // SAFETY: a value of this type is made only where the processor has dotprod.
            unsafe { inside_dotprod(self, work) }
        } else {
            work.run(self);
        }
    }

    #[inline(always)]
    fn load(self, bytes: &[u8; 16]) -> uint8x16_t {
        instructions!(vld1q_u8(bytes.as_ptr()))
    }

    #[inline(always)]
    fn codes_of(self, bytes: uint8x16_t, from: u32, mask: u8) -> uint8x16_t {
        instructions! {
            vandq_u8(vshlq_u8(bytes, vdupq_n_s8(-(from as i8))), vdupq_n_u8(mask))
        }
    }

    /// `sums` and the sums of four products each.
    #[inline(always)]
    fn dot_of(self, sums: int32x4_t, codes: uint8x16_t, x: &[i8; 16]) -> int32x4_t {
        instructions! {
            let (codes, x) = (vreinterpretq_s8_u8(codes), vld1q_s8(x.as_ptr()));
            if DOT {
                return sdot(sums, codes, x);
            }
            let low = vpaddlq_s16(vmull_s8(vget_low_s8(codes), vget_low_s8(x)));
            let high = vpaddlq_s16(vmull_high_s8(codes, x));
            vaddq_s32(sums, vpaddq_s32(low, high))
        }
    }

    /// Four little-endian f16, widened.
    #[inline(always)]
    fn halves_of(self, halves: &[u8; 8]) -> float32x4_t {
        instructions! {
            let halves = vld1_u8(halves.as_ptr());
            let wide: float32x4_t;
            // The intrinsic is not stable yet; every 64-bit Arm has the instruction.
            asm!(
                "fcvtl {wide:v}.4s, {halves:v}.4h",
                wide = out(vreg) wide,
                halves = in(vreg) halves,
                options(pure, nomem, nostack),
            );
            wide
        }
    }
}

impl<const DOT: bool> Simd for Neon<DOT> {
    type Bytes = [uint8x16_t; 4];
    type Ints = [int32x4_t; 4];
    type Floats = [float32x4_t; 4];
    const BIAS: i32 = 0;
    const ABREAST: usize = 12;

    #[inline(always)]
    fn strips(self, strips: impl Strips) {
        strips.run::<Self, 4>(self);
    }

    #[inline(always)]
    fn bytes(self, bytes: &[u8; 64]) -> Self::Bytes {
        let (bytes, _) = bytes.as_chunks::<16>();
        from_fn(|i| self.load(&bytes[i]))
    }

    #[inline(always)]
    fn put(self, bytes: Self::Bytes, to: &mut [u8; 64]) {
        let (to, _) = to.as_chunks_mut::<16>();
        for (to, bytes) in to.iter_mut().zip(bytes) {
            instructions!(vst1q_u8(to.as_mut_ptr(), bytes));
        }
    }

    #[inline(always)]
    fn join(self, low: &[u8; 32], high: &[u8; 32]) -> Self::Bytes {
        let ((low, _), (high, _)) = (low.as_chunks::<16>(), high.as_chunks::<16>());
        [
            self.load(&low[0]),
            self.load(&low[1]),
            self.load(&high[0]),
            self.load(&high[1]),
        ]
    }

    #[inline(always)]
    fn nibbles(self, a: &[u8; 16], b: &[u8; 16]) -> Self::Bytes {
        let (a, b) = (self.load(a), self.load(b));
        [
            self.codes_of(a, 0, 15),
            self.codes_of(a, 4, 15),
            self.codes_of(b, 0, 15),
            self.codes_of(b, 4, 15),
        ]
    }

    #[inline(always)]
    fn sixteens(self, low: [u8; 4], high: [u8; 4]) -> Self::Bytes {
        let bits = [&low[..2], &low[2..], &high[..2], &high[2..]];
        instructions! {
            let bit_of = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
            [0, 1, 2, 3].map(|i| {
                let bytes = vcombine_u8(vdup_n_u8(bits[i][0]), vdup_n_u8(bits[i][1]));
                vandq_u8(vtstq_u8(bytes, bit_of), vdupq_n_u8(16))
            })
        }
    }

    #[inline(always)]
    fn codes(self, bytes: Self::Bytes, low: u32, high: u32, mask: u8) -> Self::Bytes {
        [
            self.codes_of(bytes[0], low, mask),
            self.codes_of(bytes[1], low, mask),
            self.codes_of(bytes[2], high, mask),
            self.codes_of(bytes[3], high, mask),
        ]
    }

    #[inline(always)]
    fn above(self, low: Self::Bytes, high: Self::Bytes, bits: u32) -> Self::Bytes {
        instructions! {
            let bits = vdupq_n_s8(bits as i8);
            from_fn(|i| vorrq_u8(low[i], vshlq_u8(high[i], bits)))
        }
    }

    #[inline(always)]
    fn fields(self, words: [u32; 4], bits: u32) -> Self::Bytes {
        let by = from_fn::<i32, 4, _>(|i| -(bits as i32 * i as i32));
        let mask = (1 << bits) - 1;
        instructions! {
            let by = vld1q_s32(by.as_ptr());
            words.map(|word| {
                let shifted = vreinterpretq_u8_u32(vshlq_u32(vdupq_n_u32(word), by));
                vandq_u8(shifted, vdupq_n_u8(mask))
            })
        }
    }

    #[inline(always)]
    fn look_up(self, table: &[i8; 16], indices: Self::Bytes) -> Self::Bytes {
        let table = self.load(bytemuck::cast_ref(table));
        instructions!(indices.map(|indices| vqtbl1q_u8(table, indices)))
    }

    #[inline(always)]
    fn signed(self, codes: Self::Bytes) -> Self::Bytes {
        codes
    }

    #[inline(always)]
    fn dots(self, codes: [Self::Bytes; 4], x: &[[i8; 64]; 4], _wide: bool) -> Self::Ints {
        from_fn(|quarter| {
            let (codes, (x, _)) = (codes[quarter], x[quarter].as_chunks::<16>());
            instructions! {
                let fours: [int32x4_t; 4] =
                    from_fn(|i| self.dot_of(vdupq_n_s32(0), codes[i], &x[i]));
                vpaddq_s32(vpaddq_s32(fours[0], fours[1]), vpaddq_s32(fours[2], fours[3]))
            }
        })
    }

    #[inline(always)]
    fn dot_four(self, sums: Self::Ints, codes: &[u8; 4], x: &[i8; 64], _wide: bool) -> Self::Ints {
        let (x, _) = x.as_chunks::<16>();
        let codes = instructions!(vreinterpretq_u8_u32(vdupq_n_u32(u32::from_le_bytes(
            *codes
        ))));
        from_fn(|i| self.dot_of(sums[i], codes, &x[i]))
    }

    #[inline(always)]
    fn ints(self, values: &[i32; 16]) -> Self::Ints {
        let (values, _) = values.as_chunks::<4>();
        instructions!(from_fn(|i| vld1q_s32(values[i].as_ptr())))
    }

    #[inline(always)]
    fn put_ints(self, values: Self::Ints, to: &mut [i32; 16]) {
        let (to, _) = to.as_chunks_mut::<4>();
        for (to, values) in to.iter_mut().zip(values) {
            instructions!(vst1q_s32(to.as_mut_ptr(), values));
        }
    }

    #[inline(always)]
    fn less(self, a: Self::Ints, b: Self::Ints, factor: i32) -> Self::Ints {
        instructions!(from_fn(|i| vmlsq_n_s32(a[i], b[i], factor)))
    }

    #[inline(always)]
    fn to_floats(self, values: Self::Ints) -> Self::Floats {
        instructions!(values.map(|values| vcvtq_f32_s32(values)))
    }

    #[inline(always)]
    fn floats(self, values: &[f32; 16]) -> Self::Floats {
        let (values, _) = values.as_chunks::<4>();
        instructions!(from_fn(|i| vld1q_f32(values[i].as_ptr())))
    }

    #[inline(always)]
    fn store(self, values: Self::Floats, to: &mut [f32; 16]) {
        let (to, _) = to.as_chunks_mut::<4>();
        for (to, values) in to.iter_mut().zip(values) {
            instructions!(vst1q_f32(to.as_mut_ptr(), values));
        }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::Floats {
        instructions!([vdupq_n_f32(value); 4])
    }

    #[inline(always)]
    fn singles(self, bytes: &[u8; 64]) -> Self::Floats {
        let (bytes, _) = bytes.as_chunks::<16>();
        instructions!(from_fn(|i| vreinterpretq_f32_u8(self.load(&bytes[i]))))
    }

    #[inline(always)]
    fn halves(self, halves: &[u8; 32]) -> Self::Floats {
        let (halves, _) = halves.as_chunks::<8>();
        from_fn(|i| self.halves_of(&halves[i]))
    }

    #[inline(always)]
    fn brain(self, halves: &[u8; 32]) -> Self::Floats {
        let (halves, _) = halves.as_chunks::<8>();
        instructions!(from_fn(|i| {
            let words = vmovl_u16(vreinterpret_u16_u8(vld1_u8(halves[i].as_ptr())));
            vreinterpretq_f32_u32(vshlq_n_u32::<16>(words))
        }))
    }

    #[inline(always)]
    fn half(self, half: [u8; 2]) -> Self::Floats {
        let four = self.halves_of(bytemuck::cast_ref(&[half; 4]));
        [four; 4]
    }

    #[inline(always)]
    fn half_pairs(self, halves: [[u8; 2]; 8]) -> Self::Floats {
        self.halves(bytemuck::cast_ref(&from_fn::<_, 16, _>(|i| halves[i / 2])))
    }

    #[inline(always)]
    fn unsigned(self, bytes: &[u8; 16]) -> Self::Floats {
        instructions! {
            let bytes = self.load(bytes);
            let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
            [
                vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))),
                vcvtq_f32_u32(vmovl_high_u16(low)),
                vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))),
                vcvtq_f32_u32(vmovl_high_u16(high)),
            ]
        }
    }

    #[inline(always)]
    fn pairs(self, bytes: [u8; 8]) -> Self::Floats {
        self.unsigned(&from_fn(|i| bytes[i / 2]))
    }

    #[inline(always)]
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        instructions!(from_fn(|i| vaddq_f32(a[i], b[i])))
    }

    #[inline(always)]
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        instructions!(from_fn(|i| vmulq_f32(a[i], b[i])))
    }

    #[inline(always)]
    fn div(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        instructions!(from_fn(|i| vdivq_f32(a[i], b[i])))
    }

    #[inline(always)]
    fn max(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        instructions!(from_fn(|i| vmaxq_f32(a[i], b[i])))
    }

    #[inline(always)]
    fn min(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        instructions!(from_fn(|i| vminq_f32(a[i], b[i])))
    }

    #[inline(always)]
    fn times_power(self, a: Self::Floats, exponents: Self::Floats) -> Self::Floats {
        instructions!(from_fn(|i| {
            let bits = vshlq_n_s32::<23>(vreinterpretq_s32_f32(exponents[i]));
            vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(a[i]), bits))
        }))
    }

    #[inline(always)]
    fn fma(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        instructions!(from_fn(|i| vfmaq_f32(c[i], a[i], b[i])))
    }

    #[inline(always)]
    fn sum(self, values: Self::Floats) -> f32 {
        instructions! {
            let [low, high] = [vaddq_f32(values[0], values[2]), vaddq_f32(values[1], values[3])];
            let four = vaddq_f32(low, high);
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        }
    }
}
