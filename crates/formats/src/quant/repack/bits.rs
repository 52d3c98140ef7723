//! The small bit permutations between GGML's blocks and the planes.
//!
//! "Word `i`" of a unit is the u32 whose bytes stand for weights `4i..4i + 4`: the shaders mask and shift four weights
//! at a time.

pub(super) const LOW_NIBBLES: u128 = 0x0f0f0f0f_0f0f0f0f_0f0f0f0f_0f0f0f0f;
const TOP_BITS: u128 = 0x80808080_80808080_80808080_80808080;

/// Splits 32 bytes that hold run A in the low and run B in the high nibbles into A and B, each with weight `j` in the
/// low and weight `j + 16` in the high nibble of byte `j`.
pub(super) fn split_nibbles(bytes: &[u8; 32]) -> ([u8; 16], [u8; 16]) {
    let (chunks, _) = bytes.as_chunks::<16>();
    let [first, second] = [chunks[0], chunks[1]].map(u128::from_le_bytes);
    let low = first & LOW_NIBBLES | (second & LOW_NIBBLES) << 4;
    let high = (first >> 4) & LOW_NIBBLES | second & !LOW_NIBBLES;
    (low.to_le_bytes(), high.to_le_bytes())
}

/// Turns over the top bit of every byte: a high nibble `q` then stands for `16 (q - 8)` in a signed byte whose low nibble is masked
/// away. Its own inverse.
pub(super) fn turn_high_nibbles(bytes: [u8; 16]) -> [u8; 16] {
    (u128::from_le_bytes(bytes) ^ TOP_BITS).to_le_bytes()
}

/// Little-endian words of bytes.
pub(super) fn to_words<const B: usize, const W: usize>(bytes: &[u8; B]) -> [u32; W] {
    const { assert!(B == 4 * W) };
    let (chunks, _) = bytes.as_chunks::<4>();
    std::array::from_fn(|i| u32::from_le_bytes(chunks[i]))
}

/// Bytes of little-endian words.
pub(super) fn to_bytes<const W: usize, const B: usize>(words: &[u32; W]) -> [u8; B] {
    const { assert!(B == 4 * W) };
    let mut bytes = [0; B];
    let (chunks, _) = bytes.as_chunks_mut::<4>();
    for (chunk, word) in chunks.iter_mut().zip(words) {
        *chunk = word.to_le_bytes();
    }
    bytes
}

/// Swaps word index and bit index: bit `k` of a byte of word `i` goes to bit `i` of the same byte of word `k`.
///
/// Takes GGML's high bits (bit = run, words over weights) to the planes' (word = run, bits over words). Its own
/// inverse; an 8x8 transposition by three rounds of masked swaps, in four byte lanes at once.
pub(super) fn transpose_bits(words: &mut [u32; 8]) {
    for (step, mask) in [(4, 0x0f0f_0f0f), (2, 0x3333_3333), (1, 0x5555_5555)] {
        for i in (0..8).filter(|i| i & step == 0) {
            swap(words, i, i + step, step as u32, mask);
        }
    }
}

/// Swaps word index and field index of 2-bit fields in four words: field `k` of a byte of word `i` goes to field `i` of that byte of
/// word `k`.
pub(super) fn transpose_crumbs(words: &mut [u32; 4]) {
    for (step, mask) in [(2, 0x0f0f_0f0f), (1, 0x3333_3333)] {
        for i in (0..4).filter(|i| i & step == 0) {
            swap(words, i, i + step, 2 * step as u32, mask);
        }
    }
}

fn swap(words: &mut [u32], i: usize, k: usize, shift: u32, mask: u32) {
    let moved = ((words[i] >> shift) ^ words[k]) & mask;
    words[k] ^= moved;
    words[i] ^= moved << shift;
}

/// Takes 32 bytes whose byte `l` holds 2 bits of weight `l` of four runs, lowest run first, to two words per run:
/// field `i` of a byte of word `w` belongs to word `4w + i` of the run.
pub(super) fn split_crumbs(bytes: &[u8; 32]) -> [[u32; 2]; 4] {
    let words: [u32; 8] = to_words(bytes);
    let (halves, _) = words.as_chunks::<4>();
    let (mut first, mut second) = (halves[0], halves[1]);
    transpose_crumbs(&mut first);
    transpose_crumbs(&mut second);
    std::array::from_fn(|run| [first[run], second[run]])
}

/// Takes bit `4i + b` to bit `8b + i`: the fifth bits of 32 weights, ordered by weight, to bits over words.
pub(super) fn spread_bits(bits: u32) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|b| {
        let mut v = (bits >> b) & 0x1111_1111;
        v = (v | v >> 3) & 0x0303_0303;
        v = (v | v >> 6) & 0x000f_000f;
        (v | v >> 12) as u8
    }))
}

/// The low nibbles of the four bytes as 16 bits.
pub(super) fn pack_nibbles(bytes: u32) -> u32 {
    let v = bytes & 0x0f0f_0f0f;
    let v = (v | v >> 4) & 0x00ff_00ff;
    (v | v >> 8) & 0xffff
}

/// The two lowest bits of the four bytes as 8 bits.
pub(super) fn pack_crumbs(bytes: u32) -> u32 {
    let v = bytes & 0x0303_0303;
    let v = (v | v >> 6) & 0x000f_000f;
    (v | v >> 12) & 0xff
}

/// Takes bit `4i + b` to bit `8b + i / 2` for even and to bit `8b + 4 + i / 2` for odd `i`: the signs of 32 weights, ordered by weight, to bits over
/// words. The signs that are not stored where they are even, every eighth, would then be the upper four bits.
pub(super) fn spread_signs(signs: u32) -> u32 {
    swap_bits(
        swap_bits(spread_bits(signs), 1, 0x2222_2222),
        2,
        0x0c0c_0c0c,
    )
}

/// Swaps the bits of `mask` with those `by` places above. Its own inverse.
pub(super) fn swap_bits(bits: u32, by: u32, mask: u32) -> u32 {
    let differ = (bits ^ bits >> by) & mask;
    bits ^ differ ^ differ << by
}

/// Words of seven signs of each of four points, with four other bits above them: the signs spread as by [`spread_signs`], those bits where they were.
pub(super) fn spread_sevens(word: u32) -> u32 {
    let seven = |i: u32| (word >> (7 * i) & 127) << (8 * i);
    spread_signs((0..4).fold(0, |signs, i| signs | seven(i))) | word & 0xf000_0000
}
