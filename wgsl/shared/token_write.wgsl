// Stores values of a product's output as the next product reads them: as records with BYTES (shared/bytes.wgsl), as halves with HALVES
// (shared/halves.wgsl), else as floats. The kernel declares the length OUT_ROWS, all values.

// Writes rows `row` .. `row` + 4. Threads 4i .. 4i + 4 call together, for 16 rows.
#ifdef BYTES
#write prepared?: array<u32> @prepared(ceil(OUT_ROWS, 32))          // (rows / 32, 12)
#import quantize_quad
fn token_write(row: u32, t: u32, v: vec4<f32>) {
  let quad = quantize_quad(v);
  let unit = (row >> 5u) * 12u;
  let half = (row >> 4u) & 1u;
  prepared[unit + half * 4u + (t & 3u)] = quad.word;
  if ((t & 3u) == 0u) {
    prepared[unit + 8u + half] = bitcast<u32>(quad.scale);
    prepared[unit + 10u + half] = bitcast<u32>(quad.scaled_sum);
  }
}
#else
#ifdef HALVES
#write prepared?: array<vec2<u32>> @prepared(ceil(OUT_ROWS, 32))    // (rows / 256, 80)
#import halve_quad
fn token_write(row: u32, t: u32, v: vec4<f32>) {
  let quad = halve_quad(v);
  prepared[halves_quad_place(row >> 2u)] = quad.words;
  if ((t & 3u) == 0u) { prepared[halves_scale_place(row >> 2u)] = bitcast<vec2<u32>>(quad.scale); }
}
#else
#write prepared?: array<vec4<f32>> @prepared(ceil(OUT_ROWS, 32))    // (rows / 4)
fn token_write(row: u32, t: u32, v: vec4<f32>) { prepared[row >> 2u] = v; }
#endif
#endif
