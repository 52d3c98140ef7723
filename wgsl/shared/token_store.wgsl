// The end of a kernel whose output feeds another product: the workgroup's rows, gathered in token_rows, leave as records,
// 16 rows per thread. NORM_OUT multiplies by the weight of the norm in between and leaves the sum of squares of each 16
// rows, so that the consumer need only divide by the root mean square. The kernel declares `q`, and with NORM_OUT `g` and
// `squares_out`.
#import quantize

var<workgroup> token_rows: array<f32, TILE>;

fn token_rows_at(first: u32) -> vec4<f32> {
  return vec4<f32>(token_rows[first], token_rows[first + 1u], token_rows[first + 2u], token_rows[first + 3u]);
}

// Writes the records of rows first .. first + TILE, but none from `end` on; both are multiples of 16. t is the thread's
// number. Call after a barrier.
fn token_store(first: u32, end: u32, t: u32) {
  let row = first + t * 16u;
  if (t * 16u < TILE && row < end) {
    var a = token_rows_at(t * 16u);
    var b = token_rows_at(t * 16u + 4u);
    var c = token_rows_at(t * 16u + 8u);
    var d = token_rows_at(t * 16u + 12u);
#ifdef NORM_OUT
    squares_out[row >> 4u] = dot(a, a) + dot(b, b) + (dot(c, c) + dot(d, d));
    let n = row >> 2u;
    a *= g[n];
    b *= g[n + 1u];
    c *= g[n + 2u];
    d *= g[n + 3u];
#endif
    let half = quantize_half(a, b, c, d);
    let unit = (row >> 5u) * 12u;
    let h = (row >> 4u) & 1u;
    let at = unit + h * 4u;
    q[at] = half.codes.x;
    q[at + 1u] = half.codes.y;
    q[at + 2u] = half.codes.z;
    q[at + 3u] = half.codes.w;
    q[unit + 8u + h] = bitcast<u32>(half.scale);
    q[unit + 10u + h] = bitcast<u32>(half.scaled_sum);
  }
}
