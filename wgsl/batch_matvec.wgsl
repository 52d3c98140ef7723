// y = W x (+ residual) of each token of a batch, or with a second weight U silu(W x) * (U x). A weight is read once for COLS tokens.
//
// x (rows, X_STRIDE units) comes prepared by the product before (shared/token_write.wgsl), or as f32 that this kernel multiplies by the norm's
// weight (shared/x_rows_times_norm.wgsl). If `squares` are bound, sums are divided by the root mean square of their row of x. W (groups, rows,
// 32 * UNITS). y (rows of the output, OUT_STRIDE) is left as f32, prepared for the next product (`prepared`), or both. The module GROUPS says
// what the groups of W are, and which rows of x and y belong to a place of the tile: see batch_heads, batch_experts and batch_one.
// Division: grid (tiles of TILE rows, tiles of COLS places, groups). LANES threads share AT_ONCE rows of W and take all places of the tile.
// Bound by: the bytes of W; with many tokens the multiply-adds and the loads of x, which threads with other rows share from the first-level
// cache.
#number WG LANES COLS X_STRIDE  // threads of a workgroup, threads that share rows, tokens of a tile, units from row to row of x
#number UNITS OUT_STRIDE AT_ONCE QUARTER  // units of a row, values from row to row of y, rows of a thread, fours of them
#number HALF UNROLL QUADS  // pairs of them, units that a thread requests at once, fours that a thread leaves
#number X_GROUP  // units from group to group in x
#word rows: u32          // of W in a group
#word first_row: u32     // of this piece in y
#word first_group: u32   // of this piece: expert, head or 0
#word groups: u32        // in this piece
#word sub: u32           // sub-plane of the scales, in words
#word u_sub?: u32        // that of the second weight
#word tokens: u32
#word eps?: f32          // of the norm
#read w_q: array<vec4<u32>> @codes(WEIGHT, W_UNITS)     // (groups, rows, UNITS) units
#read w_s: array<w_Scales> @scales(WEIGHT, W_UNITS)     // (groups, rows, UNITS) units
#read u_q?: array<vec4<u32>> @codes(UP, W_UNITS)        // the same
#read u_s?: array<u_Scales> @scales(UP, W_UNITS)        // the same
#length INPUT_UNITS X_ROWS * X_STRIDE
#length OUT_ROWS Y_ROWS * OUT_STRIDE
#each c COLS
#each f QUARTER
#each h HALF
#each r AT_ONCE
#each k UNROLL
#each q QUADS
const STRIDE = WG / LANES;   // runs of LANES threads; the rows of a thread are this far apart
const TILE = STRIDE * AT_ONCE;
#import w32
#import lanes
#import units
#import INPUT as x
#import WEIGHT as w
#import WEIGHT_TIMES as w
#import GROUPS as group

// The tile of a workgroup. It has `count` places, and TILE rows of W from `row` on in `group`. Its places are tokens from `first` on. With
// experts they are `slots`.
struct Tile { first: u32, slots: vec4<u32>, count: u32, group: u32, row: u32 }
#import columns_rms

alias Rows = array<u32, AT_ONCE>;
alias Row_Sums = array<f32, AT_ONCE>;
alias w_Rows = array<w_Loaded, AT_ONCE>;
var<workgroup> sums_out: array<f32, COLS * TILE * LANE_SUMS>;   // (place, row, LANE_SUMS)

fn w_rows(rows: Rows, u: u32) -> w_Rows {
  return w_Rows(
    w_load(rows[$r] + u, p.sub),
  );
}

fn w_multiply(sums: Row_Sums, w: w_Rows, x: x_Unit) -> Row_Sums {
  return Row_Sums(
    w_add(sums[$r], w[$r], x),
  );
}

fn w_sum(row: u32) -> f32 {
  var sum = sums_out[row * LANE_SUMS];
  var i = 1u;
  loop {
    if (i >= LANE_SUMS) { break; }
    sum += sums_out[row * LANE_SUMS + i];
    i += 1u;
  }
  return sum;
}

fn w_out(at: u32) -> vec4<f32> { return vec4(w_sum(at), w_sum(at + 1u), w_sum(at + 2u), w_sum(at + 3u)); }

// `load` requests unit u of the rows that begin at these units, and `multiply` adds their products. `put` leaves sums over the lanes of a row
// for the threads that complete them, and `finished` gives four completed rows, whose sums are multiplied by `scale`.
#ifdef u_q
#import UP as u
#import UP_TIMES as u
alias u_Rows = array<u_Loaded, AT_ONCE>;
struct Loaded { w: w_Rows, u: u_Rows }
struct Sums { w: Row_Sums, u: Row_Sums }
var<workgroup> up_out: array<f32, COLS * TILE * LANE_SUMS>;     // (place, row, LANE_SUMS)

fn u_rows(rows: Rows, u: u32) -> u_Rows {
  return u_Rows(
    u_load(rows[$r] + u, p.u_sub),
  );
}

fn u_multiply(sums: Row_Sums, w: u_Rows, x: x_Unit) -> Row_Sums {
  return Row_Sums(
    u_add(sums[$r], w[$r], x),
  );
}

fn load(rows: Rows, u: u32) -> Loaded { return Loaded(w_rows(rows, u), u_rows(rows, u)); }

fn multiply(sums: Sums, w: Loaded, x: x_Unit) -> Sums {
  return Sums(w_multiply(sums.w, w.w, x), u_multiply(sums.u, w.u, x));
}

fn put(at: u32, lane: u32, sums: Sums) {
  let w$r = row_sum(sums.w[$r]);
  let u$r = row_sum(sums.u[$r]);
  if (lane >= LANE_SUMS) { return; }
  sums_out[(at + $ru * STRIDE) * LANE_SUMS + lane] = w$r;
  up_out[(at + $ru * STRIDE) * LANE_SUMS + lane] = u$r;
}

fn u_sum(row: u32) -> f32 {
  var sum = up_out[row * LANE_SUMS];
  var i = 1u;
  loop {
    if (i >= LANE_SUMS) { break; }
    sum += up_out[row * LANE_SUMS + i];
    i += 1u;
  }
  return sum;
}

// silu(gate) * up. exp(-gate) is kept finite, because Metal's fast math may assume that it is.
fn finished(at: u32, scale: f32) -> vec4<f32> {
  let gate = w_out(at) * scale;
  let up = vec4(u_sum(at), u_sum(at + 1u), u_sum(at + 2u), u_sum(at + 3u)) * scale;
  return gate / (1.0 + exp(min(-gate, vec4(80.0)))) * up;
}
#else
alias Loaded = w_Rows;
alias Sums = Row_Sums;

fn load(rows: Rows, u: u32) -> Loaded { return w_rows(rows, u); }

fn multiply(sums: Sums, w: Loaded, x: x_Unit) -> Sums { return w_multiply(sums, w, x); }

fn put(at: u32, lane: u32, sums: Sums) {
  let w$r = row_sum(sums[$r]);
  if (lane >= LANE_SUMS) { return; }
  sums_out[(at + $ru * STRIDE) * LANE_SUMS + lane] = w$r;
}

fn finished(at: u32, scale: f32) -> vec4<f32> { return w_out(at) * scale; }
#endif

#import batch_leave

#main
#ifdef tiles
  let listed = tiles[2u * wid.y];
  let slots = tiles[2u * wid.y + 1u];
  // An expert that precedes this piece of the weight wraps around to a large number.
  let expert = listed.x - p.first_group;
  if (listed.z == 0u) { return; }
  if (expert >= p.groups) { return; }
  let at = Tile(0u, slots, listed.z, expert, wid.x * TILE);
#else
  let at = Tile(wid.y * COLS, vec4(0u), min(COLS, p.tokens - wid.y * COLS), wid.z, wid.x * TILE);
#endif
  let lane = t & (LANES - 1u);
  let in_tile = t / LANES;
  // Threads behind the last row compute it again.
  let rows = Rows(
    (at.group * p.rows + min(at.row + in_tile + $ru * STRIDE, p.rows - 1u)) * UNITS,
  );
  let x$c = group_input(at, min($cu, at.count - 1u)) * X_STRIDE + (p.first_group + at.group) * X_GROUP;
  let four$q = four_rows(at, $qu * WG + t);
  let before$q = residual_at(four$q.to / 4u);
  let weight$q = norm_weight_at(four$q.to % OUT_STRIDE / 4u);
  let squares = squares_ask(at, t);
  var sums$c = Sums();
  // No loop asks for each place whether it is there, because it would wait for each. Places behind the last one repeat it, and are left out
  // at the end. A tile of an expert with few slots takes a shorter loop.
  var b = lane;
#ifdef tiles
#ifdef FOUR
  if (at.count <= QUARTER) {
    loop {
      if (b >= UNITS) { break; }
      let w$k = load(rows, unit_at(b, $ku));
      if (in_row(b, $ku)) { sums$f = multiply(sums$f, w$k, x_unit(x$f + unit_at(b, $ku))); }
      b += UNROLL * LANES;
    }
  } else
#endif
  if (at.count <= HALF) {
    loop {
      if (b >= UNITS) { break; }
      let w$k = load(rows, unit_at(b, $ku));
      if (in_row(b, $ku)) { sums$h = multiply(sums$h, w$k, x_unit(x$h + unit_at(b, $ku))); }
      b += UNROLL * LANES;
    }
  } else
#endif
  {
    loop {
      if (b >= UNITS) { break; }
      let w$k = load(rows, unit_at(b, $ku));
      if (in_row(b, $ku)) { sums$c = multiply(sums$c, w$k, x_unit(x$c + unit_at(b, $ku))); }
      b += UNROLL * LANES;
    }
  }
  squares_put(squares, t);
  if ($cu < at.count) { put($cu * TILE + in_tile, lane, sums$c); }
  workgroupBarrier();
  if (four$q.some) { leave(four$q, $qu * WG + t, finished(four$q.place * TILE + four$q.row, column_scale(four$q.place)) + before$q, weight$q); }
#ifdef PLAIN
  workgroupBarrier();
  leave_squares(four$q, $qu * WG + t);
#endif
}
