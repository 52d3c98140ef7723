// y = residual + sum over slots s of weights[s] * D[ids[s]] h[s] + S h_shared, of one token: the end of a layer with experts. h comes
// prepared (shared/token_store.wgsl). y is left as f32, and prepared for the next layer's first products. With SEVERAL it is for several tokens
// (shared/own_token.wgsl). With `share` the host multiplied some experts: their ids are those of no expert, and their sum is added.
//
// D (experts * ROWS, 32 * UNITS), S (ROWS, 32 * SHARED_UNITS), h (tokens, USED * UNITS + SHARED_UNITS) units, residual and y (tokens, ROWS).
// Division: LANES threads share an output row and walk the units of all its experts, so the sum needs no atomics. With TWO_RUNS they are 64:
// two runs of 32, whose sums meet in workgroup memory. A thread of a step of several tokens may stand for SHARES such threads: it has the sum
// of each, and adds them up as the threads of a row do. So workgroups are small, and some load while others add up. It may have AT_ONCE rows, for
// which it loads h once. A workgroup owns TILE = WG / LANES * AT_ONCE rows. With ONE_PIECE the call has all of the weights. Else other calls add
// what other pieces hold.
// Bound by: the bytes of the chosen rows.
#number USED WG LANES ROWS  // experts of a token, threads of a workgroup, threads that share rows, rows of an expert
#number UNITS UNROLL ROW_RUNS  // units of a row of an expert, units that a thread requests at once, runs of 32 lanes of a row
#number COLS SHARES AT_ONCE  // tokens of a workgroup, threads of a token alone that a thread stands for, rows of a thread
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
#each r AT_ONCE
const_assert COLS == 1u;
const STRIDE = WG / LANES;   // the rows of a thread are this far apart
const TILE = STRIDE * AT_ONCE;
// Threads that share a row of a token alone.
const ALL_LANES = LANES * SHARES;
// Whether sums of two threads meet in workgroup memory.
const MEET = TWO_RUNS && SHARES == 1u;
const_assert !MEET || AT_ONCE == 1u;
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

alias Rows = array<u32, AT_ONCE>;
alias Sums = array<f32, AT_ONCE>;
alias Loaded = array<w_Loaded, AT_ONCE>;

// What meets a unit of h in each of `rows`. In the first one it was taken.
fn load(taken: Taken, rows: Rows) -> Loaded {
  return Loaded(
    w_load(taken.at + (rows[$r] - rows[0]) * UNITS, p.sub),
  );
}

// Computes again whether the unit is behind the last one. So no register keeps it while the weights are being loaded.
fn product(nth: u32, taken: Taken, w: Loaded) -> Sums {
  let v = h_unit(h_row(TOKEN_UNITS) + taken.unit);
  let weight = weights[own_token * USED + taken.slot];
  let is_one = taken.held && (!RAGGED || nth < USED * UNITS);
  return Sums(
    select(0.0, weight * w_add(0.0, w[$r], v), is_one),
  );
}

// The products of a thread of a token alone, with ONE_BLOCK. They are added up as its first thread adds up its own, without a loop, so that
// compilers join the same products and additions.
fn block(rows: Rows, lane: u32) -> Sums {
  var sums = Sums();
  let taken$k = take(lane + $ku * ALL_LANES, rows[0] * UNITS); let w$k = load(taken$k, rows);
  let product$k = product(lane + $ku * ALL_LANES, taken$k, w$k);
  sums[$r] += product$k[$r];
  return sums;
}

// The products of a thread of a token alone, without it.
fn walk(rows: Rows, lane: u32) -> Sums {
  var sums = Sums();
  var b = lane;
  loop {
    if (b >= USED * UNITS) { break; }
    let taken$k = take(b + $ku * ALL_LANES, rows[0] * UNITS); let w$k = load(taken$k, rows);
    let product$k = product(b + $ku * ALL_LANES, taken$k, w$k);
    sums[$r] += product$k[$r];
    b += UNROLL * ALL_LANES;
  }
  return sums;
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
  let rows = Rows(
    min(tile + t / LANES + $ru * STRIDE, ROWS - 1u),
  );
  // The rows that the thread completes at the end.
  let own$r = select(t / LANES + $ru * STRIDE, t % TILE, MEET);
  let own_row$r = select(rows[$r], min(tile + own$r, ROWS - 1u), MEET);
#ifdef share
  let before$r = residual[of_token + own_row$r] + share[of_token + own_row$r];
#else
  let before$r = residual[of_token + own_row$r];
#endif
  let weight$r = norm_weight_at(own_row$r);
  // Requested before the experts are known.
  let ahead$vof$r = shared_ask(rows[$r], lane + $vu * LANES);
  let asked = h_ask(t, 0u);
  var part$v = Sums();
  if (ONE_BLOCK) {
    let taken$k = take(lane + $ku * ALL_LANES, rows[0] * UNITS); let w$k = load(taken$k, rows);
    h_put(t, asked);
    if (h_SHARED) { workgroupBarrier(); }
    let product$k = product(lane + $ku * ALL_LANES, taken$k, w$k);
    part0[$r] += product$k[$r];
    if ($vu > 0u) { part$v = block(rows, lane + $vu * LANES); }
  } else {
    h_put(t, asked);
    if (h_SHARED) { workgroupBarrier(); }
    part$v = walk(rows, lane + $vu * LANES);
  }
  part$v[$r] += shared_sum(ahead$vof$r, rows[$r], lane + $vu * LANES);
  // A token alone exchanges these sums with other threads. The choice, which always falls on the sum, keeps compilers from joining a product
  // that ends one of them with the next addition, which would round once less.
  var sums$r = array<f32, SHARES>();
  sums$r[$v] = part$v[$r];
  if (SHARES > 1u) { sums$r[$v] = select(0.0, part$v[$r], p.sub != 0xffffffffu); }
  var sum$r = joined(sums$r);
  var owns = lane == 0u;
  if (MEET) {
    if ((t & 31u) == 0u) { run_sums[t / 32u] = sum0; }
    workgroupBarrier();
    owns = t < TILE;
    if (owns) { sum0 = run_sums[2u * t] + run_sums[2u * t + 1u]; }
  }
  sum$r += before$r;
  if (owns && tile + own$r < ROWS) { y[of_token + own_row$r] = sum$r; }
  if (owns) { token_put(own$r, sum$r, weight$r); }
  token_store(of_token + tile, of_token + ROWS, t);
}
