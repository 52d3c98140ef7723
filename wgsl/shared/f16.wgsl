// F16: half precision.
//
// quants plane: per unit 4 vec4 = 64 bytes, the weights in order, 2 bytes each. scales plane: one vec4, unused.

alias $W_Scales = vec4<u32>;   // the elements of the scales plane

fn $W_unit(u: u32, sub: u32) -> W32 {
    let i = 4u * u;
    let q0 = $W_q[i];
    let q1 = $W_q[i + 1u];
    let q2 = $W_q[i + 2u];
    let q3 = $W_q[i + 3u];
    return W32(
#for k 4
        vec4<f32>(unpack2x16float(q$k.x), unpack2x16float(q$k.y)),
        vec4<f32>(unpack2x16float(q$k.z), unpack2x16float(q$k.w)),
#endfor
    );
}
