// Rows of floats as the input of a product, which are multiplied by the norm's weight here.
#import w32_math
#read $W: array<vec4<f32>> @floats(INPUT_UNITS * 32)   // (rows, UNITS, 8)
#read $W_norm: array<vec4<f32>> @floats(UNITS * 32)    // (UNITS, 8)
alias $W_Unit = W32;

fn $W_unit(u: u32) -> W32 {
  let i = 8u * u;
  let n = 8u * (u % UNITS);
  let w = W32($W[i], $W[i + 1u], $W[i + 2u], $W[i + 3u], $W[i + 4u], $W[i + 5u], $W[i + 6u], $W[i + 7u]);
  return w32_mul(w, $W_norm[n], $W_norm[n + 1u], $W_norm[n + 2u], $W_norm[n + 3u], $W_norm[n + 4u], $W_norm[n + 5u], $W_norm[n + 6u], $W_norm[n + 7u]);
}
