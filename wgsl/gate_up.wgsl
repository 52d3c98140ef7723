// h = silu(G norm(x)) * (U norm(x)), for the chosen experts of each token (`ids`) or a dense feed-forward block.
//
// x (tokens, 32 * units), G and U (experts * rows, 32 * units), h (tokens, used, h_stride), ids (tokens, used).
// Division: grid (tiles of WG / LANES rows of G and of U, slots, blocks of COLS tokens). Every workgroup repeats the norm, which costs less
// than a dispatch.
// Bound by: the bytes of the chosen rows of G and U.
#word rows: u32           // of an expert, or of this piece of a dense block
#word first_row: u32      // of this piece of a dense block
#word experts: u32        // in this piece
#word first_expert?: u32  // of this piece
#word units: u32          // of 32 weights, per row
#word g_sub: u32          // sub-planes of the scales, in words
#word u_sub: u32
#word tokens: u32
#word used: u32           // slots of a token
#word h_stride: u32       // rows of h per slot
#word eps: f32
#read g_q: array<vec4<u32>> @codes(GATE, p.experts * p.rows * p.units)            // (experts, rows, units) units
#read g_s: array<g_Scales> @scales(GATE, p.experts * p.rows * p.units, p.g_sub)   // (experts, rows, units) units
#read u_q: array<vec4<u32>> @codes(UP, p.experts * p.rows * p.units)              // (experts, rows, units) units
#read u_s: array<u_Scales> @scales(UP, p.experts * p.rows * p.units, p.u_sub)     // (experts, rows, units) units
#read x: array<vec4<f32>> @floats(p.tokens * p.units * 32)              // (tokens, 8 * units)
#read norm: array<vec4<f32>> @floats(p.units * 32)                      // (8 * units)
#write h: array<f32> @floats(((p.tokens - 1) * p.used + GRID_Y - 1) * p.h_stride + p.first_row + p.rows)   // (tokens, used, h_stride)
#read ids?: array<u32> @words((GRID_Z - 1) * COLS * p.used + GRID_Y)    // (tokens, used)
#each c COLS
#import reduce
#import w32
#import w32_math
#import GATE as g
#import UP as u

// The norm's weight for unit b.
fn weight_of(b: u32) -> W32 {
  let n = b * 8u;
  return W32(norm[n], norm[n + 1u], norm[n + 2u], norm[n + 3u], norm[n + 4u], norm[n + 5u], norm[n + 6u], norm[n + 7u]);
}

// The 32 values of x from vector `at` on, times the norm's weight.
fn weighted(weight: W32, at: u32) -> W32 {
  return w32_mul(weight, x[at], x[at + 1u], x[at + 2u], x[at + 3u], x[at + 4u], x[at + 5u], x[at + 6u], x[at + 7u]);
}

fn product(w: W32, v: W32) -> f32 { return w32_dot(w, v.v0, v.v1, v.v2, v.v3, v.v4, v.v5, v.v6, v.v7); }

#import rms_of_row

fn store(token: u32, slot: u32, row: u32, gate: f32, up: f32) {
  if (token >= p.tokens) { return; }
  // exp(-gate) is kept finite, because Metal's fast math may assume that it is.
  h[(token * p.used + slot) * p.h_stride + p.first_row + row] = gate / (1.0 + exp(min(-gate, 80.0))) * up;
}

#main
  let token = wid.z * COLS;
#ifdef ids
  let expert = ids[token * p.used + wid.y] - p.first_expert;
  // An expert that precedes this piece wraps around to a large number, and another piece has the slot. In a function naga would not see that
  // all threads return.
  if (expert >= p.experts) { return; }
#else
  let expert = 0u;
#endif
  let lane = t & (LANES - 1u);
  let row = wid.x * (WG / LANES) + t / LANES;
  let x$c = min(token + $cu, p.tokens - 1u) * p.units * 8u;
  var gate$c = 0.0;
  var up$c = 0.0;
  let unit = (expert * p.rows + min(row, p.rows - 1u)) * p.units;
  var b = lane;
  loop {
    if (b >= p.units) { break; }
    let weight = weight_of(b);
    let g = g_unit(unit + b, p.g_sub);
    let u = u_unit(unit + b, p.u_sub);
    let v$c = weighted(weight, x$c + b * 8u); gate$c += product(g, v$c); up$c += product(u, v$c);
    b += LANES;
  }
  let scale$c = rms_scale(x$c, t, subgroup, subgroups, lane_id);
  gate$c = lanes_sum(gate$c, t) * scale$c;
  up$c = lanes_sum(up$c, t) * scale$c;
  if (lane == 0u && row < p.rows) {
    store(token + $cu, wid.y, row, gate$c, up$c);
  }
}
