// The input of a product as records, through workgroup memory (shared/staged.wgsl). There the first vectors of all records precede the
// second ones, and these the third ones, so that neighbouring threads read neighbouring vectors.
#number STAGE_VECTORS COLS  // vectors of x of a token, tokens of a workgroup
#import bytes
#read $W: array<vec4<u32>> @prepared(INPUT_UNITS)      // (units, 3)
alias $W_Unit = Record;
#import staged as $W

// Vectors of the records of all tokens of the workgroup that lie together.
const STAGE_PLANE = COLS * (STAGE_VECTORS / 3u);

fn stage_place(i: u32) -> u32 { return i % 3u * STAGE_PLANE + column * (STAGE_VECTORS / 3u) + i / 3u; }

fn $W_unit(u: u32) -> Record {
  return Record(staged[u], staged[STAGE_PLANE + u], bitcast<vec4<f32>>(staged[2u * STAGE_PLANE + u]));
}
