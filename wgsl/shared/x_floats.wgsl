// The input of a product as floats.
#read $W: array<vec4<f32>> @floats(INPUT_UNITS * 32)   // (units, 8)
#import as_it_lies as $W
alias $W_Unit = W32;

fn $W_unit(u: u32) -> W32 {
  let i = 8u * u;
  return W32($W[i], $W[i + 1u], $W[i + 2u], $W[i + 3u], $W[i + 4u], $W[i + 5u], $W[i + 6u], $W[i + 7u]);
}
