// The whole input of a product as halves, STAGE_VECTORS of them, on its way through workgroup memory: a thread asks for its share,
// leaves it there as it came, and after a barrier reads what it multiplies.
#import halves
var<workgroup> staged: array<vec4<u32>, STAGE_VECTORS>;

fn stage_place(i: u32) -> u32 { return i; }

fn staged_unit(u: u32) -> Halves {
  let i = halves_place(u);
  return Halves(staged[i], staged[i + HALVES_PLANE], staged[i + 2u * HALVES_PLANE], staged[i + 3u * HALVES_PLANE], bitcast<vec4<f32>>(staged[i + HALVES_SCALES]));
}
