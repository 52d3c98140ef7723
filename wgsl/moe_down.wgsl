// y[t] = residual[t] + sum over slots s of weights[t][s] * D[ids[t][s]] h[t][s]: the second half of the expert block. A call adds the
// experts of one piece of D.
//
// D (experts * rows, 32 * units), h (tokens, USED, 32 * units), ids and weights (tokens, USED), residual and y (tokens, rows).
// Division: grid (tiles of WG / LANES rows, tokens). A workgroup loops over the slots of its token, so the sum needs no atomics and its order
// never changes.
// Bound by: the bytes of the chosen rows of D.
#word rows: u32          // of an expert
#word first_expert: u32  // of this piece
#word experts: u32       // in this piece
#word units: u32         // of 32 weights, per row
#word sub: u32           // sub-plane of the scales, in words
#read w_q: array<vec4<u32>> @codes(WEIGHT, p.experts * p.rows * p.units)          // (experts, rows, units) units
#read w_s: array<w_Scales> @scales(WEIGHT, p.experts * p.rows * p.units, p.sub)   // (experts, rows, units) units
#read h: array<vec4<f32>> @floats(GRID_Y * USED * p.units * 32)   // (tokens, USED, 8 * units)
#read ids: array<u32> @words(GRID_Y * USED)                       // (tokens, USED)
#read weights: array<f32> @floats(GRID_Y * USED)                  // (tokens, USED)
#read residual: array<f32> @floats(GRID_Y * p.rows)               // (tokens, rows)
#write y: array<f32> @floats(GRID_Y * p.rows)                     // (tokens, rows)
#import reduce
#import w32
#import w32_math
#import WEIGHT as w

#main
  let lane = t & (LANES - 1u);
  let row = wid.x * (WG / LANES) + t / LANES;
  let slot = wid.y * USED;
  var sum = 0.0;
  var s = 0u;
  loop {
    if (s >= USED) { break; }
    let expert = ids[slot + s] - p.first_expert;
    // An expert that precedes this piece wraps around to a large number. Slots of other pieces are not added here.
    if (expert < p.experts) {
      let unit = (expert * p.rows + min(row, p.rows - 1u)) * p.units;
      let first = (slot + s) * p.units;
      var product = 0.0;
      var b = lane;
      loop {
        if (b >= p.units) { break; }
        let at = (first + b) * 8u;
        product += w32_dot(w_unit(unit + b, p.sub), h[at], h[at + 1u], h[at + 2u], h[at + 3u], h[at + 4u], h[at + 5u], h[at + 6u], h[at + 7u]);
        b += LANES;
      }
      sum += weights[slot + s] * product;
    }
    s += 1u;
  }
  sum = lanes_sum(sum, t);
  if (lane == 0u && row < p.rows) {
    let at = wid.y * p.rows + row;
    y[at] = residual[at] + sum;
  }
}
