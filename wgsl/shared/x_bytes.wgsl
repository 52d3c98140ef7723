// The input of a product as records.
#import records
#read $W: array<vec4<u32>> @prepared(INPUT_UNITS)      // (units / 8, 3, 8), shared/records.wgsl
#import as_it_lies as $W
alias $W_Unit = Record;

// Where unit u lies. Units that are 8 n apart lie 8 n * $W_STEP apart.
const $W_STEP = 3u;
fn $W_place(u: u32) -> u32 { return record_place(u); }

fn $W_at(i: u32) -> Record {
  return Record($W[i], $W[i + RECORD_PLANE], bitcast<vec4<f32>>($W[i + 2u * RECORD_PLANE]));
}

fn $W_unit(u: u32) -> Record { return $W_at($W_place(u)); }
