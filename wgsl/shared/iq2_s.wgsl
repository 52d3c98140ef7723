// IQ2_S: weight = d (s + 1/2) / 4 times a value of a point with its sign, 10-bit index per 8 weights, 4-bit s per 16 weights, d per superblock
// of 8 units. 82 bytes per 256 weights.
//
// quants plane: per unit half a vec4 = two words: byte k of the first is the lower part of the index of weights 8k .. 8k + 8. The second
//   has the signs (shared/points.wgsl).
// scales plane: 1024 words with the points of eight values (shared/points.wgsl). Then per unit two bytes: bits 2k and 2k + 1 of the first are
//   the upper part of index k. The second has s of its first half in the lower, of its second half in the upper nibble.
//   From word `sub`: per superblock the f16 d, 2 bytes.
#import points

alias $W_Scales = u32;   // the elements of the scales plane

// The code in the middle of the range, and whether its weight is 0.
const $W_CENTRE = 0.0;
const $W_CENTRED = true;

fn $W_record(u: u32) -> u32 { return $W_s[1024u + (u >> 1u)] >> (16u * (u & 1u)); }

fn $W_codes(u: u32) -> W32Codes {
    let pair = $W_q[u >> 1u];
    let q = select(pair.xy, pair.zw, (u & 1u) == 1u);
    let high = (vec4<u32>($W_record(u)) << vec4<u32>(8u, 6u, 4u, 2u)) & vec4<u32>(0x300u);
    let at = points_indices(q.x) | high;
    let points = vec4<u32>($W_s[at.x], $W_s[at.y], $W_s[at.z], $W_s[at.w]);
    return points_signed(points_values(points), q.y);
}

fn $W_affine(u: u32, sub: u32) -> vec4<f32> {
    let block = u >> 3u;
    let d = w32_f16($W_s[sub + (block >> 1u)], block & 1u);
    let s = $W_record(u);
    let scales = (0.25 * d) * (vec2<f32>(vec2<u32>(s >> 8u, s >> 12u) & vec2<u32>(15u)) + vec2<f32>(0.5));
    return vec4<f32>(scales.x, 0.0, scales.y, 0.0);
}

fn $W_unit(u: u32, sub: u32) -> W32 { return w32_signed($W_codes(u), $W_affine(u, sub)); }
