// The input of a product as halves, through workgroup memory (shared/staged.wgsl).
#number STAGE_VECTORS  // vectors of x of a token
#import halves
#read $W: array<vec4<u32>> @prepared(INPUT_UNITS)      // (units / 8, 5, 8), shared/halves.wgsl
alias $W_Unit = Halves;
#import staged as $W

fn stage_place(i: u32) -> u32 { return column * STAGE_VECTORS + i; }

fn $W_unit(u: u32) -> Halves {
  let i = halves_place(u);
  return Halves(staged[i], staged[i + HALVES_PLANE], staged[i + 2u * HALVES_PLANE], staged[i + 3u * HALVES_PLANE], bitcast<vec4<f32>>(staged[i + HALVES_SCALES]));
}
