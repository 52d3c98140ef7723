// y = W x (+ residual) of one token, or with SEVERAL of each of several (shared/own_token.wgsl). x comes prepared by the product before, and y
// can be left prepared for the next (shared/token_store.wgsl).
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
// Division: LANES threads share AT_ONCE rows. A workgroup owns TILE = WG / LANES * AT_ONCE rows, all of one head if it merges slices. It
// multiplies them by the inputs of COLS tokens, and so reads a weight once for these. The threads of a row add its products in the same
// order for any number of tokens.
// Bound by: the bytes of W. A small W is bound by the latency of one load, so a thread requests everything it needs at once.
#number WG LANES UNITS X_UNITS  // threads of a workgroup, threads that share rows, units of a row, units from one group to the next in x
#number AT_ONCE UNROLL ROWS_PER_GROUP  // rows of a thread, units that a thread requests at once, rows that read the same x
#number COLS  // tokens of a workgroup (shared/columns.wgsl)
#ifdef SEVERAL
#number TOKEN_ROWS TOKEN_UNITS  // values of a token of y, units of a token of x
#else
const TOKEN_UNITS = 0u;
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
#length INPUT_UNITS (TOKENS - 1) * TOKEN_UNITS + (ceil(p.first_row + p.rows, ROWS_PER_GROUP) - 1) * X_UNITS + UNITS
#else
#length OUT_ROWS p.first_row + p.rows
#length INPUT_UNITS (ceil(p.first_row + p.rows, ROWS_PER_GROUP) - 1) * X_UNITS + UNITS
#endif
#each c COLS
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
#import columns
#import token_rows
#import leave_partial_logits

#ifdef SLICES_LEAST
#number SLICES_LEAST SLICES_MOST  // slices of a token's context, if it is for this call
#import token_slices
#endif

alias Rows = array<u32, AT_ONCE>;
alias Sums = array<f32, AT_ONCE>;
alias Loaded = array<w_Loaded, AT_ONCE>;

// The weights of unit u of each of `rows`.
fn load(u: u32, rows: Rows) -> Loaded {
  return Loaded(
    w_load(rows[$r] * UNITS + u, p.sub),
  );
}

// The first value of the token's rows of this piece in y.
fn own_rows() -> u32 {
#ifdef SEVERAL
  return own_token * TOKEN_ROWS + p.first_row;
#else
  return p.first_row;
#endif
}

// The place of the token's row of this piece in y.
fn y_place(row: u32) -> u32 {
#ifdef angles
  return rotated_place(p.first_row + row);
#else
  return own_rows() + row;
#endif
}

// What is added to the token's `rows`.
fn residuals(rows: Rows) -> Sums {
  return Sums(
    residual_at(own_rows() + rows[$r]),
  );
}

// Unit u of the input of a row, which begins at unit `first`. If all groups share one input, it is `same`, which is loaded already.
fn row_input(same: x_Unit, first: u32, u: u32) -> x_Unit {
  if (GROUPS) { return x_unit(first + u); }
  return same;
}

// `sums` plus the products of unit u. The input of row r begins at unit firsts[r] behind the token's first one, `own`.
fn multiply(sums: Sums, w: Loaded, u: u32, firsts: Rows, own: u32) -> Sums {
  let v = x_unit(own + firsts[0] + u);
  return Sums(
    w_add(sums[$r], w[$r], row_input(v, own + firsts[$r], u)),
  );
}

// Completes the token's rows and leaves them. Every thread of the workgroup must call.
fn finish(t: u32, tile: u32, rows: Rows, sums: Sums, scale: f32, before: Sums, weights: Sums) {
  let lane = t & (LANES - 1u);
  let in_tile = t / LANES;
  let out = own_rows();
  let sum$r = rotated(row_sum(sums[$r]) * scale + before[$r], p.first_row + rows[$r], t);
  if (lane == 0u && tile + in_tile + $ru * STRIDE < p.rows) { y_put(y_place(rows[$r]), sum$r); }
  if (lane == 0u) { token_put(in_tile + $ru * STRIDE, sum$r, weights[$r]); }
  token_store(out + tile, out + p.rows, t);
  router_store(out + tile, out + p.rows, t);
}

#ifdef ALL_COLUMNS
// Puts the rows of the token in this column. Those of all columns are left together.
fn put_rows(wid: vec3<u32>, t: u32, tile: u32, rows: Rows, sums: Sums, scale: f32, before: Sums, weights: Sums) {
  let lane = t & (LANES - 1u);
  let in_tile = t / LANES;
  let sum$r = row_sum(sums[$r]) * scale + before[$r];
  if (lane == 0u && tile + in_tile + $ru * STRIDE < p.rows && is_there(wid, column)) { y_put(y_place(rows[$r]), sum$r); }
  if (lane == 0u) { token_put(column * TILE + in_tile + $ru * STRIDE, sum$r, weights[$r]); }
}

// Leaves the rows of the tokens of all columns: four rows of one of them by each thread. Every thread of the workgroup must call.
fn leave_columns(wid: vec3<u32>, t: u32, tile: u32) {
#ifdef prepared
  workgroupBarrier();
  let c = t / (TILE / 4u);
  if (c < COLS && is_there(wid, c)) {
    turn_to(wid, c);
    let row = own_rows() + tile + t * 4u - c * TILE;
    if (row < own_rows() + p.rows) { token_write(row, t, token_weigh(t * 4u, row, token_rows_at(t * 4u))); }
  }
  router_store_columns(wid, tile, t);
#endif
}
#endif

#main
#fetch
  let lane = t & (LANES - 1u);
  let in_tile = t / LANES;
  let place = own_place(wid);
#ifdef SLICES_LEAST
  let slices = token_slices(wid.x).count;
  if (slices < SLICES_LEAST || slices > SLICES_MOST) { return; }
#endif
  let tile = (place.x + place.y * p.row_tiles) * TILE;
  let group = (p.first_row + min(tile, p.rows - 1u)) / ROWS_PER_GROUP;
  // Threads beyond the last row compute the last row again and write nothing.
  let rows = Rows(
    min(tile + in_tile + $ru * STRIDE, p.rows - 1u),
  );
  let firsts = Rows(
    (p.first_row + rows[$r]) / ROWS_PER_GROUP * X_UNITS,
  );
  let weights = Sums(
    norm_weight_at(p.first_row + rows[$r]),
  );
  turn_to(wid, $cu); let own$c = x_row(TOKEN_UNITS); let before$c = residuals(rows); let squares$c = squares_ask(lane); let asked$c = x_ask(t, group);
  let router = router_ask(p.first_row + tile, t);
  var sums$c = Sums();
  var scale$c = 1.0;
  if (ONE_BLOCK) {
    let w$k = load(unit_at(lane, $ku), rows);
    // The input and the router's weights are put while the weights are on their way.
    router_put(router, t);
    turn_to(wid, $cu); x_put(t, asked$c);
    if (x_SHARED) { workgroupBarrier(); }
    turn_to(wid, $cu); scale$c = rms_scale(squares$c, lane);
    if (in_row(lane, $ku)) { sums$c = multiply(sums$c, w$k, unit_at(lane, $ku), firsts, own$c); }
  } else {
    router_put(router, t);
    turn_to(wid, $cu); x_put(t, asked$c);
    if (x_SHARED) { workgroupBarrier(); }
    turn_to(wid, $cu); scale$c = rms_scale(squares$c, lane);
    var b = lane;
    loop {
      if (b >= UNITS) { break; }
      let w$k = load(unit_at(b, $ku), rows);
      if (in_row(b, $ku)) { sums$c = multiply(sums$c, w$k, unit_at(b, $ku), firsts, own$c); }
      b += UNROLL * LANES;
    }
  }
#ifdef ALL_COLUMNS
  turn_to(wid, $cu); put_rows(wid, t, tile, rows, sums$c, scale$c, before$c, weights);
  leave_columns(wid, t, tile);
#else
  // Memory of the workgroup is used again for the next token.
  if ($cu > 0u) { workgroupBarrier(); } turn_to(wid, $cu); if (is_there(wid, $cu)) { finish(t, tile, rows, sums$c, scale$c, before$c, weights); }
#endif
}
