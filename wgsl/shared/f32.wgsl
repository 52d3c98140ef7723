// F32: weights as they are.
//
// quants plane: per unit 8 vec4 = 128 bytes, the weights in order. scales plane: one vec4, unused.
// With SPREAD the LANES threads of a row take turns: of the vec4 of LANES units, each takes every LANES-th. So neighbouring threads read
// neighbouring vec4. The input must have the same order, and a row a multiple of LANES units.

alias $W_Scales = vec4<u32>;   // the elements of the scales plane

// How far apart the vec4 of a unit are.
#ifdef SPREAD
const $W_STEP = LANES;
#else
const $W_STEP = 1u;
#endif

fn $W_vec(i: u32) -> vec4<f32> { return bitcast<vec4<f32>>($W_q[i]); }

fn $W_unit(u: u32, sub: u32) -> W32 {
    let i = (u & ~($W_STEP - 1u)) * 8u + (u & ($W_STEP - 1u));
    return W32(
        $W_vec(i),
        $W_vec(i + $W_STEP),
        $W_vec(i + 2u * $W_STEP),
        $W_vec(i + 3u * $W_STEP),
        $W_vec(i + 4u * $W_STEP),
        $W_vec(i + 5u * $W_STEP),
        $W_vec(i + 6u * $W_STEP),
        $W_vec(i + 7u * $W_STEP),
    );
}
