// y = W x / rms(x) and z = V x / rms(x) of one token. The two products share only their input. They are one dispatch for devices
// with serial passes, where two would wait for each other. x comes prepared (shared/token_store.wgsl).
//
// W (rows, 32 * UNITS), V (other_rows, 32 * UNITS), y (rows) and z (other_rows) f32. The first output is left as f32 (`y`), prepared for
// the next product (`prepared`), or both.
// Division: LANES threads share a row. A workgroup owns TILE = WG / LANES rows, of W or of V. The workgroups of W come first.
// Bound by: the bytes of W and V.
#number WG LANES UNITS  // threads of a workgroup, threads that share rows, units of a row
#word rows: u32        // of W
#word other_rows: u32  // of V
#word sub: u32         // where the sub-plane of W's scales begins, in words
#word other_sub: u32   // the same of V
#read w_q: array<vec4<u32>> @codes(WEIGHT, p.rows * UNITS)        // (rows, UNITS) units
#read w_s: array<w_Scales> @scales(WEIGHT, p.rows * UNITS)        // (rows, UNITS) units
#read v_q: array<vec4<u32>> @codes(OTHER, p.other_rows * UNITS)   // (other_rows, UNITS) units
#read v_s: array<v_Scales> @scales(OTHER, p.other_rows * UNITS)   // (other_rows, UNITS) units
#write z: array<f32> @floats(p.other_rows)   // (other_rows)
#write y?: array<f32> @floats(p.rows)        // (rows)
#length OUT_ROWS p.rows
#length INPUT_UNITS UNITS
const TILE = WG / LANES;
#import w32
#import lanes
#import units
#import rms
#import INPUT as x
#import WEIGHT as w
#import WEIGHT_TIMES as w
#import row_walk as w
#import OTHER as v
#import OTHER_TIMES as v
#import row_walk as v
#import token_rows

#main
#fetch
  let lane = t & (LANES - 1u);
  let in_tile = t / LANES;
  let tiles = (p.rows + TILE - 1u) / TILE;
  let other = wid.x >= tiles;
  let tile = (wid.x - select(0u, tiles, other)) * TILE;
  let rows = select(p.rows, p.other_rows, other);
  // Threads beyond the last row compute the last row again and write nothing.
  let row = min(tile + in_tile, rows - 1u);
  // Rows of V do not use it.
  let weight = norm_weight_at(min(row, p.rows - 1u));
  let squares = squares_ask(lane);
  let asked = x_ask(t, 0u);
  x_put(t, asked);
  if (x_SHARED) { workgroupBarrier(); }
  let scale = rms_scale(squares, lane);
  var sum = 0.0;
  if (other) {
    sum = v_walk(row * UNITS, 0u, lane, p.other_sub);
  } else {
    sum = w_walk(row * UNITS, 0u, lane, p.sub);
  }
  sum = row_sum(sum) * scale;
  let writes = lane == 0u && tile + in_tile < rows;
  if (other && writes) { z[row] = sum; }
  if (!other && writes) { y_put(row, sum); }
  if (lane == 0u) { token_put(in_tile, sum, weight); }
  token_store(tile, select(rows, 0u, other), t);
}
