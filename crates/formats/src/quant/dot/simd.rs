//! The vectors that products are written in, once for all instruction sets.

use std::array::from_fn;

/// Values of a register of bytes.
pub(super) const BYTES: usize = 64;

/// Values of a register of floats, and of one of integers.
pub(super) const FLOATS: usize = 16;

/// 64 bytes, 16 integers and 16 floats of an instruction set. A value of the type is the proof that the processor has the set.
pub(super) trait Simd: Copy {
    /// 64 bytes.
    type Bytes: Copy;
    /// 16 integers of 32 bits.
    type Ints: Copy;
    /// 16 floats.
    type Floats: Copy;

    /// The number that [`signed`](Self::signed) adds to signed codes. It is 128 if the instructions take unsigned codes, else 0.
    const BIAS: i32;

    /// Inputs from which on it is faster to multiply them side by side.
    const ABREAST: usize;

    /// Runs `strips` with as many rows at once as there are registers for.
    fn strips(self, strips: impl Strips);

    /// 64 bytes as they lie.
    fn bytes(self, bytes: &[u8; 64]) -> Self::Bytes;
    /// Stores 64 bytes.
    fn put(self, bytes: Self::Bytes, to: &mut [u8; 64]);
    /// `low`, and `high` behind it.
    fn join(self, low: &[u8; 32], high: &[u8; 32]) -> Self::Bytes;
    /// The low nibbles of `a`, its high ones, the low nibbles of `b`, and its high ones.
    fn nibbles(self, a: &[u8; 16], b: &[u8; 16]) -> Self::Bytes;
    /// A byte of 16 for every bit that is 1, those of `low` first, else of 0.
    fn sixteens(self, low: [u8; 4], high: [u8; 4]) -> Self::Bytes;
    /// The codes of which each byte holds several: those that begin at bit `low` of the first 32 bytes and at bit `high` of the others,
    /// which are as many bits as `mask` has.
    fn codes(self, bytes: Self::Bytes, low: u32, high: u32, mask: u8) -> Self::Bytes;
    /// `low | high << bits`, where the upper `bits` bits of `high` are 0.
    fn above(self, low: Self::Bytes, high: Self::Bytes, bits: u32) -> Self::Bytes;
    /// The numbers of `bits` bits in words: byte b of output word i is that of byte b of word i / 4 which begins at bit `bits * (i % 4)`.
    fn fields(self, words: [u32; 4], bits: u32) -> Self::Bytes;
    /// The entries of `table` that indices below 16 name.
    fn look_up(self, table: &[i8; 16], indices: Self::Bytes) -> Self::Bytes;
    /// Signed codes as the operand of products that are `wide`.
    fn signed(self, codes: Self::Bytes) -> Self::Bytes;
    /// The sums of 16 products of codes and activations each. Codes are below 128, or where they are `wide` from [`signed`](Self::signed);
    /// activations are -127..=127.
    fn dots(self, codes: [Self::Bytes; 4], x: &[[i8; 64]; 4], wide: bool) -> Self::Ints;
    /// `sums`, to each of which four products are added: of the same four codes and four activations each.
    fn dot_four(self, sums: Self::Ints, codes: &[u8; 4], x: &[i8; 64], wide: bool) -> Self::Ints;

    /// 16 integers as they lie.
    fn ints(self, values: &[i32; 16]) -> Self::Ints;
    /// Stores 16 integers.
    fn put_ints(self, values: Self::Ints, to: &mut [i32; 16]);
    /// `a - b * factor`.
    fn less(self, a: Self::Ints, b: Self::Ints, factor: i32) -> Self::Ints;
    /// The integers as floats.
    fn to_floats(self, values: Self::Ints) -> Self::Floats;

    /// 16 floats as they lie.
    fn floats(self, values: &[f32; 16]) -> Self::Floats;
    /// Stores 16 floats.
    fn store(self, values: Self::Floats, to: &mut [f32; 16]);
    /// 16 times the same.
    fn splat(self, value: f32) -> Self::Floats;
    /// 16 little-endian f32.
    fn singles(self, bytes: &[u8; 64]) -> Self::Floats;
    /// 16 little-endian f16, widened.
    fn halves(self, halves: &[u8; 32]) -> Self::Floats;
    /// 16 little-endian bf16, widened.
    fn brain(self, halves: &[u8; 32]) -> Self::Floats;
    /// 16 times the same little-endian f16, widened.
    fn half(self, half: [u8; 2]) -> Self::Floats;
    /// Eight little-endian f16, each twice, widened.
    fn half_pairs(self, halves: [[u8; 2]; 8]) -> Self::Floats;
    /// 16 bytes as numbers.
    fn unsigned(self, bytes: &[u8; 16]) -> Self::Floats;
    /// Eight bytes as numbers, each twice.
    fn pairs(self, bytes: [u8; 8]) -> Self::Floats;
    /// The sums.
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// The products.
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// The quotients.
    fn div(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// The larger ones.
    fn max(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// The smaller ones.
    fn min(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a` times the power of two whose exponent is in the lowest bits of `exponents`.
    fn times_power(self, a: Self::Floats, exponents: Self::Floats) -> Self::Floats;
    /// `a * b + c`.
    fn fma(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// The sum of all 16, in the order of [`sum`].
    fn sum(self, values: Self::Floats) -> f32;
}

/// Something to do with whatever instruction set is taken. Its code is compiled for each of them.
pub(super) trait Work {
    /// Does it. An implementation is `#[inline(always)]`, so that it becomes part of a function that may use the instructions.
    fn run<S: Simd>(self, simd: S);
}

/// Something to do with `R` rows at once.
pub(super) trait Strips {
    /// Does it, as [`Work::run`] is done.
    fn run<S: Simd, const R: usize>(self, simd: S);
}

/// The sum of 16 in a fixed order: of those that are eight apart first, then four, two and one.
#[inline(always)]
pub(super) fn sum<T: Copy>(values: [T; FLOATS], add: impl Fn(T, T) -> T) -> T {
    let eight: [T; 8] = from_fn(|i| add(values[i], values[i + 8]));
    let four: [T; 4] = from_fn(|i| add(eight[i], eight[i + 4]));
    add(add(four[0], four[2]), add(four[1], four[3]))
}
