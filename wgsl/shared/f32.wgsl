// F32: weights as they are.
//
// quants plane: per unit 8 vec4 = 128 bytes, the weights in order. scales plane: one vec4, unused.

alias $W_Scales = vec4<u32>;   // the elements of the scales plane

fn $W_vec(i: u32) -> vec4<f32> { return bitcast<vec4<f32>>($W_q[i]); }

fn $W_unit(u: u32, sub: u32) -> W32 {
    let i = 8u * u;
    return W32(
        $W_vec(i),
        $W_vec(i + 1u),
        $W_vec(i + 2u),
        $W_vec(i + 3u),
        $W_vec(i + 4u),
        $W_vec(i + 5u),
        $W_vec(i + 6u),
        $W_vec(i + 7u),
    );
}
