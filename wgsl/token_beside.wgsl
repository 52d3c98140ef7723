// y = W x / rms(x) and z = V x / rms(x) of one token: two products that have their input in common and nothing else, in one grid,
// where every dispatch of a pass waits for the one before it. x comes prepared (shared/token_store.wgsl).
//
// W (rows, 32 * UNITS), V (other_rows, 32 * UNITS), y (rows), z (other_rows) as f32. OUT_PLAIN leaves y as f32, OUT_PREPARED for the next
// product.
// With STAGED a long input passes through workgroup memory (shared/stage_bytes.wgsl, shared/stage_halves.wgsl).
// Division: LANES threads share a row, a workgroup owns TILE = WG / LANES rows of W or of V; those of W come first.
// Bound by: the bytes of W and V.
struct Params {
  rows: u32,        // of W
  other_rows: u32,  // of V
  sub: u32,         // sub-planes of the scales, in words
  other_sub: u32,
  eps: f32,
}
#read w_q: array<vec4<u32>>
#read w_s: array<w_Scales>
#read v_q: array<vec4<u32>>
#read v_s: array<v_Scales>
#import INPUT as x
#read squares: array<f32>            // (2 * UNITS)
#write z: array<f32>                 // (other_rows)
#ifdef OUT_PLAIN
#write y: array<f32>                 // (rows)
#endif
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
#import row_walk as w
#import OTHER as v
#import OTHER_TIMES as v
#import row_walk as v

@compute @workgroup_size(WG)
fn main(
#import builtins
) {
#import thread_index
#fetch
  let lane = t & (LANES - 1u);
  let in_tile = t / LANES;
  let tiles = (p.rows + TILE - 1u) / TILE;
  let other = wid.x >= tiles;
  let tile = (wid.x - select(0u, tiles, other)) * TILE;
  let rows = select(p.rows, p.other_rows, other);
  // Threads behind the last row repeat it and write nothing.
  let row = min(tile + in_tile, rows - 1u);
#ifdef NORM_OUT
  // Of V's rows it is not used.
  let weight = g[min(row, p.rows - 1u)];
#endif
#import rms_load
#import stage_load as x
#import stage_put
#ifdef STAGED
  workgroupBarrier();
#endif
#import rms_scale
  var sum = 0.0;
  if (other) {
    sum = v_walk(row * UNITS, 0u, lane, p.other_sub);
  } else {
    sum = w_walk(row * UNITS, 0u, lane, p.sub);
  }
  sum = row_sum(sum) * scale;
  let writes = lane == 0u && tile + in_tile < rows;
  if (other && writes) { z[row] = sum; }
#ifdef OUT_PLAIN
  if (!other && writes) { y[row] = sum; }
#endif
#ifdef OUT_PREPARED
  if (lane == 0u) {
    token_rows[in_tile] = sum;
#ifdef NORM_OUT
    token_weighted[in_tile] = sum * weight;
#endif
  }
  workgroupBarrier();
  token_store(tile, select(rows, 0u, other), t);
#endif
}
