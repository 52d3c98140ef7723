// Rows of floats as the input of a product. Here they are multiplied by the norm's weight. With SPREAD the vec4 of a unit have the order
// of the weight's (shared/f32.wgsl).
#import w32_math
#read $W: array<vec4<f32>> @floats(INPUT_UNITS * 32)   // (rows, UNITS, 8)
#read $W_norm: array<vec4<f32>> @floats(UNITS * 32)    // (UNITS, 8)
alias $W_Unit = W32;

// How far apart the vec4 of a unit are.
#ifdef SPREAD
const $W_STEP = LANES;
#else
const $W_STEP = 1u;
#endif

fn $W_unit(u: u32) -> W32 {
  let i = (u & ~($W_STEP - 1u)) * 8u + (u & ($W_STEP - 1u));
  let n = i % (8u * UNITS);
  let w = W32(
    $W[i],
    $W[i + $W_STEP],
    $W[i + 2u * $W_STEP],
    $W[i + 3u * $W_STEP],
    $W[i + 4u * $W_STEP],
    $W[i + 5u * $W_STEP],
    $W[i + 6u * $W_STEP],
    $W[i + 7u * $W_STEP],
  );
  return w32_mul(
    w,
    $W_norm[n],
    $W_norm[n + $W_STEP],
    $W_norm[n + 2u * $W_STEP],
    $W_norm[n + 3u * $W_STEP],
    $W_norm[n + 4u * $W_STEP],
    $W_norm[n + 5u * $W_STEP],
    $W_norm[n + 6u * $W_STEP],
    $W_norm[n + 7u * $W_STEP],
  );
}
