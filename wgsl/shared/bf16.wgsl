// BF16: the upper halves of f32.
//
// quants plane: per unit 4 vec4 = 64 bytes, the weights in order, 2 bytes each. scales plane: one vec4, unused.

// What the scales plane is read in.
alias $W_Scales = vec4<u32>;

fn $W_unit(u: u32, sub: u32) -> W32 {
    let i = 4u * u;
    let a = $W_q[i];
    let b = $W_q[i + 1u];
    let c = $W_q[i + 2u];
    let d = $W_q[i + 3u];
    return W32(
        vec4<f32>(w32_bf16(a.x), w32_bf16(a.y)),
        vec4<f32>(w32_bf16(a.z), w32_bf16(a.w)),
        vec4<f32>(w32_bf16(b.x), w32_bf16(b.y)),
        vec4<f32>(w32_bf16(b.z), w32_bf16(b.w)),
        vec4<f32>(w32_bf16(c.x), w32_bf16(c.y)),
        vec4<f32>(w32_bf16(c.z), w32_bf16(c.w)),
        vec4<f32>(w32_bf16(d.x), w32_bf16(d.y)),
        vec4<f32>(w32_bf16(d.z), w32_bf16(d.w)),
    );
}
