// y = the row of the token embedding that the history names for each token (shared/history.wgsl), as f32, and prepared for the first layer's
// products (shared/token_store.wgsl): multiplied by the norm's weight g, with sums of squares. A call for a piece of W that does not hold
// the row writes nothing.
//
// W (vocabulary, 32 * UNITS), y (tokens, 32 * UNITS).
// Division: a thread per unit of a token's row. The grid has the tokens along y.
// Bound by: launching it.
#number UNITS  // units of a row
#word rows: u32       // of this piece
#word first_row: u32  // of this piece in the vocabulary
#word sub: u32        // sub-plane of the scales, in words
#import history
#read w_q: array<vec4<u32>> @codes(WEIGHT, p.rows * UNITS)          // (rows, UNITS) units
#read w_s: array<w_Scales> @scales(WEIGHT, p.rows * UNITS, p.sub)   // (rows, UNITS) units
#read history: array<u32> @words(IDS)                    // ids by position
#read g: array<vec4<f32>> @floats(UNITS * 32)            // (8 * UNITS), the norm's weight
#write y: array<vec4<f32>> @floats(GRID_Y * UNITS * 32)  // (tokens, 8 * UNITS)
#write squares_out: array<f32> @floats(GRID_Y * UNITS * 2)   // (tokens, 2 * UNITS), each of 16 values
#each i 8
#import w32
#import w32_math
#import WEIGHT as w

// Writes unit u, which is multiplied by the norm's weight already, in the prepared format.
#ifdef BYTES
#write prepared: array<vec4<u32>> @prepared(GRID_Y * UNITS)       // (tokens, UNITS, 3)
#import quantize
fn write(u: u32, v: W32) {
  let a = quantize_half(v.v0, v.v1, v.v2, v.v3);
  let b = quantize_half(v.v4, v.v5, v.v6, v.v7);
  prepared[u * 3u] = a.codes;
  prepared[u * 3u + 1u] = b.codes;
  prepared[u * 3u + 2u] = bitcast<vec4<u32>>(vec4<f32>(a.scale, b.scale, a.scaled_sum, b.scaled_sum));
}
#else
#ifdef HALVES
#write prepared: array<vec4<u32>> @prepared(GRID_Y * UNITS)       // (tokens * UNITS / 8, 5, 8)
#import halve_unit
fn write(u: u32, v: W32) {
  let own = halve_unit(v.v0, v.v1, v.v2, v.v3, v.v4, v.v5, v.v6, v.v7);
  let to = halves_place(u);
  prepared[to] = own.a;
  prepared[to + HALVES_PLANE] = own.b;
  prepared[to + 2u * HALVES_PLANE] = own.c;
  prepared[to + 3u * HALVES_PLANE] = own.d;
  prepared[to + HALVES_SCALES] = bitcast<vec4<u32>>(own.scales);
}
#else
#write prepared: array<vec4<f32>> @prepared(GRID_Y * UNITS)       // (tokens, UNITS, 8)
fn write(u: u32, v: W32) {
  prepared[u * 8u + $iu] = v.v$i;
}
#endif
#endif

fn sum_of_squares(a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>) -> f32 {
  return dot(a, a) + dot(b, b) + (dot(c, c) + dot(d, d));
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let row = history[id_place(id.y)] - p.first_row;
  let u = id.x;
  // A row that precedes this piece wraps around to a large number.
  if (u >= UNITS || row >= p.rows) {
    return;
  }
  let w = w_unit(row * UNITS + u, p.sub);
  let own = id.y * UNITS + u;
  let at = u * 8u;
  y[own * 8u + $iu] = w.v$i;
  squares_out[own * 2u] = sum_of_squares(w.v0, w.v1, w.v2, w.v3);
  squares_out[own * 2u + 1u] = sum_of_squares(w.v4, w.v5, w.v6, w.v7);
  write(own, w32_mul(w, g[at], g[at + 1u], g[at + 2u], g[at + 3u], g[at + 4u], g[at + 5u], g[at + 6u], g[at + 7u]));
}
