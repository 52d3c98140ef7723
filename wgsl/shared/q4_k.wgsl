// Q4_K: weight = d s q - dmin t, 4-bit q, 6-bit s and t per unit, d and dmin per superblock of 8 units. 144 bytes per
// 256 weights.
//
// quants plane: per unit one vec4 = 16 bytes: byte j holds the code of weight j in its low and of weight j + 16 in
//   its high nibble.
// scales plane: per superblock one vec4 = four words: nibble k of word 0 is the lower part of s of run k (the
//   superblock's unit k), nibble k of word 1 that of t; bits 2k and 2k + 1 of word 2 are the upper part of s, bits 16
//   + 2k and 17 + 2k that of t; word 3 is the f16 d in the lower and the f16 dmin in the upper half.

fn $W_unit(u: u32, sub: u32) -> W32 {
    let scales = $W_s[u >> 3u];
    let run = u & 7u;
    let low = (vec2<u32>(scales.xy) >> vec2<u32>(4u * run)) & vec2<u32>(15u);
    let high = (vec2<u32>(scales.z, scales.z >> 16u) >> vec2<u32>(2u * run)) & vec2<u32>(3u);
    let st = unpack2x16float(scales.w) * vec2<f32>(low | (high << vec2<u32>(4u)));
    return w32_affine(w32_nibbles($W_q[u]), st.x, -st.y);
}
