// One over the root mean square of the row of x of each place of a tile; 1 if `squares` is not bound. SQUARE_THREADS threads share a place. They
// request its sums of squares ahead and add them up in runs of SQUARE_RUN lanes, of one without subgroups. After a barrier column_scale adds
// up the SQUARE_RUNS runs.
#number SQUARE_THREADS SQUARE_RUN SQUARE_RUNS  // threads of a row of x, neighbouring threads that add up together, runs of them
#number SQUARE_LOADS  // partial sums of squares of a thread
#read squares?: array<f32> @floats(X_ROWS * 2 * UNITS)   // (rows of x, 2 * UNITS), each of 16 values
#each i SQUARE_LOADS
#each s SQUARE_RUNS
#ifdef squares
alias Squares = array<f32, SQUARE_LOADS>;
var<workgroup> square_sums: array<f32, COLS * SQUARE_RUNS>;   // (place, run)

fn squares_ask(at: Tile, t: u32) -> Squares {
  let row = group_input(at, min(t / SQUARE_THREADS, at.count - 1u)) * (2u * UNITS);
  return Squares(
    squares[row + min($iu * SQUARE_THREADS + t % SQUARE_THREADS, 2u * UNITS - 1u)],
  );
}

fn squares_put(asked: Squares, t: u32) {
  var sum = 0.0;
  sum += select(0.0, asked[$i], $iu * SQUARE_THREADS + t % SQUARE_THREADS < 2u * UNITS);
#ifdef PLAIN
  if (t < COLS * SQUARE_THREADS) { square_sums[t] = sum; }
#else
  if (SQUARE_RUN > 16u) { sum += subgroupShuffleXor(sum, 16u); }
  if (SQUARE_RUN > 8u) { sum += subgroupShuffleXor(sum, 8u); }
  if (SQUARE_RUN > 4u) { sum += subgroupShuffleXor(sum, 4u); }
  if (SQUARE_RUN > 2u) { sum += subgroupShuffleXor(sum, 2u); }
  if (SQUARE_RUN > 1u) { sum += subgroupShuffleXor(sum, 1u); }
  if (t % SQUARE_RUN == 0u) { square_sums[t / SQUARE_RUN] = sum; }
#endif
}

fn column_scale(place: u32) -> f32 {
  var total = 0.0;
  total += square_sums[min(place, COLS - 1u) * SQUARE_RUNS + $su];
  return inverseSqrt(total / f32(UNITS * 32u) + p.eps);
}
#else
alias Squares = u32;
fn squares_ask(at: Tile, t: u32) -> Squares { return 0u; }
fn squares_put(asked: Squares, t: u32) { }
fn column_scale(place: u32) -> f32 { return 1.0; }
#endif
