// One over the root mean square of a prepared input, computed by the whole workgroup. Each thread requests SQUARES sums of squares. Runs of RUN
// lanes add them up and store their sums in workgroup memory. After a barrier rms_scale adds up those. If every subgroup did all of it, it
// would cost as much as the products. If one subgroup did it, the others would wait for its loads, which follow its other loads. A workgroup
// may do so for COLS tokens, its columns.
#number SQUARES RUN  // partial sums of squares that a thread adds up, neighbouring threads that add up together
#number SQUARE_RUNS COLS  // runs of threads, tokens of a workgroup
#import own_token
#word eps: f32
#read squares: array<f32> @floats(TOKENS * 2 * UNITS)  // (tokens, 2 * UNITS), each of 16 values
#each i SQUARES
#each r SQUARE_RUNS
var<workgroup> square_sums: array<f32, SQUARE_RUNS * COLS>;   // (column, run)
alias Squares = array<f32, SQUARES>;

fn squares_ask(t: u32) -> Squares {
  return Squares(
    squares[own_token * (2u * UNITS) + min($iu * WG + t, UNITS * 2u - 1u)],
  );
}

// A barrier must follow.
fn squares_put(asked: Squares, t: u32, column: u32) {
  if (t >= SQUARE_RUNS * RUN) { return; }
  var sum = 0.0;
  sum += select(0.0, asked[$i], $iu * WG + t < UNITS * 2u);
  if (RUN > 16u) { sum += subgroupShuffleXor(sum, 16u); }
  if (RUN > 8u) { sum += subgroupShuffleXor(sum, 8u); }
  if (RUN > 4u) { sum += subgroupShuffleXor(sum, 4u); }
  if (RUN > 2u) { sum += subgroupShuffleXor(sum, 2u); }
  sum += subgroupShuffleXor(sum, 1u);
  if ((t & (RUN - 1u)) == 0u) { square_sums[column * SQUARE_RUNS + t / RUN] = sum; }
}

fn rms_scale(column: u32) -> f32 {
  var total = 0.0;
  total += square_sums[column * SQUARE_RUNS + $ru];
  return inverseSqrt(total / f32(UNITS * 32u) + p.eps);
}
