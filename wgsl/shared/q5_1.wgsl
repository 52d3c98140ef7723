// Q5_1: weight = d q + m, 5-bit q, one d and m per unit. 24 bytes per 32 weights.
//
// quants plane: per unit one vec4 = 16 bytes: byte j holds the low bits of weight j in its low and of weight j + 16
//   in its high nibble.
// scales plane: per unit two words: the fifth bits, bit i of byte b belongs to weight 4i + b; then the f16 d in the
//   lower and the f16 m in the upper half.

fn $W_unit(u: u32, sub: u32) -> W32 {
    let pair = $W_s[u >> 1u];
    let record = select(pair.xy, pair.zw, (u & 1u) == 1u);
    let dm = unpack2x16float(record.y);
    return w32_affine(w32_with_high(w32_nibbles($W_q[u]), w32_bits(record.x), 4u), dm.x, dm.y);
}
