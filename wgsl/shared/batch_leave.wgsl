// The end of the products of a batch: each thread completes four rows of a place, stores them, and prepares them for the next product. The
// kernel declares `Tile`, COLS, TILE, OUT_STRIDE and the length OUT_ROWS.
#read residual?: array<vec4<f32>> @floats(OUT_ROWS)     // (rows of the output, OUT_STRIDE / 4)
#write y?: array<vec4<f32>> @floats(OUT_ROWS)           // (rows of the output, OUT_STRIDE / 4)
#read norm_weight?: array<vec4<f32>> @floats(OUT_STRIDE)   // (OUT_STRIDE / 4)
#write squares_out?: array<f32> @floats(OUT_ROWS / 16)  // (rows of the output, OUT_STRIDE / 16)

// Four rows of a place that a thread completes: whether there are some, the place in the tile, their first row in the tile, and where they
// go in the output, in values.
struct FourRows { some: bool, place: u32, row: u32, to: u32 }

fn four_rows(at: Tile, i: u32) -> FourRows {
  let place = i / (TILE / 4u);
  let row = i % (TILE / 4u) * 4u;
  let some = i < COLS * TILE / 4u && place < at.count && at.row + row < p.rows;
  // The last four may reach behind the last row, into what is added to a row of the output to make it whole vec4.
  let here = min(at.row + row, (p.rows - 1u) / 4u * 4u);
  return FourRows(some, place, row, group_output(at, min(place, at.count - 1u)) * OUT_STRIDE + p.first_row + group_first_row(at) + here);
}

// Stores four finished values, and prepares them for the next product. Threads 4i .. 4i + 4 call together if it does. Then leave_squares
// completes the sums of squares of 16 values where `leave` did not.
#ifdef prepared
#import token_write
#ifdef norm_weight
#ifdef PLAIN
var<workgroup> four_squares: array<f32, QUADS * WG>;
fn prepare(own: FourRows, t: u32, v: vec4<f32>, weight: vec4<f32>) {
  four_squares[t] = dot(v, v);
  token_write(own.to, t, v * weight);
}
#else
fn prepare(own: FourRows, t: u32, v: vec4<f32>, weight: vec4<f32>) {
  var squares = dot(v, v);
  squares += subgroupShuffleXor(squares, 1u);
  squares += subgroupShuffleXor(squares, 2u);
  if ((own.to & 15u) == 0u) { squares_out[own.to >> 4u] = squares; }
  token_write(own.to, t, v * weight);
}
#endif
#else
fn prepare(own: FourRows, t: u32, v: vec4<f32>, weight: vec4<f32>) { token_write(own.to, t, v); }
#endif
#else
fn prepare(own: FourRows, t: u32, v: vec4<f32>, weight: vec4<f32>) { }
#endif

fn leave(own: FourRows, t: u32, v: vec4<f32>, weight: vec4<f32>) {
  y_put(own.to / 4u, v);
  prepare(own, t, v, weight);
}

// After a barrier.
fn leave_squares(own: FourRows, t: u32) {
#ifdef PLAIN
#ifdef norm_weight
  if (own.some && (own.to & 15u) == 0u) {
    squares_out[own.to >> 4u] = (four_squares[t] + four_squares[t + 1u]) + (four_squares[t + 2u] + four_squares[t + 3u]);
  }
#endif
#endif
}
