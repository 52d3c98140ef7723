// Q4_0: weight = d (q - 8), 4-bit q, one d per unit. 18 bytes per 32 weights.
//
// quants plane: per unit one vec4 = 16 bytes: byte j holds the code of weight j in its low and of weight j + 16 in
//   its high nibble. The top bit of each byte is inverted:
//   with the low nibbles masked away, bytes are 16 (q - 8), signed.
// scales plane, from word `sub`: per unit the f16 d, 2 bytes.

alias $W_Scales = u32;   // the elements of the scales plane

// The code in the middle of the range, and whether its weight is 0.
const $W_CENTRE = 8.0;
const $W_CENTRED = true;

fn $W_codes(u: u32) -> W32Codes { return w32_turned_nibbles($W_q[u]); }

fn $W_affine(u: u32, sub: u32) -> vec4<f32> {
    let i = sub + (u >> 1u);
    let d = w32_f16($W_s[i], u & 1u);
    let offset = -8.0 * d;
    return vec4<f32>(d, offset, d, offset);
}

fn $W_unit(u: u32, sub: u32) -> W32 { return w32_affine($W_codes(u), $W_affine(u, sub)); }
