// Q8_0: weight = d q, signed 8-bit q, one d per unit. 34 bytes per 32 weights.
//
// quants plane: per unit two vec4 = 32 bytes: the codes in order.
// scales plane, from word `sub`: per unit the f16 d, 2 bytes.

alias $W_Scales = u32;   // the elements of the scales plane

// The code in the middle of the range, and whether its weight is 0.
const $W_CENTRE = 0.0;
const $W_CENTRED = true;

fn $W_codes(u: u32) -> W32Codes { return W32Codes($W_q[2u * u], $W_q[2u * u + 1u]); }

fn $W_affine(u: u32, sub: u32) -> vec4<f32> {
    let i = sub + (u >> 1u);
    let d = w32_f16($W_s[i], u & 1u);
    return vec4<f32>(d, 0.0, d, 0.0);
}

fn $W_unit(u: u32, sub: u32) -> W32 { return w32_signed($W_codes(u), $W_affine(u, sub)); }
