// F16: half precision.
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
        vec4<f32>(unpack2x16float(a.x), unpack2x16float(a.y)),
        vec4<f32>(unpack2x16float(a.z), unpack2x16float(a.w)),
        vec4<f32>(unpack2x16float(b.x), unpack2x16float(b.y)),
        vec4<f32>(unpack2x16float(b.z), unpack2x16float(b.w)),
        vec4<f32>(unpack2x16float(c.x), unpack2x16float(c.y)),
        vec4<f32>(unpack2x16float(c.z), unpack2x16float(c.w)),
        vec4<f32>(unpack2x16float(d.x), unpack2x16float(d.y)),
        vec4<f32>(unpack2x16float(d.z), unpack2x16float(d.w)),
    );
}
