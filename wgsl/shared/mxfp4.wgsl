// MXFP4: weight = 2^(e - 128) value(q), 4-bit q, one e per unit. 17 bytes per 32 weights. Values are 0 1 2 3 4 6 8 12, with bit 3 of q as their
// sign: twice the numbers of the format E2M1.
//
// quants plane: per unit one vec4 = 16 bytes: byte j holds the code of weight j in its low and of weight j + 16 in
//   its high nibble.
// scales plane, from word `sub`: per unit the byte e.

alias $W_Scales = u32;   // the elements of the scales plane

// The code in the middle of the range, and whether its weight is 0.
const $W_CENTRE = 0.0;
const $W_CENTRED = true;

// Computed for the eight nibbles of a word at once, as in w32_codebook.
fn $W_codes(u: u32) -> W32Codes {
    let q = $W_q[u];
    let ones = vec4<u32>(0x11111111u);
    let b0 = q & ones;
    let b1 = (q >> vec4<u32>(1u)) & ones;
    let b2 = (q >> vec4<u32>(2u)) & ones;
    let negative = (q >> vec4<u32>(3u)) & ones;
    // The bits of the value.
    let v0 = b0 & ~b2;
    let v1 = b1 ^ (b2 & (b0 | b1));
    let v2 = b2 & (b0 | ~b1);
    let v3 = b2 & b1;
    // The bits of the negative value: all bits above the lowest one that is set are inverted.
    let o1 = v1 ^ (negative & v0);
    let o2 = v2 ^ (negative & (v0 | v1));
    let o3 = v3 ^ (negative & (v0 | v1 | v2));
    let above = negative & (b0 | b1 | b2);
    return w32_from_nibbles(w32_four_bits(v0, o1, o2, o3), w32_four_bits(above, above, above, above));
}

// Weights below 2^-126 times a value are 0: a GPU may take numbers that small for 0 itself.
fn $W_affine(u: u32, sub: u32) -> vec4<f32> {
    let e = ($W_s[sub + (u >> 2u)] >> (8u * (u & 3u))) & 255u;
    let d = bitcast<f32>((max(e, 1u) - 1u) << 23u);
    return vec4<f32>(d, 0.0, d, 0.0);
}

fn $W_unit(u: u32, sub: u32) -> W32 { return w32_signed($W_codes(u), $W_affine(u, sub)); }
