// x' = x + sum over slots s of weights[s] * D[ids[s]] h[s] + S h_shared, of one token: the end of a layer with experts. h
// comes as bytes (shared/q8.wgsl); x' leaves as f32 and as bytes for the next layer's first products.
//
// D (experts * ROWS, 32 * UNITS), S (ROWS, 32 * SHARED_UNITS), h (USED * UNITS + SHARED_UNITS) records, x and x' (ROWS).
// Division: LANES threads share an output row and walk the units of all its experts, so the sum needs no atomics; a
// workgroup owns TILE = WG / LANES rows. Bound by: the bytes of the chosen rows.
struct Params {
  first_expert: u32,  // of this part
  experts: u32,       // in this part
  sub: u32,           // sub-planes of the scales, in words
  shared_sub: u32,
}
#read w_q: array<vec4<u32>>
#read w_s: array<vec4<u32>>
#ifdef SHARED
#read s_q: array<vec4<u32>>
#read s_s: array<vec4<u32>>
#endif
#read h: array<vec4<u32>>            // (USED * UNITS + SHARED_UNITS, 3)
#read ids: array<u32>                // (USED)
#read weights: array<f32>            // (USED)
#read residual: array<f32>           // (ROWS)
#write y: array<f32>                 // (ROWS)
#ifdef OUT_Q8
#read g: array<vec4<f32>>            // (ROWS / 4)
#write squares_out: array<f32>       // (ROWS / 16)
#write q: array<u32>                 // (ROWS / 32, 12)
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
#ifdef SHARED
#import SHARED_WEIGHT as s
#endif

@compute @workgroup_size(WG)
fn main(
#import builtins
) {
#import thread_index
  let lane = t & (LANES - 1u);
  let tile = wid.x * TILE;
  let row = tile + t / LANES;
  let before = residual[row];
  var sum = 0.0;
  var b = lane;
  loop {
    if (b >= USED * UNITS) { break; }
#for k UNROLL
    {
      let e = b + $ku * LANES;
      if (e < USED * UNITS) {
        let slot = e / UNITS;
        let expert = ids[slot] - p.first_expert;
        // Another part adds this slot; an expert before this part wraps around.
        if (expert < p.experts) {
          let unit = (expert * ROWS + row) * UNITS + (e - slot * UNITS);
          let scales = bitcast<vec4<f32>>(h[e * 3u + 2u]);
#ifdef FLOAT
          sum += weights[slot] * q8_float_dot(w_unit(unit, p.sub), h[e * 3u], h[e * 3u + 1u], scales);
#else
          sum += weights[slot] * q8_dot(w_codes(unit), w_affine(unit, p.sub), h[e * 3u], h[e * 3u + 1u], scales);
#endif
        }
      }
    }
#endfor
    b += UNROLL * LANES;
  }
#ifdef SHARED
  b = lane;
  loop {
    if (b >= SHARED_UNITS) { break; }
    let unit = row * SHARED_UNITS + b;
    let at = (USED * UNITS + b) * 3u;
#ifdef SHARED_FLOAT
    sum += q8_float_dot(s_unit(unit, p.shared_sub), h[at], h[at + 1u], bitcast<vec4<f32>>(h[at + 2u]));
#else
    sum += q8_dot(s_codes(unit), s_affine(unit, p.shared_sub), h[at], h[at + 1u], bitcast<vec4<f32>>(h[at + 2u]));
#endif
    b += LANES;
  }
#endif
  sum = row_sum(sum) + before;
  if (lane == 0u) {
    y[row] = sum;
#ifdef OUT_Q8
    q8_rows[t / LANES] = sum;
#endif
  }
#ifdef OUT_Q8
  workgroupBarrier();
  q8_store(tile, t);
#endif
}
