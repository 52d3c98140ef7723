// y = W x (+ residual) of one token whose activations their producer prepared (shared/token_store.wgsl); the output likewise.
//
// W (groups * rows, 32 * UNITS), x (groups, X_UNITS) units, y (groups * rows). Group g of W reads x from unit g * X_UNITS on (attn_k_b,
// attn_v_b). INPUT is where x comes from: prepared values as they lie (shared/x_*.wgsl), the same by way of workgroup memory
// (shared/staged_*.wgsl), floats still to be multiplied by the norm's weight (shared/x_times_norm.wgsl: for the router, whose choices
// should not turn on rounding), or the slices of the attention, which the workgroup joins for its head while its weights are on
// their way (shared/x_slices.wgsl, for attn_v_b).
// Where `squares` came with x, the products are divided by its root mean square. The output leaves as f32 (`y`), for the next product
// (`prepared`), or both; with `router` it leaves what it gives to the experts' logits, too; with `angles` queries leave rotated.
// Division: LANES threads share AT_ONCE rows, a workgroup owns TILE = WG / LANES * AT_ONCE rows, of one head where it joins slices.
// Bound by: the bytes of W; for small W by the latency of one load, so everything a thread needs is asked for at once.
#word rows: u32        // of this part
#word first_row: u32   // of this part among all rows
#word sub: u32         // sub-plane of the scales, in words
#word row_tiles: u32   // workgroups along x; y continues them
#read w_q: array<vec4<u32>> @codes(WEIGHT, p.rows * UNITS)
#read w_s: array<w_Scales> @scales(WEIGHT, p.rows * UNITS)
#read residual?: array<f32> @floats(p.first_row + p.rows)
#write y?: array<f32> @floats(p.first_row + p.rows)
#flag ONE_BLOCK        // UNROLL * LANES units are a whole row
#flag GROUPS           // groups read inputs of their own
#length OUT_ROWS p.first_row + p.rows
#length INPUT_UNITS (ceil(p.first_row + p.rows, ROWS_PER_GROUP) - 1) * X_UNITS + UNITS
#each r AT_ONCE
#each k UNROLL
const STRIDE = WG / LANES;   // rows of the workgroup that have threads of their own
const TILE = STRIDE * AT_ONCE;
#import w32
#import lanes
#import units
#import INPUT as x
#import WEIGHT as w
#import WEIGHT_TIMES as w
#import rms
#import rotated
#import token_rows
#import router_parts

alias Rows = array<u32, AT_ONCE>;
alias Sums = array<f32, AT_ONCE>;
alias Loaded = array<w_Loaded, AT_ONCE>;

// The weights of unit u of some rows.
fn load(u: u32, rows: Rows) -> Loaded {
  return Loaded(
    w_load(rows[$r] * UNITS + u, p.sub),
  );
}

// The input of a row that begins at unit `first`: where all groups share it, what was loaded for all.
fn row_input(same: x_Unit, first: u32, u: u32) -> x_Unit {
  if (GROUPS) { return x_unit(first + u); }
  return same;
}

// The sums after the products of unit u; row r reads its input from unit firsts[r] on.
fn multiply(sums: Sums, w: Loaded, u: u32, firsts: Rows) -> Sums {
  let v = x_unit(firsts[0] + u);
  return Sums(
    sums[$r] + w_times(w[$r], row_input(v, firsts[$r], u)),
  );
}

#main
#fetch
  let lane = t & (LANES - 1u);
  let in_tile = t / LANES;
  let tile = (wid.x + wid.y * p.row_tiles) * TILE;
  let group = (p.first_row + min(tile, p.rows - 1u)) / ROWS_PER_GROUP;
  // Threads behind the last row repeat it and write nothing.
  let rows = Rows(
    min(tile + in_tile + $ru * STRIDE, p.rows - 1u),
  );
  let firsts = Rows(
    (p.first_row + rows[$r]) / ROWS_PER_GROUP * X_UNITS,
  );
  let before$r = residual_at(p.first_row + rows[$r]);
  let weight$r = norm_weight_at(p.first_row + rows[$r]);
  let squares = squares_ask(lane);
  let asked = x_ask(t, group);
  let router = router_ask(p.first_row + tile, t);
  var sums = Sums();
  var scale = 1.0;
  if (ONE_BLOCK) {
    let w$k = load(unit_at(lane, $ku), rows);
    // While the weights are on their way.
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
  if (lane == 0u && tile + in_tile + $ru * STRIDE < p.rows) { y_put(p.first_row + rows[$r], sum$r); }
  if (lane == 0u) { token_put(in_tile + $ru * STRIDE, sum$r, weight$r); }
  token_store(p.first_row + tile, p.first_row + p.rows, t);
  router_store(p.first_row + tile, p.first_row + p.rows, t);
}
