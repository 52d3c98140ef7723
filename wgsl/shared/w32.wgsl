// 32 consecutive weights as floats, and the few steps out of which every dequantisation is put together.
//
// "Word i" of a unit is a u32 whose bytes, lowest first, stand for weights 4i .. 4i + 4. The planes (src/quant/repack)
// are laid out so that one mask and one shift handle the four weights of a word together.

struct W32 {
    v0: vec4<f32>,
    v1: vec4<f32>,
    v2: vec4<f32>,
    v3: vec4<f32>,
    v4: vec4<f32>,
    v5: vec4<f32>,
    v6: vec4<f32>,
    v7: vec4<f32>,
}

// Eight words of four unsigned codes: words 0 .. 4 and words 4 .. 8.
struct W32Codes {
    lo: vec4<u32>,
    hi: vec4<u32>,
}

// The four bytes of a word.
fn w32_bytes(word: u32) -> vec4<f32> {
    return vec4<f32>((vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u));
}

// The four bytes of a word as signed integers.
fn w32_signed_bytes(word: u32) -> vec4<f32> {
    return vec4<f32>(vec4<i32>(vec4<u32>(word) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u));
}

// The lower (odd = 0) or upper (odd = 1) f16 of a pair.
fn w32_f16(pair: u32, odd: u32) -> f32 {
    return unpack2x16float(pair >> (16u * odd)).x;
}

// Two bf16: the upper halves of f32.
fn w32_bf16(pair: u32) -> vec2<f32> {
    return vec2<f32>(bitcast<f32>(pair << 16u), bitcast<f32>(pair & 0xffff0000u));
}

// One vec4 of nibbles: byte j holds weight j in its low and weight j + 16 in its high nibble.
fn w32_nibbles(q: vec4<u32>) -> W32Codes {
    let mask = vec4<u32>(0x0f0f0f0fu);
    return W32Codes(q & mask, (q >> vec4<u32>(4u)) & mask);
}

// Two words of 2-bit fields: field f of a byte of word w belongs to word 4w + f of the unit.
fn w32_crumbs(low: u32, high: u32) -> W32Codes {
    let shift = vec4<u32>(0u, 2u, 4u, 6u);
    let mask = vec4<u32>(0x03030303u);
    return W32Codes((vec4<u32>(low) >> shift) & mask, (vec4<u32>(high) >> shift) & mask);
}

// One word of single bits: bit i of a byte belongs to word i of the unit.
fn w32_bits(bits: u32) -> W32Codes {
    let mask = vec4<u32>(0x01010101u);
    return W32Codes(
        (vec4<u32>(bits) >> vec4<u32>(0u, 1u, 2u, 3u)) & mask,
        (vec4<u32>(bits) >> vec4<u32>(4u, 5u, 6u, 7u)) & mask,
    );
}

// Codes with the bits of `high` above their lowest `width` bits.
fn w32_with_high(codes: W32Codes, high: W32Codes, width: u32) -> W32Codes {
    let shift = vec4<u32>(width);
    return W32Codes(codes.lo | (high.lo << shift), codes.hi | (high.hi << shift));
}

// scale * code + offset.
fn w32_affine(c: W32Codes, scale: f32, offset: f32) -> W32 {
    return w32_affine_halves(c, scale, offset, scale, offset);
}

// The same with a scale and an offset for each half of the unit.
fn w32_affine_halves(c: W32Codes, scale0: f32, offset0: f32, scale1: f32, offset1: f32) -> W32 {
    let o0 = vec4<f32>(offset0);
    let o1 = vec4<f32>(offset1);
    return W32(
        scale0 * w32_bytes(c.lo.x) + o0,
        scale0 * w32_bytes(c.lo.y) + o0,
        scale0 * w32_bytes(c.lo.z) + o0,
        scale0 * w32_bytes(c.lo.w) + o0,
        scale1 * w32_bytes(c.hi.x) + o1,
        scale1 * w32_bytes(c.hi.y) + o1,
        scale1 * w32_bytes(c.hi.z) + o1,
        scale1 * w32_bytes(c.hi.w) + o1,
    );
}

// scale * (code - bias): the subtraction is exact, so no error of its own comes near a weight of 0.
fn w32_biased(c: W32Codes, bias: f32, scale: f32) -> W32 {
    return w32_biased_halves(c, bias, scale, scale);
}

// The same with a scale for each half of the unit.
fn w32_biased_halves(c: W32Codes, bias: f32, scale0: f32, scale1: f32) -> W32 {
    let b = vec4<f32>(bias);
    return W32(
        scale0 * (w32_bytes(c.lo.x) - b),
        scale0 * (w32_bytes(c.lo.y) - b),
        scale0 * (w32_bytes(c.lo.z) - b),
        scale0 * (w32_bytes(c.lo.w) - b),
        scale1 * (w32_bytes(c.hi.x) - b),
        scale1 * (w32_bytes(c.hi.y) - b),
        scale1 * (w32_bytes(c.hi.z) - b),
        scale1 * (w32_bytes(c.hi.w) - b),
    );
}

// The codebook of IQ4_NL and IQ4_XS (kvalues_iq4nl in ggml-common.h), four signed bytes per word:
// -127 -104 -83 -65, -49 -35 -22 -10, 1 13 25 38, 53 69 89 113.
fn w32_codebook(codes: u32) -> vec4<f32> {
    let c = (vec4<u32>(codes) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(15u);
    // Chosen by compare, not looked up: a private array with a dynamic index lands in memory on most backends.
    let negative = select(vec4<u32>(0xbfad9881u), vec4<u32>(0xf6eaddcfu), (c & vec4<u32>(4u)) != vec4<u32>(0u));
    let positive = select(vec4<u32>(0x26190d01u), vec4<u32>(0x71594535u), (c & vec4<u32>(4u)) != vec4<u32>(0u));
    let word = select(negative, positive, c >= vec4<u32>(8u));
    let byte = vec4<u32>(24u) - ((c & vec4<u32>(3u)) << vec4<u32>(3u));
    return vec4<f32>(vec4<i32>(word << byte) >> vec4<u32>(24u));
}

// scale * codebook(code).
fn w32_looked_up(c: W32Codes, scale: f32) -> W32 {
    return W32(
        scale * w32_codebook(c.lo.x),
        scale * w32_codebook(c.lo.y),
        scale * w32_codebook(c.lo.z),
        scale * w32_codebook(c.lo.w),
        scale * w32_codebook(c.hi.x),
        scale * w32_codebook(c.hi.y),
        scale * w32_codebook(c.hi.z),
        scale * w32_codebook(c.hi.w),
    );
}
