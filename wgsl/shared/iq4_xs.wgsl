// IQ4_XS: weight = d (s - 32) codebook(q), 4-bit q, 6-bit s per unit, d per superblock of 8 units. 136 bytes per 256
// weights.
//
// quants plane: per unit one vec4 = 16 bytes: byte j holds the code of weight j in its low and of weight j + 16 in
//   its high nibble.
// scales plane: per superblock half a vec4 = two words: the f16 d in the lower half of the first, bits 2k and 2k + 1
//   of its upper half are the upper part of s of run k (the superblock's unit k); nibble k of the second is the lower
//   part.

alias $W_Scales = vec4<u32>;   // the elements of the scales plane

// The code in the middle of the range, and whether its weight is 0.
const $W_CENTRE = 0.0;
const $W_CENTRED = true;

fn $W_codes(u: u32) -> W32Codes { return w32_codebook($W_q[u]); }

fn $W_affine(u: u32, sub: u32) -> vec4<f32> {
    let block = u >> 3u;
    let run = u & 7u;
    let pair = $W_s[block >> 1u];
    let record = select(pair.xy, pair.zw, (block & 1u) == 1u);
    let s = ((record.y >> (4u * run)) & 15u) | (((record.x >> (16u + 2u * run)) & 3u) << 4u);
    let scale = w32_f16(record.x, 0u) * (f32(s) - 32.0);
    return vec4<f32>(scale, 0.0, scale, 0.0);
}

fn $W_unit(u: u32, sub: u32) -> W32 { return w32_signed($W_codes(u), $W_affine(u, sub)); }
