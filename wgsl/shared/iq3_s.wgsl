// IQ3_S: weight = d (2 s + 1) times a value of a point with its sign, 9-bit index per 4 weights, 4-bit s per unit, d per superblock of 8 units.
// 110 bytes per 256 weights.
//
// quants plane: per unit half a vec4 = two words, whose byte k is the lower part of the index of weights 4k .. 4k + 4.
// scales plane: 512 words with the points, byte b is value b. Then per superblock eleven words. Words 0 .. 8: the signs (shared/points.wgsl) of run k (the superblock's unit k) in word k. Words 8 and 9: byte k of the two has the
//   upper bits of the indices of run k, bit i of index i. Word 10: nibble k is the s of run k.
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
    let record = 512u + 11u * (u >> 3u);
    let run = u & 7u;
    let high = vec4<u32>($W_s[record + 8u + (run >> 2u)] >> (8u * (run & 3u)));
    let values = W32Codes(
        $W_four(points_indices(q.x) | ((high << vec4<u32>(8u, 7u, 6u, 5u)) & vec4<u32>(256u))),
        $W_four(points_indices(q.y) | ((high << vec4<u32>(4u, 3u, 2u, 1u)) & vec4<u32>(256u))),
    );
    return points_signed(values, $W_s[record + run]);
}

fn $W_affine(u: u32, sub: u32) -> vec4<f32> {
    let block = u >> 3u;
    let d = w32_f16($W_s[sub + (block >> 1u)], block & 1u);
    let s = ($W_s[522u + 11u * block] >> (4u * (u & 7u))) & 15u;
    let scale = d * f32(2u * s + 1u);
    return vec4<f32>(scale, 0.0, scale, 0.0);
}

fn $W_unit(u: u32, sub: u32) -> W32 { return w32_signed($W_codes(u), $W_affine(u, sub)); }
