// The input of a product as records, through workgroup memory (shared/staged.wgsl).
#import records
#read $W: array<vec4<u32>> @prepared(INPUT_UNITS)      // (units / 8, 3, 8), shared/records.wgsl
alias $W_Unit = Record;
#import staged as $W

fn $W_unit(u: u32) -> Record {
  let i = record_place(u);
  return Record(staged[i], staged[i + RECORD_PLANE], bitcast<vec4<f32>>(staged[i + 2u * RECORD_PLANE]));
}
