// A unit of weights as floats, and the steps of which every dequantisation consists.
//
// Word i of a unit is a u32 whose bytes, lowest first, stand for weights 4i .. 4i + 4. The planes (crates/formats/src/quant/repack) are laid out so that
// one mask and one shift handle the four weights of a word together.
#each i 4
#each j 8

struct W32 {
    v$j: vec4<f32>,
}

// The eight words of four codes: words 0 .. 4 and words 4 .. 8. A byte is below 128 or a signed code, so integer dot products can take it
// as a signed byte.
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

// The lower (odd = 0) or upper (odd = 1) f16 of a pair. With HALVES, as on Macs, it selects one of two: a shift by a variable number costs
// an Apple GPU 12 cycles.
fn w32_f16(pair: u32, odd: u32) -> f32 {
#ifdef HALVES
    return unpack2x16float(select(pair, pair >> 16u, odd == 1u)).x;
#else
    return unpack2x16float(pair >> (16u * odd)).x;
#endif
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

// One vec4 of nibbles as in w32_nibbles, with the top bit of each byte inverted.
fn w32_turned_nibbles(q: vec4<u32>) -> W32Codes {
    return w32_nibbles(q ^ vec4<u32>(0x80808080u));
}

// Two words of 2-bit fields: field f of a byte of word w belongs to word 4w + f of the unit.
fn w32_crumbs(low: u32, high: u32) -> W32Codes {
    let shift = vec4<u32>(0u, 2u, 4u, 6u);
    let mask = vec4<u32>(0x03030303u);
    return W32Codes((vec4<u32>(low) >> shift) & mask, (vec4<u32>(high) >> shift) & mask);
}

// Two words of 2-bit fields as in w32_crumbs, with the fields as bits 4 and 5 of the codes.
fn w32_upper_crumbs(low: u32, high: u32) -> W32Codes {
    let mask = vec4<u32>(0x30303030u);
    return W32Codes(
        vec4<u32>(low << 4u, low << 2u, low, low >> 2u) & mask,
        vec4<u32>(high << 4u, high << 2u, high, high >> 2u) & mask,
    );
}

// One word of single bits, as bit 2 of the codes: bit i of a byte belongs to word i of the unit.
fn w32_third_bits(bits: u32) -> W32Codes {
    let mask = vec4<u32>(0x04040404u);
    return W32Codes(
        vec4<u32>(bits << 2u, bits << 1u, bits, bits >> 1u) & mask,
        (vec4<u32>(bits) >> vec4<u32>(2u, 3u, 4u, 5u)) & mask,
    );
}

// One word of single bits as in w32_third_bits, as bit 4 of the codes.
fn w32_fifth_bits(bits: u32) -> W32Codes {
    let mask = vec4<u32>(0x10101010u);
    return W32Codes(
        (vec4<u32>(bits) << vec4<u32>(4u, 3u, 2u, 1u)) & mask,
        (vec4<u32>(bits) >> vec4<u32>(0u, 1u, 2u, 3u)) & mask,
    );
}

// Codes, joined from their lower and upper bits.
fn w32_or(lower: W32Codes, upper: W32Codes) -> W32Codes {
    return W32Codes(lower.lo | upper.lo, lower.hi | upper.hi);
}

// The scale and offset of unit k of a superblock with 6-bit scales and minima (Q4_K, Q5_K), twice: its halves have the same.
fn w32_scale_min(record: vec4<u32>, k: u32) -> vec4<f32> {
    let low = (record.xy >> vec2<u32>(4u * k)) & vec2<u32>(15u);
    let high = (vec2<u32>(record.z, record.z >> 16u) >> vec2<u32>(2u * k)) & vec2<u32>(3u);
    let st = unpack2x16float(record.w) * vec2<f32>(low | (high << vec2<u32>(4u)));
    return vec2<f32>(st.x, -st.y).xyxy;
}

// scale * code + offset with unsigned codes; a = (scale, offset of words 0 .. 4, scale, offset of words 4 .. 8).
fn w32_affine(c: W32Codes, a: vec4<f32>) -> W32 {
    let o0 = vec4<f32>(a.y);
    let o1 = vec4<f32>(a.w);
    return W32(
        a.x * w32_bytes(c.lo[$i]) + o0,
        a.z * w32_bytes(c.hi[$i]) + o1,
    );
}

// scale * (code - bias). The subtraction is exact, so small weights have no error but that of the product.
fn w32_biased(c: W32Codes, bias: f32, scale: vec2<f32>) -> W32 {
    let b = vec4<f32>(bias);
    return W32(
        scale.x * (w32_bytes(c.lo[$i]) - b),
        scale.y * (w32_bytes(c.hi[$i]) - b),
    );
}

// scale * code with signed codes, whose offsets are 0.
fn w32_signed(c: W32Codes, a: vec4<f32>) -> W32 {
    return W32(
        a.x * w32_signed_bytes(c.lo[$i]),
        a.z * w32_signed_bytes(c.hi[$i]),
    );
}

// Nibbles of their bits, lowest first, each of which stands in the place of the lowest.
fn w32_four_bits(o0: vec4<u32>, o1: vec4<u32>, o2: vec4<u32>, o3: vec4<u32>) -> vec4<u32> {
    let one = vec4<u32>(1u);
    return o0 | ((o1 | ((o2 | (o3 << one)) << one)) << one);
}

// Codes of the lower and the upper nibbles of their bytes, which lie as in w32_nibbles.
fn w32_from_nibbles(lower: vec4<u32>, upper: vec4<u32>) -> W32Codes {
    let four = vec4<u32>(4u);
    let mask = vec4<u32>(0x0f0f0f0fu);
    return W32Codes((lower & mask) | ((upper & mask) << four), ((lower >> four) & mask) | (upper & ~mask));
}

// One vec4 of nibbles (see w32_nibbles), mapped to the codebook of IQ4_NL and IQ4_XS (kvalues_iq4nl in ggml-common.h):
// -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113, as signed bytes.
// The values are computed: most backends would keep a table with a dynamic index in memory, and comparisons take three times as many steps.
// Bit k of a value is a Boolean function o_k of the bits b0 .. b3 of the code, here for the eight nibbles of a word at once. A search for few
// gates found the shared terms.
fn w32_codebook(q: vec4<u32>) -> W32Codes {
    let ones = vec4<u32>(0x11111111u);
    let b0 = q & ones;
    let b1 = (q >> vec4<u32>(1u)) & ones;
    let b2 = (q >> vec4<u32>(2u)) & ones;
    let b3 = (q >> vec4<u32>(3u)) & ones;
    let t0 = b3 & ~b0;
    let t1 = t0 & ~b1;
    let t2 = b1 & ~t0;
    let t3 = t2 ^ b2;
    let o6 = b2 & ~t1;
    let o5 = t3 ^ o6;
    let t4 = o5 & b2;
    let o4 = (b3 & ~t4) ^ (t1 | b0);
    let t5 = t3 ^ b0;
    let o3 = (t5 | o4) ^ t4;
    let t6 = t4 ^ b3;
    let o2 = (t6 & t5) ^ t3;
    let o1 = ((o3 ^ b0) & ~t6) ^ t2;
    let o0 = ones ^ ((o2 ^ o3) & ~(b3 & ~t2));
    let o7 = ones ^ b3;
    return w32_from_nibbles(w32_four_bits(o0, o1, o2, o3), w32_four_bits(o4, o5, o6, o7));
}
