// Q4_K: weight = d s q - dmin t, 4-bit q, 6-bit s and t per unit, d and dmin per superblock of 8 units. 144 bytes per
// 256 weights.
//
// quants plane: per unit one vec4 = 16 bytes: byte j holds the code of weight j in its low and of weight j + 16 in
//   its high nibble. The top bit of each byte is inverted:
//   with the low nibbles masked away, bytes are 16 (q - 8), signed.
// scales plane: per superblock one vec4 = four words: nibble k of word 0 is the lower part of s of run k (the
//   superblock's unit k), nibble k of word 1 that of t; bits 2k and 2k + 1 of word 2 are the upper part of s, bits 16
//   + 2k and 17 + 2k that of t; word 3 is the f16 d in the lower and the f16 dmin in the upper half.

alias $W_Scales = vec4<u32>;   // the elements of the scales plane

// The code in the middle of the range, and whether its weight is 0.
const $W_CENTRE = 8.0;
const $W_CENTRED = false;

fn $W_codes(u: u32) -> W32Codes { return w32_turned_nibbles($W_q[u]); }

fn $W_affine(u: u32, sub: u32) -> vec4<f32> { return w32_scale_min($W_s[u >> 3u], u & 7u); }

fn $W_unit(u: u32, sub: u32) -> W32 { return w32_affine($W_codes(u), $W_affine(u, sub)); }
