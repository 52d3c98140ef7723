// The points of a grid (crates/formats/src/quant/grids.rs), with which the scales plane begins.

// The values of four points of eight values 8, 25 or 43, of which all have bit 3 and none bit 2. Byte b of a point's word has the bits 0, 1, 4 and 5
// of value b, and those of value b + 4 two places higher. So words 2k and 2k + 1 are those of point k.
fn points_values(points: vec4<u32>) -> W32Codes {
    let mask = vec4<u32>(0x33333333u);
    let eight = vec4<u32>(0x08080808u);
    let first = (points & mask) | eight;
    let second = ((points >> vec4<u32>(2u)) & mask) | eight;
    return W32Codes(
        vec4<u32>(first.x, second.x, first.y, second.y),
        vec4<u32>(first.z, second.z, first.w, second.w),
    );
}

// The codes of four points of eight values -1, 0 or 1: 8 times the sum of a value and an offset of 1/8 or -1/8. Byte b of a word has in its lower
// nibble value b + 1 in bits 0 and 1 and value b + 4 in bits 2 and 3, and the same in its upper nibble for a point half of the grid later.
// Words 2k and 2k + 1 are those of point k.
fn points_codes(words: vec4<u32>, upper: vec4<bool>, negative: vec4<bool>) -> W32Codes {
    let lower = vec2<u32>(0x0f0f0f0fu);
    let first = select(words.xz, words.xz >> vec2<u32>(4u), upper.xz) & lower;
    let second = select(words.yw << vec2<u32>(4u), words.yw, upper.yw) & ~lower;
    let pairs = first | second;
    // 8 (value + 1) + 120 + or - 1 stays in its byte. The top bit subtracts 128 again.
    let offsets = select(vec4<u32>(0x79797979u), vec4<u32>(0x77777777u), negative);
    let eights = vec4<u32>(0x18181818u);
    let top = vec4<u32>(0x80808080u);
    let lo = vec4<u32>(pairs.x << 3u, pairs.x << 1u, pairs.x >> 1u, pairs.x >> 3u) & eights;
    let hi = vec4<u32>(pairs.y << 3u, pairs.y << 1u, pairs.y >> 1u, pairs.y >> 3u) & eights;
    return W32Codes((lo + offsets.xxyy) ^ top, (hi + offsets.zzww) ^ top);
}

// Bytes above 0 as signed ones. In a word of signs, bit i / 2 of a byte belongs to word i of the unit if i is even, bit 4 + i / 2 if it is odd.
fn points_signed(values: W32Codes, signs: u32) -> W32Codes {
    let ones = vec4<u32>(0x01010101u);
    let top = vec4<u32>(0x80808080u);
    let lo = (vec4<u32>(signs) >> vec4<u32>(0u, 4u, 1u, 5u)) & ones;
    let hi = (vec4<u32>(signs) >> vec4<u32>(2u, 6u, 3u, 7u)) & ones;
    // -v is ~v + 1. The bytes of (top - sign) ^ top are 255 or 0, and no sum leaves its byte.
    return W32Codes((values.lo ^ top ^ (top - lo)) + lo, (values.hi ^ top ^ (top - hi)) + hi);
}

// A word of signs whose upper four bits are something else. They are the signs that make the number of negative ones of every eight even.
fn points_even_signs(word: u32) -> u32 {
    let stored = word & 0x0fffffffu;
    let two = stored ^ (stored >> 16u);
    let one = two ^ (two >> 8u);
    return stored | ((one ^ (one >> 4u)) << 28u);
}

// The four bytes of a word as the lower bits of indices.
fn points_indices(word: u32) -> vec4<u32> {
    return (vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u);
}
