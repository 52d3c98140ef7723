// Q2_K: weight = d s q - dmin t, 2-bit q, 4-bit s and t per 16 weights, d and dmin per superblock of 8 units. 84
// bytes per 256 weights.
//
// quants plane: per unit half a vec4 = two words: bits 2f and 2f + 1 of byte b of word w belong to weight 16w + 4f +
//   b.
// scales plane: per superblock one vec4: byte i holds s in its low and t in its high nibble for weights 16i .. 16i +
//   16.
//   From word `sub`: per superblock one word: the f16 d in the lower, the f16 dmin in the upper half.

alias $W_Scales = vec4<u32>;   // the elements of the scales plane

// The code in the middle of the range, and whether its weight is 0.
const $W_CENTRE = 1.0;
const $W_CENTRED = false;

fn $W_codes(u: u32) -> W32Codes {
    let pair = $W_q[u >> 1u];
    let q = select(pair.xy, pair.zw, (u & 1u) == 1u);
    return w32_crumbs(q.x, q.y);
}

fn $W_affine(u: u32, sub: u32) -> vec4<f32> {
    let block = u >> 3u;
    let run = u & 7u;
    let i = sub + block;
    let d = unpack2x16float($W_s[i >> 2u][i & 3u]);
    let st = $W_s[block][run >> 1u] >> (16u * (run & 1u));
    let fields = (vec4<u32>(st) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u);
    return vec4<f32>(d.x, -d.y, d.x, -d.y) * vec4<f32>(fields);
}

fn $W_unit(u: u32, sub: u32) -> W32 { return w32_affine($W_codes(u), $W_affine(u, sub)); }
