// y = W x (+ residual) of one token whose activations its producer left as bytes (shared/bytes.wgsl); the output likewise.
//
// W (groups * rows, 32 * UNITS), x (groups, X_UNITS) records, y (groups * rows). RMS divides by the root mean square of x, from
// the partial sums that came with it. Group g of W reads x from unit g * X_UNITS on (attn_k_b, attn_v_b). With X_FLOAT x is f32
// and still to be multiplied by the norm's weight: for the router, whose choices should not turn on a byte's rounding. With
// MERGE (attn_v_b) the workgroup joins the attention's slices of its head itself, while its weights are on their way.
// OUT_PLAIN leaves y as f32, OUT_PREPARED as records (shared/token_store.wgsl).
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
#read w_s: array<vec4<u32>>
#ifdef MERGE
#read parts: array<vec4<f32>>        // (groups, splits, 8 * UNITS)
#read stats: array<vec2<f32>>        // (groups, splits) of (max, sum)
#else
#ifdef X_FLOAT
#read x: array<vec4<f32>>            // (8 * UNITS)
#read x_norm: array<vec4<f32>>       // (8 * UNITS)
#else
#read x: array<vec4<u32>>            // (groups, X_UNITS, 3)
#endif
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
#ifdef NORM_OUT
#read g: array<vec4<f32>>            // (groups * rows / 4)
#write squares_out: array<f32>       // (groups * rows / 16)
#endif
#ifdef OUT_PREPARED
#write q: array<u32>                 // (groups * rows / 32, 12)
#endif
#ifdef ROTATE
#read angles: array<vec2<f32>>       // (n_ctx, ROPE / 2) of (cos, sin)
// Not read: bound so that the barrier before this dispatch covers the input of the next one too, which need not wait then.
#read kv_a: array<f32>
#endif
const STRIDE = WG / LANES;           // rows of the workgroup that have threads of their own
const TILE = STRIDE * AT_ONCE;
#import params
#import w32
#import w32_math
#import bytes
#import lanes
#ifdef OUT_PREPARED
#import token_store
#endif
#ifdef MERGE
const KV_LORA = UNITS * 32u;
#import merge_head
#endif
#import WEIGHT as w
#ifdef FLOAT
#import floats_by_bytes as w
#else
#import codes_by_bytes as w
#endif
#ifdef ROTATE
#import rotate_rows
#endif

@compute @workgroup_size(WG)
fn main(
#import builtins
) {
#import thread_index
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
  var sum$r = 0.0;
#endfor
#ifdef RMS
#import rms_load
#endif
#ifdef ONE_BLOCK
  let b = lane;
#else
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
      let at$r = (first$r + e$k) * 3u;
      sum$r += w_times(w$k_$r, x[at$r], x[at$r + 1u], bitcast<vec4<f32>>(x[at$r + 2u]));
#endfor
#else
#ifdef X_FLOAT
      let at = e$k * 8u;
      let n0 = x_norm[at];
      let n1 = x_norm[at + 1u];
      let n2 = x_norm[at + 2u];
      let n3 = x_norm[at + 3u];
      let n4 = x_norm[at + 4u];
      let n5 = x_norm[at + 5u];
      let n6 = x_norm[at + 6u];
      let n7 = x_norm[at + 7u];
#for r AT_ONCE
      sum$r += w32_dot(w32_mul(w$k_$r, n0, n1, n2, n3, n4, n5, n6, n7), x[at], x[at + 1u], x[at + 2u], x[at + 3u], x[at + 4u], x[at + 5u], x[at + 6u], x[at + 7u]);
#endfor
#else
#ifdef MERGE
      let at = e$k * 2u;
      let lo = latent_codes[at];
      let hi = latent_codes[at + 1u];
      let scales = vec4<f32>(latent_scales[at], latent_scales[at + 1u], latent_sums[at], latent_sums[at + 1u]);
#else
      let at = e$k * 3u;
      let lo = x[at];
      let hi = x[at + 1u];
      let scales = bitcast<vec4<f32>>(x[at + 2u]);
#endif
#for r AT_ONCE
      sum$r += w_times(w$k_$r, lo, hi, scales);
#endfor
#endif
#endif
    }
#endfor
#ifndef ONE_BLOCK
    b += UNROLL * LANES;
  }
#endif
#ifdef RMS
#import rms_scale
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
  if (lane == 0u) { token_rows[in_tile + $ru * STRIDE] = sum$r; }
#endif
#endfor
#ifdef OUT_PREPARED
  workgroupBarrier();
  token_store(p.first_row + tile, p.first_row + p.rows, t);
#endif
}
