// y = residual + sum over slots s of weights[s] * D[ids[s]] h[s] + S h_shared, of one token: the end of a layer with experts. h comes
// prepared (shared/token_store.wgsl). y is left as f32, and prepared for the next layer's first products. With SEVERAL it is for several tokens
// (shared/own_token.wgsl). With `share` the host multiplied some experts: their ids are those of no expert, and their sum is added.
//
// D (experts * ROWS, 32 * UNITS), S (ROWS, 32 * SHARED_UNITS), h (tokens, USED * UNITS + SHARED_UNITS) units, residual and y (tokens, ROWS).
// Division: LANES threads share an output row and walk the units of all its experts, so the sum needs no atomics. With TWO_RUNS they are 64:
// two runs of 32, whose sums meet in workgroup memory. A thread of a step of several tokens may stand for SHARES such threads: it has the sum
// of each, and adds them up as the threads of a row do. So workgroups are small, and some load while others add up. A workgroup owns TILE =
// WG / LANES rows. With ONE_PIECE the call has all of the weights. Else other calls add what other pieces hold.
// Bound by: the bytes of the chosen rows.
#number USED WG LANES ROWS  // experts of a token, threads of a workgroup, threads that share rows, rows of an expert
#number UNITS UNROLL ROW_RUNS  // units of a row of an expert, units that a thread requests at once, runs of 32 lanes of a row
#number COLS SHARES  // tokens of a workgroup, threads of a token alone that a thread stands for
#ifdef SLOT_FACTOR
#number SLOT_FACTOR SLOT_SHIFT  // unit * SLOT_FACTOR >> SLOT_SHIFT is the slot of a unit
#endif
#word first_expert: u32    // of this piece
#word experts: u32         // in this piece
#word sub: u32             // sub-planes of the scales, in words
#word shared_rows?: u32    // in this piece
#word shared_first?: u32   // first row of this piece
#word shared_sub?: u32
#read w_q: array<vec4<u32>> @codes(WEIGHT, max(p.experts, 1) * ROWS * UNITS)   // (experts, ROWS, UNITS) units
#read w_s: array<w_Scales> @scales(WEIGHT, max(p.experts, 1) * ROWS * UNITS)   // (experts, ROWS, UNITS) units
#read ids: array<u32> @words(TOKENS * USED)         // (tokens, USED)
#read weights: array<f32> @floats(TOKENS * USED)    // (tokens, USED)
#read residual: array<f32> @floats(OUT_ROWS)   // (tokens, ROWS)
#read share?: array<f32> @floats(OUT_ROWS)     // (tokens, ROWS)
#write y: array<f32> @floats(OUT_ROWS)         // (tokens, ROWS)
#length OUT_ROWS TOKENS * ROWS
#flag ONE_BLOCK
#flag ONE_PIECE
#flag RAGGED
#flag TWO_RUNS
#each k UNROLL
#each v SHARES
const_assert COLS == 1u;
const TILE = WG / LANES;
// Threads that share a row of a token alone.
const ALL_LANES = LANES * SHARES;
// Whether sums of two threads meet in workgroup memory.
const MEET = TWO_RUNS && SHARES == 1u;
#import w32
#import lanes
#import columns
#import WEIGHT as w
#import WEIGHT_TIMES as w
#import token_rows
#import SHARED as s
#import INPUT as h

var<workgroup> run_sums: array<f32, ROW_RUNS>;   // (run of 32 lanes)

// A unit of h, the unit of D that it meets (`at`), its slot, and whether this piece holds the slot's expert. If not, the unit of the piece's
// first expert is loaded, and behind the last unit the last one, so that no load waits for a branch.
struct Taken { unit: u32, at: u32, slot: u32, held: bool }

fn take(nth: u32, first_unit: u32) -> Taken {
  let unit = select(nth, min(nth, USED * UNITS - 1u), RAGGED);
#ifdef SLOT_FACTOR
  let slot = (unit * SLOT_FACTOR) >> SLOT_SHIFT;
#else
  let slot = unit / UNITS;
#endif
  // An expert that precedes this piece wraps around to a large number.
  let expert = ids[own_token * USED + slot] - select(p.first_expert, 0u, ONE_PIECE);
  let held = ONE_PIECE || expert < p.experts;
  // Where there is one piece, an id that no expert has stands for the last one.
  let place = select(select(0u, expert, held), min(expert, p.experts - 1u), ONE_PIECE);
  return Taken(unit, place * (ROWS * UNITS) + (first_unit + unit) - slot * UNITS, slot, held);
}

// A condition that always holds, which compilers cannot know. A product that is chosen by it is rounded before it is added: compilers do not join
// the two to a multiply-add, which would round once. Without it they would do so in one variant of the kernel and not in another, where the other
// conditions of the choice depend on the number of lanes. Then a token of several would not get the bits that it gets alone.
fn always() -> bool { return p.sub != 0xffffffffu; }

// Computes again whether the unit is behind the last one. So no register keeps it while the weights are being loaded.
fn product(nth: u32, taken: Taken, w: w_Loaded) -> f32 {
  let product = weights[own_token * USED + taken.slot] * w_add(0.0, w, h_unit(h_row(TOKEN_UNITS) + taken.unit));
  return select(0.0, product, taken.held && (!RAGGED || nth < USED * UNITS) && always());
}

// The products of a thread of a token alone, with ONE_BLOCK. They are added up as its first thread adds up its own, without a loop, so that
// compilers join the same products and additions.
fn block(row: u32, lane: u32) -> f32 {
  var sum = 0.0;
  let taken$k = take(lane + $ku * ALL_LANES, row * UNITS); let w$k = w_load(taken$k.at, p.sub);
  sum += product(lane + $ku * ALL_LANES, taken$k, w$k);
  return sum;
}

// The products of a thread of a token alone, without it.
fn walk(row: u32, lane: u32) -> f32 {
  var sum = 0.0;
  var b = lane;
  loop {
    if (b >= USED * UNITS) { break; }
    let taken$k = take(b + $ku * ALL_LANES, row * UNITS); let w$k = w_load(taken$k.at, p.sub);
    sum += product(b + $ku * ALL_LANES, taken$k, w$k);
    b += UNROLL * ALL_LANES;
  }
  return sum;
}

// The sum of a row. Those of a token alone add up first what is furthest apart.
#ifdef OF_FOUR
fn joined(sums: array<f32, SHARES>) -> f32 {
  if (TWO_RUNS) { return row_sum(sums[0] + sums[1]) + row_sum(sums[2] + sums[3]); }
  return row_sum((sums[0] + sums[2]) + (sums[1] + sums[3]));
}
#else
#ifdef OF_TWO
fn joined(sums: array<f32, SHARES>) -> f32 {
  if (TWO_RUNS) { return row_sum(sums[0]) + row_sum(sums[1]); }
  return row_sum(sums[0] + sums[1]);
}
#else
fn joined(sums: array<f32, SHARES>) -> f32 { return row_sum(sums[0]); }
#endif
#endif

#main
#fetch
  let lane = t & (LANES - 1u);
  let tile = own_place(wid).x * TILE;
  let of_token = own_token * ROWS;
  let row = min(tile + t / LANES, ROWS - 1u);
  // The row that the thread completes at the end.
  let own = select(t / LANES, t % TILE, MEET);
  let own_row = select(row, min(tile + own, ROWS - 1u), MEET);
#ifdef share
  let before = residual[of_token + own_row] + share[of_token + own_row];
#else
  let before = residual[of_token + own_row];
#endif
  let weight = norm_weight_at(own_row);
  // Requested before the experts are known.
  let ahead$v = shared_ask(row, lane + $vu * LANES);
  let asked = h_ask(t, 0u);
  var sums = array<f32, SHARES>();
  if (ONE_BLOCK) {
    let taken$k = take(lane + $ku * ALL_LANES, row * UNITS); let w$k = w_load(taken$k.at, p.sub);
    h_put(t, asked);
    if (h_SHARED) { workgroupBarrier(); }
    sums[0] += product(lane + $ku * ALL_LANES, taken$k, w$k);
    if ($vu > 0u) { sums[$v] = block(row, lane + $vu * LANES); }
  } else {
    h_put(t, asked);
    if (h_SHARED) { workgroupBarrier(); }
    sums[$v] = walk(row, lane + $vu * LANES);
  }
  sums[$v] += shared_sum(ahead$v, row, lane + $vu * LANES);
  // A token alone exchanges these sums with other threads.
  if (SHARES > 1u) { sums[$v] = select(0.0, sums[$v], always()); }
  var sum = joined(sums);
  var owns = lane == 0u;
  if (MEET) {
    if ((t & 31u) == 0u) { run_sums[t / 32u] = sum; }
    workgroupBarrier();
    owns = t < TILE;
    if (owns) { sum = run_sums[2u * t] + run_sums[2u * t + 1u]; }
  }
  sum += before;
  if (owns) {
    if (tile + own < ROWS) { y[of_token + own_row] = sum; }
    token_put(own, sum, weight);
  }
  token_store(of_token + tile, of_token + ROWS, t);
}
