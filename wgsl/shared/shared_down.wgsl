// The shared expert's share of token_moe_down: a row of S. A thread requests its first SHARED_AHEAD units ahead of the experts' units.
#number SHARED_AHEAD SHARED_UNITS  // units requested ahead, units of a row of the shared expert
#read s_q: array<vec4<u32>> @codes(SHARED_WEIGHT, p.shared_rows * SHARED_UNITS)   // (shared_rows, SHARED_UNITS) units
#read s_s: array<s_Scales> @scales(SHARED_WEIGHT, p.shared_rows * SHARED_UNITS)   // (shared_rows, SHARED_UNITS) units
#length INPUT_UNITS TOKENS * (USED * UNITS + SHARED_UNITS)
const TOKEN_UNITS = USED * UNITS + SHARED_UNITS;
#import SHARED_WEIGHT as s
#import SHARED_TIMES as s
#each k SHARED_AHEAD
alias Shared = array<s_Loaded, SHARED_AHEAD>;

// The row in this piece of S. A row before the piece wraps around to a large number; rows of other pieces are not added here.
fn shared_row(row: u32) -> u32 {
  if (ONE_PIECE) { return row; }
  return row - p.shared_first;
}

// The first unit of a row.
fn shared_unit(row: u32) -> u32 {
  if (ONE_PIECE) { return row * SHARED_UNITS; }
  return min(shared_row(row), p.shared_rows - 1u) * SHARED_UNITS;
}

fn shared_ask(row: u32, lane: u32) -> Shared {
  return Shared(
    s_load(shared_unit(row) + min(lane + $ku * ALL_LANES, SHARED_UNITS - 1u), p.shared_sub),
  );
}

fn shared_sum(asked: Shared, row: u32, lane: u32) -> f32 {
  var sum = 0.0;
  if (lane + $ku * ALL_LANES < SHARED_UNITS) { sum = s_add(sum, asked[$k], h_unit(h_row(TOKEN_UNITS) + USED * UNITS + lane + $ku * ALL_LANES)); }
  var b = lane + SHARED_AHEAD * ALL_LANES;
  loop {
    if (b >= SHARED_UNITS) { break; }
    sum = s_add(sum, s_load(shared_unit(row) + b, p.shared_sub), h_unit(h_row(TOKEN_UNITS) + USED * UNITS + b));
    b += ALL_LANES;
  }
  return select(0.0, sum, (ONE_PIECE || shared_row(row) < p.shared_rows) && always());
}
