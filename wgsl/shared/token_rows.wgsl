// The rows of a workgroup on their way to token_store (shared/token_store.wgsl): for each row one thread calls token_put.
#import token_store
#ifndef prepared
fn token_put(row: u32, value: f32, weight: f32) { }
#else
var<workgroup> token_rows: array<f32, TOKEN_TILES * TILE>;

fn token_rows_at(first: u32) -> vec4<f32> {
  return vec4<f32>(token_rows[first], token_rows[first + 1u], token_rows[first + 2u], token_rows[first + 3u]);
}

// Stores row `row` of the workgroup, and its product with the norm's weight.
fn token_put(row: u32, value: f32, weight: f32) {
  token_rows[row] = value;
#ifdef norm_weight
  token_weighted[row] = value * weight;
#endif
}
#endif
