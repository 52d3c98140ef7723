// y = W x (+ residual) of one token whose activations their producer prepared (shared/token_store.wgsl); the output likewise.
//
// W (groups * rows, 32 * UNITS), x (groups, X_UNITS) units, y (groups * rows). RMS divides by the root mean square of x, from
// the partial sums that came with it. Group g of W reads x from unit g * X_UNITS on (attn_k_b, attn_v_b). Where activations are
// bytes, INPUT can be floats still to be multiplied by the norm's weight: for the router, whose choices should not turn on a
// byte's rounding. With MERGE (attn_v_b) the workgroup joins the attention's slices of its head itself, while its weights are
// on their way. OUT_PLAIN leaves y as f32, OUT_PREPARED for the next product; with ROUTER it leaves parts
// of the experts' logits, too.
// With STAGED a long input passes through workgroup memory (shared/stage_bytes.wgsl, shared/stage_halves.wgsl).
// Division: LANES threads share AT_ONCE rows, a workgroup owns TILE = WG / LANES * AT_ONCE rows, with MERGE of one head.
// Bound by: the bytes of W; for small W by the latency of one load, so everything a thread needs is asked for at once. MERGE
// reads the slices of a head once per workgroup, from the second-level cache.
struct Params {
  rows: u32,        // of this part
  first_row: u32,   // of this part among all rows
  sub: u32,         // sub-plane of the scales, in words
  row_tiles: u32,   // workgroups along x; y continues them
#ifdef RMS
  eps: f32,
#endif
#ifdef MERGE
  splits: u32,      // slices of the attention
#endif
#ifdef ROTATE
  pos: u32,         // of the token
#endif
}
#read w_q: array<vec4<u32>>
#read w_s: array<w_Scales>
#ifdef MERGE
#read parts: array<vec4<f32>>        // (groups, splits, 8 * UNITS)
#read stats: array<vec2<f32>>        // (groups, splits) of (max, sum)
#else
#import INPUT as x
#endif
#ifdef RMS
#read squares: array<f32>            // (2 * UNITS)
#endif
#ifdef RESIDUAL
#read residual: array<f32>           // (groups * rows)
#endif
#ifdef OUT_PLAIN
#write y: array<f32>                 // (groups * rows)
#endif
#ifdef OUT_PREPARED
#import token_store
#endif
#ifdef ROUTER
#import router_parts
#endif
#ifdef STAGED
#import STAGE as stage
#endif
#ifdef ROTATE
#read angles: array<vec2<f32>>       // (n_ctx, ROPE / 2) of (cos, sin)
#endif
const STRIDE = WG / LANES;           // rows of the workgroup that have threads of their own
const TILE = STRIDE * AT_ONCE;
#import params
#import w32
#import lanes
#ifdef MERGE
const KV_LORA = UNITS * 32u;
#import merge_head
#endif
#import WEIGHT as w
#import WEIGHT_TIMES as w
#ifdef ROTATE
#import rotate_rows
#endif

@compute @workgroup_size(WG)
fn main(
#import builtins
) {
#import thread_index
#fetch
  let lane = t & (LANES - 1u);
  let in_tile = t / LANES;
  let tile = (wid.x + wid.y * p.row_tiles) * TILE;
#for r AT_ONCE
  // Threads behind the last row repeat it and write nothing.
  let row$r = min(tile + in_tile + $ru * STRIDE, p.rows - 1u);
  let unit$r = row$r * UNITS;
#ifdef GROUPS
  let first$r = ((p.first_row + row$r) / ROWS_PER_GROUP) * X_UNITS;
#endif
#ifdef RESIDUAL
  let before$r = residual[p.first_row + row$r];
#endif
#ifdef NORM_OUT
  let g$r = g[p.first_row + row$r];
#endif
  var sum$r = 0.0;
#endfor
#ifdef RMS
#import rms_load
#endif
#import stage_load as x
#ifdef ROUTER
#for i ROUTER_LOADS
  let router$i = router_load(p.first_row + tile, $iu * WG + t);
#endfor
#endif
#ifdef ONE_BLOCK
  let b = lane;
#else
#import router_put
#import stage_put
#ifdef STAGED
  workgroupBarrier();
#endif
#ifdef RMS
#import rms_scale
#endif
  var b = lane;
  loop {
    if (b >= UNITS) { break; }
#endif
#for k UNROLL
#ifdef RAGGED
    let e$k = min(b + $ku * LANES, UNITS - 1u);
#else
    let e$k = b + $ku * LANES;
#endif
#for r AT_ONCE
    let w$k_$r = w_load(unit$r + e$k, p.sub);
#endfor
#endfor
#ifdef ONE_BLOCK
#import router_put
#import stage_put
#ifdef STAGED
  workgroupBarrier();
#endif
#ifdef RMS
  // While the weights are on their way.
#import rms_scale
#endif
#endif
#ifdef MERGE
    merge_head((p.first_row + min(tile, p.rows - 1u)) / ROWS_PER_GROUP, t, p.splits);
#endif
#for k UNROLL
#ifdef RAGGED
    if (b + $ku * LANES < UNITS)
#endif
    {
#ifdef GROUPS
#for r AT_ONCE
      sum$r += w_times(w$k_$r, x_unit(first$r + e$k));
#endfor
#else
#ifdef MERGE
      let v = kept_unit(e$k);
#else
#ifdef STAGED
      let v = staged_unit(e$k);
#else
      let v = x_unit(e$k);
#endif
#endif
#for r AT_ONCE
      sum$r += w_times(w$k_$r, v);
#endfor
#endif
    }
#endfor
#ifndef ONE_BLOCK
    b += UNROLL * LANES;
  }
#endif
#for r AT_ONCE
  sum$r = row_sum(sum$r);
#ifdef RMS
  sum$r *= scale;
#endif
#ifdef RESIDUAL
  sum$r += before$r;
#endif
#ifdef ROTATE
  sum$r = rotated(sum$r, p.first_row + row$r, t);
#endif
#ifdef OUT_PLAIN
  if (lane == 0u && tile + in_tile + $ru * STRIDE < p.rows) {
    y[p.first_row + row$r] = sum$r;
  }
#endif
#ifdef OUT_PREPARED
  if (lane == 0u) {
    token_rows[in_tile + $ru * STRIDE] = sum$r;
#ifdef NORM_OUT
    token_weighted[in_tile + $ru * STRIDE] = sum$r * g$r;
#endif
  }
#endif
#endfor
#ifdef OUT_PREPARED
  workgroupBarrier();
  token_store(p.first_row + tile, p.first_row + p.rows, t);
#ifdef ROUTER
  router_store(p.first_row + tile, p.first_row + p.rows, t);
#endif
#endif
}
