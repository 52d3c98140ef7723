// y = W x (+ residual) of one token, or with SEVERAL of each of several (shared/own_token.wgsl) whose slices are merged. x comes prepared by the product before, and y can be left prepared for the next
// (shared/token_store.wgsl).
//
// W (groups * rows, 32 * UNITS), x (groups, X_UNITS) units, y (groups * rows). Groups are heads (attn_k_b, attn_v_b): group g reads x from
// unit g * X_UNITS on. The module INPUT says where x comes from:
// - shared/x_*.wgsl: prepared values from their buffer;
// - shared/staged_*.wgsl: prepared values through workgroup memory;
// - shared/x_times_norm.wgsl: f32, which this kernel multiplies by the norm's weight. The router takes it, because rounding should not
//   choose experts;
// - shared/x_slices.wgsl: the slices of the attention, for attn_v_b. A workgroup merges those of its head while its weights are on
//   their way.
// If `squares` are bound, the sums are divided by the root mean square of x. The output is left as f32 (`y`), prepared for the next
// product (`prepared`), or both. With `router` the kernel also leaves partial sums of the experts' logits. With `angles` it rotates the
// output, which are queries then.
// Division: LANES threads share AT_ONCE rows. A workgroup owns TILE = WG / LANES * AT_ONCE rows, all of one head if it merges slices.
// Bound by: the bytes of W. A small W is bound by the latency of one load, so a thread requests everything it needs at once.
#number WG LANES UNITS X_UNITS  // threads of a workgroup, threads that share rows, units of a row, units from one group to the next in x
#number AT_ONCE UNROLL ROWS_PER_GROUP  // rows of a thread, units that a thread requests at once, rows that read the same x
#ifdef SEVERAL
#number TOKEN_ROWS  // values of a token of y
#endif
#word rows: u32        // of this piece of W
#word first_row: u32   // of this piece among all rows
#word sub: u32         // where the sub-plane of the scales begins, in words
#word row_tiles: u32   // workgroups along x; further ones follow along y
#read w_q: array<vec4<u32>> @codes(WEIGHT, p.rows * UNITS)   // (rows, UNITS) units
#read w_s: array<w_Scales> @scales(WEIGHT, p.rows * UNITS)   // (rows, UNITS) units
#read residual?: array<f32> @floats(OUT_ROWS)   // (tokens, groups * rows)
#write y?: array<f32> @floats(OUT_ROWS)         // (tokens, groups * rows)
#flag ONE_BLOCK        // UNROLL * LANES units are a whole row, so a thread loads its share at once
#flag GROUPS           // each group reads an input of its own
#ifdef SEVERAL
#length OUT_ROWS TOKENS * TOKEN_ROWS
#else
#length OUT_ROWS p.first_row + p.rows
#endif
#length INPUT_UNITS (ceil(p.first_row + p.rows, ROWS_PER_GROUP) - 1) * X_UNITS + UNITS
#each r AT_ONCE
#each k UNROLL
const STRIDE = WG / LANES;   // runs of LANES threads; the rows of a thread are this far apart
const TILE = STRIDE * AT_ONCE;
#import w32
#import lanes
#import units
#import INPUT as x
#import WEIGHT as w
#import WEIGHT_TIMES as w
#import rms
#import rotated
#import own_token
#import token_rows
#import leave_partial_logits

alias Rows = array<u32, AT_ONCE>;
alias Sums = array<f32, AT_ONCE>;
alias Loaded = array<w_Loaded, AT_ONCE>;

// The weights of unit u of each of `rows`.
fn load(u: u32, rows: Rows) -> Loaded {
  return Loaded(
    w_load(rows[$r] * UNITS + u, p.sub),
  );
}

// Unit u of the input of a row, which begins at unit `first`. If all groups share one input, it is `same`, which is loaded already.
fn row_input(same: x_Unit, first: u32, u: u32) -> x_Unit {
  if (GROUPS) { return x_unit(first + u); }
  return same;
}

// `sums` plus the products of unit u. The input of row r begins at unit firsts[r].
fn multiply(sums: Sums, w: Loaded, u: u32, firsts: Rows) -> Sums {
  let v = x_unit(firsts[0] + u);
  return Sums(
    w_add(sums[$r], w[$r], row_input(v, firsts[$r], u)),
  );
}

#main
#fetch
  let lane = t & (LANES - 1u);
  let in_tile = t / LANES;
#ifdef SEVERAL
  let tile = own_place(wid).x * TILE;
  let out = own_token * TOKEN_ROWS + p.first_row;
#else
  let tile = (wid.x + wid.y * p.row_tiles) * TILE;
  let out = p.first_row;
#endif
  let group = (p.first_row + min(tile, p.rows - 1u)) / ROWS_PER_GROUP;
  // Threads beyond the last row compute the last row again and write nothing.
  let rows = Rows(
    min(tile + in_tile + $ru * STRIDE, p.rows - 1u),
  );
  let firsts = Rows(
    (p.first_row + rows[$r]) / ROWS_PER_GROUP * X_UNITS,
  );
  let before$r = residual_at(out + rows[$r]);
  let weight$r = norm_weight_at(p.first_row + rows[$r]);
  let squares = squares_ask(lane);
  let asked = x_ask(t, group);
  let router = router_ask(p.first_row + tile, t);
  var sums = Sums();
  var scale = 1.0;
  if (ONE_BLOCK) {
    let w$k = load(unit_at(lane, $ku), rows);
    // The input and the router's weights are put while the weights are on their way.
    router_put(router, t);
    x_put(t, asked);
    if (x_SHARED) { workgroupBarrier(); }
    scale = rms_scale(squares, lane);
    if (in_row(lane, $ku)) { sums = multiply(sums, w$k, unit_at(lane, $ku), firsts); }
  } else {
    router_put(router, t);
    x_put(t, asked);
    if (x_SHARED) { workgroupBarrier(); }
    scale = rms_scale(squares, lane);
    var b = lane;
    loop {
      if (b >= UNITS) { break; }
      let w$k = load(unit_at(b, $ku), rows);
      if (in_row(b, $ku)) { sums = multiply(sums, w$k, unit_at(b, $ku), firsts); }
      b += UNROLL * LANES;
    }
  }
  let sum$r = rotated(row_sum(sums[$r]) * scale + before$r, p.first_row + rows[$r], t);
  if (lane == 0u && tile + in_tile + $ru * STRIDE < p.rows) { y_put(out + rows[$r], sum$r); }
  if (lane == 0u) { token_put(in_tile + $ru * STRIDE, sum$r, weight$r); }
  token_store(out + tile, out + p.rows, t);
  router_store(p.first_row + tile, p.first_row + p.rows, t);
}
