// y = W x (+ residual) of one token whose activations its producer left as bytes (shared/q8.wgsl); the output likewise.
//
// W (groups * rows, 32 * UNITS), x (groups, X_UNITS) records, y (groups * rows). RMS divides by the root mean square of x, from
// the partial sums that came with it. Group g of W reads x from unit g * X_UNITS on (attn_k_b, attn_v_b). With X_FLOAT x is f32
// and still to be multiplied by the norm's weight: for the router, whose choices should not turn on a byte's rounding.
// OUT_FLOAT leaves y as f32, OUT_Q8 as records (shared/q8_store.wgsl).
// Division: LANES threads share a row, a workgroup owns TILE = WG / LANES rows.
// Bound by: the bytes of W; for small W by the latency of one load, so everything a thread needs is asked for at once.
struct Params {
  rows: u32,        // of this part
  first_row: u32,   // of this part among all rows
  sub: u32,         // sub-plane of the scales, in words
  row_tiles: u32,   // workgroups along x; y continues them
  eps: f32,
#ifdef ROTATE
  pos: u32,         // of the token
#endif
}
#read w_q: array<vec4<u32>>
#read w_s: array<vec4<u32>>
#ifdef X_FLOAT
#read x: array<vec4<f32>>            // (8 * UNITS)
#read x_norm: array<vec4<f32>>       // (8 * UNITS)
#else
#read x: array<vec4<u32>>            // (groups, X_UNITS, 3)
#endif
#ifdef RMS
#read squares: array<f32>            // (2 * UNITS)
#endif
#ifdef RESIDUAL
#read residual: array<f32>           // (groups * rows)
#endif
#ifdef OUT_FLOAT
#write y: array<f32>                 // (groups * rows)
#endif
#ifdef NORM_OUT
#read g: array<vec4<f32>>            // (groups * rows / 4)
#write squares_out: array<f32>       // (groups * rows / 16)
#endif
#ifdef OUT_Q8
#write q: array<u32>                 // (groups * rows / 32, 12)
#endif
#ifdef ROTATE
#read angles: array<vec2<f32>>       // (n_ctx, ROPE / 2) of (cos, sin)
// Not read: bound so that the barrier before this dispatch covers the input of the next one too, which need not wait then.
#read kv_a: array<f32>
#endif
const TILE = WG / LANES;
#import params
#import w32
#import w32_math
#import q8
#import lanes
#ifdef OUT_Q8
#import q8_store
#endif
#import WEIGHT as w
#ifdef ROTATE
#import rotate_rows
#endif

@compute @workgroup_size(WG)
fn main(
#import builtins
) {
#import thread_index
  let lane = t & (LANES - 1u);
  let tile = (wid.x + wid.y * p.row_tiles) * TILE;
  let row = min(tile + t / LANES, p.rows - 1u);
  let unit = row * UNITS;
#ifdef GROUPS
  let first = ((p.first_row + row) / ROWS_PER_GROUP) * X_UNITS;
#else
  let first = 0u;
#endif
#ifdef RESIDUAL
  let before = residual[p.first_row + row];
#endif
  var sum = 0.0;
  var b = lane;
  loop {
    if (b >= UNITS) { break; }
#for k UNROLL
    {
      let e = b + $ku * LANES;
      if (e < UNITS) {
#ifdef X_FLOAT
        let at = e * 8u;
        let n = W32(x_norm[at], x_norm[at + 1u], x_norm[at + 2u], x_norm[at + 3u], x_norm[at + 4u], x_norm[at + 5u], x_norm[at + 6u], x_norm[at + 7u]);
        sum += w32_dot(w32_mul(w_unit(unit + e, p.sub), n.v0, n.v1, n.v2, n.v3, n.v4, n.v5, n.v6, n.v7), x[at], x[at + 1u], x[at + 2u], x[at + 3u], x[at + 4u], x[at + 5u], x[at + 6u], x[at + 7u]);
#else
        let at = (first + e) * 3u;
#ifdef FLOAT
        sum += q8_float_dot(w_unit(unit + e, p.sub), x[at], x[at + 1u], bitcast<vec4<f32>>(x[at + 2u]));
#else
        sum += q8_dot(w_codes(unit + e), w_affine(unit + e, p.sub), x[at], x[at + 1u], bitcast<vec4<f32>>(x[at + 2u]));
#endif
#endif
      }
    }
#endfor
    b += UNROLL * LANES;
  }
#ifdef RMS
  var total = 0.0;
  var i = lane;
  loop {
    if (i >= UNITS * 2u) { break; }
    total += squares[i];
    i += LANES;
  }
  sum = row_sum(sum) * inverseSqrt(row_sum(total) / f32(UNITS * 32u) + p.eps);
#else
  sum = row_sum(sum);
#endif
#ifdef RESIDUAL
  sum += before;
#endif
#ifdef ROTATE
  sum = rotated(sum, p.first_row + row, t);
#endif
#ifdef OUT_FLOAT
  if (lane == 0u && tile + t / LANES < p.rows) {
    y[p.first_row + row] = sum;
  }
#endif
#ifdef OUT_Q8
  if (lane == 0u) {
    q8_rows[t / LANES] = sum;
  }
  workgroupBarrier();
  q8_store(p.first_row + tile, t);
#endif
}
