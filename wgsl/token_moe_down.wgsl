// x' = x + sum over slots s of weights[s] * D[ids[s]] h[s] + S h_shared, of one token: the end of a layer with experts. h
// comes prepared (shared/token_store.wgsl); x' leaves as f32, and prepared for the next layer's first products.
//
// D (experts * ROWS, 32 * UNITS), S (ROWS, 32 * SHARED_UNITS), h (USED * UNITS + SHARED_UNITS) units, x and x' (ROWS).
// Division: LANES threads share an output row and walk the units of all its experts, so the sum needs no atomics (with SPLIT they
// are 64: two runs of 32, of one subgroup each, whose sums meet in workgroup memory); a
// workgroup owns TILE = WG / LANES rows. Bound by: the bytes of the chosen rows.
struct Params {
  first_expert: u32,  // of this part
  experts: u32,       // in this part
  sub: u32,           // sub-planes of the scales, in words
#ifdef SHARED
  shared_first: u32,  // first row of this part
  shared_rows: u32,   // in this part
  shared_sub: u32,
#endif
}
#read w_q: array<vec4<u32>>
#read w_s: array<w_Scales>
#ifdef SHARED
#read s_q: array<vec4<u32>>
#read s_s: array<s_Scales>
#endif
#import INPUT as h
#read ids: array<u32>                // (USED)
#read weights: array<f32>            // (USED)
#read residual: array<f32>           // (ROWS)
#write y: array<f32>                 // (ROWS)
#ifdef OUT_PREPARED
#import token_store
#endif
#ifdef STAGED
#import STAGE as stage
#endif
const TILE = WG / LANES;
#import params
#import w32
#import lanes
#import WEIGHT as w
#import WEIGHT_TIMES as w
#ifdef SHARED
#import SHARED_WEIGHT as s
#import SHARED_TIMES as s
#endif

#ifdef SPLIT
// (run of 32 lanes)
var<workgroup> split_sums: array<f32, WG / 32u>;
#endif

fn input_unit(u: u32) -> h_Unit {
#ifdef STAGED
  return staged_unit(u);
#else
  return h_unit(u);
#endif
}

@compute @workgroup_size(WG)
fn main(
#import builtins
) {
#import thread_index
#fetch
  let lane = t & (LANES - 1u);
  let tile = wid.x * TILE;
  let row = min(tile + t / LANES, ROWS - 1u);
#ifdef SPLIT
  // Of the row that the thread adds up in the end.
  let own_row = min(tile + t % TILE, ROWS - 1u);
#else
  let own_row = row;
#endif
  // Of an expert's row.
  let first_unit = row * UNITS;
  let before = residual[own_row];
#ifdef NORM_OUT
  let own_g = g[own_row];
#endif
#ifdef SHARED
#ifdef ONE_PART
  let shared_unit = row * SHARED_UNITS;
#else
  // Rows of other parts of S are not added here; one before this part wraps around.
  let shared_row = row - p.shared_first;
  let shared_unit = min(shared_row, p.shared_rows - 1u) * SHARED_UNITS;
#endif
  // Asked for before it is known who the experts are.
#for k SHARED_AHEAD
  let s$k = s_load(shared_unit + min(lane + $ku * LANES, SHARED_UNITS - 1u), p.shared_sub);
#endfor
#endif
#import stage_load as h
  var sum = 0.0;
#ifdef ONE_BLOCK
  var b = lane;
  {
#else
#import stage_put
#ifdef STAGED
  workgroupBarrier();
#endif
  var b = lane;
  loop {
    if (b >= USED * UNITS) { break; }
#endif
    // What is not to be added is read all the same, of the part's first expert, so that no load waits for a branch: units
    // behind the last, and, unless ONE_PART holds all, slots whose expert another part holds (one before this part wraps
    // around).
#for k UNROLL
#ifdef RAGGED
    let e$k = min(b + $ku * LANES, USED * UNITS - 1u);
#else
    let e$k = b + $ku * LANES;
#endif
#ifdef SLOT_FACTOR
    let slot$k = (e$k * SLOT_FACTOR) >> SLOT_SHIFT;
#else
    let slot$k = e$k / UNITS;
#endif
#ifdef ONE_PART
    let held$k = true;
    let expert$k = ids[slot$k];
#else
    let expert$k = ids[slot$k] - p.first_expert;
    let held$k = expert$k < p.experts;
#endif
    let w$k = w_load(select(0u, expert$k, held$k) * (ROWS * UNITS) + (first_unit + e$k) - slot$k * UNITS, p.sub);
#endfor
#ifdef ONE_BLOCK
#import stage_put
#ifdef STAGED
  workgroupBarrier();
#endif
#endif
#for k UNROLL
    let product$k = weights[slot$k] * w_times(w$k, input_unit(e$k));
#ifdef RAGGED
    sum += select(0.0, product$k, held$k && b + $ku * LANES < USED * UNITS);
#else
    sum += select(0.0, product$k, held$k);
#endif
#endfor
#ifndef ONE_BLOCK
    b += UNROLL * LANES;
#endif
  }
#ifdef SHARED
  var shared_sum = 0.0;
#for k SHARED_AHEAD
  if (lane + $ku * LANES < SHARED_UNITS) {
    shared_sum += s_times(s$k, input_unit(USED * UNITS + lane + $ku * LANES));
  }
#endfor
  b = lane + SHARED_AHEAD * LANES;
  loop {
    if (b >= SHARED_UNITS) { break; }
    shared_sum += s_times(s_load(shared_unit + b, p.shared_sub), input_unit(USED * UNITS + b));
    b += LANES;
  }
#ifdef ONE_PART
  sum += shared_sum;
#else
  sum += select(0.0, shared_sum, shared_row < p.shared_rows);
#endif
#endif
  sum = row_sum(sum);
#ifdef SPLIT
  if ((t & 31u) == 0u) { split_sums[t / 32u] = sum; }
  workgroupBarrier();
  let own = t;
  let owns = t < TILE;
  if (owns) { sum = split_sums[2u * t] + split_sums[2u * t + 1u] + before; }
#else
  sum += before;
  let own = t / LANES;
  let owns = lane == 0u;
#endif
  if (owns) {
    if (tile + own < ROWS) { y[own_row] = sum; }
#ifdef OUT_PREPARED
    token_rows[own] = sum;
#ifdef NORM_OUT
    token_weighted[own] = sum * own_g;
#endif
#endif
  }
#ifdef OUT_PREPARED
  workgroupBarrier();
  token_store(tile, ROWS, t);
#endif
}
