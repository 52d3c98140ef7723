// Q5_1: weight = d q + m, 5-bit q, one d and m per unit. 24 bytes per 32 weights.
//
// quants plane: per unit one vec4 = 16 bytes: byte j holds the low bits of weight j in its low and of weight j + 16
//   in its high nibble.
// scales plane: per unit two words: the fifth bits, bit i of byte b belongs to weight 4i + b; then the f16 d in the
//   lower and the f16 m in the upper half.

alias $W_Scales = u32;   // the elements of the scales plane

// The code in the middle of the range, and whether its weight is 0.
const $W_CENTRE = 16.0;
const $W_CENTRED = false;

fn $W_codes(u: u32) -> W32Codes { return w32_or(w32_nibbles($W_q[u]), w32_fifth_bits($W_s[2u * u])); }

fn $W_affine(u: u32, sub: u32) -> vec4<f32> { return unpack2x16float($W_s[2u * u + 1u]).xyxy; }

fn $W_unit(u: u32, sub: u32) -> W32 { return w32_affine($W_codes(u), $W_affine(u, sub)); }
