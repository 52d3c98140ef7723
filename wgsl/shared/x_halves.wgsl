// The input of a product as halves.
#import halves
#read $W: array<vec4<u32>> @prepared(INPUT_UNITS)      // (units / 8, 5, 8), shared/halves.wgsl
#import as_it_lies as $W
alias $W_Unit = Halves;

fn $W_unit(u: u32) -> Halves {
  let i = halves_place(u);
  return Halves($W[i], $W[i + HALVES_PLANE], $W[i + 2u * HALVES_PLANE], $W[i + 3u * HALVES_PLANE], bitcast<vec4<f32>>($W[i + HALVES_SCALES]));
}
