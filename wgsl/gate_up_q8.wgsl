// h = silu(G x) * (U x) of one token, for the experts it chose and the shared expert in one grid; a dense block is the
// shared expert alone. x comes as bytes (shared/q8.wgsl) with its partial sums of squares, h leaves as bytes.
//
// G, U (experts * ROWS, 32 * UNITS), of the shared expert (SHARED_ROWS, 32 * UNITS); h (USED * ROWS + SHARED_ROWS) values:
// the chosen experts' one after another, then the shared one's.
// Division: LANES threads share a row of G and the same row of U; a workgroup owns TILE = WG / LANES rows of one expert.
// Bound by: the bytes of the chosen rows.
struct Params {
  first_expert: u32,  // of this part
  experts: u32,       // in this part
  g_sub: u32,         // sub-planes of the scales, in words
  u_sub: u32,
  shared_g_sub: u32,
  shared_u_sub: u32,
  eps: f32,
}
#ifdef EXPERTS
#read g_q: array<vec4<u32>>
#read g_s: array<vec4<u32>>
#read u_q: array<vec4<u32>>
#read u_s: array<vec4<u32>>
#read ids: array<u32>                // (USED)
#endif
#ifdef SHARED
#read sg_q: array<vec4<u32>>
#read sg_s: array<vec4<u32>>
#read su_q: array<vec4<u32>>
#read su_s: array<vec4<u32>>
#endif
#read x: array<vec4<u32>>            // (UNITS, 3)
#read squares: array<f32>            // (2 * UNITS)
#write q: array<u32>                 // ((USED * ROWS + SHARED_ROWS) / 32, 12)
const TILE = WG / LANES;
#ifdef EXPERTS
const EXPERT_TILES = USED * (ROWS / TILE);
#else
const EXPERT_TILES = 0u;
#endif
#import params
#import w32
#import w32_math
#import q8
#import lanes
#import q8_store
#ifdef EXPERTS
#import GATE as g
#import UP as u
#endif
#ifdef SHARED
#import SHARED_GATE as sg
#import SHARED_UP as su
#endif

@compute @workgroup_size(WG)
fn main(
#import builtins
) {
#import thread_index
  let lane = t & (LANES - 1u);
  let in_tile = t / LANES;
  var gate = 0.0;
  var up = 0.0;
  let tile = wid.x * TILE;
#ifdef EXPERTS
  if (wid.x < EXPERT_TILES) {
    let slot = wid.x / (ROWS / TILE);
    let expert = ids[slot] - p.first_expert;
    // Another part holds this slot's expert; one before this part wraps around.
    if (expert >= p.experts) {
      return;
    }
    let unit = (expert * ROWS + tile - slot * ROWS + in_tile) * UNITS;
    var b = lane;
    loop {
      if (b >= UNITS) { break; }
#for k UNROLL
      {
        let e = b + $ku * LANES;
        if (e < UNITS) {
          let scales = bitcast<vec4<f32>>(x[e * 3u + 2u]);
#ifdef GATE_FLOAT
          gate += q8_float_dot(g_unit(unit + e, p.g_sub), x[e * 3u], x[e * 3u + 1u], scales);
#else
          gate += q8_dot(g_codes(unit + e), g_affine(unit + e, p.g_sub), x[e * 3u], x[e * 3u + 1u], scales);
#endif
#ifdef UP_FLOAT
          up += q8_float_dot(u_unit(unit + e, p.u_sub), x[e * 3u], x[e * 3u + 1u], scales);
#else
          up += q8_dot(u_codes(unit + e), u_affine(unit + e, p.u_sub), x[e * 3u], x[e * 3u + 1u], scales);
#endif
        }
      }
#endfor
      b += UNROLL * LANES;
    }
  }
#endif
#ifdef SHARED
  if (wid.x >= EXPERT_TILES) {
    let unit = ((wid.x - EXPERT_TILES) * TILE + in_tile) * UNITS;
    var b = lane;
    loop {
      if (b >= UNITS) { break; }
#for k UNROLL
      {
        let e = b + $ku * LANES;
        if (e < UNITS) {
          let scales = bitcast<vec4<f32>>(x[e * 3u + 2u]);
#ifdef SHARED_GATE_FLOAT
          gate += q8_float_dot(sg_unit(unit + e, p.shared_g_sub), x[e * 3u], x[e * 3u + 1u], scales);
#else
          gate += q8_dot(sg_codes(unit + e), sg_affine(unit + e, p.shared_g_sub), x[e * 3u], x[e * 3u + 1u], scales);
#endif
#ifdef SHARED_UP_FLOAT
          up += q8_float_dot(su_unit(unit + e, p.shared_u_sub), x[e * 3u], x[e * 3u + 1u], scales);
#else
          up += q8_dot(su_codes(unit + e), su_affine(unit + e, p.shared_u_sub), x[e * 3u], x[e * 3u + 1u], scales);
#endif
        }
      }
#endfor
      b += UNROLL * LANES;
    }
  }
#endif
  var total = 0.0;
  var i = lane;
  loop {
    if (i >= UNITS * 2u) { break; }
    total += squares[i];
    i += LANES;
  }
  let scale = inverseSqrt(row_sum(total) / f32(UNITS * 32u) + p.eps);
  gate = row_sum(gate) * scale;
  up = row_sum(up) * scale;
  if (lane == 0u) {
    // exp(-gate) overflows to infinity below -88: kept finite, since Metal's fast math may assume it is.
    q8_rows[in_tile] = gate / (1.0 + exp(min(-gate, 80.0))) * up;
  }
  workgroupBarrier();
  q8_store(tile, t);
}
