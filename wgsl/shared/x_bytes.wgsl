// The input of a product as records.
#import bytes
#read $W: array<vec4<u32>> @prepared(INPUT_UNITS)      // (units, 3)
#import as_it_lies as $W
alias $W_Unit = Record;

fn $W_unit(u: u32) -> Record {
  return Record($W[3u * u], $W[3u * u + 1u], bitcast<vec4<f32>>($W[3u * u + 2u]));
}
