// Q8_0: weight = d q, signed 8-bit q, one d per unit. 34 bytes per 32 weights.
//
// quants plane: per unit two vec4 = 32 bytes: the codes in order.
// scales plane, from word `sub`: per unit the f16 d, 2 bytes.

fn $W_unit(u: u32, sub: u32) -> W32 {
    let i = sub + (u >> 1u);
    let d = w32_f16($W_s[i >> 2u][i & 3u], u & 1u);
    let a = $W_q[2u * u];
    let b = $W_q[2u * u + 1u];
    return W32(
        d * w32_signed_bytes(a.x),
        d * w32_signed_bytes(a.y),
        d * w32_signed_bytes(a.z),
        d * w32_signed_bytes(a.w),
        d * w32_signed_bytes(b.x),
        d * w32_signed_bytes(b.y),
        d * w32_signed_bytes(b.z),
        d * w32_signed_bytes(b.w),
    );
}
