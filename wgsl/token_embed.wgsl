// x = row history[pos] of the token embedding, as f32, and prepared for the first layer's products (shared/token_store.wgsl).
//
// W (vocabulary, 32 * UNITS), x (32 * UNITS). Division: a thread per unit of 32 weights. Bound by: launching it.
// A part of W writes only where it holds the row.
#word rows: u32       // of this part
#word first_row: u32  // of this part in the vocabulary
#word sub: u32        // sub-plane of the scales, in words
#word pos: u32
#read w_q: array<vec4<u32>> @codes(WEIGHT, p.rows * UNITS)
#read w_s: array<w_Scales> @scales(WEIGHT, p.rows * UNITS, p.sub)
#read history: array<u32> @words(CONTEXT)                // ids by position
#read g: array<vec4<f32>> @floats(UNITS * 32)            // (8 * UNITS)
#write y: array<vec4<f32>> @floats(UNITS * 32)           // (8 * UNITS)
#write squares_out: array<f32> @floats(UNITS * 2)        // (2 * UNITS)
#ifdef BYTES
#write prepared: array<vec4<u32>> @prepared(UNITS)       // (UNITS, 3)
#import quantize
#else
#ifdef HALVES
#write prepared: array<vec4<u32>> @prepared(UNITS)       // (UNITS / 8, 5, 8)
#import halve_unit
#else
#write prepared: array<vec4<f32>> @prepared(UNITS)       // (UNITS, 8)
#endif
#endif
#import w32
#import WEIGHT as w

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let row = history[p.pos] - p.first_row;
  let u = id.x;
  // A row before the part wraps around to a large number.
  if (u >= UNITS || row >= p.rows) {
    return;
  }
  let w = w_unit(row * UNITS + u, p.sub);
  let at = u * 8u;
#for i 8
  y[at + $iu] = w.v$i;
#endfor
  squares_out[u * 2u] = dot(w.v0, w.v0) + dot(w.v1, w.v1) + (dot(w.v2, w.v2) + dot(w.v3, w.v3));
  squares_out[u * 2u + 1u] = dot(w.v4, w.v4) + dot(w.v5, w.v5) + (dot(w.v6, w.v6) + dot(w.v7, w.v7));
#ifdef BYTES
  let a = quantize_half(w.v0 * g[at], w.v1 * g[at + 1u], w.v2 * g[at + 2u], w.v3 * g[at + 3u]);
  let b = quantize_half(w.v4 * g[at + 4u], w.v5 * g[at + 5u], w.v6 * g[at + 6u], w.v7 * g[at + 7u]);
  prepared[u * 3u] = a.codes;
  prepared[u * 3u + 1u] = b.codes;
  prepared[u * 3u + 2u] = bitcast<vec4<u32>>(vec4<f32>(a.scale, b.scale, a.scaled_sum, b.scaled_sum));
#else
#ifdef HALVES
  let own = halve_unit(w.v0 * g[at], w.v1 * g[at + 1u], w.v2 * g[at + 2u], w.v3 * g[at + 3u], w.v4 * g[at + 4u], w.v5 * g[at + 5u], w.v6 * g[at + 6u], w.v7 * g[at + 7u]);
  let to = halves_place(u);
  prepared[to] = own.a;
  prepared[to + HALVES_PLANE] = own.b;
  prepared[to + 2u * HALVES_PLANE] = own.c;
  prepared[to + 3u * HALVES_PLANE] = own.d;
  prepared[to + HALVES_SCALES] = bitcast<vec4<u32>>(own.scales);
#else
#for i 8
  prepared[at + $iu] = w.v$i * g[at + $iu];
#endfor
#endif
#endif
}
