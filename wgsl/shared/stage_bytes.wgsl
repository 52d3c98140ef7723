// The whole input of a product, STAGE_VECTORS / 3 records, on its way through workgroup memory: a thread asks for its share, which
// takes few registers, leaves it there, and after a barrier reads what it multiplies. Parts of records lie in planes: neighbouring
// threads read neighbouring vectors.
#import bytes
var<workgroup> staged: array<vec4<u32>, STAGE_VECTORS>;

fn stage_place(i: u32) -> u32 { return i % 3u * (STAGE_VECTORS / 3u) + i / 3u; }

fn staged_unit(u: u32) -> Record {
  return Record(staged[u], staged[STAGE_VECTORS / 3u + u], bitcast<vec4<f32>>(staged[2u * (STAGE_VECTORS / 3u) + u]));
}
