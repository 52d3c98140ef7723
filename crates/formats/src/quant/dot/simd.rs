//! The vectors that products are written in, once for all instruction sets.

/// Values of a register of bytes.
pub(super) const BYTES: usize = 64;

/// Values of a register of floats: one for every four bytes, which [`Simd::dot`] sums.
pub(super) const FLOATS: usize = 16;

/// 64 bytes and 16 floats of an instruction set. A value of the type is the proof that the processor has the set.
pub(super) trait Simd: Copy {
    /// 64 bytes.
    type Bytes: Copy;
    /// 16 floats.
    type Floats: Copy;

    /// The number that [`signed`](Self::signed) adds to signed codes. It is 128 if the instructions take unsigned codes, else 0.
    const BIAS: f32;

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
    /// Signed codes as the operand of a `dot` that is `wide`.
    fn signed(self, codes: Self::Bytes) -> Self::Bytes;
    /// The sums of four products of codes and activations each. Codes are below 128, or where they are `wide` from [`signed`](Self::signed);
    /// activations are -127..=127.
    fn dot(self, codes: Self::Bytes, x: &[i8; 64], wide: bool) -> Self::Floats;

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
    /// 16 bytes as numbers.
    fn unsigned(self, bytes: &[u8; 16]) -> Self::Floats;
    /// The eight bytes of a little-endian word as numbers, each twice.
    fn each_twice(self, bytes: u64) -> Self::Floats;
    /// Values `4 * quarter..4 * quarter + 4`, each four times.
    fn spread(self, values: Self::Floats, quarter: usize) -> Self::Floats;
    /// The sums.
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// The products.
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`.
    fn fma(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// The sum of all 16.
    fn sum(self, values: Self::Floats) -> f32;
}

/// Something to do with whatever instruction set is taken. Its code is compiled for each of them.
pub(super) trait Work {
    /// Does it. An implementation is `#[inline(always)]`, so that it becomes part of a function that may use the instructions.
    fn run<S: Simd>(self, simd: S);
}
