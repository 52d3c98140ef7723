// The end of a kernel whose output feeds another product: the workgroup's rows, gathered in token_rows, leave prepared for
// it, 16 rows per thread: as records with BYTES (shared/bytes.wgsl), else as floats. With NORM_OUT they leave multiplied by the
// weight of the norm in between, with the sum of squares of each 16 rows, so that the consumer need only divide by the root mean
// square; the thread of a row has that weight at hand before the sum is made, and puts the product into token_weighted.
#ifdef NORM_OUT
#read g: array<f32>                  // (rows)
#write squares_out: array<f32>       // (rows / 16)
#endif
#ifdef BYTES
#write prepared: array<u32>          // (rows / 32, 12)
#import quantize
#else
#write prepared: array<vec4<f32>>    // (rows / 4)
#endif

var<workgroup> token_rows: array<f32, TILE>;

fn token_rows_at(first: u32) -> vec4<f32> {
  return vec4<f32>(token_rows[first], token_rows[first + 1u], token_rows[first + 2u], token_rows[first + 3u]);
}
#ifdef NORM_OUT
var<workgroup> token_weighted: array<f32, TILE>;

fn token_weighted_at(first: u32) -> vec4<f32> {
  return vec4<f32>(token_weighted[first], token_weighted[first + 1u], token_weighted[first + 2u], token_weighted[first + 3u]);
}
#endif

// Writes rows first .. first + TILE, but none from `end` on; both are multiples of 16. t is the thread's number. Call after a
// barrier.
fn token_store(first: u32, end: u32, t: u32) {
  let row = first + t * 16u;
  if (t * 16u < TILE && row < end) {
    let n = row >> 2u;
#for i 4
    var v$i = token_rows_at(t * 16u + $iu * 4u);
#endfor
#ifdef NORM_OUT
    squares_out[row >> 4u] = dot(v0, v0) + dot(v1, v1) + (dot(v2, v2) + dot(v3, v3));
#for i 4
    v$i = token_weighted_at(t * 16u + $iu * 4u);
#endfor
#endif
#ifdef BYTES
    let half = quantize_half(v0, v1, v2, v3);
    let unit = (row >> 5u) * 12u;
    let h = (row >> 4u) & 1u;
    let at = unit + h * 4u;
    prepared[at] = half.codes.x;
    prepared[at + 1u] = half.codes.y;
    prepared[at + 2u] = half.codes.z;
    prepared[at + 3u] = half.codes.w;
    prepared[unit + 8u + h] = bitcast<u32>(half.scale);
    prepared[unit + 10u + h] = bitcast<u32>(half.scaled_sum);
#else
#for i 4
    prepared[n + $iu] = v$i;
#endfor
#endif
  }
}
