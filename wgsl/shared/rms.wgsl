// One over the root mean square of a prepared input, computed by the LANES threads of each row; 1 if `squares` is not bound. A thread
// requests SQUARES of the squares at most before its weights, and uses them while the weights are being loaded.
#number SQUARES  // partial sums of squares that a thread adds up
#import own_token
#ifdef SEVERAL
#length SQUARED_UNITS TOKENS * UNITS
#else
#length SQUARED_UNITS UNITS
#endif
#word eps?: f32                                        // of the norm
#read squares?: array<f32> @floats(2 * SQUARED_UNITS)  // (tokens, 2 * UNITS), each of 16 values
#each i SQUARES
#ifdef squares
alias Squares = array<f32, SQUARES>;

fn squares_ask(lane: u32) -> Squares {
  return Squares(
    squares[own_token * (2u * UNITS) + min(lane + $iu * LANES, UNITS * 2u - 1u)],
  );
}

fn rms_scale(asked: Squares, lane: u32) -> f32 {
  var total = 0.0;
  total += select(0.0, asked[$i], lane + $iu * LANES < UNITS * 2u);
  var further = lane + SQUARES * LANES;
  loop {
    if (further >= UNITS * 2u) { break; }
    total += squares[own_token * (2u * UNITS) + further];
    further += LANES;
  }
  return inverseSqrt(row_sum(total) / f32(UNITS * 32u) + p.eps);
}
#else
alias Squares = u32;
fn squares_ask(lane: u32) -> Squares { return 0u; }
fn rms_scale(asked: Squares, lane: u32) -> f32 { return 1.0; }
#endif
