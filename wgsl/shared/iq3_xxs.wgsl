// IQ3_XXS: weight = d (s + 1/2) / 2 times a value of a point with its sign, 8-bit index per 4 weights, 4-bit s per unit, d per superblock of 8
// units. 98 bytes per 256 weights.
//
// quants plane: per unit half a vec4 = two words, whose byte k is the index of weights 4k .. 4k + 4.
// scales plane: 256 words with the points, byte b is value b. Then per unit one word: the signs (shared/points.wgsl) but every eighth, and s in its upper four bits.
//   From word `sub`: per superblock the f16 d, 2 bytes.
#import points

alias $W_Scales = u32;   // the elements of the scales plane

// The code in the middle of the range, and whether its weight is 0.
const $W_CENTRE = 0.0;
const $W_CENTRED = true;

// The values of four points.
fn $W_four(at: vec4<u32>) -> vec4<u32> {
    return vec4<u32>($W_s[at.x], $W_s[at.y], $W_s[at.z], $W_s[at.w]);
}

fn $W_codes(u: u32) -> W32Codes {
    let pair = $W_q[u >> 1u];
    let q = select(pair.xy, pair.zw, (u & 1u) == 1u);
    let values = W32Codes($W_four(points_indices(q.x)), $W_four(points_indices(q.y)));
    return points_signed(values, points_even_signs($W_s[256u + u]));
}

fn $W_affine(u: u32, sub: u32) -> vec4<f32> {
    let block = u >> 3u;
    let d = w32_f16($W_s[sub + (block >> 1u)], block & 1u);
    let scale = (0.5 * d) * (f32($W_s[256u + u] >> 28u) + 0.5);
    return vec4<f32>(scale, 0.0, scale, 0.0);
}

fn $W_unit(u: u32, sub: u32) -> W32 { return w32_signed($W_codes(u), $W_affine(u, sub)); }
