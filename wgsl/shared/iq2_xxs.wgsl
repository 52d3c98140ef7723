// IQ2_XXS: weight = d (s + 1/2) / 4 times a value of a point with its sign, 8-bit index per 8 weights, 4-bit s per unit, d per superblock of 8
// units. 66 bytes per 256 weights.
//
// quants plane: per unit half a vec4 = two words: byte k of the first is the index of weights 8k .. 8k + 8. The second has the signs
//   (shared/points.wgsl) but every eighth, and s in its upper four bits.
// scales plane: 256 words with the points of eight values (shared/points.wgsl).
//   From word `sub`: per superblock the f16 d, 2 bytes.
#import points

alias $W_Scales = u32;   // the elements of the scales plane

// The code in the middle of the range, and whether its weight is 0.
const $W_CENTRE = 0.0;
const $W_CENTRED = true;

// The two words of a unit.
fn $W_words(u: u32) -> vec2<u32> {
    let pair = $W_q[u >> 1u];
    return select(pair.xy, pair.zw, (u & 1u) == 1u);
}

fn $W_codes(u: u32) -> W32Codes {
    let q = $W_words(u);
    let at = points_indices(q.x);
    let points = vec4<u32>($W_s[at.x], $W_s[at.y], $W_s[at.z], $W_s[at.w]);
    return points_signed(points_values(points), points_even_signs(q.y));
}

fn $W_affine(u: u32, sub: u32) -> vec4<f32> {
    let block = u >> 3u;
    let d = w32_f16($W_s[sub + (block >> 1u)], block & 1u);
    let scale = (0.25 * d) * (f32($W_words(u).y >> 28u) + 0.5);
    return vec4<f32>(scale, 0.0, scale, 0.0);
}

fn $W_unit(u: u32, sub: u32) -> W32 { return w32_signed($W_codes(u), $W_affine(u, sub)); }
