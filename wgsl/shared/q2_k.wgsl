// Q2_K: weight = d s q - dmin t, 2-bit q, 4-bit s and t per 16 weights, d and dmin per superblock of 8 units. 84
// bytes per 256 weights.
//
// quants plane: per unit half a vec4 = two words: bits 2f and 2f + 1 of byte b of word w belong to weight 16w + 4f +
//   b.
// scales plane: per superblock one vec4: byte i holds s in its low and t in its high nibble for weights 16i .. 16i +
//   16.
//   From word `sub`: per superblock one word: the f16 d in the lower, the f16 dmin in the upper half.

fn $W_unit(u: u32, sub: u32) -> W32 {
    let pair = $W_q[u >> 1u];
    let q = select(pair.xy, pair.zw, (u & 1u) == 1u);
    let block = u >> 3u;
    let run = u & 7u;
    let i = sub + block;
    let d = unpack2x16float($W_s[i >> 2u][i & 3u]);
    let st = $W_s[block][run >> 1u] >> (16u * (run & 1u));
    let s = d.x * vec2<f32>(vec2<u32>(st, st >> 8u) & vec2<u32>(15u));
    let t = d.y * vec2<f32>(vec2<u32>(st >> 4u, st >> 12u) & vec2<u32>(15u));
    return w32_affine_halves(w32_crumbs(q.x, q.y), s.x, -t.x, s.y, -t.y);
}
