// The logits of a token's experts, or with SEVERAL of each token's (shared/own_token.wgsl): y = W x / rms(x). Weights and input are f32, because
// rounding should not choose experts.
//
// W (rows, 4 * COLUMNS), x (tokens, 4 * COLUMNS), squares (tokens, COLUMNS / 4), y (tokens, STRIDE), of which the first rows
// are used. With `norm` x is multiplied by the norm's weight first.
// Division: a workgroup per row and token. Neighbouring threads have neighbouring columns.
// Bound by: the latency of one load, since there are few rows. So every thread requests all it needs at once.
#number WG COLUMNS LOADS  // threads of a workgroup, columns of a row, vectors of a thread
#number SQUARES STRIDE  // partial sums of squares that a thread adds up, values from one token to the next in y
#word first_row: u32   // of this piece among all rows
#word eps: f32
#ifdef SEVERAL
#length HERE GRID_X
#length ROWS_HERE GRID_Y
#else
#length HERE 1
#length ROWS_HERE GRID_X
#endif
#import own_token
#read w: array<vec4<f32>> @codes(WEIGHT, ceil(ROWS_HERE * COLUMNS, 8))   // (rows, COLUMNS)
#read x: array<vec4<f32>> @floats(HERE * COLUMNS * 4)                 // (tokens, COLUMNS)
#read norm?: array<vec4<f32>> @floats(COLUMNS * 4)                    // (COLUMNS)
#read squares: array<f32> @floats(HERE * COLUMNS / 4)                 // (tokens, COLUMNS / 4), each of 16 values of x
#write y: array<f32> @floats((HERE - 1) * STRIDE + p.first_row + ROWS_HERE)   // (tokens, STRIDE)
#each i LOADS
#each s SQUARES

var<workgroup> sums: array<vec2<f32>, 64>;   // (subgroup)

#ifdef norm
fn input(i: u32) -> vec4<f32> { return x[own_token * COLUMNS + i] * norm[i]; }
#else
fn input(i: u32) -> vec4<f32> { return x[own_token * COLUMNS + i]; }
#endif

#main
#fetch
  let number = own_place(wid).x;
  let row = number * COLUMNS;
  let at$i = min($iu * WG + t, COLUMNS - 1u);
  let w$i = w[row + at$i];
  let x$i = input(at$i);
  let square$s = squares[own_token * (COLUMNS / 4u) + min($su * WG + t, COLUMNS / 4u - 1u)];
  var sum = vec2<f32>(0.0);
  sum.x += select(0.0, dot(w$i, x$i), $iu * WG + t < COLUMNS);
  sum.y += select(0.0, square$s, $su * WG + t < COLUMNS / 4u);
  sum = vec2(subgroupAdd(sum.x), subgroupAdd(sum.y));
  if (lane_id == 0u) { sums[subgroup] = sum; }
  workgroupBarrier();
  if (subgroup == 0u) {
    var all = vec2<f32>(0.0);
    var i = lane_id;
    loop {
      if (i >= subgroups) { break; }
      all += sums[i];
      i += subgroup_size;
    }
    all = vec2(subgroupAdd(all.x), subgroupAdd(all.y));
    if (t == 0u) { y[own_token * STRIDE + p.first_row + number] = all.x * inverseSqrt(all.y / f32(COLUMNS * 4u) + p.eps); }
  }
}
