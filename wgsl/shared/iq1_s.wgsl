// IQ1_S: weight = d (2 s + 1) (value + offset), values of a point are -1, 0 and 1, 11-bit index per 8 weights, 3-bit s and an offset of 1/8 or
// -1/8 per unit, d per superblock of 8 units. 50 bytes per 256 weights. Codes are 8 times value + offset.
//
// quants plane: per unit one word, whose byte k is the lower part of the index of weights 8k .. 8k + 8.
// scales plane: 1024 words with the points of eight values, two in each (shared/points.wgsl). Then per unit two bytes: bits 3k .. 3k + 3 are the upper part
//   of index k, bits 12 .. 15 are s, and bit 15 is set if the offset is negative.
//   From word `sub`: per superblock the f16 d, 2 bytes.
#import points

alias $W_Scales = u32;   // the elements of the scales plane

// The code in the middle of the range, and whether its weight is 0.
const $W_CENTRE = 0.0;
const $W_CENTRED = true;

fn $W_record(u: u32) -> u32 { return $W_s[1024u + (u >> 1u)] >> (16u * (u & 1u)); }

fn $W_codes(u: u32) -> W32Codes {
    let record = $W_record(u);
    let high = vec4<u32>(record << 8u, record << 5u, record << 2u, record >> 1u);
    let at = points_indices($W_q[u >> 2u][u & 3u]) | (high & vec4<u32>(0x300u));
    let words = vec4<u32>($W_s[at.x], $W_s[at.y], $W_s[at.z], $W_s[at.w]);
    let upper = (high & vec4<u32>(0x400u)) != vec4<u32>(0u);
    return points_codes(words, upper, vec4<bool>((record & 0x8000u) != 0u));
}

fn $W_affine(u: u32, sub: u32) -> vec4<f32> {
    let block = u >> 3u;
    let d = w32_f16($W_s[sub + (block >> 1u)], block & 1u);
    let s = ($W_record(u) >> 12u) & 7u;
    let scale = (0.125 * d) * f32(2u * s + 1u);
    return vec4<f32>(scale, 0.0, scale, 0.0);
}

fn $W_unit(u: u32, sub: u32) -> W32 { return w32_signed($W_codes(u), $W_affine(u, sub)); }
