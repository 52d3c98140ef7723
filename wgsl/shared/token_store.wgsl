// The end of a kernel whose output feeds another product: where `prepared` is bound, the workgroup's rows leave prepared for
// it, 4 rows per thread: as records with BYTES (shared/bytes.wgsl), as halves with HALVES (shared/halves.wgsl), else as floats. Where a norm lies
// in between, they leave multiplied by its weight, with the sum of squares of each 16 rows, so that the consumer need only divide by
// the root mean square. The kernel declares TILE, the rows of a workgroup, and the length OUT_ROWS, of all rows.
#read norm_weight?: array<f32> @floats(OUT_ROWS)
#write squares_out?: array<f32> @floats(OUT_ROWS / 16)
#ifndef prepared
fn token_put(row: u32, value: f32, weight: f32) { }
fn token_store(first: u32, end: u32, t: u32) { }
#else
#ifdef BYTES
#write prepared?: array<u32> @prepared(ceil(OUT_ROWS, 32))          // (rows / 32, 12)
#import quantize_quad
#else
#ifdef HALVES
#write prepared?: array<vec2<u32>> @prepared(ceil(OUT_ROWS, 32))    // (rows / 256, 80)
#import halve_quad
#else
#write prepared?: array<vec4<f32>> @prepared(ceil(OUT_ROWS, 32))    // (rows / 4)
#endif
#endif

#ifdef PAIRS
// Of a row gate and up, both still to be multiplied by token_scale; what leaves is silu(gate) * up.
var<workgroup> token_pairs: array<f32, 2u * TILE>;
var<workgroup> token_scale: f32;

fn token_rows_at(first: u32) -> vec4<f32> {
  let i = 2u * first;
  let gate = vec4<f32>(token_pairs[i], token_pairs[i + 2u], token_pairs[i + 4u], token_pairs[i + 6u]) * token_scale;
  let up = vec4<f32>(token_pairs[i + 1u], token_pairs[i + 3u], token_pairs[i + 5u], token_pairs[i + 7u]) * token_scale;
  // exp(-gate) overflows to infinity below -88: kept finite, since Metal's fast math may assume it is.
  return gate / (1.0 + exp(min(-gate, vec4<f32>(80.0)))) * up;
}
#else
var<workgroup> token_rows: array<f32, TILE>;

fn token_rows_at(first: u32) -> vec4<f32> {
  return vec4<f32>(token_rows[first], token_rows[first + 1u], token_rows[first + 2u], token_rows[first + 3u]);
}
#endif
#ifdef norm_weight
var<workgroup> token_weighted: array<f32, TILE>;

fn token_weighted_at(first: u32) -> vec4<f32> {
  return vec4<f32>(token_weighted[first], token_weighted[first + 1u], token_weighted[first + 2u], token_weighted[first + 3u]);
}
#endif

#ifndef PAIRS
// Row `row` of the workgroup, of which one thread leaves the value, with the weight that the norm gives it.
fn token_put(row: u32, value: f32, weight: f32) {
  token_rows[row] = value;
#ifdef norm_weight
  token_weighted[row] = value * weight;
#endif
}
#endif

// Writes rows first .. first + TILE, but none from `end` on; both are multiples of 16, of which each is made by 4 neighbouring
// threads. t is the thread's number. Every thread of the workgroup calls.
fn token_store(first: u32, end: u32, t: u32) {
  workgroupBarrier();
  let row = first + t * 4u;
  if (t * 4u < TILE && row < end) {
    var v = token_rows_at(t * 4u);
#ifdef norm_weight
    var squares = dot(v, v);
    squares += subgroupShuffleXor(squares, 1u);
    squares += subgroupShuffleXor(squares, 2u);
    if ((t & 3u) == 0u) { squares_out[row >> 4u] = squares; }
    v = token_weighted_at(t * 4u);
#endif
#ifdef BYTES
    let quad = quantize_quad(v);
    let unit = (row >> 5u) * 12u;
    let half = (row >> 4u) & 1u;
    prepared[unit + half * 4u + (t & 3u)] = quad.word;
    if ((t & 3u) == 0u) {
      prepared[unit + 8u + half] = bitcast<u32>(quad.scale);
      prepared[unit + 10u + half] = bitcast<u32>(quad.scaled_sum);
    }
#else
#ifdef HALVES
    let quad = halve_quad(v);
    prepared[halves_quad_place(row >> 2u)] = quad.words;
    if ((t & 3u) == 0u) { prepared[halves_scale_place(row >> 2u)] = bitcast<vec2<u32>>(quad.scale); }
#else
    prepared[row >> 2u] = v;
#endif
#endif
  }
}
#endif
