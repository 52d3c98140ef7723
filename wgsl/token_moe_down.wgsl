// x' = x + sum over slots s of weights[s] * D[ids[s]] h[s] + S h_shared, of one token: the end of a layer with experts. h
// comes prepared (shared/token_store.wgsl); x' leaves as f32, and prepared for the next layer's first products.
//
// D (experts * ROWS, 32 * UNITS), S (ROWS, 32 * SHARED_UNITS), h (USED * UNITS + SHARED_UNITS) units, x and x' (ROWS).
// Division: LANES threads share AT_ONCE output rows and walk the units of all their experts, so the sum needs no atomics (with SPLIT
// they are 64: two runs of 32, of one subgroup each, whose sums meet in workgroup memory); a
// workgroup owns TILE = WG / LANES * AT_ONCE rows. Bound by: the bytes of the chosen rows.
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
#import stage_bytes
#endif
const STRIDE = WG / LANES;           // rows of the workgroup that have threads of their own
const TILE = STRIDE * AT_ONCE;
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
const RUNS = WG / 32u;
// (row of the same threads, run of 32 lanes)
var<workgroup> split_sums: array<f32, AT_ONCE * RUNS>;
#endif

#ifdef STAGED
fn input_unit(u: u32) -> Record { return staged_unit(u); }
#else
#ifdef BYTES
fn input_unit(u: u32) -> Record { return h_unit(u); }
#else
fn input_unit(u: u32) -> W32 { return h_unit(u); }
#endif
#endif

@compute @workgroup_size(WG)
fn main(
#import builtins
) {
#import thread_index
  let lane = t & (LANES - 1u);
  let tile = wid.x * TILE;
#for r AT_ONCE
  let row$r = min(tile + t / LANES + $ru * STRIDE, ROWS - 1u);
#endfor
#ifdef SPLIT
  // Of the row that the thread adds up in the end.
  let own_row = min(tile + t % TILE, ROWS - 1u);
  let before = residual[own_row];
#ifdef NORM_OUT
  let own_g = g[own_row];
#endif
#else
#for r AT_ONCE
  let before$r = residual[row$r];
#ifdef NORM_OUT
  let g$r = g[row$r];
#endif
#endfor
#endif
#ifdef SHARED
  // Asked for before it is known who the experts are.
#for r AT_ONCE
  // Rows of other parts of S are not added here; one before this part wraps around.
  let shared_row$r = row$r - p.shared_first;
  let shared_unit$r = min(shared_row$r, p.shared_rows - 1u) * SHARED_UNITS;
#for k SHARED_AHEAD
  let s$k_$r = s_load(shared_unit$r + min(lane + $ku * LANES, SHARED_UNITS - 1u), p.shared_sub);
#endfor
#endfor
#endif
#import stage_load as h
#for r AT_ONCE
  var sum$r = 0.0;
#endfor
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
    // behind the last, and slots whose expert another part holds (one before this part wraps around).
#for k UNROLL
#ifdef RAGGED
    let e$k = min(b + $ku * LANES, USED * UNITS - 1u);
#else
    let e$k = b + $ku * LANES;
#endif
    let slot$k = e$k / UNITS;
    let expert$k = ids[slot$k] - p.first_expert;
    let held$k = expert$k < p.experts;
#for r AT_ONCE
    let w$k_$r = w_load((select(0u, expert$k, held$k) * ROWS + row$r) * UNITS + (e$k - slot$k * UNITS), p.sub);
#endfor
#endfor
#ifdef ONE_BLOCK
#import stage_put
#ifdef STAGED
  workgroupBarrier();
#endif
#endif
#for k UNROLL
#ifdef RAGGED
    let counts$k = held$k && b + $ku * LANES < USED * UNITS;
#else
    let counts$k = held$k;
#endif
    let weight$k = weights[slot$k];
    let v$k = input_unit(e$k);
#for r AT_ONCE
    sum$r += select(0.0, weight$k * w_times(w$k_$r, v$k), counts$k);
#endfor
#endfor
#ifndef ONE_BLOCK
    b += UNROLL * LANES;
#endif
  }
#ifdef SHARED
#for r AT_ONCE
  var shared_sum$r = 0.0;
#endfor
#for k SHARED_AHEAD
  if (lane + $ku * LANES < SHARED_UNITS) {
    let v = input_unit(USED * UNITS + lane + $ku * LANES);
#for r AT_ONCE
    shared_sum$r += s_times(s$k_$r, v);
#endfor
  }
#endfor
  b = lane + SHARED_AHEAD * LANES;
  loop {
    if (b >= SHARED_UNITS) { break; }
    let v = input_unit(USED * UNITS + b);
#for r AT_ONCE
    shared_sum$r += s_times(s_load(shared_unit$r + b, p.shared_sub), v);
#endfor
    b += LANES;
  }
#for r AT_ONCE
  sum$r += select(0.0, shared_sum$r, shared_row$r < p.shared_rows);
#endfor
#endif
#for r AT_ONCE
  sum$r = row_sum(sum$r);
#endfor
#ifdef SPLIT
#for r AT_ONCE
  if ((t & 31u) == 0u) { split_sums[$ru * RUNS + t / 32u] = sum$r; }
#endfor
  workgroupBarrier();
  if (t < TILE) {
    let run = t / STRIDE * RUNS + 2u * (t % STRIDE);
    let sum = split_sums[run] + split_sums[run + 1u] + before;
    if (tile + t < ROWS) { y[own_row] = sum; }
#ifdef OUT_PREPARED
    token_rows[t] = sum;
#ifdef NORM_OUT
    token_weighted[t] = sum * own_g;
#endif
#endif
  }
#else
#for r AT_ONCE
  sum$r += before$r;
  if (lane == 0u) {
    let own = t / LANES + $ru * STRIDE;
    if (tile + own < ROWS) { y[row$r] = sum$r; }
#ifdef OUT_PREPARED
    token_rows[own] = sum$r;
#ifdef NORM_OUT
    token_weighted[own] = sum$r * g$r;
#endif
#endif
  }
#endfor
#endif
#ifdef OUT_PREPARED
  workgroupBarrier();
  token_store(tile, ROWS, t);
#endif
}
