// The logits of a token's experts: y = W x / rms(x), weights and input in f32, so that no rounding turns a choice.
//
// W (rows, 4 * COLUMNS), x (4 * COLUMNS), squares (COLUMNS / 4), y (rows). With NORM_IN x is still to be multiplied by the norm's
// weight. With THROUGH the stream is x + O v, which attn_output makes at the same time: y = W (norm x) + T v with T = W norm O
// (--precompose ro), and whoever reads y divides by the root mean square; T (rows, 4 * THROUGH_COLUMNS), v as many prepared values.
// Division: a workgroup per row, neighbouring threads on neighbouring columns. Bound by: the latency of one load, since
// there are few rows; so every thread asks for all it needs at once.
struct Params {
  first_row: u32,   // of this part among all rows
#ifndef THROUGH
  eps: f32,
#endif
}
#read w: array<vec4<f32>>            // (rows, COLUMNS)
#read x: array<vec4<f32>>            // (COLUMNS)
#ifdef NORM_IN
#read norm: array<vec4<f32>>         // (COLUMNS)
#endif
#ifdef THROUGH
#read through: array<vec4<f32>>      // (rows, THROUGH_COLUMNS)
#ifdef BYTES
#read v: array<u32>                  // (THROUGH_COLUMNS / 8, 12), shared/bytes.wgsl
#else
#ifdef HALVES
#read v: array<vec2<u32>>            // (THROUGH_COLUMNS / 64, 80), shared/halves.wgsl
#import halve_quad
#else
#read v: array<vec4<f32>>            // (THROUGH_COLUMNS)
#endif
#endif
#else
#read squares: array<f32>            // (COLUMNS / 4): of 16 values of x
#endif
#write y: array<f32>
#import params

var<workgroup> sums: array<vec2<f32>, 64>;   // (subgroup)

@compute @workgroup_size(WG)
fn main(
#import builtins
) {
#import thread_index
#fetch
  let row = wid.x * COLUMNS;
#for i LOADS
  let at$i = min($iu * WG + t, COLUMNS - 1u);
  let w$i = w[row + at$i];
#ifdef NORM_IN
  let x$i = x[at$i] * norm[at$i];
#else
  let x$i = x[at$i];
#endif
#endfor
#ifdef THROUGH
  let through_row = wid.x * THROUGH_COLUMNS;
#for i THROUGH_LOADS
  let c$i = min($iu * WG + t, THROUGH_COLUMNS - 1u);
  let t$i = through[through_row + c$i];
#ifdef BYTES
  let codes$i = v[(c$i >> 3u) * 12u + (c$i & 7u)];
  let scale$i = bitcast<f32>(v[(c$i >> 3u) * 12u + 8u + ((c$i >> 2u) & 1u)]);
#else
#ifdef HALVES
  let words$i = v[halves_quad_place(c$i)];
  let scale$i = bitcast<f32>(v[halves_scale_place(c$i)].x);
#else
  let v$i = v[c$i];
#endif
#endif
#endfor
#else
#for i SQUARES
  let square$i = squares[min($iu * WG + t, COLUMNS / 4u - 1u)];
#endfor
#endif
  var sum = vec2<f32>(0.0);
#for i LOADS
  sum.x += select(0.0, dot(w$i, x$i), $iu * WG + t < COLUMNS);
#endfor
#ifdef THROUGH
#for i THROUGH_LOADS
#ifdef BYTES
  let v$i = scale$i * vec4<f32>(unpack4xI8(codes$i));
#endif
#ifdef HALVES
  let even$i = unpack2x16float(words$i.x);
  let odd$i = unpack2x16float(words$i.y);
  let v$i = scale$i * vec4<f32>(even$i.x, odd$i.x, even$i.y, odd$i.y);
#endif
  sum.x += select(0.0, dot(t$i, v$i), $iu * WG + t < THROUGH_COLUMNS);
#endfor
#else
#for i SQUARES
  sum.y += select(0.0, square$i, $iu * WG + t < COLUMNS / 4u);
#endfor
#endif
  sum = vec2(subgroupAdd(sum.x), subgroupAdd(sum.y));
  if (lane_id == 0u) { sums[subgroup] = sum; }
  workgroupBarrier();
  if (subgroup == 0u) {
    var all = vec2<f32>(0.0);
    var i = lane_id;
    loop {
      if (i >= subgroups) { break; }
      all += sums[i];
      i += subgroup_size;
    }
    all = vec2(subgroupAdd(all.x), subgroupAdd(all.y));
#ifdef THROUGH
    if (t == 0u) { y[p.first_row + wid.x] = all.x; }
#else
    if (t == 0u) { y[p.first_row + wid.x] = all.x * inverseSqrt(all.y / f32(COLUMNS * 4u) + p.eps); }
#endif
  }
}
