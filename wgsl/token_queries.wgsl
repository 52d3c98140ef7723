// The queries of one token, absorbed and rotated, and the new row of the KV cache (shared/cache_row.wgsl). They share one grid for devices
// with serial passes, where several dispatches would wait for each other. For each head q_lat = K q_nope. In q_pe each pair (2i, 2i+1) is
// rotated by the angle of (position, i).
//
// K (HEADS, KV_LORA, NOPE = 32 * UNITS), q (HEADS, NOPE + ROPE), and the same prepared as x (shared/token_store.wgsl), q_lat (HEADS,
// KV_LORA), q_pe (HEADS, ROPE). q and q_pe are seen as pairs of floats.
// Division: the first K_TILES workgroups own TILE = WG / LANES rows of K each, with LANES threads per row. The next one writes the cache
// row. In the others a thread rotates a pair.
// Bound by: the bytes of K.
#number HEADS KV_LORA ROPE WG  // query heads, width of a latent, rotated values of a head, threads of a workgroup
#number LANES UNITS  // threads that share rows, units of a row
#word sub: u32         // sub-plane of the scales, in words
#import sequences
#word cache_eps: f32   // of the norm of the cache row
#read w_q: array<vec4<u32>> @codes(WEIGHT, HEADS * KV_LORA * UNITS)   // (HEADS, KV_LORA, UNITS) units
#read w_s: array<w_Scales> @scales(WEIGHT, HEADS * KV_LORA * UNITS)   // (HEADS, KV_LORA, UNITS) units
#read q: array<vec2<f32>> @floats(HEADS * (UNITS * 32 + ROPE))       // (HEADS, (NOPE + ROPE) / 2)
#read angles: array<vec2<f32>> @floats(CONTEXT * ROPE)               // (n_ctx, ROPE / 2) of (cos, sin)
#write q_lat: array<f32> @floats(HEADS * KV_LORA)                    // (HEADS, KV_LORA)
#write q_pe: array<vec2<f32>> @floats(HEADS * ROPE)                  // (HEADS, ROPE / 2)
#length INPUT_UNITS HEADS * (UNITS + ROPE / 32)
const NOPE = 32u * UNITS;
const TILE = WG / LANES;
const K_ROWS = HEADS * KV_LORA;
const K_TILES = (K_ROWS + TILE - 1u) / TILE;
// Units from one head's input to the next.
const X_UNITS = (NOPE + ROPE) / 32u;
#import w32
#import lanes
#import units
#import INPUT as x
#import WEIGHT as w
#import WEIGHT_TIMES as w
#import row_walk as w
#import cache_row

#main
#fetch
  if (wid.x < K_TILES) {
    let lane = t & (LANES - 1u);
    let row = wid.x * TILE + t / LANES;
    // Threads behind the last row repeat it and write nothing.
    let at = min(row, K_ROWS - 1u);
    let sum = row_sum(w_walk(at * UNITS, at / KV_LORA * X_UNITS, lane, p.sub));
    if (lane == 0u && row < K_ROWS) { q_lat[row] = sum; }
  } else if (wid.x == K_TILES) {
    cache_row(0u, position(0u), cache_row_at(first_page(0u), position(0u)), p.cache_eps, t, subgroup, subgroups, lane_id);
  } else {
    let pair = (wid.x - K_TILES - 1u) * WG + t;
    if (pair < HEADS * (ROPE / 2u)) {
      let head = pair / (ROPE / 2u);
      let i = pair - head * (ROPE / 2u);
      q_pe[pair] = rotate(q[head * ((NOPE + ROPE) / 2u) + NOPE / 2u + i], angles[position(0u) * (ROPE / 2u) + i]);
    }
  }
}
