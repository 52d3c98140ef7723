// The end of a kernel whose output feeds another product: where `prepared` is bound, the workgroup's rows leave prepared for
// it, 4 rows per thread: as records with BYTES (shared/bytes.wgsl), as halves with HALVES (shared/halves.wgsl), else as floats. Where a norm lies
// in between, they leave multiplied by its weight, with the sum of squares of each 16 rows, so that the consumer need only divide by
// the root mean square. The kernel declares TILE, the rows of a workgroup, and the length OUT_ROWS, of all rows; it says by token_rows_at
// what rows first .. first + 4 of the workgroup are (shared/token_rows.wgsl).
#read norm_weight?: array<f32> @floats(OUT_ROWS)
#write squares_out?: array<f32> @floats(OUT_ROWS / 16)
#ifndef prepared
fn token_store(first: u32, end: u32, t: u32) { }
#else
#ifdef norm_weight
var<workgroup> token_weighted: array<f32, TILE>;

fn token_weighted_at(first: u32) -> vec4<f32> {
  return vec4<f32>(token_weighted[first], token_weighted[first + 1u], token_weighted[first + 2u], token_weighted[first + 3u]);
}

// What leaves of rows first .. first + 4 of the workgroup, which are `row` on of all and hold v. Their squares are left.
fn token_weigh(first: u32, row: u32, v: vec4<f32>) -> vec4<f32> {
  var squares = dot(v, v);
  squares += subgroupShuffleXor(squares, 1u);
  squares += subgroupShuffleXor(squares, 2u);
  if ((first & 15u) == 0u) { squares_out[row >> 4u] = squares; }
  return token_weighted_at(first);
}
#else
fn token_weigh(first: u32, row: u32, v: vec4<f32>) -> vec4<f32> { return v; }
#endif

// Writes rows `row` to `row` + 4, by thread t of 4 neighbours that have 16 together.
#ifdef BYTES
#write prepared?: array<u32> @prepared(ceil(OUT_ROWS, 32))          // (rows / 32, 12)
#import quantize_quad
fn token_leave(row: u32, t: u32, v: vec4<f32>) {
  let quad = quantize_quad(v);
  let unit = (row >> 5u) * 12u;
  let half = (row >> 4u) & 1u;
  prepared[unit + half * 4u + (t & 3u)] = quad.word;
  if ((t & 3u) == 0u) {
    prepared[unit + 8u + half] = bitcast<u32>(quad.scale);
    prepared[unit + 10u + half] = bitcast<u32>(quad.scaled_sum);
  }
}
#else
#ifdef HALVES
#write prepared?: array<vec2<u32>> @prepared(ceil(OUT_ROWS, 32))    // (rows / 256, 80)
#import halve_quad
fn token_leave(row: u32, t: u32, v: vec4<f32>) {
  let quad = halve_quad(v);
  prepared[halves_quad_place(row >> 2u)] = quad.words;
  if ((t & 3u) == 0u) { prepared[halves_scale_place(row >> 2u)] = bitcast<vec2<u32>>(quad.scale); }
}
#else
#write prepared?: array<vec4<f32>> @prepared(ceil(OUT_ROWS, 32))    // (rows / 4)
fn token_leave(row: u32, t: u32, v: vec4<f32>) { prepared[row >> 2u] = v; }
#endif
#endif

// Writes rows first .. first + TILE, but none from `end` on; both are multiples of 16, of which each is made by 4 neighbouring
// threads. t is the thread's number. Every thread of the workgroup calls.
fn token_store(first: u32, end: u32, t: u32) {
  workgroupBarrier();
  let row = first + t * 4u;
  if (t * 4u < TILE && row < end) { token_leave(row, t, token_weigh(t * 4u, row, token_rows_at(t * 4u))); }
}
#endif
