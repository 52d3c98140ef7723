// Q3_K: weight = d (s - 32) (q - 4), 3-bit q, 6-bit s per 16 weights, d per superblock of 8 units. 110 bytes per 256
// weights, here 112.
//
// quants plane: per unit half a vec4 = two words with the lower two bits of the codes: bits 2f and 2f + 1 of byte b
//   of word w belong to weight 16w + 4f + b.
// scales plane: per superblock three vec4 = twelve words. Words 0 .. 8: the third bits of run k (the superblock's
//   unit k) in word k, bit i of byte b belongs to weight 4i + b. Words 8 and 9: nibble i of the two is the lower part
//   of scale i, that of weights 16i .. 16i + 16. Word 10: bits 2i and 2i + 1 are the upper part of scale i. Word 11:
//   the f16 d in the lower half, the upper half is zero.

alias $W_Scales = vec4<u32>;   // the elements of the scales plane

// The code in the middle of the range, and whether its weight is 0.
const $W_CENTRE = 4.0;
const $W_CENTRED = true;

fn $W_codes(u: u32) -> W32Codes {
    let pair = $W_q[u >> 1u];
    let q = select(pair.xy, pair.zw, (u & 1u) == 1u);
    let run = u & 7u;
    let high = $W_s[3u * (u >> 3u) + (run >> 2u)][run & 3u];
    return w32_or(w32_crumbs(q.x, q.y), w32_third_bits(high));
}

fn $W_affine(u: u32, sub: u32) -> vec4<f32> {
    let scales = $W_s[3u * (u >> 3u) + 2u];
    let run = u & 7u;
    let low_pair = select(scales.x, scales.y, run >= 4u) >> (8u * (run & 3u));
    let high_pair = scales.z >> (4u * run);
    let low = vec2<u32>(low_pair, low_pair >> 4u) & vec2<u32>(15u);
    let upper = vec2<u32>(high_pair << 4u, high_pair << 2u) & vec2<u32>(48u);
    let s = w32_f16(scales.w, 0u) * (vec2<f32>(low | upper) - vec2<f32>(32.0));
    return vec4<f32>(s.x, -4.0 * s.x, s.y, -4.0 * s.y);
}

fn $W_unit(u: u32, sub: u32) -> W32 { return w32_affine($W_codes(u), $W_affine(u, sub)); }
