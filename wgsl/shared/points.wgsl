// The points of a grid (crates/formats/src/quant/grids.rs). The scales plane begins with them: byte b of a word has nibbles for value b, the
// lower ones of a point in the first half of the grid, the upper ones of one in the second half. So a point of index i is in word
// i % HALF, in the upper nibbles if i >= HALF.

// The values of four points of four values, as nibbles in bytes: word k is that of point k.
fn points_nibbles(words: vec4<u32>, upper: vec4<bool>) -> vec4<u32> {
    return select(words, words >> vec4<u32>(4u), upper) & vec4<u32>(0x0f0f0f0fu);
}

// The levels of four points of eight values, as bytes: a nibble has that of value b in its lower two bits and of value b + 4 in its upper
// two, so words 2k and 2k + 1 are those of point k.
fn points_levels(words: vec4<u32>, upper: vec4<bool>) -> W32Codes {
    let lower = vec2<u32>(0x0f0f0f0fu);
    let first = select(words.xz, words.xz >> vec2<u32>(4u), upper.xz) & lower;
    let second = select(words.yw << vec2<u32>(4u), words.yw, upper.yw) & ~lower;
    let pairs = first | second;
    return w32_crumbs(pairs.x, pairs.y);
}

// The values 8, 25 and 43 of the levels 0, 1 and 2.
fn points_values(levels: W32Codes) -> W32Codes {
    let ones = vec4<u32>(0x01010101u);
    let eights = vec4<u32>(0x08080808u);
    return W32Codes(
        (levels.lo << vec4<u32>(4u)) + levels.lo + ((levels.lo >> vec4<u32>(1u)) & ones) + eights,
        (levels.hi << vec4<u32>(4u)) + levels.hi + ((levels.hi >> vec4<u32>(1u)) & ones) + eights,
    );
}

// Bytes above 0 as signed ones. In a word of signs, bit i / 2 of a byte belongs to word i of the unit if i is even, bit 4 + i / 2 if it is odd.
fn points_signed(values: W32Codes, signs: u32) -> W32Codes {
    let ones = vec4<u32>(0x01010101u);
    let lo = (vec4<u32>(signs) >> vec4<u32>(0u, 4u, 1u, 5u)) & ones;
    let hi = (vec4<u32>(signs) >> vec4<u32>(2u, 6u, 3u, 7u)) & ones;
    // -v is ~v + 1, and no sum leaves its byte.
    return W32Codes(
        (values.lo ^ ((lo << vec4<u32>(8u)) - lo)) + lo,
        (values.hi ^ ((hi << vec4<u32>(8u)) - hi)) + hi,
    );
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
