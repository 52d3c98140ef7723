// The input of a product as records, through workgroup memory (shared/staged.wgsl). There the first vectors of all records precede the
// second ones, and these the third ones, so that neighbouring threads read neighbouring vectors.
#number STAGE_VECTORS  // vectors of x that are kept
#import bytes
#read $W: array<vec4<u32>> @prepared(INPUT_UNITS)      // (units, 3)
alias $W_Unit = Record;
#import staged as $W

fn stage_place(i: u32) -> u32 { return i % 3u * (STAGE_VECTORS / 3u) + i / 3u; }

fn $W_unit(u: u32) -> Record {
  return Record(staged[u], staged[STAGE_VECTORS / 3u + u], bitcast<vec4<f32>>(staged[2u * (STAGE_VECTORS / 3u) + u]));
}
