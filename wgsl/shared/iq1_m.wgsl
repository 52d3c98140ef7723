// IQ1_M: weight = d (2 s + 1) (value + offset), values of a point are -1, 0 and 1, 11-bit index and an offset of 1/8 or -1/8 per 8 weights, 3-bit s
// per 16 weights, d per superblock of 8 units. 56 bytes per 256 weights. Codes are 8 times value + offset.
//
// quants plane: per unit one word, whose byte k is the lower part of the index of weights 8k .. 8k + 8.
// scales plane: 1024 words with the points of eight values, two in each (shared/points.wgsl). Then per superblock six words. Words 0 .. 4: two bytes per
//   unit, bits 4k .. 4k + 3 are the upper part of index k, and bit 4k + 3 is set if its offset is negative. Words 4 and 5: two bytes for every
//   two units, bits 3k .. 3k + 3 are the s of half k of the two. The upper nibbles of these four pairs of bytes are the f16 d, lowest first.
#import points

alias $W_Scales = u32;   // the elements of the scales plane

// The code in the middle of the range, and whether its weight is 0.
const $W_CENTRE = 0.0;
const $W_CENTRED = true;

fn $W_codes(u: u32) -> W32Codes {
    let record = $W_s[1024u + 6u * (u >> 3u) + ((u & 7u) >> 1u)] >> (16u * (u & 1u));
    let high = vec4<u32>(record << 8u, record << 4u, record, record >> 4u);
    let at = points_indices($W_q[u >> 2u][u & 3u]) | (high & vec4<u32>(0x300u));
    let words = vec4<u32>($W_s[at.x], $W_s[at.y], $W_s[at.z], $W_s[at.w]);
    let upper = (high & vec4<u32>(0x400u)) != vec4<u32>(0u);
    return points_codes(words, upper, (high & vec4<u32>(0x800u)) != vec4<u32>(0u));
}

fn $W_affine(u: u32, sub: u32) -> vec4<f32> {
    let at = 1028u + 6u * (u >> 3u);
    let a = $W_s[at];
    let b = $W_s[at + 1u];
    let lower = ((a >> 12u) & 15u) | ((a >> 24u) & 0xf0u);
    let d = unpack2x16float(lower | ((b >> 4u) & 0xf00u) | ((b >> 16u) & 0xf000u)).x;
    let run = u & 7u;
    let s = select(a, b, run >= 4u) >> (16u * ((run >> 1u) & 1u) + 6u * (run & 1u));
    let scales = (0.125 * d) * vec2<f32>(2u * (vec2<u32>(s, s >> 3u) & vec2<u32>(7u)) + vec2<u32>(1u));
    return vec4<f32>(scales.x, 0.0, scales.y, 0.0);
}

fn $W_unit(u: u32, sub: u32) -> W32 { return w32_signed($W_codes(u), $W_affine(u, sub)); }
