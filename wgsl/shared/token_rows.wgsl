// The rows of a workgroup on their way to token_store (shared/token_store.wgsl), of which one thread each leaves the value.
#import token_store
#ifndef prepared
fn token_put(row: u32, value: f32, weight: f32) { }
#else
var<workgroup> token_rows: array<f32, TILE>;

fn token_rows_at(first: u32) -> vec4<f32> {
  return vec4<f32>(token_rows[first], token_rows[first + 1u], token_rows[first + 2u], token_rows[first + 3u]);
}

// Row `row` of the workgroup, with the weight that the norm gives it.
fn token_put(row: u32, value: f32, weight: f32) {
  token_rows[row] = value;
#ifdef norm_weight
  token_weighted[row] = value * weight;
#endif
}
#endif
