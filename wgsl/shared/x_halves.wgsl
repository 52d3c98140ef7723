// The input of a product as halves.
#import halves
#read $W: array<vec4<u32>> @prepared(INPUT_UNITS)      // (units / 8, 5, 8), shared/halves.wgsl
#import as_it_lies as $W
alias $W_Unit = Halves;

// Where unit u lies. Units that are 8 n apart lie 8 n * $W_STEP apart.
const $W_STEP = 5u;
fn $W_place(u: u32) -> u32 { return halves_place(u); }

fn $W_at(i: u32) -> Halves {
  return Halves($W[i], $W[i + HALVES_PLANE], $W[i + 2u * HALVES_PLANE], $W[i + 3u * HALVES_PLANE], bitcast<vec4<f32>>($W[i + HALVES_SCALES]));
}

fn $W_unit(u: u32) -> Halves { return $W_at($W_place(u)); }
