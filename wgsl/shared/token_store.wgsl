// The end of a kernel whose output feeds another product. If `prepared` is bound, it stores the workgroup's rows prepared for that product:
// as records with BYTES (shared/bytes.wgsl), as halves with HALVES (shared/halves.wgsl), else as floats. If a norm lies in between
// (`norm_weight`), it multiplies them by the norm's weight and also stores the sum of squares of each 16 rows. The consumer then only
// divides by the root mean square. The kernel declares TILE, the rows of a workgroup, the length OUT_ROWS, all rows, and token_rows_at,
// which gives rows first .. first + 4 of the workgroup (shared/token_rows.wgsl).
#read norm_weight?: array<f32> @floats(OUT_ROWS / TOKENS)   // (rows of a token)
#write squares_out?: array<f32> @floats(OUT_ROWS / 16)   // (rows / 16)
#ifdef ALL_COLUMNS
#number COLS  // tokens of a workgroup, whose rows lie one after the other
const TOKEN_TILES = COLS;
#else
const TOKEN_TILES = 1u;
#endif
#ifndef prepared
fn token_store(first: u32, end: u32, t: u32) { }
#else
#ifdef norm_weight
var<workgroup> token_weighted: array<f32, TOKEN_TILES * TILE>;   // rows times the norm's weight

fn token_weighted_at(first: u32) -> vec4<f32> {
  return vec4<f32>(token_weighted[first], token_weighted[first + 1u], token_weighted[first + 2u], token_weighted[first + 3u]);
}

// Rows first .. first + 4 of the workgroup times the norm's weight. They hold v and begin at `row` of all rows. Stores their squares.
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

#import token_write

// Writes rows first .. first + TILE, without those from `end` on. Both are multiples of 16. Every thread of the workgroup must call. t is the
// thread's number.
fn token_store(first: u32, end: u32, t: u32) {
  workgroupBarrier();
  let row = first + t * 4u;
  if (t * 4u < TILE && row < end) { token_write(row, t, token_weigh(t * 4u, row, token_rows_at(t * 4u))); }
}
#endif
