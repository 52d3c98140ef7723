// The whole input of a product, STAGE_UNITS records, on its way through workgroup memory: a thread asks for its share, which takes
// few registers, leaves it there, and after a barrier reads what it multiplies. Parts of records lie in planes: neighbouring
// threads read neighbouring vectors.
#import bytes
var<workgroup> staged: array<vec4<u32>, 3u * STAGE_UNITS>;

fn staged_unit(u: u32) -> Record {
  return Record(staged[u], staged[STAGE_UNITS + u], bitcast<vec4<f32>>(staged[2u * STAGE_UNITS + u]));
}
