// Q4_1: weight = d q + m, 4-bit q, one d and m per unit. 20 bytes per 32 weights.
//
// quants plane: per unit one vec4 = 16 bytes: byte j holds the code of weight j in its low and of weight j + 16 in
//   its high nibble. The top bit of each byte is inverted:
//   with the low nibbles masked away, bytes are 16 (q - 8), signed.
// scales plane: per unit one word: the f16 d in the lower, the f16 m in the upper half.

alias $W_Scales = u32;   // the elements of the scales plane

// The code in the middle of the range, and whether its weight is 0.
const $W_CENTRE = 8.0;
const $W_CENTRED = false;

fn $W_codes(u: u32) -> W32Codes { return w32_turned_nibbles($W_q[u]); }

fn $W_affine(u: u32, sub: u32) -> vec4<f32> { return unpack2x16float($W_s[u]).xyxy; }

fn $W_unit(u: u32, sub: u32) -> W32 { return w32_affine($W_codes(u), $W_affine(u, sub)); }
