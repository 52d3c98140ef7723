// The queries of one token: q = W x / rms(x), of which a head's first NOPE values leave absorbed, q_lat = K q_nope, and its last
// ROPE ones rotated. x comes prepared (shared/token_store.wgsl).
//
// W (heads * (NOPE + ROPE), 32 * UNITS), K (heads, KV_LORA, NOPE), q_lat (heads, KV_LORA), q_pe (heads, ROPE).
// Division: grid (SLICES + 1, heads). Each of the first SLICES workgroups of a head makes all of its q_nope, keeps it as the input of
// its share of K's rows, and multiplies: to read W that often from the second-level cache costs less than a dispatch that waits.
// The last one rotates. LANES threads share PASSES rows of W, then K_LANES threads K_PASSES rows of K. With CACHE the grid has
// a further row, whose first workgroup writes the cache's new row (shared/cache_row.wgsl).
// Bound by: latency; the bytes of W and K once from memory.
struct Params {
  sub: u32,         // sub-planes of the scales, in words
  k_sub: u32,
#ifdef RMS
  eps: f32,
#endif
  pos: u32,         // of the token
#ifdef CACHE
  cache_eps: f32,
#endif
}
#read w_q: array<vec4<u32>>
#read w_s: array<w_Scales>
#read k_q: array<vec4<u32>>
#read k_s: array<k_Scales>
#import INPUT as x
#ifdef RMS
#read squares: array<f32>            // (2 * UNITS)
#endif
#read angles: array<vec2<f32>>       // (n_ctx, ROPE / 2) of (cos, sin)
#write q_lat: array<f32>             // (heads, KV_LORA)
#write q_pe: array<f32>              // (heads, ROPE)
const STRIDE = WG / LANES;           // rows of W at once
const K_STRIDE = WG / K_LANES;       // rows of K at once
const K_UNITS = NOPE / 32u;
const KEPT = NOPE;
#import params
#import w32
#import lanes
#import kept_units
#import WEIGHT as w
#import WEIGHT_TIMES as w
#import K_WEIGHT as k
#import K_TIMES as k
#ifdef CACHE
#import cache_row
#endif

#ifdef RMS
var<workgroup> token_scale: f32;
#endif
// (row of the workgroup), still to be multiplied by token_scale
var<workgroup> rows: array<f32, MOST_ROWS>;

@compute @workgroup_size(WG)
fn main(
#import builtins
) {
#import thread_index
#fetch
#ifdef CACHE
  if (wid.y == HEADS) {
    if (wid.x == 0u) { cache_row(0u, p.pos, p.cache_eps, t, subgroup, subgroups, lane_id); }
    return;
  }
#endif
  let head = wid.y;
  let absorbs = wid.x < SLICES;
  let lane = t & (LANES - 1u);
  let in_tile = t / LANES;
  let first = head * (NOPE + ROPE) + select(NOPE, 0u, absorbs);
  let count = select(ROPE, NOPE, absorbs);
#for r PASSES
  // Threads behind the last row repeat it.
  let row$r = min(in_tile + $ru * STRIDE, count - 1u);
  let unit$r = (first + row$r) * UNITS;
  var sum$r = 0.0;
#endfor
#ifdef RMS
#import rms_by_subgroup
#endif
  let k_lane = t & (K_LANES - 1u);
#for j K_PASSES
  let k_row$j = min(wid.x * K_ROWS + t / K_LANES + $ju * K_STRIDE, KV_LORA - 1u);
#for i K_UNROLL
  let k$j_$i = k_load((head * KV_LORA + k_row$j) * K_UNITS + min(k_lane + $iu * K_LANES, K_UNITS - 1u), p.k_sub);
#endfor
#endfor
#ifdef ONE_BLOCK
  let b = lane;
  {
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
#for r PASSES
    let w$k_$r = w_load(unit$r + e$k, p.sub);
#endfor
#endfor
#for k UNROLL
#ifdef RAGGED
    if (b + $ku * LANES < UNITS)
#endif
    {
      let v = x_unit(e$k);
#for r PASSES
      sum$r += w_times(w$k_$r, v);
#endfor
    }
#endfor
#ifndef ONE_BLOCK
    b += UNROLL * LANES;
#endif
  }
#for r PASSES
  sum$r = row_sum(sum$r);
  if (lane == 0u && in_tile + $ru * STRIDE < count) { rows[row$r] = sum$r; }
#endfor
  workgroupBarrier();
#ifdef RMS
  scale = token_scale;
#else
  let scale = 1.0;
#endif
  if (absorbs) {
    if (t < NOPE / 4u) {
      keep(t, vec4<f32>(rows[4u * t], rows[4u * t + 1u], rows[4u * t + 2u], rows[4u * t + 3u]) * scale);
    }
    workgroupBarrier();
#for j K_PASSES
    var k_sum$j = 0.0;
#endfor
#for i K_UNROLL
    if (k_lane + $iu * K_LANES < K_UNITS) {
      let v = kept_unit(k_lane + $iu * K_LANES);
#for j K_PASSES
      k_sum$j += k_times(k$j_$i, v);
#endfor
    }
#endfor
#for j K_PASSES
    {
      if (K_LANES > 4u) { k_sum$j += subgroupShuffleXor(k_sum$j, 4u); }
      if (K_LANES > 2u) { k_sum$j += subgroupShuffleXor(k_sum$j, 2u); }
      if (K_LANES > 1u) { k_sum$j += subgroupShuffleXor(k_sum$j, 1u); }
      let in_slice = t / K_LANES + $ju * K_STRIDE;
      if (k_lane == 0u && in_slice < K_ROWS && wid.x * K_ROWS + in_slice < KV_LORA) {
        q_lat[head * KV_LORA + k_row$j] = k_sum$j;
      }
    }
#endfor
  } else if (t < ROPE) {
    // Pairs (2i, 2i+1).
    let angle = angles[p.pos * (ROPE / 2u) + (t >> 1u)];
    let other = select(-rows[t ^ 1u], rows[t ^ 1u], (t & 1u) == 1u);
    q_pe[head * ROPE + t] = scale * (rows[t] * angle.x + other * angle.y);
  }
}
