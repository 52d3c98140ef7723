// The input of a product as floats, which are multiplied by the norm's weight here.
#import w32_math
#read $W: array<vec4<f32>> @floats(UNITS * 32)         // (units, 8)
#read $W_norm: array<vec4<f32>> @floats(UNITS * 32)    // (units, 8)
#import as_it_lies as $W
alias $W_Unit = W32;

fn $W_unit(u: u32) -> W32 {
  let i = 8u * u;
  let w = W32($W[i], $W[i + 1u], $W[i + 2u], $W[i + 3u], $W[i + 4u], $W[i + 5u], $W[i + 6u], $W[i + 7u]);
  return w32_mul(w, $W_norm[i], $W_norm[i + 1u], $W_norm[i + 2u], $W_norm[i + 3u], $W_norm[i + 4u], $W_norm[i + 5u], $W_norm[i + 6u], $W_norm[i + 7u]);
}
