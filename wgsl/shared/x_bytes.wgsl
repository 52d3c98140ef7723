// The input of a product as records.
#import records
#read $W: array<vec4<u32>> @prepared(INPUT_UNITS)      // (units / 8, 3, 8), shared/records.wgsl
#import as_it_lies as $W
alias $W_Unit = Record;

fn $W_unit(u: u32) -> Record {
  let i = record_place(u);
  return Record($W[i], $W[i + RECORD_PLANE], bitcast<vec4<f32>>($W[i + 2u * RECORD_PLANE]));
}
