// The input of a product as floats.
#read $W: array<vec4<f32>> @floats(INPUT_UNITS * 32)   // (units, 8)
#import as_it_lies as $W
alias $W_Unit = W32;

// Where unit u lies.
const $W_STEP = 8u;
fn $W_place(u: u32) -> u32 { return $W_STEP * u; }

fn $W_at(i: u32) -> W32 {
  return W32($W[i], $W[i + 1u], $W[i + 2u], $W[i + 3u], $W[i + 4u], $W[i + 5u], $W[i + 6u], $W[i + 7u]);
}

fn $W_unit(u: u32) -> W32 { return $W_at($W_place(u)); }
