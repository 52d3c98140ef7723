// Stores values of a product's output as the next product reads them: as records with BYTES (shared/records.wgsl), as halves with HALVES
// (shared/halves.wgsl), else as floats. The kernel declares the length OUT_ROWS, all values.

// Writes rows `row` .. `row` + 4. Threads 4i .. 4i + 4 call together, for 16 rows.
#ifdef BYTES
#write prepared?: array<u32> @prepared(ceil(OUT_ROWS, 32))          // (rows / 256, 3, 8, 4)
#import records
#import quantize_quad
fn token_write(row: u32, t: u32, v: vec4<f32>) {
  let quad = quantize_quad(v);
  let first = record_place(row >> 5u);
  let half = (row >> 4u) & 1u;
  prepared[(first + half * RECORD_PLANE) * 4u + (t & 3u)] = quad.word;
  if ((t & 3u) == 0u) {
    let scales = (first + 2u * RECORD_PLANE) * 4u + half;
    prepared[scales] = bitcast<u32>(quad.scale);
    prepared[scales + 2u] = bitcast<u32>(quad.scaled_sum);
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
